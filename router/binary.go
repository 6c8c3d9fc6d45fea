package router

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"

	"cbrepl/dtx"
)

var (
	errBinary      = errors.New("the binary value is malformed")
	errBinaryArray = errors.New("an array of the legacy family can be routed from its text only")
)

// Value is a key column's value in either of the protocol's formats.
type Value struct {
	Data   []byte // nil for NULL
	Binary bool   // as the type's send function makes it
}

// SegmentValues is Segment for values of which some or all are binary. For
// fixed-size types that saves parsing; the result is the same.
func (r *Router) SegmentValues(key []Value) (dtx.Content, error) {
	h, err := r.ValuesHash(key)
	if err != nil {
		return 0, err
	}
	return dtx.Content(Reduce(h, r.policy.NumSegments, r.legacy)), nil
}

// ValuesHash is RowHash for values of which some or all are binary.
func (r *Router) ValuesHash(key []Value) (uint32, error) {
	if len(key) != len(r.cols) || len(key) == 0 {
		return 0, r.keyError(len(key))
	}
	var s *scratch
	if r.pool != nil {
		s = r.pool.Get().(*scratch)
	}
	h, bad := r.start(), -1
	var err error
	for i := range r.cols {
		c, v := &r.cols[i], key[i]
		switch {
		case v.Data == nil || !v.Binary:
			h, err = r.add(h, c, v.Data, s)
		case c.legacy:
			h, err = c.legacyBinary(h, v.Data, s)
		default:
			var ch uint32
			if ch, err = c.hashBinary(v.Data, s); r.legacy {
				h = ch
			} else {
				h = fold(h, ch)
			}
		}
		if err != nil {
			bad = i
			break
		}
	}
	r.putScratch(s)
	if bad >= 0 {
		return 0, r.valueError(&r.cols[bad], err)
	}
	return h, nil
}

// fixed reads a binary value of up to eight bytes that has this size.
func fixed(v []byte, size int) (uint64, error) {
	if len(v) != size {
		return 0, errBinary
	}
	var x uint64
	for _, b := range v {
		x = x<<8 | uint64(b)
	}
	return x, nil
}

// hashBinary is hash for the binary format.
func (n *node) hashBinary(v []byte, s *scratch) (uint32, error) {
	switch n.op {
	case opInt8, opXid8, opTime, opTimestamp, opTimestamptz, opLSN:
		x, err := fixed(v, 8)
		return hashInt8(int64(x)), err
	case opInt4, opOID, opXid, opDate:
		x, err := fixed(v, 4)
		return hashUint32(uint32(x)), err
	case opInt2:
		x, err := fixed(v, 2)
		return hashUint32(uint32(int16(x))), err
	case opBool, opChar:
		x, err := fixed(v, 1)
		return hashUint32(uint32(int8(x))), err
	case opFloat4:
		x, err := fixed(v, 4)
		return hashFloat(float64(math.Float32frombits(uint32(x)))), err
	case opFloat8:
		x, err := fixed(v, 8)
		return hashFloat(math.Float64frombits(x)), err
	case opText, opName, opBytea:
		return hashBytes(v), nil
	case opBpchar:
		return hashBytes(trimBlanks(v, 0)), nil
	case opTimetz:
		if len(v) != 12 {
			return 0, errBinary
		}
		return hashInt8(int64(binary.BigEndian.Uint64(v))) ^ hashUint32(binary.BigEndian.Uint32(v[8:])), nil
	case opInterval:
		iv, err := binaryInterval(v)
		return hashInt8(iv.span()), err
	case opInet, opCidr:
		a, err := binaryInet(v)
		return hashBytes(a.key[:a.n]), err
	case opMacaddr, opMacaddr8, opUUID:
		if len(v) != int(n.base.size) {
			return 0, errBinary
		}
		return hashBytes(v), nil
	case opTid:
		t, err := binaryTid(v)
		return hashBytes(t[:]), err
	case opBit:
		b, err := binaryBits(v)
		return hashBytes(b), err
	}
	mark := len(s.buf)
	defer func() { s.buf = s.buf[:mark] }()
	switch n.op {
	case opNumeric:
		d, err := s.binaryNumeric(v)
		return d.hash(s.buf[mark:]), err
	case opJSONB:
		if len(v) < 1 || v[0] != 1 {
			return 0, errBinary
		}
		return hashJSONB(v[1:], s)
	case opOIDVector:
		err := eachElement(v, func(e []byte) error {
			x, err := fixed(e, 4)
			s.u32(uint32(x))
			return err
		})
		return hashBytes(s.buf[mark:]), err
	case opInt2Vector:
		h := uint32(1)
		err := eachElement(v, func(e []byte) error {
			x, err := fixed(e, 2)
			h = h*31 + hashUint32(uint32(int16(x)))
			return err
		})
		return h, err
	case opArray:
		h := uint32(1)
		err := eachElement(v, func(e []byte) (err error) {
			var eh uint32
			if e != nil {
				eh, err = n.elem.hashBinary(e, s)
			}
			h = h*31 + eh
			return err
		})
		return h, err
	case opRange:
		return n.binaryRange(v, s)
	case opMultirange:
		return n.binaryMultirange(v, s)
	case opRecord:
		return n.binaryRecord(v, s)
	}
	return 0, errBinary
}

