package pgside

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/router"
)

// typeRow is a row of pg_type with what it refers to.
type typeRow struct {
	// name is as format_type prints it, qualified schema.name quoted.
	name, qualified string
	// kind is typtype.
	kind string
	// elem is the element of a true array, else 0.
	elem, base, rangeSubtype, multirangeOf uint32
	// baseName is a domain's base type with its modifier.
	baseName, extension string
	notNull, hasDefault bool
	fields              []uint32
	attributes          []router.Attribute
	// relation is what holds a composite type's attributes, else 0.
	relation uint32
	// castVia and printVia are as in catalog.Column; noVia when no way is known to
	// call the type's input or output function.
	castVia, printVia string
}

// refs lists the types that t is made of; 0 stands for none.
func (t *typeRow) refs() []uint32 {
	return append([]uint32{t.elem, t.base, t.rangeSubtype, t.multirangeOf}, t.fields...)
}

// noVia stands for no string type at all.
const noVia = "none"

// What viaSQL may choose besides text. A value that is printed through bpchar would
// lose blanks.
const (
	printVia = "('varchar', 1043::oid, 2)"
	castVia  = printVia + ", ('bpchar', 1042::oid, 3)"
)

// viaSQL chooses a string type between which and t there is no cast, or one that
// does what input and output functions do: it only relabels, is declared WITH INOUT,
// or is built in. The built-in casts to regclass are not its input function.
func viaSQL(from, to, others string) string {
	return `coalesce((
		SELECT CASE v.name WHEN 'text' THEN '' ELSE 'pg_catalog.' || v.name END
		FROM (VALUES ('text', 25::oid, 1), ` + others + `) v(name, via, n)
		LEFT JOIN pg_cast k ON k.castsource = ` + from + ` AND k.casttarget = ` + to + `
		WHERE k.oid IS NULL OR k.castmethod IN ('b', 'i') OR k.oid < 16384 AND k.casttarget <> 2205
		ORDER BY k.oid IS NOT NULL AND k.castmethod <> 'i', v.n LIMIT 1), '` + noVia + `')`
}

// typesSQL reads typeRows by an array of OIDs. Servers before PostgreSQL 14 have
// no multiranges.
func typesSQL(multiranges bool) string {
	of, join := "0", ""
	if multiranges {
		of, join = "coalesce(m.rngtypid, 0)", "LEFT JOIN pg_range m ON m.rngmultitypid = t.oid"
	}
	return `
		SELECT t.oid, format_type(t.oid, NULL), quote_ident(s.nspname) || '.' || quote_ident(t.typname), t.typtype,
		       CASE WHEN t.typlen = -1 AND t.typoutput = 'array_out'::regproc THEN t.typelem ELSE 0 END,
		       t.typbasetype, coalesce(r.rngsubtype, 0), ` + of + `,
		       format_type(t.typbasetype, t.typtypmod), coalesce(e.extname, ''), t.typnotnull, t.typdefault IS NOT NULL,
		       array_to_string(ARRAY(SELECT a.atttypid FROM pg_attribute a
		                             WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
		                             ORDER BY a.attnum), ','),
		       (SELECT coalesce(json_agg(json_build_object('Name', a.attname, 'TypeName', format_type(a.atttypid, a.atttypmod)) ORDER BY a.attnum), 'null')
		        FROM pg_attribute a WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
		       CASE t.typtype WHEN 'c' THEN t.typrelid ELSE 0 END,
		       ` + viaSQL("v.via", "t.oid", castVia) + `, ` + viaSQL("t.oid", "v.via", printVia) + `
		FROM pg_type t
		JOIN pg_namespace s ON s.oid = t.typnamespace
		LEFT JOIN pg_range r ON r.rngtypid = t.oid ` + join + `
		LEFT JOIN pg_depend d ON d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'
		LEFT JOIN pg_extension e ON e.oid = d.refobjid
		WHERE t.oid = ANY ($1::oid[])`
}

func parseTypeRow(r [][]byte) (*typeRow, error) {
	t := &typeRow{
		name: string(r[1]), qualified: string(r[2]), kind: string(r[3]),
		elem: OID(r[4]), base: OID(r[5]), rangeSubtype: OID(r[6]), multirangeOf: OID(r[7]),
		baseName: string(r[8]), extension: string(r[9]), notNull: string(r[10]) == "t", hasDefault: string(r[11]) == "t",
	}
	for _, f := range SplitList(r[12]) {
		t.fields = append(t.fields, OID([]byte(f)))
	}
	t.relation, t.castVia, t.printVia = OID(r[14]), string(r[15]), string(r[16])
	if err := json.Unmarshal(r[13], &t.attributes); err != nil {
		return nil, fmt.Errorf("attributes of type %s: %w", t.name, err)
	}
	return t, nil
}

