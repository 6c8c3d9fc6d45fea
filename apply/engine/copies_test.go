package engine

import (
	"slices"
	"testing"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
	"cbrepl/pgoutput"
	"cbrepl/router"
)

// TestCopiesOfReplicated: one copy of what the contents sent of a table that the source
// replicates is applied, and others that are no copies of it are noticed.
func TestCopiesOfReplicated(t *testing.T) {
	for _, c := range []struct {
		name string
		// sent are the ids that each content inserted in one dtx.
		sent [][]string
		want []string // nothing: it is applied
	}{
		{"alike", [][]string{{"1", "2"}, {"1", "2"}, {"1", "2"}}, nil},
		{"in another order", [][]string{{"1", "2", "3"}, {"3", "1", "2"}, {"2", "3", "1"}}, nil},
		{"a silent content", [][]string{{"1"}, nil, {"1"}}, nil},
		{"fewer", [][]string{{"1", "2"}, {"1"}}, []string{"content 1", "than the lowest content", "public.t"}},
		{"more", [][]string{{"1"}, {"1"}, {"1", "2"}}, []string{"content 2"}},
		{"as many others", [][]string{{"1", "2"}, {"1", "2"}, {"1", "3"}}, []string{"content 2"}},
		{"none of the lowest", [][]string{{}, {"1"}}, []string{"content 1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, apply.Options{}, 2, 'd')
			f.src.Policy.Kind = router.Replicated
			var err error
			if f.e, err = New(apply.Options{}, apply.NameMap{}, []catalog.PublishedTable{f.src}, []*catalog.Table{f.tgt}, f.m.Segments(), nil); err != nil {
				t.Fatal(err)
			}
			rows, step := memRows{}, dtx.Step{}
			for content, ids := range c.sent {
				spool := dtx.SpoolID(content + 1)
				rows[spool] = []*pgoutput.Change{}
				for _, id := range ids {
					rows[spool] = append(rows[spool], f.ins(id, "u"+id, "v", "b"))
				}
				step.Parts = append(step.Parts, dtx.Part{GXID: 7, Content: dtx.Content(content), Spool: spool, Lowest: content == 0})
			}
			res, err := f.e.Apply(t.Context(), &dtx.Batch{Steps: []dtx.Step{step}}, rows, f.m)
			if c.want != nil {
				dtxtest.WantError(t, err, dtx.ClassStop, append(c.want, "gxid 7")...)
				return
			}
			if err != nil || res.Rows != int64(len(c.sent[0])) {
				t.Fatalf("%d rows, %v", res.Rows, err)
			}
		})
	}
}

// TestSkipped: what on_conflict: log leaves out is described by place and digest, and a
// copy of a replicated target table that had other rows than the first is counted.
func TestSkipped(t *testing.T) {
	f := newFixture(t, apply.Options{}, 3, 'd')
	f.tgt.Policy = router.Policy{Kind: router.Replicated, NumSegments: 3}
	var err error
	if f.e, err = New(apply.Options{OnConflict: apply.ConflictLog}, apply.NameMap{}, []catalog.PublishedTable{f.src}, []*catalog.Table{f.tgt}, f.m.Segments(), nil); err != nil {
		t.Fatal(err)
	}
	f.must(t, changes(f.ins("1", "u1", "v", "b"), f.ins("2", "u2", "v", "b"), f.ins("3", "u3", "v", "b"), f.ins("4", "u4", "v", "b")))
	lose := func(seg dtx.Content, id string) {
		f.m.rows[f.tgt][seg] = slices.DeleteFunc(f.m.rows[f.tgt][seg], func(r *mrow) bool { return r.vals[0].text == id })
	}
	for _, c := range []struct {
		name    string
		differs func()
		change  func() *pgoutput.Change
		kind    conflictKind
		id      string
		seg     dtx.Content
	}{
		{"no row to delete", func() {}, func() *pgoutput.Change { return f.del("77") }, conflictMissingDelete, "77", 0},
		{"no row to update", func() {}, func() *pgoutput.Change { return f.upd("78", "u78", "w", "b") }, conflictMissingUpdate, "78", noSegment},
		{"there already", func() {}, func() *pgoutput.Change { return f.ins("1", "u1", "v", "b") }, conflictDuplicate, "1", noSegment},
		{"one copy lacks it", func() { lose(1, "2") }, func() *pgoutput.Change { return f.del("2") }, conflictCopies, "2", 1},
		{"one copy has it", func() { lose(0, "3"); lose(1, "3") }, func() *pgoutput.Change { return f.ins("3", "u3", "v", "b") }, conflictCopies, "3", 2},
		{"one copy lacks it, updated", func() { lose(2, "4") }, func() *pgoutput.Change { return f.upd("4", "u4", "w", "b") }, conflictMissingUpdate, "4", noSegment},
	} {
		c.differs()
		res := f.must(t, changes(f.ins("50"+c.id, "50"+c.id, "v", "b")), changes(c.change()))
		i := slices.IndexFunc(res.Skipped, func(s apply.Skipped) bool { return s.Reason == conflictText[c.kind] })
		if i < 0 || res.Conflicts["public.t"] != int64(len(res.Skipped)) {
			t.Errorf("%s: %d conflicts, %+v", c.name, res.Conflicts["public.t"], res.Skipped)
			continue
		}
		s := res.Skipped[i]
		if s.Table != "public.t" || s.Segment != c.seg || s.Rows != 1 {
			t.Errorf("%s: %+v", c.name, s)
		}
		if s.GXID != 101 || s.Content != 2 || s.LSN != 0x20 || s.Identity != "id" || s.Digest != digest([][]byte{[]byte(c.id)}) {
			t.Errorf("%s: %+v", c.name, s)
		}
	}
}
