package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cbrepl/apply"
	"cbrepl/pgoutput"
	"cbrepl/router"
)

func keyless(name string, s Storage, kind router.PolicyKind) *Table {
	tab := &Table{Name: name, Columns: []Column{
		{Name: "a", Type: "integer"},
		{Name: "b", Type: "text"},
		{Name: "n", Type: "numeric"},
		{Name: "j", Type: "json"},
	}, Identity: pgoutput.IdentityFull, Storage: s, Kind: kind}
	if kind == router.Hash {
		tab.Dist = []string{"a"}
	}
	return tab
}

// testKeyless: without any key exactly as many rows go as the source deleted;
// NULLs, types without equality, and values that are equal without printing
// alike.
func testKeyless(t *testing.T, f Fixture) {
	for _, s := range storages(f, Heap, AORow, AOColumn) {
		for _, kind := range []router.PolicyKind{router.Hash, router.Random, router.Replicated} {
			for _, index := range []string{"", "a"} {
				t.Run(fmt.Sprintf("%s/%d/%s", s, kind, index), func(t *testing.T) {
					tab := keyless("kl", s, kind)
					tab.Index = index
					// Nothing in it can be hashed or compared by an operator.
					odd := &Table{
						Name: "odd", Columns: []Column{{Name: "p", Type: "point"}, {Name: "j", Type: "json"}},
						Identity: pgoutput.IdentityFull, Storage: s, Kind: kind,
					}
					if kind == router.Hash {
						odd.Kind = router.Random
					}
					w := newWorld(t, f, apply.ConflictStop, tab, odd)
					rows := []Values{
						V("1", "x", "1.0", `{"k": 1}`), V("1", "x", "1.00", `{"k": 1}`), V("1", "x", "1.0", `{"k":1}`),
						V("2", `\N`, `\N`, `\N`), V(`\N`, "x", "1", `\N`), V(`\N`, `\N`, `\N`, `\N`), V("2", "", "2", "null"),
					}
					for i, r := range rows {
						for range i%3 + 2 {
							w.src.Insert(tab, r)
						}
						w.src.Insert(odd, V(fmt.Sprintf("(%d,2)", i%3), `[1]`))
						w.src.Insert(odd, V(`\N`, `[1, 2]`))
					}
					for i := range 1500 {
						w.src.Insert(tab, V(strconv.Itoa(100+i), "bulk", "0.5", "{}"))
					}
					w.commit()
					find := func(tab *Table, want Values) int {
						for i, r := range w.src.Rows(tab) {
							if line(r) == line(want) {
								return i
							}
						}
						t.Fatalf("no row %s", line(want))
						return -1
					}
					for _, r := range rows { // one copy of each goes, two become another
						w.src.Delete(tab, find(tab, r))
					}
					w.src.Update(tab, find(tab, rows[0]), V("1", "x", "7", "[]"))
					w.src.Update(tab, find(tab, rows[4]), V("77", "x", "1", `\N`))
					w.src.Delete(odd, find(odd, V("(1,2)", `[1]`)))
					w.src.Delete(odd, find(odd, V(`\N`, `[1, 2]`)))
					w.src.Update(odd, find(odd, V("(2,2)", `[1]`)), V("(2,3)", `[1]`))
					w.commit()
					for i := range 1200 {
						w.src.Delete(tab, find(tab, V(strconv.Itoa(100+i), "bulk", "0.5", "{}")))
					}
					w.src.Insert(tab, rows[3])
					w.commit()
				})
			}
		}
	}
}

// testReplicated: a table replicated on the source arrives from every content, and
// exactly one copy counts; the target may place it in any way, and the reverse.
func testReplicated(t *testing.T, f Fixture) {
	from := intKey("from_rep")
	from.SourceReplicated = true
	to := intKey("to_rep")
	to.Kind, to.Dist = router.Replicated, nil
	both := intKey("both_rep")
	both.SourceReplicated, both.Kind, both.Dist = true, router.Replicated, nil
	w := newWorld(t, f, apply.ConflictStop, from, to, both)
	for i := range 200 {
		for _, tab := range w.tables {
			w.src.Insert(tab, V(strconv.Itoa(i), "0", "b"))
		}
	}
	w.commit()
	for i := range 100 {
		id := strconv.Itoa(i)
		for _, tab := range w.tables {
			if i%2 == 0 {
				w.src.Delete(tab, w.src.Find(tab, id))
			} else {
				w.src.Update(tab, w.src.Find(tab, id), V(id, "1", "u"))
			}
		}
	}
	w.commit()
}

