package subscription

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/faultinject"
	"cbrepl/merge"
	"cbrepl/subscription/status"
)

// Fault points of the loop, between its durable steps.
const (
	faultTaken     = "subscription.taken"     // a batch was taken, the target does not know it
	faultCommitted = "subscription.committed" // the target committed, the engine does not know it
	faultApplied   = "subscription.applied"   // the engine knows, nothing is confirmed
	faultConfirmed = "subscription.confirmed" // confirmed to the streams, spool not freed
	faultReleased  = "subscription.released"  // all steps done
)

// loopOptions wire the loop. Everything above the wire is behind an interface.
type loopOptions struct {
	Streams []ContentStream
	Target  apply.Target
	Spool   Spool
	// State is what Target.Open returned, Init included.
	State  apply.State
	Board  *status.Board
	Log    *slog.Logger
	Now    func() time.Time
	Limits limits
	// Grace is how long a stop waits for the batch in hand.
	Grace time.Duration
	// RecordLast makes an orderly stop record the streams' last positions.
	RecordLast bool
	// AfterBatch is Options.AfterBatch.
	AfterBatch func(ctx context.Context, b *dtx.Batch) error
	// MinConflictLog is the least time between two log lines about conflicts.
	MinConflictLog time.Duration
}

// loop owns the merge engine and moves batches from the streams to the target.
// Its contract, in this order:
//
//  0. At start every stream is told the position that the target records: the
//     last daemon may have died before it could.
//  1. Events of each stream enter the engine in the order the stream reports
//     them. An event that breaks the stream contract stops the loop; it is
//     not skipped.
//  2. When the target is idle, the next batch is taken and handed to the one
//     worker that calls the target. One batch is in hand at a time, and its
//     number is one above the last that the target recorded.
//  3. The target commits rows, positions and dedup set together. When it fails,
//     it is opened again first, and its recorded state decides whether the
//     batch was committed; only a batch that was not is applied again.
//  4. Only after the commit is known, the engine moves its positions.
//  5. Only then the batch's positions are confirmed to their streams. So what a
//     stream confirms to its server is recorded on the target before.
//  6. Only then the spool space of the batch's parts is freed.
//  7. Streams that the next release needs are exempt from every bound on what
//     may be read ahead; what is needed is worked out again after every change
//     of the engine.
//  8. At the end the batch in hand is given the grace period, then cancelled;
//     steps 4 to 6 follow if it was committed; then the streams are stopped;
//     run returns when every goroutine it started has ended.
//
// Between each two of these steps the process may die. Everything needed to go
// on is on the target and in the source's slots.
type loop struct {
	o    loopOptions
	m    *machine
	gate *gate
	// progress is the spool as the target reads it.
	progress *progress
	events   chan dtx.Event
	jobs     chan job
	outs     chan outcome

	busy     bool // a job is with the worker
	needed   []dtx.Content
	exempted bool
	reported map[dtx.Content]dtx.LSN
	since    map[dtx.GXID]time.Time // when a waiting dtx was first noticed

	conflicts      map[string]int64 // not logged yet
	conflictLogged time.Time
}

// Bounds of the loop.
const (
	eventQueue  = 256         // events between streams and loop
	eventRun    = 1024        // events taken between two looks at the target
	tickEvery   = time.Second // status
	trackedWait = 64          // waiting dtxs whose age is kept
	shownWaits  = 8
	// killWait is how long a cancelled job may take to return.
	killWait = 5 * time.Second
)

