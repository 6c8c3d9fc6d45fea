package merge

import (
	"cmp"
	"slices"

	"cbrepl/dtx"
)

// Limits bound a batch. A limit of 0 is none. A closure is never split: the
// first one of a batch is taken whatever its size.
type Limits struct {
	MaxRows, MaxBytes int64
	MaxDtxs           int
	// PositionsOnly allows a batch without any dtx when positions have moved.
	PositionsOnly bool
}

// leadingRun bounds how many leading one-phase parts are taken between two
// two-phase closures, so that neither kind starves the other.
const leadingRun = 64

// outstanding is the batch that was handed out.
type outstanding struct {
	members []*txn
	batch   dtx.Batch
	reach   []reached // by stream
	popped  [][]awaitedMsg
	// added and dropped are the batch's dedup changes, stale entries excepted and
	// that of dtx.AllGXIDs, which becomes ahead.
	added   []dtx.DedupEntry
	dropped []dtx.GXID
	ahead   []dtx.Position
}

type reached struct {
	prefix                   int
	prefixLSN, covered, safe dtx.LSN
}

// closure is the set of dtxs that must be released with the first waiting
// two-phase dtx, as far as it is known. It only grows until it is taken or
// reset, because nothing can enter a stream or the record order before what it
// has looked at.
type closure struct {
	next, want int // absolute indexes in Engine.order: next to include, last required
	scans      []*stream
	members    []*txn
	rows       int64
	bytes      int64
	ready      bool
	blocker    *txn
}

func (c *closure) reset(e *Engine) {
	for _, d := range c.members {
		d.inClosure = false
	}
	for _, s := range c.scans {
		s.scanning = false
	}
	*c = closure{next: e.orderHead, want: e.orderHead, members: c.members[:0], scans: c.scans[:0]}
}

func (c *closure) add(d *txn) {
	d.inClosure = true
	c.members = append(c.members, d)
	r, b := d.size()
	c.rows += r
	c.bytes += b
}

// build continues the closure of the first waiting two-phase dtx and reports
// whether it is complete. It stops at a dtx that is not complete yet.
func (e *Engine) build() bool {
	c := &e.closure
	if c.ready {
		return true
	}
	c.blocker = nil
	for {
		if n := len(c.scans); n > 0 {
			if !e.scan(c.scans[n-1]) {
				return false
			}
			c.scans[n-1].scanning = false
			c.scans = c.scans[:n-1]
			continue
		}
		if c.next > c.want {
			c.ready = true
			return true
		}
		if c.next >= e.orderBase+len(e.order) {
			return false // no two-phase record waits
		}
		d := e.order[c.next-e.orderBase]
		if !d.complete() {
			c.blocker = d
			return false
		}
		c.add(d)
		c.next++
		for i := range d.parts {
			e.require(d.parts[i].s, d.parts[i].idx)
		}
	}
}

// require asks that every one-phase part of s before idx is in the closure,
// and with it everything before that.
func (e *Engine) require(s *stream, idx int) {
	i, _ := slices.BinarySearch(s.onePhase, idx)
	if i == 0 {
		return
	}
	if to := s.onePhase[i-1] + 1; to > s.scanTo {
		s.scanTo = to
	}
	if s.scanTo > s.frontier && !s.scanning {
		s.scanning = true
		e.closure.scans = append(e.closure.scans, s)
	}
}

// scan includes the parts of s before scanTo. It reports false at a two-phase
// part whose record has not been read.
func (e *Engine) scan(s *stream) bool {
	c := &e.closure
	s.frontier = max(s.frontier, s.front)
	for s.frontier < s.scanTo {
		en := s.at(s.frontier)
		if en.isPart && !en.d.done() {
			switch {
			case en.d.kind == dtx.OnePhase:
				if !en.d.inClosure {
					c.add(en.d)
				}
			case !en.d.hasRec:
				c.blocker = en.d
				return false
			default:
				c.want = max(c.want, en.d.order)
			}
		}
		s.frontier++
	}
	return true
}

