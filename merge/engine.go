// Package merge decides when a distributed transaction may be applied and in
// what company. It is a pure state machine: events of the streams go in,
// batches and waits come out. It has no goroutine, clock, I/O or logger, and
// nothing in its results depends on map order.
//
// Rules (numbers as in the design):
//
//	O1  A dtx is released only when its commit record has been read and every
//	    participant it names has delivered its part. A one-phase part is
//	    complete in itself: nothing waits for its marker.
//	O2  The two-phase dtxs released so far are always a prefix of the record
//	    order.
//	O3  A two-phase dtx is released together with or after every one-phase part
//	    that precedes one of its parts in that segment's stream; a one-phase
//	    part together with or after everything that precedes it there. A batch
//	    is closed under this; a cycle is one batch.
//
// Cost: every event and every stream entry is touched a constant number of
// times plus a binary search; a closure that is blocked keeps its progress
// until the dtx it waits for is complete.
package merge

import (
	"fmt"
	"slices"

	"cbrepl/dtx"
)

// Options start an engine from what the target knows.
type Options struct {
	// Contents are the source's segments; the coordinator is implied.
	Contents []dtx.Content
	// Positions are the recorded safe LSNs, where each stream resumes.
	Positions []dtx.Position
	// Dedup is the recorded dedup set.
	Dedup []dtx.DedupEntry
	// MarkersFrom is when this life began: one-phase markers of later commits are
	// followed, to report parts that do not come. The parts of older ones may have
	// been applied by an earlier life. 0 follows none, for a source that writes no
	// markers.
	MarkersFrom dtx.PGTime
}

type txnState uint8

const (
	waiting txnState = iota
	taken            // in the outstanding batch
	applied
)

// txn is one dtx that is not yet behind every stream's safe LSN.
type txn struct {
	gxid  dtx.GXID
	kind  dtx.Kind
	state txnState
	// hasRec and rec: the commit record, once read.
	hasRec bool
	rec    dtx.CommitRecord
	// order is the absolute index in Engine.order of a two-phase dtx with a record.
	order int
	// missing counts participants without a part; meaningful once hasRec.
	missing int
	parts   []partAt
	barrier bool
	// inClosure marks membership in the closure being built.
	inClosure bool
	// committed is the earliest commit time known, 0 for none, and ageIdx the place
	// in Engine.ages.
	committed dtx.PGTime
	ageIdx    int
}

type partAt struct {
	part dtx.Part
	s    *stream
	idx  int // absolute entry index in s
}

func (d *txn) done() bool { return d.state != waiting }

func (d *txn) part(c dtx.Content) bool {
	for i := range d.parts {
		if d.parts[i].part.Content == c {
			return true
		}
	}
	return false
}

// complete is O1.
func (d *txn) complete() bool {
	if d.kind == dtx.OnePhase {
		return len(d.parts) > 0
	}
	return d.hasRec && d.missing == 0
}

func (d *txn) size() (rows, bytes int64) {
	for i := range d.parts {
		rows += d.parts[i].part.Rows
		bytes += d.parts[i].part.Bytes
	}
	return rows, bytes
}

// Engine orders the dtxs of one source. It is not safe for concurrent use.
type Engine struct {
	streams []*stream // by content ascending, the coordinator first
	txns    map[dtx.GXID]*txn
	dedup   map[dtx.GXID]*dedupState

	// order holds the two-phase dtxs in record order; order[0] has the absolute
	// index orderBase; orderHead is the absolute index of the first one waiting.
	order     []*txn
	orderBase int
	orderHead int

	markersFrom dtx.PGTime
	// stale lists entries of the recorded dedup set that nothing needs any more.
	stale []dtx.GXID
	// ahead is the recorded entry of dtx.AllGXIDs: the streams whose covered LSN is
	// beyond their safe LSN.
	ahead []dtx.Position

	ages ages

	closure closure
	// dirty lists streams whose front may be a one-phase part.
	dirty []*stream

	out   *outstanding
	drops []dtx.Part
	n     Counts
}

