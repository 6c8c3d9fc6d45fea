package pgside

import (
	"slices"
	"strings"

	"cbrepl/catalog"
	"cbrepl/router"
)

// Column names a column of t for SQL.
func Column(t *catalog.Table, c int) string { return QuoteIdent(t.Columns[c].Name) }

// Operand names a row's column (row names the table) where it is compared with a
// cast value. A domain over an enum has no operators of its own, and the enum's,
// which are polymorphic, do not take it.
func Operand(t *catalog.Table, c int, row string) string {
	col := &t.Columns[c]
	out := row + "." + Column(t, c)
	if col.Type != nil && col.Type.Kind == router.DomainType {
		if b := col.Type.Base(); b != nil && b.Kind == router.EnumType {
			out = "(" + Cast(t, c, out) + ")"
		}
	}
	return out
}

// TableName names a table for SQL.
func TableName(t *catalog.Table) string { return QuoteIdent(t.Schema) + "." + QuoteIdent(t.Name) }

// Only names a table without those that inherit from it. The partitions of a
// partitioned table are the table itself.
func Only(t *catalog.Table) string {
	if t.Kind == catalog.PartitionRoot {
		return TableName(t)
	}
	return "ONLY " + TableName(t)
}

// Cast is a text value as the column's type. Casting is per value: that takes any
// type, arrays of arrays included, exactly as its input function does.
func Cast(t *catalog.Table, c int, v string) string {
	col := &t.Columns[c]
	return v + via(col.CastVia) + "::" + col.CastType
}

// CastList is a text[] value as an array of the column's type.
func CastList(t *catalog.Table, c int, v string) string {
	col := &t.Columns[c]
	if col.CastVia != "" {
		v += "::" + col.CastVia + "[]"
	}
	return v + "::" + col.CastType + "[]"
}

func via(typ string) string {
	if typ == "" {
		return ""
	}
	return "::" + typ
}

// Stored is a value, cast to the column's type, as it prints once the column holds
// it.
func Stored(t *catalog.Table, c int, v string) string { return v + via(t.Columns[c].CompareType) }

// Equals is the equality operator of a column's type. The search path holds
// pg_catalog only; a type of another schema has its operator there, too.
func Equals(c *catalog.Column) string {
	schema, _, _ := strings.Cut(strings.ReplaceAll(c.CastType, `"`, ""), ".")
	if schema == "pg_catalog" || c.Type.Base() == nil || c.Type.Base().Kind != router.BaseType {
		return "="
	}
	return "OPERATOR(" + c.CastType[:strings.LastIndex(c.CastType, ".")] + ".=)"
}

// exactTypes are the types of pg_catalog whose values are equal exactly when
// they print alike. Others are equal too early (numeric 1.0 and 1.00, box by
// its area) or have no equality (json, xml, point), and are compared as text.
var exactTypes = map[uint32]bool{
	16: true, 17: true, 18: true, 19: true, 20: true, 21: true, 23: true, 25: true, 26: true, 28: true, 29: true,
	650: true, 774: true, 790: true, 829: true, 869: true, 1042: true, 1043: true, 1082: true, 1083: true,
	1114: true, 1184: true, 1266: true, 1560: true, 1562: true, 2950: true, 3220: true, 5069: true,
}

// hashedTypes are the types of pg_catalog, besides the exact ones, whose equality
// can be hashed and holds for values that print alike.
var hashedTypes = map[uint32]bool{700: true, 701: true, 1042: true, 1186: true, 1700: true, 3802: true}

// Exact reports whether the values of a column are equal exactly when they print
// alike.
func Exact(c *catalog.Column) bool {
	t := c.Type.Base()
	if t == nil || c.Nondeterministic || c.TrailingBlanks {
		return false
	}
	return t.Kind == router.EnumType || t.Kind == router.BaseType && exactTypes[t.OID]
}

