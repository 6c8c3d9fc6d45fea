package engine

import (
	"context"
	"slices"

	"cbrepl/apply"
	"cbrepl/dtx"
)

// updates sends the updates in place, and deletes rows that turn out to need a
// move: their unique values change, or they live on another segment.
func (fl *flusher) updates() error {
	f, sh := fl.f, fl.sh
	for n := range f.records {
		rec := &f.records[n]
		if rec.orig == none || rec.cur == none || rec.move || rec.untouched() {
			continue
		}
		img := f.get(rec.img)
		g := fl.whole
		if rec.partial || g == nil {
			g = fl.group(img, false)
			if !rec.partial {
				fl.whole = g
			}
		}
		place, err := fl.oldPlace(rec)
		if err == nil && place == somewhere {
			fl.v = appendValues(fl.v[:0], img)
			place, err = fl.segment(fl.t, fl.v)
		}
		if err != nil {
			return fl.at(rec.part, err)
		}
		fl.addUpdate(fl.workFor(g, place), int32(n), rec)
	}
	fl.whole = nil
	return fl.sendUpdates(fl.takeWorks(), len(sh.guards) > 0 || fl.uncertain())
}

// addUpdate adds a record with its new values.
func (fl *flusher) addUpdate(w *work, n int32, rec *record) {
	if w.n == 0 {
		same := fl.sh.guards
		if w.place == somewhere {
			// A column of the distribution key is unchanged and not known. The row
			// stays on its segment only if the others did not change either.
			same = union(same, fl.sh.dist)
		}
		w.setCols, w.sameCols = fl.without(fl.sh.set, w.g), fl.without(same, w.g)
		w.set, w.same = fl.vecs(len(w.setCols)), fl.vecs(len(w.sameCols))
	}
	fl.addKey(w, n, rec)
	img := fl.f.get(rec.img)
	fl.v = appendValues(fl.v[:0], img)
	for i, s := range w.setCols {
		w.set[i].AppendValue(fl.v[s])
	}
	for i, s := range w.sameCols {
		w.same[i].AppendValue(fl.v[s])
	}
	w.size += int64(len(img))
}

func union(a, b []int) []int {
	out := slices.Clone(a)
	for _, c := range b {
		if !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	return out
}

// without lists the columns that are not unresolved in g.
func (fl *flusher) without(cols []int, g *group) []int {
	if len(g.unresolved) == 0 {
		return cols
	}
	out := make([]int, 0, len(cols))
	for _, c := range cols {
		if !slices.Contains(g.unresolved, c) {
			out = append(out, c)
		}
	}
	return out
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
		if !ok {
			if err := fl.moveShort(w); err != nil {
				return err
			}
		}
		fl.releaseWork(w)
	}
	return nil
}

func (fl *flusher) sendUpdate(w *work, await bool) error {
	t, sh := fl.t, fl.sh
	op := &apply.UpdateOp{
		Table: t.Table, N: w.n, Keys: apply.Set{Cols: sh.keyTarget, Vals: w.keys},
		Set: apply.Set{Cols: sh.targets(w.setCols), Vals: w.set}, Same: apply.Set{Cols: sh.targets(w.sameCols), Vals: w.same},
		Partial: w.place == somewhere,
	}
	op.Keys.Seal()
	op.Set.Seal()
	op.Same.Seal()
	return fl.ask(w, w.place, await, request{
		what: "update rows", keys: &op.Keys, want: int64(op.N), missing: conflictMissingUpdate,
		run: func(ctx context.Context, seg dtx.Content) (apply.Found, error) { return fl.be.Update(ctx, seg, op) },
	})
}

// moveShort deals with an update that found too few rows. It deletes, and
// fetches what they lack, the rows that were passed over: where the update ran,
// those that differ in guards, and where it did not, any. What is missing even
// so is a conflict.
func (fl *flusher) moveShort(w *work) error {
	updated := w.found[0]
	w.found = nil
	w.g.fetch = true
	fewest := int64(w.n)
	for _, got := range updated {
		fewest = min(fewest, got.Rows)
	}
	if lacking := int64(w.n) - fewest; lacking <= int64(fl.fetchRows()) {
		if err := fl.moveSome(w); err != nil {
			return err
		}
	} else {
		for left := w.recs; len(left) > 0; {
			n := min(fl.fetchRows(), len(left))
			some := &work{g: w.g, place: w.place, keys: fl.vecs(len(fl.sh.key))}
			for _, rec := range left[:n] {
				fl.addUpdate(some, rec, &fl.f.records[rec])
			}
			left = left[n:]
			if err := fl.moveSome(some); err != nil {
				return err
			}
			fl.releaseWork(some)
		}
	}
	return fl.judgeShort(w, updated)
}

// moveSome deletes and fetches the rows of w that an update passed over.
func (fl *flusher) moveSome(w *work) error {
	keys := apply.Set{Cols: fl.sh.keyTarget, Vals: w.keys}
	fetch := fl.fetchCols(w.g)
	if len(w.sameCols) > 0 {
		op := &apply.DeleteOp{
			Table: fl.t.Table, N: w.n, Keys: keys, Fetch: fetch, Ordinals: true, Partial: true,
			Differ: apply.Set{Cols: fl.sh.targets(w.sameCols), Vals: w.same},
		}
		if err := fl.sendDelete(w, op, w.place, true); err != nil {
			return err
		}
	}
	if w.place >= 0 && fl.uncertain() {
		for seg := range fl.t.segs {
			if seg == w.place {
				continue
			}
			op := &apply.DeleteOp{Table: fl.t.Table, N: w.n, Keys: keys, Fetch: fetch, Ordinals: true, Partial: true}
			if err := fl.sendDelete(w, op, seg, true); err != nil {
				return err
			}
		}
	}
	if len(w.found) == 0 {
		return nil
	}
	if err := fl.lanes.wait(); err != nil {
		return err
	}
	return fl.settle(w)
}

// judgeShort marks the rows that moveSome found as moved, and reports the rest.
func (fl *flusher) judgeShort(w *work, updated []apply.Found) error {
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
	for _, got := range updated {
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
