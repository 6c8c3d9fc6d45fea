package merge

import (
	"math/rand/v2"
	"testing"

	"cbrepl/dtx"
	"cbrepl/internal/soak"
)

// allPrepared is prepared as one would write it first: everything is kept, and a
// position is moved back out of every transaction it is in, again and again.
type allPrepared []*struct {
	id       dtx.SpoolID
	from, to dtx.LSN
	gone     bool
}

func (a allPrepared) recordable(lsn dtx.LSN) dtx.LSN {
	for moved := true; moved; {
		moved = false
		for _, p := range a {
			if !p.gone && p.from < lsn && lsn < p.to {
				lsn, moved = p.from, true
			}
		}
	}
	return lsn
}

// TestPrepared: whatever is forgotten, the same positions may be recorded.
func TestPrepared(t *testing.T) {
	for seed := range soak.Seeds(t, 300, 30*300) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		var p prepared
		var all allPrepared
		var open []int // indexes in all
		lsn, covered := dtx.LSN(100), dtx.LSN(100)
		for step := range 600 {
			lsn += dtx.LSN(rnd.IntN(4))
			switch n := rnd.IntN(5); {
			case n < 2 && len(open) < 5:
				id := dtx.SpoolID(step + 1)
				p.add(id, 0, lsn)
				open = append(open, len(all))
				all = append(all, &struct {
					id       dtx.SpoolID
					from, to dtx.LSN
					gone     bool
				}{id: id, from: lsn, to: dtx.MaxLSN})
			case n < 4 && len(open) > 0:
				i := rnd.IntN(len(open))
				if i == 0 && rnd.IntN(10) > 0 {
					continue // the oldest stays in doubt
				}
				d := all[open[i]]
				open = append(open[:i], open[i+1:]...)
				lsn++
				if d.gone = rnd.IntN(4) == 0; d.gone {
					p.rollback(d.id)
				} else {
					p.commit(d.id, lsn)
					d.to = lsn
				}
			default: // the stream is applied up to somewhere
				covered += dtx.LSN(rnd.Int64N(int64(lsn-covered) + 1))
				p.trim(covered)
			}
			for at := covered; at <= lsn; at++ {
				if got, want := p.recordable(at), all.recordable(at); got != want {
					t.Fatalf("seed %d step %d: up to %d, %d may be recorded; the model says %d", seed, step, at, got, want)
				}
			}
			if n := len(p.spans); covered == lsn && n > 3*len(open)+17 {
				t.Fatalf("seed %d step %d: %d spans are kept, %d are in doubt", seed, step, n, len(open))
			}
		}
	}
}

// TestInDoubt: what is kept behind a transaction in doubt does not follow the
// number of those that come and go meanwhile; it is named; and once it ends, the
// position moves on.
func TestInDoubt(t *testing.T) {
	e, err := New(Options{Contents: []dtx.Content{0}, Positions: []dtx.Position{{Content: -1, LSN: 10}, {Content: 0, LSN: 10}}})
	if err != nil {
		t.Fatal(err)
	}
	lsn := dtx.LSN(100)
	prepare := func(g dtx.GXID) {
		lsn += 10
		feed(t, e, dtx.Event{Kind: dtx.EventHold, Content: 0, LSN: lsn, Hold: dtx.SpoolID(g), Part: dtx.Part{GXID: g}})
	}
	commit := func(g dtx.GXID) {
		lsn += 10
		feed(t, e, dtx.Event{Kind: dtx.EventRecord, Content: -1, LSN: lsn, Record: dtx.CommitRecord{GXID: g, Kind: dtx.TwoPhase, Participants: []dtx.Content{0}, EndLSN: lsn}})
		feed(t, e, dtx.Event{Kind: dtx.EventPart, Content: 0, LSN: lsn, Hold: dtx.SpoolID(g), Part: dtx.Part{GXID: g, Kind: dtx.TwoPhase, Content: 0, EndLSN: lsn, Rows: 1, Spool: dtx.SpoolID(g)}})
		if _, ok := e.Next(Limits{}); !ok {
			t.Fatal("no batch")
		}
		e.Applied()
	}
	prepare(1)
	before := e.Safe(0)
	for g := dtx.GXID(2); g < 50_000; g++ {
		prepare(g)
		commit(g)
	}
	s := e.streams[1]
	if n := e.Kept() + len(s.prepared.byID) + len(s.prepared.open) + len(s.prepared.spans) + len(s.entries) + len(s.awaited); n > 300 {
		t.Errorf("%d things are kept behind one transaction in doubt", n)
	}
	if e.Safe(0) != before+100 { // the position before the PREPARE
		t.Errorf("the position is %s", e.Safe(0))
	}
	if w := e.Waits(10); len(w) != 1 || w[0].GXID != 1 || len(w[0].Prepared) != 1 {
		t.Errorf("waits: %+v", w)
	}
	commit(1)
	if e.Safe(0) != lsn || e.Kept() != 0 || len(e.Waits(10)) != 0 {
		t.Errorf("at the end: position %s of %s, %d kept, waits %+v", e.Safe(0), lsn, e.Kept(), e.Waits(10))
	}
}