// Hashed reports whether values of a column that print alike are equal by an
// operator that a hash join can use; xid and cid have none before PostgreSQL 14.
func Hashed(c *catalog.Column) bool {
	t := c.Type.Base()
	if t == nil {
		return false
	}
	if t.Kind == router.BaseType && (t.OID == 28 || t.OID == 29 || t.OID == 790) {
		return false
	}
	return Exact(c) || t.Kind == router.BaseType && hashedTypes[t.OID]
}

// Printed is an expression that is equal for two values of a column exactly when
// they print alike: their text, byte by byte, or their binary form. Floating-point
// values are taken in that: how many digits they print is a setting that worker
// processes of a cluster may not share. So is bpchar without a length, whose text
// loses blanks; with one they say nothing.
func Printed(c *catalog.Column, expr string) string {
	if c.TrailingBlanks {
		return "pg_catalog.bpcharsend(" + expr + ")"
	}
	if f := sendFunction(c.Type); f != "" {
		return "pg_catalog." + f + "(" + expr + ")"
	}
	return AsText(c, expr)
}

// AsText prints a column or value through the type's output function.
func AsText(c *catalog.Column, expr string) string {
	return "(" + expr + ")" + via(c.PrintVia) + `::pg_catalog.text COLLATE "C"`
}

// Marked prints a value so that values put together are told apart, NULL from every
// text.
func Marked(c *catalog.Column, expr string) string {
	text := AsText(c, Printed(c, expr))
	return "coalesce(pg_catalog.length(" + text + ") || ':' || " + text + ", 'n')"
}

// floatSend are the binary output functions of types that are made of
// floating-point numbers.
var floatSend = map[uint32]string{
	700: "float4send", 701: "float8send", 600: "point_send", 601: "lseg_send", 602: "path_send",
	603: "box_send", 604: "poly_send", 628: "line_send", 718: "circle_send",
}

// sendFunction is the binary output function of a type that holds floating-point
// numbers, "" for others.
func sendFunction(t *router.Type) string {
	t = t.Base()
	if !hasFloats(t) {
		return ""
	}
	switch t.Kind {
	case router.ArrayType:
		return "array_send"
	case router.CompositeType:
		return "record_send"
	case router.RangeType:
		return "range_send"
	case router.MultirangeType:
		return "multirange_send"
	}
	return floatSend[t.OID]
}

func hasFloats(t *router.Type) bool {
	if t == nil {
		return false
	}
	if t.Kind == router.CompositeType {
		for _, f := range t.Fields {
			if hasFloats(f) {
				return true
			}
		}
	}
	return t.Kind == router.BaseType && t.Extension == "" && floatSend[t.OID] != "" || hasFloats(t.Elem)
}

// Same is a condition: the row's column (row names the table) prints as the
// value, cast to the column's type, does; NULL as NULL.
func Same(t *catalog.Table, c int, row, v string) string {
	col := Operand(t, c, row)
	if Exact(&t.Columns[c]) {
		return col + " IS NOT DISTINCT FROM " + v
	}
	return Printed(&t.Columns[c], col) + " IS NOT DISTINCT FROM " + Printed(&t.Columns[c], Stored(t, c, v))
}

// UniqueKeys reports whether no two rows can match one key.
func UniqueKeys(t *catalog.Table, cols []int) bool {
	return slices.ContainsFunc(t.Uniques, func(u catalog.Unique) bool { return !u.Deferrable && within(&u, cols) })
}

// IndexedKeys reports whether a unique index finds the row of a key; one of a
// deferrable constraint can find several.
func IndexedKeys(t *catalog.Table, cols []int) bool {
	return slices.ContainsFunc(t.Uniques, func(u catalog.Unique) bool { return within(&u, cols) })
}

// within reports whether a unique index is over some of the columns and nothing
// else.
func within(u *catalog.Unique, cols []int) bool {
	if !u.Plain || u.Exclusion || len(u.Columns) == 0 {
		return false
	}
	for _, c := range u.Columns {
		if !slices.Contains(cols, c) {
			return false
		}
	}
	return true
}
