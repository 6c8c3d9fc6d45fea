package subscription

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/faultinject"
	"cbrepl/merge"
	"cbrepl/subscription/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	simSeed = flag.Uint64("sim.seed", 0, "run only this seed of the simulation")
	simRuns = flag.Int("sim.runs", 300, "seeds of the simulation")
)

// sim is a daemon over the virtual wire. Restarting it keeps only the target's
// state and the slots.
type sim struct {
	w       *world
	ref     *referee
	tgt     *vtarget
	streams map[dtx.Content]*vstream
	rnd     *rand.Rand
	lim     limits
	spool   int64
}

func newSim(seed uint64, ntx int) *sim {
	rnd := rand.New(rand.NewPCG(seed, 1))
	s := &sim{rnd: rnd, ref: &referee{}, streams: map[dtx.Content]*vstream{}}
	s.w = newWorld(rnd, ntx)
	s.tgt = newVtarget(s.w, s.ref, rand.New(rand.NewPCG(seed, 2)))
	for c := range s.w.logs {
		s.streams[c] = &vstream{
			w: s.w, c: c, rnd: rand.New(rand.NewPCG(seed, 10+uint64(c+1))), ref: s.ref, tgt: s.tgt, confirmed: firstLSN,
		}
	}
	s.lim = limits{
		batch:     merge.Limits{MaxRows: int64(1 + rnd.IntN(50)), MaxBytes: int64(1 + rnd.IntN(20000)), MaxDtxs: 1 + rnd.IntN(20)},
		idleEvery: 200 * time.Millisecond, backoffMin: 10 * time.Millisecond, backoffMax: 300 * time.Millisecond,
		maxPending: 1 + rnd.IntN(40),
	}
	if rnd.IntN(3) == 0 {
		s.lim.maxDelay = 25 * time.Millisecond
	}
	s.spool = int64(100 + rnd.IntN(8000))
	return s
}

// loop starts a daemon from the target's state alone.
func (s *sim) loop(ctx context.Context) (*loop, *status.Board, error) {
	var st apply.State
	for {
		var err error
		if st, err = s.tgt.Open(ctx); err == nil {
			break
		} else if dtx.ClassOf(err) == dtx.ClassStop {
			return nil, nil, err
		}
	}
	var cs []ContentStream
	sp := newVspool(s.ref, s.spool)
	for c := dtx.Coordinator; int(c) < s.w.segments; c++ {
		v := s.streams[c]
		v.spool = sp
		cs = append(cs, ContentStream{c, v})
		if !st.Initialized {
			st.Positions = append(st.Positions, dtx.Position{Content: c, LSN: firstLSN})
		}
	}
	if !st.Initialized {
		if err := s.tgt.Init(ctx, nil, st.Positions); err != nil {
			return nil, nil, err
		}
	}
	b := status.NewBoard("sim", "test", 1, time.Now())
	b.SetState(status.Streaming, time.Now())
	l, err := newLoop(loopOptions{
		Streams: cs, Target: s.tgt, Spool: sp, State: st, Board: b, Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Limits: s.lim, Grace: time.Duration(s.rnd.IntN(30)) * time.Millisecond, MinConflictLog: 10 * time.Second,
	})
	return l, b, err
}

// run works until the target is complete or the time is up, then stops.
func (s *sim) run(until time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), until)
	defer cancel()
	l, _, err := s.loop(ctx)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- l.run(ctx) }()
	for {
		select {
		case err := <-done:
			return err
		case <-time.After(50 * time.Millisecond):
			if s.tgt.complete() && s.confirmedAll() {
				cancel()
				return <-done
			}
		}
	}
}

func (s *sim) confirmedAll() bool {
	for c, v := range s.streams {
		if v.at() != max(s.w.end(c), firstLSN) {
			return false
		}
	}
	return true
}

