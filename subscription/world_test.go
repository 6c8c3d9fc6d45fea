package subscription

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"

	"cbrepl/dtx"
)

// world is a virtual source cluster's finished history: what each node's slot
// would send, and the rows it leads to. Rows live on one segment each and hold
// amounts; every transaction moves an amount between two rows, so the total is
// constant at every commit. Locks, one-phase commits with late markers and
// two-phase commits whose COMMIT PREPARED come late make the orders of the
// streams differ as they do on a real cluster.
type world struct {
	segments int
	logs     map[dtx.Content][]logged // in stream order
	final    map[int]int              // row to amount
	rows     int
	gxids    []dtx.GXID
	images   map[dtx.SpoolID]map[int]int
}

// logged is one event with what the server needs to send it again.
type logged struct {
	ev dtx.Event
	// prepare is the position of the part's PREPARE when it is decoded there.
	prepare dtx.LSN
}

const startAmount = 100

type worldTx struct {
	gxid   dtx.GXID
	a, b   int
	amount int
	locked []int
	image  map[int]int
	segs   []dtx.Content
	left   []dtx.Content
	state  string
	held   map[dtx.Content]logged
}

// newWorld draws a history.
func newWorld(rnd *rand.Rand, ntx int) *world {
	w := &world{
		segments: 1 + rnd.IntN(4), rows: []int{3, 5, 8}[rnd.IntN(3)],
		logs: map[dtx.Content][]logged{}, final: map[int]int{}, images: map[dtx.SpoolID]map[int]int{},
	}
	home := map[int]dtx.Content{}
	for r := range w.rows {
		home[r] = dtx.Content(rnd.IntN(w.segments))
		w.final[r] = startAmount
	}
	wal := map[dtx.Content]dtx.LSN{}
	for c := dtx.Coordinator; int(c) < w.segments; c++ {
		wal[c] = dtx.LSN(1000 + rnd.IntN(1000))
		w.logs[c] = nil
	}
	advance := func(c dtx.Content) dtx.LSN {
		wal[c] += dtx.LSN(8 + rnd.IntN(200))
		return wal[c]
	}
	gidCarrier := rnd.IntN(3) == 0
	add := func(c dtx.Content, l logged) {
		w.logs[c] = append(w.logs[c], l)
		if rnd.IntN(4) == 0 { // an empty transaction or a keepalive
			w.logs[c] = append(w.logs[c], logged{ev: dtx.Event{Kind: dtx.EventPosition, Content: c, LSN: advance(c)}})
		}
	}
	var spool dtx.SpoolID
	part := func(t *worldTx, c dtx.Content, kind dtx.Kind) logged {
		img := map[int]int{}
		for r, v := range t.image {
			if home[r] == c {
				img[r] = v
			}
		}
		spool++
		w.images[spool] = img
		lsn := advance(c)
		return logged{ev: dtx.Event{Kind: dtx.EventPart, Content: c, LSN: lsn, Part: dtx.Part{
			GXID: t.gxid, Kind: kind, Content: c, EndLSN: lsn, Rows: int64(len(img)), Bytes: int64(100 * (1 + len(img))), Spool: spool,
		}}}
	}
	record := func(t *worldTx, kind dtx.Kind) {
		lsn := advance(dtx.Coordinator)
		add(dtx.Coordinator, logged{ev: dtx.Event{Kind: dtx.EventRecord, Content: dtx.Coordinator, LSN: lsn, Record: dtx.CommitRecord{
			GXID: t.gxid, Kind: kind, Participants: slices.Clone(t.segs), EndLSN: lsn,
		}}})
	}
	locks := map[int]bool{}
	commit := func(t *worldTx, c dtx.Content) {
		for r, v := range t.image {
			if home[r] == c {
				w.final[r] = v
				delete(locks, r)
			}
		}
	}
	var active []*worldTx
	next := dtx.GXID(1 + rnd.IntN(1000))
	started := 0
	for started < ntx || len(active) > 0 {
		if started < ntx && len(active) < 6 && rnd.IntN(2) == 0 {
			p := rnd.Perm(w.rows)
			t := &worldTx{gxid: next, a: p[0], b: p[1], amount: 1 + rnd.IntN(20), state: "lock", held: map[dtx.Content]logged{}}
			w.gxids = append(w.gxids, t.gxid)
			next++
			started++
			active = append(active, t)
			continue
		}
		if len(active) == 0 {
			continue
		}
		i := rnd.IntN(len(active))
		t := active[i]
		done := false
		switch t.state {
		case "lock": // in row order: no deadlock
			rows := []int{min(t.a, t.b), max(t.a, t.b)}
			if len(t.locked) == 2 {
				t.state = "work"
				break
			}
			if r := rows[len(t.locked)]; !locks[r] {
				locks[r] = true
				t.locked = append(t.locked, r)
			}
		case "work":
			t.image = map[int]int{t.a: w.final[t.a] - t.amount, t.b: w.final[t.b] + t.amount}
			seen := map[dtx.Content]bool{home[t.a]: true, home[t.b]: true}
			if len(seen) > 1 && rnd.IntN(6) == 0 {
				seen[dtx.Content(rnd.IntN(w.segments))] = true // a silent participant
			}
			for c := range seen {
				t.segs = append(t.segs, c)
			}
			slices.Sort(t.segs)
			if len(t.segs) == 1 {
				t.state = "one-phase"
				break
			}
			if gidCarrier {
				for _, c := range t.segs { // PREPARE: received, outcome open
					before := wal[c]
					l := part(t, c, dtx.TwoPhase)
					l.prepare = l.ev.LSN
					t.held[c] = l
					w.logs[c] = append(w.logs[c], logged{ev: dtx.Event{Kind: dtx.EventHold, Content: c, LSN: before, Hold: l.ev.Part.Spool}, prepare: l.prepare})
				}
			}
			t.state = "record"
		case "one-phase":
			add(t.segs[0], part(t, t.segs[0], dtx.OnePhase))
			commit(t, t.segs[0])
			t.state = "marker"
		case "marker":
			if rnd.IntN(7) == 0 { // may be very late
				record(t, dtx.OnePhase)
				done = true
			}
		case "record":
			record(t, dtx.TwoPhase)
			t.left = slices.Clone(t.segs)
			t.state = "commit prepared"
		case "commit prepared": // one segment at a time, late
			j := rnd.IntN(len(t.left))
			c := t.left[j]
			t.left = slices.Delete(t.left, j, j+1)
			l, held := t.held[c]
			if held {
				l.ev.LSN = advance(c)
				l.ev.Part.EndLSN = l.ev.LSN
				l.ev.Hold = l.ev.Part.Spool
			} else {
				l = part(t, c, dtx.TwoPhase)
			}
			add(c, l)
			commit(t, c)
			done = len(t.left) == 0
		}
		if done {
			active = slices.Delete(active, i, i+1)
		}
	}
	slices.Sort(w.gxids)
	return w
}

