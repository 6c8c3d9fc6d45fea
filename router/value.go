package router

import (
	"errors"
	"math"
)

// What can be wrong with a value's text. No error holds the value itself.
var (
	errSyntax  = errors.New("the text is not in a form the server prints for this type")
	errRange   = errors.New("the value is out of the type's range")
	errOffset  = errors.New("the text has no time zone offset")
	errDepth   = errors.New("the value nests too deep")
	errHost    = errors.New("the cidr value has bits set to the right of its mask")
	errBounds  = errors.New("the lower bound of the range is above the upper bound")
	errOrder   = errors.New("the ranges of the multirange are not in the order the server prints them")
	errArity   = errors.New("the text has another number of attributes than the composite type")
	errDims    = errors.New("the array's sub-arrays differ in length")
	errDecimal = errors.New("the money text is not in the form of lc_monetary C or en_US; the place of its decimal point is unknown")
)

// hash returns the default family's hash of a value's text: what the type's
// hash function returns on the server. v is not nil. s may be nil unless
// n.scratch is set.
func (n *node) hash(v []byte, s *scratch) (uint32, error) {
	switch n.op {
	case opInt8:
		x, err := parseInt(v, math.MinInt64, math.MaxInt64)
		return hashInt8(x), err
	case opInt4:
		x, err := parseInt(v, math.MinInt32, math.MaxInt32)
		return hashUint32(uint32(x)), err
	case opText:
		return hashBytes(v), nil
	case opInt2:
		x, err := parseInt(v, math.MinInt16, math.MaxInt16)
		return hashUint32(uint32(x)), err
	case opBool:
		x, err := parseBool(v)
		return hashUint32(uint32(x)), err
	case opChar: // hashchar widens a signed char
		x, err := parseChar(v)
		return hashUint32(uint32(int8(x))), err
	case opOID:
		x, err := parseOID(v)
		return hashUint32(x), err
	case opXid:
		x, err := parsePlainUint(v, math.MaxUint32)
		return hashUint32(uint32(x)), err
	case opXid8:
		x, err := parsePlainUint(v, math.MaxUint64)
		return hashInt8(int64(x)), err
	case opFloat4, opFloat8:
		x, err := parseFloat(v, n.op == opFloat4)
		return hashFloat(x), err
	case opBpchar:
		return hashBytes(trimBlanks(v, 0)), nil
	case opName:
		return hashBytes(clipName(v)), nil
	case opDate:
		x, err := parseDate(v)
		return hashUint32(uint32(x)), err
	case opTime:
		x, err := parseTime(v)
		return hashInt8(x), err
	case opTimestamp:
		x, err := parseTimestamp(v, zoneNone)
		return hashInt8(x), err
	case opTimestamptz:
		x, err := parseTimestamp(v, n.zone())
		return hashInt8(x), err
	case opTimetz:
		t, west, err := parseTimetz(v, n.zone())
		return hashInt8(t) ^ hashUint32(uint32(west)), err
	case opInterval:
		iv, err := parseInterval(v)
		return hashInt8(iv.span()), err
	case opInet, opCidr:
		var a inetValue
		err := a.parse(v, n.op == opCidr)
		return hashBytes(a.key[:a.n]), err
	case opMacaddr:
		m, err := parseMAC(v)
		return hashBytes(m[:]), err
	case opMacaddr8:
		m, err := parseMAC8(v)
		return hashBytes(m[:]), err
	case opUUID:
		u, err := parseUUID(v)
		return hashBytes(u[:]), err
	case opLSN:
		x, err := parseLSN(v)
		return hashInt8(int64(x)), err
	case opTid:
		t, err := parseTid(v)
		return hashBytes(t[:]), err
	}
	return n.hashScratch(v, s)
}

// hashScratch hashes the types whose values are unpacked into s first.
func (n *node) hashScratch(v []byte, s *scratch) (h uint32, err error) {
	mark := len(s.buf)
	defer func() { s.buf = s.buf[:mark] }()
	switch n.op {
	case opNumeric:
		return hashNumeric(v, s)
	case opBytea:
		if err = s.bytea(v); err == nil {
			h = hashBytes(s.buf[mark:])
		}
		return h, err
	case opBit:
		if _, err = s.bits(v); err == nil {
			h = hashBytes(s.buf[mark:])
		}
		return h, err
	case opOIDVector:
		if err = s.oidVector(v); err == nil {
			h = hashBytes(s.buf[mark:])
		}
		return h, err
	case opInt2Vector:
		return hashInt2Vector(v)
	case opJSONB:
		return hashJSONB(v, s)
	case opArray:
		return n.hashArray(v, s)
	case opRange:
		return n.hashRange(v, s)
	case opMultirange:
		return n.hashMultirange(v, s)
	case opRecord:
		return n.hashRecord(v, s)
	}
	return 0, errors.New("internal: type compiled without a hash function")
}

func (n *node) zone() zoneRule {
	if n.utc {
		return zoneUTC
	}
	return zoneRequired
}

// hashFloat is hashfloat8 of PostgreSQL 14 and later (float4 is widened first):
// both zeros hash to 0, every NaN as the server's own.
func hashFloat(x float64) uint32 {
	switch {
	case x == 0:
		return 0
	case math.IsNaN(x):
		return hashUint64Bytes(nanBits)
	}
	return hashUint64Bytes(math.Float64bits(x))
}

// nanBits is the NaN that float8in makes.
const nanBits = 0x7ff8000000000000

// trimBlanks drops trailing blanks as long as more than keep bytes are left.
func trimBlanks(v []byte, keep int) []byte {
	for len(v) > keep && v[len(v)-1] == ' ' {
		v = v[:len(v)-1]
	}
	return v
}
