package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
	"cbrepl/pgoutput"
	"cbrepl/router"
)

// copies notes the inserts it gets.
type copies struct {
	*model
	got, tables []string
}

func (c *copies) Copy(_ context.Context, _ dtx.Content, op *apply.CopyOp) (apply.Inserted, error) {
	format := "text"
	if op.Binary {
		format = "binary"
	}
	c.got = append(c.got, fmt.Sprintf("%s %d %q", format, op.Rows, op.Data))
	c.tables = append(c.tables, op.Table.Name)
	return apply.Inserted{Rows: op.Rows}, nil
}

// TestBinaryCopy: after a chunk of text rows go in binary form, up to the first
// value that has none. They stay text where they are read again as text, where the
// identity could not be printed for an error, and where a type is not known by its
// OID.
func TestBinaryCopy(t *testing.T) {
	typ := func(oid uint32) *router.Type {
		b, _ := router.BuiltinType(oid)
		return b
	}
	const date = 1082
	for name, c := range map[string]struct {
		opt        apply.Options
		key        *router.Type
		deferrable bool
		binary     bool
	}{
		"binary":             {apply.Options{BinaryCopy: true}, typ(23), false, true},
		"not asked for":      {apply.Options{}, typ(23), false, false},
		"duplicates skipped": {apply.Options{BinaryCopy: true, OnConflict: apply.ConflictLog}, typ(23), false, false},
		"checked afterwards": {apply.Options{BinaryCopy: true}, typ(23), true, false},
		"key not reversible": {apply.Options{BinaryCopy: true}, typ(1700), false, false},
		"of an extension":    {apply.Options{BinaryCopy: true}, &router.Type{OID: 23, Kind: router.BaseType, Extension: "x"}, false, false},
		"domain":             {apply.Options{BinaryCopy: true}, &router.Type{OID: 99999, Kind: router.DomainType, Elem: typ(23)}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			rel := &pgoutput.Relation{
				ID: 1, Schema: "public", Name: "t", Identity: 'd',
				Columns: []pgoutput.Column{{Name: "id", Key: true}, {Name: "d"}},
			}
			src := catalog.PublishedTable{Schema: "public", Name: "t", Identity: 'd', Columns: []catalog.PublishedColumn{{Name: "id", Key: true, PrimaryKey: true}, {Name: "d"}}}
			tgt := &catalog.Table{
				Schema: "public", Name: "t", Kind: catalog.Heap, Policy: router.Policy{Kind: router.Replicated, NumSegments: 1},
				Columns: []catalog.Column{{Name: "id", Type: c.key, NotNull: true}, {Name: "d", Type: typ(date)}},
				Uniques: []catalog.Unique{{Columns: []int{0}, Plain: true, Primary: true, Deferrable: c.deferrable}},
			}
			c.opt.ChunkBytes = 100
			be := &copies{model: newModel(1, tgt)}
			e, err := New(c.opt, apply.NameMap{}, []catalog.PublishedTable{src}, []*catalog.Table{tgt}, be.Segments(), nil)
			if err != nil {
				t.Fatal(err)
			}
			// The first row fills the first chunk, which is always text.
			rows := memRows{1: {
				rowMessage(rel, 'I', 0, nil, vals(strings.Repeat("0", 99)+"9", "NULL")),
				rowMessage(rel, 'I', 0, nil, vals("1", "2024-01-01")),
				rowMessage(rel, 'I', 0, nil, vals("2", "15.03.2024")),
				rowMessage(rel, 'I', 0, nil, vals("3", "NULL")),
			}}
			b := &dtx.Batch{Steps: []dtx.Step{{Parts: []dtx.Part{{GXID: 1, Spool: 1, Lowest: true}}}}}
			if _, err := e.Apply(t.Context(), b, rows, be); err != nil {
				t.Fatal(err)
			}
			want := []string{`text 3 "1\t2024-01-01\n2\t15.03.2024\n3\t\\N\n"`}
			if c.binary {
				want = []string{
					`binary 1 "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00` +
						`\x00\x02\x00\x00\x00\x04\x00\x00\x00\x01\x00\x00\x00\x04\x00\x00\">\xff\xff"`,
					`text 2 "2\t15.03.2024\n3\t\\N\n"`,
				}
			}
			if got := be.got[1:]; !slices.Equal(got, want) {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// TestHoldBytes: what tables hold back is bounded for all of them together.
func TestHoldBytes(t *testing.T) {
	for _, c := range []struct {
		bytes int64
		want  string
	}{
		{1000, "b a"}, // both wait for the end
		{400, "a b"},  // the first finds room, the second does not and goes at once
		{100, "b a"},  // none does
	} {
		textType, _ := router.BuiltinType(25)
		var sources []catalog.PublishedTable
		var targets []*catalog.Table
		rows := memRows{}
		b := &dtx.Batch{Steps: []dtx.Step{{}}}
		for i, name := range []string{"b", "a"} {
			rel := &pgoutput.Relation{ID: uint32(i + 1), Schema: "public", Name: name, Identity: 'f', Columns: []pgoutput.Column{{Name: "id", Key: true}}}
			sources = append(sources, catalog.PublishedTable{
				Schema: "public", Name: name, Identity: 'f', Columns: []catalog.PublishedColumn{{Name: "id", Key: true}},
				Policy: router.Policy{Kind: router.Random, NumSegments: 2},
			})
			targets = append(targets, &catalog.Table{
				Schema: "public", Name: name, Kind: catalog.Heap, Policy: router.Policy{Kind: router.Replicated, NumSegments: 1},
				Columns: []catalog.Column{{Name: "id", Type: textType, NotNull: true}}, Uniques: []catalog.Unique{{Columns: []int{0}, Plain: true, Primary: true}},
			})
			rows[dtx.SpoolID(i+1)] = []*pgoutput.Change{rowMessage(rel, 'I', 0, nil, vals(strings.Repeat("x", 100)))}
			b.Steps[0].Parts = append(b.Steps[0].Parts, dtx.Part{GXID: 1, Content: dtx.Content(i), Spool: dtx.SpoolID(i + 1)})
		}
		be := &copies{model: newModel(1, targets...)}
		e, err := New(apply.Options{HoldBytes: c.bytes, WindowBytes: 1}, apply.NameMap{}, sources, targets, be.Segments(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Apply(t.Context(), b, rows, be); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(be.tables, " "); got != c.want {
			t.Errorf("with %d bytes inserts went to %s, want %s", c.bytes, got, c.want)
		}
	}
}

// TestRowTooLong: a row that no server takes is refused by name, not sent.
func TestRowTooLong(t *testing.T) {
	f := newFixture(t, apply.Options{}, 2, 'd')
	f.e.maxLine = 40
	f.must(t, changes(f.ins("1", "u1", "v", strings.Repeat("x", 30))))
	_, err := f.apply(t.Context(), changes(f.ins("2", "u2", "v", strings.Repeat("\\", 20))))
	dtxtest.WantError(t, err, dtx.ClassStop, "table public.t", "gxid 100", "content 2", `column "big", has 20`, "takes 48 bytes", "a server takes 40")
	_, err = f.apply(t.Context(), changes(f.upd("1", "u9", "v", strings.Repeat("\\", 20)), f.ins("3", "u3", "v", strings.Repeat("\t", 20))))
	dtxtest.WantError(t, err, dtx.ClassStop, `column "big"`)
}