func testTruncate(t *testing.T, f Fixture) {
	for _, s := range storages(f, Heap, AORow) {
		t.Run(string(s), func(t *testing.T) {
			a, b := onStorage(intKey("trunc_a"), s), onStorage(intKey("trunc_b"), s)
			seq := onStorage(&Table{
				Name: "trunc_seq", Columns: []Column{{Name: "id", Type: "bigint"}, {Name: "n", Type: "serial", TargetOnly: true}},
				Key: []string{"id"}, Dist: []string{"id"},
			}, s)
			w := newWorld(t, f, apply.ConflictStop, a, b, seq)
			fill := func(from, to int) {
				for i := from; i < to; i++ {
					for _, tab := range []*Table{a, b} {
						w.src.Insert(tab, V(strconv.Itoa(i), "0", "b"))
					}
					w.src.Insert(seq, V(strconv.Itoa(i)))
				}
			}
			fill(0, 30)
			w.commit()
			// Rows before, between and behind, several tables, several times.
			fill(30, 50)
			w.src.Update(a, w.src.Find(a, "3"), V("3", "1", "u"))
			w.src.Truncate(0, a, b)
			for i := range 5 {
				w.src.Insert(a, V(strconv.Itoa(i), "2", "after"))
			}
			w.src.Truncate(0, a)
			w.src.Insert(a, V("1", "3", "last"))
			w.commit()
			w.src.Insert(b, V("900", "0", "before"))
			w.src.Commit()
			w.src.Truncate(2, seq) // RESTART IDENTITY
			w.src.Insert(seq, V("1000"))
			w.src.Commit()
			w.src.Insert(b, V("901", "0", "behind"))
			w.commit()
			for _, r := range w.f.Dump(t, seq, []string{"n"}) {
				if *r.Values[0] != "1" {
					t.Errorf("the sequence was not restarted: the next value is %s", *r.Values[0])
				}
			}
		})
	}
}

func testPartitions(t *testing.T, f Fixture) {
	for _, s := range storages(f, Partition, Mixed) {
		t.Run(string(s), func(t *testing.T) {
			tab := &Table{
				Name: "parts", Columns: []Column{{Name: "id", Type: "bigint"}, {Name: "d", Type: "integer"}, {Name: "b", Type: "text"}},
				Key: []string{"id", "d"}, Dist: []string{"id"}, Storage: s, PartitionBy: "d",
			}
			if s == Mixed {
				tab.NoTargetKey, tab.Index = true, "id"
			}
			kl := keyless("parts_kl", s, router.Hash)
			kl.PartitionBy = "a"
			w := newWorld(t, f, apply.ConflictStop, tab, kl)
			for i := range 600 {
				w.src.Insert(tab, V(strconv.Itoa(i), strconv.Itoa(i%400), "b"))
				w.src.Insert(kl, V(strconv.Itoa(i%400), "x", "1", `\N`))
				w.src.Insert(kl, V(strconv.Itoa(i%400), "x", "1", `\N`))
			}
			w.commit()
			for i := range 500 {
				id := strconv.Itoa(i)
				switch n := w.src.Find(tab, id); {
				case i%5 == 0:
					w.src.Delete(tab, n)
				case i%7 == 0: // to another partition
					w.src.Update(tab, n, V(id, strconv.Itoa((i+150)%400), "moved"))
				default:
					w.src.Update(tab, n, V(id, strconv.Itoa(i%400), "u"))
				}
			}
			w.src.Delete(kl, w.src.Find(kl, "5"))
			w.src.Update(kl, w.src.Find(kl, "6"), V("306", "x", "2", `\N`))
			w.commit()
			w.src.Update(tab, w.src.Find(tab, "499"), V("499", "5", "one row"))
			w.src.Delete(tab, w.src.Find(tab, "498"))
			w.commit()
			w.src.Truncate(0, tab)
			w.src.Insert(tab, V("1", "399", "behind"))
			w.commit()
		})
	}
}

type valueType struct {
	typ  string
	vals []string
}

