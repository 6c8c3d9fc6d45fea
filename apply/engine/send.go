package engine

import (
	"context"
	"errors"
	"slices"

	"cbrepl/apply"
	"cbrepl/dtx"
)

// sendCopies sends what is left in the table's insert buffers.
func (r *run) sendCopies(t *table, l *layout) error {
	for i := range t.bufs {
		if t.bufs[i].rows == 0 {
			continue
		}
		place := i
		if i == len(t.segs) {
			place = everywhere
		}
		if err := r.sendCopy(t, place, l); err != nil {
			return err
		}
	}
	return nil
}

// sendCopy queues one buffer of inserts.
func (r *run) sendCopy(t *table, place int, l *layout) error {
	b := t.buf(place)
	if t.mode == modePass {
		r.hold(t, -int64(len(b.data)), 0)
	}
	op := &apply.CopyOp{
		Table: t.Table, Cols: l.cols, Data: b.body(), Binary: b.binary, Rows: b.rows,
		SkipDuplicates: r.e.opt.OnConflict == apply.ConflictLog,
	}
	marks, shape := b.marks, t.shape
	*b = copyBuf{}
	from, to := t.indexes(place)
	done := make([]apply.Inserted, to-from)
	free := func() {
		r.compareInserts(t, shape, place, op, marks, done)
		r.e.pool.putBuf(op.Data)
	}
	return r.broadcast(t, place, int64(len(op.Data)), free, func(ctx context.Context, i int) error {
		n, err := r.be.Copy(ctx, t.segs[i], op)
		if err != nil {
			return r.copyError(t, shape, t.segs[i], op, marks, err)
		}
		done[i-from] = n
		if n.Rows != op.Rows && i == r.first(place) {
			part, key := skippedInsert(r, shape, op, marks, n.Skipped)
			return r.conflicts(t, shape, conflictDuplicate, op.Rows-n.Rows, part, key)
		}
		return nil
	})
}

// skippedInsert finds part and identity of a row that was left out.
func skippedInsert(r *run, sh *shape, op *apply.CopyOp, marks []mark, row int) (part int32, key [][]byte) {
	if row < 0 || int64(row) >= op.Rows {
		return r.onlyPart(len(marks), func(i int) int32 { return marks[i].part }), nil
	}
	return partOf(marks, int64(row)), copyKey(sh, op, row)
}

// compareInserts counts the copies of a replicated table that took another number of
// rows than the first: their rows of before differ.
func (r *run) compareInserts(t *table, sh *shape, place int, op *apply.CopyOp, marks []mark, done []apply.Inserted) {
	if place != everywhere || r.e.opt.OnConflict != apply.ConflictLog || r.lanes.ctx.Err() != nil {
		return
	}
	for i := range done {
		if n := done[i].Rows - done[0].Rows; n != 0 {
			part, key := skippedInsert(r, sh, op, marks, done[i].Skipped)
			_ = r.conflictsAt(t, sh, conflictCopies, max(n, -n), part, key, t.segs[i]) // an error is for on_conflict: stop
		}
	}
}

// first is the index of the first segment of a place.
func (r *run) first(place int) int { return max(place, 0) }

// broadcast queues f for every segment of a place; free is called when all are
// done.
func (r *run) broadcast(t *table, place int, size int64, free func(), f func(ctx context.Context, i int) error) error {
	from, to := t.indexes(place)
	sh := &shared{n: to - from, free: free}
	var first error
	for i := from; i < to; i++ {
		err := r.lanes.put(r.lane(t.segs[i]), task{
			size: size, done: sh.done,
			run: func(ctx context.Context) error { return f(ctx, i) },
		})
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
func (r *run) copyError(t *table, sh *shape, seg dtx.Content, op *apply.CopyOp, marks []mark, err error) error {
	part := r.onlyPart(len(marks), func(i int) int32 { return marks[i].part })
	var de *apply.DataError
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
