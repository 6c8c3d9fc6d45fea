// Package resolver completes commit records that do not name their participants.
// It stands between the stream readers and merge, for a source whose
// coordinator writes a distributed commit record without the list (Greenplum 6).
// It is a pure state machine: events and samples go in, complete records in
// record order come out. It has no goroutine, clock or I/O.
//
// # The rule
//
// A segment that wrote for G flushes PREPARE G before the coordinator writes G's
// commit record. So once G's record has been read, whether a content takes part
// in G is known as soon as one of these holds:
//
//   - Its stream has shown PREPARE G, or the part itself: it takes part.
//   - Its stream has been read up to a flush position that was sampled on that
//     segment after G's record was read, without PREPARE G: it takes no part.
//   - Its stream has shown the part of a two-phase H whose record is G's or comes
//     after it, without PREPARE G: it takes no part. H's COMMIT PREPARED was sent
//     after H's record was written, hence after G's record, hence after PREPARE G
//     was flushed. This needs no sample: a stream that is far behind is resolved
//     while it is read, not only at its end.
//
// A record is passed on when this is known of every content and when every
// earlier record has been passed on; with it, the coordinator's other events
// that wait behind it.
//
// # Reading again
//
// After a reconnect a stream is read from before the position that it starts at,
// and PREPAREs come again. Within the life of a Resolver a content's events rise,
// so one at or before the last is old news. In a new life PREPAREs up to the
// start position are taken as new, and each is dropped at its ROLLBACK PREPARED,
// at its part, or at EventSettled. None of them counts before the stream has
// reached its start position: the transaction may have committed there before a
// slot that was made later than the coordinator's. When a connection breaks
// before that, all sights of that content are void: the next one may begin behind
// the outcome of some of them.
//
// # Memory
//
// A dtx is remembered from the first sight or record on, until
//
//   - it was rolled back on, or settled for, every content that has shown it, or
//   - its record was passed on and every participant's part was seen.
//
// So what is remembered is what is prepared at this moment on the source (bounded
// by max_prepared_transactions), what is read on one stream and not yet on
// another (the parts and records that the caller bounds), and the records in the
// queue. A content keeps at most maxSamples samples that its stream has not
// reached.
package resolver

import (
	"fmt"
	"slices"
	"time"

	"cbrepl/dtx"
)

// Options start a Resolver from what the target knows.
type Options struct {
	// Contents are the source's segments.
	Contents []dtx.Content
	// Positions are the recorded safe LSNs, where each stream resumes.
	Positions []dtx.Position
	// Applied lists dtxs applied ahead of the positions (the dedup set): their
	// records are passed on at once, and their sights do not count.
	Applied []dtx.GXID
}

// Token says which records had been read: those numbered up to it.
type Token uint64

// maxSamples bounds the samples of one content that its stream has not reached.
const maxSamples = 4

// Resolver completes commit records. It is not safe for concurrent use.
type Resolver struct {
	contents []content // ascending
	// start is where the coordinator's stream resumes, at the place of its newest
	// event.
	start, at dtx.LSN
	txns      map[dtx.GXID]*txn
	applied   map[dtx.GXID]bool

	// queue[head:] holds the coordinator's events from the first unresolved record
	// on.
	queue []queued
	head  int
	read  Token // records numbered so far
	// next is the first content (by index) of which it is not known whether it
	// takes part in the record at the head of the queue.
	next int

	waiting int // records in queue
	delays  delays
}

// content is one segment.
type content struct {
	id    dtx.Content
	start dtx.LSN
	// reached: every event up to it has been seen. passed is the last position
	// passed on.
	reached, passed dtx.LSN
	// clear: of the records numbered up to it, those whose PREPARE this content has
	// not shown have no part here.
	clear   Token
	samples []sample // rising, beyond reached
	sampled Token    // the highest one ever sampled
}

type sample struct {
	token Token
	lsn   dtx.LSN
}

// ready reports whether sights of this content count.
func (c *content) ready() bool { return c.reached >= c.start }

// txn is a dtx that is not behind every stream.
type txn struct {
	gxid   dtx.GXID
	number Token // of its record; 0: not read
	passed bool  // the record was passed on
	sights []sight
}

// sight is a content that has shown PREPARE; part: its part, too.
type sight struct {
	at   int // index in contents
	part bool
}

// queued is an event of the coordinator's stream.
type queued struct {
	ev  dtx.Event
	txn *txn // set for a record that is to be resolved
	at  time.Time
}