// New returns an engine that expects every stream to resume at its position.
func New(o Options) (*Engine, error) {
	e := &Engine{txns: map[dtx.GXID]*txn{}, dedup: map[dtx.GXID]*dedupState{}, markersFrom: o.MarkersFrom}
	cs := append([]dtx.Content{dtx.Coordinator}, o.Contents...)
	slices.Sort(cs)
	for i, c := range cs {
		if i > 0 && cs[i-1] == c || c < dtx.Coordinator {
			return nil, fmt.Errorf("merge: content %d is listed twice or is not a content id", c)
		}
		e.streams = append(e.streams, &stream{content: c, pos: i})
	}
	for _, p := range o.Positions {
		s := e.stream(p.Content)
		if s == nil {
			return nil, &dtx.Error{
				Op: "start merging", Content: dtx.AtContent(p.Content), LSN: p.LSN, Class: dtx.ClassStop,
				Msg:  "the target records a position of a content that the source does not have",
				Hint: "The source has another number of segments than when this subscription began: start a new subscription",
			}
		}
		s.safe, s.covered, s.prefixLSN = p.LSN, p.LSN, p.LSN
	}
	if err := e.restoreDedup(o.Dedup); err != nil {
		return nil, err
	}
	e.closure.reset(e)
	return e, nil
}

func (e *Engine) stream(c dtx.Content) *stream {
	// The usual layout is the coordinator and contents 0..N-1.
	if i := int(c) + 1; i >= 0 && i < len(e.streams) && e.streams[i].content == c {
		return e.streams[i]
	}
	i, ok := slices.BinarySearchFunc(e.streams, c, func(s *stream, c dtx.Content) int { return int(s.content) - int(c) })
	if !ok {
		return nil
	}
	return e.streams[i]
}

func violation(ev *dtx.Event, g dtx.GXID, msg string, args ...any) error {
	return &dtx.Error{
		Op: "order transactions", GXID: g, Content: dtx.AtContent(ev.Content), LSN: ev.LSN, Class: dtx.ClassStop,
		Msg:  fmt.Sprintf(msg, args...),
		Hint: "The source breaks the stream contract; nothing of this transaction was applied",
	}
}

// Add takes one event. Events of one content come in stream order. An error
// means that the source broke the stream contract: the engine is unchanged by
// the event and the subscription must stop.
func (e *Engine) Add(ev dtx.Event) error {
	s := e.stream(ev.Content)
	if s == nil {
		return violation(&ev, ev.Part.GXID, "an event of a content that the subscription does not know")
	}
	switch ev.Kind {
	case dtx.EventPart, dtx.EventRecord, dtx.EventPosition, dtx.EventUnhold:
		if ev.LSN < s.last {
			return violation(&ev, ev.Part.GXID|ev.Record.GXID, "the stream went back behind %s", s.last)
		}
	}
	switch ev.Kind {
	case dtx.EventPart:
		return e.addPart(s, &ev)
	case dtx.EventRecord:
		return e.addRecord(s, &ev)
	case dtx.EventPosition:
		s.debt.settle()
		s.addPosition(entry{lsn: ev.LSN})
	case dtx.EventHold:
		s.prepared.add(ev.Hold, ev.Part.GXID, ev.LSN)
	case dtx.EventUnhold:
		s.prepared.rollback(ev.Hold)
		s.addPosition(entry{lsn: ev.LSN})
	default:
		return violation(&ev, 0, "unknown %s", ev.Kind)
	}
	return nil
}

func (e *Engine) addPart(s *stream, ev *dtx.Event) error {
	p := ev.Part
	if !p.Kind.Valid() || p.GXID == dtx.AllGXIDs || p.Content != ev.Content || p.EndLSN != ev.LSN {
		return violation(ev, p.GXID, "a part that is not of this stream or names no transaction (content %d, end %s, %s)", p.Content, p.EndLSN, p.Kind)
	}
	if ev.LSN <= s.covered || e.dedup[p.GXID] != nil {
		// Applied before: delivered again after a restart.
		s.addPosition(entry{lsn: ev.LSN, more: ev.More})
		s.prepared.commit(ev.Hold, ev.LSN)
		e.drops = append(e.drops, p)
		return nil
	}
	d := e.txns[p.GXID]
	if d != nil {
		if d.kind != p.Kind {
			return violation(ev, p.GXID, "a %s part of a %s transaction", p.Kind, d.kind)
		}
		if d.part(p.Content) {
			return violation(ev, p.GXID, "a second part of the same transaction from this content")
		}
		if d.kind == dtx.OnePhase && len(d.parts) > 0 {
			return violation(ev, p.GXID, "a one-phase transaction with parts on contents %d and %d", d.parts[0].part.Content, p.Content)
		}
		if d.hasRec && !slices.Contains(d.rec.Participants, p.Content) {
			return violation(ev, p.GXID, "a part from a content that the commit record does not name (participants %v)", d.rec.Participants)
		}
	} else {
		d = e.newTxn(p.GXID, p.Kind)
	}
	idx := s.push(entry{lsn: ev.LSN, more: ev.More, d: d, isPart: true})
	d.parts = append(d.parts, partAt{p, s, idx})
	d.barrier = d.barrier || p.Barrier
	if d.hasRec {
		d.missing--
	}
	if d.kind == dtx.OnePhase {
		s.onePhase = append(s.onePhase, idx)
		e.markDirty(s)
		if e.markersFrom != 0 {
			s.debt.addPart(&p)
		}
	}
	s.prepared.commit(ev.Hold, ev.LSN)
	e.ages.committed(d, p.CommitTime)
	e.n.Parts++
	e.n.Rows += p.Rows
	e.n.Bytes += p.Bytes
	return nil
}

