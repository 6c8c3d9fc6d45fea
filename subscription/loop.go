package subscription

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/faultinject"
	"cbrepl/logkey"
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

// loop is the one goroutine that owns the machine: it takes the streams' events,
// moves batches to the target and lets streams and spool forget them. Its
// contract, in this order:
//
//  0. At start the spool is told the batch, and every stream the position, that
//     the target records: the last daemon may have died before it could. What the
//     target has is released from then on.
//  1. Events of each stream enter the machine in the order the stream reports
//     them. An event that breaks the stream contract stops the loop; it is
//     not skipped.
//  2. When the target is idle, the next batch is taken and handed to the one
//     worker that calls the target. One batch is in hand at a time, and its
//     number is one above the last that the target recorded.
//  3. The target commits rows, positions and dedup set together. When it fails,
//     it is opened again first, and its recorded state decides whether the
//     batch was committed; only a batch that was not is applied again.
//  4. Only after the commit is known, the machine moves its positions.
//  5. Only then the batch's positions are confirmed to their streams. So what a
//     stream confirms to its server is recorded on the target before.
//  6. Only then the spool space of the batch's parts is freed.
//  7. Streams that the next release needs are exempt from every bound on what
//     may be read ahead; what is needed is worked out again after every change
//     of the machine.
//  8. At the end the batch in hand is given the grace period, then cancelled;
//     steps 4 to 6 follow if it was committed.
//  9. Then the streams are stopped, and their last events taken.
//  10. Then, where positions may be confirmed before they are recorded
//     (RecordLast), the last ones are recorded, through the worker as any batch.
//  11. Then the worker ends. Run returns when every goroutine it started has
//     ended, so that target and spool can be closed; when a call of the target
//     does not even return after it was cancelled, the error wraps
//     errTargetHangs, and neither may be.
//
// Between each two of these steps the process may die. Everything needed to
// continue is on the target and in the source's slots.
type loop struct {
	o    loopOptions
	m    *machine
	gate *gate
	// progress is the spool as the target reads it.
	progress *progress
	events   chan dtx.Event
	worker   *worker // while run runs

	needed   []dtx.Content
	exempted bool
	reporter reporter
}

// Bounds of the loop.
const (
	eventQueue = 256         // events between streams and loop
	eventRun   = 1024        // events taken between two looks at the target
	tickEvery  = time.Second // status
	// killWait is how long a cancelled job may take to return.
	killWait = 5 * time.Second
)

// newLoop builds the loop and its machine from the target's state.
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
	o.Board.Positions(o.State.Batch, o.State.Positions)
	return &loop{
		o: o, m: newMachine(eng, o.State, o.Limits, o.Now()), gate: newGate(),
		progress: &progress{rows: o.Spool}, events: make(chan dtx.Event, eventQueue),
		reporter: newReporter(o.Board, o.Log, o.MinConflictLog),
	}, nil
}

