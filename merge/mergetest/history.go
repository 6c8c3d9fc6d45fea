// Package mergetest is a source cluster that never was, and the replica that it
// should lead to: random histories for the simulations of package merge and of
// what is built on it.
package mergetest

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"cbrepl/dtx"
)

// Markers says what becomes of the commit records of one-phase dtxs.
type Markers int

// What a history may do with them.
const (
	Late     Markers = iota
	SomeLost         // the coordinator crashes before it writes them
	NoMarkers
	markerModes
)

// History is what every node's slot would send, and the rows it leads to. Rows
// live on one content each. Dtxs lock rows in order, write them, and commit in one
// phase (marker late) or in two (record, then one COMMIT PREPARED per segment,
// late), so that the streams' orders differ as they do on a real cluster. A
// transfer leaves the total as it was, and every write carries the version of the
// row it replaces, so a lost, doubled or reordered write shows at once.
type History struct {
	Segments int
	// Logs hold the events of each content in stream order.
	Logs map[dtx.Content][]Logged
	// GXIDs lists the dtxs that committed.
	GXIDs []dtx.GXID
	// Commits holds the time of each commit.
	Commits map[dtx.GXID]dtx.PGTime
	Markers Markers
	// Prepared is set when two-phase dtxs are decoded at PREPARE.
	Prepared bool

	rows  []row
	parts map[place]part
	want  map[dtx.GXID]int // parts
	final []int
	total int // 0 when tables are truncated
}

// Logged is one event, with what a server needs to send it again.
type Logged struct {
	dtx.Event
	// Prepare is the position of the PREPARE, where it is decoded there.
	Prepare dtx.LSN
	// At is when the node wrote it.
	At dtx.PGTime
}

type row struct {
	home  dtx.Content
	table int
}

type write struct {
	row      int
	old, new int // versions
	amount   int
}

// place names a part.
type place struct {
	gxid    dtx.GXID
	content dtx.Content
}

type part struct {
	writes   []write
	truncate bool
}

// Options shape a history.
type Options struct {
	// Txns is the number of dtxs.
	Txns int
	// Truncates lets some dtxs empty a table, on every content.
	Truncates bool
	// OnePhase lets every dtx write to one content only.
	OnePhase bool
	// InDoubt keeps the first prepared dtx in doubt until all others have ended, on
	// rows that no other needs; it implies that two-phase dtxs are decoded at PREPARE.
	InDoubt bool
	// AtCommit never decodes two-phase dtxs at PREPARE.
	AtCommit bool
}

const startAmount = 100

// step is the time between two steps of a history, in microseconds, at most.
const step = 4000

type txn struct {
	gxid     dtx.GXID
	kind     dtx.Kind
	rows     []int // to lock, rising
	locked   int
	state    func(*generator, *txn) bool // reports whether the dtx has ended
	truncate int                         // a table, or -1
	contents []dtx.Content
	left     []dtx.Content
	parts    map[dtx.Content]*part
	held     map[dtx.Content]dtx.SpoolID
	prepare  map[dtx.Content]dtx.LSN
	stubborn bool // stays in doubt for long
	forever  bool // stays in doubt until it is the last one
	alone    bool // one participant
}

type generator struct {
	*History
	rnd    *rand.Rand
	lsn    map[dtx.Content]dtx.LSN
	val    []int
	ver    []int
	free   int  // rows that any dtx may write
	last   bool // one dtx is left
	locks  map[int]bool
	spool  dtx.SpoolID
	now    dtx.PGTime
	active []*txn
}

