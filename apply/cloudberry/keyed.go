package cloudberry

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/dtx"
)

// rowsetKind says how an operation's values reach the server.
type rowsetKind uint8

const (
	rowsAuto   rowsetKind = iota
	rowsSingle            // parameters of a statement without a join
	rowsUnnest            // arrays that every segment unnests
	rowsStage             // a temporary table filled by COPY, distributed as the target
)

// stageRows is from how many rows on a statement that carries whole rows is
// faster through a stage; below, making and filling it costs more than it saves.
// stageBytes bounds what goes to the segments together, since arrays go to each
// of them whole.
const (
	stageRows  = 4000
	stageBytes = 32 << 20
)

// choose picks the cheapest way for n rows.
func (b *backend) choose(f *tableFacts, n int, carries bool, sets ...namedSet) rowsetKind {
	if k := b.t.opts.private.rowset; k != rowsAuto && (k != rowsSingle || n == 1) && (k != rowsStage || !b.unstaged) {
		return k
	}
	if n == 1 {
		return rowsSingle
	}
	size := 0
	for _, s := range sets {
		for _, v := range s.set.Vals {
			size += v.Size()
		}
	}
	if b.s.facts.temp && !b.unstaged && (carries && n >= stageRows || n > 1 && size*b.s.facts.segments > stageBytes) {
		return rowsStage
	}
	return rowsUnnest
}

// rows makes the rowset of an operation for query q.
func (b *backend) rows(ctx context.Context, q *query, f *tableFacts, n int, carries bool, sets ...namedSet) (*rowset, error) {
	switch b.choose(f, n, carries, sets...) {
	case rowsSingle:
		return q.single(sets...), nil
	case rowsStage:
		return b.stage(ctx, f, n, sets...)
	default:
		return q.unnest(sets...), nil
	}
}

// Delete deletes rows by key.
func (b *backend) Delete(ctx context.Context, _ dtx.Content, op *apply.DeleteOp) (apply.Found, error) {
	f := b.facts(op.Table, true)
	var found apply.Found
	var err error
	if f.appendOnly {
		found, err = b.deleteAppendOnly(ctx, f, op)
	} else {
		found, err = b.deleteHeap(ctx, f, op)
	}
	return found, faultOrNil(err)
}

// deleteHeap answers with the ordinals of the keys it met unless nobody asks which:
// after a delete there is nothing left to look for.
func (b *backend) deleteHeap(ctx context.Context, f *tableFacts, op *apply.DeleteOp) (apply.Found, error) {
	wanted := op.Ordinals || len(op.Fetch) > 0
	b.planFor(f.plan(op.Keys.Cols))
	if !wanted && op.Partial && op.N > 1 && len(op.Differ.Cols) == 0 && f.anyable(op.Keys.Cols) {
		q := new(query)
		q.WriteString("DELETE FROM " + pgside.Only(op.Table) + " AS t WHERE " + q.anyOf(op.Table, op.Keys.Cols[0], op.Keys.Vals[0]))
		res, err := b.one(ctx, q)
		if err != nil {
			return apply.Found{}, err
		}
		return apply.Found{Rows: res.CommandTag.RowsAffected()}, nil
	}
	return b.inPieces(ctx, op.N, wanted, op.Partial, func(q *query, from, to int) (bool, error) {
		keys, differ, n := slice(op.Keys, from, to, op.N), slice(op.Differ, from, to, op.N), to-from
		r, err := b.rows(ctx, q, f, n, false, namedSet{"k", keys}, namedSet{"g", differ})
		if err != nil {
			return false, err
		}
		q.WriteString("DELETE FROM " + pgside.Only(op.Table) + " AS t")
		if r.from != "" {
			q.WriteString(" USING " + r.from)
		}
		q.where(op.Table, keys, apply.Set{}, differ, r)
		if err := b.prune(ctx, q, f, n, keys.Cols, keys.Vals); err != nil {
			return false, err
		}
		answers := wanted || !op.Partial && n > 1
		if answers {
			q.WriteString(" RETURNING " + r.ord)
			q.columns(op.Table, op.Fetch)
		}
		return answers, nil
	})
}

