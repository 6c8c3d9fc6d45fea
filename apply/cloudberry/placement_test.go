package cloudberry

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"cbrepl/apply/conformance"
	"cbrepl/catalog"
	"cbrepl/lab/clustertest"
	"cbrepl/router"
)

// keyTypes are the types that a distribution key can have, with values; gen draws
// more of them.
func keyTypes(r *rand.Rand) []struct {
	typ  string
	vals []string
} {
	gen := func(n int, f func() string) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = f()
		}
		return out
	}
	i64 := func() int64 { return int64(r.Uint64()) >> r.IntN(60) }
	word := func() string {
		runes := []rune("abcXYZ 019äß€'\"{},\\")
		var b strings.Builder
		for range r.IntN(12) {
			b.WriteRune(runes[r.IntN(len(runes))])
		}
		return b.String()
	}
	date := func() string { return fmt.Sprintf("%04d-%02d-%02d", 1900+r.IntN(300), 1+r.IntN(12), 1+r.IntN(28)) }
	clock := func() string {
		return fmt.Sprintf("%02d:%02d:%02d.%06d", r.IntN(24), r.IntN(60), r.IntN(60), r.IntN(1_000_000))
	}
	bits := func() string { return fmt.Sprintf("%0*b", 1+r.IntN(20), r.IntN(1<<20))[:1+r.IntN(6)] }
	ip := func() string { return fmt.Sprintf("%d.%d.%d.%d", r.IntN(256), r.IntN(256), r.IntN(256), r.IntN(256)) }
	return []struct {
		typ  string
		vals []string
	}{
		{"boolean", []string{"t", "f"}},
		{`"char"`, []string{"a", "Z", "0"}},
		{"smallint", append(gen(20, func() string { return num(int(int16(r.Uint32()))) }), "0", "-1", "-32768")},
		{"integer", append(gen(20, func() string { return num(int(int32(r.Uint32()))) }), "0", "-1", "2147483647")},
		{"bigint", append(gen(20, func() string { return strconv.FormatInt(i64(), 10) }), "0", "-1", "-9223372036854775808")},
		{"oid", append(gen(10, func() string { return strconv.FormatUint(uint64(r.Uint32()), 10) }), "0", "4294967295")},
		{"real", append(gen(20, func() string { return strconv.FormatFloat(float64(float32(r.NormFloat64())), 'g', -1, 32) }), "0", "-0", "NaN", "Infinity", "-Infinity")},
		{"double precision", append(gen(20, func() string { return strconv.FormatFloat(r.NormFloat64()*1e10, 'g', -1, 64) }), "0", "-0", "NaN", "Infinity")},
		{"numeric", append(gen(30, func() string {
			return strconv.FormatInt(i64(), 10) + []string{"", ".5", ".000100", ".1234567890123"}[r.IntN(4)]
		}), "0", "0.00", "NaN", "1e20", "1.0", "1.00")},
		{"text", append(gen(30, word), "", " ", "a long text "+strings.Repeat("x", 500))},
		{"character varying(40)", append(gen(15, word), "")},
		{"character(12)", []string{"abc", "", "äß€", "a b c", "exactlytwelv"}},
		{"name", []string{"abc", "", "x y"}},
		{"bytea", append(gen(15, func() string { return fmt.Sprintf(`\x%x`, word()) }), `\x`, `\x00`)},
		{"date", append(gen(20, date), "infinity", "-infinity", "0044-03-15 BC")},
		{"time", append(gen(15, clock), "00:00:00", "24:00:00")},
		{"timetz", append(gen(15, func() string { return clock() + []string{"+00", "-08", "+05:30"}[r.IntN(3)] }), "24:00:00+01")},
		{"timestamp", append(gen(20, func() string { return date() + " " + clock() }), "infinity", "-infinity")},
		{"timestamptz", append(gen(20, func() string { return date() + " " + clock() + []string{"+00", "-08", "+05:30"}[r.IntN(3)] }), "infinity")},
		{"interval", []string{"1 day", "24:00:00", "1 mon", "30 days", "-00:00:01", "1 year 2 mons -3 days +04:05:06.7", "00:00:00"}},
		{"inet", append(gen(15, ip), "10.0.0.0/8", "::1", "2001:db8::1/64")},
		{"cidr", []string{"10.0.0.0/8", "192.168.1.0/24", "2001:db8::/32"}},
		{"macaddr", []string{"08:00:2b:01:02:03", "00:00:00:00:00:00"}},
		{"uuid", gen(15, func() string {
			return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", r.Uint32(), r.IntN(1<<16), r.IntN(1<<16), r.IntN(1<<16), r.Uint64()>>16)
		})},
		{"bit(6)", []string{"000000", "111111", "101010"}},
		{"bit varying", append(gen(15, bits), "")},
		{"money", []string{"$0.00", "-$12.34", "$1,234.56"}},
		{"jsonb", []string{"{}", `{"a": 1, "b": [true, null, "x"]}`, "1.0", `"t"`, "[]"}},
		{"integer[]", []string{"{}", "{1,2,3}", "{1,NULL,3}", "{{1,2},{3,4}}", "[0:1]={5,6}"}},
		{"text[]", []string{"{}", `{a,"b c",NULL}`, `{"",""}`}},
		{"bigint[]", []string{"{1}", "{-1,9223372036854775807}"}},
		{"int4range", []string{"empty", "[1,10)", "(,5)", "[7,)", "(,)"}},
		{"int8range", []string{"empty", "[1,10)"}},
		{"numrange", []string{"[1.0,2.50]", "(,3)", "empty"}},
		{"daterange", []string{"[2020-01-01,2020-02-01)", "(,2020-01-01)"}},
		{"tsrange", []string{`["2020-01-01 00:00:00","2020-01-02 00:00:00")`, "empty"}},
		{"tstzrange", []string{`["2020-01-01 00:00:00+00","2020-01-02 00:00:00+00")`}},
		{"pg_lsn", []string{"0/0", "16/B374D848"}},
		{"oidvector", []string{"", "1 2 3"}},
		{"tid", []string{"(0,1)", "(4294967295,65535)"}},
	}
}

