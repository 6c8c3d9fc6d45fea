package engine

import (
	"context"
	"slices"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

// fetchList is rows of one place that are deleted and lack the same columns.
type fetchList struct {
	g     *group
	place int
	recs  []int32
}

// deletes sends the deletes of rows that are gone and of rows that move.
func (fl *flusher) deletes() error {
	f, sh := fl.f, fl.sh
	await := fl.uncertain()
	plain := fl.group(nil, false)
	for n := range f.records {
		rec := &f.records[n]
		if rec.orig == none {
			continue
		}
		old, err := fl.oldPlace(rec)
		if err != nil {
			return fl.at(rec.part, err)
		}
		if rec.cur != none {
			if rec.move, err = fl.moves(rec, old); err != nil {
				return err
			}
			if !rec.move {
				continue
			}
			if rec.partial || len(sh.extra) > 0 {
				fl.toFetch(fl.group(f.get(rec.img), true), old, int32(n))
				continue
			}
			// A moved row that is missing must not be inserted when conflicts are
			// only logged.
			await = await || fl.e.opt.OnConflict == apply.ConflictLog
		}
		fl.addKey(fl.workFor(plain, old), int32(n), rec)
	}
	if err := fl.sendDeletes(fl.takeWorks(), await); err != nil {
		return err
	}
	return fl.fetchLists()
}

func (fl *flusher) toFetch(g *group, place int, n int32) {
	for _, l := range fl.lists {
		if l.g == g && l.place == place {
			l.recs = append(l.recs, n)
			return
		}
	}
	fl.lists = append(fl.lists, &fetchList{g, place, []int32{n}})
}

// fetchRows is how many rows one statement may fetch.
func (fl *flusher) fetchRows() int {
	return int(min(max(fl.e.opt.FetchBytes/fl.e.fetchCost, 1), int64(fl.e.opt.ChunkRows)))
}

// fetchLists deletes the rows of lists and fetches what they lack, a few at a
// time and from every place at once, so that answers stay small.
func (fl *flusher) fetchLists() error {
	lists := fl.lists
	fl.lists = nil
	for len(lists) > 0 {
		var works []*work
		rows := fl.fetchRows()
		left := lists[:0]
		for _, l := range lists {
			w := &work{g: l.g, place: l.place, keys: fl.vecs(len(fl.sh.key))}
			n := min(rows, len(l.recs))
			for _, rec := range l.recs[:n] {
				fl.addKey(w, rec, &fl.f.records[rec])
			}
			works = append(works, w)
			if l.recs = l.recs[n:]; len(l.recs) > 0 {
				left = append(left, l)
			}
		}
		lists = left
		if err := fl.sendDeletes(works, true); err != nil {
			return err
		}
	}
	return nil
}

// moves reports whether a live record that was in the table has to be deleted
// and inserted: its identity or its segment changed.
func (fl *flusher) moves(rec *record, old int) (bool, error) {
	if rec.cur != rec.orig {
		return true, nil
	}
	if rec.untouched() {
		return false, nil
	}
	if fl.t.place != placeHash || fl.sh.keyed || old == somewhere {
		return false, nil
	}
	fl.v = appendValues(fl.v[:0], fl.f.get(rec.img))
	seg, err := fl.segment(fl.t, fl.v)
	if err != nil {
		return false, fl.at(rec.part, err)
	}
	return seg != old && seg != somewhere, nil
}

// sendDeletes queues deletes. With await it waits for them, looks for rows on
// other segments where their place was a guess, and fills moved records.
func (fl *flusher) sendDeletes(works []*work, await bool) error {
	if len(works) == 0 {
		return nil
	}
	guessed := fl.uncertain()
	for _, w := range works {
		op := &apply.DeleteOp{
			Table: fl.t.Table, N: w.n, Keys: apply.Set{Cols: fl.sh.keyTarget, Vals: w.keys},
			Ordinals: await, Partial: guessed,
		}
		if w.g.fetch {
			op.Fetch = fl.fetchCols(w.g)
		}
		if err := fl.sendDelete(w, op, w.place, await); err != nil {
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
		if err := fl.settle(w); err != nil {
			return err
		}
	}
	if fl.t.place == placeRandom && guessed {
		if err := fl.search(works); err != nil {
			return err
		}
	}
	for _, w := range works {
		if err := fl.missed(w); err != nil {
			return err
		}
		fl.releaseWork(w)
	}
	return nil
}

// sendDelete queues one delete.
func (fl *flusher) sendDelete(w *work, op *apply.DeleteOp, place int, await bool) error {
	op.Keys.Seal()
	op.Differ.Seal()
	return fl.ask(w, place, await, request{
		what: "delete rows", keys: &op.Keys, want: int64(op.N), missing: conflictMissingDelete,
		run: func(ctx context.Context, seg dtx.Content) (apply.Found, error) { return fl.be.Delete(ctx, seg, op) },
	})
}

// request is a statement of a work, as a segment runs it.
type request struct {
	what string // for errors
	run  func(ctx context.Context, seg dtx.Content) (apply.Found, error)
	keys *apply.Set
	// want rows are expected; missing is the conflict when there are fewer.
	want    int64
	missing conflictKind
}

// ask queues a request for the segments of a place and puts their answers into
// w.found. Without await each is checked as it comes, and w's buffers are given
// back.
func (fl *flusher) ask(w *work, place int, await bool, q request) error {
	if place == somewhere {
		place = everywhere
	}
	r, t, sh := fl.run, fl.t, fl.sh
	from, to := t.indexes(place)
	found, parts := make([]apply.Found, to-from), w.parts
	w.found = append(w.found, found)
	free := func() {}
	if !await {
		free = func() {
			r.compareFound(t, sh, place, q.keys, parts, found)
			r.releaseWork(w)
		}
	}
	return r.broadcast(t, place, w.size, free, func(ctx context.Context, i int) error {
		got, err := q.run(ctx, t.segs[i])
		if err != nil {
			return r.opError(t, t.segs[i], r.onlyPart(len(parts), func(i int) int32 { return parts[i] }), q.what, err)
		}
		found[i-from] = got
		if await {
			return nil
		}
		return r.check(t, sh, i, place, q.keys, parts, q.missing, q.want, got)
	})
}

// check compares an answer with what was expected: one row per key.
func (r *run) check(t *table, sh *shape, i, place int, keys *apply.Set, parts []int32, kind conflictKind, want int64, got apply.Found) error {
	if got.MissingRows == 0 && got.Rows == want {
		return nil
	}
	if r.e.opt.OnConflict == apply.ConflictLog && i != r.first(place) {
		return nil // counted on the first copy
	}
	if got.MissingRows > 0 {
		part, key := none, [][]byte(nil)
		if len(got.Missing) > 0 {
			part, key = parts[got.Missing[0]], keys.Row(got.Missing[0])
		}
		return r.conflictsAt(t, sh, kind, got.MissingRows, part, key, t.segs[i])
	}
	return r.conflictsAt(t, sh, conflictSeveral, got.Rows-want, none, nil, t.segs[i])
}

// compareFound counts the copies of a replicated table that had other rows than the
// first. Under on_conflict: stop each copy is checked by itself.
func (r *run) compareFound(t *table, sh *shape, place int, keys *apply.Set, parts []int32, found []apply.Found) {
	if place != everywhere || t.place != placeReplicated || r.e.opt.OnConflict != apply.ConflictLog || r.lanes.ctx.Err() != nil {
		return
	}
	for i, got := range found {
		n := got.Rows - found[0].Rows
		ord := firstDifferent(got.Missing, found[0].Missing)
		if n == 0 && ord < 0 {
			continue
		}
		part, key := r.onlyPart(len(parts), func(i int) int32 { return parts[i] }), [][]byte(nil)
		if ord >= 0 {
			part, key = parts[ord], keys.Row(ord)
		}
		_ = r.conflictsAt(t, sh, conflictCopies, max(n, -n, 1), part, key, t.segs[i]) // an error is for on_conflict: stop
	}
}

// firstDifferent returns the first number that one of two rising lists has, or -1.
func firstDifferent(a, b []int) int {
	for i := 0; i < len(a) || i < len(b); i++ {
		switch {
		case i >= len(a):
			return b[i]
		case i >= len(b):
			return a[i]
		case a[i] != b[i]:
			return min(a[i], b[i])
		}
	}
	return -1
}

// settle marks the records that an awaited statement found, and completes those
// whose columns it fetched.
func (fl *flusher) settle(w *work) error {
	nf := 0
	if w.g.fetch {
		nf = len(w.g.unresolved) + len(fl.sh.extra)
	}
	var largest int64
	for _, got := range slices.Concat(w.found...) {
		for r, ord := range got.Ordinals {
			rec := &fl.f.records[w.recs[ord]]
			if rec.hit {
				if fl.t.place == placeReplicated {
					continue // another copy
				}
				if err := fl.conflicts(fl.t, fl.sh, conflictSeveral, 1, rec.part, fl.keyOfRecord(rec)); err != nil {
					return err
				}
				continue
			}
			rec.hit = true
			if nf == 0 || rec.cur == none {
				continue
			}
			vals := got.Values[r*nf : (r+1)*nf]
			if err := fl.refill(rec, w.g, vals); err != nil {
				return fl.at(rec.part, err)
			}
			largest = max(largest, sizeOf(vals))
		}
	}
	if nf > 0 {
		fl.e.fetchCost = max(largest, fl.e.fetchCost/2, 256)
	}
	if err := fl.sameCopies(w); err != nil {
		return err
	}
	w.found = nil
	return nil
}

// sameCopies reports copies of a replicated table that found another number of
// rows than the first.
func (fl *flusher) sameCopies(w *work) error {
	if fl.t.place != placeReplicated {
		return nil
	}
	for i, got := range w.found[0] {
		if got.Rows != w.found[0][0].Rows {
			return fl.conflictsAt(fl.t, fl.sh, conflictCopies, 1, none, nil, fl.t.segs[i])
		}
	}
	return nil
}

func sizeOf(vals []pgoutput.Value) int64 {
	var n int64
	for _, v := range vals {
		n += int64(len(v.Data))
	}
	return n
}

// refill completes a record with fetched values. What does not fit into the
// window goes to disk.
func (fl *flusher) refill(rec *record, g *group, vals []pgoutput.Value) error {
	img := fl.f.get(rec.img)
	if len(g.unresolved) > 0 {
		fl.v = appendValues(fl.v[:0], img)
		for i, s := range g.unresolved {
			fl.v[s] = vals[i]
		}
		fl.img, rec.partial = appendImage(fl.img[:0], fl.v)
		img = fl.img
	}
	ext := fl.ext[:0]
	for _, v := range vals[len(g.unresolved):] {
		ext = appendValue(ext, v)
	}
	fl.ext = ext
	rec.fetched = len(fl.sh.extra) > 0
	if fl.f.size+int64(len(img)+len(ext)) > fl.e.opt.WindowBytes {
		at, err := fl.spill.put(img, ext)
		if err != nil {
			return err
		}
		rec.img, rec.ext, rec.disk = ref{n: uint32(len(img))}, ref{n: uint32(len(ext))}, at+1
		return nil
	}
	if len(g.unresolved) > 0 {
		rec.img = fl.f.put(img)
	}
	rec.ext = fl.f.put(ext)
	return nil
}

// search looks on the other segments for rows that are not where a random
// table's identity names: somebody else may have placed them.
func (fl *flusher) search(works []*work) error {
	var again []*work
	for _, w := range works {
		for seg := range fl.t.segs {
			if seg == w.place {
				continue
			}
			a := &work{g: w.g, place: seg, keys: fl.vecs(len(fl.sh.key))}
			for _, n := range w.recs {
				if rec := &fl.f.records[n]; !rec.hit {
					fl.addKey(a, n, rec)
				}
			}
			if a.n == 0 {
				fl.releaseWork(a)
				continue
			}
			again = append(again, a)
			op := &apply.DeleteOp{Table: fl.t.Table, N: a.n, Keys: apply.Set{Cols: fl.sh.keyTarget, Vals: a.keys}, Ordinals: true, Partial: true}
			if w.g.fetch {
				op.Fetch = fl.fetchCols(w.g)
			}
			if err := fl.sendDelete(a, op, seg, true); err != nil {
				return err
			}
		}
	}
	if len(again) == 0 {
		return nil
	}
	if err := fl.lanes.wait(); err != nil {
		return err
	}
	for _, a := range again {
		if err := fl.settle(a); err != nil {
			return err
		}
		fl.releaseWork(a)
	}
	return nil
}

// missed reports the records of an awaited delete that no segment had.
func (fl *flusher) missed(w *work) error {
	for _, n := range w.recs {
		rec := &fl.f.records[n]
		if rec.hit {
			continue
		}
		rec.skip = true
		kind := conflictMissingDelete
		if rec.cur != none {
			kind = conflictMissingUpdate
		}
		if err := fl.conflicts(fl.t, fl.sh, kind, 1, rec.part, fl.keyOfRecord(rec)); err != nil {
			return err
		}
	}
	return nil
}

// keyOfRecord returns the identity a record had before the window.
func (fl *flusher) keyOfRecord(rec *record) [][]byte {
	if fl.sh.images || rec.orig == none {
		return nil
	}
	return appendKeyValues(nil, fl.f.get(fl.f.slots[rec.orig].key))
}

func (r *run) releaseWork(w *work) {
	r.e.pool.putVecs(w.keys)
	r.e.pool.putVecs(w.set)
	r.e.pool.putVecs(w.same)
	w.keys, w.set, w.same = nil, nil, nil
}
