package router

import (
	"bytes"
	"cmp"
	"math"
	"math/bits"
)

// Flags of utils/rangetypes.h.
const (
	rangeEmpty    = 0x01
	rangeLowerInc = 0x02
	rangeUpperInc = 0x04
	rangeLowerInf = 0x08
	rangeUpperInf = 0x10
)

// rangeValue is a parsed range. Bounds that exist are text, alias the value or
// lie on the scratch; discrete ones are numbers in canonical form.
type rangeValue struct {
	flags  byte
	lo, hi []byte
	l, h   bound
}

// bound is a bound's value in a form that can be compared.
type bound struct {
	known bool  // one of the following is set
	x     int64 // integers, dates, times
	// A numeric's digits lie on the scratch from off on.
	dec      decimal
	off      int
	isNumber bool
}

func (a bound) compare(b bound, s *scratch) int {
	if !a.isNumber {
		return cmp.Compare(a.x, b.x)
	}
	return a.dec.compare(s.buf[a.off:a.off+2*a.dec.digits], b.dec, s.buf[b.off:b.off+2*b.dec.digits])
}

// rank orders -Infinity, numbers, Infinity, NaN, as numeric does.
func (d decimal) rank() int {
	switch {
	case d.nan:
		return 2
	case d.special && d.negative:
		return -1
	case d.special:
		return 1
	}
	return 0
}

func (d decimal) sign() int {
	switch {
	case d.digits == 0:
		return 0
	case d.negative:
		return -1
	}
	return 1
}

// compare orders two numerics by their digits.
func (d decimal) compare(dd []byte, e decimal, ed []byte) int {
	if c := cmp.Compare(d.rank(), e.rank()); c != 0 || d.special {
		return c
	}
	if c := cmp.Compare(d.sign(), e.sign()); c != 0 || d.digits == 0 {
		return c
	}
	c := cmp.Compare(d.weight, e.weight)
	for i := 0; c == 0 && i < len(dd) && i < len(ed); i += 2 {
		c = cmp.Compare(int(dd[i])|int(dd[i+1])<<8, int(ed[i])|int(ed[i+1])<<8)
	}
	if c == 0 {
		c = cmp.Compare(len(dd), len(ed))
	}
	return c * d.sign()
}

// bound parses a bound of subtype n where its order is known here.
func (n *node) bound(v []byte, s *scratch) (b bound, err error) {
	b.known = true
	switch n.op {
	case opInt2, opInt4, opInt8:
		b.x, err = n.parseInteger(v)
	case opDate:
		var d int32
		d, err = parseDate(v)
		b.x = int64(d)
	case opTime:
		b.x, err = parseTime(v)
	case opTimestamp:
		b.x, err = parseTimestamp(v, zoneNone)
	case opTimestamptz:
		b.x, err = parseTimestamp(v, n.zone())
	case opFloat4, opFloat8:
		var x float64
		x, err = parseFloat(v, n.op == opFloat4)
		b.x = floatOrder(x)
	case opNumeric:
		b.isNumber = true
		b.off = len(s.buf)
		b.dec, err = s.numeric(v)
	default:
		b.known = false
	}
	return b, err
}

// floatOrder maps a float to an integer of the same order as the server's: both
// zeros equal, NaN above everything.
func floatOrder(x float64) int64 {
	switch {
	case math.IsNaN(x):
		return math.MaxInt64
	case x == 0:
		return 0
	case x < 0:
		return -int64(math.Float64bits(-x))
	}
	return int64(math.Float64bits(x))
}

// hashBound hashes a bound.
func (n *node) hashBound(v []byte, b bound, s *scratch) (uint32, error) {
	switch {
	case !b.known, n.op == opFloat4, n.op == opFloat8:
		return n.hash(v, s)
	case b.isNumber:
		return b.dec.hash(s.buf[b.off : b.off+2*b.dec.digits]), nil
	case n.op == opInt8 || n.op == opTime || n.op == opTimestamp || n.op == opTimestamptz:
		return hashInt8(b.x), nil
	}
	return hashUint32(uint32(b.x)), nil
}

