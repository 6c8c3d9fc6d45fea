package subscription

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/faultinject"
	"cbrepl/merge"
	"cbrepl/subscription/status"
)

// rig is a loop over hand-driven parts: the test emits events and answers the
// target's calls, and reads the trace of what the loop did, in order.
type rig struct {
	t     *testing.T
	mu    sync.Mutex
	trace []string
	emit  map[dtx.Content]func(dtx.Event) error
	apply func(ctx context.Context, b *dtx.Batch) (apply.Result, error)
	// read is called instead of apply where the target is to read rows; part opens
	// one.
	read  func(ctx context.Context, rows apply.Rows) (apply.Result, error)
	part  func() (apply.RowIter, error)
	open  func() (apply.State, error)
	noted func(apply.Record) // what the spool is told
	state apply.State
	board *status.Board
	logs  bytes.Buffer
	l     *loop
	done  chan error
	stop  context.CancelFunc
}

func (r *rig) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trace = append(r.trace, fmt.Sprintf(format, args...))
}

func (r *rig) took() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := strings.Join(r.trace, "\n")
	r.trace = nil
	return s
}

type rigStream struct {
	r *rig
	c dtx.Content
}

func (s rigStream) Run(ctx context.Context, _ dtx.LSN, emit func(context.Context, dtx.Event) error) error {
	s.r.mu.Lock()
	s.r.emit[s.c] = func(ev dtx.Event) error { return emit(ctx, ev) }
	s.r.mu.Unlock()
	<-ctx.Done()
	s.r.note("stream %d stopped", s.c)
	return ctx.Err()
}
func (s rigStream) Confirm(lsn dtx.LSN)  { s.r.note("confirm %d %s", s.c, lsn) }
func (s rigStream) Facts() status.Stream { return status.Stream{Content: s.c, Connected: true} }

type rigSpool struct{ r *rig }

func (s rigSpool) Open(dtx.Part) (apply.RowIter, error) {
	if s.r.part != nil {
		return s.r.part()
	}
	return nil, errors.New("not used")
}

func (s rigSpool) Applied(r apply.Record) error {
	if s.r.noted != nil {
		s.r.noted(r)
	}
	return nil
}

func (s rigSpool) Release(parts []dtx.Part) error {
	for _, p := range parts {
		s.r.note("release gxid %d content %d", p.GXID, p.Content)
	}
	return nil
}
func (s rigSpool) Exempt([]dtx.Content) {}
func (s rigSpool) Usage() status.Spool  { return status.Spool{} }

type rigTarget struct{ r *rig }

func (g rigTarget) Open(context.Context) (apply.State, error) {
	g.r.note("open")
	if g.r.open != nil {
		return g.r.open()
	}
	return g.r.state, nil
}

func (g rigTarget) RecordTables(context.Context, []catalog.ReplicatedTable) error { return nil }

func (g rigTarget) Init(context.Context, apply.Beginning) error { return nil }

func (g rigTarget) Close() error { return nil }

func (g rigTarget) Apply(ctx context.Context, b *dtx.Batch, rows apply.Rows) (apply.Result, error) {
	g.r.note("apply %d %v", b.Seq, b.GXIDs)
	if g.r.read != nil {
		return g.r.read(ctx, rows)
	}
	if g.r.apply != nil {
		return g.r.apply(ctx, b)
	}
	return apply.Result{Rows: b.Rows}, nil
}

