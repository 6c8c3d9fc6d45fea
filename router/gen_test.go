package router_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
)

// gen draws the text of a value of some type, in a form the server reads.
type gen func(r *rand.Rand) string

// oneOf draws from several generators.
func oneOf(gs ...gen) gen {
	return func(r *rand.Rand) string { return gs[r.IntN(len(gs))](r) }
}

// pick draws from a list.
func pick(values ...string) gen {
	return func(r *rand.Rand) string { return values[r.IntN(len(values))] }
}

// genInt draws integers of up to size bits, all magnitudes alike.
func genInt(size int) gen {
	return func(r *rand.Rand) string {
		return strconv.FormatInt(int64(r.Uint64())>>(64-size)>>r.IntN(size), 10)
	}
}

func genUint(size int) gen {
	return func(r *rand.Rand) string {
		return strconv.FormatUint(r.Uint64()>>(64-size)>>r.IntN(size), 10)
	}
}

func genFloat8(r *rand.Rand) string {
	switch r.IntN(4) {
	case 0:
		return strconv.FormatFloat(r.NormFloat64()*math.Pow10(r.IntN(40)-20), 'g', -1, 64)
	case 1:
		return strconv.FormatFloat(math.Round(r.NormFloat64()*1e4)/100, 'f', -1, 64)
	}
	for {
		if f := math.Float64frombits(r.Uint64()); !math.IsNaN(f) && !math.IsInf(f, 0) {
			return strconv.FormatFloat(f, 'e', -1, 64)
		}
	}
}

func genFloat4(r *rand.Rand) string {
	if r.IntN(2) == 0 {
		return strconv.FormatFloat(math.Round(r.NormFloat64()*1e4)/100, 'f', -1, 32)
	}
	for {
		if f := math.Float32frombits(r.Uint32()); f == f && !math.IsInf(float64(f), 0) {
			return strconv.FormatFloat(float64(f), 'g', -1, 32)
		}
	}
}

// genDigits draws n decimal digits with runs of zeros and nines.
func genDigits(r *rand.Rand, n int) string {
	b := make([]byte, 0, n)
	for len(b) < n {
		run, kind := 1+r.IntN(6), r.IntN(4)
		for ; run > 0 && len(b) < n; run-- {
			d := byte('0' + r.IntN(10))
			switch kind {
			case 0:
				d = '0'
			case 1:
				d = '9'
			}
			b = append(b, d)
		}
	}
	return string(b)
}

func genNumeric(r *rand.Rand) string {
	var s string
	whole, frac := r.IntN(12), r.IntN(12)
	if r.IntN(8) == 0 {
		whole, frac = r.IntN(120), r.IntN(120)
	}
	if whole+frac == 0 {
		whole = 1
	}
	s = genDigits(r, whole)
	if frac > 0 || r.IntN(4) == 0 {
		s += "." + genDigits(r, frac)
	}
	switch r.IntN(8) {
	case 0:
		s += "e" + strconv.Itoa(r.IntN(60)-30)
	case 1:
		s += "E+" + strconv.Itoa(r.IntN(9))
	}
	return pick("", "", "", "-", "+")(r) + s
}

var letters = []rune("abcdefghijklmnopqrstuvwxyzABCDEFXYZ0123456789    __--,,(){}[]\"\"\\\\''\t\n:;éüßñ中数据😀🙂\u00a0\u2003")

// genText draws text with everything that needs quoting somewhere.
func genText(r *rand.Rand) string {
	n := r.IntN(20)
	if r.IntN(20) == 0 {
		n = r.IntN(300)
	}
	b := make([]rune, n)
	for i := range b {
		b[i] = letters[r.IntN(len(letters))]
	}
	switch r.IntN(20) {
	case 0:
		return pick("NULL", "null", "empty", "", " ", "   ", "{}", "()", "\"\"", "\\", "\\N")(r)
	case 1:
		return string(b) + strings.Repeat(" ", r.IntN(6))
	}
	return string(b)
}

