package merge

import (
	"cbrepl/dtx"
)

// ages is a min-heap of the dtxs that are not applied, by commit time. Commit
// times come from several clocks, so no list is in their order.
type ages []*txn

// committed notes a commit time of d: its record's or a part's, whichever is
// earliest. 0 says nothing.
func (a *ages) committed(d *txn, at dtx.PGTime) {
	switch {
	case at == 0 || d.committed != 0 && d.committed <= at:
		return
	case d.committed == 0:
		d.ageIdx = len(*a)
		*a = append(*a, d)
	}
	d.committed = at
	a.up(d.ageIdx)
}

func (a *ages) remove(d *txn) {
	if d.committed == 0 {
		return
	}
	h, n := *a, len(*a)-1
	i := d.ageIdx
	h.swap(i, n)
	h[n] = nil
	*a = h[:n]
	if i < n {
		a.up(i)
		a.down(i)
	}
	d.committed = 0
}

func (a ages) swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].ageIdx, a[j].ageIdx = i, j
}

func (a ages) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if a[parent].committed <= a[i].committed {
			return
		}
		a.swap(i, parent)
		i = parent
	}
}

func (a ages) down(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(a); c++ {
			if a[c].committed < a[least].committed {
				least = c
			}
		}
		if least == i {
			return
		}
		a.swap(i, least)
		i = least
	}
}

// OldestCommit is the commit time of the oldest dtx that is known and not applied,
// the outstanding batch included: by its record, by a part, or by a marker that
// came before its part. It reports false when no such dtx is known, which does not
// say that the streams have delivered everything.
func (e *Engine) OldestCommit() (at dtx.PGTime, ok bool) {
	if len(e.ages) > 0 {
		at, ok = e.ages[0].committed, true
	}
	for _, s := range e.streams {
		if _, owed, is := s.debt.oldest(); is && (!ok || owed < at) {
			at, ok = owed, true
		}
	}
	return at, ok
}
