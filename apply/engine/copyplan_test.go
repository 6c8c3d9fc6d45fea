package engine

import (
	"fmt"
	"testing"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
	"cbrepl/router"
)

// TestCopyPlan: rows are copied to the same columns and places as they are applied,
// the columns that decide the place first.
func TestCopyPlan(t *testing.T) {
	for _, c := range []struct {
		name     string
		change   func(f *fixture)
		columns  string
		key      int
		fixed    int
		segments int
	}{
		{"hash", func(*fixture) {}, "[id u v big]", 1, 0, 3},
		{"a key in the middle", func(f *fixture) {
			f.tgt.Policy.Columns = []router.Column{{Name: "v", Type: textType}, {Name: "id", Type: textType}}
		}, "[v id u big]", 2, 0, 3},
		{"random", func(f *fixture) { f.tgt.Policy = router.Policy{Kind: router.Random, NumSegments: 3} }, "[id u v big]", 1, 0, 3},
		{"replicated", func(f *fixture) { f.tgt.Policy = router.Policy{Kind: router.Replicated, NumSegments: 3} }, "[id u v big]", 0, apply.Everywhere, 3},
		{"one segment", func(f *fixture) { f.tgt.Policy.NumSegments = 1 }, "[id u v big]", 0, 0, 1},
		{"generated on both sides", func(f *fixture) {
			f.src.Columns[1].Generated, f.tgt.Columns[1].Generated, f.tgt.Uniques = true, true, f.tgt.Uniques[:1]
		}, "[id v big]", 1, 0, 3},
		{"a column of the source that is left out", func(f *fixture) { f.src.Columns = f.src.Columns[:3] }, "[id u v]", 1, 0, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, apply.Options{}, 3, 'd')
			c.change(f)
			e, err := New(apply.Options{}, apply.NameMap{}, []catalog.PublishedTable{f.src}, []*catalog.Table{f.tgt}, f.m.Segments(), nil)
			if err != nil {
				t.Fatal(err)
			}
			p, err := e.CopyPlan(f.src.QualifiedName())
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(p.Columns) != c.columns || p.Key != c.key || p.Fixed != c.fixed || len(p.Segments) != c.segments || (p.Place != nil) != (c.key > 0) {
				t.Errorf("columns %v, key %d, fixed %d, segments %v", p.Columns, p.Key, p.Fixed, p.Segments)
			}
			for i, n := range p.Cols {
				if p.Table.Columns[n].Name != p.Columns[i] {
					t.Errorf("column %d is %s, want %s", i, p.Table.Columns[n].Name, p.Columns[i])
				}
			}
			if c.key != 1 {
				return
			}
			// The place is the one that an insert of the stream gets.
			for i := range 20 {
				id := fmt.Sprint(i)
				f.m = newModel(3, f.tgt)
				row := f.ins(id, "u", "v", "b")
				place, err := p.Place([][]byte{[]byte(id)})
				if err != nil {
					t.Fatal(err)
				}
				if len(p.Columns) < 4 {
					continue // the relation of the fixture has other columns
				}
				rows := memRows{}
				step := dtxOf(dtx.GXID(i+1), false, rows, []dtx.LSN{1}, changes(row))
				if _, err := e.Apply(t.Context(), &dtx.Batch{Steps: []dtx.Step{step}}, rows, f.m); err != nil {
					t.Fatal(err)
				}
				if len(f.m.rows[f.tgt][p.Segments[place]]) != 1 {
					t.Errorf("row %s: the copy goes to segment %d, the stream elsewhere", id, p.Segments[place])
				}
			}
		})
	}
	f := newFixture(t, apply.Options{}, 3, 'd')
	_, err := f.e.CopyPlan(catalog.Name{Schema: "public", Table: "other"})
	dtxtest.WantError(t, err, dtx.ClassStop, "public.other", "does not publish it")
}
