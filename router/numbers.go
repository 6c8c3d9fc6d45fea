package router

import (
	"encoding/binary"
	"math"
	"strconv"
	"unsafe"
)

// parseInteger reads a value of an integer type.
func (n *node) parseInteger(v []byte) (int64, error) {
	switch n.op {
	case opInt2:
		return parseInt(v, math.MinInt16, math.MaxInt16)
	case opInt4:
		return parseInt(v, math.MinInt32, math.MaxInt32)
	}
	return parseInt(v, math.MinInt64, math.MaxInt64)
}

// parseInt reads a decimal integer between lo and hi.
func parseInt(v []byte, lo, hi int64) (int64, error) {
	neg := false
	d := v
	if len(d) > 0 && (d[0] == '-' || d[0] == '+') {
		neg = d[0] == '-'
		d = d[1:]
	}
	var u uint64
	var ok bool
	switch n := len(d); {
	case n == 0:
		return 0, errSyntax
	case n <= 8:
		u, ok = eightDigits(digitWord(d))
	case n <= 16:
		u1, ok1 := eightDigits(digitWord(d[:n-8]))
		u2, ok2 := eightDigits(binary.LittleEndian.Uint64(d[n-8:]))
		u, ok = u1*1e8+u2, ok1 && ok2
	case n <= 19: // below 10^19: no overflow
		u1, ok1 := eightDigits(digitWord(d[:n-16]))
		u2, ok2 := eightDigits(binary.LittleEndian.Uint64(d[n-16:]))
		u3, ok3 := eightDigits(binary.LittleEndian.Uint64(d[n-8:]))
		u, ok = u1*1e16+u2*1e8+u3, ok1 && ok2 && ok3
	default:
		var err error
		if u, err = parseUint(d, math.MaxUint64); err != nil {
			return 0, err
		}
		ok = true
	}
	if !ok {
		return 0, errSyntax
	}
	if neg {
		if u > -uint64(lo) {
			return 0, errRange
		}
		return -int64(u), nil
	}
	if u > uint64(hi) {
		return 0, errRange
	}
	return int64(u), nil
}

// digitWord loads one to eight digits as eight: '0' in front of the fewer.
func digitWord(d []byte) uint64 {
	n := len(d)
	if n == 8 {
		return binary.LittleEndian.Uint64(d)
	}
	gap := uint(8*(8-n)) & 63
	var w uint64
	if n >= 4 { // two loads that may overlap
		w = uint64(binary.LittleEndian.Uint32(d[n-4:]))<<32 | uint64(binary.LittleEndian.Uint32(d))<<gap
	} else { // three that may be the same byte
		mid := n / 2
		w = uint64(d[0])<<gap | uint64(d[mid])<<(gap+8*uint(mid)) | uint64(d[n-1])<<56
	}
	return w | 0x3030303030303030&(1<<gap-1)
}

// eightDigits converts eight ASCII digits, the first in the lowest byte, by
// three multiplications (Daniel Lemire, "Quickly parsing eight digits", 2018).
func eightDigits(w uint64) (uint64, bool) {
	t := w - 0x3030303030303030
	ok := (w+0x4646464646464646|t)&0x8080808080808080 == 0
	t = t*10 + t>>8
	t = (t&0x000000ff000000ff*(100+1000000<<32) + t>>16&0x000000ff000000ff*(1+10000<<32)) >> 32
	return t, ok
}

// parseUint reads an unsigned decimal integer up to hi.
func parseUint(v []byte, hi uint64) (uint64, error) {
	if len(v) == 0 {
		return 0, errSyntax
	}
	var u uint64
	for _, c := range v {
		d := uint64(c) - '0'
		if d > 9 {
			return 0, errSyntax
		}
		if u > math.MaxUint64/10 || u*10 > math.MaxUint64-d {
			return 0, errRange
		}
		u = u*10 + d
	}
	if u > hi {
		return 0, errRange
	}
	return u, nil
}

// parsePlainUint reads a number as servers print it, without leading zeros. Text
// with leading zeros is refused: for some types (xid, cid, xid8, a network mask)
// the server takes it for octal or refuses it, and for oid that depends on its
// version: decimal up to PostgreSQL 15, octal from 16 on.
func parsePlainUint(v []byte, hi uint64) (uint64, error) {
	if len(v) > 1 && v[0] == '0' {
		return 0, errSyntax
	}
	return parseUint(v, hi)
}