// testValues: every value comes through as it was printed, by COPY, by a single
// insert, by updates of one and of many, and as part of an identity.
func testValues(t *testing.T, f Fixture) {
	types := []valueType{
		{"boolean", []string{"t", "f"}},
		{"smallint", []string{"-32768", "32767"}},
		{"integer", []string{"-2147483648", "0"}},
		{"bigint", []string{"9223372036854775807"}},
		{"numeric", []string{"NaN", "0.00", "1000", "123456789012345678901234567890.123456789"}},
		{"real", []string{"Infinity", "1.5", "-0.25"}},
		{"double precision", []string{"NaN", "-Infinity", "0.5"}},
		{"text", []string{"", `\.`, `\N`[:1] + "n", "a\tb\nc\rd\\e", `"quoted" 'text'`, "{},", "Grüße €", strings.Repeat("long ", 30000)}},
		{"character varying", []string{"", "v"}},
		{"character(3)", []string{"x  ", "äöü"}},
		{"bytea", []string{`\x`, `\x00ff5c0a`}},
		{"date", []string{"infinity", "2020-02-29", "0044-03-15 BC"}},
		{"time without time zone", []string{"23:59:59.999999", "24:00:00"}},
		{"time with time zone", []string{"12:00:00+05:30"}},
		{"timestamp without time zone", []string{"-infinity", "2020-02-29 12:00:00.000001"}},
		{"timestamp with time zone", []string{"2020-02-29 12:00:00+00", "infinity"}},
		{"interval", []string{"1 year 2 mons -3 days +04:05:06.7", "-00:00:01"}},
		{"uuid", []string{"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}},
		{"inet", []string{"192.168.0.1/24", "10.0.0.1", "::1"}},
		{"cidr", []string{"10.0.0.0/8"}},
		{"macaddr", []string{"08:00:2b:01:02:03"}},
		{"json", []string{`{"a": [1, null, "\t\u20ac"]}`}},
		{"jsonb", []string{`{"a": [1, null, "€"]}`, `"\\"`}},
		{"xml", []string{"<a>b &amp; c</a>"}},
		{"bit varying", []string{"", "10110"}},
		{"integer[]", []string{"{}", "{1,NULL,3}", "{{1,2},{3,4}}", "[0:1]={5,6}"}},
		{"text[]", []string{`{"a,b",NULL,"NULL","\"q\"","back\\slash",""}`}},
		{"point", []string{"(1.5,-2)"}},
		{"box", []string{"(3,4),(1,2)"}},
		{"circle", []string{"<(1,2),3>"}},
		{"int4range", []string{"[1,10)", "empty", "(,5)"}},
		{"tsrange", []string{`["2020-01-01 00:00:00",infinity]`}},
		{"tsvector", []string{"'cat':3 'fat':2"}},
		{"tsquery", []string{"'fat' & 'cat'"}},
		{"money", []string{"-$1.00"}},
		{"oid", []string{"4294967295"}},
		{"name", []string{"a name"}},
		{`"char"`, []string{"c"}},
	}
	tab := &Table{Name: "vals", Columns: []Column{{Name: "id", Type: "bigint"}}, Key: []string{"id"}, Dist: []string{"id"}}
	kl := &Table{Name: "vals_kl", Columns: []Column{{Name: "id", Type: "bigint"}}, Dist: []string{"id"}, Identity: pgoutput.IdentityFull}
	types = slices.DeleteFunc(types, func(ty valueType) bool {
		if f.HasType(t, ty.typ, ty.vals[0]) {
			return false
		}
		t.Logf("the target has no type %s", ty.typ)
		return true
	})
	for i, ty := range types {
		c := Column{Name: fmt.Sprintf("c%d", i), Type: ty.typ}
		if ty.typ == `"char"` {
			c.Type = "char" // as pg_type spells it
		}
		tab.Columns, kl.Columns = append(tab.Columns, c), append(kl.Columns, c)
	}
	w := newWorld(t, f, apply.ConflictStop, tab, kl)
	row := func(id, variant int) Values {
		v := V(strconv.Itoa(id))
		for i, ty := range types {
			n := (variant + i) % (len(ty.vals) + 1)
			if n == len(ty.vals) {
				v = append(v, nil)
			} else {
				v = append(v, &ty.vals[n])
			}
		}
		return v
	}
	const n = 12
	w.src.Insert(tab, row(0, 0)) // a row by itself
	w.commit()
	for i := 1; i < n; i++ {
		w.src.Insert(tab, row(i, i))
		w.src.Insert(kl, row(i, i))
		w.src.Insert(kl, row(i, i))
	}
	w.commit()
	w.src.Update(tab, w.src.Find(tab, "0"), row(0, 5))
	w.commit()
	for i := range n {
		w.src.Update(tab, w.src.Find(tab, strconv.Itoa(i)), row(i, i+3))
		if i > 0 {
			w.src.Delete(kl, w.src.Find(kl, strconv.Itoa(i)))
		}
	}
	w.commit()
	for i := 1; i < n; i++ {
		w.src.Update(kl, w.src.Find(kl, strconv.Itoa(i)), row(i, i+1))
	}
	w.commit()
}

// testNames: names are quoted everywhere; the target's columns stand in another
// order.
func testNames(t *testing.T, f Fixture) {
	for _, s := range storages(f, Heap, AORow) {
		t.Run(string(s), func(t *testing.T) {
			tab := onStorage(&Table{Name: `Odd "name" $1`, Columns: []Column{
				{Name: "select", Type: "text"},
				{Name: "größe", Type: "integer"},
				{Name: `I"d`, Type: "bigint"},
				{Name: "$1", Type: "text"},
			}, Key: []string{`I"d`}, Dist: []string{`I"d`}}, s)
			kl := &Table{
				Name: "KL'", Columns: []Column{{Name: "A b", Type: "text"}, {Name: "v", Type: "integer"}}, Dist: []string{"A b"},
				Identity: pgoutput.IdentityFull, Storage: s,
			}
			w := newWorld(t, f, apply.ConflictStop, tab, kl)
			for i := range 10 {
				w.src.Insert(tab, V("s"+strconv.Itoa(i), "1", strconv.Itoa(i), "x"))
				w.src.Insert(kl, V("s"+strconv.Itoa(i), "1"))
			}
			w.commit()
			for i := range 10 {
				n := w.src.Find(tab, "s"+strconv.Itoa(i))
				if i < 3 {
					w.src.Delete(tab, n)
				} else {
					w.src.Update(tab, n, V("s"+strconv.Itoa(i), "2", strconv.Itoa(i), "y"))
				}
				w.src.Update(kl, w.src.Find(kl, "s"+strconv.Itoa(i)), V("s"+strconv.Itoa(i), "2"))
			}
			w.commit()
			w.src.Truncate(0, tab)
			w.commit()
		})
	}
}
