package catalog

import (
	"cmp"
	"fmt"
	"strings"

	"cbrepl/router"
)

// maxDepth bounds the nesting of types: a composite type cannot hold itself, but an
// array of it can.
const maxDepth = 32

// TakesType is Takes for a type that is not built in, which is src where it is known.
// Two such types of one name can be made of different things: text that one prints is
// then read as another value.
func (c *Column) TakesType(name string, src *router.Type) (bool, string) {
	if ok, why := c.Takes(name); !ok {
		return false, why
	}
	return madeAlike(src, c.Type, 0)
}

// madeAlike reports whether text of type s, which has the name of d, says the same as
// text of type d; else why not.
func madeAlike(s, d *router.Type, depth int) (bool, string) {
	s, sName := withoutDomains(s)
	d, dName := withoutDomains(d)
	if s == nil || d == nil || depth > maxDepth {
		return true, "" // nothing more is known
	}
	if sName != "" || dName != "" {
		sName, dName = cmp.Or(sName, s.Name), cmp.Or(dName, d.Name)
		if ok, why := RoundTrips(sName, dName); !ok {
			return false, fmt.Sprintf("the domains are over %s and %s: %s", sName, dName, why)
		}
	}
	if d.Kind == router.BaseType { // what text it takes is known by its name
		return true, ""
	}
	if s.Kind != d.Kind {
		return false, fmt.Sprintf("type %s is of another kind there", s.Name)
	}
	if s.Kind == router.CompositeType {
		return sameAttributes(s, d, depth)
	}
	if ok, why := subtypesFit(s, d); !ok {
		return false, why
	}
	return madeAlike(s.Elem, d.Elem, depth+1)
}

// subtypesFit compares the subtypes of ranges. Elements of arrays are compared by the
// arrays' names already, labels of enumerations are text.
func subtypesFit(s, d *router.Type) (bool, string) {
	if s.Kind != router.RangeType || s.Elem == nil || d.Elem == nil {
		return true, ""
	}
	if ok, why := RoundTrips(s.Elem.Name, d.Elem.Name); !ok {
		return false, fmt.Sprintf("the ranges are of %s and %s: %s", s.Elem.Name, d.Elem.Name, why)
	}
	return true, ""
}

// sameAttributes compares the attributes of composite types, whose text has them in
// their order and without names.
func sameAttributes(s, d *router.Type, depth int) (bool, string) {
	differ := len(s.Attributes) != len(d.Attributes)
	for i := range s.Attributes {
		differ = differ || s.Attributes[i].Name != d.Attributes[i].Name
	}
	if differ {
		return false, fmt.Sprintf("the attributes of type %s are (%s) and (%s)", s.Name, attributeNames(s), attributeNames(d))
	}
	for i, a := range s.Attributes {
		ok, why := RoundTrips(a.TypeName, d.Attributes[i].TypeName)
		if ok && i < len(s.Fields) && i < len(d.Fields) {
			ok, why = madeAlike(s.Fields[i], d.Fields[i], depth+1)
		}
		if !ok {
			return false, fmt.Sprintf("attribute %q of type %s is %s and %s: %s", a.Name, s.Name, a.TypeName, d.Attributes[i].TypeName, why)
		}
	}
	return true, ""
}

func attributeNames(t *router.Type) string {
	names := make([]string, len(t.Attributes))
	for i, a := range t.Attributes {
		names[i] = a.Name
	}
	return strings.Join(names, ", ")
}

// withoutDomains looks through domains and returns what the innermost is over, as
// format_type prints it; empty when t is no domain.
func withoutDomains(t *router.Type) (*router.Type, string) {
	name := ""
	for i := 0; t != nil && t.Kind == router.DomainType && i < maxDepth; i++ {
		t, name = t.Elem, t.ElemName
	}
	return t, name
}

// Definition prints what a type that is not built in is made of; "" for others.
// It is equal on all nodes, whose OIDs differ.
func Definition(t *router.Type) string {
	var b strings.Builder
	define(&b, t, 0)
	return b.String()
}

func define(b *strings.Builder, t *router.Type, depth int) {
	if t == nil || depth > maxDepth {
		return
	}
	switch t.Kind {
	case router.DomainType:
		b.WriteString(" over " + t.ElemName)
	case router.CompositeType:
		b.WriteString(" (")
		for i, a := range t.Attributes {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(a.Name + " " + a.TypeName)
			if i < len(t.Fields) {
				define(b, t.Fields[i], depth+1)
			}
		}
		b.WriteString(")")
		return
	case router.RangeType:
		if t.Elem != nil {
			b.WriteString(" of " + t.Elem.Name)
		}
	}
	define(b, t.Elem, depth+1)
}
