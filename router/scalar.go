package router

import (
	"encoding/binary"
	"math"
	"strconv"
	"unicode/utf8"
	"unsafe"
)

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

// parsePlainUint reads a number that the server reads in C notation (xid, cid,
// xid8, a network mask): a leading zero would make it octal, or is refused.
func parsePlainUint(v []byte, hi uint64) (uint64, error) {
	if len(v) > 1 && v[0] == '0' {
		return 0, errSyntax
	}
	return parseUint(v, hi)
}

func parseUint32(v []byte) (uint32, error) {
	u, err := parseUint(v, math.MaxUint32)
	return uint32(u), err
}

// parseBool reads what boolin accepts: any unambiguous start of true, false,
// yes, no, on, off, and 1 and 0.
func parseBool(v []byte) (byte, error) {
	var low [5]byte
	if len(v) == 0 || len(v) > len(low) {
		return 0, errSyntax
	}
	for i, c := range v {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		low[i] = c
	}
	switch string(low[:len(v)]) {
	case "t", "tr", "tru", "true", "y", "ye", "yes", "on", "1":
		return 1, nil
	case "f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0":
		return 0, nil
	}
	return 0, errSyntax
}

// parseChar reads "char": nothing is byte 0, one byte is itself, and a byte
// above 127 may be a backslash and three octal digits (PostgreSQL 16 on).
func parseChar(v []byte) (byte, error) {
	switch len(v) {
	case 0:
		return 0, nil
	case 1:
		return v[0], nil
	case 4:
		if x, ok := octal(v); ok {
			return x, nil
		}
	}
	return 0, errSyntax
}

