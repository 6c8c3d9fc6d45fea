package router

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	"cbrepl/dtx"
)

// MaxSegments is the largest NumSegments a policy may have.
const MaxSegments = 10000

// Router places the rows of one table. It is immutable and safe for concurrent
// use.
type Router struct {
	policy Policy
	cols   []column
	legacy bool // any column's class is legacy: the whole row is
	int8   bool // the key is one int8 column of the default family
	pool   *sync.Pool
}

// column is one compiled key column.
type column struct {
	*node
	legacy bool
	name   string
	typ    string
}

// scratch is a stack of bytes and of jsonb members, reused between rows.
type scratch struct {
	buf     []byte
	members []jsonMember
}

// newScratch never leaves buf nil: a slice of it must not be mistaken for NULL.
func newScratch() any { return &scratch{buf: make([]byte, 0, 512)} }

// New compiles a policy. The error joins every problem; for a key column whose
// hash cannot be known outside the server it names column, type and reason.
func New(p Policy) (*Router, error) {
	r := &Router{policy: p}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if p.NumSegments < 1 || p.NumSegments > MaxSegments {
		bad("numsegments is %d: want 1 to %d", p.NumSegments, MaxSegments)
	}
	switch p.Kind {
	case Hash:
		if len(p.Columns) == 0 {
			bad("a hash policy needs at least one key column")
		}
	case Random, Replicated:
		if len(p.Columns) > 0 {
			bad("a random or replicated policy has no key columns, this one has %d", len(p.Columns))
		}
	default:
		bad("policy kind %d is not known", p.Kind)
	}
	for i := range p.Columns {
		c := &p.Columns[i]
		name := "unknown type"
		if c.Type != nil {
			name = c.Type.Name
		}
		n, legacy, err := compileColumn(c, p.AssumeUTC)
		if err != nil {
			bad("key column %s of type %s cannot be hashed outside the server: %w", c.Name, name, err)
			continue
		}
		r.legacy = r.legacy || legacy
		r.cols = append(r.cols, column{node: n, legacy: legacy, name: c.Name, typ: name})
		if n.scratch && r.pool == nil {
			r.pool = &sync.Pool{New: newScratch}
		}
	}
	if len(errs) > 0 {
		return nil, &dtx.Error{Op: "read distribution policy", Err: errors.Join(errs...), Class: dtx.ClassStop}
	}
	r.int8 = len(r.cols) == 1 && r.cols[0].op == opInt8 && !r.legacy
	return r, nil
}

// Policy returns the policy the router was made from.
func (r *Router) Policy() Policy { return r.policy }

// Legacy reports whether rows are reduced by the legacy family's remainder.
func (r *Router) Legacy() bool { return r.legacy }

// Segment routes a row of a hash-policy table. key holds the key columns' text
// values in key order, nil for NULL (an empty value is not nil). It does not
// allocate.
func (r *Router) Segment(key [][]byte) (dtx.Content, error) {
	if r.int8 && len(key) == 1 && key[0] != nil { // the commonest key
		if x, err := parseInt(key[0], math.MinInt64, math.MaxInt64); err == nil {
			return dtx.Content(JumpHash(uint64(hashInt8(x)), r.policy.NumSegments)), nil
		}
	}
	h, err := r.RowHash(key)
	if err != nil {
		return 0, err
	}
	return dtx.Content(Reduce(h, r.policy.NumSegments, r.legacy)), nil
}

// RowHash returns the row's folded hash, before it is reduced to a segment.
func (r *Router) RowHash(key [][]byte) (uint32, error) {
	if len(key) != len(r.cols) || len(key) == 0 {
		return 0, r.keyError(len(key))
	}
	if r.pool != nil {
		s := r.pool.Get().(*scratch)
		h, err := r.rowHash(key, s)
		r.putScratch(s)
		return h, err
	}
	return r.rowHash(key, nil)
}

// maxKeptScratch bounds the buffer kept between rows, in bytes.
const maxKeptScratch = 1 << 20

// putScratch gives s back for the next row; s may be nil.
func (r *Router) putScratch(s *scratch) {
	if s == nil || cap(s.buf) > maxKeptScratch {
		return
	}
	s.buf, s.members = s.buf[:0], s.members[:0] // an error leaves them filled
	r.pool.Put(s)
}

func (r *Router) rowHash(key [][]byte, s *scratch) (uint32, error) {
	h := r.start()
	for i := range r.cols {
		c, v := &r.cols[i], key[i]
		if c.op == opText && v != nil && !r.legacy {
			h = fold(h, hashBytes(v))
			continue
		}
		var err error
		if h, err = r.add(h, c, v, s); err != nil {
			return 0, r.valueError(c, err)
		}
	}
	return h, nil
}

