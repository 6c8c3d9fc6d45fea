package pgbinary

import (
	"encoding/binary"
	"math"
)

// Times are microseconds and dates days since 2000-01-01 (datatype/timestamp.h);
// the ends of the ranges stand for the infinities.
const (
	secondMicros = 1_000_000
	dayMicros    = 24 * 3600 * secondMicros
	maxYear      = 294276  // of a timestamp
	maxDateYear  = 5874897 // of a date
	epochDays    = 10957   // 1970-01-01 to 2000-01-01
)

// digits reads exactly n digits.
func digits(b []byte, n int) (v int, rest []byte, ok bool) {
	if len(b) < n {
		return 0, b, false
	}
	for _, c := range b[:n] {
		if c < '0' || c > '9' {
			return 0, b, false
		}
		v = 10*v + int(c-'0')
	}
	return v, b[n:], true
}

// after reads a byte c and n digits.
func after(c byte, b []byte, n int) (v int, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != c {
		return 0, b, false
	}
	return digits(b[1:], n)
}

// parseDate reads year-month-day and leaves what follows.
func parseDate(b []byte, maxYear int) (days int64, rest []byte, ok bool) {
	n := 0
	for n < len(b) && b[n] >= '0' && b[n] <= '9' {
		n++
	}
	if n < 4 || n > 7 {
		return 0, b, false
	}
	year, b, _ := digits(b, n)
	month, b, ok1 := after('-', b, 2)
	day, b, ok2 := after('-', b, 2)
	if !ok1 || !ok2 || year < 1 || year > maxYear || month < 1 || month > 12 || day < 1 || day > daysIn(year, month) {
		return 0, b, false
	}
	return daysFromCivil(year, month, day) - epochDays, b, true
}

func daysIn(year, month int) int {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// daysFromCivil counts the days from 1970-01-01 to a date of the Gregorian
// calendar, year above 0 (H. Hinnant, "chrono-Compatible Low-Level Date
// Algorithms").
func daysFromCivil(y, m, d int) int64 {
	if m <= 2 {
		y--
		m += 12
	}
	era := y / 400
	yoe := y - era*400
	doy := (153*(m-3)+2)/5 + d - 1
	doe := yoe*365 + yoe/4 - yoe/100 + doy
	return int64(era)*146097 + int64(doe) - 719468
}

// parseTime reads hours:minutes:seconds with up to six decimals.
func parseTime(b []byte) (micros int64, rest []byte, ok bool) {
	h, b, ok1 := digits(b, 2)
	m, b, ok2 := after(':', b, 2)
	s, b, ok3 := after(':', b, 2)
	if !ok1 || !ok2 || !ok3 || h > 24 || m > 59 || s > 59 {
		return 0, b, false
	}
	micros = int64(h*3600+m*60+s) * secondMicros
	if len(b) > 0 && b[0] == '.' {
		b = b[1:]
		scale := int64(secondMicros)
		for len(b) > 0 && b[0] >= '0' && b[0] <= '9' {
			if scale /= 10; scale == 0 {
				return 0, b, false
			}
			micros += int64(b[0]-'0') * scale
			b = b[1:]
		}
		if scale == secondMicros {
			return 0, b, false
		}
	}
	return micros, b, micros <= dayMicros
}

// parseOffset reads the offset from UTC, to the east, in microseconds.
func parseOffset(b []byte) (micros int64, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != '+' && b[0] != '-' {
		return 0, b, false
	}
	west := b[0] == '-'
	h, b, ok := digits(b[1:], 2)
	seconds := h * 3600
	for _, unit := range [...]int{60, 1} {
		if !ok || len(b) == 0 || b[0] != ':' {
			break
		}
		var v int
		v, b, ok = after(':', b, 2)
		ok = ok && v < 60
		seconds += v * unit
	}
	if west {
		seconds = -seconds
	}
	return int64(seconds) * secondMicros, b, ok && h < 16
}

func encodeDate(dst, text []byte) ([]byte, bool) {
	var n int32
	switch string(text) {
	case "infinity":
		n = math.MaxInt32
	case "-infinity":
		n = math.MinInt32
	default:
		days, rest, ok := parseDate(text, maxDateYear)
		if !ok || len(rest) > 0 {
			return dst, false
		}
		n = int32(days)
	}
	return binary.BigEndian.AppendUint32(dst, uint32(n)), true
}

func encodeTime(dst, text []byte) ([]byte, bool) {
	micros, rest, ok := parseTime(text)
	return binary.BigEndian.AppendUint64(dst, uint64(micros)), ok && len(rest) == 0
}

func encodeTimestamp(dst, text []byte) ([]byte, bool) { return appendTimestamp(dst, text, false) }

func encodeTimestamptz(dst, text []byte) ([]byte, bool) { return appendTimestamp(dst, text, true) }

func appendTimestamp(dst, text []byte, zone bool) ([]byte, bool) {
	switch string(text) {
	case "infinity":
		return binary.BigEndian.AppendUint64(dst, math.MaxInt64), true
	case "-infinity":
		return binary.BigEndian.AppendUint64(dst, 1<<63), true
	}
	days, b, ok := parseDate(text, maxYear)
	if !ok || len(b) == 0 || b[0] != ' ' {
		return dst, false
	}
	micros, b, ok := parseTime(b[1:])
	if !ok || micros == dayMicros {
		return dst, false
	}
	micros += days * dayMicros
	if zone {
		offset, rest, ok := parseOffset(b)
		if !ok {
			return dst, false
		}
		b = rest
		micros -= offset
	}
	return binary.BigEndian.AppendUint64(dst, uint64(micros)), len(b) == 0
}
