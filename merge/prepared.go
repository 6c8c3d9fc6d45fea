package merge

import (
	"slices"

	"cbrepl/dtx"
)

// prepared keeps one stream's prepared transactions. Between a PREPARE and its
// COMMIT PREPARED no position may be recorded, also when the part is applied: a
// server that is asked to start there sends the COMMIT PREPARED alone.
//
// A transaction that stays in doubt holds the position back for as long. What was
// applied meanwhile is known by one more position of the stream (stream.covered),
// not one by one, and transactions that were prepared and ended meanwhile are
// joined into spans. So what is kept follows the number of transactions in
// doubt, not the time.
type prepared struct {
	byID map[dtx.SpoolID]*inDoubt
	// open rises in from; what ended may still be in it.
	open []*inDoubt
	// spans of transactions that committed: disjoint, rising.
	spans []span
}

// span bars every position between from and to, both of which may be recorded.
type span struct{ from, to dtx.LSN }

// inDoubt is a prepared transaction without outcome. from is the position before
// its PREPARE.
type inDoubt struct {
	gxid  dtx.GXID // 0 when not known
	from  dtx.LSN
	ended bool
}

func (p *prepared) add(id dtx.SpoolID, g dtx.GXID, from dtx.LSN) {
	if p.byID == nil {
		p.byID = map[dtx.SpoolID]*inDoubt{}
	}
	d := &inDoubt{gxid: g, from: from}
	p.byID[id] = d
	p.open = append(p.open, d)
}

// rollback ends a transaction without a trace.
func (p *prepared) rollback(id dtx.SpoolID) *inDoubt {
	d := p.byID[id]
	if d == nil {
		return nil
	}
	delete(p.byID, id)
	d.ended = true
	if len(p.open) > 2*len(p.byID)+16 {
		p.open = slices.DeleteFunc(p.open, func(d *inDoubt) bool { return d.ended })
	}
	return d
}

// commit ends a transaction whose COMMIT PREPARED is at to, the newest position of
// the stream.
func (p *prepared) commit(id dtx.SpoolID, to dtx.LSN) {
	d := p.rollback(id)
	if d == nil {
		return
	}
	s := span{d.from, to}
	for n := len(p.spans); n > 0 && p.spans[n-1].to > s.from; n-- {
		s.from = min(s.from, p.spans[n-1].from)
		s.to = max(s.to, p.spans[n-1].to)
		p.spans = p.spans[:n-1]
	}
	p.spans = append(p.spans, s)
}

// oldest returns the transaction that has been in doubt for longest, nil if there
// is none.
func (p *prepared) oldest() *inDoubt {
	for len(p.open) > 0 && p.open[0].ended {
		p.open = p.open[1:]
	}
	if len(p.open) == 0 {
		return nil
	}
	return p.open[0]
}

// recordable returns the newest position up to lsn that may be recorded.
func (p *prepared) recordable(lsn dtx.LSN) dtx.LSN {
	if d := p.oldest(); d != nil {
		lsn = min(lsn, d.from)
	}
	if i := p.spanBefore(lsn); i >= 0 && lsn < p.spans[i].to {
		lsn = p.spans[i].from
	}
	return lsn
}

// spanBefore returns the index of the last span that begins before lsn, or -1.
func (p *prepared) spanBefore(lsn dtx.LSN) int {
	i, _ := slices.BinarySearchFunc(p.spans, lsn, func(s span, lsn dtx.LSN) int {
		if s.from < lsn {
			return -1
		}
		return 1
	})
	return i - 1
}

// trim forgets spans that can bar nothing any more: those that end at or before
// covered, up to which the stream is applied, unless a transaction that is still
// in doubt was prepared inside.
func (p *prepared) trim(covered dtx.LSN) {
	n := p.spanBefore(covered + 1) // the last one that begins up to covered may end beyond it
	if n <= 2*len(p.byID)+16 {
		return
	}
	inside := make(map[int]bool, len(p.byID))
	for _, d := range p.byID {
		inside[p.spanBefore(d.from)] = true
	}
	kept := p.spans[:0]
	for i, s := range p.spans {
		if i >= n || inside[i] {
			kept = append(kept, s)
		}
	}
	p.spans = kept
}
