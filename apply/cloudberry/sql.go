package cloudberry

import (
	"strconv"
	"strings"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
)

// Parameter types and formats.
const (
	textArrayOID = 1009
	binaryFormat = 1
	textFormat   = 0
)

// query is a statement under construction with its parameters.
type query struct {
	strings.Builder
	params  [][]byte
	oids    []uint32
	formats []int16
}

// vec adds a column of values as a text[] parameter and returns its name.
func (q *query) vec(v *apply.Vec) string {
	return q.param(v.TextArray(), textArrayOID, binaryFormat)
}

// value adds one value in text form, of the type that its use gives it.
func (q *query) value(v []byte) string { return q.param(v, 0, textFormat) }

func (q *query) param(v []byte, oid uint32, format int16) string {
	q.params = append(q.params, v)
	q.oids = append(q.oids, oid)
	q.formats = append(q.formats, format)
	return "$" + strconv.Itoa(len(q.params))
}

// namedSet is a Set of an operation and the letter that its columns have in a
// rowset.
type namedSet struct {
	name string
	set  apply.Set
}

// rowset is the values of an operation as SQL sees them.
type rowset struct {
	// from is what goes into FROM, "" when the rowset is one row of parameters.
	from string
	// ord is the expression of the row's 1-based ordinal.
	ord string
	// params are the names of the parameters of a single row, by set and column.
	params map[string]string
	// typed is set when the columns have the target's types, not text.
	typed bool
}

// ref is column i of the set called name.
func (r *rowset) ref(name string, i int) string {
	col := name + strconv.Itoa(i)
	if r.from == "" {
		return r.params[col]
	}
	return "v." + col
}

// cast is column i of the set called name as a value of column c of t.
func (r *rowset) cast(t *catalog.Table, c int, name string, i int) string {
	if r.typed {
		return r.ref(name, i)
	}
	return pgside.Cast(t, c, r.ref(name, i))
}

// single is one row of parameters: a statement without a join, which the
// coordinator sends to the one segment that the key names.
func (q *query) single(sets ...namedSet) *rowset {
	r := &rowset{ord: "1", params: map[string]string{}}
	for _, s := range sets {
		for i, v := range s.set.Vals {
			v.All(func(_ int, b []byte) { r.params[s.name+strconv.Itoa(i)] = q.value(b) })
		}
	}
	return r
}

// unnest is a function call that every segment evaluates by itself: rows that are
// everywhere, joined without motion.
func (q *query) unnest(sets ...namedSet) *rowset {
	var args, names []string
	for _, s := range sets {
		for i, v := range s.set.Vals {
			args = append(args, q.vec(v))
			names = append(names, s.name+strconv.Itoa(i))
		}
	}
	return &rowset{from: "unnest(" + strings.Join(args, ", ") + ") WITH ORDINALITY AS v(" + strings.Join(names, ", ") + ", o)", ord: "v.o"}
}

// keysMatch writes the comparison of key columns, in the operators that their
// index uses.
func (q *query) keysMatch(t *catalog.Table, keys apply.Set, r *rowset) {
	for i, c := range keys.Cols {
		if i > 0 {
			q.WriteString(" AND ")
		}
		q.WriteString(pgside.Operand(t, c, "t") + " " + pgside.Equals(&t.Columns[c]) + " " + r.cast(t, c, "k", i))
	}
}

// allSame is a condition: the row does not differ from a set in any column.
func (q *query) allSame(t *catalog.Table, s apply.Set, r *rowset) {
	for i, c := range s.Cols {
		if i > 0 {
			q.WriteString(" AND ")
		}
		q.WriteString(pgside.Same(t, c, "t", r.cast(t, c, "g", i)))
	}
}

// where writes the condition of an operation by key: same and differ are its
// restrictions, if any.
func (q *query) where(t *catalog.Table, keys, same, differ apply.Set, r *rowset) {
	q.WriteString(" WHERE ")
	q.keysMatch(t, keys, r)
	if len(same.Cols) > 0 {
		q.WriteString(" AND ")
		q.allSame(t, same, r)
	}
	if len(differ.Cols) > 0 {
		q.WriteString(" AND NOT (")
		q.allSame(t, differ, r)
		q.WriteString(")")
	}
}

// columns writes a list of columns of t, each behind a comma.
func (q *query) columns(t *catalog.Table, cols []int) {
	for _, c := range cols {
		q.WriteString(", t." + pgside.Column(t, c))
	}
}

// anyOf is a condition that an index can serve on any storage: column c has one
// of the values.
func (q *query) anyOf(t *catalog.Table, c int, v *apply.Vec) string {
	return pgside.Operand(t, c, "t") + " " + pgside.Equals(&t.Columns[c]) + " ANY (" + pgside.CastList(t, c, q.vec(v)) + ")"
}