// New returns a resolver that expects every stream to resume at its position.
func New(o Options) (*Resolver, error) {
	r := &Resolver{txns: map[dtx.GXID]*txn{}, applied: map[dtx.GXID]bool{}}
	cs := slices.Clone(o.Contents)
	slices.Sort(cs)
	for i, c := range cs {
		if i > 0 && cs[i-1] == c || c <= dtx.Coordinator {
			return nil, fmt.Errorf("resolver: content %d is listed twice or is not a segment", c)
		}
		r.contents = append(r.contents, content{id: c})
	}
	for _, p := range o.Positions {
		if p.Content == dtx.Coordinator {
			r.start, r.at = p.LSN, p.LSN
		} else if i, ok := r.find(p.Content); ok {
			r.contents[i].start, r.contents[i].passed = p.LSN, p.LSN
		}
	}
	for _, g := range o.Applied {
		r.applied[g] = true
	}
	return r, nil
}

func (r *Resolver) find(c dtx.Content) (int, bool) {
	if i := int(c); i >= 0 && i < len(r.contents) && r.contents[i].id == c {
		return i, true // the usual layout is 0..N-1
	}
	return slices.BinarySearchFunc(r.contents, c, func(s content, c dtx.Content) int { return int(s.id) - int(c) })
}

func violation(ev *dtx.Event, g dtx.GXID, format string, args ...any) error {
	return &dtx.Error{
		Op: "find participants", GXID: g, Content: dtx.AtContent(ev.Content), LSN: ev.LSN, Class: dtx.ClassStop,
		Msg:  fmt.Sprintf(format, args...),
		Hint: "The source breaks the rule that participants are worked out by; nothing of this transaction was applied. Report it",
	}
}

// Add takes one event and appends to out what can be passed on, in order. Events
// of one content come in stream order. An error means that the source broke the
// rule: the subscription must stop.
func (r *Resolver) Add(ev dtx.Event, now time.Time, out []dtx.Event) ([]dtx.Event, error) {
	if ev.Content == dtx.Coordinator {
		return r.addCoordinator(ev, now, out)
	}
	i, ok := r.find(ev.Content)
	if !ok {
		return append(out, ev), nil // merge names the fault
	}
	c := &r.contents[i]
	var err error
	switch ev.Kind {
	case dtx.EventPrepared, dtx.EventRolledBack, dtx.EventSettled:
		if ev.LSN <= c.reached {
			return out, nil // read again
		}
		if !r.applied[ev.GXID] {
			err = r.outcome(i, &ev)
		}
	case dtx.EventPart:
		out = append(out, ev)
		c.passed = max(c.passed, ev.LSN)
		if ev.Part.Kind == dtx.TwoPhase && ev.LSN > c.start && !r.applied[ev.Part.GXID] {
			r.part(i, ev.Part.GXID)
		}
	case dtx.EventPosition:
		if ev.LSN > c.passed {
			c.passed = ev.LSN
			out = append(out, ev)
		}
	case dtx.EventReconnect:
		r.reconnect(i)
		return out, nil
	default:
		return append(out, ev), nil
	}
	if err != nil {
		return out, err
	}
	c.reach(ev.LSN)
	return r.advance(now, out), nil
}

// reach notes how far the stream has been read.
func (c *content) reach(lsn dtx.LSN) {
	c.reached = max(c.reached, lsn)
	n := 0
	for n < len(c.samples) && (c.samples[n].lsn <= c.reached || c.samples[n].token <= c.clear) {
		c.clear = max(c.clear, c.samples[n].token)
		n++
	}
	c.samples = slices.Delete(c.samples, 0, n)
}

// outcome takes PREPARE, ROLLBACK PREPARED, or a COMMIT PREPARED that is not sent
// again.
func (r *Resolver) outcome(i int, ev *dtx.Event) error {
	t := r.txns[ev.GXID]
	if ev.Kind == dtx.EventPrepared {
		if t == nil {
			t = r.newTxn(ev.GXID)
		}
		if t.passed && t.sight(i) == nil {
			return violation(ev, ev.GXID, "its PREPARE was read after this content was found to have no part in it")
		}
		t.see(i)
		return nil
	}
	if t == nil {
		return nil
	}
	switch {
	case ev.Kind == dtx.EventRolledBack && t.number != 0:
		return violation(ev, ev.GXID, "it was rolled back here, but the coordinator has its commit record")
	case ev.Kind == dtx.EventSettled && t.passed && t.sight(i) != nil:
		return violation(ev, ev.GXID, "it was committed here before the position that the stream began at, but its record comes after the coordinator's")
	}
	r.unsee(t, i)
	return nil
}

// reconnect makes the sights of a content void that has not reached its start.
func (r *Resolver) reconnect(i int) {
	if r.contents[i].ready() {
		return
	}
	r.contents[i].reached = 0
	for _, t := range r.txns { // rare, and every one is looked at: order says nothing
		r.unsee(t, i)
	}
}

