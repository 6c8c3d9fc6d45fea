package router

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"

	"cbrepl/dtx"
	"cbrepl/internal/soak"
)

func mustType(t testing.TB, name string) *Type {
	t.Helper()
	typ, err := ParseType(name)
	if err != nil {
		t.Fatal(err)
	}
	return typ
}

// mustRouter routes by columns of the named types; a name may be followed by
// "/" and an operator class.
func mustRouter(t testing.TB, n int, cols ...string) *Router {
	t.Helper()
	p := Policy{Kind: Hash, NumSegments: n}
	for i, c := range cols {
		name, opclass, _ := strings.Cut(c, "/")
		p.Columns = append(p.Columns, Column{Name: fmt.Sprint("c", i+1), Type: mustType(t, name), Opclass: opclass})
	}
	r, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// key makes a key of texts; "NULL" is NULL.
func key(values ...string) [][]byte {
	k := make([][]byte, len(values))
	for i, v := range values {
		if v != "NULL" {
			k[i] = []byte(v)
		}
	}
	return k
}

func TestUnknownHashesAreRefusedByName(t *testing.T) {
	int4 := func() *Type { return mustType(t, "int4") }
	enum := &Type{OID: 90001, Name: "public.mood", Kind: EnumType}
	citext := &Type{OID: 90002, Name: "public.citext", Kind: BaseType, Extension: "citext"}
	custom := &Type{OID: 90003, Name: "public.money2", Kind: BaseType}
	for _, c := range []struct {
		name string
		col  Column
		want []string
	}{
		{"enum", Column{Type: enum}, []string{"public.mood", "enum", "OID"}},
		{"legacy enum", Column{Type: enum, Opclass: "cdbhash_enum_ops"}, []string{"public.mood", "OID"}},
		{"array of enum", Column{Type: &Type{Name: "mood[]", Kind: ArrayType, Elem: enum}}, []string{"mood[]", "element", "public.mood", "OID"}},
		{"domain over enum", Column{Type: &Type{Name: "feeling", Kind: DomainType, Elem: enum}}, []string{"feeling", "public.mood", "OID"}},
		{"range of extension type", Column{Type: &Type{Name: "r", Kind: RangeType, Elem: citext}}, []string{"subtype", "extension citext"}},
		{"composite with enum", Column{Type: &Type{Name: "pair", Kind: CompositeType, Fields: []*Type{int4(), enum}}}, []string{"pair", "attribute 2", "public.mood"}},
		{"composite without attributes", Column{Type: &Type{Name: "pair", Kind: CompositeType}}, []string{"pair", "attributes are not known"}},
		{"citext", Column{Type: citext}, []string{"public.citext", "extension citext"}},
		{"legacy citext", Column{Type: citext, Opclass: "cdbhash_text_ops"}, []string{"public.citext", "extension citext"}},
		{"custom type", Column{Type: custom}, []string{"public.money2", "not a built-in type"}},
		{"no type", Column{}, []string{"unknown type", "nothing is known"}},
		{"array without element", Column{Type: &Type{Name: "x[]", Kind: ArrayType}}, []string{"x[]", "nothing is known"}},
		{"custom class", Column{Type: int4(), Opclass: "my_int4_ops"}, []string{"integer", "my_int4_ops"}},
		{"class of another type", Column{Type: int4(), Opclass: "int8_ops"}, []string{"integer", "int8_ops"}},
		{"legacy class of another type", Column{Type: int4(), Opclass: "cdbhash_int8_ops"}, []string{"integer", "cdbhash_int8_ops"}},
		{"legacy class that is none", Column{Type: mustType(t, "jsonb"), Opclass: "cdbhash_jsonb_ops"}, []string{"jsonb", "legacy hash family"}},
		{"legacy range", Column{Type: mustType(t, "int4range"), Opclass: "cdbhash_range_ops"}, []string{"int4range", "legacy hash family"}},
		{"legacy array of jsonb", Column{Type: mustType(t, "jsonb[]"), Opclass: "cdbhash_array_ops"}, []string{"jsonb[]", "stored bytes"}},
		{"nondeterministic", Column{Type: mustType(t, "text"), Nondeterministic: true}, []string{"text", "nondeterministic"}},
		{"nondeterministic array", Column{Type: mustType(t, "text[]"), Nondeterministic: true}, []string{"text[]", "nondeterministic"}},
		{"nondeterministic attribute", Column{Type: &Type{Name: "one", Kind: CompositeType, Fields: []*Type{{OID: 25, Name: "text", Kind: BaseType, Nondeterministic: true}}}}, []string{"one", "nondeterministic"}},
		{"regclass", Column{Type: mustType(t, "regclass")}, []string{"regclass", "prints as a name"}},
		{"json", Column{Type: mustType(t, "json")}, []string{"json", "no hash operator class"}},
		{"money by default", Column{Type: mustType(t, "money")}, []string{"money", "no hash operator class"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.col.Name = "the_column"
			_, err := New(Policy{Kind: Hash, NumSegments: 3, Columns: []Column{c.col}})
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range append(c.want, "the_column") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not hold %q", err, want)
				}
			}
			if dtx.ClassOf(err) != dtx.ClassStop {
				t.Error("the error would be retried")
			}
		})
	}
}