func genName(r *rand.Rand) string { // at most 63 bytes: the client cannot know the cut
	s := genText(r)
	for len(s) > 63 {
		rs := []rune(s)
		s = string(rs[:len(rs)-1])
	}
	return s
}

func genBytea(r *rand.Rand) string {
	b := make([]byte, r.IntN(30))
	for i := range b {
		b[i] = byte(r.Uint32())
		if r.IntN(2) == 0 {
			b[i] = "\\'\"aZ0\x00\x7f"[r.IntN(8)]
		}
	}
	return fmt.Sprintf("\\x%x", b)
}

func genDateIn(years int) gen {
	return func(r *rand.Rand) string {
		y, era := 1+r.IntN(years), ""
		if r.IntN(3) > 0 {
			y = 1900 + r.IntN(200)
		} else if r.IntN(3) == 0 {
			y, era = 1+r.IntN(4700), " BC"
		}
		m := 1 + r.IntN(12)
		d := 1 + r.IntN(28)
		return fmt.Sprintf("%04d-%02d-%02d%s", y, m, d, era)
	}
}

func genTime(r *rand.Rand) string {
	if r.IntN(50) == 0 {
		return "24:00:00"
	}
	s := fmt.Sprintf("%02d:%02d:%02d", r.IntN(24), r.IntN(60), r.IntN(60))
	switch r.IntN(3) {
	case 0:
		return s
	case 1:
		return s + fmt.Sprintf(".%06d", r.IntN(1e6))
	}
	return s + "." + strconv.Itoa(r.IntN(1000))
}

func genOffset(r *rand.Rand) string {
	sign := pick("+", "-")(r)
	switch r.IntN(4) {
	case 0:
		return sign + fmt.Sprintf("%02d", r.IntN(16))
	case 1:
		return sign + fmt.Sprintf("%02d:%02d:%02d", r.IntN(16), r.IntN(60), r.IntN(60))
	}
	return sign + fmt.Sprintf("%02d:%02d", r.IntN(15), 15*r.IntN(4))
}

func genTimetz(r *rand.Rand) string { return genTime(r) + genOffset(r) }

func genTimestamp(r *rand.Rand) string {
	return withClock(genDateIn(290000)(r), genTime(r))
}

func genTimestamptz(r *rand.Rand) string {
	return withClock(genDateIn(290000)(r), genTime(r)+genOffset(r))
}

// withClock puts the time between a date and its era.
func withClock(date, clock string) string {
	if d, ok := strings.CutSuffix(date, " BC"); ok {
		return d + " " + clock + " BC"
	}
	return date + " " + clock
}

func genInterval(r *rand.Rand) string {
	small := func(n int) int64 { return int64(r.IntN(2*n+1) - n) }
	mons, days, us := small(40), small(70), small(4e11)
	switch r.IntN(6) {
	case 0:
		mons, days = int64(int32(r.Uint32())), int64(int32(r.Uint32()))
	case 1:
		us = int64(r.Uint64()) >> 1
	case 2:
		days, us = 0, 0
	case 3:
		mons, us = 0, us/1e6*1e6
	}
	return fmt.Sprintf("%d mons %d days %d microseconds", mons, days, us)
}

func genAddr(r *rand.Rand) netip.Addr {
	if r.IntN(2) == 0 {
		var a [4]byte
		for i := range a {
			a[i] = byte(r.Uint32() >> r.IntN(9))
		}
		return netip.AddrFrom4(a)
	}
	var a [16]byte
	for i := range a {
		if r.IntN(3) > 0 && i/2*2 == i {
			a[i], a[i+1] = 0, 0
			if r.IntN(3) == 0 {
				a[i], a[i+1] = byte(r.Uint32()>>r.IntN(9)), byte(r.Uint32())
			}
		}
	}
	if r.IntN(8) == 0 {
		copy(a[:12], []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255})
	}
	return netip.AddrFrom16(a)
}