// check says what is wrong with recorded positions: everything up to them must
// be applied, and whatever of an applied transaction lies beyond must be in the
// dedup set (this is what "exactly once after a restart" needs).
func (w *world) check(positions map[dtx.Content]dtx.LSN, dedup, applied map[dtx.GXID]bool) error {
	for c, log := range w.logs {
		for _, l := range log {
			var g dtx.GXID
			switch l.ev.Kind {
			case dtx.EventPart:
				g = l.ev.Part.GXID
			case dtx.EventRecord:
				if l.ev.Record.Kind == dtx.OnePhase {
					continue // a marker decides nothing
				}
				g = l.ev.Record.GXID
			default:
				continue
			}
			covered := l.ev.LSN <= positions[c]
			if covered && !applied[g] {
				return fmt.Errorf("content %d is recorded at %s beyond gxid %d (at %s), which is not applied", c, positions[c], g, l.ev.LSN)
			}
			if l.prepare != 0 && l.prepare <= positions[c] && !applied[g] {
				return fmt.Errorf("content %d is recorded at %s beyond the PREPARE of gxid %d (at %s), which is not applied", c, positions[c], g, l.prepare)
			}
			if !covered && applied[g] && !dedup[g] {
				return fmt.Errorf("gxid %d is applied, content %d will deliver it again at %s (recorded %s), and it is not in the dedup set", g, c, l.ev.LSN, positions[c])
			}
		}
	}
	return nil
}

// end is where each stream's log ends.
func (w *world) end(c dtx.Content) dtx.LSN {
	log := w.logs[c]
	if len(log) == 0 {
		return 0
	}
	return slices.MaxFunc(log, func(a, b logged) int { return cmp.Compare(a.ev.LSN, b.ev.LSN) }).ev.LSN
}