// startRig runs a loop with one segment in the surrounding bubble.
func startRig(t *testing.T, change func(*rig, *loopOptions)) *rig {
	r := &rig{t: t, emit: map[dtx.Content]func(dtx.Event) error{}, done: make(chan error, 1)}
	r.state = apply.State{Initialized: true, Batch: 6, Positions: []dtx.Position{{Content: -1, LSN: 100}, {Content: 0, LSN: 100}}}
	r.board = status.NewBoard("rig", "test", 1, time.Now())
	r.board.SetState(status.Streaming, time.Now())
	o := loopOptions{
		Streams: []ContentStream{{-1, rigStream{r, -1}}, {0, rigStream{r, 0}}},
		Target:  rigTarget{r}, Spool: rigSpool{r}, State: r.state, Board: r.board,
		Log: slog.New(slog.NewTextHandler(&r.logs, &slog.HandlerOptions{Level: slog.LevelInfo})), Now: time.Now,
		Limits: limits{
			batch: merge.Limits{MaxDtxs: 100}, idleEvery: 2 * time.Second, maxPending: 1000,
			backoffMin: 100 * time.Millisecond, backoffMax: 10 * time.Second, jitter: func() float64 { return 1 },
		},
		Grace: 5 * time.Second, MinConflictLog: 10 * time.Second,
	}
	if change != nil {
		change(r, &o)
	}
	var err error
	if r.l, err = newLoop(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	t.Cleanup(cancel)
	go func() { r.done <- r.l.run(ctx) }()
	synctest.Wait()
	return r
}

// end stops the loop and returns its error.
func (r *rig) end() error {
	r.stop()
	return <-r.done
}

// onePhase emits a one-phase part on content 0.
func (r *rig) onePhase(g dtx.GXID, lsn dtx.LSN) {
	r.t.Helper()
	r.commit(g, lsn, dtx.PGTime(0).Time())
}

// commit is onePhase with a time of commit.
func (r *rig) commit(g dtx.GXID, lsn dtx.LSN, at time.Time) {
	r.t.Helper()
	err := r.emit[0](dtx.Event{Kind: dtx.EventPart, Content: 0, LSN: lsn, Part: dtx.Part{
		GXID: g, Kind: dtx.OnePhase, Content: 0, EndLSN: lsn, CommitTime: dtx.PGTimeOf(at), Rows: 1, Bytes: 10, Spool: dtx.SpoolID(g),
	}})
	if err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
}

func (r *rig) want(trace string) {
	r.t.Helper()
	if got := r.took(); got != strings.TrimSpace(trace) {
		r.t.Fatalf("the loop did\n%s\nwant\n%s", got, strings.TrimSpace(trace))
	}
}

// What the target has is released from the start on: before that the spool is told
// what that is, also when the last daemon died before it could.
func TestSpoolKnowsTheTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, func(r *rig, o *loopOptions) {
			o.State.Token = "t"
			r.noted = func(rec apply.Record) { r.note("the spool knows batch %d of %s", rec.Batch, rec.Token) }
		})
		r.want("the spool knows batch 6 of t\nconfirm -1 0/64\nconfirm 0 0/64")
		r.onePhase(8, 90) // applied long ago
		r.want("release gxid 8 content 0")
		r.onePhase(9, 120)
		r.want("apply 7 [9]\nthe spool knows batch 7 of t\nconfirm 0 0/78\nrelease gxid 9 content 0")
		if err := r.end(); err != nil {
			t.Fatal(err)
		}
	})
}

// Behind, with batches that write the same rows again and again, the next batch
// waits to grow, and a part of the lag is all that it waits. Otherwise what is
// ready is applied at once.
func TestBatchesGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var folded atomic.Int64
		r := startRig(t, func(r *rig, o *loopOptions) {
			o.Limits.batch = merge.Limits{MaxRows: 1_000_000, MaxBytes: 1 << 30, MaxDtxs: 100}
			r.apply = func(context.Context, *dtx.Batch) (apply.Result, error) {
				return apply.Result{Rows: 20_000, Folded: folded.Load()}, nil
			}
		})
		time.Sleep(time.Hour)
		synctest.Wait()
		r.took()
		ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }

		r.commit(9, 120, ago(time.Minute))
		r.want("apply 7 [9]\nconfirm 0 0/78\nrelease gxid 9 content 0")
		folded.Store(10_000)
		r.commit(10, 130, ago(time.Minute))
		r.want("apply 8 [10]\nconfirm 0 0/82\nrelease gxid 10 content 0")
		// More keeps coming, to the end of the wait.
		begun := time.Now()
		for g := dtx.GXID(11); time.Since(begun) < growMost; g++ {
			r.commit(g, dtx.LSN(g)*10+30, ago(4*time.Second))
			r.want("")
			time.Sleep(growPause / 2)
		}
		synctest.Wait()
		if got := r.took(); !strings.HasPrefix(got, "apply 9 [11 12 13 ") || strings.Contains(got, "apply 10") {
			t.Fatal(got)
		}

		// Nothing comes, and it goes on.
		r.commit(100, 1100, ago(time.Minute))
		time.Sleep(growPause - time.Millisecond)
		synctest.Wait()
		r.want("")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		r.want("apply 10 [100]\nconfirm 0 0/44C\nrelease gxid 100 content 0")

		// Hardly behind, it hardly waits.
		r.commit(101, 1110, ago(40*time.Millisecond))
		time.Sleep(growPause)
		synctest.Wait()
		r.took()
		r.commit(102, 1120, ago(time.Minute))
		time.Sleep(15 * time.Millisecond) // a quarter of 40 and 200 ms is 60
		synctest.Wait()
		r.want("")
		time.Sleep(45 * time.Millisecond)
		synctest.Wait()
		r.want("apply 12 [102]\nconfirm 0 0/460\nrelease gxid 102 content 0")

		// Nothing was folded: what is ready is applied at once.
		folded.Store(100)
		r.commit(103, 1130, ago(time.Minute))
		time.Sleep(growMost)
		synctest.Wait()
		r.want("apply 13 [103]\nconfirm 0 0/46A\nrelease gxid 103 content 0")
		r.commit(104, 1140, ago(time.Minute))
		r.want("apply 14 [104]\nconfirm 0 0/474\nrelease gxid 104 content 0")
		_ = r.end()
	})
}

