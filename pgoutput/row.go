package pgoutput

import (
	"fmt"

	"cbrepl/dtx"
)

// ReplicaIdentity is a relation's replica identity setting.
type ReplicaIdentity byte

// Replica identities.
const (
	IdentityDefault ReplicaIdentity = 'd'
	IdentityNothing ReplicaIdentity = 'n'
	IdentityFull    ReplicaIdentity = 'f'
	IdentityIndex   ReplicaIdentity = 'i'
)

// Relation is a table's schema as the server announced it. Rows are only ever
// decoded with the Relation that was in force when they were sent.
type Relation struct {
	ID           uint32
	Schema, Name string
	Identity     ReplicaIdentity
	Columns      []Column
}

// Column is one published column, in the order of the tuples.
type Column struct {
	// Key marks a column of the replica identity. Under IdentityFull every
	// column is marked, which says nothing about a primary key.
	Key     bool
	Name    string
	TypeOID uint32
	TypeMod int32
}

// String prints schema.name.
func (r *Relation) String() string { return r.Schema + "." + r.Name }

// ParseRelation decodes the body of 'R' (without the transaction id of streams).
func ParseRelation(body []byte) (*Relation, error) {
	c := cursor{b: body}
	r := &Relation{ID: c.u32(), Schema: c.cstr(), Name: c.cstr(), Identity: ReplicaIdentity(c.u8())}
	if r.Schema == "" {
		r.Schema = "pg_catalog" // the protocol abbreviates it
	}
	n := int(c.u16())
	if c.bad || n*10 > len(c.b) { // a column takes at least 10 bytes
		return nil, fmt.Errorf("%w: Relation is cut short", ErrMalformed)
	}
	switch r.Identity {
	case IdentityDefault, IdentityNothing, IdentityFull, IdentityIndex:
	default:
		return nil, fmt.Errorf("%w: Relation with replica identity %q", ErrMalformed, byte(r.Identity))
	}
	r.Columns = make([]Column, 0, n)
	for range n {
		r.Columns = append(r.Columns, Column{c.u8()&1 != 0, c.cstr(), c.u32(), int32(c.u32())})
	}
	if err := c.end("Relation"); err != nil {
		return nil, err
	}
	return r, nil
}

// Column value kinds inside a tuple.
const (
	ValueNull      = 'n'
	ValueUnchanged = 'u' // an unchanged TOASTed value: the server did not send it
	ValueText      = 't'
	ValueBinary    = 'b'
)

// Value is one column of a tuple. Data is nil unless Kind is ValueText or
// ValueBinary; it aliases the message.
type Value struct {
	Kind byte
	Data []byte
}

// Tuple is an encoded row: a column count and, per column, kind, length, data.
// It has been checked: decoding a Tuple obtained from ParseRow cannot fail.
type Tuple struct {
	n   int
	raw []byte
}

// Len returns the number of columns; 0 for an absent tuple.
func (t Tuple) Len() int { return t.n }

// Raw returns the encoded values, without the column count. It aliases the
// message. Two tuples of one relation are equal when their raw bytes are.
func (t Tuple) Raw() []byte { return t.raw }

// Append appends the tuple's values to dst and returns it. Nothing is copied.
func (t Tuple) Append(dst []Value) []Value {
	b := t.raw
	for range t.n {
		k := b[0]
		b = b[1:]
		if k != ValueText && k != ValueBinary {
			dst = append(dst, Value{Kind: k})
			continue
		}
		n := int(uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3]))
		dst = append(dst, Value{k, b[4 : 4+n : 4+n]})
		b = b[4+n:]
	}
	return dst
}

func (c *cursor) tuple() Tuple {
	n := int(c.u16())
	start := c.b
	for range n {
		switch c.u8() {
		case ValueNull, ValueUnchanged:
		case ValueText, ValueBinary:
			c.take(int(c.u32()))
		default:
			c.bad = true
		}
		if c.bad {
			return Tuple{}
		}
	}
	return Tuple{n, start[:len(start)-len(c.b)]}
}

// Row is a decoded row message. Tuples alias the message.
type Row struct {
	// Type is TypeInsert, TypeUpdate, TypeDelete or TypeTruncate.
	Type byte
	// RelationID is the table of I, U and D; Truncated lists those of T.
	RelationID uint32
	Truncated  []uint32
	// Cascade and RestartIdentity are the options of T.
	Cascade, RestartIdentity bool
	// OldKind is 'K' (identity columns only; the others read as NULL and are
	// not values), 'O' (the whole old row), or 0 when no old tuple was sent.
	OldKind byte
	Old     Tuple // of U and D
	New     Tuple // of I and U
}

// ParseRow decodes the body of I, U, D or T (without the transaction id of
// streams). Bytes behind the row are an error: they mean that the message was
// framed wrongly (a transaction id taken for a relation id, for one).
func ParseRow(typ byte, body []byte) (Row, error) {
	c := cursor{b: body}
	r := Row{Type: typ}
	switch typ {
	case TypeTruncate:
		n := int(c.u32())
		opts := c.u8()
		r.Cascade, r.RestartIdentity = opts&1 != 0, opts&2 != 0
		if n < 0 || n*4 > len(c.b) {
			return r, fmt.Errorf("%w: Truncate is cut short", ErrMalformed)
		}
		r.Truncated = make([]uint32, n)
		for i := range r.Truncated {
			r.Truncated[i] = c.u32()
		}
		return r, c.end("Truncate")
	case TypeInsert:
		r.RelationID = c.u32()
		if k := c.u8(); k != 'N' && !c.bad {
			return r, fmt.Errorf("%w: Insert with tuple kind %q", ErrMalformed, k)
		}
		r.New = c.tuple()
		return r, c.end("Insert")
	case TypeUpdate:
		r.RelationID = c.u32()
		k := c.u8()
		if k == 'K' || k == 'O' {
			r.OldKind = k
			r.Old = c.tuple()
			k = c.u8()
		}
		if k != 'N' && !c.bad {
			return r, fmt.Errorf("%w: Update with tuple kind %q", ErrMalformed, k)
		}
		r.New = c.tuple()
		return r, c.end("Update")
	case TypeDelete:
		r.RelationID = c.u32()
		r.OldKind = c.u8()
		if r.OldKind != 'K' && r.OldKind != 'O' && !c.bad {
			return r, fmt.Errorf("%w: Delete with tuple kind %q", ErrMalformed, r.OldKind)
		}
		r.Old = c.tuple()
		return r, c.end("Delete")
	}
	return r, fmt.Errorf("%w: %q is not a row message", ErrMalformed, typ)
}

// Change is a row message with its schema, as the spool hands it to apply.
// Everything in it is valid until the next read from the same reader.
type Change struct {
	Row
	// Relation is the table's schema in force when the row was written (I, U, D).
	Relation *Relation
	// Relations are the tables of a TRUNCATE, in message order.
	Relations []*Relation
	// XID is the (sub)transaction that wrote the row, in streamed transactions.
	XID dtx.XID
}
