package subscription

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/subscription/status"
)

// slowIter has a thousand rows a second for as long as it is asked to.
type slowIter struct{ left int }

func (s *slowIter) Next() (*pgoutput.Change, error) {
	if s.left--; s.left < 0 {
		return nil, io.EOF
	}
	time.Sleep(time.Millisecond)
	return &pgoutput.Change{}, nil
}

func (s *slowIter) Close() error { return nil }

// A batch that takes long is in order while it moves; one that does not move for
// a minute is not, whatever keeps it.
func TestStuckBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rows = 300_000
		held := make(chan struct{})
		r := startRig(t, func(r *rig, _ *loopOptions) {
			r.part = func() (apply.RowIter, error) { return &slowIter{rows}, nil }
			r.read = func(_ context.Context, rows apply.Rows) (apply.Result, error) {
				it, err := rows.Open(dtx.Part{})
				for err == nil {
					_, err = it.Next()
				}
				<-held // as a lock on the last statement's table would
				return apply.Result{Rows: 1}, nil
			}
		})
		r.onePhase(9, 120)
		look := func(after time.Duration) *status.Report {
			time.Sleep(after)
			synctest.Wait()
			rep := r.board.Report(time.Now())
			return &rep
		}
		rep := look(4 * time.Minute)
		if tg := rep.Target; !rep.Healthy || tg.Activity != status.Applying || tg.Batch != 7 || tg.RowsTaken < 230_000 || tg.RowsTaken > 240_000 {
			t.Fatalf("while rows move: %v, %+v", rep.Unhealthy, tg)
		}
		rep = look(50 * time.Second)
		if !rep.Healthy {
			t.Fatalf("while rows move: %v", rep.Unhealthy)
		}
		rep = look(2 * time.Minute)
		if rep.Healthy || rep.Target.RowsTaken != rows || !strings.Contains(strings.Join(rep.Unhealthy, "\n"), "batch 7 has not moved for") {
			t.Fatalf("with a batch that hangs: %v, %+v", rep.Unhealthy, rep.Target)
		}
		close(held)
		rep = look(2 * time.Second)
		if !rep.Healthy || rep.Target.Activity != status.Idle || rep.Target.Batch != 0 {
			t.Fatalf("after it: %v, %+v", rep.Unhealthy, rep.Target)
		}
		_ = r.end()
	})
}