// ReadTypes describes types, by OID, with everything they are made of. query runs
// a statement on the server called where, with an array of OIDs as its parameter.
func ReadTypes(op, where string, types []uint32, multiranges bool, query func(sql, oids string) ([][][]byte, error)) (map[uint32]*ColumnType, error) {
	sql := typesSQL(multiranges)
	found := map[uint32]*typeRow{}
	want := map[uint32]bool{}
	for _, oid := range types {
		want[oid] = true
	}
	for len(want) > 0 {
		list := make([]string, 0, len(want))
		for oid := range want {
			list = append(list, strconv.FormatUint(uint64(oid), 10))
		}
		rows, err := query(sql, "{"+strings.Join(list, ",")+"}")
		if err != nil {
			return nil, err
		}
		got := make([]*typeRow, 0, len(rows))
		for _, r := range rows {
			t, err := parseTypeRow(r)
			if err != nil {
				return nil, err
			}
			found[OID(r[0])] = t
			got = append(got, t)
		}
		for oid := range want {
			if found[oid] == nil {
				return nil, &dtx.Error{
					Op: op, Msg: fmt.Sprintf("type %d was dropped on the %s meanwhile", oid, where),
					Hint: "It is tried again", Class: dtx.ClassRetry,
				}
			}
		}
		clear(want)
		for _, t := range got {
			for _, ref := range t.refs() {
				if ref != 0 && found[ref] == nil {
					want[ref] = true
				}
			}
		}
	}
	out := map[uint32]*ColumnType{}
	for _, oid := range types {
		out[oid] = describe(oid, found)
	}
	return out, nil
}

// ColumnType is a type as the columns that have it need it.
type ColumnType struct {
	Type *router.Type
	// Cast is what text is cast to: qualified, quoted, domains looked through.
	// CastVia and PrintVia are as in catalog.Column.
	Cast, CastVia, PrintVia string
	// domain is set when the type is a domain; base is its base type as
	// format_type prints it, modifier included.
	domain bool
	base   string
	// NotNull and HasDefault are what a domain adds to a column.
	NotNull, HasDefault bool
	// Relations are those that hold the attributes of the composite types in it.
	Relations []uint32
}

// describe builds the description of a type out of all rows that it needs.
// Domains over domains add up.
func describe(oid uint32, found map[uint32]*typeRow) *ColumnType {
	out := &ColumnType{Type: routerType(oid, found, 0), Relations: relationsOf(oid, found, 0)}
	t := found[oid]
	for t != nil && t.kind == "d" {
		out.domain, out.base = true, t.baseName // the innermost stays
		out.NotNull = out.NotNull || t.notNull
		out.HasDefault = out.HasDefault || t.hasDefault
		t = found[t.base]
	}
	if t != nil {
		out.Cast, out.CastVia, out.PrintVia = t.qualified, t.castVia, t.printVia
	}
	return out
}

// maxTypeDepth bounds nesting: a composite type cannot hold itself, but an array
// of it can.
const maxTypeDepth = 32

// relationsOf lists the relations of the composite types that a type is made of.
func relationsOf(oid uint32, found map[uint32]*typeRow, depth int) []uint32 {
	t := found[oid]
	if t == nil || depth > maxTypeDepth {
		return nil
	}
	var out []uint32
	if t.relation != 0 {
		out = append(out, t.relation)
	}
	for _, ref := range t.refs() {
		out = append(out, relationsOf(ref, found, depth+1)...)
	}
	return out
}

// routerType converts a type and what it is made of.
func routerType(oid uint32, found map[uint32]*typeRow, depth int) *router.Type {
	t := found[oid]
	if t == nil || depth > maxTypeDepth {
		return nil
	}
	out := &router.Type{OID: oid, Name: t.name, Kind: router.BaseType, Extension: t.extension}
	sub := func(oid uint32) *router.Type { return routerType(oid, found, depth+1) }
	switch {
	case t.kind == "d":
		out.Kind, out.Elem, out.ElemName = router.DomainType, sub(t.base), t.baseName
	case t.kind == "e":
		out.Kind = router.EnumType
	case t.kind == "r":
		out.Kind, out.Elem = router.RangeType, sub(t.rangeSubtype)
	case t.kind == "m":
		out.Kind, out.Elem = router.MultirangeType, sub(t.multirangeOf)
	case t.kind == "c":
		out.Kind, out.Attributes = router.CompositeType, t.attributes
		for _, f := range t.fields {
			out.Fields = append(out.Fields, sub(f))
		}
	case t.elem != 0:
		out.Kind, out.Elem = router.ArrayType, sub(t.elem)
	}
	return out
}

// ColumnOf makes a column of what the catalogue says of it, behind two columns of
// r that tell which it is: attname, atttypid, attnotnull, atthasdef, attidentity,
// attgenerated, its type as format_type prints it, and whether its collation is
// nondeterministic.
func ColumnOf(r [][]byte, types map[uint32]*ColumnType) catalog.Column {
	ty := types[OID(r[3])]
	c := catalog.Column{
		Name: string(r[2]), Type: ty.Type, CastType: ty.Cast, CastVia: ty.CastVia, PrintVia: ty.PrintVia,
		NotNull:          string(r[4]) == "t" || ty.NotNull,
		Generated:        string(r[7]) != "",
		IdentityAlways:   string(r[6]) == "a",
		Nondeterministic: string(r[9]) == "t",
	}
	c.HasDefault = !c.Generated && (string(r[5]) == "t" || string(r[6]) != "" || ty.HasDefault)
	c.TypeName, c.BaseName = string(r[8]), string(r[8])
	if ty.domain {
		c.BaseName = ty.base
	}
	c.CompareType = catalog.CompareType(c.BaseName)
	c.TrailingBlanks = c.BaseName == "bpchar"
	return c
}
