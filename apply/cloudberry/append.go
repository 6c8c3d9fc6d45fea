package cloudberry

import (
	"context"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
)

// Append-optimized tables (row or column oriented, and partitioned tables with
// such a partition) have no RETURNING, and an update of them costs several times
// a delete and an insert. So rows are found first where their contents or ordinals
// are asked for, under the lock that the delete would take anyway.

// deleteAppendOnly deletes rows by key.
func (b *backend) deleteAppendOnly(ctx context.Context, f *tableFacts, op *apply.DeleteOp) (apply.Found, error) {
	if op.Ordinals || len(op.Fetch) > 0 {
		b.lock(f)
		return b.findAndDelete(ctx, f, op)
	}
	if op.Partial || op.N == 1 {
		n, err := b.remove(ctx, f, op.N, op.Keys, op.Differ)
		if err != nil {
			return apply.Found{}, err
		}
		found := apply.Found{Rows: n}
		if n == 0 && op.N == 1 && !op.Partial {
			found.Missing, found.MissingRows = []int{0}, 1
		}
		return found, nil
	}
	// As many rows as keys is taken for one row per key: the storage has no unique
	// index that would say so. Otherwise it is undone and done again, looking.
	u := b.savepoint()
	b.unstaged = true // a stage made behind the savepoint would go with it
	n, err := b.remove(ctx, f, op.N, op.Keys, op.Differ)
	b.unstaged = false
	if err != nil {
		return apply.Found{}, err
	}
	if n == int64(op.N) {
		b.release()
		return apply.Found{Rows: n}, nil
	}
	b.rollbackTo(u)
	return b.findAndDelete(ctx, f, op)
}

func (b *backend) findAndDelete(ctx context.Context, f *tableFacts, op *apply.DeleteOp) (apply.Found, error) {
	rows, err := b.find(ctx, f, op.N, op.Keys, apply.Set{}, op.Differ, op.Fetch)
	if err != nil {
		return apply.Found{}, err
	}
	wanted := op.Ordinals || len(op.Fetch) > 0
	found := apply.Found{Rows: int64(len(rows))}
	hit := make([]bool, op.N)
	for _, row := range rows {
		ord := int(pgside.Atoi(row[0])) - 1
		hit[ord] = true
		if wanted {
			found.Ordinals = append(found.Ordinals, ord)
			found.Values = values(found.Values, row[1:])
		}
	}
	if !op.Partial && !wanted {
		complement(&found, hit)
	}
	n, err := b.remove(ctx, f, op.N, op.Keys, op.Differ)
	if err == nil && n != found.Rows {
		err = pgside.Stop(opRows, "Another session writes to the table", "%d rows were found and %d deleted in table %s", found.Rows, n, f.Table)
	}
	return found, err
}

// byAny reports whether remove finds its rows by a list of values of one column.
func (b *backend) byAny(f *tableFacts, n int, keys, differ apply.Set) bool {
	return n > 1 && len(differ.Cols) == 0 && f.anyable(keys.Cols) && f.leads(keys.Cols[0])
}

func (b *backend) removePlan(f *tableFacts, n int, keys, differ apply.Set) planMode {
	if n == 1 || b.byAny(f, n, keys, differ) {
		return f.plan(keys.Cols)
	}
	return planMode{hashed: true, indexed: f.narrowed(keys.Cols) >= 0}
}

// remove deletes rows by key and counts them.
func (b *backend) remove(ctx context.Context, f *tableFacts, n int, keys, differ apply.Set) (int64, error) {
	t := f.Table
	q := new(query)
	b.planFor(b.removePlan(f, n, keys, differ))
	q.WriteString("DELETE FROM " + pgside.Only(t) + " AS t")
	if b.byAny(f, n, keys, differ) {
		q.WriteString(" WHERE " + q.anyOf(t, keys.Cols[0], keys.Vals[0]))
	} else {
		r, err := b.rows(ctx, q, f, n, false, namedSet{"k", keys}, namedSet{"g", differ})
		if err != nil {
			return 0, err
		}
		if r.from != "" {
			q.WriteString(" USING " + r.from)
		}
		q.where(t, keys, apply.Set{}, differ, r)
		if r.from != "" {
			b.narrow(q, f, keys)
		}
	}
	if err := b.prune(ctx, q, f, n, keys.Cols, keys.Vals); err != nil {
		return 0, err
	}
	res, err := b.one(ctx, q)
	if err != nil {
		return 0, err
	}
	return res.CommandTag.RowsAffected(), nil
}

// replaceRows bounds the rows whose contents are read back for one statement.
const replaceRows = 1000

