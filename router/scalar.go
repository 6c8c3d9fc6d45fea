package router

import (
	"math"
	"unicode/utf8"
)

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

// hexValue maps a hexadecimal digit to its value and other bytes to 0xff.
const hexValue = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" +
	"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\xff\xff\xff\xff\xff\xff" +
	"\xff\x0a\x0b\x0c\x0d\x0e\x0f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" +
	"\xff\x0a\x0b\x0c\x0d\x0e\x0f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" +
	"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" +
	"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" +
	"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" +
	"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"

func unhex(c byte) (byte, bool) {
	d := hexValue[c]
	return d, d < 16
}

// hexByte reads the two hexadecimal digits at v[0] and v[1].
func hexByte(v []byte) (byte, bool) {
	if len(v) < 2 {
		return 0, false
	}
	hi, lo := hexValue[v[0]], hexValue[v[1]]
	return hi<<4 | lo&15, hi|lo < 16
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
		x, err := parseOID(w)
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
		block, err := parseUint(v[:i], math.MaxUint32)
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
