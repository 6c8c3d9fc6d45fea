package router

import (
	"encoding/binary"
	"math"
)

// legacyHash adds a value's text to the FNV-1 hash h of a legacy-family row, as
// the cdblegacyhash functions of Greenplum's cdblegacyhash.c do. They hash the
// value's bytes in the server's memory; integers are widened to eight bytes
// first, strings lose trailing blanks down to one byte, an interval loses its
// months and a bit string its length.
func (n *node) legacyHash(h uint32, v []byte, s *scratch) (uint32, error) {
	switch n.op {
	case opInt2, opInt4, opInt8:
		x, err := n.parseInteger(v)
		return fnv64(h, uint64(x)), err
	case opText, opBpchar:
		return fnv(h, trimBlanks(v, 1)), nil
	case opOID: // widened as a signed int4
		x, err := parseOID(v)
		return fnv64(h, uint64(int64(int32(x)))), err
	case opBool:
		x, err := parseBool(v)
		return fnv(h, []byte{x}), err
	case opChar:
		x, err := parseChar(v)
		return fnv(h, []byte{x}), err
	case opName: // all 64 bytes, zeros included
		name := clipName(v)
		h = fnv(h, name)
		for i := len(name); i <= nameLen; i++ {
			h *= fnvPrime
		}
		return h, nil
	case opFloat4:
		x, err := parseFloat(v, true)
		if x == 0 {
			x = 0 // minus zero becomes zero
		}
		return fnv32(h, math.Float32bits(float32(x))), err
	case opFloat8:
		x, err := parseFloat(v, false)
		if x == 0 {
			x = 0
		}
		return fnv64(h, math.Float64bits(x)), err
	case opDate:
		x, err := parseDate(v)
		return fnv32(h, uint32(x)), err
	case opTime:
		x, err := parseTime(v)
		return fnv64(h, uint64(x)), err
	case opTimestamp:
		x, err := parseTimestamp(v, zoneNone)
		return fnv64(h, uint64(x)), err
	case opTimestamptz:
		x, err := parseTimestamp(v, n.zone())
		return fnv64(h, uint64(x)), err
	case opTimetz:
		x, west, err := parseTimetz(v, n.zone())
		return fnv32(fnv64(h, uint64(x)), uint32(west)), err
	case opInterval:
		iv, err := parseInterval(v)
		return fnv32(fnv64(h, uint64(iv.us)), uint32(iv.days)), err
	case opInet, opCidr:
		var a inetValue
		err := a.parse(v, n.op == opCidr)
		return fnv(h, a.key[:a.n]), err
	case opMacaddr:
		m, err := parseMAC(v)
		return fnv(h, m[:]), err
	case opUUID:
		u, err := parseUUID(v)
		return fnv(h, u[:]), err
	case opTid:
		t, err := parseTid(v)
		return fnv(h, t[:]), err
	case opMoney:
		x, err := parseMoney(v)
		return fnv64(h, uint64(x)), err
	case opArray:
		return n.legacyArray(h, v, s)
	}
	mark := len(s.buf)
	var err error
	switch n.op {
	case opNumeric:
		var d decimal
		if d, err = s.numeric(v); err == nil && d.nan {
			return fnv32(h, legacyNaN), nil
		}
	case opBytea:
		err = s.bytea(v)
	case opBit:
		_, err = s.bits(v)
	case opOIDVector:
		err = s.oidVector(v)
	}
	h = fnv(h, s.buf[mark:])
	s.buf = s.buf[:mark]
	return h, err
}

// legacyArray adds an array as stored, without the length word: dimensions,
// offset of the data (0 unless there are NULLs), element type, the length and
// lower bound of each dimension, the NULL bitmap and the elements, everything
// padded with zeros to its alignment (ArrayType in utils/array.h). It is the
// form that array_in builds from the array's text.
func (n *node) legacyArray(h uint32, v []byte, s *scratch) (uint32, error) {
	mark := len(s.buf)
	defer func() { s.buf = s.buf[:mark] }()
	// First pass: shape and NULLs.
	a, err := readArray(v)
	if err != nil {
		return 0, err
	}
	items, nulls := 0, false
	for more := true; more; s.buf = s.buf[:mark] {
		var null bool
		if _, null, more, err = a.next(s); err != nil {
			return 0, err
		}
		if more {
			items++
			nulls = nulls || null
		}
	}
	header := 16 + 8*a.ndim // with the length word
	size := header
	if nulls {
		size += (items + 7) / 8
	}
	data := (size + 7) &^ 7
	h = fnv32(h, uint32(a.ndim))
	if nulls {
		h = fnv32(h, uint32(data))
	} else {
		h = fnv32(h, 0)
	}
	h = fnv32(h, n.elemOID)
	for i := range a.ndim {
		h = fnv32(h, uint32(a.dims[i]))
	}
	for i := range a.ndim {
		h = fnv32(h, uint32(a.lower[i]))
	}
	if a.ndim == 0 { // an empty array ends here
		return h, nil
	}
	if nulls {
		b, _ := readArray(v)
		var acc byte
		for i := range items {
			_, null, _, _ := b.next(s)
			s.buf = s.buf[:mark]
			if !null {
				acc |= 1 << (i % 8)
			}
			if i%8 == 7 || i == items-1 {
				h = h*fnvPrime ^ uint32(acc)
				acc = 0
			}
		}
	}
	h = zeros(h, data-size)
	b, _ := readArray(v)
	at := 0 // offset in the data: its start is aligned
	for range items {
		elem, null, _, _ := b.next(s)
		if !null {
			top := len(s.buf)
			if err := n.elem.image(elem, s); err != nil {
				return 0, err
			}
			h = fnv(h, s.buf[top:])
			at += len(s.buf) - top
			pad := -at & (int(n.elem.base.align) - 1)
			h = zeros(h, pad)
			at += pad
		}
		s.buf = s.buf[:mark]
	}
	return h, nil
}