// start is the hash of a row before its first column.
func (r *Router) start() uint32 {
	if r.legacy {
		return fnvInit
	}
	return 0
}

// add adds a column to a row's hash, as cdbhash of Greenplum's cdbhash.c does.
// Where one class of the key is legacy, the whole row is; a column with a
// default class then replaces what was hashed before it, because its function
// does not know of the running hash.
func (r *Router) add(h uint32, c *column, v []byte, s *scratch) (uint32, error) {
	switch {
	case v == nil && r.legacy:
		return fnv32(h, legacyNull), nil
	case v == nil:
		return fold(h, 0), nil
	case c.legacy:
		return c.legacyHash(h, v, s)
	}
	ch, err := c.hash(v, s)
	if err != nil {
		return 0, err
	}
	if r.legacy {
		return ch, nil
	}
	return fold(h, ch), nil
}

// SegmentOfIdentity places a row of a random-policy table: the server would
// take any segment, cbrepl takes the one that the row's identity names, so that
// later changes find the row. The choice is the jump consistent hash of the
// identity values' text, each hashed as bytes and folded in order, NULL adding
// nothing. It depends on the text, so the session settings that shape text must
// not change during a table's life. It does not allocate.
func (r *Router) SegmentOfIdentity(identity [][]byte) dtx.Content {
	var h uint32
	for _, v := range identity {
		if v == nil {
			h = fold(h, 0)
		} else {
			h = fold(h, hashBytes(v))
		}
	}
	return dtx.Content(JumpHash(uint64(h), r.policy.NumSegments))
}

func (r *Router) keyError(n int) error {
	msg := fmt.Sprintf("the key has %d columns, %d values were given", len(r.cols), n)
	if len(r.cols) == 0 {
		msg = "the table has no distribution key: its policy is not hash"
	}
	return &dtx.Error{Op: "route row", Msg: msg, Class: dtx.ClassStop}
}

// valueError never holds the value: it may be confidential.
func (r *Router) valueError(c *column, err error) error {
	return &dtx.Error{
		Op:    "route row",
		Msg:   fmt.Sprintf("key column %s of type %s", c.name, c.typ),
		Err:   err,
		Class: dtx.ClassStop,
	}
}

// ColumnHash is one step of an Explanation.
type ColumnHash struct {
	Name string
	Type string
	Null bool
	// Hash is the column's own hash, as its hash function returns it alone (0
	// for NULL under the default family); Folded the row's after this column.
	Hash, Folded uint32
	Legacy       bool
}

// Explanation shows how a row's hash comes about.
type Explanation struct {
	Columns []ColumnHash
	Folded  uint32
	Legacy  bool
}

// Segment reduces the row's hash for a cluster of n segments.
func (e *Explanation) Segment(n int) dtx.Content {
	return dtx.Content(Reduce(e.Folded, n, e.Legacy))
}

// Explain is Segment with every step shown.
func (r *Router) Explain(key [][]byte) (*Explanation, error) {
	if len(key) != len(r.cols) || len(key) == 0 {
		return nil, r.keyError(len(key))
	}
	s := newScratch().(*scratch)
	e := &Explanation{Legacy: r.legacy, Folded: r.start()}
	for i := range r.cols {
		c := &r.cols[i]
		ch := ColumnHash{Name: c.name, Type: c.typ, Null: key[i] == nil, Legacy: c.legacy}
		var err error
		switch {
		case ch.Null && r.legacy:
			ch.Hash = fnv32(fnvInit, legacyNull)
		case ch.Null:
		case c.legacy:
			ch.Hash, err = c.legacyHash(fnvInit, key[i], s)
		default:
			ch.Hash, err = c.hash(key[i], s)
		}
		if err == nil {
			e.Folded, err = r.add(e.Folded, c, key[i], s)
		}
		if err != nil {
			return nil, r.valueError(c, err)
		}
		ch.Folded = e.Folded
		e.Columns = append(e.Columns, ch)
	}
	return e, nil
}

// String prints "hash(a, b) over 3 segments", "random over 3 segments" or
// "replicated over 3 segments".
func (p Policy) String() string {
	kind := "unknown"
	switch p.Kind {
	case Hash:
		names := make([]string, len(p.Columns))
		for i, c := range p.Columns {
			names[i] = c.Name
			if c.Opclass != "" {
				names[i] += " " + c.Opclass
			}
		}
		kind = "hash(" + strings.Join(names, ", ") + ")"
	case Random:
		kind = "random"
	case Replicated:
		kind = "replicated"
	}
	return fmt.Sprintf("%s over %d segments", kind, p.NumSegments)
}