func binaryInterval(v []byte) (interval, error) {
	if len(v) != 16 {
		return interval{}, errBinary
	}
	return interval{
		us:     int64(binary.BigEndian.Uint64(v)),
		days:   int32(binary.BigEndian.Uint32(v[8:])),
		months: int32(binary.BigEndian.Uint32(v[12:])),
	}, nil
}

// binaryInet reads family, mask length, a cidr flag, size and address.
func binaryInet(v []byte) (a inetValue, err error) {
	if len(v) < 4 || len(v) != 4+int(v[3]) {
		return a, errBinary
	}
	v4, v6 := v[0] == 2 && v[3] == 4 && v[1] <= 32, v[0] == 3 && v[3] == 16 && v[1] <= 128
	if !v4 && !v6 {
		return a, errBinary
	}
	a.key[0], a.key[1] = v[0], v[1]
	a.n = 2 + copy(a.key[2:], v[4:])
	return a, nil
}

func binaryTid(v []byte) (t [6]byte, err error) {
	if len(v) != 6 {
		return t, errBinary
	}
	return [6]byte{v[1], v[0], v[3], v[2], v[5], v[4]}, nil
}

// binaryBits checks a bit string and returns its bytes.
func binaryBits(v []byte) ([]byte, error) {
	if len(v) < 4 || int64(binary.BigEndian.Uint32(v)) > int64(len(v)-4)*8 || int64(binary.BigEndian.Uint32(v))+7 < int64(len(v)-4)*8 {
		return nil, errBinary
	}
	return v[4:], nil
}

// binaryNumeric pushes a numeric's digits without zeros at the ends.
func (s *scratch) binaryNumeric(v []byte) (d decimal, err error) {
	if len(v) < 8 {
		return d, errBinary
	}
	count := int(binary.BigEndian.Uint16(v))
	d.weight = int(int16(binary.BigEndian.Uint16(v[2:])))
	sign := binary.BigEndian.Uint16(v[4:])
	d.scale = int(binary.BigEndian.Uint16(v[6:]))
	if len(v) != 8+2*count {
		return d, errBinary
	}
	v = v[8:]
	switch sign {
	case 0:
	case 0x4000:
		d.negative = true
	case 0xc000:
		d.special, d.nan = true, true
	case 0xd000:
		d.special = true
	case 0xf000:
		d.special, d.negative = true, true
	default:
		return d, errBinary
	}
	pending := 0
	for i := range count {
		x := binary.BigEndian.Uint16(v[2*i:])
		if x > 9999 {
			return d, errBinary
		}
		if x == 0 && d.digits == 0 {
			d.weight--
			continue
		}
		pending = s.digit(&d, int(x), pending)
	}
	return d, nil
}

// eachElement calls f for every element of a binary array, nil for NULL.
func eachElement(v []byte, f func(e []byte) error) error {
	if len(v) < 12 {
		return errBinary
	}
	ndim := int(binary.BigEndian.Uint32(v))
	if v = v[12:]; ndim > maxDims || len(v) < 8*ndim {
		return errBinary
	}
	count := 1
	for i := range ndim {
		d := int(binary.BigEndian.Uint32(v[8*i:]))
		if d > len(v)/4 || count > len(v)/4 { // an element takes at least 4 bytes
			return errBinary
		}
		count *= d
	}
	if v = v[8*ndim:]; ndim == 0 {
		count = 0
	}
	for range count {
		e, rest, err := sized(v)
		if err != nil {
			return err
		}
		if err := f(e); err != nil {
			return err
		}
		v = rest
	}
	if len(v) != 0 {
		return errBinary
	}
	return nil
}

// sized splits off a length-prefixed piece, nil when the length is -1.
func sized(v []byte) (piece, rest []byte, err error) {
	if len(v) < 4 {
		return nil, nil, errBinary
	}
	n := int32(binary.BigEndian.Uint32(v))
	v = v[4:]
	switch {
	case n == -1:
		return nil, v, nil
	case n < 0 || int(n) > len(v):
		return nil, nil, errBinary
	}
	return v[:n:n], v[n:], nil
}