// TestPlacement: the server puts every row where the router says, for every type,
// both hash families, keys of several columns and NULLs; the policy is the one
// that the catalogue reader found.
func TestPlacement(t *testing.T) {
	for _, dsn := range clustertest.DSNs(t) {
		w := worldOn(t, dsn)
		segments := w.one("SELECT count(*) FROM gp_segment_configuration WHERE content >= 0 AND role = 'p'")
		t.Run(segments+"segments", func(t *testing.T) { placement(t, w) })
	}
}

func placement(t *testing.T, w *world) {
	r := rand.New(rand.NewPCG(7, 7))
	w.exec(`CREATE DOMAIN $S.small AS integer; CREATE DOMAIN $S.words AS text`)
	type keyed struct {
		tab  *conformance.Table
		keys [][]*string
	}
	var all []*keyed
	add := func(name, cols, dist string, n int, rows [][]*string) {
		if _, err := clustertest.TryQuery(w.dsn, fmt.Sprintf("CREATE TABLE %s.%s (id integer, %s) DISTRIBUTED BY (%s)", w.schema, name, cols, dist)); err != nil {
			t.Logf("no table distributed by %s: %v", dist, err)
			return
		}
		names := []string{"id integer"}
		for i := range n {
			names = append(names, fmt.Sprintf("k%d text", i))
		}
		tab := w.table(name, nil, names...)
		all = append(all, &keyed{tab, rows})
	}
	null := (*string)(nil)
	for i, ty := range keyTypes(r) {
		var rows [][]*string
		for _, v := range ty.vals {
			rows = append(rows, []*string{&v})
		}
		rows = append(rows, []*string{null})
		add(fmt.Sprintf("d%d", i), "k0 "+ty.typ, "k0", 1, rows)
		base, _, _ := strings.Cut(ty.typ, "(")
		class := w.query(`SELECT o.opcname FROM pg_opclass o JOIN pg_am m ON m.oid = o.opcmethod
			WHERE m.amname = 'hash' AND o.opcname LIKE 'cdbhash_%' AND (o.opcintype = '` + base + `'::regtype
			   OR o.opcintype = 'anyarray'::regtype AND '` + base + `'::regtype IN (SELECT oid FROM pg_type WHERE typoutput = 'array_out'::regproc)
			   OR o.opcname = 'cdbhash_text_ops' AND '` + base + `' = 'character varying' OR o.opcname = 'cdbhash_inet_ops' AND '` + base + `' = 'cidr') LIMIT 1`)
		if len(class) == 1 {
			add(fmt.Sprintf("l%d", i), "k0 "+ty.typ, "k0 "+*class[0][0], 1, rows)
		}
	}
	var two [][]*string
	for range 60 {
		a, b := num(r.IntN(1000)), num(r.IntN(1000))
		two = append(two, []*string{&a, &b})
	}
	two = append(two, []*string{null, two[0][1]}, []*string{two[0][0], null}, []*string{null, null})
	add("two", "k0 integer, k1 text", "k1, k0", 2, two)
	add("twol", "k0 integer, k1 text", "k0 cdbhash_int4_ops, k1 cdbhash_text_ops", 2, two)
	add("dom", "k0 "+w.schema+".small, k1 "+w.schema+".words", "k0, k1", 2, two)

	var tables []*conformance.Table
	for _, k := range all {
		tables = append(tables, k.tab)
	}
	src := conformance.NewSource(3, tables...)
	w.opts.private.anyType = true // the source's types are not described here
	tg := w.start(src, tables...)
	for _, k := range all {
		for i, row := range k.keys {
			src.Insert(k.tab, append(conformance.V(num(i)), row...))
		}
	}
	w.apply(tg, src)
	checked := 0
	for _, k := range all {
		f := tg.tables.byName[catalog.Name{Schema: w.schema, Table: k.tab.Name}]
		rt, err := router.New(f.Policy)
		if err != nil {
			t.Errorf("%s: %v", f.Policy, err)
			continue
		}
		cols := ""
		for i := range len(k.keys[0]) {
			cols += fmt.Sprintf(", k%d", i)
		}
		for _, row := range w.query("SET extra_float_digits = 3; SELECT gp_segment_id, id" + cols + " FROM $S." + k.tab.Name) {
			id, _ := strconv.Atoi(*row[1])
			// As the source printed it, and as the target prints it. A blank-padded
			// value is printed with its blanks.
			for _, vals := range [][]*string{k.keys[id], row[2:]} {
				if strings.HasPrefix(f.Columns[1].TypeName, "character(") && vals[0] != row[2] {
					continue
				}
				var key [][]byte
				for _, c := range f.Policy.Columns {
					if v := vals[int(c.Name[1]-'0')]; v == nil {
						key = append(key, nil)
					} else {
						key = append(key, []byte(*v))
					}
				}
				seg, err := rt.Segment(key)
				if err != nil {
					t.Errorf("%s: %v", f.Policy, err)
				} else if seg.String() != *row[0] {
					t.Errorf("%s, type %s, key %q: the server has it on segment %s, the router says %d", f.Policy, f.Columns[1].TypeName, key, *row[0], seg)
				}
				checked++
			}
		}
	}
	t.Logf("%d rows of %d tables", checked, len(all))
	if checked < 1000 {
		t.Errorf("only %d rows checked", checked)
	}
}