// unsee takes content i's sight of t back.
func (r *Resolver) unsee(t *txn, i int) {
	t.sights = slices.DeleteFunc(t.sights, func(s sight) bool { return s.at == i })
	if t.number == 0 && len(t.sights) == 0 {
		delete(r.txns, t.gxid)
	}
}

// part notes that content i has shown its part of g.
func (r *Resolver) part(i int, g dtx.GXID) {
	t := r.txns[g]
	if t == nil {
		t = r.newTxn(g)
	}
	if t.passed && t.sight(i) == nil {
		return // merge names the fault
	}
	t.see(i).part = true
	r.contents[i].clear = max(r.contents[i].clear, t.number)
	r.forget(t)
}

// forget drops a dtx of which nothing more can come.
func (r *Resolver) forget(t *txn) {
	if t.passed && !slices.ContainsFunc(t.sights, func(s sight) bool { return !s.part }) {
		delete(r.txns, t.gxid)
	}
}

func (r *Resolver) newTxn(g dtx.GXID) *txn {
	t := &txn{gxid: g}
	r.txns[g] = t
	return t
}

func (t *txn) sight(i int) *sight {
	for j := range t.sights {
		if t.sights[j].at == i {
			return &t.sights[j]
		}
	}
	return nil
}

// see notes PREPARE on content i.
func (t *txn) see(i int) *sight {
	if s := t.sight(i); s != nil {
		return s
	}
	t.sights = append(t.sights, sight{at: i})
	return &t.sights[len(t.sights)-1]
}

// addCoordinator queues behind an unresolved record, or passes on.
func (r *Resolver) addCoordinator(ev dtx.Event, now time.Time, out []dtx.Event) ([]dtx.Event, error) {
	if ev.Kind == dtx.EventReconnect || ev.Kind == dtx.EventPosition && ev.LSN <= r.at {
		return out, nil
	}
	r.at = max(r.at, ev.LSN)
	q := queued{ev: ev, at: now}
	if ev.Kind == dtx.EventRecord && ev.Record.Kind == dtx.TwoPhase && ev.LSN > r.start && !r.applied[ev.Record.GXID] {
		t := r.txns[ev.Record.GXID]
		if t == nil {
			t = r.newTxn(ev.Record.GXID)
		}
		if t.number != 0 {
			return out, violation(&ev, ev.Record.GXID, "a second commit record of the same transaction")
		}
		r.read++
		t.number, q.txn = r.read, t
		for _, s := range t.sights {
			if s.part {
				r.contents[s.at].clear = max(r.contents[s.at].clear, t.number)
			}
		}
		r.waiting++
	}
	if n := len(r.queue); n > r.head && ev.Kind == dtx.EventPosition && r.queue[n-1].ev.Kind == dtx.EventPosition {
		r.queue[n-1] = q // only the newest of a run matters
	} else {
		r.queue = append(r.queue, q)
	}
	return r.advance(now, out), nil
}

// advance passes on what is known from the head of the queue on.
func (r *Resolver) advance(now time.Time, out []dtx.Event) []dtx.Event {
	for ; r.head < len(r.queue); r.head++ {
		q := &r.queue[r.head]
		if t := q.txn; t != nil {
			for r.next < len(r.contents) && r.known(t, r.next) {
				r.next++
			}
			if r.next < len(r.contents) {
				break
			}
			r.next = 0
			q.ev.Record.Participants = r.participants(t, q.ev.Record.Participants)
			t.passed = true
			r.forget(t)
			r.waiting--
			r.delays.add(now.Sub(q.at))
		}
		out = append(out, q.ev)
	}
	if n := r.head; n > 0 && n >= len(r.queue)/2 {
		kept := copy(r.queue, r.queue[n:])
		clear(r.queue[kept:])
		r.queue, r.head = r.queue[:kept], 0
	}
	return out
}

// first returns the record at the head of the queue, nil when none waits.
func (r *Resolver) first() *queued {
	if r.head == len(r.queue) {
		return nil
	}
	return &r.queue[r.head]
}

// known reports whether it is known that content i takes part in t, or that it
// does not.
func (r *Resolver) known(t *txn, i int) bool {
	c := &r.contents[i]
	return c.ready() && (c.clear >= t.number || t.sight(i) != nil)
}

// participants completes the list: own is what the record says of the coordinator.
func (r *Resolver) participants(t *txn, own []dtx.Content) []dtx.Content {
	out := make([]dtx.Content, 0, len(own)+len(t.sights))
	out = append(out, own...)
	for _, s := range t.sights {
		out = append(out, r.contents[s.at].id)
	}
	slices.Sort(out)
	return out
}