// zeros adds k zero bytes.
func zeros(h uint32, k int) uint32 {
	for range k {
		h *= fnvPrime
	}
	return h
}

// hasImage tells whether image knows the type.
func (b *builtin) hasImage() bool {
	switch b.op {
	case opNone, opJSONB, opRange, opMultirange, opArray, opRecord, opOIDVector, opInt2Vector:
		return false
	}
	return true
}

// image pushes the value as it lies in an array of a little-endian server:
// varying types with a four-byte length word.
func (n *node) image(v []byte, s *scratch) (err error) {
	mark := len(s.buf)
	if n.base.size < 0 {
		s.u32(0) // the length, filled in below
	}
	switch n.op {
	case opBool:
		var x byte
		x, err = parseBool(v)
		s.buf = append(s.buf, x)
	case opChar:
		var x byte
		x, err = parseChar(v)
		s.buf = append(s.buf, x)
	case opInt2:
		var x int64
		x, err = parseInt(v, math.MinInt16, math.MaxInt16)
		s.u16(uint16(x))
	case opInt4:
		var x int64
		x, err = parseInt(v, math.MinInt32, math.MaxInt32)
		s.u32(uint32(x))
	case opInt8:
		var x int64
		x, err = parseInt(v, math.MinInt64, math.MaxInt64)
		s.u64(uint64(x))
	case opOID:
		var x uint32
		x, err = parseOID(v)
		s.u32(x)
	case opXid:
		var x uint64
		x, err = parsePlainUint(v, math.MaxUint32)
		s.u32(uint32(x))
	case opXid8:
		var x uint64
		x, err = parsePlainUint(v, math.MaxUint64)
		s.u64(x)
	case opFloat4:
		var x float64
		x, err = parseFloat(v, true)
		s.u32(math.Float32bits(float32(x)))
	case opFloat8:
		var x float64
		x, err = parseFloat(v, false)
		s.u64(math.Float64bits(x))
	case opNumeric:
		err = s.numericImage(v)
	case opText, opBpchar:
		s.buf = append(s.buf, v...)
	case opName:
		s.buf = append(s.buf, clipName(v)...)
		for len(s.buf) < mark+nameLen+1 {
			s.buf = append(s.buf, 0)
		}
	case opBytea:
		err = s.bytea(v)
	case opDate:
		var x int32
		x, err = parseDate(v)
		s.u32(uint32(x))
	case opTime:
		var x int64
		x, err = parseTime(v)
		s.u64(uint64(x))
	case opTimestamp, opTimestamptz:
		rule := zoneNone
		if n.op == opTimestamptz {
			rule = n.zone()
		}
		var x int64
		x, err = parseTimestamp(v, rule)
		s.u64(uint64(x))
	case opTimetz:
		var x int64
		var west int32
		x, west, err = parseTimetz(v, n.zone())
		s.u64(uint64(x))
		s.u32(uint32(west))
	case opInterval:
		var iv interval
		iv, err = parseInterval(v)
		s.u64(uint64(iv.us))
		s.u32(uint32(iv.days))
		s.u32(uint32(iv.months))
	case opInet, opCidr:
		var a inetValue
		err = a.parse(v, n.op == opCidr)
		s.buf = append(s.buf, a.key[:a.n]...)
	case opMacaddr:
		var m [6]byte
		m, err = parseMAC(v)
		s.buf = append(s.buf, m[:]...)
	case opMacaddr8:
		var m [8]byte
		m, err = parseMAC8(v)
		s.buf = append(s.buf, m[:]...)
	case opUUID:
		var u [16]byte
		u, err = parseUUID(v)
		s.buf = append(s.buf, u[:]...)
	case opBit:
		s.u32(0)
		var bits int
		bits, err = s.bits(v)
		binary.LittleEndian.PutUint32(s.buf[mark+4:], uint32(bits))
	case opLSN:
		var x uint64
		x, err = parseLSN(v)
		s.u64(x)
	case opTid:
		var t [6]byte
		t, err = parseTid(v)
		s.buf = append(s.buf, t[:]...)
	case opMoney:
		var x int64
		x, err = parseMoney(v)
		s.u64(uint64(x))
	}
	if n.base.size < 0 {
		// Unlike PostgreSQL, the Greenplum family keeps lengths in network byte order.
		binary.BigEndian.PutUint32(s.buf[mark:], uint32(len(s.buf)-mark))
	}
	return err
}

// numericImage pushes a numeric's header and digits (utils/adt/numeric.c): the
// short header where scale and weight fit it.
func (s *scratch) numericImage(v []byte) error {
	mark := len(s.buf)
	s.u16(0)
	d, err := s.numeric(v)
	if err != nil {
		return err
	}
	var head, weight uint16
	long := false
	switch {
	case d.nan:
		head = 0xc000
	case d.special && d.negative:
		head = 0xf000
	case d.special:
		head = 0xd000
	case d.scale <= 63 && d.weight >= -64 && d.weight <= 63:
		head = 0x8000 | uint16(d.scale)<<7 | uint16(d.weight)&0x7f
		if d.sign() < 0 {
			head |= 0x2000
		}
	default:
		long = true
		head, weight = uint16(d.scale), uint16(d.weight)
		if d.sign() < 0 {
			head |= 0x4000
		}
	}
	s.buf[mark], s.buf[mark+1] = byte(head), byte(head>>8)
	if long { // make room for the weight
		s.u16(0)
		copy(s.buf[mark+4:], s.buf[mark+2:])
		s.buf[mark+2], s.buf[mark+3] = byte(weight), byte(weight>>8)
	}
	return nil
}