func (e *Engine) addRecord(s *stream, ev *dtx.Event) error {
	r := ev.Record
	if s.content != dtx.Coordinator || !r.Kind.Valid() || r.GXID == dtx.AllGXIDs || r.EndLSN != ev.LSN {
		return violation(ev, r.GXID, "a commit record that is not of the coordinator's stream or names no transaction (end %s, %s)", r.EndLSN, r.Kind)
	}
	if ev.LSN <= s.covered || r.Kind == dtx.TwoPhase && e.dedup[r.GXID] != nil {
		// Applied before: delivered again after a restart.
		s.addPosition(entry{lsn: ev.LSN, more: ev.More})
		return nil
	}
	for i, c := range r.Participants {
		if e.stream(c) == nil {
			return &dtx.Error{
				Op: "order transactions", GXID: r.GXID, Content: dtx.AtContent(c), LSN: ev.LSN, Class: dtx.ClassStop,
				Msg:  "the commit record names a participant that the subscription does not read",
				Hint: "The source cluster has more segments than the subscription lists: stop writes, check the segments of the configuration, and start a new subscription",
			}
		}
		if i > 0 && r.Participants[i-1] >= c {
			return violation(ev, r.GXID, "participants are not in ascending order: %v", r.Participants)
		}
	}
	if r.Kind == dtx.OnePhase && len(r.Participants) != 1 {
		return violation(ev, r.GXID, "a one-phase commit record with participants %v: want exactly one", r.Participants)
	}
	if r.Kind == dtx.OnePhase {
		return e.addMarker(s, ev)
	}
	d := e.txns[r.GXID]
	if d != nil {
		if d.hasRec {
			return violation(ev, r.GXID, "a second commit record of the same transaction")
		}
		if d.kind != r.Kind {
			return violation(ev, r.GXID, "a %s commit record of a transaction with a %s part", r.Kind, d.kind)
		}
		for i := range d.parts {
			if c := d.parts[i].part.Content; !slices.Contains(r.Participants, c) {
				return violation(ev, r.GXID, "content %d delivered a part, but the commit record names only %v", c, r.Participants)
			}
		}
	} else {
		d = e.newTxn(r.GXID, r.Kind)
	}
	d.hasRec, d.rec = true, r
	d.missing = len(r.Participants) - len(d.parts)
	s.push(entry{lsn: ev.LSN, more: ev.More, d: d})
	d.order = e.orderBase + len(e.order)
	e.order = append(e.order, d)
	e.ages.committed(d, r.CommitTime)
	e.n.Records++
	return nil
}

// addMarker takes a one-phase record, which is a position with a check.
func (e *Engine) addMarker(s *stream, ev *dtx.Event) error {
	r := &ev.Record
	named := e.stream(r.Participants[0])
	if d := e.txns[r.GXID]; d != nil {
		switch {
		case d.kind != dtx.OnePhase:
			return violation(ev, r.GXID, "a %s commit record of a transaction with a %s part", r.Kind, d.kind)
		case !d.part(named.content):
			return violation(ev, r.GXID, "content %d delivered the part, but the commit record names only %v", d.parts[0].part.Content, r.Participants)
		}
	}
	s.addPosition(entry{lsn: ev.LSN, more: ev.More})
	if e.markersFrom != 0 && r.CommitTime >= e.markersFrom+clockSkew {
		named.debt.addMarker(r.GXID, r.CommitTime)
	}
	return nil
}

func (e *Engine) newTxn(g dtx.GXID, k dtx.Kind) *txn {
	d := &txn{gxid: g, kind: k, order: -1}
	e.txns[g] = d
	e.n.Dtxs++
	return d
}

func (e *Engine) markDirty(s *stream) {
	if !s.dirty {
		s.dirty = true
		e.dirty = append(e.dirty, s)
	}
}

// Drops returns parts that will never be applied because they were applied
// before, and forgets them: their spool space can be freed.
func (e *Engine) Drops() []dtx.Part {
	d := e.drops
	e.drops = nil
	return d
}
