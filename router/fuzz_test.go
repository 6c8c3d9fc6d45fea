package router

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"strconv"
	"strings"
	"testing"
)

// fuzz runs every value through the default family, and the legacy one where
// the type has a class: no panic, no effect on the next value, the same answer
// from a fresh router. check, if any, holds what an accepted value must satisfy.
func fuzz(f *testing.F, name string, seeds []string, check func(t *testing.T, v []byte, h uint32)) {
	f.Helper()
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	newOne := func(t testing.TB, word string) *Router {
		typ := mustType(t, name)
		oc, err := NamedOpclass(typ, word)
		if err != nil {
			return nil
		}
		r, err := New(Policy{Kind: Hash, NumSegments: 7, Columns: []Column{{Name: "k", Type: typ, Opclass: oc}}})
		if err != nil {
			return nil
		}
		return r
	}
	shared := [2]*Router{newOne(f, ""), newOne(f, "cdbhash")}
	f.Fuzz(func(t *testing.T, v []byte) {
		if v == nil {
			v = []byte{}
		}
		before := bytes.Clone(v)
		for i, word := range [2]string{"", "cdbhash"} {
			if shared[i] == nil {
				continue
			}
			h, err := shared[i].RowHash([][]byte{v})
			h2, err2 := newOne(t, word).RowHash([][]byte{v})
			if h != h2 || (err == nil) != (err2 == nil) {
				t.Fatalf("%q: %d, %v and then %d, %v", v, h, err, h2, err2)
			}
			if err == nil && i == 0 && check != nil {
				check(t, v, h)
			}
		}
		if !bytes.Equal(before, v) {
			t.Fatalf("the value was changed from %q to %q", before, v)
		}
	})
}

// sameHash checks that another text of the same value hashes alike.
func sameHash(t *testing.T, name, other string, h uint32) {
	t.Helper()
	got, err := mustRouter(t, 7, name).RowHash(key(other))
	if err != nil || got != h {
		t.Fatalf("the same %s as %q: hash %d, %v, want %d", name, other, got, err, h)
	}
}

func FuzzInt8(f *testing.F) {
	fuzz(f, "int8", []string{"0", "-1", "9223372036854775807", "-9223372036854775808", "+5", "00000000000000000000001", "1e5"}, func(t *testing.T, v []byte, h uint32) {
		x, err := strconv.ParseInt(string(v), 10, 64)
		if err != nil {
			t.Fatalf("%q was read", v)
		}
		sameHash(t, "int8", strconv.FormatInt(x, 10), h)
	})
}