func genInet(r *rand.Rand) string {
	a := genAddr(r)
	if r.IntN(2) == 0 {
		return a.String()
	}
	return fmt.Sprintf("%s/%d", a, r.IntN(a.BitLen()+1))
}

func genCidr(r *rand.Rand) string {
	a := genAddr(r)
	bits := r.IntN(a.BitLen() + 1)
	b := a.AsSlice()
	for i := range b {
		if keep := bits - 8*i; keep < 8 {
			b[i] &= byte(0xff << (8 - max(keep, 0)))
		}
	}
	a, _ = netip.AddrFromSlice(b)
	return fmt.Sprintf("%s/%d", a, bits)
}

func genMAC(n int) gen {
	return func(r *rand.Rand) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte(':')
			}
			fmt.Fprintf(&b, "%02x", byte(r.Uint32()))
		}
		return b.String()
	}
}

func genUUID(r *rand.Rand) string {
	a, b := r.Uint64(), r.Uint64()
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", a>>32, a>>16&0xffff, a&0xffff, b>>48, b&(1<<48-1))
}

func genBits(r *rand.Rand) string {
	b := make([]byte, r.IntN(70))
	for i := range b {
		b[i] = byte('0' + r.IntN(2))
	}
	return string(b)
}

func genLSN(r *rand.Rand) string {
	return fmt.Sprintf("%X/%X", r.Uint32()>>r.IntN(32), r.Uint32()>>r.IntN(32))
}

func genTid(r *rand.Rand) string {
	return fmt.Sprintf("(%d,%d)", r.Uint32()>>r.IntN(32), r.Uint32N(65536))
}

// genJSON draws a document: repeated and unsorted keys, escapes, blanks.
func genJSON(depth int) gen {
	return func(r *rand.Rand) string {
		ws := func() string { return pick("", "", " ", "\n\t")(r) }
		if depth == 0 || r.IntN(3) == 0 {
			switch r.IntN(6) {
			case 0:
				return "null"
			case 1:
				return pick("true", "false")(r)
			case 2, 3:
				return jsonNumber(r)
			}
			return jsonString(r)
		}
		n := r.IntN(5)
		if r.IntN(30) == 0 {
			n = r.IntN(40)
		}
		var b strings.Builder
		object := r.IntN(2) == 0
		b.WriteString(map[bool]string{true: "{", false: "["}[object] + ws())
		for i := range n {
			if i > 0 {
				b.WriteString(ws() + "," + ws())
			}
			if object {
				key := jsonString(r)
				if r.IntN(2) == 0 {
					key = pick(`"a"`, `"b"`, `"aa"`, `"ab"`, `"é"`, `""`, `"B"`, `"\u0061"`)(r)
				}
				b.WriteString(key + ws() + ":" + ws())
			}
			b.WriteString(genJSON(depth - 1)(r))
		}
		b.WriteString(ws() + map[bool]string{true: "}", false: "]"}[object])
		return b.String()
	}
}

func jsonNumber(r *rand.Rand) string {
	s := strings.TrimLeft(genDigits(r, 1+r.IntN(14)), "0")
	if s == "" {
		s = "0"
	}
	if r.IntN(2) == 0 {
		s += "." + genDigits(r, 1+r.IntN(9))
	}
	if r.IntN(5) == 0 {
		s += pick("e", "E", "e+", "E-")(r) + strconv.Itoa(r.IntN(30))
	}
	return pick("", "-")(r) + s
}

