// Package subscription runs one subscription: it checks both clusters, wires
// streams, spool, merge engine and target together, keeps the one loop that
// moves batches, and says how it is doing. It owns states, errors and order of
// start and stop; protocols, SQL and ordering rules belong to the packages it
// calls.
package subscription

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"cbrepl/apply"
	"cbrepl/check"
	"cbrepl/dtx"
	"cbrepl/logkey"
	"cbrepl/merge"
	"cbrepl/subscription/config"
	"cbrepl/subscription/status"
)

// Options make a subscription.
type Options struct {
	// Config is a validated configuration.
	Config *config.Config
	// Version is what status calls this program.
	Version string
	// Log takes events; nil discards them.
	Log *slog.Logger
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// AfterBatch, when set, is called after each batch that the target has
	// committed, before the next one is applied and before positions are
	// confirmed. An error stops the subscription.
	AfterBatch func(ctx context.Context, b *dtx.Batch) error

	// private replaces the pieces in tests.
	private *env
}

// Subscription is one subscription. Run runs it once.
type Subscription struct {
	o     Options
	cfg   *config.Config
	log   *slog.Logger
	env   *env
	board *status.Board
	// resolved is set once nothing of an earlier daemon is in doubt on the target.
	resolved bool
}

// env makes the pieces that talk to servers and disks.
type env struct {
	// source checks the source and reads what is published. It changes nothing.
	source func(ctx context.Context) (*sourceFacts, error)
	// checkResume compares the recorded state with the source as it is.
	checkResume func(f *sourceFacts, st apply.State, held map[dtx.Content]dtx.LSN) error
	// target makes the target; it connects to nothing.
	target func(f *sourceFacts) (apply.Target, error)
	// checkSpool says, without opening it, what keeps the spool from being used; nil
	// looks at nothing.
	checkSpool func() check.Findings
	// spool opens the spool.
	spool func(ctx context.Context) (openSpool, error)
	// streams makes one stream per node.
	streams func(f *sourceFacts, st apply.State, sp openSpool) ([]ContentStream, error)
}

// openSpool is a spool that can be closed.
type openSpool interface {
	Spool
	// Held returns the positions up to which streams are in the spool for good.
	Held() map[dtx.Content]dtx.LSN
	// LastApplied is what an earlier daemon noted as applied; zero when the spool keeps
	// nothing.
	LastApplied() apply.Record
	Close() error
}

// checker is a target that can be checked without changing anything; opening
// it raises the epoch.
type checker interface {
	// Check reads what the target records, too, as far as it is there.
	Check(ctx context.Context) (apply.State, check.Report)
}

