package target

import (
	"context"
	"errors"
	"slices"
	"strings"

	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

// sendCopies sends what is left in the table's insert buffers.
func (r *run) sendCopies(t *table, cols []int) error {
	for i := range t.bufs {
		if t.bufs[i].rows == 0 {
			continue
		}
		place := i
		if i == len(t.segs) {
			place = everywhere
		}
		if err := r.sendCopy(t, place, cols); err != nil {
			return err
		}
	}
	return nil
}

// sendCopy queues one buffer of inserts.
func (r *run) sendCopy(t *table, place int, cols []int) error {
	b := t.buf(place)
	op := &CopyOp{Table: t.Table, Cols: cols, Data: b.data, Rows: b.rows,
		SkipDuplicates: r.e.opt.OnConflict == ConflictLog}
	marks, shape := b.marks, t.shape
	*b = copyBuf{}
	if t.mode == modePass {
		r.hold(t, -int64(len(op.Data)), 0)
	}
	free := func() { r.e.pool.putBuf(op.Data) }
	return r.broadcast(t, place, int64(len(op.Data)), free, func(ctx context.Context, i int) error {
		n, err := r.be.Copy(ctx, t.segs[i], op)
		if err != nil {
			return r.copyError(t, shape, t.segs[i], op, marks, err)
		}
		if n != op.Rows && i == r.first(place) {
			return r.conflicts(t, shape, conflictDuplicate, op.Rows-n, partOf(marks, 0), nil)
		}
		return nil
	})
}

// first is the index of the first segment of a place.
func (r *run) first(place int) int { return max(place, 0) }

// partOf finds the part that a row of a copy buffer came from.
func partOf(marks []mark, row int64) int32 {
	i, found := slices.BinarySearchFunc(marks, row, func(m mark, row int64) int {
		switch {
		case m.row < row:
			return -1
		case m.row > row:
			return 1
		}
		return 0
	})
	if !found {
		i--
	}
	if i < 0 {
		return none
	}
	return marks[i].part
}

// broadcast queues f for every segment of a place; free is called when all are
// done.
func (r *run) broadcast(t *table, place int, size int64, free func(), f func(ctx context.Context, i int) error) error {
	from, to := t.indexes(place)
	sh := &shared{n: to - from, free: free}
	var first error
	for i := from; i < to; i++ {
		err := r.lanes.put(r.lane(t.segs[i]), task{size: size, done: sh.done,
			run: func(ctx context.Context) error { return f(ctx, i) }})
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}

// lane is the queue of a segment.
func (r *run) lane(seg dtx.Content) int { return slices.Index(r.e.segments, seg) }

// copyError pins the refusal of an insert down to its part and, for a
// duplicate, to its identity.
func (r *run) copyError(t *table, sh *shape, seg dtx.Content, op *CopyOp, marks []mark, err error) error {
	part := r.onlyPart(len(marks), func(i int) int32 { return marks[i].part })
	var de *DataError
	if !errors.As(err, &de) {
		return r.opError(t, seg, part, "insert rows", err)
	}
	var key [][]byte
	if de.Row >= 0 && int64(de.Row) < op.Rows {
		part = partOf(marks, int64(de.Row))
		key = copyKey(sh, op, de.Row)
	}
	if de.Duplicate {
		return r.diverged(t, sh, conflictDuplicate, part, key, seg, de)
	}
	return r.opError(t, seg, part, "insert rows", err)
}

// copyKey reads the identity of a row back from the lines of a COPY.
func copyKey(sh *shape, op *CopyOp, row int) [][]byte {
	lines := strings.Split(string(op.Data), "\n")
	if row >= len(lines) {
		return nil
	}
	fields := strings.Split(lines[row], "\t")
	var key [][]byte
	for _, c := range sh.keyTarget {
		i := slices.Index(op.Cols, c)
		if i < 0 || i >= len(fields) {
			return nil
		}
		key = append(key, []byte(copyUnescaper.Replace(fields[i])))
	}
	return key
}

var copyUnescaper = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "\r", `\t`, "\t")

// onlyPart returns the part that all n entries name, or the first entry of
// several that belong to one dtx; none otherwise.
func (r *run) onlyPart(n int, part func(i int) int32) int32 {
	if n == 0 {
		return none
	}
	first := part(0)
	for i := 1; i < n; i++ {
		if p := part(i); p != first && r.parts[p].GXID != r.parts[first].GXID {
			return none
		}
	}
	return first
}

// sendDeletes queues deletes. With await it waits for them, looks for rows on
// other segments where their place was a guess, and fills moved records.
func (fl *flusher) sendDeletes(works []*work, await bool) error {
	if len(works) == 0 {
		return nil
	}
	guessed := fl.uncertain()
	for _, w := range works {
		op := &DeleteOp{Table: fl.t.Table, N: w.n, Keys: Set{fl.sh.keyTarget, w.keys},
			Ordinals: await, Partial: guessed}
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
		fl.release(w)
	}
	return nil
}

// sendDelete queues one delete. Without await its answer is checked as it comes
// and its buffers are given back.
func (fl *flusher) sendDelete(w *work, op *DeleteOp, place int, await bool) error {
	r, t, sh := fl.run, fl.t, fl.sh
	if place == somewhere {
		place = everywhere
	}
	from, to := t.indexes(place)
	found, parts := make([]Found, to-from), w.parts
	w.found = append(w.found, found)
	free := func() {}
	if !await {
		free = func() { r.releaseWork(w) }
	}
	op.Keys.seal()
	op.Differ.seal()
	return r.broadcast(t, place, w.size, free, func(ctx context.Context, i int) error {
		got, err := r.be.Delete(ctx, t.segs[i], op)
		if err != nil {
			return r.opError(t, t.segs[i], r.onlyPart(len(parts), func(i int) int32 { return parts[i] }), "delete rows", err)
		}
		found[i-from] = got
		if await {
			return nil
		}
		return r.check(t, sh, i, place, &op.Keys, parts, conflictMissingDelete, int64(op.N), got)
	})
}

// check compares an answer with what was expected: one row per key.
func (r *run) check(t *table, sh *shape, i, place int, keys *Set, parts []int32, kind conflictKind, want int64, got Found) error {
	if got.MissingRows == 0 && got.Rows == want {
		return nil
	}
	if r.e.opt.OnConflict == ConflictLog && i != r.first(place) {
		return nil // counted on the first copy
	}
	if got.MissingRows > 0 {
		part, key := none, [][]byte(nil)
		if len(got.Missing) > 0 {
			part, key = parts[got.Missing[0]], keys.row(got.Missing[0])
		}
		return r.conflictsAt(t, sh, kind, got.MissingRows, part, key, t.segs[i])
	}
	return r.conflictsAt(t, sh, conflictSeveral, got.Rows-want, none, nil, t.segs[i])
}

// settle marks the records that an awaited statement found, and completes those
// whose columns it fetched.
func (fl *flusher) settle(w *work) error {
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
			if w.g.fetch && rec.cur != none {
				nf := len(w.g.unresolved) + len(fl.sh.extra)
				fl.refill(rec, w.g, got.Values[r*nf:(r+1)*nf])
			}
		}
	}
	if fl.t.place == placeReplicated {
		for i, got := range w.found[0] {
			if got.Rows != w.found[0][0].Rows {
				return fl.conflictsAt(fl.t, fl.sh, conflictCopies, 1, none, nil, fl.t.segs[i])
			}
		}
	}
	w.found = nil
	return nil
}

