package apply

import (
	"encoding/binary"
	"fmt"

	"cbrepl/pgoutput"
)

// Vec is a column of text values. It is kept as PostgreSQL's binary format of
// text[] from the start, so that handing it to a server costs no conversion.
// The zero Vec is empty and ready for use.
type Vec struct {
	n      int
	nulls  bool
	sealed bool // the header is written
	buf    []byte
}

// vecHeader is the size of a one-dimensional array's header: dimensions, null
// flag, element type, length, lower bound (array_send, arrayfuncs.c).
const vecHeader = 20

// textOID is the element type of a Vec.
const textOID = 25

// Reset empties the vector and keeps its memory.
func (v *Vec) Reset() { v.n, v.nulls, v.sealed, v.buf = 0, false, false, v.buf[:0] }

// Len returns the number of values.
func (v *Vec) Len() int { return v.n }

// HasNull reports whether a value is NULL.
func (v *Vec) HasNull() bool { return v.nulls }

// Size returns the bytes held.
func (v *Vec) Size() int { return len(v.buf) }

// Cap returns the bytes allocated.
func (v *Vec) Cap() int { return cap(v.buf) }

func (v *Vec) grow() {
	if len(v.buf) == 0 {
		v.buf = append(v.buf, make([]byte, vecHeader)...)
	}
	v.n++
	v.sealed = false
}

// Append adds a value; it is copied.
func (v *Vec) Append(b []byte) {
	v.grow()
	v.buf = binary.BigEndian.AppendUint32(v.buf, uint32(len(b)))
	v.buf = append(v.buf, b...)
}

// AppendNull adds a NULL.
func (v *Vec) AppendNull() {
	v.grow()
	v.nulls = true
	v.buf = binary.BigEndian.AppendUint32(v.buf, 0xffffffff)
}

// AppendValue adds a decoded value. An unchanged TOAST value has no place here.
func (v *Vec) AppendValue(x pgoutput.Value) {
	switch x.Kind {
	case pgoutput.ValueText:
		v.Append(x.Data)
	case pgoutput.ValueNull:
		v.AppendNull()
	default:
		panic(fmt.Sprintf("apply: value of kind %q in a column vector", x.Kind))
	}
}

// TextArray returns the vector as a text[] in binary format. It is valid until
// the next change. Vectors of an operation may be read by several segments at
// once.
func (v *Vec) TextArray() []byte {
	if v.n == 0 {
		h := make([]byte, 12) // no dimensions, no nulls
		binary.BigEndian.PutUint32(h[8:], textOID)
		return h
	}
	if v.sealed {
		return v.buf
	}
	v.sealed = true
	h := v.buf[:vecHeader]
	binary.BigEndian.PutUint32(h, 1)
	var flag uint32
	if v.nulls {
		flag = 1
	}
	binary.BigEndian.PutUint32(h[4:], flag)
	binary.BigEndian.PutUint32(h[8:], textOID)
	binary.BigEndian.PutUint32(h[12:], uint32(v.n))
	binary.BigEndian.PutUint32(h[16:], 1)
	return v.buf
}

// All calls f for every value in order; nil is NULL.
func (v *Vec) All(f func(i int, b []byte)) {
	b := v.buf
	if v.n > 0 {
		b = b[vecHeader:]
	}
	for i := range v.n {
		n := binary.BigEndian.Uint32(b)
		b = b[4:]
		if n == 0xffffffff {
			f(i, nil)
			continue
		}
		f(i, b[:n:n])
		b = b[n:]
	}
}

// Seal prepares the vectors for concurrent reading.
func (s *Set) Seal() {
	for _, v := range s.Vals {
		v.TextArray()
	}
}

// Row copies the values of row n; nil is NULL.
func (s *Set) Row(n int) [][]byte {
	out := make([][]byte, len(s.Vals))
	for c, v := range s.Vals {
		v.All(func(i int, b []byte) {
			if i == n && b != nil {
				out[c] = append([]byte{}, b...)
			}
		})
	}
	return out
}
