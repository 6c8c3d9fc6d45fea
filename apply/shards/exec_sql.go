package shards

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/router"
)

// query is a statement under construction. Values come as text[] parameters in
// binary format and are cast per row: that takes any type, arrays of arrays
// included, exactly as its input function does.
type query struct {
	strings.Builder
	params  [][]byte
	oids    []uint32
	formats []int16
	// keyed is set when every row is found by a unique index, so that no plan
	// depends on the parameters.
	keyed bool
	// listed is set when an index finds rows for a list of keys.
	listed bool
	// hashed is set when rows that no index finds are of a table so wide that, without
	// statistics, the planner takes it for one row and reads the list for each.
	hashed bool
}

// Parameter types.
const (
	textArrayOID = 1009
	int8OID      = 20
)

func (q *query) run(ctx context.Context, conn *pgconn.PgConn) *pgconn.Result {
	return conn.ExecParams(ctx, q.String(), q.params, q.oids, q.formats, nil).Read()
}

// format writes; a Builder does not fail.
func (q *query) format(f string, args ...any) { _, _ = fmt.Fprintf(q, f, args...) }

// param adds a vector and returns its number.
func (q *query) param(v *apply.Vec) string {
	return q.add(v.TextArray(), textArrayOID, pgx.BinaryFormatCode)
}

// number adds a number and returns its own. It is no part of the text, so that
// statements over different numbers of rows have one text.
func (q *query) number(n int) string {
	return q.add(strconv.AppendInt(nil, int64(n), 10), int8OID, pgx.TextFormatCode)
}

func (q *query) add(value []byte, oid uint32, format int16) string {
	q.params, q.oids, q.formats = append(q.params, value), append(q.oids, oid), append(q.formats, format)
	return "$" + strconv.Itoa(len(q.params))
}

// unnest writes the parameters as a relation v(prefix0, prefix1, ..., o); o is
// the 1-based ordinal.
func (q *query) unnest(sets ...namedSet) {
	var names []string
	q.WriteString("unnest(")
	for _, s := range sets {
		for i, v := range s.vals {
			if len(names) > 0 {
				q.WriteString(", ")
			}
			q.WriteString(q.param(v))
			names = append(names, s.name+strconv.Itoa(i))
		}
	}
	q.WriteString(") WITH ORDINALITY AS v(" + strings.Join(names, ", ") + ", o)")
}

type namedSet struct {
	name string
	vals []*apply.Vec
}

// keysMatch writes the comparison of key columns, in the operators that their
// unique index uses.
//
// Where there is such an index, every row is to be found by it. The planner,
// which takes each page for a random read, would rather hash the whole table
// from a few thousand keys on. A comparison with an array of one value can use
// an index and nothing else.
func (q *query) keysMatch(t *catalog.Table, keys apply.Set) {
	indexed := pgside.IndexedKeys(t, keys.Cols)
	q.keyed, q.hashed = indexed, !indexed && len(t.Columns) > wideColumns
	for i, c := range keys.Cols {
		if i > 0 {
			q.WriteString(" AND ")
		}
		col := &t.Columns[c]
		q.WriteString(pgside.Operand(t, c, "t") + " " + pgside.Equals(col) + " ")
		val := pgside.Cast(t, c, "v.k"+strconv.Itoa(i))
		if b := col.Type.Base(); indexed && b != nil && b.Kind != router.ArrayType {
			val = "ANY (ARRAY[" + val + "])"
		}
		q.WriteString(val)
	}
}

// allSame is a condition: the row does not differ from s in any column.
func (q *query) allSame(t *catalog.Table, s apply.Set, name string) {
	for i, c := range s.Cols {
		if i > 0 {
			q.WriteString(" AND ")
		}
		q.WriteString(pgside.Same(t, c, "t", pgside.Cast(t, c, "v."+name+strconv.Itoa(i))))
	}
}

// counts wraps a data-modifying statement that returns o: the answer is one row
// of rows affected, ordinals missing, and the first of those. They are looked
// for only when the number of rows is not n. unique tells that no ordinal can
// come twice.
func (q *query) counts(n int, unique, partial bool, body func()) {
	q.WriteString("WITH d AS (")
	body()
	q.WriteString(")")
	if partial {
		q.WriteString(" SELECT count(*) FROM d")
		return
	}
	all, short, distinct := q.number(n), "c.n", ""
	if !unique {
		short, distinct = "c.u", ", count(DISTINCT o) AS u"
	}
	q.format(", c AS (SELECT count(*) AS n%s FROM d)", distinct)
	q.missing("pg_catalog.generate_series(1::bigint, "+all+") g(o)", short+" <> "+all, "d.o = g.o")
}

