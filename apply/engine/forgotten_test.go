package engine

import (
	"testing"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

// Rows of a table that was let go of are passed over: that table's, on that node,
// though another has its name and its OID is another's elsewhere.
func TestForgottenTables(t *testing.T) {
	f := newFixture(t, apply.Options{}, 2, 'd')
	name := catalog.Name{Schema: f.rel.Schema, Table: f.rel.Name}
	rel := func(oid uint32) *pgoutput.Relation {
		r := *f.rel
		r.ID = oid
		return &r
	}
	f.e.PassOver([]catalog.ReplicatedTable{
		{Content: 0, Name: name, OID: 70, Forgotten: true},
		{Content: 0, Name: name, OID: 71},
		{Content: 1, Name: name, OID: 71, Forgotten: true},
		{Content: 1, Name: name, OID: 72},
		{Content: dtx.Coordinator, Name: name, OID: 90, Forgotten: true},
	})
	shared := rel(71)
	for _, c := range []struct {
		content dtx.Content
		rel     *pgoutput.Relation
		taken   bool
	}{
		{0, rel(70), false},
		{0, shared, true},
		{1, shared, false},
		{0, shared, true},
		{1, rel(72), true},
		{0, rel(90), true},
		{2, rel(90), false}, // content 2 has no list of its own
	} {
		r, err := f.e.resolve(c.content, c.rel)
		if err != nil || (r != nil) != c.taken {
			t.Errorf("OID %d of content %d: taken %t, %v", c.rel.ID, c.content, r != nil, err)
		}
	}

	// In a run, the rows among others and a TRUNCATE are left out.
	old, now := rel(70), rel(71)
	rows := memRows{
		1: changes(rowMessage(old, 'I', 0, nil, vals("1", "a", "b", "c")), rowMessage(now, 'I', 0, nil, vals("2", "a", "b", "c"))),
		2: {{Row: pgoutput.Row{Type: 'T'}, Relations: []*pgoutput.Relation{old}}},
		3: changes(rowMessage(old, 'D', 'K', vals("1", "NULL", "NULL", "NULL"), nil)),
	}
	res, err := f.e.Apply(t.Context(), &dtx.Batch{Steps: []dtx.Step{
		{Parts: []dtx.Part{{GXID: 1, Content: 0, Spool: 1}}},
		{Parts: []dtx.Part{{GXID: 2, Content: 0, Spool: 2, Barrier: true}}, Barrier: true},
		{Parts: []dtx.Part{{GXID: 3, Content: 0, Spool: 3}}},
	}}, rows, f.m)
	if err != nil || res.Rows != 1 {
		t.Errorf("%d rows applied, %v", res.Rows, err)
	}
}