// A target that has fallen behind with updates tries one larger batch, to see
// whether rows change again, and not again before it was close behind.
func TestBatchesGrowToTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, func(r *rig, o *loopOptions) {
			o.Limits.batch = merge.Limits{MaxRows: 1_000_000, MaxBytes: 1 << 30, MaxDtxs: 100}
			r.apply = func(_ context.Context, b *dtx.Batch) (apply.Result, error) {
				if b.GXIDs[0]%2 == 0 {
					return apply.Result{Rows: 20_000}, nil
				}
				return apply.Result{Rows: 20_000, Updates: 15_000}, nil
			}
		})
		time.Sleep(time.Hour)
		synctest.Wait()
		r.took()
		lsn := dtx.LSN(200)
		// step commits a dtx, with updates if odd, and tells whether it waited.
		step := func(g dtx.GXID, lag time.Duration, wait bool) {
			t.Helper()
			lsn += 10
			r.commit(g, lsn, time.Now().Add(-lag))
			if waited := r.took() == ""; waited != wait {
				t.Fatalf("gxid %d waited: %v", g, waited)
			}
			if wait {
				time.Sleep(growPause)
				synctest.Wait()
				if r.took() == "" {
					t.Fatalf("gxid %d waits although nothing comes", g)
				}
			}
		}
		const behind, near = time.Minute, time.Second
		step(10, behind, false)
		step(11, behind, false) // no updates before it
		step(13, behind, true)
		step(15, behind, false)
		step(17, near, false)
		step(19, near, false) // not behind
		step(21, behind, false)
		step(23, behind, true)
		step(25, behind, false)
		_ = r.end()
	})
}

// The order of the contract: recorded positions are confirmed at start; apply,
// then confirm, then release; streams stop last.
func TestContractOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, nil)
		r.want("confirm -1 0/64\nconfirm 0 0/64")
		r.onePhase(9, 120)
		r.want("apply 7 [9]\nconfirm 0 0/78\nrelease gxid 9 content 0")
		if err := r.end(); err != nil {
			t.Fatal(err)
		}
		if got := r.took(); !strings.Contains(got, "stream 0 stopped") || !strings.Contains(got, "stream -1 stopped") {
			t.Fatal(got)
		}
	})
}

// The same order when the process dies at each point between the steps: what
// stands behind the point has not happened.
func TestFaultPointsStandBetweenSteps(t *testing.T) {
	for point, want := range map[string]string{
		faultTaken:     "",
		faultCommitted: "apply 7 [9]",
		faultApplied:   "apply 7 [9]",
		faultConfirmed: "apply 7 [9]\nconfirm 0 0/78",
		faultReleased:  "apply 7 [9]\nconfirm 0 0/78\nrelease gxid 9 content 0",
	} {
		synctest.Test(t, func(t *testing.T) {
			r := startRig(t, nil)
			r.took()
			if err := faultinject.Arm(point + "=error"); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = faultinject.Arm("") }()
			r.onePhase(9, 120)
			if err := <-r.done; !errors.Is(err, faultinject.ErrInjected) {
				t.Fatal(err)
			}
			got, _, _ := strings.Cut(strings.TrimPrefix(r.took(), "stream"), "\nstream")
			if strings.HasPrefix(got, " ") { // streams stopped, nothing else happened
				got = ""
			}
			if got != want {
				t.Errorf("%s: the loop did\n%s\nwant\n%s", point, got, want)
			}
		})
	}
}

// With nothing pending, positions alone are recorded and then confirmed, at the
// idle pace (field case 5), never at once.
func TestIdleProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, nil)
		r.took()
		for i := range 5 {
			if err := r.emit[0](dtx.Event{Kind: dtx.EventPosition, Content: 0, LSN: dtx.LSN(200 + i)}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		r.want("")
		time.Sleep(2100 * time.Millisecond)
		synctest.Wait()
		r.want("apply 7 []\nconfirm 0 0/CC")
		_ = r.end()
	})
}