// updateAppendOnly deletes the rows and inserts them with their new values. What
// an update does not carry is read first.
func (b *backend) updateAppendOnly(ctx context.Context, f *tableFacts, op *apply.UpdateOp) (apply.Found, error) {
	if op.N > replaceRows {
		return b.updateInParts(ctx, f, op)
	}
	t := op.Table
	carried := make([]bool, len(t.Columns))
	for _, c := range op.Keys.Cols {
		carried[c] = true
	}
	for _, c := range op.Set.Cols {
		carried[c] = true
	}
	var rest []int
	for c := range t.Columns {
		if !carried[c] && !t.Columns[c].Generated {
			rest = append(rest, c)
		}
	}
	b.lock(f)
	rows, err := b.find(ctx, f, op.N, op.Keys, op.Same, apply.Set{}, rest)
	if err != nil {
		return apply.Found{}, err
	}
	found := apply.Found{Rows: int64(len(rows))}
	hit := make([]bool, op.N)
	for _, row := range rows {
		hit[int(pgside.Atoi(row[0]))-1] = true
	}
	if !op.Partial {
		complement(&found, hit)
	}
	if len(rows) == 0 {
		return found, nil
	}
	// Keys of rows that are to be passed over must not be deleted with the others.
	keys, n := op.Keys, op.N
	if found.MissingRows > 0 || op.Partial {
		keys, n = subset(op.Keys, hit), 0
		for _, h := range hit {
			n += btoi(h)
		}
	}
	deleted, err := b.remove(ctx, f, n, keys, apply.Set{})
	if err != nil {
		return found, err
	}
	if deleted != found.Rows {
		return found, pgside.Stop(opRows, "The row's identity must be unique on the target",
			"%d rows were to be replaced and %d deleted in table %s", found.Rows, deleted, t)
	}
	cols := append(append(append([]int(nil), op.Keys.Cols...), op.Set.Cols...), rest...)
	keyVals, setVals := columnsOf(op.Keys, op.N), columnsOf(op.Set, op.N)
	var data []byte
	for _, row := range rows {
		ord := int(pgside.Atoi(row[0])) - 1
		for i := range keyVals {
			data = append(pgside.AppendField(data, keyVals[i][ord]), '\t')
		}
		for i := range setVals {
			data = append(pgside.AppendField(data, setVals[i][ord]), '\t')
		}
		for _, v := range row[1:] {
			data = append(pgside.AppendField(data, v), '\t')
		}
		data[len(data)-1] = '\n'
	}
	_, err = b.insert(ctx, &apply.CopyOp{Table: t, Cols: cols, Data: data, Rows: int64(len(rows))})
	return found, err
}

// updateInParts splits an update that is too large to read back at once.
func (b *backend) updateInParts(ctx context.Context, f *tableFacts, op *apply.UpdateOp) (apply.Found, error) {
	var all apply.Found
	for from := 0; from < op.N; from += replaceRows {
		to := min(from+replaceRows, op.N)
		part := *op
		part.N = to - from
		part.Keys, part.Set, part.Same = slice(op.Keys, from, to, op.N), slice(op.Set, from, to, op.N), slice(op.Same, from, to, op.N)
		found, err := b.updateAppendOnly(ctx, f, &part)
		if err != nil {
			return all, err
		}
		all.Rows += found.Rows
		all.MissingRows += found.MissingRows
		for _, m := range found.Missing {
			if len(all.Missing) < apply.MaxMissing {
				all.Missing = append(all.Missing, m+from)
			}
		}
	}
	return all, nil
}

// columnsOf reads a set's values; nil is NULL. They are valid as long as the set.
func columnsOf(s apply.Set, n int) [][][]byte {
	out := make([][][]byte, len(s.Vals))
	for i, v := range s.Vals {
		out[i] = make([][]byte, 0, n)
		v.All(func(_ int, b []byte) { out[i] = append(out[i], b) })
	}
	return out
}

// slice copies rows from..to-1 of a set of n; all of them are the set itself.
func slice(s apply.Set, from, to, n int) apply.Set {
	if from == 0 && to == n {
		return s
	}
	return pick(s, func(i int) bool { return i >= from && i < to })
}

// subset copies the rows of a set that are in keep.
func subset(s apply.Set, keep []bool) apply.Set {
	return pick(s, func(i int) bool { return keep[i] })
}

func pick(s apply.Set, want func(i int) bool) apply.Set {
	out := apply.Set{Cols: s.Cols, Vals: make([]*apply.Vec, len(s.Vals))}
	for c, v := range s.Vals {
		w := new(apply.Vec)
		v.All(func(i int, b []byte) {
			switch {
			case !want(i):
			case b == nil:
				w.AppendNull()
			default:
				w.Append(b)
			}
		})
		out.Vals[c] = w
	}
	return out
}