func FuzzInt4(f *testing.F) {
	fuzz(f, "int4", []string{"2147483647", "-2147483648", "2147483648"}, nil)
}
func FuzzInt2(f *testing.F) { fuzz(f, "int2", []string{"32767", "-32768"}, nil) }
func FuzzOID(f *testing.F)  { fuzz(f, "oid", []string{"4294967295", "0", "-1"}, nil) }
func FuzzXid(f *testing.F)  { fuzz(f, "xid", []string{"4294967295", "010"}, nil) }
func FuzzXid8(f *testing.F) { fuzz(f, "xid8", []string{"18446744073709551615", "010"}, nil) }
func FuzzBool(f *testing.F) { fuzz(f, "bool", []string{"t", "f", "TRUE", "off", "o"}, nil) }
func FuzzChar(f *testing.F) { fuzz(f, "char", []string{"a", "", `\`, `\377`, `\400`}, nil) }
func FuzzName(f *testing.F) { fuzz(f, "name", []string{"abc", strings.Repeat("é", 40)}, nil) }
func FuzzText(f *testing.F) { fuzz(f, "text", []string{"", "abc", "abcdefghijkl", "  "}, nil) }

func FuzzBpchar(f *testing.F) {
	fuzz(f, "bpchar", []string{"", "a  ", "  "}, func(t *testing.T, v []byte, h uint32) {
		sameHash(t, "bpchar", string(v)+"  ", h)
	})
}

func FuzzFloat8(f *testing.F) {
	fuzz(f, "float8", []string{"0", "-0", "NaN", "-Infinity", "1e308", "5e-324", "0x1p3", "1_0", ".5", "5."}, func(t *testing.T, v []byte, h uint32) {
		x, err := strconv.ParseFloat(string(v), 64)
		if err != nil {
			t.Fatalf("%q was read", v)
		}
		sameHash(t, "float8", strconv.FormatFloat(x, 'e', -1, 64), h)
	})
}

func FuzzFloat4(f *testing.F) { fuzz(f, "float4", []string{"0", "1e-45", "3.4028235e38", "1e39"}, nil) }

func FuzzNumeric(f *testing.F) {
	fuzz(f, "numeric", []string{"0", "-0.00", "12345.6789", "1e-20", "1E+20", "NaN", "Infinity", "00100.00100", ".5", "5.", "99999999"}, func(t *testing.T, v []byte, h uint32) {
		if len(v) > 60 {
			return
		}
		x, ok := new(big.Rat).SetString(string(v))
		if !ok {
			if strings.ContainsAny(string(v), "aA") {
				return // NaN
			}
			if strings.ContainsAny(string(v), "iI") {
				return // Infinity
			}
			t.Fatalf("%q was read", v)
		}
		if e, _ := new(big.Float).SetRat(x).Float64(); math.Abs(e) > 1e60 {
			return
		}
		if s := x.FloatString(400); x.Cmp(mustRat(s)) == 0 {
			sameHash(t, "numeric", s, h)
			sameHash(t, "numeric", strings.TrimPrefix(s, "-"), h) // the sign does not count
		}
	})
}

func mustRat(s string) *big.Rat {
	x, _ := new(big.Rat).SetString(s)
	return x
}

func FuzzBytea(f *testing.F) {
	fuzz(f, "bytea", []string{`\x`, `\x00ff`, `a\\b\000`, `\`, `\x0`, `\8`}, func(t *testing.T, v []byte, h uint32) {
		s := newScratch().(*scratch)
		if err := s.bytea(v); err != nil {
			t.Fatal(err)
		}
		sameHash(t, "bytea", fmt.Sprintf("\\x%X", s.buf), h)
	})
}

func FuzzDate(f *testing.F) {
	fuzz(f, "date", []string{"2000-01-01", "infinity", "0044-03-15 BC", "5874897-12-31", "2000-02-30"}, func(t *testing.T, v []byte, h uint32) {
		d, err := parseDate(v)
		if err != nil || d == dateInf || d == dateMinusInf {
			return
		}
		sameHash(t, "date", formatDate(int(d)), h)
	})
}

// formatDate prints days from 2000-01-01 by counting, another way than
// civilDays.
func formatDate(days int) string {
	y := 2000 + int(math.Floor(float64(days)/365.2425))
	for civilDays(y, 1, 1) > days {
		y--
	}
	for civilDays(y+1, 1, 1) <= days {
		y++
	}
	m, d := 1, days-civilDays(y, 1, 1)
	for d >= monthDays(y, m) {
		d -= monthDays(y, m)
		m++
	}
	if y <= 0 {
		return fmt.Sprintf("%04d-%02d-%02d BC", 1-y, m, d+1)
	}
	return fmt.Sprintf("%04d-%02d-%02d", y, m, d+1)
}

func FuzzTime(f *testing.F) {
	fuzz(f, "time", []string{"00:00:00", "24:00:00", "23:59:60", "12:34", "12:34:56.7890123"}, nil)
}

func FuzzTimetz(f *testing.F) {
	fuzz(f, "timetz", []string{"00:00:00+00", "12:34:56.7-15:59:59", "12:00:00Z", "12:00:00+0530", "12:00:00+053"}, nil)
}

func FuzzTimestamp(f *testing.F) {
	fuzz(f, "timestamp", []string{"2000-01-01 00:00:00", "infinity", "294276-12-31 23:59:59.999999", "4714-11-24 00:00:00 BC", "2000-01-01T00:00:00"}, func(t *testing.T, v []byte, h uint32) {
		us, err := parseTimestamp(v, zoneNone)
		if err != nil || us == timeInf || us == timeMinusInf {
			return
		}
		days := us / usPerDay
		if us%usPerDay < 0 {
			days--
		}
		rest := us - days*usPerDay
		date, era, bc := strings.Cut(formatDate(int(days)), " ")
		text := fmt.Sprintf("%s %02d:%02d:%02d.%06d", date, rest/3600e6, rest/60e6%60, rest/1e6%60, rest%1e6)
		if bc {
			text += " " + era
		}
		sameHash(t, "timestamp", text, h)
	})
}

func FuzzTimestamptz(f *testing.F) {
	fuzz(f, "timestamptz", []string{"2000-01-01 00:00:00+00", "0044-03-15 12:00:00+00:19:32 BC", "2000-01-01 00:00:00"}, nil)
}

func FuzzInterval(f *testing.F) {
	fuzz(f, "interval", []string{"1 year 2 mons -3 days +04:05:06.7", "@ 1 day ago", "P1Y2M-3DT4H5M6.7S", "-2562047788:00:54.775808", "0", "PT", "1 day 1 day"}, func(t *testing.T, v []byte, h uint32) {
		iv, err := parseInterval(v)
		if err != nil {
			t.Fatal(err)
		}
		sign, us := "", uint64(iv.us)
		if iv.us < 0 {
			sign, us = "-", -us
		}
		sameHash(t, "interval", fmt.Sprintf("%d mons %d days %s%02d:%02d:%02d.%06d", iv.months, iv.days, sign, us/3600e6, us/60e6%60, us/1e6%60, us%1e6), h)
	})
}

func FuzzInet(f *testing.F) {
	fuzz(f, "inet", []string{"1.2.3.4", "10.0.0.0/8", "::1/64", "::ffff:1.2.3.4", "fe80::1%eth0", "1:2:3:4:5:6:7:8", "::/129", "1.2.3.256"}, func(t *testing.T, v []byte, h uint32) {
		addr, mask, masked := strings.Cut(string(v), "/")
		a, err := netip.ParseAddr(addr)
		if err != nil {
			t.Fatalf("%q was read: %v", v, err)
		}
		if !masked {
			mask = strconv.Itoa(a.BitLen())
		}
		sameHash(t, "inet", a.String()+"/"+mask, h)
	})
}

func FuzzCidr(f *testing.F) { fuzz(f, "cidr", []string{"10.0.0.0/8", "10.1.0.0/8", "::/0"}, nil) }

func FuzzMacaddr(f *testing.F) {
	fuzz(f, "macaddr", []string{"08:00:2b:01:02:03", "08002b:010203", "0800.2b01.0203", "08-00-2b-01-02:03"}, nil)
}

func FuzzMacaddr8(f *testing.F) {
	fuzz(f, "macaddr8", []string{"08:00:2b:01:02:03:04:05", "08:00:2b:01:02:03", "08002b:0102030405"}, nil)
}

func FuzzUUID(f *testing.F) {
	fuzz(f, "uuid", []string{"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "{a0eebc999c0b4ef8bb6d6bb9bd380a11}", "a0eebc99-"}, func(t *testing.T, v []byte, h uint32) {
		sameHash(t, "uuid", strings.ToUpper(strings.Trim(strings.ReplaceAll(string(v), "-", ""), "{}")), h)
	})
}

func FuzzVarbit(f *testing.F) {
	fuzz(f, "varbit", []string{"", "0101", "B1", "xA5", "2"}, nil)
}

func FuzzLSN(f *testing.F) { fuzz(f, "pg_lsn", []string{"0/0", "FFFFFFFF/FFFFFFFF", "/1", "1/"}, nil) }

func FuzzTid(f *testing.F) {
	fuzz(f, "tid", []string{"(0,0)", "(4294967295,65535)", "(1,2,3)", "()"}, nil)
}

func FuzzMoney(f *testing.F) {
	for _, s := range []string{"$1,234.56", "(0.01)", "-99.99", "1.234,56"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, v []byte) {
		x, err := parseMoney(v)
		if err != nil {
			return
		}
		abs, sign := uint64(x), ""
		if x < 0 {
			abs, sign = -abs, "-"
		}
		if y, err := parseMoney(fmt.Appendf(nil, "%s%d.%02d", sign, abs/100, abs%100)); err != nil || y != x {
			t.Fatalf("%q is %d and then %d, %v", v, x, y, err)
		}
	})
}

func FuzzOIDVector(f *testing.F)  { fuzz(f, "oidvector", []string{"", "1 2 3", " 4294967295 "}, nil) }
func FuzzInt2Vector(f *testing.F) { fuzz(f, "int2vector", []string{"", "1 -2 3"}, nil) }

func FuzzJSONB(f *testing.F) {
	fuzz(f, "jsonb", []string{`{"a":1,"bb":[true,null,"x\u00e9\ud83d\ude00"],"a":2}`, `[]`, `{}`, `1.0e5`, `"\/\b"`, `[[[[`, `{"":{"":{}}}`}, func(t *testing.T, v []byte, h uint32) {
		if !json.Valid(v) {
			t.Fatalf("%q was read", v)
		}
		var b bytes.Buffer
		if json.Indent(&b, v, " ", "\t") == nil {
			sameHash(t, "jsonb", b.String(), h)
		}
	})
}

func FuzzTextArray(f *testing.F) {
	fuzz(f, "text[]", []string{"{}", `{a,"b\"c",NULL}`, "{{1,2},{3,4}}", "[0:1]={a,b}", "{{1},{2,3}}", "{ a , b }", `{""}`}, nil)
}

func FuzzNumericArray(f *testing.F) { fuzz(f, "numeric[]", []string{"{1.5,NaN,NULL}"}, nil) }
func FuzzInetArray(f *testing.F)    { fuzz(f, "inet[]", []string{"{1.2.3.4,::1}"}, nil) }

func FuzzRange(f *testing.F) {
	fuzz(f, "int4range", []string{"[1,10)", "(1,10]", "empty", "(,)", `["1",2]`, "[5,5)"}, nil)
}

func FuzzNumRange(f *testing.F) {
	fuzz(f, "numrange", []string{"[1.5,2.5]", "[1.0,1.00)", "[-Infinity,NaN]", "[-1,-2]"}, nil)
}

func FuzzTstzRange(f *testing.F) {
	fuzz(f, "tstzrange", []string{`["2020-01-01 00:00:00+00","2020-01-02 00:00:00+00")`}, nil)
}

func FuzzMultirange(f *testing.F) {
	fuzz(f, "int4multirange", []string{"{}", "{[1,2),[5,7)}", "{[5,7),[1,2)}", "{(,1),[3,)}"}, nil)
}

// FuzzRecord nests what can nest.
func FuzzRecord(f *testing.F) {
	for _, s := range []string{"(1,a)", `(,"a""b")`, `("1",a\,b)`, `(1,"{[1,2)}")`, "()", `(,,,)`} {
		f.Add([]byte(s))
	}
	pair := &Type{Name: "pair", Kind: CompositeType, Fields: []*Type{mustType(f, "int4"), mustType(f, "text")}}
	typ := &Type{Name: "nest", Kind: CompositeType, Fields: []*Type{
		pair,
		{Name: "pair[]", Kind: ArrayType, Elem: pair},
		mustType(f, "int4multirange"), mustType(f, "jsonb"),
		{Name: "textrange", Kind: RangeType, Elem: mustType(f, "text")},
	}}
	r, err := New(Policy{Kind: Hash, NumSegments: 3, Columns: []Column{{Name: "a", Type: pair}, {Name: "b", Type: typ}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, v []byte) {
		_, _ = r.Segment([][]byte{v, nil})
		_, _ = r.Segment([][]byte{nil, v})
	})
}

func FuzzParseType(f *testing.F) {
	for _, s := range []string{"int4", "timestamp(3) with time zone", "numeric(10,2)[]", "_text", `"char"`, "char(5)", "x)(", "[]", "("} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if typ, err := ParseType(s); err == nil && typ.OID == 0 {
			t.Fatalf("%q has no OID", s)
		}
	})
}