// NewHistory draws a history.
func NewHistory(rnd *rand.Rand, o Options) *History {
	h := &History{
		Segments: 1 + rnd.IntN(4), Logs: map[dtx.Content][]Logged{}, Commits: map[dtx.GXID]dtx.PGTime{},
		Markers: Markers(rnd.IntN(int(markerModes))), Prepared: rnd.IntN(3) == 0,
		parts: map[place]part{}, want: map[dtx.GXID]int{},
	}
	g := &generator{History: h, rnd: rnd, lsn: map[dtx.Content]dtx.LSN{}, locks: map[int]bool{}, now: 1}
	first := dtx.Content(0)
	if rnd.IntN(3) == 0 {
		first = dtx.Coordinator // which has rows of its own
	}
	h.Prepared = h.Prepared && !o.AtCommit
	if o.InDoubt {
		h.Segments, h.Prepared = max(h.Segments, 2), true
	}
	for range []int{3, 5, 8, 12}[rnd.IntN(4)] {
		h.rows = append(h.rows, row{first + dtx.Content(rnd.IntN(h.Segments-int(first))), rnd.IntN(2)})
	}
	g.free = len(h.rows)
	if o.InDoubt {
		h.rows = append(h.rows, row{0, 0}, row{1, 0})
	}
	g.val, g.ver = slices.Repeat([]int{startAmount}, len(h.rows)), make([]int, len(h.rows))
	if !o.Truncates {
		h.total = startAmount * len(h.rows)
	}
	for _, c := range h.Contents() {
		g.lsn[c] = dtx.LSN(1000 + rnd.IntN(1000))
		h.Logs[c] = nil
	}
	next := dtx.GXID(1 + rnd.IntN(1000))
	for started := 0; started < o.Txns || len(g.active) > 0; {
		g.now += dtx.PGTime(1 + rnd.IntN(step))
		if started < o.Txns && len(g.active) < 6 && rnd.IntN(2) == 0 {
			g.begin(next, &o, started == 0)
			next++
			started++
			continue
		}
		g.last = started == o.Txns && len(g.active) == 1
		if len(g.active) == 0 {
			continue
		}
		i := rnd.IntN(len(g.active))
		if t := g.active[i]; t.state(g, t) {
			g.active = slices.Delete(g.active, i, i+1)
		}
	}
	h.final = g.val
	return h
}

// Contents lists the coordinator and the segments.
func (h *History) Contents() []dtx.Content {
	var out []dtx.Content
	for c := dtx.Coordinator; int(c) < h.Segments; c++ {
		out = append(out, c)
	}
	return out
}

// End is where a content's log ends, or start if it is empty.
func (h *History) End(c dtx.Content, start dtx.LSN) dtx.LSN {
	for _, l := range h.Logs[c] {
		start = max(start, l.LSN)
	}
	return start
}

// From lists what a server sends to a stream that starts at start. It is an error
// when the rows of a prepared transaction would never be sent again.
func (h *History) From(c dtx.Content, start dtx.LSN) ([]Logged, error) {
	var out []Logged
	sent := map[dtx.SpoolID]bool{}
	for _, l := range h.Logs[c] {
		switch {
		case l.Kind == dtx.EventHold:
			if l.Prepare <= start {
				continue
			}
			sent[l.Hold] = true
			l.LSN = max(l.LSN, start)
		case l.LSN <= start:
			continue
		case l.Kind == dtx.EventUnhold && !sent[l.Hold]:
			l.Event = dtx.Event{Kind: dtx.EventPosition, Content: c, LSN: l.LSN}
		case l.Hold != 0 && !sent[l.Hold]:
			return nil, fmt.Errorf("content %d starts at %s: the rows of gxid %d, prepared at %s, will never be sent again", c, start, l.Part.GXID, l.Prepare)
		}
		out = append(out, l)
	}
	return out, nil
}