// Where positions are confirmed before they are recorded, a stop records the last
// ones, so that slots are not beyond the target's record; not while something is
// left to apply, and a target that fails does not make the stop fail.
func TestStopRecordsTheLastPositions(t *testing.T) {
	for _, tc := range []struct {
		name string
		prep func(r *rig)
		fail bool
		want bool
	}{
		{"idle", func(*rig) {}, false, true},
		{"target fails", func(*rig) {}, true, true},
		{"a part waits for its record", func(r *rig) {
			_ = r.emit[0](dtx.Event{Kind: dtx.EventPart, Content: 0, LSN: 150, Part: dtx.Part{GXID: 3, Kind: dtx.TwoPhase, Content: 0, EndLSN: 150, Rows: 1, Spool: 3}})
		}, false, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			var recorded []dtx.Position
			r := startRig(t, func(r *rig, o *loopOptions) {
				o.RecordLast = true
				r.apply = func(_ context.Context, b *dtx.Batch) (apply.Result, error) {
					if recorded = b.Positions; tc.fail {
						return apply.Result{}, errors.New("gone")
					}
					return apply.Result{}, nil
				}
			})
			tc.prep(r)
			for c, lsn := range map[dtx.Content]dtx.LSN{-1: 180, 0: 200} {
				if err := r.emit[c](dtx.Event{Kind: dtx.EventPosition, Content: c, LSN: lsn}); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			r.took()
			if err := r.end(); err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
			if got := strings.Contains(r.took(), "apply 7 []"); got != tc.want {
				t.Errorf("%s: recorded %v", tc.name, got)
			}
			if want := []dtx.Position{{Content: -1, LSN: 180}, {Content: 0, LSN: 200}}; tc.want && !slices.Equal(recorded, want) {
				t.Errorf("%s: positions %v", tc.name, recorded)
			}
		})
	}
}

// A stop lets the batch in hand finish within the grace, and confirms it.
func TestStopFinishesTheBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, func(r *rig, _ *loopOptions) {
			r.apply = func(ctx context.Context, _ *dtx.Batch) (apply.Result, error) {
				return apply.Result{Rows: 1}, pause(ctx, 3*time.Second)
			}
		})
		r.onePhase(9, 120)
		r.took()
		start := time.Now()
		if err := r.end(); err != nil {
			t.Fatal(err)
		}
		if got := r.took(); !strings.HasPrefix(got, "confirm 0 0/78\nrelease gxid 9 content 0\n") || time.Since(start) != 3*time.Second {
			t.Fatalf("after %s:\n%s", time.Since(start), got)
		}
	})
}

// A batch that does not finish in the grace is cancelled; nothing of it is
// confirmed. A target that does not even return is given up.
func TestStopCancelsTheBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, func(r *rig, _ *loopOptions) {
			r.apply = func(ctx context.Context, _ *dtx.Batch) (apply.Result, error) {
				<-ctx.Done()
				return apply.Result{}, ctx.Err()
			}
		})
		r.onePhase(9, 120)
		r.took()
		start := time.Now()
		if err := r.end(); err != nil {
			t.Fatal(err)
		}
		if got := r.took(); strings.Contains(got, "confirm") || time.Since(start) != 5*time.Second {
			t.Fatalf("after %s:\n%s", time.Since(start), got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		r := startRig(t, func(r *rig, _ *loopOptions) {
			r.apply = func(context.Context, *dtx.Batch) (apply.Result, error) {
				<-hang
				return apply.Result{}, nil
			}
		})
		r.onePhase(9, 120)
		start := time.Now()
		if err := r.end(); err == nil || time.Since(start) != 5*time.Second+killWait {
			t.Fatalf("after %s: %v", time.Since(start), err)
		}
		close(hang)
		synctest.Wait()
	})
}