// New checks the options. It starts nothing.
func New(o Options) (*Subscription, error) {
	if o.Config == nil {
		return nil, errors.New("a subscription needs a configuration")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Subscription{o: o, cfg: o.Config, log: o.Log.With(logkey.Subscription, o.Config.Subscription), env: o.private}
	if s.env == nil {
		s.env = newEnv(s.cfg, o.Log)
	}
	s.board = status.NewBoard(s.cfg.Subscription, o.Version, os.Getpid(), o.Now())
	return s, nil
}

// Report says how the subscription is doing.
func (s *Subscription) Report() status.Report { return s.board.Report(s.o.Now()) }

// Run serves status and replicates until ctx ends, which is no error. An error
// is one paragraph for a person; with on_stop: wait it is returned only when
// ctx ends, and shows in the status until then.
func (s *Subscription) Run(ctx context.Context) error {
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	served, err := s.serve(serving)
	if err != nil {
		return err
	}
	err = s.runWithRestarts(ctx)
	now := s.o.Now()
	if err != nil {
		s.board.Fail(err, now)
	}
	s.board.SetState(status.Stopped, now)
	if err != nil && s.cfg.OnStop == config.Wait && ctx.Err() == nil {
		s.log.Error("the subscription has stopped; status stays up until a signal", logkey.Error, err)
		<-ctx.Done()
	}
	stopServing()
	if served != nil {
		<-served
	}
	return err
}

// runWithRestarts runs replicate until ctx ends or a person is needed. After a
// fault that can pass (a full disk under the spool, a server that is down when the
// daemon starts) it starts again from the target's record; faults of servers while
// streaming are dealt with inside. A start that is told to stop has not failed.
func (s *Subscription) runWithRestarts(ctx context.Context) error {
	pause := firstPause
	for {
		began := s.o.Now()
		streamed, err := s.replicate(ctx)
		if err != nil && !streamed && ctx.Err() != nil && (errors.Is(err, context.Canceled) || dtx.ClassOf(err) == dtx.ClassRetry) {
			s.log.Info("stopped before streaming")
			return nil
		}
		if streamed && isMisfit(err) {
			err = &dtx.Error{
				Op: "continue", Class: dtx.ClassRetry,
				Msg: "tables were altered while the daemon ran; what is published and the target are read again", Err: err,
			}
		}
		if err == nil || ctx.Err() != nil || dtx.ClassOf(err) == dtx.ClassStop || errors.Is(err, errTargetHangs) {
			return err
		}
		if s.o.Now().Sub(began) > longestPause {
			pause = firstPause
		}
		s.board.Restart(err, s.o.Now())
		s.log.Warn("cannot continue now; starting again from the target's record", logkey.Error, err, logkey.Pause, pause)
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
		pause = min(2*pause, longestPause)
	}
}

// isMisfit reports whether a target that was opened again found that its tables do not
// fit. What is published was read when the daemon started and may have been altered
// with them: a restart reads both, and stops where they still do not fit.
func isMisfit(err error) bool {
	var found check.Findings
	return errors.As(err, &found)
}

// resolveInDoubt ends what an earlier daemon left prepared on the target while
// the source cannot be reached: prepared transactions hold locks. Once is enough.
func (s *Subscription) resolveInDoubt(ctx context.Context) error {
	if s.resolved {
		return nil
	}
	tgt, err := s.env.target(&sourceFacts{}) // no table is needed for that
	if err != nil {
		return err
	}
	_, err = tgt.Open(ctx)
	s.resolved = err == nil
	return errors.Join(err, tgt.Close())
}

// Bounds of the pause before a restart.
const (
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// serve starts the HTTP endpoint. The channel is closed when it has ended; it is
// nil when there is none.
func (s *Subscription) serve(ctx context.Context) (<-chan struct{}, error) {
	if s.cfg.HTTP.Listen == config.Off {
		return nil, nil
	}
	h, err := status.Handler(s.Report)
	if err != nil {
		return nil, fmt.Errorf("set up metrics: %w", err)
	}
	l, err := net.Listen("tcp", s.cfg.HTTP.Listen)
	if err != nil {
		return nil, s.listenError(ctx, err)
	}
	s.log.Info("serving status", logkey.Address, l.Addr().String(), logkey.PID, os.Getpid())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := status.Serve(ctx, l, h, s.log); err != nil {
			s.log.Warn("the status endpoint has ended", logkey.Error, err)
		}
	}()
	return done, nil
}

// listenError says who has the address when it is a daemon of this subscription.
func (s *Subscription) listenError(ctx context.Context, err error) error {
	out := &dtx.Error{
		Op: "serve status", Class: dtx.ClassStop, Err: err,
		Hint: "Choose another http.listen, or end what listens there",
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if r, _, ferr := status.Fetch(ctx, s.cfg.HTTP.Listen); ferr == nil {
		out.Msg = fmt.Sprintf("a daemon of subscription %s (pid %d) listens on %s already", r.Subscription, r.PID, s.cfg.HTTP.Listen)
		if r.Subscription == s.cfg.Subscription {
			out.Hint = "One daemon runs a subscription; stop that one first"
		}
	}
	return out
}

// replicate starts everything in the order that changes nothing before all
// checks have passed, runs the loop, and takes everything down again in reverse
// order. It reports whether it came to stream.
func (s *Subscription) replicate(ctx context.Context) (streamed bool, err error) {
	facts, err := s.env.source(ctx)
	if err != nil && dtx.ClassOf(err) == dtx.ClassRetry && ctx.Err() == nil {
		err = errors.Join(err, s.resolveInDoubt(ctx))
	}
	if err != nil {
		return false, err
	}
	tgt, err := s.env.target(facts)
	if err != nil {
		return false, err
	}
	defer func() { err = closeUnlessHanging(err, tgt) }()
	if err := refuseTarget(ctx, tgt); err != nil {
		return false, err
	}
	if s.env.checkSpool != nil {
		if err := s.env.checkSpool().Err("check spool"); err != nil {
			return false, err
		}
	}
	st, err := tgt.Open(ctx)
	if err != nil {
		return false, err
	}
	if err := checkCopies(st.Copies); err != nil {
		return false, err
	}
	sp, err := s.env.spool(ctx)
	if err != nil {
		return false, err
	}
	defer func() { err = closeUnlessHanging(err, sp) }()
	if st, err = s.agree(ctx, tgt, facts, st, sp.Held(), sp.LastApplied()); err != nil {
		return false, err
	}
	streams, err := s.env.streams(facts, st, sp)
	if err != nil {
		return false, err
	}
	l, err := newLoop(loopOptions{
		Streams: streams, Target: tgt, Spool: sp, State: st, Board: s.board, Log: s.log, Now: s.o.Now,
		Limits: s.limits(), Grace: s.cfg.ShutdownGrace, MinConflictLog: 10 * time.Second, AfterBatch: s.o.AfterBatch,
		RecordLast: s.cfg.Spool.Ack == config.Spooled,
	})
	if err != nil {
		return false, err
	}
	sources := make([]status.Source, len(streams))
	for i, c := range streams {
		sources[i] = status.Source{Content: c.Content, Facts: func() status.Stream {
			f := c.Facts()
			f.Paused = f.Paused || l.gate.holds(c.Content)
			return f
		}}
	}
	s.board.Attach(sources, sp.Usage)
	for _, c := range streams {
		if p, ok := c.Stream.(participantsReporter); ok {
			s.board.AttachParticipants(p.Participants)
		}
	}
	s.board.CopyOnly(facts.copyOnly())
	s.board.SetState(status.Streaming, s.o.Now())
	s.log.Info("streaming", logkey.Batch, st.Batch, logkey.Epoch, st.Epoch, logkey.Streams, len(streams), logkey.Tables, len(facts.tables))
	err = l.run(ctx)
	if err == nil {
		s.log.Info("stopped", logkey.Batch, l.m.lastBatch())
	}
	return true, err
}

// closeUnlessHanging closes c, unless a call that uses it has not returned: then
// the end of the process closes it.
func closeUnlessHanging(err error, c io.Closer) error {
	if errors.Is(err, errTargetHangs) {
		return err
	}
	return errors.Join(err, c.Close())
}

// theSpool is the spool in messages.
const theSpool = "the spool"

// agree makes target and source agree where to go on: the source must still be what
// the target's record was made with, and the record the newest. A target without a
// record is not taken for a new one: it may have lost it.
func (s *Subscription) agree(ctx context.Context, tgt apply.Target, f *sourceFacts, st apply.State, held map[dtx.Content]dtx.LSN, applied apply.Record) (apply.State, error) {
	if err := st.CheckRecord(applied, theSpool); err != nil {
		return st, err
	}
	if err := checkBegun(st); err != nil {
		return st, err
	}
	if err := s.env.checkResume(f, st, held); err != nil {
		return st, err
	}
	return s.agreeOnTables(ctx, tgt, f, st)
}

// checkBegun refuses a target that does not record where the subscription begins.
func checkBegun(st apply.State) error {
	if !st.Initialized {
		return &dtx.Error{
			Op: "start subscription", Class: dtx.ClassStop,
			Msg: "the target does not record where this subscription begins: its slots were not made by `cbrepl slots create`, or the record was deleted, or restored to a state before that",
			Hint: "If it has run before, bring back the target's newest state; if that is lost, a new initial copy is needed (`cbrepl subscription reset --help` lists the steps). " +
				"Only if the target's tables hold what the source's held when the slots were made, `cbrepl subscription reset` records that it begins at the slots' positions",
		}
	}
	return nil
}

// checkUnused refuses a first start with a spool that holds something.
func checkUnused(held map[dtx.Content]dtx.LSN) error {
	if len(held) == 0 {
		return nil
	}
	return &dtx.Error{
		Op: "start subscription", Class: dtx.ClassStop,
		Msg:  "the spool holds data of this subscription, but the target has no record of it",
		Hint: "If the target was filled again, run `cbrepl subscription reset`; else restore the target's schema cbrepl",
	}
}

func (s *Subscription) limits() limits {
	b := s.cfg.Batch
	return limits{
		batch:    merge.Limits{MaxRows: b.MaxRows, MaxBytes: int64(b.MaxBytes), MaxDtxs: b.MaxDtxs},
		maxDelay: b.MaxDelay, idleEvery: s.cfg.Source.StatusInterval,
		backoffMin: 200 * time.Millisecond, backoffMax: 15 * time.Second,
		maxPending: maxPendingEntries,
	}
}

// maxPendingEntries bounds the parts, records and dedup entries in memory, some 300
// bytes each.
const maxPendingEntries = 200_000