func jsonString(r *rand.Rand) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range genText(r) {
		switch {
		case c == '"' || c == '\\':
			b.WriteString("\\" + string(c))
		case c < ' ' || r.IntN(12) == 0:
			if c > 0xffff {
				c -= 0x10000
				fmt.Fprintf(&b, `\u%04x\u%04X`, 0xd800+c>>10, 0xdc00+c&0x3ff)
			} else {
				fmt.Fprintf(&b, `\u%04x`, c)
			}
		default:
			b.WriteRune(c)
		}
	}
	b.WriteString(pick("", "", `\b\f\n\r\t\/`)(r) + `"`)
	return b.String()
}

var escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// quoteElement quotes an array element or a range bound.
func quoteElement(s string) string {
	return `"` + escaper.Replace(s) + `"`
}

// genArray draws arrays of up to three dimensions with NULLs and bounds.
func genArray(elem gen) gen {
	return func(r *rand.Rand) string {
		if r.IntN(15) == 0 {
			return "{}"
		}
		dims := make([]int, 1)
		if r.IntN(4) == 0 {
			dims = make([]int, 2+r.IntN(2))
		}
		for i := range dims {
			dims[i] = 1 + r.IntN(4)
		}
		if len(dims) == 1 && r.IntN(10) == 0 {
			dims[0] = 1 + r.IntN(40)
		}
		var b strings.Builder
		if r.IntN(4) == 0 {
			for _, d := range dims {
				lo := r.IntN(9) - 4
				fmt.Fprintf(&b, "[%d:%d]", lo, lo+d-1)
			}
			b.WriteByte('=')
		}
		var level func(int)
		level = func(k int) {
			b.WriteByte('{')
			for i := range dims[k] {
				if i > 0 {
					b.WriteByte(',')
				}
				switch {
				case k+1 < len(dims):
					level(k + 1)
				case r.IntN(6) == 0:
					b.WriteString(pick("NULL", "null")(r))
				default:
					b.WriteString(quoteElement(elem(r)))
				}
			}
			b.WriteByte('}')
		}
		level(0)
		return b.String()
	}
}

// genVector draws the text of int2vector and oidvector.
func genVector(elem gen) gen {
	return func(r *rand.Rand) string {
		parts := make([]string, r.IntN(8))
		for i := range parts {
			parts[i] = elem(r)
		}
		return strings.Join(parts, " ")
	}
}

// genRange draws ranges; order says which of two bounds is the lower.
func genRange(elem gen, less func(a, b string) bool) gen {
	return func(r *rand.Rand) string {
		if r.IntN(20) == 0 {
			return "empty"
		}
		lo, hi := elem(r), elem(r)
		if less(hi, lo) {
			lo, hi = hi, lo
		}
		if r.IntN(15) == 0 {
			hi = lo
		}
		lo, hi = quoteElement(lo), quoteElement(hi)
		if r.IntN(8) == 0 {
			lo = ""
		}
		if r.IntN(8) == 0 {
			hi = ""
		}
		return pick("[", "(")(r) + lo + "," + hi + pick("]", ")")(r)
	}
}

// genMultirange draws ranges in any order; the server merges them.
func genMultirange(rng gen) gen {
	return func(r *rand.Rand) string {
		parts := make([]string, r.IntN(6))
		for i := range parts {
			parts[i] = rng(r)
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
}

// genRecord draws composite values, NULL attributes included.
func genRecord(fields ...gen) gen {
	return func(r *rand.Rand) string {
		parts := make([]string, len(fields))
		for i, f := range fields {
			if r.IntN(6) > 0 {
				parts[i] = quoteElement(f(r))
			}
		}
		return "(" + strings.Join(parts, ",") + ")"
	}
}

// The orders that genRange needs: simple ones for forms drawn on purpose.
func lessInt(a, b string) bool {
	x, _ := strconv.ParseInt(a, 10, 64)
	y, _ := strconv.ParseInt(b, 10, 64)
	return x < y
}

func lessFloat(a, b string) bool {
	x, _ := strconv.ParseFloat(a, 64)
	y, _ := strconv.ParseFloat(b, 64)
	return x < y
}

func lessText(a, b string) bool { return a < b }
