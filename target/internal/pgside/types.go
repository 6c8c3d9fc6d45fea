package pgside

import "cbrepl/router"

// TypeRow is a row of pg_type with what it refers to. Whoever reads the
// catalogue fills it; which columns exist depends on the server.
type TypeRow struct {
	// Name is as format_type prints it, Qualified schema.name quoted.
	Name, Qualified string
	// Kind is typtype.
	Kind string
	// Elem is the element of a true array, else 0.
	Elem, Base, RangeSubtype, MultirangeOf uint32
	// BaseName is a domain's base type with its modifier.
	BaseName, Extension string
	NotNull, HasDefault bool
	Fields              []uint32
}

// Refs lists the types that t is made of.
func (t *TypeRow) Refs() []uint32 {
	return append([]uint32{t.Elem, t.Base, t.RangeSubtype, t.MultirangeOf}, t.Fields...)
}

// ColumnType is a type as the columns that have it need it.
type ColumnType struct {
	Type *router.Type
	// Cast is what text is cast to: qualified, quoted, domains looked through.
	Cast string
	// domain is set when the type is a domain; base is its base type as
	// format_type prints it, modifier included.
	domain bool
	base   string
	// NotNull and HasDefault are what a domain adds to a column.
	NotNull, HasDefault bool
}

// BaseName returns the printed type of a column with the domain looked through.
func (c *ColumnType) BaseName(printed string) string {
	if c.domain {
		return c.base
	}
	return printed
}

// Describe builds the description of a type out of all rows that it needs.
// Domains over domains add up.
func Describe(oid uint32, found map[uint32]*TypeRow) *ColumnType {
	out := &ColumnType{Type: routerType(oid, found, 0)}
	t := found[oid]
	for t != nil && t.Kind == "d" {
		out.domain, out.base = true, t.BaseName // the innermost stays
		out.NotNull = out.NotNull || t.NotNull
		out.HasDefault = out.HasDefault || t.HasDefault
		t = found[t.Base]
	}
	if t != nil {
		out.Cast = t.Qualified
	}
	return out
}

// maxTypeDepth bounds nesting: a composite type cannot hold itself, but an array
// of it can.
const maxTypeDepth = 32

// routerType converts a type and what it is made of.
func routerType(oid uint32, found map[uint32]*TypeRow, depth int) *router.Type {
	t := found[oid]
	if t == nil || depth > maxTypeDepth {
		return nil
	}
	out := &router.Type{OID: oid, Name: t.Name, Kind: router.BaseType, Extension: t.Extension}
	sub := func(oid uint32) *router.Type { return routerType(oid, found, depth+1) }
	switch {
	case t.Kind == "d":
		out.Kind, out.Elem = router.DomainType, sub(t.Base)
	case t.Kind == "e":
		out.Kind = router.EnumType
	case t.Kind == "r":
		out.Kind, out.Elem = router.RangeType, sub(t.RangeSubtype)
	case t.Kind == "m":
		out.Kind, out.Elem = router.MultirangeType, sub(t.MultirangeOf)
	case t.Kind == "c":
		out.Kind = router.CompositeType
		for _, f := range t.Fields {
			out.Fields = append(out.Fields, sub(f))
		}
	case t.Elem != 0:
		out.Kind, out.Elem = router.ArrayType, sub(t.Elem)
	}
	return out
}