func TestNewReportsEveryProblem(t *testing.T) {
	_, err := New(Policy{Kind: Hash, NumSegments: 10001, Columns: []Column{
		{Name: "a", Type: mustType(t, "json")}, {Name: "b", Type: mustType(t, "int4")}, {Name: "c", Type: mustType(t, "point")},
	}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"numsegments is 10001", "column a", "column c"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not hold %q", err, want)
		}
	}
	for _, p := range []Policy{
		{Kind: Hash, NumSegments: 3},
		{Kind: Random, NumSegments: 0},
		{Kind: Replicated, NumSegments: 3, Columns: []Column{{Name: "a", Type: mustType(t, "int4")}}},
		{NumSegments: 3},
	} {
		if _, err := New(p); err == nil {
			t.Errorf("%+v: no error", p)
		}
	}
}

func TestEveryClassOfEveryTypeCompiles(t *testing.T) {
	for i := range builtins {
		b := &builtins[i]
		for _, oc := range append(strings.Fields(b.def), strings.Fields(b.legacy)...) {
			if _, err := New(Policy{Kind: Hash, NumSegments: 1, Columns: []Column{{Name: "a", Type: b.typ(), Opclass: oc}}}); err != nil {
				t.Errorf("%s with %s: %v", b.typname, oc, err)
			}
		}
		typ, ok := BuiltinType(b.oid)
		if !ok || typ.OID != b.oid || typ.Name != b.sqlName {
			t.Errorf("BuiltinType(%d) = %+v", b.oid, typ)
		}
		if arr, ok := BuiltinType(b.array); !ok || arr.Kind != ArrayType || arr.Elem.OID != b.oid {
			t.Errorf("BuiltinType(%d) = %+v", b.array, arr)
		}
	}
	if _, ok := BuiltinType(99999); ok {
		t.Error("type 99999 is known")
	}
}

// TestFolding pins how columns join, from the definition in cdbhash.c.
func TestFolding(t *testing.T) {
	const n = 7
	h1, h2 := hashInt8(5), hashBytes([]byte("abc"))
	r := mustRouter(t, n, "int8", "text", "int4")
	check := func(k [][]byte, want uint32) {
		t.Helper()
		got, err := r.RowHash(k)
		if err != nil || got != want {
			t.Errorf("RowHash(%q) = %d, %v, want %d", k, got, err, want)
		}
		seg, err := r.Segment(k)
		if err != nil || int(seg) != JumpHash(uint64(want), n) {
			t.Errorf("Segment(%q) = %d, %v", k, seg, err)
		}
	}
	rot := bits.RotateLeft32
	check(key("5", "abc", "NULL"), rot(rot(h1, 1)^h2, 1))
	check(key("NULL", "abc", "5"), rot(h2, 1)^hashUint32(5))
	check(key("NULL", "NULL", "NULL"), 0)
	check(key("5", "NULL", "NULL"), rot(h1, 2))

	// Key order counts.
	a, _ := mustRouter(t, n, "int4", "int4").RowHash(key("1", "2"))
	b, _ := mustRouter(t, n, "int4", "int4").RowHash(key("2", "1"))
	if a == b {
		t.Error("(1,2) and (2,1) hash alike")
	}
}