// missing writes the answer of counts from c and d: g lists the ordinals, same
// joins d to it; when tells whether any can be missing.
func (q *query) missing(g, when, same string) {
	q.format(`
SELECT c.n, m.n, m.list FROM c, LATERAL (
  SELECT count(*) AS n, pg_catalog.array_to_string((pg_catalog.array_agg(g.o ORDER BY g.o))[1:%d], ',') AS list
  FROM %s
  WHERE %s AND NOT EXISTS (SELECT FROM d WHERE %s)) m`, apply.MaxMissing, g, when, same)
}

// returning writes the columns that a delete answers with.
func (q *query) returning(t *catalog.Table, ordinal string, fetch []int) {
	q.WriteString(" RETURNING " + ordinal)
	for _, c := range fetch {
		q.WriteString(", t." + pgside.Column(t, c))
	}
}

func (q *query) deleteByKey(op *apply.DeleteOp, fetched bool) {
	body := func() {
		q.WriteString("DELETE FROM " + pgside.Only(op.Table) + " AS t USING ")
		q.unnest(namedSet{"k", op.Keys.Vals}, namedSet{"g", op.Differ.Vals})
		q.WriteString(" WHERE ")
		q.keysMatch(op.Table, op.Keys)
		if len(op.Differ.Cols) > 0 {
			q.WriteString(" AND NOT (")
			q.allSame(op.Table, op.Differ, "g")
			q.WriteString(")")
		}
		q.returning(op.Table, "v.o", op.Fetch)
	}
	if fetched {
		body()
		return
	}
	if !q.deleteByList(op) {
		q.counts(op.N, pgside.UniqueKeys(op.Table, op.Keys.Cols), op.Partial, body)
	}
}

// deleteByList deletes many rows by the list of their keys, where one column with
// a unique index is the key, which takes a third less than a join with them. It is
// false, and nothing is written, where that does not fit.
//
// The list comes by a subquery: the planner, which knows its length otherwise,
// would rather read a large table whole (keysMatch). The statement is planned by the
// table's present size, never prepared. A partitioned table is joined: the list would
// be looked up in each partition.
func (q *query) deleteByList(op *apply.DeleteOp) bool {
	t := op.Table
	if op.N <= preparedRows || t.Kind != catalog.Heap || len(op.Keys.Cols) != 1 || len(op.Differ.Cols) > 0 ||
		!pgside.UniqueKeys(t, op.Keys.Cols) {
		return false
	}
	c := op.Keys.Cols[0]
	col := &t.Columns[c]
	if b := col.Type.Base(); b == nil || b.Kind == router.ArrayType {
		return false
	}
	key, equals := pgside.Operand(t, c, "t"), pgside.Equals(col)
	keys := q.param(op.Keys.Vals[0])
	q.listed = true
	q.format("WITH d AS (DELETE FROM %s AS t WHERE %s %s ANY ((SELECT %s)::%s[]) RETURNING %s AS k)",
		pgside.Only(t), key, equals, pgside.CastList(t, c, keys), col.CastType, key)
	if op.Partial {
		q.WriteString(" SELECT count(*) FROM d")
		return true
	}
	q.WriteString(", c AS (SELECT count(*) AS n FROM d)")
	q.missing("unnest("+keys+") WITH ORDINALITY AS g(k, o)", "c.n <> "+q.number(op.N),
		"d.k "+equals+" "+pgside.Cast(t, c, "g.k"))
	return true
}

func (q *query) updateByKey(op *apply.UpdateOp) {
	t := op.Table
	unique := pgside.UniqueKeys(t, op.Keys.Cols)
	where := func() {
		q.WriteString(" WHERE ")
		q.keysMatch(t, op.Keys)
		if len(op.Same.Cols) > 0 {
			q.WriteString(" AND ")
			q.allSame(t, op.Same, "g")
		}
	}
	q.counts(op.N, unique, op.Partial, func() {
		if len(op.Set.Cols) == 0 { // nothing to change; the row has to be there all the same
			q.WriteString("SELECT v.o FROM " + pgside.Only(t) + " AS t, ")
			q.unnest(namedSet{"k", op.Keys.Vals}, namedSet{"g", op.Same.Vals})
			where()
			return
		}
		q.WriteString("UPDATE " + pgside.Only(t) + " AS t SET ")
		for i, c := range op.Set.Cols {
			if i > 0 {
				q.WriteString(", ")
			}
			q.WriteString(pgside.Column(t, c) + " = " + pgside.Cast(t, c, "v.s"+strconv.Itoa(i)))
		}
		q.WriteString(" FROM ")
		q.unnest(namedSet{"k", op.Keys.Vals}, namedSet{"s", op.Set.Vals}, namedSet{"g", op.Same.Vals})
		where()
		q.WriteString(" RETURNING v.o")
	})
}

const (
	// wideColumns is from how many columns on a row is compared as one text: planning a
	// join takes time that grows with the cube of the number of its conditions.
	wideColumns = 64
	// maxAnchors is how many columns are compared by themselves even so, for an index.
	maxAnchors = 4
	// maxArguments is how many arguments a function takes.
	maxArguments = 100
)