// readRange reads one range, leaving c behind it, and brings it into the form
// in which the server stores it: infinite bounds exclusive, discrete ranges as
// [lower,upper), ranges without a point empty. Where the subtype's order is not
// known here, the text is taken to be the server's and so in that form.
func (n *node) readRange(c *cursor, s *scratch) (r rangeValue, err error) {
	if rest := c.v[c.i:]; len(rest) >= 5 && foldEqual(rest[:5], "empty") {
		c.i += 5
		r.flags = rangeEmpty
		return r, nil
	}
	switch {
	case c.skip('['):
		r.flags |= rangeLowerInc
	case c.skip('('):
	default:
		return r, errSyntax
	}
	if r.lo, err = c.bound(s); err != nil {
		return r, err
	}
	if !c.skip(',') {
		return r, errSyntax
	}
	if r.hi, err = c.bound(s); err != nil {
		return r, err
	}
	switch {
	case c.skip(']'):
		r.flags |= rangeUpperInc
	case c.skip(')'):
	default:
		return r, errSyntax
	}
	if r.lo == nil {
		r.flags = r.flags&^rangeLowerInc | rangeLowerInf
	} else if r.l, err = n.elem.bound(r.lo, s); err != nil {
		return r, err
	}
	if r.hi == nil {
		r.flags = r.flags&^rangeUpperInc | rangeUpperInf
	} else if r.h, err = n.elem.bound(r.hi, s); err != nil {
		return r, err
	}
	if err = r.check(s); err != nil || !n.discrete || r.flags&rangeEmpty != 0 {
		return r, err
	}
	if err = n.canonical(&r); err != nil {
		return r, err
	}
	return r, r.check(s)
}

// check finds a range without a point, and a lower bound above the upper.
func (r *rangeValue) check(s *scratch) error {
	if !r.l.known || !r.h.known {
		if r.lo != nil && r.hi != nil && bytes.Equal(r.lo, r.hi) && r.flags&(rangeLowerInc|rangeUpperInc) != rangeLowerInc|rangeUpperInc {
			r.flags = rangeEmpty
		}
		return nil
	}
	switch c := r.l.compare(r.h, s); {
	case c > 0:
		return errBounds
	case c == 0 && r.flags&(rangeLowerInc|rangeUpperInc) != rangeLowerInc|rangeUpperInc:
		r.flags = rangeEmpty
	}
	return nil
}

// canonical turns (a,b] of a discrete range into [a+1,b+1).
func (n *node) canonical(r *rangeValue) error {
	last := int64(math.MaxInt64)
	switch n.elem.op {
	case opInt4:
		last = math.MaxInt32
	case opDate:
		last = maxDate
	}
	endless := func(x int64) bool {
		return n.elem.op == opDate && (x == dateInf || x == dateMinusInf)
	}
	if r.l.known && r.flags&rangeLowerInc == 0 && !endless(r.l.x) {
		if r.l.x == last {
			return errRange
		}
		r.l.x++
		r.flags |= rangeLowerInc
	}
	if r.h.known && r.flags&rangeUpperInc != 0 && !endless(r.h.x) {
		if r.h.x == last {
			return errRange
		}
		r.h.x++
		r.flags &^= rangeUpperInc
	}
	return nil
}

// bound reads a bound's text up to the delimiter: plain, quoted, or partly
// quoted, with backslashes; nil when there is none. It is never nil otherwise.
func (c *cursor) bound(s *scratch) ([]byte, error) {
	return c.piece(s, ",])")
}

// piece reads the text of a range bound or a composite attribute up to one of
// the bytes in stop outside quotes; nil when there is none. It lies on the
// scratch unless it has no quotes and backslashes. Blanks belong to it.
func (c *cursor) piece(s *scratch, stop string) ([]byte, error) {
	start := c.i
	for c.i < len(c.v) {
		b := c.v[c.i]
		if b == '"' || b == '\\' {
			return c.quotedPiece(s, start, stop)
		}
		if isOneOf(b, stop) {
			if c.i == start {
				return nil, nil
			}
			return c.v[start:c.i], nil
		}
		c.i++
	}
	return nil, errSyntax
}

func isOneOf(b byte, set string) bool {
	for i := range len(set) {
		if set[i] == b {
			return true
		}
	}
	return false
}

