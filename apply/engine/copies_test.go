package engine

import (
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
