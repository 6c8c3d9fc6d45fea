package merge

import (
	"cbrepl/dtx"
)

// A one-phase marker decides nothing. Its part is complete in itself, and the
// part's place in its segment's stream is all that orders it: a marker gives its
// stream a position and is forgotten. So nothing waits for a marker that is late
// or lost, and markers that run ahead of a stalled segment cost nothing.
//
// Markers are followed for reports only: one whose part has not come shows a
// commit that a segment's stream owes. What is kept for that is bounded; where the
// bound is passed, or an earlier life may have applied the part, a marker says
// nothing.
const (
	// followed is how many gxids are kept per stream and direction.
	followed = 1024
	// clockSkew is how far two nodes' clocks may differ before a report errs.
	clockSkew = dtx.PGTime(5_000_000)
)

// debt is what markers say of one segment's stream.
type debt struct {
	// early lists parts that came before their markers; markers up to forgotten
	// may belong to parts that early has no room for.
	early     gxidQueue
	forgotten dtx.PGTime
	// owed lists markers whose parts have not come. Of those beyond its room, the
	// first is rest; they were committed between restFrom and restTo, 0 when there
	// are none.
	owed             gxidQueue
	rest             dtx.GXID
	restFrom, restTo dtx.PGTime
}

// addPart notes a one-phase part.
func (o *debt) addPart(p *dtx.Part) {
	if !o.owed.remove(p.GXID) {
		if _, at, full := o.early.add(p.GXID, p.CommitTime); full {
			o.forgotten = max(o.forgotten, at)
		}
	}
	for g, at, ok := o.owed.oldest(); ok && at < p.CommitTime-clockSkew; g, at, ok = o.owed.oldest() {
		o.owed.remove(g)
	}
	if o.restTo < p.CommitTime+clockSkew {
		o.restFrom, o.restTo = 0, 0
	} else if o.restFrom != 0 {
		o.restFrom = max(o.restFrom, p.CommitTime)
	}
}

// addMarker notes a marker that was committed at the given time.
func (o *debt) addMarker(g dtx.GXID, at dtx.PGTime) {
	if o.early.remove(g) || at < o.forgotten+clockSkew {
		return
	}
	if o.owed.len() < followed {
		o.owed.add(g, at)
		return
	}
	if o.restFrom == 0 {
		o.rest, o.restFrom = g, at
	}
	o.restTo = max(o.restTo, at)
}

// settle notes that the stream has reported all that it had.
func (o *debt) settle() {
	if o.owed.len() > 0 {
		o.owed = gxidQueue{}
	}
	o.restFrom, o.restTo = 0, 0
}

// oldest returns the first part that is owed and its commit time.
func (o *debt) oldest() (g dtx.GXID, at dtx.PGTime, ok bool) {
	if g, at, ok = o.owed.oldest(); ok {
		return g, at, true
	}
	return o.rest, o.restFrom, o.restFrom != 0
}

// gxidQueue is a set of at most followed gxids in the order they were added.
type gxidQueue struct {
	at    map[dtx.GXID]dtx.PGTime
	order []dtx.GXID // may hold gxids that were removed
}

func (q *gxidQueue) len() int { return len(q.at) }

// add puts a gxid in. When there is no room the oldest one leaves and is returned.
func (q *gxidQueue) add(g dtx.GXID, at dtx.PGTime) (out dtx.GXID, outAt dtx.PGTime, full bool) {
	if q.at == nil {
		q.at = map[dtx.GXID]dtx.PGTime{}
	}
	if len(q.at) >= followed {
		if out, outAt, full = q.oldest(); full {
			delete(q.at, out)
		}
	}
	if len(q.order) > 2*followed {
		kept := q.order[:0]
		for _, o := range q.order {
			if _, ok := q.at[o]; ok {
				kept = append(kept, o)
			}
		}
		q.order = kept
	}
	q.at[g] = at
	q.order = append(q.order, g)
	return out, outAt, full
}

func (q *gxidQueue) remove(g dtx.GXID) bool {
	if _, ok := q.at[g]; !ok {
		return false
	}
	delete(q.at, g)
	if len(q.at) == 0 {
		q.order = q.order[:0]
	}
	return true
}

func (q *gxidQueue) oldest() (g dtx.GXID, at dtx.PGTime, ok bool) {
	for i, g := range q.order {
		if at, ok := q.at[g]; ok {
			q.order = q.order[i:]
			return g, at, true
		}
	}
	q.order = nil
	return 0, 0, false
}
