package router

import "math"

// Server time units: microseconds, and days from 2000-01-01.
const (
	usPerSec  = 1_000_000
	usPerDay  = 86400 * usPerSec
	epochDays = 730425 // 2000-01-01 in days from 0000-03-01, proleptic Gregorian

	dateInf, dateMinusInf = math.MaxInt32, math.MinInt32
	timeInf, timeMinusInf = math.MaxInt64, math.MinInt64
)

// Limits of datatype/timestamp.h.
const (
	minDate      = -2451545   // 4714-11-24 BC
	maxDate      = 2145031948 // 5874897-12-31
	minTimestamp = -211813488000000000
	endTimestamp = 9223371331200000000
)

// cursor reads a value's text from left to right.
type cursor struct {
	v []byte
	i int
}

func (c *cursor) end() bool { return c.i == len(c.v) }

// skip consumes b if it is next.
func (c *cursor) skip(b byte) bool {
	if c.i < len(c.v) && c.v[c.i] == b {
		c.i++
		return true
	}
	return false
}

// num reads between lo and hi digits.
func (c *cursor) num(lo, hi int) (int, bool) {
	x, n := 0, 0
	for c.i < len(c.v) && n < hi && c.v[c.i]-'0' <= 9 {
		x = x*10 + int(c.v[c.i]-'0')
		c.i++
		n++
	}
	return x, n >= lo
}

// digitNext tells whether a digit follows.
func (c *cursor) digitNext() bool { return c.i < len(c.v) && c.v[c.i]-'0' <= 9 }

// civilDays is the number of days from 2000-01-01 to a date of the proleptic
// Gregorian calendar, year 0 being 1 BC (Howard Hinnant's days_from_civil).
func civilDays(y, m, d int) int {
	if m <= 2 {
		y--
		m += 12
	}
	era := y / 400
	if y < 0 {
		era = (y - 399) / 400
	}
	yoe := y - era*400
	doy := (153*(m-3)+2)/5 + d - 1
	return era*146097 + yoe*365 + yoe/4 - yoe/100 + doy - epochDays
}

