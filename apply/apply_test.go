package apply

import (
	"encoding/binary"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/internal/soak"
)

func TestVec(t *testing.T) {
	var v Vec
	if got := v.TextArray(); len(got) != 12 || binary.BigEndian.Uint32(got[8:]) != textOID {
		t.Errorf("an empty array is % x", got)
	}
	soak.Check(t, 100, 2000, func(rt *rapid.T) {
		v.Reset()
		var want []string
		nulls := false
		for range rapid.IntRange(0, 20).Draw(rt, "n") {
			if rapid.Bool().Draw(rt, "null") {
				v.AppendNull()
				want, nulls = append(want, "null"), true
				continue
			}
			s := rapid.StringN(0, 50, -1).Draw(rt, "value")
			v.Append([]byte(s))
			want = append(want, "="+s)
		}
		// The format of array_send.
		b := v.TextArray()
		if len(want) > 0 {
			if d, l, lb := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[12:]), binary.BigEndian.Uint32(b[16:]); d != 1 || int(l) != len(want) || lb != 1 {
				rt.Fatalf("header %d %d %d", d, l, lb)
			}
			if (binary.BigEndian.Uint32(b[4:]) == 1) != nulls || v.HasNull() != nulls {
				rt.Fatal("null flag")
			}
		}
		var got []string
		v.All(func(i int, b []byte) {
			if i != len(got) {
				rt.Fatalf("index %d at %d", i, len(got))
			}
			if b == nil {
				got = append(got, "null")
			} else {
				got = append(got, "="+string(b))
			}
		})
		if strings.Join(got, "|") != strings.Join(want, "|") || v.Len() != len(want) {
			rt.Fatalf("got %q want %q", got, want)
		}
		for i := range want {
			row := (&Set{Vals: []*Vec{&v}}).Row(i)
			if (row[0] == nil) != (want[i] == "null") || row[0] != nil && "="+string(row[0]) != want[i] {
				rt.Fatalf("row %d is %q", i, row[0])
			}
		}
	})
}

func TestNameMap(t *testing.T) {
	name := func(schema, table string) catalog.Name { return catalog.Name{Schema: schema, Table: table} }
	m := NameMap{Schemas: map[string]string{"a": "x"}, Tables: map[catalog.Name]catalog.Name{name("a", "one"): name("y", "uno"), name("b", "root"): name("b2", "root2"), name("b", "l2"): name("c", "l2")}}
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, to catalog.Name }{
		{name("a", "one"), name("y", "uno")}, {name("a", "two"), name("x", "two")}, {name("b", "one"), name("b", "one")},
	} {
		if got := m.Target(c.from); got != c.to {
			t.Errorf("%s goes to %s, want %s", c.from, got, c.to)
		}
	}
	got := m.Candidates(&catalog.PublishedTable{Schema: "b", Name: "l1", Root: "b.root"})
	if len(got) != 2 || got[0] != name("b", "l1") || got[1] != name("b2", "root2") {
		t.Errorf("a leaf goes to %v", got)
	}
	if got := m.Candidates(&catalog.PublishedTable{Schema: "b", Name: "l2", Root: "b.root"}); len(got) != 1 || got[0] != name("c", "l2") {
		t.Errorf("a leaf with a rule goes to %v", got)
	}
	bad := NameMap{Schemas: map[string]string{"": "x", "y": ""}, Tables: map[catalog.Name]catalog.Name{name("a", ""): name("b", "c"), name("a", "b"): name("", "c")}}
	err := bad.Validate()
	if err == nil || dtx.ClassOf(err) != dtx.ClassStop || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("problems: %v", err)
	}
}

func TestOptions(t *testing.T) {
	o := Options{}
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	bad := Options{OnConflict: 7, WindowBytes: -1, WindowRows: -1, QueueBytes: -1, ChunkBytes: -1, ChunkRows: -1, FetchBytes: -1, HoldBytes: -1, TurnRows: -1, KeepAlive: -1}
	err := bad.Validate()
	if err == nil || strings.Count(err.Error(), "\n") != 9 {
		t.Errorf("problems: %v", err)
	}
}
