package merge

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"cbrepl/dtx"
)

// A random history of an MPP source. Rows live on one segment each; dtxs lock
// rows in order, write them, and commit one-phase (marker late) or two-phase
// (record, then one COMMIT PREPARED per segment, late). Every write carries the
// version of the row it replaces, so a lost, doubled or reordered write shows
// at once, not only in the final state.
type simRow struct {
	home  dtx.Content
	table int
}

type write struct {
	row      int
	old, new int // versions
	amount   int // new value
}

type simPart struct {
	writes   []write
	truncate int // table, or -1
}

type simHistory struct {
	rows    []simRow
	nseg    int
	streams [][]dtx.Event // by content, segment parts
	coord   []dtx.Event
	parts   map[dtx.GXID]map[dtx.Content]simPart
	final   []int
	total   int
	gxids   int
	trunc   bool
	markers markerMode
}

// markerMode says what becomes of one-phase markers.
type markerMode int

const (
	late     markerMode = iota
	someLost            // the coordinator crashes before it writes them
	none                // the source writes none
	markerModes
)

func genHistory(rnd *rand.Rand, ntx int, truncates bool) *simHistory {
	h := &simHistory{nseg: 1 + rnd.IntN(4), parts: map[dtx.GXID]map[dtx.Content]simPart{}, trunc: truncates}
	h.markers = markerMode(rnd.IntN(int(markerModes)))
	nrows := []int{3, 5, 8, 12}[rnd.IntN(4)]
	for range nrows {
		h.rows = append(h.rows, simRow{dtx.Content(rnd.IntN(h.nseg)), rnd.IntN(2)})
	}
	val := make([]int, nrows)
	ver := make([]int, nrows)
	for i := range val {
		val[i] = 100
	}
	h.total = 100 * nrows
	h.streams = make([][]dtx.Event, h.nseg)
	locks := map[int]dtx.GXID{}
	lsn := make([]dtx.LSN, h.nseg+1)
	next := func(c dtx.Content) dtx.LSN { lsn[c+1] += dtx.LSN(1 + rnd.IntN(9)); return lsn[c+1] }

	type act struct {
		g     dtx.GXID
		want  []int
		got   int
		st    int // 0 lock 1 work 2 one-phase commit 3 marker 4 record 5 commit prepared
		segs  []dtx.Content
		left  []dtx.Content
		kind  dtx.Kind
		trunc int
		quiet bool // touches an extra silent participant
	}
	commit := func(a *act, c dtx.Content) {
		p := h.parts[a.g][c]
		l := next(c)
		part := dtx.Part{GXID: a.g, Kind: a.kind, Content: c, EndLSN: l, Rows: int64(len(p.writes)), Bytes: 10, Barrier: a.trunc >= 0, Spool: dtx.SpoolID(l)}
		if rnd.IntN(10) == 0 && a.kind == dtx.TwoPhase {
			// The gid carrier: a PREPARE that was held.
			id := dtx.SpoolID(a.g)*1000 + dtx.SpoolID(c) + 1
			h.streams[c] = append(h.streams[c], dtx.Event{Kind: dtx.EventPart, Content: c, LSN: l, Part: part, Hold: id})
		} else {
			h.streams[c] = append(h.streams[c], dtx.Event{Kind: dtx.EventPart, Content: c, LSN: l, Part: part})
		}
		for _, w := range p.writes {
			delete(locks, w.row)
		}
		if rnd.IntN(6) == 0 {
			h.streams[c] = append(h.streams[c], dtx.Event{Kind: dtx.EventPosition, Content: c, LSN: next(c)})
		}
	}
	record := func(a *act) {
		l := next(dtx.Coordinator)
		h.coord = append(h.coord, dtx.Event{
			Kind: dtx.EventRecord, Content: dtx.Coordinator, LSN: l,
			Record: dtx.CommitRecord{GXID: a.g, Kind: a.kind, Participants: a.segs, EndLSN: l},
		})
	}
	var active []*act
	started := 0
	for started < ntx || len(active) > 0 {
		if started < ntx && len(active) < 6 && rnd.IntN(2) == 0 {
			started++
			a := &act{g: dtx.GXID(started), trunc: -1, quiet: rnd.IntN(8) == 0}
			if truncates && rnd.IntN(12) == 0 {
				a.trunc = rnd.IntN(2)
				for r := range h.rows {
					if h.rows[r].table == a.trunc {
						a.want = append(a.want, r)
					}
				}
			} else {
				a.want = append(a.want, rnd.IntN(nrows))
				if b := rnd.IntN(nrows); b != a.want[0] {
					a.want = append(a.want, b)
				}
			}
			slices.Sort(a.want)
			active = append(active, a)
			continue
		}
		if len(active) == 0 {
			continue
		}
		ai := rnd.IntN(len(active))
		a := active[ai]
		switch a.st {
		case 0:
			if a.got == len(a.want) {
				a.st = 1
				continue
			}
			r := a.want[a.got]
			if _, held := locks[r]; held {
				continue // ordered locking: no deadlock
			}
			locks[r] = a.g
			a.got++
		case 1:
			ps := map[dtx.Content]simPart{}
			amt := 1 + rnd.IntN(20)
			for i, r := range a.want {
				v := val[r]
				switch {
				case a.trunc >= 0:
					v = 0
				case len(a.want) == 2 && i == 0:
					v -= amt
				case len(a.want) == 2:
					v += amt
				}
				p, ok := ps[h.rows[r].home]
				if !ok {
					p.truncate = a.trunc
				}
				p.writes = append(p.writes, write{r, ver[r], int(a.g), v})
				ps[h.rows[r].home] = p
				val[r], ver[r] = v, int(a.g)
			}
			if a.trunc >= 0 { // dispatched to every segment
				for c := range h.nseg {
					if _, ok := ps[dtx.Content(c)]; !ok {
						ps[dtx.Content(c)] = simPart{truncate: a.trunc}
					}
				}
			} else if a.quiet {
				c := dtx.Content(rnd.IntN(h.nseg))
				if _, ok := ps[c]; !ok {
					ps[c] = simPart{truncate: -1}
				}
			}
			h.parts[a.g] = ps
			for c := range ps {
				a.segs = append(a.segs, c)
			}
			slices.Sort(a.segs)
			if len(a.segs) == 1 {
				a.kind, a.st = dtx.OnePhase, 2
			} else {
				a.kind, a.st = dtx.TwoPhase, 4
			}
		case 2:
			commit(a, a.segs[0])
			a.st = 3
		case 3:
			if h.markers == late && rnd.IntN(7) > 0 {
				continue
			}
			if h.markers == late || h.markers == someLost && rnd.IntN(2) == 0 {
				record(a)
			}
			active = slices.Delete(active, ai, ai+1)
		case 4:
			record(a)
			a.left = slices.Clone(a.segs)
			a.st = 5
		case 5:
			i := rnd.IntN(len(a.left))
			commit(a, a.left[i])
			a.left = slices.Delete(a.left, i, i+1)
			if len(a.left) == 0 {
				active = slices.Delete(active, ai, ai+1)
			}
		}
	}
	h.final = val
	h.gxids = ntx
	return h
}

