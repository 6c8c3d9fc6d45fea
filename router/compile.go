package router

import (
	"fmt"
	"slices"
	"strings"
)

// node is a compiled type: how to read and hash its values. It is immutable.
type node struct {
	op     op
	elem   *node   // element, subtype or range
	fields []*node // of a composite type
	// base is the pg_catalog description of a base type, for datum images.
	base *builtin
	// elemOID is the OID in an array's header (a domain's own, if it is one).
	elemOID uint32
	// discrete ranges have a canonical form [lower,upper).
	discrete bool
	// utc lets values with a time zone leave out their offset.
	utc bool
	// scratch tells that hashing needs a buffer.
	scratch bool
}

// maxNesting bounds how deep types nest inside each other.
const maxNesting = 64

// compiler turns types into nodes.
type compiler struct {
	utc              bool
	nondeterministic bool
}

// compile returns the node of t for the default hash class, or why there is none.
func (c compiler) compile(t *Type, depth int) (*node, error) {
	if depth > maxNesting {
		return nil, fmt.Errorf("types nest more than %d deep", maxNesting)
	}
	if t == nil {
		return nil, fmt.Errorf("nothing is known about the type")
	}
	c.nondeterministic = c.nondeterministic || t.Nondeterministic
	sub := func(what string, t *Type) (*node, error) {
		n, err := c.compile(t, depth+1)
		if err != nil && t != nil {
			return nil, fmt.Errorf("its %s type %s: %w", what, t.Name, err)
		}
		return n, err
	}
	if t.Extension != "" && t.Kind == BaseType {
		return nil, fmt.Errorf("it belongs to extension %s, whose hash function only the server has", t.Extension)
	}
	switch t.Kind {
	case DomainType:
		return sub("base", t.Elem)
	case EnumType:
		return nil, fmt.Errorf("an enum is hashed by its label's OID, which differs on every server")
	case ArrayType:
		elem, err := sub("element", t.Elem)
		if err != nil {
			return nil, err
		}
		return &node{op: opArray, elem: elem, elemOID: t.Elem.OID, scratch: true}, nil
	case RangeType:
		elem, err := sub("subtype", t.Elem)
		if err != nil {
			return nil, err
		}
		return &node{op: opRange, elem: elem, discrete: slices.Contains(discreteRanges[:], t.OID), scratch: true}, nil
	case MultirangeType:
		elem, err := sub("range", t.Elem)
		if err != nil {
			return nil, err
		}
		if elem.op != opRange {
			return nil, fmt.Errorf("it is a multirange of %s, which is not a range", t.Elem.Name)
		}
		return &node{op: opMultirange, elem: elem, scratch: true}, nil
	case CompositeType:
		if len(t.Fields) == 0 {
			return nil, fmt.Errorf("its attributes are not known")
		}
		n := &node{op: opRecord, scratch: true}
		for i, f := range t.Fields {
			fn, err := sub(fmt.Sprintf("attribute %d of", i+1), f)
			if err != nil {
				return nil, err
			}
			n.fields = append(n.fields, fn)
		}
		return n, nil
	case BaseType:
		b := builtinByOID(t.OID)
		if b == nil || b.op == opRange || b.op == opMultirange {
			return nil, fmt.Errorf("it is not a built-in type, and its hash function is not known outside the server")
		}
		if b.op == opNone || b.def == "" {
			return nil, fmt.Errorf("%s", b.why)
		}
		if c.nondeterministic && (b.op == opText || b.op == opBpchar || b.op == opName) {
			return nil, fmt.Errorf("its collation is nondeterministic: the server hashes a sort key of its own collation library")
		}
		return c.base(b), nil
	}
	return nil, fmt.Errorf("its kind %d is not known", t.Kind)
}

func (c compiler) base(b *builtin) *node {
	n := &node{op: b.op, base: b, utc: c.utc}
	switch b.op {
	case opNumeric, opBytea, opBit, opJSONB, opOIDVector, opInt2Vector:
		n.scratch = true
	}
	return n
}

// discreteRanges are the built-in range types with a canonical function.
var discreteRanges = [...]uint32{3904, 3912, 3926}

// legacyPrefix starts the names of the legacy hash operator classes.
const legacyPrefix = "cdbhash_"

// compileLegacy returns the node of t for the legacy class opclass.
func (c compiler) compileLegacy(t *Type, opclass string) (*node, error) {
	bt := t.Base()
	if bt == nil {
		return nil, fmt.Errorf("nothing is known about the type")
	}
	if bt.Extension != "" {
		return nil, fmt.Errorf("it belongs to extension %s, whose hash function only the server has", bt.Extension)
	}
	switch bt.Kind {
	case EnumType:
		return nil, fmt.Errorf("an enum is hashed by its label's OID, which differs on every server")
	case BaseType:
		b := builtinByOID(bt.OID)
		if b == nil {
			return nil, fmt.Errorf("it is not a built-in type, and its hash function is not known outside the server")
		}
		if b.why == whyReg {
			return nil, fmt.Errorf("%s", b.why)
		}
		if b.legacy == "" {
			return nil, fmt.Errorf("the legacy hash family has no class for it")
		}
		if !slices.Contains(strings.Fields(b.legacy), opclass) {
			return nil, fmt.Errorf("operator class %s is not one of the type's (%s)", opclass, strings.Join(strings.Fields(b.legacy), ", "))
		}
		return c.base(b), nil
	case ArrayType:
		if opclass != "cdbhash_array_ops" {
			return nil, fmt.Errorf("operator class %s is not one of the type's (cdbhash_array_ops)", opclass)
		}
		et := bt.Elem.Base()
		var b *builtin
		if et != nil && et.Kind == BaseType && et.Extension == "" {
			b = builtinByOID(et.OID)
		}
		if b == nil || b.op == opNone || !b.hasImage() {
			return nil, fmt.Errorf("the legacy family hashes an array's stored bytes, which are not known outside the server for this element type")
		}
		n := &node{op: opArray, elem: c.base(b), elemOID: bt.Elem.OID, scratch: true}
		return n, nil
	}
	return nil, fmt.Errorf("the legacy hash family has no class for it")
}

// compileColumn resolves a column's operator class. legacy tells the family.
func compileColumn(col *Column, utc bool) (n *node, legacy bool, err error) {
	c := compiler{utc: utc, nondeterministic: col.Nondeterministic}
	opclass := strings.TrimPrefix(col.Opclass, "pg_catalog.")
	if strings.HasPrefix(opclass, legacyPrefix) {
		n, err = c.compileLegacy(col.Type, opclass)
		return n, true, err
	}
	if n, err = c.compile(col.Type, 0); err != nil {
		return nil, false, err
	}
	if opclass == "" {
		return n, false, nil
	}
	var known []string
	switch n.op {
	case opArray:
		known = []string{"array_ops"}
	case opRange:
		known = []string{"range_ops"}
	case opMultirange:
		known = []string{"multirange_ops"}
	case opRecord:
		known = []string{"record_ops"}
	default:
		known = strings.Fields(n.base.def)
	}
	if !slices.Contains(known, opclass) {
		return nil, false, fmt.Errorf("operator class %s is not a built-in one of the type (%s)", opclass, strings.Join(known, ", "))
	}
	return n, false, nil
}