func (g *generator) begin(id dtx.GXID, o *Options, first bool) {
	t := &txn{
		gxid: id, truncate: -1, state: (*generator).lock,
		held: map[dtx.Content]dtx.SpoolID{}, prepare: map[dtx.Content]dtx.LSN{}, stubborn: g.rnd.IntN(20) == 0,
	}
	switch {
	case o.InDoubt && first:
		t.rows, t.forever = []int{g.free, g.free + 1}, true
	case o.Truncates && g.rnd.IntN(12) == 0:
		t.truncate = g.rnd.IntN(2)
		for r := range g.rows {
			if g.rows[r].table == t.truncate {
				t.rows = append(t.rows, r)
			}
		}
	default:
		a, b := g.rnd.IntN(g.free), g.rnd.IntN(g.free)
		t.rows = append(t.rows, a)
		if a != b && (!o.OnePhase || g.rows[a].home == g.rows[b].home) {
			t.rows = append(t.rows, b)
		}
		slices.Sort(t.rows)
		t.alone = o.OnePhase
	}
	g.active = append(g.active, t)
}

// lock takes the next row's lock, in order: no deadlock.
func (g *generator) lock(t *txn) bool {
	if t.locked == len(t.rows) {
		g.work(t)
		return false
	}
	if r := t.rows[t.locked]; !g.locks[r] {
		g.locks[r] = true
		t.locked++
	}
	return false
}

// work draws the writes and who takes part.
func (g *generator) work(t *txn) {
	t.parts = map[dtx.Content]*part{}
	join := func(c dtx.Content) *part {
		if t.parts[c] == nil {
			t.parts[c] = &part{truncate: t.truncate >= 0}
		}
		return t.parts[c]
	}
	amount := 1 + g.rnd.IntN(20)
	for i, r := range t.rows {
		v := g.val[r]
		switch {
		case t.truncate >= 0:
			v = 0
		case len(t.rows) == 2 && i == 0:
			v -= amount
		case len(t.rows) == 2:
			v += amount
		}
		p := join(g.rows[r].home)
		p.writes = append(p.writes, write{r, g.ver[r], int(t.gxid), v})
	}
	switch {
	case t.truncate >= 0: // dispatched to every segment
		for c := range g.Segments {
			join(dtx.Content(c))
		}
	case !t.alone && g.rnd.IntN(8) == 0: // a silent participant
		join(dtx.Content(g.rnd.IntN(g.Segments)))
	}
	for c := range t.parts {
		t.contents = append(t.contents, c)
	}
	slices.Sort(t.contents)
	t.left = slices.Clone(t.contents)
	switch {
	case len(t.contents) == 1:
		t.kind, t.state = dtx.OnePhase, (*generator).commitOnePhase
	case g.Prepared:
		t.kind, t.state = dtx.TwoPhase, (*generator).prepareNext
	default:
		t.kind, t.state = dtx.TwoPhase, (*generator).decide
	}
}

func (g *generator) commitOnePhase(t *txn) bool {
	g.committed(t)
	g.commitPart(t, t.contents[0])
	t.state = (*generator).mark
	return false
}

func (g *generator) mark(t *txn) bool {
	switch {
	case g.Markers == Late && g.rnd.IntN(7) > 0:
		return false // may be very late
	case g.Markers == Late || g.Markers == SomeLost && g.rnd.IntN(2) == 0:
		g.record(t, false)
	}
	return true
}

func (g *generator) prepareNext(t *txn) bool {
	if len(t.left) == 0 {
		t.left, t.state = slices.Clone(t.contents), (*generator).decide
		return false
	}
	c := t.left[0]
	t.left = t.left[1:]
	g.spool++
	t.held[c] = g.spool
	before := g.lsn[c]
	t.prepare[c] = g.advance(c)
	g.log(c, Logged{Prepare: t.prepare[c], Event: dtx.Event{
		Kind: dtx.EventHold, Content: c, LSN: before, Hold: g.spool, Part: dtx.Part{GXID: t.gxid},
	}})
	return false
}

