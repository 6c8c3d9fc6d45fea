package cloudberry

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
)

// copyNew inserts the rows of a COPY that violate no unique or exclusion
// constraint, as if one by one. Not every server has ON CONFLICT, so:
//
//  1. All rows are tried behind a savepoint. Duplicates are the exception.
//  2. Rows that are in the table already are looked up by every plain unique
//     index, and rows that repeat an earlier one of the operation are found here.
//  3. The others are tried. Where the server still finds a duplicate (values that
//     are equal without printing alike, expressions, exclusion constraints), the
//     rows are halved until it is alone.
func (b *backend) copyNew(ctx context.Context, op *apply.CopyOp) (apply.Inserted, error) {
	done := apply.Inserted{Skipped: -1}
	n, dup, err := b.tryInsert(ctx, op)
	if err != nil || !dup {
		done.Rows = n
		return done, err
	}
	if len(op.Cols) == 0 {
		return done, pgside.Stop(opRows, "", "rows without columns repeat each other in table %s", op.Table)
	}
	rows := slices.Collect(bytes.Lines(op.Data))
	if rows, done.Skipped, err = b.newRows(ctx, op, rows); err != nil {
		return done, err
	}
	done.Rows, err = b.insertHalves(ctx, op, rows)
	return done, err
}

// tryInsert inserts the rows of op and reports whether the server refused them as
// duplicates, which then leaves no trace.
func (b *backend) tryInsert(ctx context.Context, op *apply.CopyOp) (n int64, dup bool, err error) {
	u := b.savepoint()
	n, err = b.insert(ctx, op)
	if err == nil {
		b.release()
		return n, false, nil
	}
	err = faultOrNil(err)
	var de *apply.DataError
	if !errors.As(err, &de) || !de.Duplicate {
		return 0, false, err
	}
	b.rollbackTo(u)
	return 0, true, nil
}

// insertHalves inserts rows, halving them where there are duplicates.
func (b *backend) insertHalves(ctx context.Context, op *apply.CopyOp, rows [][]byte) (int64, error) {
	if len(rows) == 0 {
		return 0, nil
	}
	some := *op
	some.Data, some.Rows = bytes.Join(rows, nil), int64(len(rows))
	n, dup, err := b.tryInsert(ctx, &some)
	if err != nil || !dup {
		return n, err
	}
	if len(rows) == 1 {
		return 0, nil
	}
	first, err := b.insertHalves(ctx, op, rows[:len(rows)/2])
	if err != nil {
		return 0, err
	}
	second, err := b.insertHalves(ctx, op, rows[len(rows)/2:])
	return first + second, err
}

// newRows leaves out rows that are known to be duplicates, and returns which is the
// first of them, or -1.
func (b *backend) newRows(ctx context.Context, op *apply.CopyOp, rows [][]byte) (out [][]byte, skipped int, err error) {
	f := b.facts(op.Table, false)
	vals := make([]*apply.Vec, len(op.Cols))
	for i := range vals {
		vals[i] = new(apply.Vec)
	}
	pgside.ParseCopy(op.Data, vals)
	all := columnsOf(apply.Set{Vals: vals}, len(rows))
	drop := make([]bool, len(rows))
	var keys [][]int // per unique index, places in op.Cols
	for i := range op.Table.Uniques {
		u := &op.Table.Uniques[i]
		if !u.Plain || u.Exclusion || len(u.Columns) == 0 {
			continue
		}
		places := make([]int, 0, len(u.Columns))
		for _, c := range u.Columns {
			if p := slices.Index(op.Cols, c); p >= 0 {
				places = append(places, p)
			}
		}
		if len(places) < len(u.Columns) {
			continue // a default decides
		}
		keys = append(keys, places)
		if err := b.dropPresent(ctx, f, op, places, all, drop); err != nil {
			return nil, -1, err
		}
	}
	seen := make([]map[string]bool, len(keys))
	var key []byte
	for r, row := range rows {
		if drop[r] {
			continue
		}
		mine := make([]string, len(keys))
		for k, places := range keys {
			key = key[:0]
			for _, p := range places {
				if all[p][r] == nil {
					key = nil // NULL equals nothing
					break
				}
				key = append(pgside.AppendField(key, all[p][r]), '\t')
			}
			mine[k] = string(key)
			if mine[k] != "" && seen[k][mine[k]] {
				drop[r] = true
				break
			}
		}
		if drop[r] {
			continue
		}
		for k := range keys {
			if seen[k] == nil {
				seen[k] = map[string]bool{}
			}
			if mine[k] != "" {
				seen[k][mine[k]] = true
			}
		}
		out = append(out, row)
	}
	return out, slices.Index(drop, true), nil
}

// dropPresent marks the rows whose key in the given columns is in the table.
func (b *backend) dropPresent(ctx context.Context, f *tableFacts, op *apply.CopyOp, places []int, all [][][]byte, drop []bool) error {
	keys := apply.Set{}
	for _, p := range places {
		keys.Cols = append(keys.Cols, op.Cols[p])
		keys.Vals = append(keys.Vals, new(apply.Vec))
	}
	var ords []int
	for r := range drop {
		if drop[r] || slices.ContainsFunc(places, func(p int) bool { return all[p][r] == nil }) {
			continue
		}
		ords = append(ords, r)
		for i, p := range places {
			keys.Vals[i].Append(all[p][r])
		}
	}
	if len(ords) == 0 {
		return nil
	}
	found, err := b.find(ctx, f, len(ords), keys, apply.Set{}, apply.Set{}, nil)
	if err != nil {
		return err
	}
	for _, row := range found {
		drop[ords[int(pgside.Atoi(row[0]))-1]] = true
	}
	return nil
}