// quotedPiece goes on with a piece that has a quote or backslash at c.i.
func (c *cursor) quotedPiece(s *scratch, start int, stop string) ([]byte, error) {
	mark := len(s.buf)
	s.buf = append(s.buf, c.v[start:c.i]...)
	quoted := false
	for c.i < len(c.v) {
		b := c.v[c.i]
		if !quoted && isOneOf(b, stop) {
			return s.buf[mark:len(s.buf):len(s.buf)], nil
		}
		c.i++
		switch {
		case b == '\\':
			if c.end() {
				return nil, errSyntax
			}
			b = c.v[c.i]
			c.i++
		case b == '"' && quoted && c.skip('"'):
		case b == '"':
			quoted = !quoted
			continue
		}
		s.buf = append(s.buf, b)
	}
	return nil, errSyntax
}

// hash merges flags and bounds as hash_range does.
func (n *node) hashRangeValue(r *rangeValue, s *scratch) (uint32, error) {
	var lo, hi uint32
	var err error
	if r.flags&(rangeEmpty|rangeLowerInf) == 0 {
		if lo, err = n.elem.hashBound(r.lo, r.l, s); err != nil {
			return 0, err
		}
	}
	if r.flags&(rangeEmpty|rangeUpperInf) == 0 {
		if hi, err = n.elem.hashBound(r.hi, r.h, s); err != nil {
			return 0, err
		}
	}
	return bits.RotateLeft32(hashUint32(uint32(r.flags))^lo, 1) ^ hi, nil
}

// hashRange is hash_range.
func (n *node) hashRange(v []byte, s *scratch) (uint32, error) {
	c := cursor{v: v}
	r, err := n.readRange(&c, s)
	if err != nil {
		return 0, err
	}
	if !c.end() {
		return 0, errSyntax
	}
	return n.hashRangeValue(&r, s)
}

// hashMultirange is hash_multirange. The ranges must stand as a server prints
// them: none empty, in order, with a gap between each and the next.
func (n *node) hashMultirange(v []byte, s *scratch) (uint32, error) {
	c := cursor{v: v}
	if !c.skip('{') {
		return 0, errSyntax
	}
	h := uint32(1)
	if c.skip('}') {
		if !c.end() {
			return 0, errSyntax
		}
		return h, nil
	}
	var prev rangeValue
	for first := true; ; first = false {
		if !first && !c.skip(',') {
			return 0, errSyntax
		}
		r, err := n.elem.readRange(&c, s)
		if err != nil {
			return 0, err
		}
		if r.flags&rangeEmpty != 0 || !first && !prev.before(&r, s) {
			return 0, errOrder
		}
		rh, err := n.elem.hashRangeValue(&r, s)
		if err != nil {
			return 0, err
		}
		h = h*31 + rh
		prev = r // its digits stay on the scratch until the end
		if c.skip('}') {
			if !c.end() {
				return 0, errSyntax
			}
			return h, nil
		}
	}
}

// before tells whether r ends before q begins with a point between them.
func (r *rangeValue) before(q *rangeValue, s *scratch) bool {
	if r.hi == nil || q.lo == nil {
		return false
	}
	if !r.h.known || !q.l.known {
		return true // the order is the server's
	}
	c := r.h.compare(q.l, s)
	return c < 0 || c == 0 && r.flags&rangeUpperInc == 0 && q.flags&rangeLowerInc == 0
}

// hashRecord is hash_record of PostgreSQL 14 and later: the attributes in
// order, NULL as 0.
func (n *node) hashRecord(v []byte, s *scratch) (uint32, error) {
	c := cursor{v: v}
	if !c.skip('(') {
		return 0, errSyntax
	}
	var h uint32
	for i, f := range n.fields {
		if i > 0 && !c.skip(',') {
			return 0, errArity
		}
		mark := len(s.buf)
		p, err := c.piece(s, ",)")
		if err != nil {
			return 0, err
		}
		var fh uint32
		if p != nil {
			if fh, err = f.hash(p, s); err != nil {
				return 0, err
			}
		}
		h = h*31 + fh
		s.buf = s.buf[:mark]
	}
	if !c.skip(')') {
		return 0, errArity
	}
	if !c.end() {
		return 0, errSyntax
	}
	return h, nil
}