func (g *generator) decide(t *txn) bool {
	if t.stubborn && g.rnd.IntN(60) > 0 || t.forever && !g.last {
		return false
	}
	if g.rnd.IntN(15) == 0 {
		t.state = (*generator).rollback
		return false
	}
	g.committed(t)
	// The coordinator's own part may be in the transaction that holds the record.
	own := slices.Contains(t.left, dtx.Coordinator) && t.held[dtx.Coordinator] == 0 && g.rnd.IntN(2) == 0
	g.record(t, own)
	if own {
		g.commitPartAt(t, dtx.Coordinator, g.lsn[dtx.Coordinator])
		t.left = t.left[1:]
	}
	t.state = (*generator).commitPrepared
	return false
}

// committed makes the dtx's writes those that others see once they get the locks.
func (g *generator) committed(t *txn) {
	g.GXIDs = append(g.GXIDs, t.gxid)
	g.Commits[t.gxid] = g.now
	g.want[t.gxid] = len(t.contents)
	for _, p := range t.parts {
		for _, w := range p.writes {
			g.val[w.row], g.ver[w.row] = w.amount, w.new
		}
	}
}

// commitPrepared ends one part: late, in any order.
func (g *generator) commitPrepared(t *txn) bool {
	if len(t.left) > 0 {
		i := g.rnd.IntN(len(t.left))
		c := t.left[i]
		t.left = slices.Delete(t.left, i, i+1)
		g.commitPart(t, c)
	}
	return len(t.left) == 0
}

func (g *generator) rollback(t *txn) bool {
	for _, c := range t.contents {
		if id := t.held[c]; id != 0 {
			g.log(c, Logged{Prepare: t.prepare[c], Event: dtx.Event{Kind: dtx.EventUnhold, Content: c, LSN: g.advance(c), Hold: id}})
		}
	}
	for _, r := range t.rows {
		delete(g.locks, r)
	}
	return true
}

func (g *generator) commitPart(t *txn, c dtx.Content) { g.commitPartAt(t, c, g.advance(c)) }

func (g *generator) commitPartAt(t *txn, c dtx.Content, at dtx.LSN) {
	id, held := t.held[c]
	if !held {
		g.spool++
		id = g.spool
	}
	p := *t.parts[c]
	g.parts[place{t.gxid, c}] = p
	l := Logged{Event: dtx.Event{Kind: dtx.EventPart, Content: c, LSN: at, Part: dtx.Part{
		GXID: t.gxid, Kind: t.kind, Content: c, EndLSN: at, CommitTime: g.now, Barrier: p.truncate,
		Rows: int64(len(p.writes)), Bytes: int64(100 * (1 + len(p.writes))), Spool: id,
	}}}
	if held {
		l.Hold, l.Prepare = id, t.prepare[c]
	}
	g.log(c, l)
	for _, w := range p.writes {
		delete(g.locks, w.row)
	}
	g.idle(c)
}

func (g *generator) record(t *txn, more bool) {
	at := g.advance(dtx.Coordinator)
	g.log(dtx.Coordinator, Logged{Event: dtx.Event{Kind: dtx.EventRecord, Content: dtx.Coordinator, LSN: at, More: more, Record: dtx.CommitRecord{
		GXID: t.gxid, Kind: t.kind, Participants: slices.Clone(t.contents), CommitTime: g.Commits[t.gxid], EndLSN: at,
	}}})
	if !more {
		g.idle(dtx.Coordinator)
	}
}

// idle adds an empty transaction or a keepalive now and then.
func (g *generator) idle(c dtx.Content) {
	if g.rnd.IntN(5) == 0 {
		g.log(c, Logged{Event: dtx.Event{Kind: dtx.EventPosition, Content: c, LSN: g.advance(c)}})
	}
}

func (g *generator) advance(c dtx.Content) dtx.LSN {
	g.lsn[c] += dtx.LSN(8 + g.rnd.IntN(200))
	return g.lsn[c]
}

func (g *generator) log(c dtx.Content, l Logged) {
	l.At = g.now
	g.Logs[c] = append(g.Logs[c], l)
}