// TestMixedClasses: a legacy class anywhere makes the row's start, NULLs and
// reduction legacy; a default-class column replaces what came before it.
func TestMixedClasses(t *testing.T) {
	const n = 6
	first := mustRouter(t, n, "int4/cdbhash_int4_ops", "text/text_ops")
	last := mustRouter(t, n, "text", "int4/cdbhash_int4_ops")
	if !first.Legacy() || !last.Legacy() {
		t.Fatal("not legacy")
	}
	for _, c := range []struct {
		r    *Router
		k    [][]byte
		want uint32
	}{
		{first, key("5", "abc"), hashBytes([]byte("abc"))},
		{first, key("5", "NULL"), fnv32(fnv64(fnvInit, 5), legacyNull)},
		{last, key("abc", "5"), fnv64(hashBytes([]byte("abc")), 5)},
		{last, key("NULL", "5"), fnv64(fnv32(fnvInit, legacyNull), 5)},
	} {
		h, err := c.r.RowHash(c.k)
		if err != nil || h != c.want {
			t.Errorf("%v: RowHash(%q) = %d, %v, want %d", c.r.Policy(), c.k, h, err, c.want)
		}
		if seg, _ := c.r.Segment(c.k); uint32(seg) != h%n {
			t.Errorf("segment %d, want %d", seg, h%n)
		}
	}
}

func TestRandomPolicyIsAStatedChoice(t *testing.T) {
	r, err := New(Policy{Kind: Random, NumSegments: 5})
	if err != nil {
		t.Fatal(err)
	}
	var count [5]int
	for i := range 5000 {
		k := key(strconv.Itoa(i), "NULL", "x")
		seg := r.SegmentOfIdentity(k)
		if want := JumpHash(uint64(fold(fold(fold(0, hashBytes(k[0])), 0), hashBytes(k[2]))), 5); int(seg) != want {
			t.Fatalf("segment %d, want %d", seg, want)
		}
		count[seg]++
	}
	for seg, n := range count {
		if n < 850 || n > 1150 {
			t.Errorf("segment %d gets %d of 5000 rows", seg, n)
		}
	}
	// The choice is on disk on running targets: it must never change.
	if seg := r.SegmentOfIdentity(key("42", "abc")); seg != 2 {
		t.Errorf("segment %d, want 2", seg)
	}
	if seg := r.SegmentOfIdentity(nil); seg != 0 {
		t.Errorf("a row without identity goes to %d, want 0", seg)
	}
	if _, err := r.Segment(key("1")); err == nil || !strings.Contains(err.Error(), "no distribution key") {
		t.Errorf("Segment on a random policy: %v", err)
	}
}

func TestKeyLength(t *testing.T) {
	r := mustRouter(t, 3, "int4", "text")
	for _, k := range [][][]byte{nil, key("1"), key("1", "a", "b")} {
		if _, err := r.Segment(k); err == nil {
			t.Errorf("%d values: no error", len(k))
		}
	}
}

// TestErrorsHoldNoValue: values may be confidential.
func TestErrorsHoldNoValue(t *testing.T) {
	const canary = "kanarienvogel"
	for i := range builtins {
		b := &builtins[i]
		for _, typ := range []*Type{b.typ(), b.arrayType()} {
			if b.op == opNone || b.def == "" {
				continue
			}
			r, err := New(Policy{Kind: Hash, NumSegments: 1, Columns: []Column{{Name: "secret", Type: typ}}})
			if err != nil {
				t.Fatal(err)
			}
			_, err = r.Segment(key("{" + canary))
			if err == nil {
				continue
			}
			if strings.Contains(err.Error(), canary) || !strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), typ.Name) {
				t.Errorf("%s: %v", typ.Name, err)
			}
		}
	}
}

