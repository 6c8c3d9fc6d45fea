package router

import "math"

// interval is a server interval: three independent fields.
type interval struct {
	us     int64
	days   int32
	months int32
	seen   uint8 // units read, by their bits: each may stand once
}

// span is interval_cmp_value cut to 64 bits, as interval_hash does: a month
// counts as 30 days, a day as 24 hours, so that equal intervals hash alike.
func (iv interval) span() int64 {
	return iv.us + (int64(iv.months)*30+int64(iv.days))*usPerDay
}

// add adds n units of us microseconds, days or months each; the sum must fit.
func (iv *interval) add(n int64, u unit) error {
	var ok bool
	switch {
	case u.months != 0:
		iv.months, ok = addMul32(iv.months, n, u.months)
	case u.days != 0:
		iv.days, ok = addMul32(iv.days, n, u.days)
	default:
		iv.us, ok = addMul64(iv.us, n, u.us)
	}
	if !ok {
		return errRange
	}
	return nil
}

// addMul32 is x + n*k for a k of at most 12.
func addMul32(x int32, n, k int64) (int32, bool) {
	if n > math.MaxInt32 || n < math.MinInt32 {
		return 0, false
	}
	r := int64(x) + n*k
	return int32(r), r >= math.MinInt32 && r <= math.MaxInt32
}

// addMul64 is x + n*k.
func addMul64(x, n, k int64) (int64, bool) {
	p := n * k
	if n != 0 && p/n != k {
		return 0, false
	}
	r := x + p
	return r, (r > x) == (p > 0)
}

// unit is what a unit word stands for: one of the amounts, and its bit.
type unit struct {
	us, days, months int64
	bit              uint8
}

// The units. The server takes a unit only once, and so do we.
var (
	noUnit  unit
	years   = unit{months: 12, bit: 1}
	months  = unit{months: 1, bit: 2}
	weeks   = unit{days: 7, bit: 4}
	days    = unit{days: 1, bit: 8}
	hours   = unit{us: 3600 * usPerSec, bit: 16}
	minutes = unit{us: 60 * usPerSec, bit: 32}
	seconds = unit{us: usPerSec, bit: 64}
	micros  = unit{us: 1}
)

// unitOf knows the words that IntervalStyle postgres and postgres_verbose print
// and their usual spellings.
func unitOf(w []byte) unit {
	switch string(w) {
	case "year", "years", "yr", "yrs", "y":
		return years
	case "mon", "mons", "month", "months":
		return months
	case "week", "weeks", "w":
		return weeks
	case "day", "days", "d":
		return days
	case "hour", "hours", "hr", "hrs", "h":
		return hours
	case "min", "mins", "minute", "minutes":
		return minutes
	case "sec", "secs", "second", "seconds", "s":
		return seconds
	}
	return noUnit
}

// parseInterval reads IntervalStyle postgres ("1 year 2 mons -3 days
// +04:05:06.7"), postgres_verbose ("@ 1 year ... ago") and iso_8601
// ("P1Y2M-3DT4H5M6.7S"). sql_standard is refused: its signs cannot be told
// from those of the others.
func parseInterval(v []byte) (interval, error) {
	if len(v) > 0 && v[0] == 'P' {
		return parseISOInterval(v[1:])
	}
	var iv interval
	ago := false
	if n := len(v) - len(" ago"); n > 0 && string(v[n:]) == " ago" {
		ago = true
		v = v[:n]
	}
	w, rest := nextWord(v)
	if len(w) == 1 && w[0] == '@' {
		w, rest = nextWord(rest)
	}
	if len(w) == 0 {
		return iv, errSyntax
	}
	if next, _ := nextWord(rest); len(next) == 0 {
		// A lone number is seconds: how "@ 0" and "0" come.
		if n, err := parseInt(w, math.MinInt64+1, math.MaxInt64); err == nil {
			return iv, iv.addQuantity(quantity{n: n}, seconds, ago)
		}
	}
	for len(w) > 0 {
		var err error
		if hasByte(w, ':') {
			err = iv.addClock(w, ago)
		} else {
			c := cursor{v: w}
			var q quantity
			if q, err = c.quantity(); err != nil {
				return iv, err
			}
			word := w[c.i:]
			if len(word) == 0 {
				word, rest = nextWord(rest)
			}
			err = iv.addQuantity(q, unitOf(word), ago)
		}
		if err != nil {
			return iv, err
		}
		w, rest = nextWord(rest)
	}
	return iv, nil
}