// Next takes the next batch. At most one may be outstanding: Next returns
// false until Applied or Abandon ended the last one. The batch's Seq is the
// caller's to set.
func (e *Engine) Next(l Limits) (dtx.Batch, bool) {
	if e.out != nil {
		return dtx.Batch{}, false
	}
	o := &outstanding{}
	b := &o.batch
	fits := func(dtxs int, rows, bytes int64) bool {
		return len(o.members) == 0 ||
			(l.MaxDtxs <= 0 || len(o.members)+dtxs <= l.MaxDtxs) &&
				(l.MaxRows <= 0 || b.Rows+rows <= l.MaxRows) &&
				(l.MaxBytes <= 0 || b.Bytes+bytes <= l.MaxBytes)
	}
	for more := true; more; {
		more = false
		if e.build() && fits(len(e.closure.members), e.closure.rows, e.closure.bytes) {
			e.takeClosure(o)
			more = true
		}
		for n := 0; n < leadingRun && len(e.dirty) > 0; {
			s := e.dirty[len(e.dirty)-1]
			d := s.leading()
			if d == nil {
				s.dirty = false
				e.dirty = e.dirty[:len(e.dirty)-1]
				continue
			}
			if r, by := d.size(); !fits(1, r, by) {
				break
			}
			e.take(o, d)
			n++
			more = true
		}
	}
	if len(o.members) == 0 && !l.PositionsOnly {
		return dtx.Batch{}, false
	}
	e.finish(o)
	if b.Empty() {
		return dtx.Batch{}, false
	}
	e.out = o
	return *b, true
}

// leading returns the one-phase dtx at the front of the stream: everything
// before it is released.
func (s *stream) leading() *txn {
	for s.front < s.end() {
		en := s.at(s.front)
		if en.isPart && en.d != nil && !en.d.done() {
			if en.d.kind == dtx.OnePhase {
				return en.d
			}
			return nil
		}
		s.front++
	}
	return nil
}

func (e *Engine) take(o *outstanding, d *txn) {
	d.state = taken
	o.members = append(o.members, d)
	r, by := d.size()
	o.batch.Rows += r
	o.batch.Bytes += by
	for i := range d.parts {
		s := d.parts[i].s
		e.markDirty(s)
		if d.kind == dtx.OnePhase {
			if j, ok := slices.BinarySearch(s.onePhase, d.parts[i].idx); ok && j == 0 {
				s.onePhase = s.onePhase[1:]
			} else if ok {
				s.onePhase = slices.Delete(s.onePhase, j, j+1)
			}
		}
		o.batch.LastCommitTime = max(o.batch.LastCommitTime, d.parts[i].part.CommitTime)
	}
}

// takeClosure takes the closure's members: two-phase dtxs in record order, then
// one-phase ones in the order they were met.
func (e *Engine) takeClosure(o *outstanding) {
	c := &e.closure
	for _, k := range []dtx.Kind{dtx.TwoPhase, dtx.OnePhase} {
		for _, d := range c.members {
			if d.kind == k && d.state == waiting {
				e.take(o, d)
			}
		}
	}
	e.orderHead = c.next
	c.reset(e)
}

