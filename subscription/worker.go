package subscription

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/faultinject"
)

// worker is the one goroutine that calls the target while the loop runs, one job
// at a time. The loop hands it a job only when it is idle.
type worker struct {
	target apply.Target
	rows   apply.Rows
	// after is Options.AfterBatch.
	after func(ctx context.Context, b *dtx.Batch) error

	jobs   chan job
	outs   chan outcome // one place: an outcome is never waited for
	cancel context.CancelFunc
	ended  chan struct{}
	inHand *job // the loop's own note of what the worker is at
}

// errTargetHangs says that a call of the target did not return. What the call
// uses must not be closed under it, and no other may be made.
var errTargetHangs = errors.New("the call did not return after it was cancelled")

// startWorker starts the goroutine. It ends when end is called.
func startWorker(ctx context.Context, target apply.Target, rows apply.Rows, after func(context.Context, *dtx.Batch) error) *worker {
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{
		target: target, rows: rows, after: after, cancel: cancel,
		jobs: make(chan job), outs: make(chan outcome, 1), ended: make(chan struct{}),
	}
	go func() {
		defer close(w.ended)
		for j := range w.jobs {
			w.outs <- w.do(ctx, j)
		}
	}()
	return w
}

// do makes one call.
func (w *worker) do(ctx context.Context, j job) outcome {
	out := outcome{job: j}
	switch j.kind {
	case jobApply:
		if out.fatal = faultinject.Point(faultTaken); out.fatal != nil {
			break
		}
		out.result, out.err = w.target.Apply(ctx, j.batch, w.rows)
		if out.err == nil {
			out.fatal = faultinject.Point(faultCommitted)
		}
		if out.err == nil && out.fatal == nil && w.after != nil {
			out.fatal = w.after(ctx, j.batch)
		}
	case jobOpen:
		out.state, out.err = w.target.Open(ctx)
	}
	return out
}

// begin hands over a job. The worker is idle and takes it at once.
func (w *worker) begin(j job) {
	w.inHand = &j
	w.jobs <- j
}

// took notes that the outcome of the job in hand was received from outs.
func (w *worker) took() { w.inHand = nil }

// await waits for the job in hand: for grace, then cancelled, then for killWait.
// cancelled is called when the grace is over. The only error wraps
// errTargetHangs.
func (w *worker) await(grace time.Duration, cancelled func()) (outcome, error) {
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case out := <-w.outs:
		w.took()
		return out, nil
	case <-t.C:
	}
	cancelled()
	w.cancel()
	t.Reset(killWait)
	select {
	case out := <-w.outs:
		w.took()
		return out, nil
	case <-t.C:
		return outcome{}, &dtx.Error{
			Op: "stop", Class: dtx.ClassRetry, Err: errTargetHangs,
			Msg:  fmt.Sprintf("the target is still at batch %d, %s after it was to stop", w.inHand.batch.Seq, killWait),
			Hint: "The process must end before the subscription can start again",
		}
	}
}

// end ends the worker and waits for it, unless a call hangs.
func (w *worker) end() {
	close(w.jobs)
	if w.inHand == nil {
		<-w.ended
	}
	w.cancel()
}