// inPieces runs the statement of an operation on n rows, or one per row when they
// are few, in one round trip. build writes the statement for rows from..to-1 and
// tells whether it answers with rows.
func (b *backend) inPieces(ctx context.Context, n int, wanted, partial bool, build func(q *query, from, to int) (bool, error)) (apply.Found, error) {
	step := n
	if n <= fewRows && b.t.opts.private.rowset == rowsAuto {
		step = 1
	}
	var qs []*query
	answers := make([]bool, 0, fewRows)
	for from := 0; from < n; from += step {
		q := new(query)
		a, err := build(q, from, from+step)
		if err != nil {
			return apply.Found{}, err
		}
		qs, answers = append(qs, q), append(answers, a)
	}
	results, err := b.run(ctx, qs...)
	if err != nil {
		return apply.Found{}, err
	}
	var all apply.Found
	for i, res := range results {
		found := readFound(res, step, answers[i], wanted, partial)
		all.Rows += found.Rows
		all.MissingRows += found.MissingRows
		for _, m := range found.Missing {
			all.Missing = append(all.Missing, m+i*step)
		}
		for _, o := range found.Ordinals {
			all.Ordinals = append(all.Ordinals, o+i*step)
		}
		all.Values = append(all.Values, found.Values...)
	}
	return all, nil
}

// readFound reads the answer of a statement: rows of ordinal and fetched columns,
// or a count alone. wanted tells that the engine asks for the ordinals, else only
// those that are missing are reported.
func readFound(res *pgconn.Result, n int, answers, wanted, partial bool) apply.Found {
	if !answers {
		found := apply.Found{Rows: res.CommandTag.RowsAffected()}
		if n == 1 && found.Rows == 0 && !partial {
			found.Missing, found.MissingRows = []int{0}, 1
		}
		return found
	}
	found := apply.Found{Rows: int64(len(res.Rows))}
	if wanted {
		found.Ordinals = make([]int, 0, len(res.Rows))
	}
	var hit []bool
	if !partial && !wanted {
		hit = make([]bool, n)
	}
	for _, row := range res.Rows {
		ord := int(pgside.Atoi(row[0])) - 1
		if hit != nil {
			hit[ord] = true
		}
		if wanted {
			found.Ordinals = append(found.Ordinals, ord)
			found.Values = values(found.Values, row[1:])
		}
	}
	if hit != nil {
		complement(&found, hit)
	}
	return found
}

// Update updates rows by key, in place where the storage can.
func (b *backend) Update(ctx context.Context, _ dtx.Content, op *apply.UpdateOp) (apply.Found, error) {
	f := b.facts(op.Table, true)
	var found apply.Found
	var err error
	switch {
	case len(op.Set.Cols) == 0: // nothing to change; the row has to be there all the same
		found, err = b.look(ctx, f, op)
	case f.appendOnly:
		found, err = b.updateAppendOnly(ctx, f, op)
	default:
		found, err = b.updateHeap(ctx, f, op)
	}
	return found, faultOrNil(err)
}

