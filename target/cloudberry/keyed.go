package cloudberry

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/dtx"
	"cbrepl/target"
	"cbrepl/target/internal/pgside"
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
func (b *backend) Delete(ctx context.Context, _ dtx.Content, op *target.DeleteOp) (target.Found, error) {
	f := b.facts(op.Table, true)
	var found target.Found
	var err error
	if f.appendOnly {
		found, err = b.deleteAppendOnly(ctx, f, op)
	} else {
		found, err = b.deleteHeap(ctx, f, op)
	}
	return found, faultOrNil(err)
}

// deleteHeap is one statement. It answers with the ordinals of the keys it met
// unless nobody asks which: after a delete there is nothing left to look for.
func (b *backend) deleteHeap(ctx context.Context, f *tableFacts, op *target.DeleteOp) (target.Found, error) {
	t := op.Table
	wanted := op.Ordinals || len(op.Fetch) > 0
	q := new(query)
	b.planFor(f.plan(op.Keys.Cols))
	q.WriteString("DELETE FROM " + pgside.Only(t) + " AS t")
	if !wanted && op.Partial && op.N > 1 && len(op.Differ.Cols) == 0 && f.anyable(op.Keys.Cols) {
		q.WriteString(" WHERE " + q.anyOf(t, op.Keys.Cols[0], op.Keys.Vals[0]))
		res, err := b.one(ctx, q)
		if err != nil {
			return target.Found{}, err
		}
		return target.Found{Rows: res.CommandTag.RowsAffected()}, nil
	}
	r, err := b.rows(ctx, q, f, op.N, false, namedSet{"k", op.Keys}, namedSet{"g", op.Differ})
	if err != nil {
		return target.Found{}, err
	}
	if r.from != "" {
		q.WriteString(" USING " + r.from)
	}
	q.where(t, op.Keys, target.Set{}, op.Differ, r)
	if err := b.prune(ctx, q, f, op.N, op.Keys.Cols, op.Keys.Vals); err != nil {
		return target.Found{}, err
	}
	answers := wanted || !op.Partial && op.N > 1
	if answers {
		q.WriteString(" RETURNING " + r.ord)
		q.columns(t, op.Fetch)
	}
	res, err := b.one(ctx, q)
	if err != nil {
		return target.Found{}, err
	}
	return readFound(res, op.N, answers, wanted, op.Partial), nil
}

// readFound reads the answer of a statement: rows of ordinal and fetched columns,
// or a count alone. wanted tells that the engine asks for the ordinals, else only
// those that are missing are reported.
func readFound(res *pgconn.Result, n int, answers, wanted, partial bool) target.Found {
	if !answers {
		found := target.Found{Rows: res.CommandTag.RowsAffected()}
		if n == 1 && found.Rows == 0 && !partial {
			found.Missing, found.MissingRows = []int{0}, 1
		}
		return found
	}
	found := target.Found{Rows: int64(len(res.Rows))}
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
func (b *backend) Update(ctx context.Context, _ dtx.Content, op *target.UpdateOp) (target.Found, error) {
	f := b.facts(op.Table, true)
	var found target.Found
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

// updateHeap is one statement that counts; which keys are missing is looked up
// afterwards, for an update changes no key. Where a key can have several rows a
// count says nothing, and the statement answers with ordinals.
func (b *backend) updateHeap(ctx context.Context, f *tableFacts, op *target.UpdateOp) (target.Found, error) {
	t := op.Table
	unique := pgside.UniqueKeys(t, op.Keys.Cols)
	q := new(query)
	b.planFor(f.plan(op.Keys.Cols))
	r, err := b.rows(ctx, q, f, op.N, true, namedSet{"k", op.Keys}, namedSet{"s", op.Set}, namedSet{"g", op.Same})
	if err != nil {
		return target.Found{}, err
	}
	q.WriteString("UPDATE " + pgside.Only(t) + " AS t SET ")
	for i, c := range op.Set.Cols {
		if i > 0 {
			q.WriteString(", ")
		}
		q.WriteString(pgside.Column(t, c) + " = " + pgside.Cast(t, c, r.ref("s", i)))
	}
	if r.from != "" {
		q.WriteString(" FROM " + r.from)
	}
	q.where(t, op.Keys, op.Same, target.Set{}, r)
	if err := b.prune(ctx, q, f, op.N, op.Keys.Cols, op.Keys.Vals); err != nil {
		return target.Found{}, err
	}
	answers := !unique && op.N > 1 && !op.Partial
	if answers {
		q.WriteString(" RETURNING " + r.ord)
	}
	res, err := b.one(ctx, q)
	if err != nil {
		return target.Found{}, err
	}
	found := readFound(res, op.N, answers, false, op.Partial)
	if answers || op.N == 1 || op.Partial || found.Rows == int64(op.N) {
		return found, nil
	}
	seen, err := b.look(ctx, f, op)
	found.Missing, found.MissingRows = seen.Missing, seen.MissingRows
	return found, err
}

// look counts the rows of an update's keys without changing them.
func (b *backend) look(ctx context.Context, f *tableFacts, op *target.UpdateOp) (target.Found, error) {
	rows, err := b.find(ctx, f, op.N, op.Keys, op.Same, target.Set{}, nil)
	if err != nil {
		return target.Found{}, err
	}
	found := target.Found{Rows: int64(len(rows))}
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
func (b *backend) find(ctx context.Context, f *tableFacts, n int, keys, same, differ target.Set, fetch []int) ([][][]byte, error) {
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
func (b *backend) narrow(q *query, f *tableFacts, keys target.Set) {
	if i := f.narrowed(keys.Cols); i >= 0 {
		q.WriteString(" AND " + q.anyOf(f.Table, keys.Cols[i], keys.Vals[i]))
	}
}