// concatenated joins texts that are told apart (pgside.Marked), by as many calls as it
// takes.
func concatenated(texts []string) string {
	for len(texts) > 1 {
		var calls []string
		for some := range slices.Chunk(texts, maxArguments) {
			calls = append(calls, "pg_catalog.concat("+strings.Join(some, ", ")+")")
		}
		texts = calls
	}
	return texts[0]
}

// deleteImages finds rows by every column. Columns that are exact and not NULL
// in any image compare by =, so that an index on one of them can serve; the
// others by what they print, with NULL as empty text that is told apart, which a
// hash join can take, too.
func (q *query) deleteImages(op *apply.ImageOp, fetched bool) {
	t := op.Table
	q.hashed = len(t.Columns) > wideColumns
	var counts apply.Vec
	var want int64
	for _, n := range op.Count {
		counts.Append(strconv.AppendInt(nil, n, 10))
		want += n
	}
	q.WriteString("WITH v AS MATERIALIZED (SELECT v.o, v.n0::bigint AS n")
	whole := len(op.Image.Cols) > wideColumns
	var rowText, imageText []string
	var match strings.Builder
	joined := 0
	for i, c := range op.Image.Cols {
		column := &t.Columns[c]
		col, val, key := pgside.Operand(t, c, "t"), pgside.Cast(t, c, "v.k"+strconv.Itoa(i)), "v.k"+strconv.Itoa(i)
		exact := pgside.Exact(column)
		plain := exact && !op.Image.Vals[i].HasNull()
		if whole {
			rowText = append(rowText, pgside.Marked(column, col))
			imageText = append(imageText, pgside.Marked(column, pgside.Stored(t, c, val)))
			if !plain || joined == maxAnchors {
				continue
			}
			joined++
		}
		if !exact {
			val = pgside.Printed(column, pgside.Stored(t, c, val))
		}
		q.WriteString(", " + val + " AS k" + strconv.Itoa(i))
		match.WriteString(" AND ")
		if plain {
			match.WriteString(col + " = " + key)
			continue
		}
		// What is printed is NULL where the value is; a composite value IS NULL when its
		// fields are.
		col = pgside.Printed(column, col)
		if exact {
			key = pgside.Printed(column, key)
		}
		match.WriteString("coalesce(" + col + ", '') = coalesce(" + key + ", '') AND (" + col + " IS NULL) = (" + key + " IS NULL)")
	}
	if whole {
		q.WriteString(", " + concatenated(imageText) + " AS whole")
		match.WriteString(" AND " + concatenated(rowText) + " = v.whole")
	}
	q.WriteString(" FROM ")
	q.unnest(namedSet{"k", op.Image.Vals}, namedSet{"n", []*apply.Vec{&counts}})
	q.WriteString("), m AS (SELECT t.tableoid, t.ctid, v.o, v.n, row_number() OVER (PARTITION BY v.o) AS r FROM " + pgside.Only(t) + " AS t JOIN v ON true" + match.String() + ")")
	body := func() {
		q.WriteString("DELETE FROM " + pgside.Only(t) + " AS t USING m WHERE t.ctid = m.ctid AND t.tableoid = m.tableoid AND m.r <= m.n")
		q.returning(t, "m.o", op.Fetch)
	}
	if fetched {
		q.WriteString(" ")
		body()
		return
	}
	q.WriteString(", d AS (")
	body()
	q.WriteString(")")
	if op.Partial {
		q.WriteString(" SELECT count(*) FROM d")
		return
	}
	q.format(`, c AS (SELECT count(*) AS n FROM d)
SELECT c.n, %d - c.n, m.list FROM c, LATERAL (
  SELECT pg_catalog.array_to_string((pg_catalog.array_agg(v.o ORDER BY v.o))[1:%d], ',') AS list FROM v
  WHERE c.n <> %d AND v.n > (SELECT count(*) FROM d WHERE d.o = v.o)) m`, want, apply.MaxMissing, want)
}

// insertNew inserts what violates no unique or exclusion constraint.
func (q *query) insertNew(op *apply.CopyOp, vals []*apply.Vec) {
	t := op.Table
	var names, exprs []string
	for i, c := range op.Cols {
		names = append(names, pgside.Column(t, c))
		exprs = append(exprs, pgside.Cast(t, c, "v.s"+strconv.Itoa(i)))
	}
	q.WriteString("INSERT INTO " + pgside.TableName(t) + " (" + strings.Join(names, ", ") + ") OVERRIDING SYSTEM VALUE SELECT " + strings.Join(exprs, ", ") + " FROM ")
	q.unnest(namedSet{"s", vals})
	q.WriteString(" ORDER BY v.o ON CONFLICT DO NOTHING")
}