// octal reads a backslash and three octal digits up to \377.
func octal(v []byte) (byte, bool) {
	if len(v) < 4 || v[0] != '\\' || v[1] < '0' || v[1] > '3' ||
		v[2] < '0' || v[2] > '7' || v[3] < '0' || v[3] > '7' {
		return 0, false
	}
	return (v[1]-'0')<<6 | (v[2]-'0')<<3 | (v[3] - '0'), true
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

// foldEqual compares v with a lower-case ASCII word, ignoring case.
func foldEqual(v []byte, word string) bool {
	if len(v) != len(word) {
		return false
	}
	for i, c := range v {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != word[i] {
			return false
		}
	}
	return true
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

// nameLen is the most bytes a name holds.
const nameLen = 63

// clipName cuts a name where namein would: at 63 bytes, between characters of
// UTF-8. A server never prints a longer one.
func clipName(v []byte) []byte {
	if len(v) <= nameLen {
		return v
	}
	n := nameLen
	for n > nameLen-utf8.UTFMax && !utf8.RuneStart(v[n]) {
		n--
	}
	return v[:n]
}

func unhex(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// hexByte reads the two hexadecimal digits at v[0] and v[1].
func hexByte(v []byte) (byte, bool) {
	if len(v) < 2 {
		return 0, false
	}
	hi, ok1 := unhex(v[0])
	lo, ok2 := unhex(v[1])
	return hi<<4 | lo, ok1 && ok2
}

// bytea unpacks a bytea onto the scratch: hex (\x...) or escape format.
func (s *scratch) bytea(v []byte) error {
	if len(v) >= 2 && v[0] == '\\' && v[1] == 'x' {
		v = v[2:]
		if len(v)%2 != 0 {
			return errSyntax
		}
		for ; len(v) > 0; v = v[2:] {
			b, ok := hexByte(v)
			if !ok {
				return errSyntax
			}
			s.buf = append(s.buf, b)
		}
		return nil
	}
	for len(v) > 0 {
		if v[0] != '\\' {
			s.buf = append(s.buf, v[0])
			v = v[1:]
			continue
		}
		if len(v) >= 2 && v[1] == '\\' {
			s.buf = append(s.buf, '\\')
			v = v[2:]
			continue
		}
		b, ok := octal(v)
		if !ok {
			return errSyntax
		}
		s.buf = append(s.buf, b)
		v = v[4:]
	}
	return nil
}

// bits packs a bit string onto the scratch, first bit highest, the last byte
// filled with zeros, and returns the number of bits.
func (s *scratch) bits(v []byte) (int, error) {
	if len(v) > 0 && (v[0] == 'x' || v[0] == 'X') {
		v = v[1:]
		var acc byte
		for i, c := range v {
			d, ok := unhex(c)
			if !ok {
				return 0, errSyntax
			}
			if acc = acc<<4 | d; i%2 == 1 {
				s.buf = append(s.buf, acc)
			}
		}
		if len(v)%2 == 1 {
			s.buf = append(s.buf, acc<<4)
		}
		return 4 * len(v), nil
	}
	if len(v) > 0 && (v[0] == 'b' || v[0] == 'B') {
		v = v[1:]
	}
	var acc byte
	for i, c := range v {
		if c != '0' && c != '1' {
			return 0, errSyntax
		}
		if acc = acc<<1 | (c - '0'); i%8 == 7 {
			s.buf = append(s.buf, acc)
		}
	}
	if r := len(v) % 8; r != 0 {
		s.buf = append(s.buf, acc<<(8-r))
	}
	return len(v), nil
}

// nextWord splits v at the first run of blanks.
func nextWord(v []byte) (word, rest []byte) {
	for len(v) > 0 && v[0] == ' ' {
		v = v[1:]
	}
	i := 0
	for i < len(v) && v[i] != ' ' {
		i++
	}
	return v[:i], v[i:]
}

// oidVector unpacks the elements, 4 little-endian bytes each.
func (s *scratch) oidVector(v []byte) error {
	for {
		var w []byte
		if w, v = nextWord(v); len(w) == 0 {
			return nil
		}
		x, err := parseUint32(w)
		if err != nil {
			return err
		}
		s.u32(x)
	}
}

// hashInt2Vector is hash_array of the elements.
func hashInt2Vector(v []byte) (uint32, error) {
	h := uint32(1)
	for {
		var w []byte
		if w, v = nextWord(v); len(w) == 0 {
			return h, nil
		}
		x, err := parseInt(w, math.MinInt16, math.MaxInt16)
		if err != nil {
			return 0, err
		}
		h = h*31 + hashUint32(uint32(x))
	}
}

// u16, u32 and u64 push little-endian integers.
func (s *scratch) u16(x uint16) { s.buf = append(s.buf, byte(x), byte(x>>8)) }
func (s *scratch) u32(x uint32) {
	s.buf = append(s.buf, byte(x), byte(x>>8), byte(x>>16), byte(x>>24))
}
func (s *scratch) u64(x uint64) {
	s.u32(uint32(x))
	s.u32(uint32(x >> 32))
}

// parseLSN reads a pg_lsn: X/X in hexadecimal.
func parseLSN(v []byte) (uint64, error) {
	var part [2]uint64
	k, n := 0, 0
	for _, c := range v {
		if c == '/' && k == 0 && n > 0 {
			k, n = 1, 0
			continue
		}
		d, ok := unhex(c)
		if n++; !ok || n > 8 {
			return 0, errSyntax
		}
		part[k] = part[k]<<4 | uint64(d)
	}
	if k != 1 || n == 0 {
		return 0, errSyntax
	}
	return part[0]<<32 | part[1], nil
}

// parseTid reads a tuple id "(block,offset)" into its six bytes on disk: the
// block's high half, its low half, the offset.
func parseTid(v []byte) (t [6]byte, err error) {
	if len(v) < 5 || v[0] != '(' || v[len(v)-1] != ')' {
		return t, errSyntax
	}
	v = v[1 : len(v)-1]
	for i, c := range v {
		if c != ',' {
			continue
		}
		block, err := parseUint32(v[:i])
		if err != nil {
			return t, err
		}
		off, err := parseUint(v[i+1:], math.MaxUint16)
		if err != nil {
			return t, err
		}
		return [6]byte{byte(block >> 16), byte(block >> 24), byte(block), byte(block >> 8), byte(off), byte(off >> 8)}, nil
	}
	return t, errSyntax
}

// parseUUID reads a uuid as uuid_in does: hexadecimal digits, a hyphen allowed
// after any group of four, braces allowed around.
func parseUUID(v []byte) (u [16]byte, err error) {
	if len(v) >= 2 && v[0] == '{' && v[len(v)-1] == '}' {
		v = v[1 : len(v)-1]
	}
	for i := range u {
		b, ok := hexByte(v)
		if !ok {
			return u, errSyntax
		}
		u[i] = b
		v = v[2:]
		if i%2 == 1 && i < 15 && len(v) > 0 && v[0] == '-' {
			v = v[1:]
		}
	}
	if len(v) != 0 {
		return u, errSyntax
	}
	return u, nil
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
