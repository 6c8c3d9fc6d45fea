package cloudberry

import (
	"context"
	"slices"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/router"
)

// pruneList is up to how many values a list can have for the planner to compare it
// with the bounds of partitions.
const pruneList = 64

// prune adds conditions on the columns that choose a partition, so that partitions
// without any of the rows are left out: a join alone would be tried in every
// partition, row by row. The conditions follow from the others. cols and vals are
// n values per column, joined by = elsewhere.
func (b *backend) prune(ctx context.Context, q *query, f *tableFacts, n int, cols []int, vals []*apply.Vec) error {
	if f.Kind != catalog.PartitionRoot || n == 1 {
		return nil
	}
	for i, c := range cols {
		if !slices.Contains(f.Pinned, c) || vals[i].HasNull() {
			continue
		}
		if list := distinct(vals[i], pruneList); list != nil {
			if f.anyable([]int{c}) {
				q.WriteString(" AND " + q.anyOf(f.Table, c, list))
			}
			continue
		}
		if !ordered(&f.Columns[c]) {
			continue
		}
		low, high, err := b.bounds(ctx, f, c, vals[i])
		if err != nil {
			return err
		}
		col := pgside.Operand(f.Table, c, "t")
		q.WriteString(" AND " + col + " >= " + pgside.Cast(f.Table, c, q.value(low)) + " AND " + col + " <= " + pgside.Cast(f.Table, c, q.value(high)))
	}
	return nil
}

// distinct returns the different texts of v, nil when there are more than limit.
func distinct(v *apply.Vec, limit int) *apply.Vec {
	seen := map[string]bool{}
	out := new(apply.Vec)
	v.All(func(_ int, b []byte) {
		if len(seen) <= limit && !seen[string(b)] {
			seen[string(b)] = true
			out.Append(b)
		}
	})
	if len(seen) > limit {
		return nil
	}
	return out
}

// ordered reports whether a type has one order, whatever the collation, and min
// and max on every server.
func ordered(c *catalog.Column) bool {
	t := c.Type.Base()
	if t == nil || t.Kind != router.BaseType {
		return false
	}
	switch t.OID {
	case 20, 21, 23, 26, 1082, 1114, 1184, 1700:
		return true
	}
	return false
}

// bounds asks the coordinator for the least and the greatest of values.
func (b *backend) bounds(ctx context.Context, f *tableFacts, c int, v *apply.Vec) (low, high []byte, err error) {
	q := new(query)
	val := pgside.Cast(f.Table, c, "u.v")
	q.WriteString("SELECT pg_catalog.min(" + val + "), pg_catalog.max(" + val + ") FROM unnest(" + q.vec(v) + ") u(v)")
	res, err := b.one(ctx, q)
	if err != nil {
		return nil, nil, err
	}
	return res.Rows[0][0], res.Rows[0][1], nil
}