// binaryRange reads the flags and the bounds that they promise.
func (n *node) binaryRange(v []byte, s *scratch) (uint32, error) {
	if len(v) < 1 || v[0]&^0x1f != 0 {
		return 0, errBinary
	}
	flags := v[0]
	v = v[1:]
	var h [2]uint32
	for i, absent := range [2]byte{rangeEmpty | rangeLowerInf, rangeEmpty | rangeUpperInf} {
		if flags&absent != 0 {
			continue
		}
		b, rest, err := sized(v)
		if err != nil || b == nil {
			return 0, errBinary
		}
		if h[i], err = n.elem.hashBinary(b, s); err != nil {
			return 0, err
		}
		v = rest
	}
	if len(v) != 0 {
		return 0, errBinary
	}
	return bits.RotateLeft32(hashUint32(uint32(flags))^h[0], 1) ^ h[1], nil
}

func (n *node) binaryMultirange(v []byte, s *scratch) (uint32, error) {
	if len(v) < 4 {
		return 0, errBinary
	}
	count := binary.BigEndian.Uint32(v)
	v = v[4:]
	h := uint32(1)
	for range count {
		b, rest, err := sized(v)
		if err != nil || b == nil {
			return 0, errBinary
		}
		rh, err := n.elem.binaryRange(b, s)
		if err != nil {
			return 0, err
		}
		h = h*31 + rh
		v = rest
	}
	if len(v) != 0 {
		return 0, errBinary
	}
	return h, nil
}

// binaryRecord reads a count and, per attribute, type, length and value.
func (n *node) binaryRecord(v []byte, s *scratch) (uint32, error) {
	if len(v) < 4 {
		return 0, errBinary
	}
	if int64(binary.BigEndian.Uint32(v)) != int64(len(n.fields)) {
		return 0, errArity
	}
	v = v[4:]
	var h uint32
	for _, f := range n.fields {
		if len(v) < 4 {
			return 0, errBinary
		}
		b, rest, err := sized(v[4:])
		if err != nil {
			return 0, err
		}
		var fh uint32
		if b != nil {
			if fh, err = f.hashBinary(b, s); err != nil {
				return 0, err
			}
		}
		h = h*31 + fh
		v = rest
	}
	if len(v) != 0 {
		return 0, errBinary
	}
	return h, nil
}

// legacyBinary is legacyHash for the binary format.
func (n *node) legacyBinary(h uint32, v []byte, s *scratch) (uint32, error) {
	switch n.op {
	case opInt8, opTime, opTimestamp, opTimestamptz, opMoney:
		x, err := fixed(v, 8)
		return fnv64(h, x), err
	case opInt4, opOID:
		x, err := fixed(v, 4)
		return fnv64(h, uint64(int64(int32(x)))), err
	case opInt2:
		x, err := fixed(v, 2)
		return fnv64(h, uint64(int64(int16(x)))), err
	case opDate:
		x, err := fixed(v, 4)
		return fnv32(h, uint32(x)), err
	case opBool, opChar:
		_, err := fixed(v, 1)
		return fnv(h, v), err
	case opFloat4:
		x, err := fixed(v, 4)
		if math.Float32frombits(uint32(x)) == 0 {
			x = 0
		}
		return fnv32(h, uint32(x)), err
	case opFloat8:
		x, err := fixed(v, 8)
		if math.Float64frombits(x) == 0 {
			x = 0
		}
		return fnv64(h, x), err
	case opText, opBpchar:
		return fnv(h, trimBlanks(v, 1)), nil
	case opBytea:
		return fnv(h, v), nil
	case opName:
		if len(v) > nameLen {
			return 0, errBinary
		}
		return zeros(fnv(h, v), nameLen+1-len(v)), nil
	case opTimetz:
		if len(v) != 12 {
			return 0, errBinary
		}
		return fnv32(fnv64(h, binary.BigEndian.Uint64(v)), binary.BigEndian.Uint32(v[8:])), nil
	case opInterval:
		iv, err := binaryInterval(v)
		return fnv32(fnv64(h, uint64(iv.us)), uint32(iv.days)), err
	case opInet, opCidr:
		a, err := binaryInet(v)
		return fnv(h, a.key[:a.n]), err
	case opMacaddr, opUUID:
		if len(v) != int(n.base.size) {
			return 0, errBinary
		}
		return fnv(h, v), nil
	case opTid:
		t, err := binaryTid(v)
		return fnv(h, t[:]), err
	case opBit:
		b, err := binaryBits(v)
		return fnv(h, b), err
	case opArray:
		return 0, errBinaryArray
	}
	mark := len(s.buf)
	defer func() { s.buf = s.buf[:mark] }()
	switch n.op {
	case opNumeric:
		d, err := s.binaryNumeric(v)
		if d.nan {
			return fnv32(h, legacyNaN), err
		}
		return fnv(h, s.buf[mark:]), err
	case opOIDVector:
		err := eachElement(v, func(e []byte) error {
			x, err := fixed(e, 4)
			s.u32(uint32(x))
			return err
		})
		return fnv(h, s.buf[mark:]), err
	}
	return 0, errBinary
}