func eachSeed(t *testing.T, f func(t *testing.T, seed uint64)) {
	first, n := uint64(1), uint64(*simRuns)
	if *simSeed != 0 {
		first, n = *simSeed, 1
	}
	if testing.Short() {
		n = min(n, 50)
	}
	for seed := first; seed < first+n; seed++ {
		synctest.Test(t, func(t *testing.T) { f(t, seed) })
		if t.Failed() {
			t.Fatalf("replay with -sim.seed=%d", seed)
		}
	}
}

// Any history, any arrival, any batch limit, a spool and a pending list of any
// size, a target that fails before and after its commits, and restarts that
// keep only the target's state: every transaction is applied once, the total is
// right after every batch, no position is recorded or confirmed too early, and
// at the end every slot has followed its server.
func TestSimulation(t *testing.T) {
	restarts := 0
	eachSeed(t, func(t *testing.T, seed uint64) {
		s := newSim(seed, 60)
		s.tgt.trouble = []int{0, 5, 30}[s.rnd.IntN(3)]
		if s.rnd.IntN(4) == 0 {
			s.streams[dtx.Content(s.rnd.IntN(s.w.segments+1)-1)].stalled = 5 * time.Second
		}
		faults := []string{faultTaken, faultCommitted, faultApplied, faultConfirmed, faultReleased}
		for range s.rnd.IntN(6) { // short lives
			if s.rnd.IntN(2) == 0 {
				spec := fmt.Sprintf("%s=error@%d", faults[s.rnd.IntN(len(faults))], 1+s.rnd.IntN(4))
				if err := faultinject.Arm(spec); err != nil {
					t.Fatal(err)
				}
			}
			err := s.run(time.Duration(s.rnd.IntN(700)) * time.Millisecond)
			_ = faultinject.Arm("")
			if err != nil && !errors.Is(err, faultinject.ErrInjected) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("seed %d: a life ended with %v", seed, err)
			}
			restarts++
		}
		if err := s.run(10 * time.Minute); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		if err := s.ref.verdict(); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		if err := s.tgt.compare(); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		if !s.confirmedAll() {
			t.Errorf("seed %d: a slot did not follow its idle server", seed)
		}
	})
	t.Logf("%d restarts", restarts)
}

// A transaction that cannot be applied is found by halving: the error names it,
// everything that can be applied without it is, and nothing of it.
func TestCulpritIsFound(t *testing.T) {
	eachSeed(t, func(t *testing.T, seed uint64) {
		s := newSim(seed, 40)
		s.lim.batch = merge.Limits{MaxDtxs: 1000}
		s.lim.maxDelay = 20 * time.Millisecond
		s.lim.maxPending = 1000
		s.spool = 1 << 30
		s.tgt.trouble = []int{0, 20}[s.rnd.IntN(2)]
		s.tgt.poison = s.w.gxids[s.rnd.IntN(len(s.w.gxids))]
		err := s.run(time.Minute)
		var e *dtx.Error
		if !errors.As(err, &e) || e.Class != dtx.ClassStop || e.Relation != "public.t" {
			t.Fatalf("seed %d: want the target's error, got %v", seed, err)
		}
		if e.GXID != s.tgt.poison && e.GXID != 0 { // 0: a closure, its members are in the text
			t.Errorf("seed %d: gxid %d cannot be applied, the error names %d", seed, s.tgt.poison, e.GXID)
		}
		if e.GXID == 0 && !strings.Contains(err.Error(), s.tgt.poison.String()) {
			t.Errorf("seed %d: gxid %d cannot be applied: %v", seed, s.tgt.poison, err)
		}
		if s.tgt.applied[s.tgt.poison] {
			t.Errorf("seed %d: applied", seed)
		}
		s.tgt.poison = 0 // a person repaired the target
		if err := s.run(10 * time.Minute); err != nil {
			t.Errorf("seed %d: after the repair: %v", seed, err)
		}
		if err := errors.Join(s.ref.verdict(), s.tgt.compare()); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	})
}
