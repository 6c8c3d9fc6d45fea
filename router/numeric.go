package router

import "math"

// Limits of PostgreSQL's numeric: digits before and after the decimal point.
const (
	numericMaxWhole = 131072
	numericMaxFrac  = 16383
)

// decimal is a parsed numeric: its base 10000 digits, without leading and
// trailing zero digits, lie on the scratch as little-endian int16, as in the
// server's memory.
type decimal struct {
	special  bool // NaN or an infinity; no digits
	nan      bool
	negative bool
	weight   int // exponent, base 10000, of the first digit
	digits   int
	scale    int // decimal digits shown behind the point
}

// numeric reads a numeric and pushes its digits.
func (s *scratch) numeric(v []byte) (decimal, error) {
	if x, ok := floatWord(v); ok {
		nan := math.IsNaN(x)
		return decimal{special: true, nan: nan, negative: x < 0}, nil
	}
	return s.decimal(v)
}

// decimal reads a numeric that is a number.
func (s *scratch) decimal(v []byte) (decimal, error) {
	if _, ok := decimalSyntax(v); !ok {
		return decimal{}, errSyntax
	}
	var d decimal
	i := 0
	if v[0] == '-' || v[0] == '+' {
		d.negative = v[0] == '-'
		i = 1
	}
	// Find the extent of the digits, the point and the exponent.
	start, point, exp := i, -1, 0
	for i < len(v) && v[i] != 'e' && v[i] != 'E' {
		if v[i] == '.' {
			point = i
		}
		i++
	}
	mantissa := v[start:i]
	if i < len(v) {
		e, err := parseInt(v[i+1:], -math.MaxInt32/2, math.MaxInt32/2)
		if err != nil {
			return decimal{}, errRange
		}
		exp = int(e)
	}
	whole, frac := len(mantissa), 0
	if point >= 0 {
		whole = point - start
		frac = len(mantissa) - whole - 1
	}
	if d.scale = max(frac-exp, 0); d.scale > numericMaxFrac {
		return decimal{}, errRange
	}
	// place is the power of ten of the next digit of mantissa.
	place := whole - 1 + exp
	var group, pending int // the digit being built; zero digits held back
	first := true
	for _, c := range mantissa {
		if c == '.' {
			continue
		}
		x := int(c - '0')
		if first {
			if x == 0 {
				place--
				continue
			}
			if place >= numericMaxWhole {
				return decimal{}, errRange
			}
			first = false
			d.weight = place >> 2
		}
		group += x * [4]int{1, 10, 100, 1000}[place&3]
		if place&3 == 0 {
			pending = s.digit(&d, group, pending)
			group = 0
		}
		place--
	}
	if group != 0 {
		s.digit(&d, group, pending)
	}
	return d, nil
}

// digit pushes a base 10000 digit, zeros only once a later digit follows.
func (s *scratch) digit(d *decimal, group, pending int) int {
	if group == 0 {
		return pending + 1
	}
	for range pending {
		s.u16(0)
	}
	s.u16(uint16(group))
	d.digits += pending + 1
	return 0
}

// hashNumeric is hash_numeric: scale and sign do not matter, zeros at either
// end neither; NaN and the infinities hash to 0 and zero to -1.
func hashNumeric(v []byte, s *scratch) (uint32, error) {
	mark := len(s.buf)
	d, err := s.numeric(v)
	if err != nil {
		return 0, err
	}
	h := d.hash(s.buf[mark:])
	s.buf = s.buf[:mark]
	return h, nil
}

func (d decimal) hash(digits []byte) uint32 {
	switch {
	case d.special:
		return 0
	case d.digits == 0:
		return math.MaxUint32
	}
	return hashBytes(digits) ^ uint32(int32(d.weight))
}