// refill completes a record's image with fetched values.
func (fl *flusher) refill(rec *record, g *group, vals []pgoutput.Value) {
	fl.v = appendValues(fl.v[:0], fl.f.get(rec.img))
	var size int64
	for i, s := range g.unresolved {
		fl.v[s] = vals[i]
	}
	for _, v := range vals {
		size += int64(len(v.Data))
	}
	if len(g.unresolved) > 0 {
		fl.run.img, rec.partial = fl.sh.appendImage(fl.run.img[:0], fl.v)
		rec.img = fl.f.put(fl.run.img)
	}
	if len(fl.sh.extra) > 0 {
		fl.run.img = fl.run.img[:0]
		for _, v := range vals[len(g.unresolved):] {
			fl.run.img = appendValue(fl.run.img, v)
		}
		rec.ext = fl.f.put(fl.run.img)
		rec.fetched = true
	}
	// A slow-moving mean, so that windows shrink when fetched rows are large.
	fl.e.fetchCost += (size - fl.e.fetchCost) / 16
	fl.e.fetchCost = max(fl.e.fetchCost, 1<<10)
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
				fl.release(a)
				continue
			}
			again = append(again, a)
			op := &DeleteOp{Table: fl.t.Table, N: a.n, Keys: Set{fl.sh.keyTarget, a.keys}, Ordinals: true, Partial: true}
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
		fl.release(a)
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