// simTarget is what a target keeps, and a replica that checks every write.
type simTarget struct {
	h         *simHistory
	val, ver  []int
	positions map[dtx.Content]dtx.LSN
	dedup     map[dtx.GXID]dtx.DedupEntry
	applied   map[dtx.GXID]bool
}

func newSimTarget(h *simHistory) *simTarget {
	t := &simTarget{
		h: h, val: make([]int, len(h.rows)), ver: make([]int, len(h.rows)),
		positions: map[dtx.Content]dtx.LSN{}, dedup: map[dtx.GXID]dtx.DedupEntry{}, applied: map[dtx.GXID]bool{},
	}
	for i := range t.val {
		t.val[i] = 100
	}
	return t
}

func (t *simTarget) apply(b *dtx.Batch) error {
	inSteps := map[dtx.GXID]int{}
	for _, st := range b.Steps {
		for i, p := range st.Parts {
			inSteps[p.GXID]++
			if i > 0 {
				q := st.Parts[i-1]
				if q.Content > p.Content || q.Content == p.Content && q.EndLSN >= p.EndLSN {
					return fmt.Errorf("step is not in content and stream order")
				}
			}
			sp := t.h.parts[p.GXID][p.Content]
			if (sp.truncate >= 0) != st.Barrier {
				return fmt.Errorf("gxid %d: barrier step mixed with others", p.GXID)
			}
			if st.Barrier && p.GXID != st.Parts[0].GXID {
				return fmt.Errorf("barrier step of two dtxs")
			}
		}
		if st.Barrier {
			// A TRUNCATE empties the whole table at once.
			g := st.Parts[0].GXID
			for _, sp := range t.h.parts[g] {
				for _, w := range sp.writes {
					if t.ver[w.row] != w.old {
						return fmt.Errorf("gxid %d truncates row %d at version %d, expected %d", g, w.row, t.ver[w.row], w.old)
					}
					t.val[w.row], t.ver[w.row] = w.amount, w.new
				}
			}
			continue
		}
		for _, p := range st.Parts {
			for _, w := range t.h.parts[p.GXID][p.Content].writes {
				if t.ver[w.row] != w.old {
					return fmt.Errorf("gxid %d writes row %d over version %d, expected %d", p.GXID, w.row, t.ver[w.row], w.old)
				}
				t.val[w.row], t.ver[w.row] = w.amount, w.new
			}
		}
	}
	for _, g := range b.GXIDs {
		if t.applied[g] {
			return fmt.Errorf("gxid %d released twice", g)
		}
		t.applied[g] = true
		if inSteps[g] != len(t.h.parts[g]) {
			return fmt.Errorf("gxid %d released with %d of %d parts", g, inSteps[g], len(t.h.parts[g]))
		}
	}
	for _, p := range b.Positions {
		if p.LSN <= t.positions[p.Content] {
			return fmt.Errorf("%s does not move", p)
		}
		t.positions[p.Content] = p.LSN
	}
	for _, g := range b.DedupDrop {
		if _, ok := t.dedup[g]; !ok {
			return fmt.Errorf("gxid %d dropped from the dedup set without being there", g)
		}
		delete(t.dedup, g)
	}
	for _, d := range b.DedupAdd {
		if _, ok := t.dedup[d.GXID]; ok {
			return fmt.Errorf("gxid %d added to the dedup set twice", d.GXID)
		}
		t.dedup[d.GXID] = d
	}
	if !t.h.trunc {
		sum := 0
		for _, v := range t.val {
			sum += v
		}
		if sum != t.h.total {
			return fmt.Errorf("the total is %d after a batch, want %d", sum, t.h.total)
		}
	}
	// O2: a prefix of the record order.
	open := false
	for _, ev := range t.h.coord {
		if ev.Record.Kind != dtx.TwoPhase {
			continue
		}
		if !t.applied[ev.Record.GXID] {
			open = true
		} else if open {
			return fmt.Errorf("gxid %d released before an earlier two-phase record", ev.Record.GXID)
		}
	}
	// Positions: everything at or before them is applied.
	for c, evs := range t.h.streams {
		for _, ev := range evs {
			if ev.LSN <= t.positions[dtx.Content(c)] && ev.Kind == dtx.EventPart && !t.applied[ev.Part.GXID] {
				return fmt.Errorf("position of content %d passed gxid %d, which is not applied", c, ev.Part.GXID)
			}
		}
	}
	for _, ev := range t.h.coord {
		if ev.LSN <= t.positions[-1] && ev.Record.Kind == dtx.TwoPhase && !t.applied[ev.Record.GXID] {
			return fmt.Errorf("position of the coordinator passed gxid %d, which is not applied", ev.Record.GXID)
		}
	}
	return nil
}