// run works until ctx ends (it returns nil) or something fails.
func (l *loop) run(ctx context.Context) error {
	base := context.WithoutCancel(ctx) // the end of ctx starts an orderly stop
	if err := l.noteApplied(l.o.State.Batch); err != nil {
		return err
	}
	l.worker = startWorker(base, l.o.Target, l.progress, l.o.AfterBatch)
	l.confirm(l.o.State.Positions)
	streams := l.startStreams(base)

	err := l.steps(ctx, streams.failed)
	l.o.Board.SetState(status.Stopping, l.o.Now())
	l.reporter.flushConflicts(l.o.Now())
	err = errors.Join(err, l.finishBatch())
	streams.stop()
	if l.o.RecordLast && err == nil {
		err = l.recordLast()
	}
	l.worker.end()
	if ctx.Err() != nil && err != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// runningStreams are the goroutines that read the source.
type runningStreams struct {
	failed chan error // the first error that a stream ended with
	cancel context.CancelFunc
	group  errgroup.Group
}

// startStreams starts every stream from where the machine expects it.
func (l *loop) startStreams(ctx context.Context) *runningStreams {
	ctx, cancel := context.WithCancel(ctx)
	r := &runningStreams{failed: make(chan error, 1), cancel: cancel}
	for _, s := range l.o.Streams {
		start := l.m.start(s.Content)
		r.group.Go(func() error {
			err := s.Run(ctx, start, l.emit)
			switch {
			case ctx.Err() != nil:
				return nil //nolint:nilerr // it was told to stop
			case err == nil:
				err = &dtx.Error{Op: "read stream", Content: dtx.AtContent(s.Content), Class: dtx.ClassStop, Msg: "the stream ended by itself"}
			}
			select {
			case r.failed <- err:
			default: // another stream's error is reported
			}
			return err
		})
	}
	return r
}

// stop ends the streams and waits for them.
func (r *runningStreams) stop() {
	r.cancel()
	_ = r.group.Wait() // its first error came through failed
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

// steps is the loop proper: items 1 to 7 of the contract.
func (l *loop) steps(ctx context.Context, failed <-chan error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var lastTick time.Time
	for {
		if err := l.drain(); err != nil {
			return err
		}
		if parts := l.m.drops(); len(parts) > 0 {
			if err := l.o.Spool.Release(parts); err != nil {
				return err
			}
		}
		now := l.o.Now()
		wake := l.startJob(now)
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
		case out := <-l.worker.outs:
			l.worker.took()
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
		l.reporter.read(ev.Content, ev.LSN)
	}
	return nil
}

// startJob hands the machine's next job to the worker. It returns when to ask
// again at the latest.
func (l *loop) startJob(now time.Time) (wake time.Time) {
	j, ok, wake := l.m.poll(now)
	if ok {
		l.beginJob(j, now)
	}
	return wake
}

func (l *loop) beginJob(j job, now time.Time) {
	l.progress.read.Store(0)
	l.reporter.jobBegins(j, now)
	l.worker.begin(j)
}

// outcome handles what a job came to: items 3 to 6 of the contract.
func (l *loop) outcome(out outcome) error {
	now := l.o.Now()
	if out.fatal != nil {
		return followUpError(out.fatal)
	}
	v, err := l.m.done(now, out)
	if err != nil {
		return err
	}
	if v.applied == nil {
		l.reporter.jobFailed(v, now)
		return nil
	}
	for _, step := range []struct {
		fault string
		do    func() error
	}{
		{faultApplied, func() error {
			if err := l.noteApplied(v.applied.batch.Seq); err != nil {
				return err
			}
			l.confirm(v.applied.confirm)
			return nil
		}},
		{faultConfirmed, func() error { return l.o.Spool.Release(v.applied.release) }},
		{faultReleased, func() error { return nil }},
	} {
		if err := faultinject.Point(step.fault); err != nil {
			return followUpError(err)
		}
		if err := step.do(); err != nil {
			return err
		}
	}
	l.reporter.batchApplied(v.applied, now)
	return nil
}

// noteApplied tells the spool how far the target is, before anything that it has is
// released.
func (l *loop) noteApplied(batch uint64) error {
	return l.o.Spool.Applied(apply.Record{Token: l.o.State.Token, Batch: batch})
}

func followUpError(err error) error {
	return &dtx.Error{Op: "follow up batch", Class: dtx.ClassStop, Err: err}
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
	needed := l.m.needed()
	for _, s := range l.o.Streams {
		if n, ok := s.Stream.(needer); ok && slices.Contains(needed, s.Content) {
			needed = append(slices.Clone(needed), n.Needed()...)
			slices.Sort(needed)
			needed = slices.Compact(needed)
		}
	}
	if !l.exempted || !slices.Equal(needed, l.needed) {
		l.o.Spool.Exempt(needed)
		l.needed, l.exempted = needed, true
	}
	l.gate.set(l.m.full(), needed)
}

// tick refreshes the board.
func (l *loop) tick(now time.Time) {
	l.o.Board.Progress(l.progress.read.Load(), now)
	l.reporter.tick(l.m.pending(), l.m.oldestCommit(), l.m.waits(trackedWait), now)
}

// finishBatch is item 8 of the contract. A batch that failed is left to the next
// start, which reads the target's record.
func (l *loop) finishBatch() error {
	j := l.worker.inHand
	if j == nil {
		return nil
	}
	out, err := l.worker.await(l.o.Grace, func() {
		l.o.Log.Warn("the batch in hand did not finish in time, cancelling it", logkey.Batch, j.batch.Seq)
	})
	switch {
	case err != nil:
		return err
	case out.job.kind == jobApply && out.err == nil || out.fatal != nil:
		return l.outcome(out)
	}
	return nil
}

// recordLast is item 10 of the contract: the streams have ended.
//
// With spool.ack spooled, positions of idle streams are confirmed before the
// target records them; the spool says that they may be. Without this step a
// drained spool could never be given up: the slots would seem to have been moved
// by somebody else.
//
// A failure is no more than a log line, unless the call hangs: the next start
// reads what the target has.
func (l *loop) recordLast() error {
	for len(l.events) > 0 && l.m.takesEvents() {
		if err := l.drain(); err != nil {
			l.o.Log.Warn("the last positions are not recorded on the target", logkey.Error, err)
			return nil
		}
	}
	j, ok := l.m.last()
	if !ok {
		return nil
	}
	l.beginJob(j, l.o.Now())
	out, err := l.worker.await(l.o.Grace, func() {})
	if errors.Is(err, errTargetHangs) {
		return err
	}
	if err = errors.Join(out.err, out.fatal); err == nil {
		err = l.outcome(out)
	}
	if err != nil {
		l.o.Log.Warn("the last positions are not recorded on the target", logkey.Batch, j.batch.Seq, logkey.Error, err)
	}
	return nil
}