// updateHeap counts; which keys are missing is looked up afterwards, for an update
// changes no key. Where a key can have several rows a count says nothing, and the
// statement answers with ordinals.
func (b *backend) updateHeap(ctx context.Context, f *tableFacts, op *apply.UpdateOp) (apply.Found, error) {
	t := op.Table
	unique := pgside.UniqueKeys(t, op.Keys.Cols)
	b.planFor(f.plan(op.Keys.Cols))
	counted := false // a statement on several rows that does not say which
	found, err := b.inPieces(ctx, op.N, false, op.Partial, func(q *query, from, to int) (bool, error) {
		keys, vals, same, n := slice(op.Keys, from, to, op.N), slice(op.Set, from, to, op.N), slice(op.Same, from, to, op.N), to-from
		r, err := b.rows(ctx, q, f, n, true, namedSet{"k", keys}, namedSet{"s", vals}, namedSet{"g", same})
		if err != nil {
			return false, err
		}
		q.WriteString("UPDATE " + pgside.Only(t) + " AS t SET ")
		for i, c := range vals.Cols {
			if i > 0 {
				q.WriteString(", ")
			}
			q.WriteString(pgside.Column(t, c) + " = " + r.cast(t, c, "s", i))
		}
		if r.from != "" {
			q.WriteString(" FROM " + r.from)
		}
		q.where(t, keys, same, apply.Set{}, r)
		if err := b.prune(ctx, q, f, n, keys.Cols, keys.Vals); err != nil {
			return false, err
		}
		answers := !unique && n > 1 && !op.Partial
		if answers {
			q.WriteString(" RETURNING " + r.ord)
		}
		counted = n > 1 && !answers && !op.Partial
		return answers, nil
	})
	if err != nil || !counted || found.Rows == int64(op.N) {
		return found, err
	}
	seen, err := b.look(ctx, f, op)
	found.Missing, found.MissingRows = seen.Missing, seen.MissingRows
	return found, err
}

// look counts the rows of an update's keys without changing them.
func (b *backend) look(ctx context.Context, f *tableFacts, op *apply.UpdateOp) (apply.Found, error) {
	rows, err := b.find(ctx, f, op.N, op.Keys, op.Same, apply.Set{}, nil)
	if err != nil {
		return apply.Found{}, err
	}
	found := apply.Found{Rows: int64(len(rows))}
	if !op.Partial {
		hit := make([]bool, op.N)
		for _, row := range rows {
			hit[int(pgside.Atoi(row[0]))-1] = true
		}
		complement(&found, hit)
	}
	return found, nil
}

// find selects, per row that matches a key, the key's 1-based ordinal and the
// given columns. The list of rows that were found is taken rather than of those
// that were not: absence on one segment says nothing.
func (b *backend) find(ctx context.Context, f *tableFacts, n int, keys, same, differ apply.Set, fetch []int) ([][][]byte, error) {
	t := f.Table
	q := new(query)
	joined := f.appendOnly && n > 1
	if joined {
		b.planFor(planMode{hashed: true, indexed: f.narrowed(keys.Cols) >= 0})
	} else {
		b.planFor(f.plan(keys.Cols))
	}
	sets := []namedSet{{"k", keys}, {"g", same}}
	if len(differ.Cols) > 0 {
		sets[1].set = differ
	}
	r, err := b.rows(ctx, q, f, n, false, sets...)
	if err != nil {
		return nil, err
	}
	q.WriteString("SELECT " + r.ord)
	q.columns(t, fetch)
	q.WriteString(" FROM " + pgside.Only(t) + " AS t")
	if r.from != "" {
		q.WriteString(", " + r.from)
	}
	q.where(t, keys, same, differ, r)
	if joined {
		b.narrow(q, f, keys)
	}
	if err := b.prune(ctx, q, f, n, keys.Cols, keys.Vals); err != nil {
		return nil, err
	}
	res, err := b.one(ctx, q)
	if err != nil {
		return nil, err
	}
	return res.Rows, nil
}

// narrowed finds the key column by which an index can serve a join that hashes, as
// an index into keys, or -1.
func (f *tableFacts) narrowed(keys []int) int {
	return slices.IndexFunc(keys, func(c int) bool { return f.leads(c) && f.anyable([]int{c}) })
}

// narrow adds a condition that lets an index serve a join that hashes: one of the
// key columns has one of the values. Nested loops over an append-optimized
// table's index decompress a block per row.
func (b *backend) narrow(q *query, f *tableFacts, keys apply.Set) {
	if i := f.narrowed(keys.Cols); i >= 0 {
		q.WriteString(" AND " + q.anyOf(f.Table, keys.Cols[i], keys.Vals[i]))
	}
}
