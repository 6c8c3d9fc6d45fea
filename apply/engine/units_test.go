package engine

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
	"cbrepl/pgoutput"
	"cbrepl/router"
)

// FuzzCopyText: the escaped form has no special byte of its own, and reads back
// as the value.
func FuzzCopyText(f *testing.F) {
	for _, s := range []string{"", `\`, `\.`, `\N`, "a\tb\nc\rd", "12345678", "1234567\\", "\x0d\x0e\x5c\x5d", "äöü\\", "\\\\\\\\\\\\\\\\\\", "xxxxxxxx\nyyyyyyyy"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		out := appendCopyText([]byte("x"), b)
		if out[0] != 'x' {
			t.Fatal("the prefix is gone")
		}
		out = out[1:]
		if bytes.ContainsAny(out, "\n\r\t") {
			t.Fatalf("%q has a bare separator", out)
		}
		if got := copyUnescaper.Replace(string(out)); got != string(b) {
			t.Fatalf("%q reads back as %q", b, got)
		}
		if len(b) > 0 && string(out) == `\N` {
			t.Fatal("a value reads as NULL")
		}
	})
}

func TestCopyField(t *testing.T) {
	for _, c := range []struct {
		v    pgoutput.Value
		want string
	}{
		{pgoutput.Value{Kind: 'n'}, `\N`},
		{pgoutput.Value{Kind: 't'}, ""},
		{pgoutput.Value{Kind: 't', Data: []byte(`\N`)}, `\\N`},
		{pgoutput.Value{Kind: 't', Data: []byte(`\.`)}, `\\.`},
	} {
		if got := string(appendCopyField(nil, c.v)); got != c.want {
			t.Errorf("%q is written %q, want %q", c.v.Data, got, c.want)
		}
	}
}

// The spill leaves no file behind and gives back what it took.
func TestSpill(t *testing.T) {
	dir := t.TempDir()
	s := spill{dir: dir}
	var at []int64
	for i := range 10 {
		off, err := s.put(bytes.Repeat([]byte{byte(i)}, 1000), []byte{0xff})
		if err != nil {
			t.Fatal(err)
		}
		at = append(at, off)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("the directory holds %v", left)
	}
	for i := 9; i >= 0; i-- {
		b, err := s.get(at[i], 1001)
		if err != nil || !bytes.Equal(b[:1000], bytes.Repeat([]byte{byte(i)}, 1000)) || b[1000] != 0xff {
			t.Fatalf("entry %d: % x, %v", i, b, err)
		}
	}
	s.reset()
	if off, err := s.put(nil, []byte("x")); err != nil || off != 0 {
		t.Errorf("after a reset: %d, %v", off, err)
	}
	s.close()
	s.close()
	s = spill{dir: dir + "/missing"}
	if _, err := s.put(nil, nil); err == nil || dtx.ClassOf(err) != dtx.ClassStop || !strings.Contains(err.Error(), dir) {
		t.Errorf("error %v", err)
	}
}

// TestRowsThatCannotBePlaced: an error about a row names the table and where the row
// comes from, and a remedy that the table does not have already.
func TestRowsThatCannotBePlaced(t *testing.T) {
	f := newFixture(t, apply.Options{}, 2, 'd')
	f.tgt.Policy.Columns[0].Type, _ = router.BuiltinType(23)
	var err error
	if f.e, err = New(apply.Options{}, apply.NameMap{}, []catalog.PublishedTable{f.src}, []*catalog.Table{f.tgt}, f.m.Segments(), nil); err != nil {
		t.Fatal(err)
	}
	_, err = f.apply(t.Context(), changes(f.ins("canary", "u", "v", "b")))
	dtxtest.WantError(t, err, dtx.ClassStop, "table public.t", "gxid 100", "key column id of type integer")
	if strings.Contains(err.Error(), "canary") {
		t.Errorf("the error holds a value: %v", err)
	}

	none := &pgoutput.Relation{ID: 2, Schema: "public", Name: "none", Identity: 'f'}
	src := catalog.PublishedTable{Schema: "public", Name: "none", Identity: 'f', Policy: router.Policy{Kind: router.Random, NumSegments: 1}}
	tgt := &catalog.Table{Schema: "public", Name: "none", Kind: catalog.Heap, Policy: router.Policy{Kind: router.Random, NumSegments: 2}}
	e, err := New(apply.Options{}, apply.NameMap{}, []catalog.PublishedTable{src}, []*catalog.Table{tgt}, f.m.Segments(), nil)
	if err != nil {
		t.Fatal(err)
	}
	rows := memRows{1: {rowMessage(none, 'D', 'O', nil, nil)}}
	_, err = e.Apply(t.Context(), &dtx.Batch{Steps: []dtx.Step{{Parts: []dtx.Part{{GXID: 7, Spool: 1}}}}}, rows, newModel(2, tgt))
	dtxtest.WantError(t, err, dtx.ClassStop, "table public.none", "gxid 7", "a delete of a row of a table without columns", "Give the source table a column")
}