// sendUpdates queues updates in place. With await it then finds the rows that
// were passed over, deletes them and marks them as moved.
func (fl *flusher) sendUpdates(works []*work, await bool) error {
	if len(works) == 0 {
		return nil
	}
	for _, w := range works {
		if err := fl.sendUpdate(w, await); err != nil {
			return err
		}
	}
	if !await {
		return nil
	}
	if err := fl.lanes.wait(); err != nil {
		return err
	}
	var short []*work
	for _, w := range works {
		ok := true
		total := int64(0)
		for _, got := range w.found[0] {
			total += got.Rows
			ok = ok && got.Rows == int64(w.n)
		}
		if w.place == somewhere {
			ok = total == int64(w.n)
		}
		if ok {
			fl.release(w)
			continue
		}
		short = append(short, w)
		if err := fl.moveShort(w); err != nil {
			return err
		}
	}
	if len(short) == 0 {
		return nil
	}
	if err := fl.lanes.wait(); err != nil {
		return err
	}
	for _, w := range short {
		if err := fl.settleShort(w); err != nil {
			return err
		}
		fl.release(w)
	}
	return nil
}

func (fl *flusher) sendUpdate(w *work, await bool) error {
	r, t, sh := fl.run, fl.t, fl.sh
	op := &UpdateOp{Table: t.Table, N: w.n, Keys: Set{sh.keyTarget, w.keys},
		Set: Set{sh.targets(w.setCols), w.set}, Same: Set{sh.targets(w.sameCols), w.same},
		Partial: w.place == somewhere}
	place := w.place
	if place == somewhere {
		place = everywhere
	}
	from, to := t.indexes(place)
	found, parts := make([]Found, to-from), w.parts
	w.found = [][]Found{found}
	free := func() {}
	if !await {
		free = func() { r.releaseWork(w) }
	}
	op.Keys.seal()
	op.Set.seal()
	op.Same.seal()
	return r.broadcast(t, place, w.size, free, func(ctx context.Context, i int) error {
		got, err := r.be.Update(ctx, t.segs[i], op)
		if err != nil {
			return r.opError(t, t.segs[i], r.onlyPart(len(parts), func(i int) int32 { return parts[i] }), "update rows", err)
		}
		found[i-from] = got
		if await {
			return nil
		}
		return r.check(t, sh, i, place, &op.Keys, parts, conflictMissingUpdate, int64(op.N), got)
	})
}

// moveShort queues the deletes for an update that found too few rows: where it
// ran, of rows that differ in guards, and where it did not, of any.
func (fl *flusher) moveShort(w *work) error {
	keys := Set{fl.sh.keyTarget, w.keys}
	fetch := fl.fetchCols(w.g)
	w.updated, w.found = w.found[0], nil
	if len(w.sameCols) > 0 {
		op := &DeleteOp{Table: fl.t.Table, N: w.n, Keys: keys, Fetch: fetch, Ordinals: true, Partial: true,
			Differ: Set{fl.sh.targets(w.sameCols), w.same}}
		if err := fl.sendDelete(w, op, w.place, true); err != nil {
			return err
		}
	}
	if w.place < 0 || !fl.uncertain() {
		return nil
	}
	for seg := range fl.t.segs {
		if seg == w.place {
			continue
		}
		op := &DeleteOp{Table: fl.t.Table, N: w.n, Keys: keys, Fetch: fetch, Ordinals: true, Partial: true}
		if err := fl.sendDelete(w, op, seg, true); err != nil {
			return err
		}
	}
	return nil
}

// settleShort marks the rows that moveShort found, and reports the rest.
func (fl *flusher) settleShort(w *work) error {
	w.g.fetch = true
	if len(w.found) == 0 {
		w.found = [][]Found{nil}
	}
	if err := fl.settle(w); err != nil {
		return err
	}
	var moved int64
	for _, n := range w.recs {
		if rec := &fl.f.records[n]; rec.hit {
			rec.move = true
			moved++
		}
	}
	// Each copy of a replicated table had the same number of rows updated, or
	// settle has complained about those that were moved.
	var missing int64
	part, key := none, [][]byte(nil)
	total := int64(0)
	for _, got := range w.updated {
		total += got.Rows
		if w.place != somewhere {
			missing = max(missing, int64(w.n)-got.Rows-moved)
		}
		for _, ord := range got.Missing {
			if rec := &fl.f.records[w.recs[ord]]; !rec.hit && part == none {
				part, key = rec.part, fl.keyOfRecord(rec)
			}
		}
	}
	if w.place == somewhere {
		missing = int64(w.n) - total - moved
	}
	switch {
	case missing > 0:
		return fl.conflicts(fl.t, fl.sh, conflictMissingUpdate, missing, part, key)
	case missing < 0:
		return fl.conflicts(fl.t, fl.sh, conflictSeveral, -missing, part, key)
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

func (fl *flusher) release(w *work) { fl.run.releaseWork(w) }

func (r *run) releaseWork(w *work) {
	r.e.pool.putVecs(w.keys)
	r.e.pool.putVecs(w.set)
	r.e.pool.putVecs(w.same)
	w.keys, w.set, w.same = nil, nil, nil
}
