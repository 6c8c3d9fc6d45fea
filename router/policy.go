package router

// PolicyKind is how a table's rows are placed.
type PolicyKind uint8

// Policy kinds.
const (
	Hash PolicyKind = iota + 1
	Random
	Replicated
)

// TypeKind is the shape of a type.
type TypeKind uint8

// Type kinds.
const (
	BaseType TypeKind = iota + 1
	DomainType
	EnumType
	ArrayType
	RangeType
	MultirangeType
	CompositeType
)

// Type describes a column type. Built-in types are known by OID (BuiltinType); the
// others are described by whoever read the server's catalogue. Hashing needs OID,
// Kind, Elem and Fields; what else there is says what text such a type takes.
type Type struct {
	OID  uint32
	Name string // as format_type prints it; used in errors
	Kind TypeKind
	// Elem is the base type of a domain, the element of an array, the subtype of
	// a range and the range of a multirange.
	Elem *Type
	// ElemName is Elem as format_type prints it, with the modifier that a domain
	// gives it. It is known of domains only.
	ElemName string
	// Fields are the types of a composite type's attributes, dropped ones left out;
	// Attributes are their names and their types as format_type prints them.
	Fields     []*Type
	Attributes []Attribute
	// Extension names the extension that owns the type, if any.
	Extension string
	// Nondeterministic is set where the type stands with a nondeterministic
	// collation of its own: a range type's, or an attribute's of a composite type.
	Nondeterministic bool
}

// Attribute is an attribute of a composite type.
type Attribute struct {
	Name, TypeName string
}

// Base looks through domains; nil where the type beneath is not known.
func (t *Type) Base() *Type {
	for i := 0; t != nil && t.Kind == DomainType && i < maxNesting; i++ {
		t = t.Elem
	}
	return t
}

// Column is one column of a distribution key.
type Column struct {
	Name string
	Type *Type
	// Opclass is the hash operator class: "" or the type's default class
	// (int4_ops), or a legacy one (cdbhash_int4_ops). Schema-less.
	Opclass string
	// Nondeterministic is set when the column's collation is nondeterministic.
	Nondeterministic bool
}

// Policy is a table's distribution policy.
type Policy struct {
	Kind PolicyKind
	// Columns is the key, in key order; empty unless Kind is Hash.
	Columns []Column
	// NumSegments is the number of segments the table is spread over, 1 to
	// MaxSegments. It may be smaller than the cluster (a partly expanded table).
	NumSegments int
	// AssumeUTC accepts timestamptz and timetz values without an offset as UTC.
	// A server always prints the offset; text typed by a person may lack it.
	AssumeUTC bool
}