// A passing fault is retried for as long as it lasts, with growing pauses, and
// shows in the status; nothing is confirmed meanwhile.
func TestRetryForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fails atomic.Bool
		fails.Store(true)
		var mu sync.Mutex
		var tries []time.Time
		r := startRig(t, func(r *rig, _ *loopOptions) {
			r.apply = func(context.Context, *dtx.Batch) (apply.Result, error) {
				mu.Lock()
				tries = append(tries, time.Now())
				mu.Unlock()
				if fails.Load() {
					return apply.Result{}, &dtx.Error{Op: "apply batch", Msg: "lock timeout"}
				}
				return apply.Result{Rows: 1}, nil
			}
		})
		r.onePhase(9, 120)
		r.took()
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := r.took(); strings.Contains(got, "confirm") || strings.Contains(got, "apply 8") {
			t.Fatal(got)
		}
		rep := r.board.Report(time.Now())
		if rep.Target.Activity != status.Retrying || rep.Target.Error != "apply batch: lock timeout" || rep.Healthy || rep.LastError == nil || rep.LastError.Stops {
			t.Fatalf("status %+v", rep)
		}
		mu.Lock()
		if n := len(tries); n < 300 || n > 400 || tries[1].Sub(tries[0]) != 100*time.Millisecond || tries[n-1].Sub(tries[n-2]) != 10*time.Second {
			t.Fatalf("%d tries in an hour, first pause %s, last %s", n, tries[1].Sub(tries[0]), tries[n-1].Sub(tries[n-2]))
		}
		mu.Unlock()
		fails.Store(false)
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if got := r.took(); !strings.Contains(got, "confirm 0 0/78") {
			t.Fatal(got)
		}
		if rep := r.board.Report(time.Now()); !rep.Healthy || rep.Applied.Dtxs != 1 {
			t.Fatalf("status %+v", rep)
		}
		_ = r.end()
	})
}

// A daemon whose place was taken by another must not take the other's batch of
// the same number for its own.
func TestForeignBatchStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, func(r *rig, _ *loopOptions) {
			r.apply = func(context.Context, *dtx.Batch) (apply.Result, error) {
				return apply.Result{}, &dtx.Error{Op: "apply batch", Msg: "connection lost"}
			}
			r.open = func() (apply.State, error) {
				st := r.state
				st.Batch = 7
				st.Positions = []dtx.Position{{Content: -1, LSN: 100}, {Content: 0, LSN: 119}}
				return st, nil
			}
		})
		r.onePhase(9, 120)
		err := <-r.done
		if err == nil || dtx.ClassOf(err) != dtx.ClassStop || !strings.Contains(err.Error(), "Another daemon") {
			t.Fatal(err)
		}
		if got := r.took(); strings.Contains(got, "confirm 0 0/78") {
			t.Fatal(got)
		}
	})
}

// An event that breaks the stream contract stops the loop, with its place.
func TestViolationStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, nil)
		_ = r.emit[0](dtx.Event{Kind: dtx.EventRecord, Content: 0, LSN: 130, Record: dtx.CommitRecord{GXID: 5, Kind: dtx.TwoPhase, EndLSN: 130}})
		err := <-r.done
		var e *dtx.Error
		if !errors.As(err, &e) || e.Class != dtx.ClassStop || e.GXID != 5 {
			t.Fatal(err)
		}
	})
}

// Conflicts are counted row by row and logged at most once in ten seconds
// (field case 38).
func TestConflictLogIsRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, func(r *rig, _ *loopOptions) {
			r.apply = func(context.Context, *dtx.Batch) (apply.Result, error) {
				return apply.Result{Rows: 1, Conflicts: map[string]int64{"public.t": 1000}}, nil
			}
		})
		for i := range 600 {
			r.onePhase(dtx.GXID(9+i), dtx.LSN(120+i))
			time.Sleep(100 * time.Millisecond)
		}
		if err := r.end(); err != nil {
			t.Fatal(err)
		}
		rep := r.board.Report(time.Now())
		lines := strings.Count(r.logs.String(), "diverged")
		if rep.Conflicts["public.t"] != 600_000 || lines < 5 || lines > 9 {
			t.Fatalf("%d conflicts, %d log lines in a minute:\n%s", rep.Conflicts["public.t"], lines, r.logs.String())
		}
		total := 0
		for _, line := range strings.Split(r.logs.String(), "\n") {
			var n int
			if _, rest, ok := strings.Cut(line, "rows="); ok {
				_, _ = fmt.Sscan(rest, &n)
				total += n
			}
		}
		if total != 600_000 {
			t.Errorf("the log accounts for %d rows", total)
		}
	})
}

// The wait line keeps the time since when (field case 17).
func TestWaitSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, nil)
		at := time.Now()
		_ = r.emit[-1](dtx.Event{Kind: dtx.EventRecord, Content: -1, LSN: 130, Record: dtx.CommitRecord{
			GXID: 5, Kind: dtx.TwoPhase, Participants: []dtx.Content{0}, EndLSN: 130,
		}})
		time.Sleep(90 * time.Second)
		synctest.Wait()
		rep := r.board.Report(time.Now())
		if len(rep.Waits) != 1 || rep.Waits[0].GXID != 5 || len(rep.Waits[0].Missing) != 1 || rep.Waits[0].Since.Sub(at) > time.Second || rep.Healthy {
			t.Fatalf("%+v", rep)
		}
		_ = r.end()
	})
}