func hasByte(v []byte, b byte) bool {
	for _, c := range v {
		if c == b {
			return true
		}
	}
	return false
}

// addClock adds [sign]hh:mm:ss[.ffffff]. The parts are added one by one because
// the most negative sum has no positive counterpart.
func (iv *interval) addClock(w []byte, negate bool) error {
	c := cursor{v: w}
	neg := c.skip('-')
	if !neg {
		c.skip('+')
	}
	h, ok := c.num(2, 10)
	ok = ok && c.skip(':')
	m, ok2 := c.num(2, 2)
	ok = ok && ok2
	s, us := 0, 0
	if c.skip(':') {
		s, ok2 = c.num(2, 2)
		ok = ok && ok2
		us, ok2 = c.micros()
		ok = ok && ok2
	}
	if !ok || !c.end() {
		return errSyntax
	}
	if m > 59 || s > 59 {
		return errRange
	}
	neg = neg != negate
	for _, q := range [...]struct {
		n int
		u unit
	}{{h, hours}, {m, minutes}, {s, seconds}, {us, micros}} {
		if err := iv.addQuantity(quantity{n: int64(q.n)}, q.u, neg); err != nil {
			return err
		}
	}
	return nil
}

// quantity is a signed decimal number: whole units and millionths.
type quantity struct {
	n    int64
	frac int64 // of the number's sign
}

func (c *cursor) quantity() (quantity, error) {
	neg := c.skip('-')
	if !neg {
		c.skip('+')
	}
	start := c.i
	for c.digitNext() {
		c.i++
	}
	if c.i == start {
		return quantity{}, errSyntax
	}
	n, err := parseInt(c.v[start:c.i], 0, math.MaxInt64)
	if err != nil {
		return quantity{}, err
	}
	us, ok := c.micros()
	if !ok {
		return quantity{}, errSyntax
	}
	if neg {
		return quantity{-n, -int64(us)}, nil
	}
	return quantity{n, int64(us)}, nil
}

// addQuantity adds q units. Only seconds may have a fraction: no server prints
// another, and how it would spill into smaller units is not ours to guess.
func (iv *interval) addQuantity(q quantity, u unit, negate bool) error {
	if u == noUnit || (q.frac != 0 && u.us != usPerSec) {
		return errSyntax
	}
	if iv.seen&u.bit != 0 {
		return errSyntax
	}
	iv.seen |= u.bit
	if negate {
		q.n, q.frac = -q.n, -q.frac
	}
	if err := iv.add(q.n, u); err != nil {
		return err
	}
	return iv.add(q.frac, micros)
}

// parseISOInterval reads what follows the P.
func parseISOInterval(v []byte) (interval, error) {
	var iv interval
	c := cursor{v: v}
	inTime, some := false, false
	for !c.end() {
		if !inTime && c.skip('T') {
			inTime = true
			continue
		}
		q, err := c.quantity()
		if err != nil {
			return iv, err
		}
		if c.end() {
			return iv, errSyntax
		}
		u := isoUnit(c.v[c.i], inTime)
		c.i++
		if err := iv.addQuantity(q, u, false); err != nil {
			return iv, err
		}
		some = true
	}
	if !some {
		return iv, errSyntax
	}
	return iv, nil
}

func isoUnit(c byte, inTime bool) unit {
	switch {
	case !inTime && c == 'Y':
		return years
	case !inTime && c == 'M':
		return months
	case !inTime && c == 'W':
		return weeks
	case !inTime && c == 'D':
		return days
	case inTime && c == 'H':
		return hours
	case inTime && c == 'M':
		return minutes
	case inTime && c == 'S':
		return seconds
	}
	return noUnit
}