// parseOID reads an oid.
func parseOID(v []byte) (uint32, error) {
	u, err := parsePlainUint(v, math.MaxUint32)
	return uint32(u), err
}

// parseFloat reads a float8, or with single a float4. With extra_float_digits 1
// or more (PostgreSQL 11 and older: 3) the text names exactly one number.
func parseFloat(v []byte, single bool) (float64, error) {
	if x, ok := floatWord(v); ok {
		return x, nil
	}
	zero, ok := decimalSyntax(v)
	if !ok || len(v) > 1<<16 {
		return 0, errSyntax
	}
	size := 64
	if single {
		size = 32
	}
	// No copy: ParseFloat keeps nothing of its argument.
	x, err := strconv.ParseFloat(unsafe.String(&v[0], len(v)), size)
	if err != nil || (x == 0 && !zero) {
		return 0, errRange // as float8in: overflow and underflow are errors
	}
	return x, nil
}

// floatWord reads the names of the special values, in any case.
func floatWord(v []byte) (float64, bool) {
	neg, signed := false, false
	if len(v) > 0 && (v[0] == '-' || v[0] == '+') {
		neg, signed = v[0] == '-', true
		v = v[1:]
	}
	switch {
	case foldEqual(v, "infinity"), foldEqual(v, "inf"):
		if neg {
			return math.Inf(-1), true
		}
		return math.Inf(1), true
	case foldEqual(v, "nan") && !signed:
		return math.Float64frombits(nanBits), true
	}
	return 0, false
}

// decimalSyntax checks for [sign] digits [. digits] [e [sign] digits] with a
// digit before the exponent, and tells whether all those digits are 0.
func decimalSyntax(v []byte) (zero, ok bool) {
	i, digits := 0, 0
	zero = true
	if i < len(v) && (v[i] == '-' || v[i] == '+') {
		i++
	}
	for point := false; i < len(v); i++ {
		if v[i] == '.' && !point {
			point = true
			continue
		}
		if v[i]-'0' > 9 {
			break
		}
		digits++
		zero = zero && v[i] == '0'
	}
	if digits == 0 {
		return false, false
	}
	if i < len(v) && (v[i] == 'e' || v[i] == 'E') {
		i++
		if i < len(v) && (v[i] == '-' || v[i] == '+') {
			i++
		}
		start := i
		for i < len(v) && v[i]-'0' <= 9 {
			i++
		}
		if i == start {
			return false, false
		}
	}
	return zero, i == len(v)
}

// parseMoney reads a money value in cents as lc_monetary C and en_US print it.
// Other locales place point and commas elsewhere, and some have no fraction:
// text that could come from one of them is refused, not guessed.
func parseMoney(v []byte) (int64, error) {
	neg := false
	if n := len(v); n >= 2 && v[0] == '(' && v[n-1] == ')' {
		neg = true
		v = v[1 : n-1]
	}
	if !neg && len(v) > 0 && v[0] == '-' {
		neg = true
		v = v[1:]
	}
	dollar := len(v) > 0 && v[0] == '$'
	if dollar {
		v = v[1:]
	}
	var cents uint64
	digits, group, grouped := 0, 0, false // group: digits since the last comma
	add := func(c byte) bool {
		if cents > (1<<63)/10 {
			return false
		}
		cents = cents*10 + uint64(c-'0')
		return cents <= 1<<63
	}
	i := 0
	for ; i < len(v) && v[i] != '.'; i++ {
		switch c := v[i]; {
		case c == ',' && ((!grouped && group >= 1 && group <= 3) || (grouped && group == 3)):
			grouped, group = true, 0
		case c-'0' <= 9:
			digits++
			group++
			if !add(c) {
				return 0, errRange
			}
		default:
			return 0, errDecimal
		}
	}
	if digits == 0 || (grouped && group != 3) {
		return 0, errDecimal
	}
	frac := v[i:]
	switch {
	case len(frac) == 3 && frac[1]-'0' <= 9 && frac[2]-'0' <= 9:
	case len(frac) == 0 && !dollar && !grouped:
		frac = []byte(".00")
	default:
		return 0, errDecimal
	}
	if !add(frac[1]) || !add(frac[2]) {
		return 0, errRange
	}
	if neg {
		return -int64(cents), nil
	}
	if cents > math.MaxInt64 {
		return 0, errRange
	}
	return int64(cents), nil
}