// monthDays is the length of a month.
func monthDays(y, m int) int {
	switch m {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if y%4 == 0 && (y%100 != 0 || y%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// ymd reads year-month-day as DateStyle ISO prints it: four or more digits of
// year. The era, if any, stands at the end of the whole value.
func (c *cursor) ymd() (y, m, d int, ok bool) {
	y, ok1 := c.num(4, 7)
	ok1 = ok1 && c.skip('-')
	m, ok2 := c.num(2, 2)
	ok2 = ok2 && c.skip('-')
	d, ok3 := c.num(2, 2)
	return y, m, d, ok1 && ok2 && ok3
}

// era reads an optional " BC" and the end, and returns the days of the date.
func (c *cursor) era(y, m, d int) (int, error) {
	if c.skip(' ') {
		if !c.skip('B') || !c.skip('C') {
			return 0, errSyntax
		}
		if y == 0 {
			return 0, errRange
		}
		y = 1 - y
	} else if y == 0 {
		return 0, errRange
	}
	if !c.end() {
		return 0, errSyntax
	}
	if m < 1 || m > 12 || d < 1 || d > monthDays(y, m) {
		return 0, errRange
	}
	return civilDays(y, m, d), nil
}

// parseDate reads a date as days from 2000-01-01.
func parseDate(v []byte) (int32, error) {
	switch string(v) {
	case "infinity":
		return dateInf, nil
	case "-infinity":
		return dateMinusInf, nil
	}
	c := cursor{v: v}
	y, m, d, ok := c.ymd()
	if !ok {
		return 0, errSyntax
	}
	days, err := c.era(y, m, d)
	if err != nil {
		return 0, err
	}
	if days < minDate || days > maxDate {
		return 0, errRange
	}
	return int32(days), nil
}

// clock reads hh:mm[:ss[.ffffff]] as microseconds since midnight, at most
// 24:00:00.
func (c *cursor) clock() (int64, error) {
	h, ok := c.num(2, 2)
	if !ok || !c.skip(':') {
		return 0, errSyntax
	}
	m, ok := c.num(2, 2)
	if !ok {
		return 0, errSyntax
	}
	s, us := 0, 0
	if c.skip(':') {
		if s, ok = c.num(2, 2); !ok {
			return 0, errSyntax
		}
		if us, ok = c.micros(); !ok {
			return 0, errSyntax
		}
	}
	if m > 59 || s > 60 || (s == 60 && us != 0) {
		return 0, errRange
	}
	t := ((int64(h)*60+int64(m))*60+int64(s))*usPerSec + int64(us)
	if t > usPerDay {
		return 0, errRange
	}
	return t, nil
}

// micros reads an optional fraction of a second of at most six digits. A
// server never prints more; rounding is not ours to repeat.
func (c *cursor) micros() (int, bool) {
	if !c.skip('.') {
		return 0, true
	}
	start := c.i
	us, ok := c.num(1, 6)
	for n := c.i - start; n < 6; n++ {
		us *= 10
	}
	return us, ok && !c.digitNext()
}

// parseTime reads a time without time zone as microseconds since midnight.
func parseTime(v []byte) (int64, error) {
	c := cursor{v: v}
	t, err := c.clock()
	switch {
	case err != nil:
		return 0, err
	case !c.end():
		return 0, errSyntax
	}
	return t, nil
}

// zoneRule says what to do about an offset.
type zoneRule uint8

const (
	zoneNone     zoneRule = iota // the type has none
	zoneRequired                 // it must be there
	zoneUTC                      // UTC when it is not there
)

// offset reads ±hh[:mm[:ss]], ±hhmm or Z and returns seconds east of UTC.
func (c *cursor) offset(rule zoneRule) (int, error) {
	neg := false
	switch {
	case c.skip('Z'), c.skip('z'):
		return 0, nil
	case c.skip('+'):
	case c.skip('-'):
		neg = true
	case rule == zoneUTC:
		return 0, nil
	default:
		return 0, errOffset
	}
	h, ok := c.num(2, 2)
	m, s := 0, 0
	switch {
	case ok && c.digitNext():
		m, ok = c.num(2, 2)
	case ok && c.skip(':'):
		if m, ok = c.num(2, 2); ok && c.skip(':') {
			s, ok = c.num(2, 2)
		}
	}
	if !ok {
		return 0, errSyntax
	}
	if h > 15 || m > 59 || s > 59 { // MAX_TZDISP_HOUR
		return 0, errRange
	}
	t := (h*60+m)*60 + s
	if neg {
		t = -t
	}
	return t, nil
}

// parseTimetz reads a time with time zone: microseconds since local midnight
// and, as the server stores it, the zone in seconds west of UTC.
func parseTimetz(v []byte, rule zoneRule) (t int64, west int32, err error) {
	c := cursor{v: v}
	if t, err = c.clock(); err != nil {
		return 0, 0, err
	}
	east, err := c.offset(rule)
	switch {
	case err != nil:
		return 0, 0, err
	case !c.end():
		return 0, 0, errSyntax
	}
	return t, int32(-east), nil
}

// parseTimestamp reads a timestamp with or without time zone as microseconds
// since 2000-01-01 (UTC for the former).
func parseTimestamp(v []byte, rule zoneRule) (int64, error) {
	switch string(v) {
	case "infinity":
		return timeInf, nil
	case "-infinity":
		return timeMinusInf, nil
	}
	c := cursor{v: v}
	y, m, d, ok := c.ymd()
	if !ok || (!c.skip(' ') && !c.skip('T')) {
		return 0, errSyntax
	}
	t, err := c.clock()
	if err != nil {
		return 0, err
	}
	if rule != zoneNone {
		east, err := c.offset(rule)
		if err != nil {
			return 0, err
		}
		t -= int64(east) * usPerSec
	}
	days, err := c.era(y, m, d)
	if err != nil {
		return 0, err
	}
	if days < minDate-1 || days > endTimestamp/usPerDay+1 { // then us cannot overflow
		return 0, errRange
	}
	us := int64(days)*usPerDay + t
	if us < minTimestamp || us >= endTimestamp {
		return 0, errRange
	}
	return us, nil
}
