package subscription

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/faultinject"
	"cbrepl/internal/soak"
	"cbrepl/merge"
	"cbrepl/merge/mergetest"
	"cbrepl/source"
	"cbrepl/source/stream/repl"
	"cbrepl/subscription/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sim is a daemon over the virtual wire. Restarting it keeps only the target's
// state and the slots.
type sim struct {
	h       *mergetest.History
	ref     *referee
	tgt     *vtarget
	streams map[dtx.Content]*vstream
	rnd     *rand.Rand
	lim     limits
	spool   int64
	sp      *vspool // of the newest life
	// watch looks at a running loop now and then, while all its goroutines wait.
	watch func(*loop)
}

func newSim(seed uint64, o mergetest.Options) *sim {
	rnd := rand.New(rand.NewPCG(seed, 1))
	s := &sim{rnd: rnd, ref: &referee{}, streams: map[dtx.Content]*vstream{}}
	s.h = mergetest.NewHistory(rnd, o)
	s.tgt = newVtarget(s.h, s.ref, rand.New(rand.NewPCG(seed, 2)))
	for _, c := range s.h.Contents() {
		s.streams[c] = &vstream{
			h: s.h, c: c, rnd: rand.New(rand.NewPCG(seed, 10+uint64(c+1))), ref: s.ref, tgt: s.tgt, confirmed: firstLSN,
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
	if st.Initialized {
		if err := s.checkResume(st); err != nil {
			return nil, nil, err
		}
	}
	var cs []ContentStream
	sp := newVspool(s.ref, s.spool)
	s.sp = sp
	ids := []apply.StreamIdentity{}
	for _, c := range s.h.Contents() {
		v := s.streams[c]
		v.spool = sp
		cs = append(cs, ContentStream{c, v})
		if !st.Initialized {
			ids = append(ids, apply.StreamIdentity{Content: c})
			st.Positions = append(st.Positions, dtx.Position{Content: c, LSN: firstLSN})
		}
	}
	if !st.Initialized {
		if err := s.tgt.Init(ctx, apply.Beginning{Streams: ids, Positions: st.Positions}); err != nil {
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

// checkResume is the check of a real start, on what the virtual servers say.
func (s *sim) checkResume(st apply.State) error {
	f := &source.Facts{}
	for _, c := range s.h.Contents() {
		v := s.streams[c]
		f.Nodes = append(f.Nodes, source.NodeFacts{
			Content: c, Server: repl.Server{WALEnd: v.walEnd()}, Slot: &repl.Slot{Confirmed: v.at()},
		})
	}
	return checkResume(&sourceFacts{facts: f}, st, nil)
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
			if s.watch != nil {
				synctest.Wait()
				s.watch(l)
			}
			if s.tgt.complete(s.h) && s.confirmedAll() {
				cancel()
				return <-done
			}
		}
	}
}

func (s *sim) confirmedAll() bool {
	for c, v := range s.streams {
		if v.at() != s.h.End(c, firstLSN) {
			return false
		}
	}
	return true
}

// eachSeed runs a simulation in a bubble of its own for each of a few fixed seeds,
// or those of a soak.
func eachSeed(t *testing.T, few int, f func(t *testing.T, seed uint64)) {
	for seed := range soak.Seeds(t, few, 30*few) {
		synctest.Test(t, func(t *testing.T) { f(t, seed) })
		if t.Failed() {
			t.Fatalf("seed %d failed", seed)
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
	eachSeed(t, 200, func(t *testing.T, seed uint64) {
		s := newSim(seed, mergetest.Options{Txns: 60})
		s.tgt.trouble = []int{0, 5, 30}[s.rnd.IntN(3)]
		if s.rnd.IntN(4) == 0 {
			v := s.streams[dtx.Content(s.rnd.IntN(s.h.Segments+1)-1)]
			v.stallFrom = time.Now().Add(time.Duration(s.rnd.IntN(2000)) * time.Millisecond)
			v.stallTo = v.stallFrom.Add(5 * time.Second)
		}
		faults := []string{faultTaken, faultCommitted, faultApplied, faultConfirmed, faultReleased}
		for range s.rnd.IntN(6) { // short lives
			if s.rnd.IntN(2) == 0 {
				spec := fmt.Sprintf("%s=error@%d", faults[s.rnd.IntN(len(faults))], 1+s.rnd.IntN(4))
				if err := faultinject.Arm(spec); err != nil {
					t.Fatal(err)
				}
			}
			old := s.tgt.backup()
			err := s.run(time.Duration(s.rnd.IntN(700)) * time.Millisecond)
			_ = faultinject.Arm("")
			if err != nil && !errors.Is(err, faultinject.ErrInjected) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("seed %d: a life ended with %v", seed, err)
			}
			if s.rnd.IntN(2) == 0 {
				s.restoreOld(t, old)
			}
			restarts++
		}
		if err := s.run(10 * time.Minute); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		if err := errors.Join(s.ref.verdict(), s.tgt.compare()); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		if !s.confirmedAll() {
			t.Errorf("seed %d: a slot did not follow its idle server", seed)
		}
		if n := s.sp.Usage().Bytes; n != 0 {
			t.Errorf("seed %d: %d bytes of the spool are never freed", seed, n)
		}
	})
	t.Logf("%d restarts", restarts)
}

// restoreOld restores the target from an old backup and starts. What was confirmed
// since is gone at the source, so the start must be refused, and the newest
// backup is put back. A backup that is not behind any slot is as good as new.
func (s *sim) restoreOld(t *testing.T, old backup) {
	behind := old.replica.Positions[dtx.Coordinator] != 0 // not the state before Init
	if !behind {
		return
	}
	behind = false
	for c, v := range s.streams {
		behind = behind || v.at() > old.replica.Positions[c]
	}
	now := s.tgt.restore(old)
	if !behind {
		return
	}
	_, _, err := s.loop(t.Context())
	if err == nil || dtx.ClassOf(err) != dtx.ClassStop {
		t.Errorf("a target restored to batch %d starts (%v), the slots are confirmed beyond it", old.batch, err)
	}
	s.tgt.restore(now)
}

// A server that goes back is refused: while the daemon runs at the first event that
// shows it, and at the next start. Nothing is applied twice.
func TestServerReverted(t *testing.T) {
	seen, refused := 0, 0
	eachSeed(t, 60, func(t *testing.T, seed uint64) {
		s := newSim(seed, mergetest.Options{Txns: 40})
		for _, v := range s.streams {
			v.revert = true
		}
		err := s.run(10 * time.Minute)
		switch {
		case err == nil: // never cut
		case dtx.ClassOf(err) == dtx.ClassStop && strings.HasPrefix(err.Error(), "order transactions"):
			seen++
		default:
			t.Errorf("seed %d: %v", seed, err)
		}
		for c, v := range s.streams {
			if at := s.tgt.recordedAt(c); at > firstLSN {
				v.cutAt = at - 1
				if _, _, err := s.loop(t.Context()); dtx.ClassOf(err) != dtx.ClassStop {
					t.Errorf("seed %d: content %d ends at %s, before the recorded %s, and is streamed (%v)", seed, c, v.cutAt, at, err)
				}
				refused++
				v.cutAt = 0
			}
		}
		if err := s.ref.verdict(); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	})
	if seen == 0 || refused == 0 {
		t.Errorf("%d servers went back while running, %d before a start", seen, refused)
	}
}

// One segment's stream says nothing for ten minutes. What waits in memory and what
// is remembered on the target stay near their bound, the stream is named, and
// everything follows once it speaks.
func TestLastingStall(t *testing.T) {
	for _, o := range []mergetest.Options{
		{Txns: 4000, OnePhase: true},
		{Txns: 4000},
		{Txns: 4000, InDoubt: true},
	} {
		t.Run(fmt.Sprintf("onePhase=%t,inDoubt=%t", o.OnePhase, o.InDoubt), func(t *testing.T) {
			eachSeed(t, 2, func(t *testing.T, seed uint64) { lastingStall(t, seed, o) })
		})
	}
}

func lastingStall(t *testing.T, seed uint64, o mergetest.Options) {
	const maxPending = 50
	s := newSim(seed, o)
	s.lim.batch = merge.Limits{MaxDtxs: 5000}
	s.lim.maxDelay, s.lim.maxPending, s.spool = 100*time.Millisecond, maxPending, 1<<30
	began := time.Now()
	v := s.streams[0]
	if !o.InDoubt { // there, the stall is the transaction's own
		v.stallFrom, v.stallTo = began.Add(time.Second), began.Add(10*time.Minute)
	}
	most, named := 0, false
	s.watch = func(l *loop) {
		most = max(most, l.m.eng.Kept())
		if at := time.Since(began); at < 5*time.Second || at > 9*time.Minute {
			return
		}
		for _, w := range l.m.eng.Waits(8) {
			named = named || slices.Contains(w.Missing, 0) || slices.Contains(w.Prepared, 0)
		}
	}
	if err := s.run(time.Hour); err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
	if err := errors.Join(s.ref.verdict(), s.tgt.compare()); err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
	if bound := maxPending + eventQueue + eventRun; most > bound {
		t.Errorf("seed %d: %d entries waited in memory, the bound is %d", seed, most, bound)
	}
	if s.tgt.biggest > maxPending+eventQueue {
		t.Errorf("seed %d: the dedup set had %d entries", seed, s.tgt.biggest)
	}
	if !named && (o.InDoubt || len(s.h.Logs[0]) > 0) {
		t.Errorf("seed %d: nobody says that content 0 is what is waited for", seed)
	}
}

// A transaction that cannot be applied is found by halving: the error names it,
// everything that can be applied without it is, and nothing of it.
func TestCulpritIsFound(t *testing.T) {
	eachSeed(t, 150, func(t *testing.T, seed uint64) {
		s := newSim(seed, mergetest.Options{Txns: 40})
		s.lim.batch = merge.Limits{MaxDtxs: 1000}
		s.lim.maxDelay = 20 * time.Millisecond
		s.lim.maxPending = 1000
		s.spool = 1 << 30
		s.tgt.trouble = []int{0, 20}[s.rnd.IntN(2)]
		s.tgt.poison = s.h.GXIDs[s.rnd.IntN(len(s.h.GXIDs))]
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
		if s.tgt.replica.Applied[s.tgt.poison] {
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