func (t *simTarget) engine() (*Engine, error) {
	o := Options{}
	for c := range t.h.nseg {
		o.Contents = append(o.Contents, dtx.Content(c))
	}
	for c := -1; c < t.h.nseg; c++ {
		o.Positions = append(o.Positions, dtx.Position{Content: dtx.Content(c), LSN: t.positions[dtx.Content(c)]})
	}
	for _, d := range t.dedup {
		o.Dedup = append(o.Dedup, d)
	}
	return New(o)
}

// replicate delivers the history in random order, with random limits, crashes
// and failed batches.
func replicate(rnd *rand.Rand, h *simHistory, crashes bool) error {
	t := newSimTarget(h)
	e, err := t.engine()
	if err != nil {
		return err
	}
	streams := append([][]dtx.Event{h.coord}, h.streams...)
	pos := make([]int, len(streams))
	// A held part's PREPARE is delivered some events before its commit.
	type heldPart struct {
		lsn dtx.LSN
		ev  dtx.Event
	}
	holds := make([]map[int][]heldPart, len(streams))
	for i, evs := range streams {
		holds[i] = map[int][]heldPart{}
		for k, ev := range evs {
			if ev.Hold == 0 {
				continue
			}
			at := max(0, k-rnd.IntN(5))
			hp := heldPart{ev: ev}
			if at > 0 {
				hp.lsn = evs[at-1].LSN
			}
			holds[i][at] = append(holds[i][at], hp)
		}
	}
	deliver := func(e *Engine, i, k int) error {
		for _, hp := range holds[i][k] {
			if err := e.Add(dtx.Event{Kind: dtx.EventHold, Content: dtx.Content(i - 1), LSN: hp.lsn, Hold: hp.ev.Hold}); err != nil {
				return err
			}
		}
		return e.Add(streams[i][k])
	}
	// No recorded position may pass a PREPARE whose part is not applied.
	checkHolds := func() error {
		for i := range holds {
			for at, hps := range holds[i] {
				for _, hp := range hps {
					if pos[i] > at && !t.applied[hp.ev.Part.GXID] && t.positions[dtx.Content(i-1)] > hp.lsn {
						return fmt.Errorf("position of content %d passed the PREPARE of gxid %d", i-1, hp.ev.Part.GXID)
					}
				}
			}
		}
		return nil
	}
	for {
		var moves []int
		for i := range streams {
			if pos[i] < len(streams[i]) {
				moves = append(moves, i)
			}
		}
		if len(moves) > 0 {
			i := moves[rnd.IntN(len(moves))]
			if err := deliver(e, i, pos[i]); err != nil {
				return err
			}
			pos[i]++
		}
		if len(moves) > 0 && rnd.IntN(3) > 0 {
			continue
		}
		for {
			l := Limits{PositionsOnly: rnd.IntN(2) == 0 || len(moves) == 0}
			if rnd.IntN(2) == 0 {
				l.MaxDtxs = 1 + rnd.IntN(5)
			}
			if rnd.IntN(3) == 0 {
				l.MaxRows = int64(1 + rnd.IntN(6))
			}
			b, ok := e.Next(l)
			if !ok {
				break
			}
			if crashes && rnd.IntN(12) == 0 {
				e.Abandon()
				continue
			}
			if err := t.apply(&b); err != nil {
				return err
			}
			if err := checkHolds(); err != nil {
				return err
			}
			// Events may arrive while the batch is under way.
			if len(moves) > 0 && rnd.IntN(3) == 0 {
				i := moves[rnd.IntN(len(moves))]
				if pos[i] < len(streams[i]) {
					if err := deliver(e, i, pos[i]); err != nil {
						return err
					}
					pos[i]++
				}
			}
			if crashes && rnd.IntN(15) == 0 {
				// The daemon dies after the target's commit and starts again.
				if e, err = t.engine(); err != nil {
					return err
				}
				for j := range streams {
					pos[j] = 0
					for pos[j] < len(streams[j]) && streams[j][pos[j]].LSN <= t.positions[dtx.Content(j-1)] {
						pos[j]++
					}
				}
				break
			}
			e.Applied()
			for j := range streams {
				if c := dtx.Content(j - 1); e.Safe(c) != t.positions[c] {
					return fmt.Errorf("safe LSN of content %d is %s, recorded %s", c, e.Safe(c), t.positions[c])
				}
			}
		}
		done := true
		for i := range streams {
			done = done && pos[i] == len(streams[i])
		}
		if done && len(moves) == 0 {
			break
		}
	}
	if len(t.applied) != h.gxids {
		return fmt.Errorf("%d of %d dtxs applied; waits: %+v", len(t.applied), h.gxids, e.Waits(5))
	}
	if !slices.Equal(t.val, h.final) {
		return fmt.Errorf("final state %v, want %v", t.val, h.final)
	}
	if n := e.Pending(); n != (Counts{}) || e.DedupSize() != 0 || len(t.dedup) != 0 {
		return fmt.Errorf("after everything is applied %+v is pending and %d/%d dedup entries are left", n, e.DedupSize(), len(t.dedup))
	}
	for i, evs := range streams {
		if c := dtx.Content(i - 1); len(evs) > 0 && t.positions[c] != evs[len(evs)-1].LSN {
			return fmt.Errorf("content %d ends at %s, the stream at %s", c, t.positions[c], evs[len(evs)-1].LSN)
		}
	}
	return nil
}

func TestRandomHistories(t *testing.T) {
	n := uint64(4000)
	if testing.Short() {
		n = 400
	}
	for seed := range n {
		h := genHistory(rand.New(rand.NewPCG(seed, 1)), 60, seed%3 == 0)
		if err := replicate(rand.New(rand.NewPCG(seed, 2)), h, seed%2 == 0); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}