// newLoop builds the loop and its engine from the target's state.
func newLoop(o loopOptions) (*loop, error) {
	mo := merge.Options{Positions: o.State.Positions, Dedup: o.State.Dedup, MarkersFrom: dtx.PGTimeOf(o.Now())}
	for _, s := range o.Streams {
		if s.Content != dtx.Coordinator {
			mo.Contents = append(mo.Contents, s.Content)
		}
	}
	eng, err := merge.New(mo)
	if err != nil {
		return nil, err
	}
	if o.Limits.jitter == nil {
		o.Limits.jitter = func() float64 { return 0.8 + 0.4*rand.Float64() }
	}
	l := &loop{
		o: o, m: newMachine(eng, o.State, o.Limits, o.Now()), gate: newGate(),
		progress: &progress{rows: o.Spool},
		events:   make(chan dtx.Event, eventQueue), jobs: make(chan job), outs: make(chan outcome, 1),
		reported: map[dtx.Content]dtx.LSN{}, since: map[dtx.GXID]time.Time{}, conflicts: map[string]int64{},
	}
	o.Board.Positions(o.State.Batch, o.State.Positions)
	return l, nil
}

// run works until ctx ends (it returns nil) or something fails.
func (l *loop) run(ctx context.Context) error {
	base := context.WithoutCancel(ctx) // the end of ctx starts an orderly stop
	jobCtx, cancelJob := context.WithCancel(base)
	defer cancelJob()
	streamCtx, stopStreams := context.WithCancel(base)
	defer stopStreams()

	workerDone := make(chan struct{})
	go func() {
		defer close(workerDone)
		l.work(jobCtx)
	}()
	l.confirm(l.o.State.Positions)
	failed := make(chan error, 1)
	var streams errgroup.Group
	for _, s := range l.o.Streams {
		start := l.m.eng.Safe(s.Content)
		streams.Go(func() error {
			err := s.Run(streamCtx, start, l.emit)
			switch {
			case streamCtx.Err() != nil:
				err = nil // it was told to stop
			case err == nil:
				err = &dtx.Error{Op: "read stream", Content: dtx.AtContent(s.Content), Class: dtx.ClassStop, Msg: "the stream ended by itself"}
			}
			if err == nil {
				return nil
			}
			select {
			case failed <- err:
			default: // another stream's error is reported
			}
			return err
		})
	}

	err := l.steps(ctx, failed)
	err = errors.Join(err, l.finish(cancelJob))
	close(l.jobs)
	stopStreams()
	_ = streams.Wait() // its first error came through failed
	if !l.busy {
		<-workerDone
	}
	if l.o.RecordLast && err == nil {
		l.recordLast(base)
	}
	if ctx.Err() != nil && err != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// emit is what streams call. It blocks while there is no room.
func (l *loop) emit(ctx context.Context, ev dtx.Event) error {
	if err := l.gate.pass(ctx, ev.Content); err != nil {
		return err
	}
	select {
	case l.events <- ev:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// work calls the target, one job at a time, until jobs is closed.
func (l *loop) work(ctx context.Context) {
	for j := range l.jobs {
		out := outcome{job: j}
		switch j.kind {
		case jobApply:
			if out.fatal = faultinject.Point(faultTaken); out.fatal != nil {
				break
			}
			out.result, out.err = l.o.Target.Apply(ctx, j.batch, l.progress)
			if out.err == nil {
				out.fatal = faultinject.Point(faultCommitted)
			}
			if out.err == nil && out.fatal == nil && l.o.AfterBatch != nil {
				out.fatal = l.o.AfterBatch(ctx, j.batch)
			}
		case jobOpen:
			out.state, out.err = l.o.Target.Open(ctx)
		}
		l.outs <- out
	}
}

// steps is the loop proper: items 1 to 7 of the contract.
func (l *loop) steps(ctx context.Context, failed <-chan error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var lastTick time.Time
	for {
		if err := l.drain(); err != nil {
			return err
		}
		now := l.o.Now()
		wake, err := l.startJob(now)
		if err != nil {
			return err
		}
		l.exempt()
		if d := now.Sub(lastTick); d >= tickEvery {
			l.tick(now)
			lastTick = now
		}
		until := tickEvery - now.Sub(lastTick)
		if !wake.IsZero() {
			until = min(until, wake.Sub(now))
		}
		timer.Reset(max(until, 0))

		events := l.events
		if !l.m.takesEvents() {
			events = nil
		}
		select {
		case ev := <-events:
			if err := l.take(ev); err != nil {
				return err
			}
		case out := <-l.outs:
			l.busy = false
			if err := l.outcome(out); err != nil {
				return err
			}
		case <-timer.C:
		case err := <-failed:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// drain takes the events that are there, up to a bound.
func (l *loop) drain() error {
	for range eventRun {
		if !l.m.takesEvents() {
			return nil
		}
		select {
		case ev := <-l.events:
			if err := l.take(ev); err != nil {
				return err
			}
		default:
			return nil
		}
	}
	return nil
}

func (l *loop) take(ev dtx.Event) error {
	if err := l.m.add(ev); err != nil {
		return err
	}
	switch ev.Kind {
	case dtx.EventPart, dtx.EventRecord, dtx.EventPosition:
		l.reported[ev.Content] = max(l.reported[ev.Content], ev.LSN)
	}
	return nil
}

// startJob hands the machine's next job to the worker.
func (l *loop) startJob(now time.Time) (wake time.Time, err error) {
	j, ok, wake := l.m.poll(now)
	if !ok {
		return wake, nil
	}
	activity := status.Applying
	if l.m.attempt > 1 || j.kind == jobOpen {
		activity = status.Retrying
	}
	doing := status.Target{Activity: activity, Attempt: l.m.attempt, Error: errText(l.m.cause)}
	if j.kind == jobApply {
		doing.Batch, doing.Rows = j.batch.Seq, j.batch.Rows
	}
	l.progress.read.Store(0)
	l.o.Board.Target(doing, now)
	l.busy = true
	l.jobs <- j // the worker is idle: it takes the job at once
	return wake, nil
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// outcome handles what a job came to: items 3 to 6 of the contract.
func (l *loop) outcome(out outcome) error {
	now := l.o.Now()
	if out.fatal != nil {
		return &dtx.Error{Op: "follow up batch", Class: dtx.ClassStop, Err: out.fatal}
	}
	attempt, wasNarrow := l.m.attempt, l.m.narrowTo
	e, err := l.m.done(now, out)
	if err != nil {
		return err
	}
	if e == nil {
		l.troubled(out, attempt, wasNarrow, now)
		return nil
	}
	for _, step := range []struct {
		fault string
		do    func() error
	}{
		{faultApplied, func() error { l.confirm(e.confirm); return nil }},
		{faultConfirmed, func() error { return l.o.Spool.Release(e.release) }},
		{faultReleased, func() error { return nil }},
	} {
		if err := faultinject.Point(step.fault); err != nil {
			return &dtx.Error{Op: "follow up batch", Class: dtx.ClassStop, Err: err}
		}
		if err := step.do(); err != nil {
			return err
		}
	}
	l.o.Board.BatchApplied(&e.batch, e.result.Rows, e.result.Conflicts, now)
	l.o.Board.Target(status.Target{Activity: status.Idle}, now)
	l.countConflicts(e.result.Conflicts, now)
	if attempt > 1 {
		l.o.Log.Info("target is back", LogBatch, e.batch.Seq, LogAttempt, attempt)
	}
	if l.o.Log.Enabled(context.Background(), slog.LevelDebug) {
		l.o.Log.Debug("batch applied", LogBatch, e.batch.Seq, LogDtxs, len(e.batch.GXIDs), LogRows, e.result.Rows)
	}
	return nil
}

// troubled reports a failed job that is going to be tried again.
func (l *loop) troubled(out outcome, attempt, wasNarrow int, now time.Time) {
	if out.err == nil {
		if l.m.narrowTo != wasNarrow {
			l.o.Log.Warn("looking for the transaction that cannot be applied", LogLimit, l.m.narrowTo)
		}
		return
	}
	l.o.Board.Target(status.Target{Activity: status.Retrying, Attempt: attempt, Error: out.err.Error()}, now)
	l.o.Board.Fail(out.err, now)
	if dtx.ClassOf(out.err) == dtx.ClassStop {
		return // narrowing follows, and its end is reported
	}
	l.o.Log.Warn("target failed, trying again", LogBatch, l.m.batch.Seq, LogAttempt, attempt, LogError, out.err)
}

func (l *loop) confirm(ps []dtx.Position) {
	for _, p := range ps {
		for _, s := range l.o.Streams {
			if s.Content == p.Content {
				s.Confirm(p.LSN)
			}
		}
	}
}

// exempt is item 7 of the contract.
func (l *loop) exempt() {
	needed := l.m.eng.NeededContents()
	if !l.exempted || !slices.Equal(needed, l.needed) {
		l.o.Spool.Exempt(needed)
		l.needed, l.exempted = needed, true
	}
	l.gate.set(l.m.full(), needed)
}

// tick refreshes the board.
func (l *loop) tick(now time.Time) {
	l.o.Board.Progress(l.progress.read.Load(), now)
	waits := l.m.eng.Waits(trackedWait)
	since := make(map[dtx.GXID]time.Time, len(waits))
	shown := make([]status.Wait, 0, min(len(waits), shownWaits))
	for _, w := range waits {
		at, ok := l.since[w.GXID]
		if !ok {
			at = now
		}
		since[w.GXID] = at
		if len(shown) < shownWaits {
			shown = append(shown, status.Wait{
				GXID: uint64(w.GXID), Kind: w.Kind.String(), Missing: w.Missing, Parts: w.Parts,
				RecordSeen: w.RecordSeen, Blocking: w.Blocking, Since: at,
			})
		}
	}
	l.since = since
	n := l.m.eng.Pending()
	reported := make([]dtx.Position, 0, len(l.reported))
	for c, lsn := range l.reported {
		reported = append(reported, dtx.Position{Content: c, LSN: lsn})
	}
	l.o.Board.Tick(status.Pending{Dtxs: n.Dtxs, Parts: n.Parts, Records: n.Records, Rows: n.Rows, Bytes: n.Bytes}, shown, reported, now)
	l.countConflicts(nil, now)
}

// countConflicts logs skipped rows by table, at most once in MinConflictLog.
func (l *loop) countConflicts(c map[string]int64, now time.Time) {
	for t, n := range c {
		l.conflicts[t] += n
	}
	if len(l.conflicts) == 0 || now.Sub(l.conflictLogged) < l.o.MinConflictLog {
		return
	}
	tables := make([]string, 0, len(l.conflicts))
	for t := range l.conflicts {
		tables = append(tables, t)
	}
	slices.Sort(tables)
	for _, t := range tables {
		l.o.Log.Warn("rows skipped: the copies have diverged", LogRelation, t, LogRows, l.conflicts[t])
	}
	clear(l.conflicts)
	l.conflictLogged = now
}

// finish is item 8 of the contract up to the end of the streams.
func (l *loop) finish(cancelJob context.CancelFunc) error {
	l.o.Board.SetState(status.Stopping, l.o.Now())
	l.countConflicts(nil, l.conflictLogged.Add(l.o.MinConflictLog))
	if !l.busy {
		return nil
	}
	t := time.NewTimer(l.o.Grace)
	defer t.Stop()
	select {
	case out := <-l.outs:
		return l.lastOutcome(out)
	case <-t.C:
	}
	l.o.Log.Warn("the batch in hand did not finish in time, cancelling it", LogBatch, l.m.batch.Seq)
	cancelJob()
	t.Reset(killWait)
	select {
	case out := <-l.outs:
		return l.lastOutcome(out)
	case <-t.C:
		return &dtx.Error{
			Op: "stop", Class: dtx.ClassRetry,
			Msg: fmt.Sprintf("the target did not return within %s of being cancelled", killWait),
		}
	}
}

// lastOutcome confirms a batch that was committed. A failed one is left to the
// next start, which reads the target's record.
func (l *loop) lastOutcome(out outcome) error {
	l.busy = false
	if out.job.kind == jobApply && out.err == nil || out.fatal != nil {
		return l.outcome(out)
	}
	return nil
}
