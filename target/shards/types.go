package shards

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"cbrepl/router"
)

// foundType is a type of a shard's catalogue.
type foundType struct {
	typ *router.Type
	// cast is what text is cast to: qualified, quoted, domains looked through.
	cast string
	// domain is set when the type is a domain; base is its base type as
	// format_type prints it, modifier included.
	domain bool
	base   string
	// notNull and hasDefault are what a domain adds to a column.
	notNull, hasDefault bool
}

// baseName returns the printed type with the domain looked through.
func (f *foundType) baseName(printed string) string {
	if f.domain {
		return f.base
	}
	return printed
}

// typeRow is a row of pg_type with what it refers to.
type typeRow struct {
	name, qualified, kind    string
	elem, base, rangeSubtype uint32
	multirangeOf             uint32
	baseName, extension      string
	notNull, hasDefault      bool
	fields                   []uint32
}

// readTypes describes the column types found by readColumns (column 3 of rows),
// by OID, with everything they are made of.
func readTypes(ctx context.Context, n *node, rows [][][]byte) (map[uint32]*foundType, error) {
	found := map[uint32]*typeRow{}
	want := map[uint32]bool{}
	for _, r := range rows {
		want[uint32(atou(r[3]))] = true
	}
	var roots []uint32
	for oid := range want {
		roots = append(roots, oid)
	}
	for len(want) > 0 {
		got, err := readTypeRows(ctx, n, want)
		if err != nil {
			return nil, err
		}
		want = map[uint32]bool{}
		for oid, t := range got {
			found[oid] = t
		}
		for _, t := range got {
			for _, ref := range append([]uint32{t.elem, t.base, t.rangeSubtype, t.multirangeOf}, t.fields...) {
				if ref != 0 && found[ref] == nil {
					want[ref] = true
				}
			}
		}
	}
	out := map[uint32]*foundType{}
	for _, oid := range roots {
		out[oid] = describe(oid, found)
	}
	return out, nil
}

func readTypeRows(ctx context.Context, n *node, want map[uint32]bool) (map[uint32]*typeRow, error) {
	oids := newArray(len(want))
	for oid := range want {
		oids.uint(uint64(oid))
	}
	rows, err := n.query(ctx, `
		SELECT t.oid, format_type(t.oid, NULL), quote_ident(s.nspname) || '.' || quote_ident(t.typname), t.typtype,
		       CASE WHEN t.typcategory = 'A' AND t.typsubscript = 'array_subscript_handler'::regproc THEN t.typelem ELSE 0 END,
		       t.typbasetype, coalesce(r.rngsubtype, 0), coalesce(m.rngtypid, 0),
		       format_type(t.typbasetype, t.typtypmod), coalesce(e.extname, ''), t.typnotnull, t.typdefault IS NOT NULL,
		       array_to_string(ARRAY(SELECT a.atttypid FROM pg_attribute a
		                             WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
		                             ORDER BY a.attnum), ',')
		FROM pg_type t
		JOIN pg_namespace s ON s.oid = t.typnamespace
		LEFT JOIN pg_range r ON r.rngtypid = t.oid
		LEFT JOIN pg_range m ON m.rngmultitypid = t.oid
		LEFT JOIN pg_depend d ON d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'
		LEFT JOIN pg_extension e ON e.oid = d.refobjid
		WHERE t.oid = ANY ($1::oid[])`, string(oids.end()))
	if err != nil {
		return nil, fail(opCatalogue, n.String(), err)
	}
	out := map[uint32]*typeRow{}
	for _, r := range rows {
		t := &typeRow{
			name: string(r[1]), qualified: string(r[2]), kind: string(r[3]),
			elem: uint32(atou(r[4])), base: uint32(atou(r[5])), rangeSubtype: uint32(atou(r[6])), multirangeOf: uint32(atou(r[7])),
			baseName: string(r[8]), extension: string(r[9]), notNull: string(r[10]) == "t", hasDefault: string(r[11]) == "t",
		}
		for _, f := range splitList(r[12]) {
			t.fields = append(t.fields, uint32(atou([]byte(f))))
		}
		out[uint32(atou(r[0]))] = t
	}
	return out, nil
}

// describe builds the description of a type. Domains over domains add up.
func describe(oid uint32, found map[uint32]*typeRow) *foundType {
	out := &foundType{typ: routerType(oid, found, 0)}
	t := found[oid]
	for t != nil && t.kind == "d" {
		out.domain, out.base = true, t.baseName // the innermost stays
		out.notNull = out.notNull || t.notNull
		out.hasDefault = out.hasDefault || t.hasDefault
		t = found[t.base]
	}
	if t != nil {
		out.cast = t.qualified
	}
	return out
}

// maxTypeDepth bounds nesting: a composite type cannot hold itself, but an array
// of it can.
const maxTypeDepth = 32

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
		out.Kind, out.Elem = router.DomainType, sub(t.base)
	case t.kind == "e":
		out.Kind = router.EnumType
	case t.kind == "r":
		out.Kind, out.Elem = router.RangeType, sub(t.rangeSubtype)
	case t.kind == "m":
		out.Kind, out.Elem = router.MultirangeType, sub(t.multirangeOf)
	case t.kind == "c":
		out.Kind = router.CompositeType
		for _, f := range t.fields {
			out.Fields = append(out.Fields, sub(f))
		}
	case t.elem != 0:
		out.Kind, out.Elem = router.ArrayType, sub(t.elem)
	}
	return out
}