// jumpDefinition is the algorithm as the paper prints it.
func jumpDefinition(key uint64, n int32) int32 {
	var b, j int64 = -1, 0
	for j < int64(n) {
		b = j
		key = key*2862933555777941757 + 1
		j = int64(float64(b+1) * (float64(int64(1)<<31) / float64((key>>33)+1)))
	}
	return int32(b)
}

func TestJumpHash(t *testing.T) {
	r := rand.New(rand.NewPCG(soak.Seed(t, 1), 1))
	for i := range 300_000 {
		n := 1 + r.IntN(MaxSegments)
		switch i % 4 {
		case 0:
			n = 1 + r.IntN(20)
		case 1:
			n = 1 << r.IntN(14)
		}
		k := uint64(r.Uint32())
		if i%8 == 7 {
			k, n = r.Uint64(), 1+r.IntN(1<<22)
		}
		if got, want := JumpHash(k, n), int(jumpDefinition(k, int32(n))); got != want {
			t.Fatalf("JumpHash(%d, %d) = %d, want %d", k, n, got, want)
		}
	}
}

// TestJumpHashWholeQuotients aims at second steps where (b+1)*2^31/k is exactly
// n. The floating-point formula then yields n or the number below, and the
// result hangs on which.
func TestJumpHashWholeQuotients(t *testing.T) {
	inverse := uint64(jumpStep)
	for range 5 { // Newton: the inverse modulo 2^64
		inverse *= 2 - jumpStep*inverse
	}
	r := rand.New(rand.NewPCG(7, 1))
	below := 0
	for b1 := uint64(3); b1 < 120; b1 += 2 { // b+1
		for n := uint64(1) << bits.Len64(b1); n <= 8192; n *= 2 {
			k := b1 << 31 / n
			for range 60_000 {
				second := (k-1)<<33 | r.Uint64()>>31
				first := (second - 1) * inverse
				if int64(float64(int64(1)<<31)/float64(first>>33+1)) != int64(b1-1) {
					continue
				}
				key := (first - 1) * inverse
				got, want := JumpHash(key, int(n)), int(jumpDefinition(key, int32(n)))
				if got != want {
					t.Fatalf("JumpHash(%d, %d) = %d, want %d", key, n, got, want)
				}
				if want != int(b1-1) {
					below++
				}
				break
			}
		}
	}
	if below == 0 {
		t.Error("no quotient was rounded below the whole number: the test proves nothing")
	}
}

// TestJumpHashMovesLittle: one more segment only takes keys, it moves none
// between the others.
func TestJumpHashMovesLittle(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	moved := 0
	for range 30000 {
		k := uint64(r.Uint32())
		two, three := JumpHash(k, 2), JumpHash(k, 3)
		if two != three {
			if moved++; three != 2 {
				t.Fatalf("key %d went from %d to %d", k, two, three)
			}
		}
	}
	if moved < 9500 || moved > 10500 {
		t.Errorf("%d of 30000 keys moved, want a third", moved)
	}
}

func TestLegacyReduction(t *testing.T) {
	for n := 1; n <= MaxSegments; n++ {
		h := uint32(n) * 2654435761
		if n&(n-1) == 0 && Reduce(h, n, true) != int(h&uint32(n-1)) {
			t.Errorf("%d segments: the remainder is not the mask", n)
		}
	}
}