// TestStalledUnderOnePhase: markers ahead of a stalled segment, and parts ahead of
// a stalled coordinator, cost a bounded amount, and what is owed is named.
func TestStalledUnderOnePhase(t *testing.T) {
	const n = 50_000
	at := func(g dtx.GXID) dtx.PGTime { return 10*clockSkew + dtx.PGTime(g)*1000 }
	marker := func(g dtx.GXID, c dtx.Content) dtx.Event {
		l := dtx.LSN(g)
		return dtx.Event{Kind: dtx.EventRecord, Content: -1, LSN: l, Record: dtx.CommitRecord{GXID: g, Kind: dtx.OnePhase, Participants: []dtx.Content{c}, CommitTime: at(g), EndLSN: l}}
	}
	part := func(g dtx.GXID, c dtx.Content) dtx.Event {
		l := dtx.LSN(g)
		return dtx.Event{Kind: dtx.EventPart, Content: c, LSN: l, Part: dtx.Part{GXID: g, Kind: dtx.OnePhase, Content: c, CommitTime: at(g), EndLSN: l, Rows: 1}}
	}
	small := func(e *Engine) {
		t.Helper()
		size := e.Kept()
		for _, s := range e.streams {
			size += len(s.entries) + len(s.debt.early.order) + len(s.debt.owed.order) + len(s.awaited)
		}
		if size > 6*followed {
			t.Errorf("%d things are kept", size)
		}
	}
	for _, stalled := range []dtx.Content{0, -1} {
		e, err := New(Options{Contents: []dtx.Content{0, 1}, MarkersFrom: 1})
		if err != nil {
			t.Fatal(err)
		}
		for g := dtx.GXID(1); g <= n; g += 2 {
			if stalled == 0 {
				feed(t, e, marker(g, 0))
				feed(t, e, marker(g+1, 1))
			} else {
				feed(t, e, part(g, 0))
			}
			feed(t, e, part(g+1, 1))
			if _, ok := e.Next(Limits{}); !ok {
				t.Fatal("no batch")
			}
			e.Applied()
		}
		small(e)
		w := e.Waits(5)
		oldest, owed := e.OldestCommit()
		if stalled == -1 {
			if owed || len(w) != 0 {
				t.Errorf("all parts are applied; waits %+v", w)
			}
		} else if !owed || oldest != at(1) || len(w) != 1 || w[0].GXID != 1 || w[0].Missing[0] != 0 {
			t.Errorf("oldest %d (%t), waits %+v", oldest, owed, w)
		}
		for g := dtx.GXID(1); g <= n; g += 2 {
			if stalled == 0 {
				feed(t, e, part(g, 0))
				if oldest, owed := e.OldestCommit(); !owed || oldest < at(g) || oldest > at(g)+2*clockSkew {
					t.Fatalf("gxid %d came: oldest %d (%t), want about %d", g, oldest, owed, at(g))
				}
			} else {
				feed(t, e, marker(g, 0))
				feed(t, e, marker(g+1, 1))
			}
			if _, ok := e.Next(Limits{PositionsOnly: true}); !ok {
				t.Fatal("no batch")
			}
			e.Applied()
		}
		small(e)
		if oldest, owed := e.OldestCommit(); owed || len(e.Waits(5)) != 0 || e.Safe(-1) != n {
			t.Errorf("content %d came back: oldest %d (%t), waits %+v, coordinator at %s", stalled, oldest, owed, e.Waits(5), e.Safe(-1))
		}
	}
}