// printedType is a type as format_type prints it, taken apart.
type printedType struct {
	base  string // without modifier and array brackets
	mods  []int
	array bool
}

func parsePrinted(s string) printedType {
	var p printedType
	if rest, ok := strings.CutSuffix(s, "[]"); ok {
		s, p.array = rest, true
	}
	// A quoted name has no modifier that is known here.
	if strings.Contains(s, `"`) {
		p.base = s
		return p
	}
	before, rest, ok := strings.Cut(s, "(")
	if !ok {
		p.base = s
		return p
	}
	list, after, ok := strings.Cut(rest, ")")
	if !ok {
		p.base = s
		return p
	}
	for _, f := range strings.Split(list, ",") {
		mod, err := strconv.Atoi(strings.TrimSpace(f))
		if err != nil { // an extension's own kind: compared as it stands
			p.base, p.mods = s, nil
			return p
		}
		p.mods = append(p.mods, mod)
	}
	p.base = before + after
	return p
}

// modAt returns the i-th modifier, or def.
func (p printedType) modAt(i, def int) int {
	if i < len(p.mods) {
		return p.mods[i]
	}
	return def
}

const (
	unbounded        = 1 << 30
	defaultPrecision = 6 // of times and intervals
)

// intDigits are the digits that integers can have.
var intDigits = map[string]int{"smallint": 5, "integer": 10, "bigint": 19}

// widening lists, per source type, the other types that hold each of its values
// and give the same text back as far as it says the same value.
var widening = map[string][]string{
	"smallint": {"integer", "bigint", "real", "double precision"},
	"integer":  {"bigint", "double precision"},
	"real":     {"double precision"},
}

// roundTrips reports whether every value of the source type, as text, is taken by
// the target type and comes back as the same value; else why not. Both are as
// format_type prints them, the target's with domains looked through.
func roundTrips(src, dst string) (bool, string) {
	s, d := parsePrinted(src), parsePrinted(dst)
	if s.array != d.array {
		return anyText(d), "one is an array, the other is not"
	}
	if bareName(s.base) == bareName(d.base) {
		return sameBase(s, d)
	}
	switch {
	case anyText(d) && !s.array:
		return true, ""
	case isText(s.base) && (d.base == "character varying" || d.base == "text"):
		return s.modAt(0, unbounded) <= d.modAt(0, unbounded), "longer values do not fit"
	case d.base == "interval" && strings.HasPrefix(s.base, "interval "):
		return d.modAt(0, defaultPrecision) >= s.modAt(0, defaultPrecision), "fractions of a second would be rounded"
	case d.base == "numeric" && intDigits[s.base] > 0:
		if len(d.mods) == 0 {
			return true, ""
		}
		return d.modAt(1, 0) >= 0 && d.mods[0]-d.modAt(1, 0) >= intDigits[s.base], "larger values do not fit"
	}
	return slices.Contains(widening[s.base], d.base), "values would be changed or refused"
}

func isText(base string) bool {
	switch base {
	case "text", "character varying", "character", "bpchar", "name":
		return true
	}
	return false
}

// anyText reports whether the type stores any text as it is.
func anyText(d printedType) bool {
	return !d.array && len(d.mods) == 0 && (d.base == "text" || d.base == "character varying")
}

// bareName drops the schema of a qualified name: a renamed schema carries its
// types along.
func bareName(s string) string {
	if body, ok := strings.CutSuffix(s, `"`); ok {
		// The last quoted identifier, with doubled quotes inside.
		for i := len(body) - 1; i >= 0; i-- {
			if body[i] != '"' {
				continue
			}
			if i > 0 && body[i-1] == '"' {
				i--
				continue
			}
			return s[i:]
		}
		return s
	}
	return s[strings.LastIndexByte(s, '.')+1:]
}

// sameBase compares modifiers of two types of one name.
func sameBase(s, d printedType) (bool, string) {
	if slices.Equal(s.mods, d.mods) {
		return true, ""
	}
	switch base := d.base; {
	case base == "character varying" || base == "bit varying" || base == "character":
		return s.modAt(0, unbounded) <= d.modAt(0, unbounded), "longer values do not fit"
	case base == "numeric":
		if len(d.mods) == 0 {
			return true, ""
		}
		if len(s.mods) == 0 {
			return false, "values would be rounded or refused"
		}
		ss, ds := s.modAt(1, 0), d.modAt(1, 0)
		return ds >= ss && d.mods[0]-ds >= s.mods[0]-ss, "values would be rounded or refused"
	case strings.HasPrefix(base, "time") || strings.HasPrefix(base, "interval"):
		return d.modAt(0, defaultPrecision) >= s.modAt(0, defaultPrecision), "fractions of a second would be rounded"
	}
	return len(d.mods) == 0 && d.base != "bit", "their modifiers differ"
}
