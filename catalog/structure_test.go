package catalog

import (
	"strings"
	"testing"

	"cbrepl/router"
)

func builtin(name string) *router.Type {
	t, err := router.ParseType(name)
	if err != nil {
		panic(err)
	}
	return t
}

// pair is a composite type of "name type" attributes.
func pair(attributes ...string) *router.Type {
	t := &router.Type{Name: "app.pair", Kind: router.CompositeType}
	for _, a := range attributes {
		name, typ, _ := strings.Cut(a, " ")
		plain, _, _ := strings.Cut(typ, "(")
		t.Attributes = append(t.Attributes, router.Attribute{Name: name, TypeName: typ})
		t.Fields = append(t.Fields, builtin(plain))
	}
	return t
}

func domain(base string, elem *router.Type) *router.Type {
	return &router.Type{Name: "app.dom", Kind: router.DomainType, Elem: elem, ElemName: base}
}

func array(elem *router.Type) *router.Type {
	return &router.Type{Name: elem.Name + "[]", Kind: router.ArrayType, Elem: elem}
}

func rangeOf(name string) *router.Type {
	return &router.Type{Name: "app.span", Kind: router.RangeType, Elem: builtin(name)}
}

// Types of one name are compared by what they are made of: a value's text has neither
// names nor types in it.
func TestTakesType(t *testing.T) {
	ab := pair("a integer", "b integer")
	for _, c := range []struct {
		name     string
		src, dst *router.Type
		dstName  string // when it is not dst's
		why      string
	}{
		{name: "the same", src: ab, dst: ab},
		{name: "another order", src: ab, dst: pair("b integer", "a integer"), why: "attributes of type app.pair are (a, b) and (b, a)"},
		{name: "another name", src: ab, dst: pair("a integer", "c integer"), why: "(a, b) and (a, c)"},
		{name: "one more", src: ab, dst: pair("a integer", "b integer", "c integer"), why: "(a, b) and (a, b, c)"},
		{name: "wider", src: ab, dst: pair("a bigint", "b numeric")},
		{name: "narrower", src: ab, dst: pair("a integer", "b smallint"), why: `attribute "b" of type app.pair is integer and smallint`},
		{name: "a modifier", src: pair("n numeric(10,4)"), dst: pair("n numeric(10,2)"), why: "numeric(10,4) and numeric(10,2): values would be rounded"},
		{name: "in an array", src: array(ab), dst: array(pair("b integer", "a integer")), why: "(a, b) and (b, a)"},
		{name: "under domains", src: domain("app.pair", ab), dst: domain("app.pair", pair("b integer", "a integer")), why: "(a, b) and (b, a)"},
		{name: "domains alike", src: domain("numeric(10,2)", builtin("numeric")), dst: domain("numeric(12,2)", builtin("numeric")), dstName: "numeric(12,2)"},
		{name: "domains that round", src: domain("numeric(10,2)", builtin("numeric")), dst: domain("numeric(8,1)", builtin("numeric")), why: "the domains are over numeric(10,2) and numeric(8,1)"},
		{name: "a domain in text", src: domain("numeric(10,2)", builtin("numeric")), dst: builtin("text")},
		{name: "anything in text", src: ab, dst: builtin("text")},
		{name: "another kind", src: ab, dst: &router.Type{Name: "app.pair", Kind: router.EnumType}, why: "of another kind"},
		{name: "ranges", src: rangeOf("numeric"), dst: rangeOf("double precision"), why: "ranges are of numeric and double precision"},
		{name: "ranges alike", src: rangeOf("numeric"), dst: rangeOf("numeric")},
		{name: "not known", src: nil, dst: ab},
	} {
		col := &Column{Type: c.dst, TypeName: c.dst.Name, BaseName: c.dst.Name}
		if c.dst.Kind == router.DomainType {
			col.BaseName = c.dst.ElemName
		}
		name := "app.pair"
		if c.src != nil {
			name = c.src.Name
		}
		ok, why := col.TakesType(name, c.src)
		if ok != (c.why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%s: %t, %s; want %q", c.name, ok, why, c.why)
		}
		if c.src != nil && c.why != "" && strings.Contains(c.why, "attributes") && Definition(c.src) == Definition(c.dst) {
			t.Errorf("%s: both are defined as %s", c.name, Definition(c.src))
		}
	}
	if d := Definition(array(domain("app.pair", ab))); d != " over app.pair (a integer, b integer)" {
		t.Errorf("defined as %q", d)
	}
}