func TestParseInt(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 1))
	for range 200_000 {
		b := []byte(strconv.FormatInt(int64(r.Uint64())>>r.IntN(64), 10))
		switch r.IntN(8) {
		case 0:
			b[r.IntN(len(b))] = byte(r.Uint32())
		case 1:
			b = append(b, byte('0'+r.IntN(10)))
		case 2:
			b = append([]byte("000000000000000000000")[:r.IntN(20)], b...)
		}
		got, err := parseInt(b, math.MinInt64, math.MaxInt64)
		want, werr := strconv.ParseInt(string(b), 10, 64)
		if (err == nil) != (werr == nil) || err == nil && got != want {
			t.Fatalf("parseInt(%q) = %d, %v, want %d, %v", b, got, err, want, werr)
		}
	}
}

// TestConcurrentUse runs under the race detector in CI: a Router is shared.
func TestConcurrentUse(t *testing.T) {
	r := mustRouter(t, 16, "jsonb", "text[]", "numeric")
	k := key(`{"b":1,"a":[1,"x\ty"]}`, `{"a\"b",c,NULL}`, "12.340")
	want, err := r.Segment(k)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				if got, err := r.Segment(k); err != nil || got != want {
					t.Errorf("segment %d, %v, want %d", got, err, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestNoAllocations covers every type with a value that takes the long way.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("sync.Pool drops items at random under the race detector")
	}
	for name, v := range map[string]string{
		"bool": "t", "char": "x", "int2": "-5", "int4": "12345", "int8": "1234567890123456789", "oid": "5", "xid": "5", "xid8": "5",
		"float4": "1.5e10", "float8": "123456789.12345679012345678901234567890123456789", "numeric": "1234567890123456789.000012340000", "text": "abc", "bpchar": "abc   ",
		"name": "abc", "bytea": `a\\b\000c`, "date": "2020-02-29", "time": "12:34:56.789", "timetz": "12:34:56.789+05:30", "timestamp": "2020-02-29 12:34:56",
		"timestamptz": "2020-02-29 12:34:56+01", "interval": "1 year 2 mons -3 days 04:05:06.7", "inet": "fe80::1/64", "cidr": "10.0.0.0/8", "macaddr": "08:00:2b:01:02:03",
		"macaddr8": "08:00:2b:01:02:03:04:05", "uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "bit": "0101", "varbit": "010101010101", "pg_lsn": "16/B374D848", "tid": "(1,2)",
		"oidvector": "1 2 3", "int2vector": "1 2 3", "jsonb": `{"b": [1, 2.5e3, "x\u00e9y"], "a": {"z": null}}`, "text[]": `{a,"b\"c",NULL}`, "numeric[]": "{1.5,2}", "int4range": "[1,10)",
		"numrange": "[1.5,2.5]", "tstzrange": `["2020-01-01 00:00:00+00","2020-01-02 00:00:00+00")`, "nummultirange": "{[1.5,2.5],[3.5,)}",
	} {
		r := mustRouter(t, 3, name)
		k := key(v)
		if n := testing.AllocsPerRun(500, func() {
			if _, err := r.Segment(k); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations a row", name, n)
		}
	}
	r := mustRouter(t, 3, "text", "int4")
	k := key("abc", "5")
	if n := testing.AllocsPerRun(500, func() { _, _ = r.Segment(k) }); n != 0 {
		t.Errorf("text, int4: %v allocations a row", n)
	}
	if n := testing.AllocsPerRun(500, func() { r.SegmentOfIdentity(k) }); n != 0 {
		t.Errorf("identity: %v allocations a row", n)
	}
}

func TestExplain(t *testing.T) {
	r := mustRouter(t, 3, "text", "int4")
	e, err := r.Explain(key("abc", "NULL"))
	if err != nil {
		t.Fatal(err)
	}
	want, _ := r.Segment(key("abc", "NULL"))
	if e.Segment(3) != want || len(e.Columns) != 2 || e.Columns[0].Hash != hashBytes([]byte("abc")) || !e.Columns[1].Null || e.Columns[1].Folded != e.Folded {
		t.Errorf("%+v", e)
	}
}

func TestMoney(t *testing.T) {
	for text, want := range map[string]int64{
		"$1,234.56": 123456, "-$99.99": -9999, "($0.01)": -1, "$0.00": 0, "0": 0, "12": 1200, "1.50": 150, "-1.50": -150,
		"$92,233,720,368,547,758.07": math.MaxInt64, "-$92,233,720,368,547,758.08": math.MinInt64,
	} {
		if got, err := parseMoney([]byte(text)); err != nil || got != want {
			t.Errorf("%s is %d, %v, want %d", text, got, err, want)
		}
	}
	// Other locales: the same characters mean other amounts.
	for _, text := range []string{
		"", "$", "1.234,56 €", "€1.50", "$1.234", "$12", "1,23", "$1,23", "1,234", "12,34.50", "$1,2345.00", "1.5", "1.", ".50", "￥1,234", "1'234.50", "--1.50", "$-1.50",
		"92233720368547758.08", "92233720368547758080.00",
	} {
		if got, err := parseMoney([]byte(text)); err == nil {
			t.Errorf("%q is read as %d", text, got)
		}
	}
}

// TestForms pins text that must be refused although it looks readable.
func TestForms(t *testing.T) {
	for name, texts := range map[string][]string{
		"timestamptz":    {"2020-01-01 00:00:00", "2020-01-01 00:00:00 PST", "01/02/2020 00:00:00+00", "Wed Jan 01 00:00:00 2020 UTC"},
		"timetz":         {"12:00:00", "12:00:00 PST"},
		"interval":       {"+1-2 +3 +4:05:06", "1-2", "3 4:05:06", "1.5 days", "1 fortnight", "P", "PT"},
		"date":           {"01-02-2020", "2020-1-2", "2020-02-30", "0000-01-01", "Jan 1 2020"},
		"cidr":           {"10/8", "10.0.0.1/8"},
		"int4":           {"2147483648", "1.0", " 1", "0x10", "1_000", ""},
		"float8":         {"0x1p3", "1_0", "1e400", "1e-400", "-nan", ""},
		"numeric":        {"0x10", "1_000", "1e200000", "1e-16384", ""},
		"text[]":         {"{a", "{a}b", "{a}}", "{{a},{b,c}}", "{a,}", "{}{}", "[0:1]={a}", "[1:2][1:1]={a,b}", "{{{{{{{1}}}}}}}"},
		"int4range":      {"[1,2", "1,2", "[1,2)x", "[2,1)", "[1;2)", "[2147483648,)", "[1,2147483647]"},
		"jsonb":          {"", "{", "[1,]", `{"a"}`, `"\u0000"`, `"\ud800"`, "01", "1.", "nan", `{"a":1,}`, `"a` + "\n" + `"`, "[1] 2"},
		"int4multirange": {"{[5,6),[1,2)}", "{[1,3),[2,4)}", "{[1,2),[2,3)}", "{empty}", "[1,2)", "{}[1,2)}", "{[1,2)}}"},
	} {
		r := mustRouter(t, 3, name)
		for _, text := range texts {
			if _, err := r.Segment(key(text)); err == nil {
				t.Errorf("%s %q is read", name, text)
			}
		}
	}
	utc, err := New(Policy{Kind: Hash, NumSegments: 100, AssumeUTC: true, Columns: []Column{{Name: "a", Type: mustType(t, "timestamptz")}}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := utc.Segment(key("2020-01-01 00:00:00"))
	b, _ := utc.Segment(key("2020-01-01 00:00:00+00"))
	if err != nil || a != b {
		t.Errorf("without offset: segment %d, %v, want %d", a, err, b)
	}
}

func TestDeepJSON(t *testing.T) {
	r := mustRouter(t, 3, "jsonb")
	deep := strings.Repeat("[", 50_000) + strings.Repeat("]", 50_000)
	if _, err := r.Segment(key(deep)); err != nil {
		t.Error(err)
	}
	if _, err := r.Segment(key(strings.Repeat("[", maxJSONDepth+1))); err == nil {
		t.Error("no limit to nesting")
	}
}
