package engine

import (
	"context"

	"cbrepl/apply"
	"cbrepl/dtx"
)

// deleteImages deletes rows whose whole contents are their identity: per image
// as many as left it. Equal images are one entry with a count.
func (fl *flusher) deleteImages() error {
	f, sh := fl.f, fl.sh
	// The slots' lists have served; head becomes the chain of records that left,
	// linked by next.
	for i := range f.slots {
		f.slots[i].head, f.slots[i].orig = none, 0 // orig counts from here on
	}
	g := fl.group(nil, len(sh.extra) > 0)
	fetch := false
	for n := len(f.records) - 1; n >= 0; n-- {
		rec := &f.records[n]
		if rec.orig == none || rec.cur == rec.orig {
			continue
		}
		s := &f.slots[rec.orig]
		rec.next = s.head
		s.head = int32(n)
		s.orig++
		if rec.cur != none {
			rec.move = true
			fetch = fetch || len(sh.extra) > 0
		}
	}
	g.fetch = fetch
	await := fetch || fl.uncertain() || fl.e.opt.OnConflict == apply.ConflictLog
	for i := range f.slots {
		s := &f.slots[i]
		if s.orig == 0 {
			continue
		}
		rec := &f.records[s.head]
		place, err := fl.oldPlace(rec)
		if err != nil {
			return fl.at(rec.part, err)
		}
		w := fl.workFor(g, place)
		fl.addKey(w, s.head, rec)
		w.count = append(w.count, int64(s.orig))
	}
	works := fl.takeWorks()
	for _, w := range works {
		if err := fl.sendImages(w, w.place, await); err != nil {
			return err
		}
	}
	if !await {
		return nil
	}
	if err := fl.lanes.wait(); err != nil {
		return err
	}
	for _, w := range works {
		if err := fl.settleImages(w); err != nil {
			return err
		}
	}
	return nil
}

// sendImages queues a delete by images.
func (fl *flusher) sendImages(w *work, place int, await bool) error {
	op := &apply.ImageOp{
		Table: fl.t.Table, N: w.n, Image: apply.Set{Cols: fl.sh.keyTarget, Vals: w.keys}, Count: w.count, Ordinals: await,
		Partial: fl.uncertain(),
	}
	if w.g.fetch {
		op.Fetch = fl.fetchCols(w.g)
	}
	var want int64
	for _, c := range w.count {
		want += c
	}
	op.Image.Seal()
	return fl.ask(w, place, await, request{
		what: "delete rows", keys: &op.Image, want: want, missing: conflictMissingDelete,
		run: func(ctx context.Context, seg dtx.Content) (apply.Found, error) {
			return fl.be.DeleteImages(ctx, seg, op)
		},
	})
}

// settleImages gives the rows found to the records that left their image, looks
// for the rest on other segments where the place was a guess, and reports what
// no segment had.
func (fl *flusher) settleImages(w *work) error {
	if err := fl.sameCopies(w); err != nil {
		return err
	}
	left, err := fl.take(w, w.found[0][0])
	if err != nil {
		return err
	}
	if fl.uncertain() {
		for seg := range fl.t.segs {
			if len(left) == 0 {
				break
			}
			if seg == w.place {
				continue
			}
			a := &work{g: w.g, place: seg, keys: fl.vecs(len(fl.sh.key))}
			for _, n := range left {
				rec := &fl.f.records[n]
				fl.addKey(a, n, rec)
				a.count = append(a.count, fl.chain(n))
			}
			if err := fl.sendImages(a, seg, true); err != nil {
				return err
			}
			if err := fl.lanes.wait(); err != nil {
				return err
			}
			if left, err = fl.take(a, a.found[0][0]); err != nil {
				return err
			}
			fl.releaseWork(a)
		}
	}
	fl.releaseWork(w)
	for _, n := range left {
		for ; n != none; n = fl.f.records[n].next {
			rec := &fl.f.records[n]
			rec.skip = true
			kind := conflictMissingDelete
			if rec.cur != none {
				kind = conflictMissingUpdate
			}
			if err := fl.conflicts(fl.t, fl.sh, kind, 1, rec.part, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// chain counts the records from n on.
func (fl *flusher) chain(n int32) int64 {
	var c int64
	for ; n != none; n = fl.f.records[n].next {
		c++
	}
	return c
}

// take hands the found rows to the records of their image, first come first
// served, and returns the heads of the chains that are left.
func (fl *flusher) take(w *work, got apply.Found) ([]int32, error) {
	heads := append([]int32(nil), w.recs...)
	nf := 0
	if w.g.fetch {
		nf = len(fl.sh.extra)
	}
	for r, ord := range got.Ordinals {
		n := heads[ord]
		if n == none {
			continue
		}
		rec := &fl.f.records[n]
		heads[ord] = rec.next
		rec.hit = true
		if nf > 0 && rec.cur != none {
			if err := fl.refill(rec, w.g, got.Values[r*nf:(r+1)*nf]); err != nil {
				return nil, fl.at(rec.part, err)
			}
		}
	}
	left := heads[:0]
	for _, n := range heads {
		if n != none {
			left = append(left, n)
		}
	}
	return left, nil
}