// finish computes what the target records with the batch.
func (e *Engine) finish(o *outstanding) {
	b := &o.batch
	b.Steps = e.steps(o.members)
	covered := make([]dtx.LSN, len(e.streams))
	o.reach = make([]reached, len(e.streams))
	o.popped = make([][]awaitedMsg, len(e.streams))
	for i, s := range e.streams {
		r := &o.reach[i]
		r.prefix, r.prefixLSN, r.safe = s.reach()
		r.covered = max(s.covered, r.prefixLSN)
		covered[i] = r.covered
		s.reached = max(s.reached, r.prefix)
		if r.safe > s.safe {
			b.Positions = append(b.Positions, dtx.Position{Content: s.content, LSN: r.safe})
		}
		if r.covered > r.safe {
			o.ahead = append(o.ahead, dtx.Position{Content: s.content, LSN: r.covered})
		}
		if r.covered == s.covered {
			continue
		}
		o.popped[i] = s.passed(r.covered, nil)
		for _, m := range o.popped[i] {
			dd := e.dedup[m.gxid]
			if dd.pending--; dd.pending == 0 {
				o.dropped = append(o.dropped, m.gxid)
			}
		}
	}
	b.DedupDrop = append(slices.Clone(o.dropped), e.stale...)
	for _, d := range o.members {
		b.GXIDs = append(b.GXIDs, d.gxid)
		if p := e.pendingMessages(d, covered); len(p) > 0 {
			o.added = append(o.added, dtx.DedupEntry{GXID: d.gxid, Pending: p})
		}
	}
	b.DedupAdd = slices.Clone(o.added)
	if !slices.Equal(o.ahead, e.ahead) {
		if len(e.ahead) > 0 {
			b.DedupDrop = append(b.DedupDrop, dtx.AllGXIDs)
		}
		if len(o.ahead) > 0 {
			b.DedupAdd = append(b.DedupAdd, dtx.DedupEntry{GXID: dtx.AllGXIDs, Pending: slices.Clone(o.ahead)})
		}
	}
	slices.Sort(b.DedupDrop)
	slices.SortFunc(b.DedupAdd, func(x, y dtx.DedupEntry) int { return cmp.Compare(x.GXID, y.GXID) })
}

// Applied says that the outstanding batch was committed on the target: its
// positions are the safe LSNs now. It returns the parts whose spool space can
// be freed.
func (e *Engine) Applied() []dtx.Part {
	o := e.out
	e.out = nil
	if o == nil {
		return nil
	}
	parts := e.Drops()
	for _, d := range o.members {
		d.state = applied
		delete(e.txns, d.gxid)
		e.ages.remove(d)
		e.n.Dtxs--
		if d.hasRec {
			e.n.Records--
		}
		for i := range d.parts {
			p := d.parts[i].part
			parts = append(parts, p)
			e.n.Parts--
			e.n.Rows -= p.Rows
			e.n.Bytes -= p.Bytes
		}
	}
	for _, g := range o.dropped {
		delete(e.dedup, g)
	}
	e.stale, e.ahead = nil, o.ahead
	for _, en := range o.added {
		if err := e.remember(en); err != nil {
			panic("merge: broken invariant: " + err.Error())
		}
	}
	for i, s := range e.streams {
		r := o.reach[i]
		s.prefix, s.prefixLSN, s.covered, s.safe = r.prefix, r.prefixLSN, r.covered, r.safe
		s.front = max(s.front, s.prefix)
		s.trim()
	}
	if n := e.orderHead - e.orderBase; n > 64 && n > len(e.order)/2 {
		kept := copy(e.order, e.order[n:])
		clear(e.order[kept:])
		e.order = e.order[:kept]
		e.orderBase = e.orderHead
	}
	return parts
}

// Abandon says that nothing of the outstanding batch was applied: its dtxs go
// back to their places.
func (e *Engine) Abandon() {
	o := e.out
	e.out = nil
	if o == nil {
		return
	}
	e.closure.reset(e)
	for i := range e.streams {
		for _, m := range o.popped[i] {
			e.dedup[m.gxid].pending++
			e.streams[i].await(m.lsn, m.gxid)
		}
	}
	for _, d := range o.members {
		d.state = waiting
		if d.kind == dtx.TwoPhase {
			e.orderHead = min(e.orderHead, d.order)
		}
		for i := range d.parts {
			s, idx := d.parts[i].s, d.parts[i].idx
			s.front = min(s.front, idx)
			if d.kind == dtx.OnePhase {
				j, _ := slices.BinarySearch(s.onePhase, idx)
				s.onePhase = slices.Insert(s.onePhase, j, idx)
			}
			e.markDirty(s)
		}
	}
	for _, s := range e.streams {
		s.frontier, s.scanTo = s.front, 0
	}
	e.closure.reset(e)
}
