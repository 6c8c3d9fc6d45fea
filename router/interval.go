package router

import "math"

// interval is a server interval: three independent fields.
type interval struct {
	us     int64
	days   int32
	months int32
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

func addMul32(x int32, n, k int64) (int32, bool) {
	if n > math.MaxInt32 || n < math.MinInt32 {
		return 0, false
	}
	r := int64(x) + n*k // k is at most 12
	return int32(r), r >= math.MinInt32 && r <= math.MaxInt32
}

func addMul64(x, n, k int64) (int64, bool) {
	p := n * k
	if n != 0 && p/n != k {
		return 0, false
	}
	r := x + p
	return r, (r > x) == (p > 0)
}

// unit is what a unit word stands for; one field is set.
type unit struct{ us, days, months int64 }

var noUnit unit

// unitOf knows the words that IntervalStyle postgres and postgres_verbose print
// and their usual spellings.
func unitOf(w []byte) unit {
	switch string(w) {
	case "year", "years", "yr", "yrs", "y":
		return unit{months: 12}
	case "mon", "mons", "month", "months":
		return unit{months: 1}
	case "week", "weeks", "w":
		return unit{days: 7}
	case "day", "days", "d":
		return unit{days: 1}
	case "hour", "hours", "hr", "hrs", "h":
		return unit{us: 3600 * usPerSec}
	case "min", "mins", "minute", "minutes":
		return unit{us: 60 * usPerSec}
	case "sec", "secs", "second", "seconds", "s":
		return unit{us: usPerSec}
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
	w, rest := nextWord(v)
	if len(w) == 1 && w[0] == '@' {
		w, rest = nextWord(rest)
	}
	if len(w) == 0 {
		return iv, errSyntax
	}
	if next, _ := nextWord(rest); len(next) == 0 && len(w) < 12 {
		// A lone number is seconds: how "@ 0" and "0" come.
		if n, err := parseInt(w, math.MinInt64, math.MaxInt64); err == nil {
			return iv, iv.add(n, unit{us: usPerSec})
		}
	}
	for len(w) > 0 {
		if string(w) == "ago" {
			if next, _ := nextWord(rest); len(next) > 0 {
				return iv, errSyntax
			}
			if iv.us == math.MinInt64 || iv.days == math.MinInt32 || iv.months == math.MinInt32 {
				return iv, errRange
			}
			return interval{-iv.us, -iv.days, -iv.months}, nil
		}
		var err error
		if hasByte(w, ':') {
			err = iv.addClock(w)
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
			err = iv.addQuantity(q, unitOf(word))
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

// addClock adds [sign]hh:mm:ss[.ffffff].
func (iv *interval) addClock(w []byte) error {
	c := cursor{v: w}
	neg := c.skip('-')
	if !neg {
		c.skip('+')
	}
	t, err := c.clock(10)
	switch {
	case err != nil:
		return err
	case !c.end():
		return errSyntax
	case t < 0:
		return errRange
	}
	if neg {
		t = -t
	}
	return iv.add(t, unit{us: 1})
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
func (iv *interval) addQuantity(q quantity, u unit) error {
	if u == noUnit || (q.frac != 0 && u.us != usPerSec) {
		return errSyntax
	}
	if err := iv.add(q.n, u); err != nil {
		return err
	}
	return iv.add(q.frac, unit{us: 1})
}

// parseISOInterval reads what follows the P.
func parseISOInterval(v []byte) (interval, error) {
	var iv interval
	c := cursor{v: v}
	inTime, any := false, false
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
		if err := iv.addQuantity(q, u); err != nil {
			return iv, err
		}
		any = true
	}
	if !any {
		return iv, errSyntax
	}
	return iv, nil
}

func isoUnit(c byte, inTime bool) unit {
	switch {
	case !inTime && c == 'Y':
		return unit{months: 12}
	case !inTime && c == 'M':
		return unit{months: 1}
	case !inTime && c == 'W':
		return unit{days: 7}
	case !inTime && c == 'D':
		return unit{days: 1}
	case inTime && c == 'H':
		return unit{us: 3600 * usPerSec}
	case inTime && c == 'M':
		return unit{us: 60 * usPerSec}
	case inTime && c == 'S':
		return unit{us: usPerSec}
	}
	return noUnit
}
