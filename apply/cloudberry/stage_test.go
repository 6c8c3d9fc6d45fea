package cloudberry

import (
	"strings"
	"testing"

	"cbrepl/apply"
	"cbrepl/apply/conformance"
)

// TestStages: one stage table serves several statements of a batch and of later
// batches, and goes when it has not been used for a while.
func TestStages(t *testing.T) {
	w := newWorld(t)
	w.exec("CREATE TABLE $S.t (id bigint PRIMARY KEY, a integer, b text) DISTRIBUTED BY (id)")
	tab := w.table("t", []string{"id"}, "id bigint", "a integer", "b text")
	src := conformance.NewSource(3, tab)
	w.opts.Engine.WindowRows = stageRows
	tg := w.start(src, tab)
	const n = 3 * stageRows
	for i := range n {
		src.Insert(tab, conformance.V(num(i), "0", "keep "+num(i)))
	}
	w.apply(tg, src)
	stages := func() string {
		return w.one("SELECT count(*) FROM pg_class WHERE relname LIKE 'cbrepl_stage%'")
	}
	for round := range 2 {
		for i := range n {
			src.Update(tab, i, conformance.V(num(i), num(round+1), ""), 2)
		}
		w.apply(tg, src)
		if got := stages(); got != "1" {
			t.Fatalf("%s stage tables", got)
		}
	}
	if got := tg.Stats().Staged; got < 4 {
		t.Errorf("%d statements went through the stage", got)
	}
	if got := w.one("SELECT count(*) || ' ' || min(a) || ' ' || max(a) || ' ' || count(nullif(b = 'keep ' || id, false)) FROM $S.t"); got != num(n)+" 2 2 "+num(n) {
		t.Errorf("rows: %s", got)
	}
	for range stageIdle + 2 {
		src.Commit()
		b := src.Batch()
		b.Steps = nil
		if _, err := tg.Apply(testCtx(t), b, src); err != nil {
			t.Fatal(err)
		}
	}
	if got := stages(); got != "0" {
		t.Errorf("%s stage tables are left after %d batches without use", got, stageIdle+2)
	}
	// And it is made again.
	for i := range n {
		src.Update(tab, i, conformance.V(num(i), "3", ""), 2)
	}
	w.apply(tg, src)
	if got := w.one("SELECT count(*) FROM $S.t WHERE a = 3"); got != num(n) {
		t.Errorf("%s rows", got)
	}
}

// A target whose options do not allow for a stage works without one.
func TestNoTemporaryTables(t *testing.T) {
	w := newWorld(t)
	w.exec("CREATE TABLE $S.t (id bigint PRIMARY KEY, a integer, b text) DISTRIBUTED BY (id)")
	tab := w.table("t", []string{"id"}, "id bigint", "a integer", "b text")
	w.opts.Tables = sources([]*conformance.Table{tab})
	if err := Prepare(testCtx(t), w.opts); err != nil {
		t.Fatal(err)
	}
	role, dsn := w.asRole(t)
	db := w.one("SELECT current_database()")
	w.exec("REVOKE TEMPORARY ON DATABASE " + db + " FROM PUBLIC")
	t.Cleanup(func() { w.exec("GRANT TEMPORARY ON DATABASE " + db + " TO PUBLIC") })
	var grants []string
	for _, l := range strings.Split(documentedGrants(t, role, w.schema, "t", db), "\n") {
		if !strings.Contains(l, "TEMPORARY") {
			grants = append(grants, l)
		}
	}
	w.exec(strings.Join(grants, "\n"))
	w.opts.Coordinator = dsn
	src := conformance.NewSource(3, tab)
	tg := w.target()
	w.open(tg)
	streams, positions := src.First()
	if err := tg.Init(testCtx(t), apply.Beginning{Streams: streams, Positions: positions}); err != nil {
		t.Fatal(err)
	}
	for i := range stageRows {
		src.Insert(tab, conformance.V(num(i), "0", "b"))
	}
	w.apply(tg, src)
	for i := range stageRows {
		src.Update(tab, i, conformance.V(num(i), "1", ""), 2)
	}
	w.apply(tg, src)
	if got := w.one("SELECT count(*) FROM $S.t WHERE a = 1 AND b = 'b'"); got != num(stageRows) || tg.Stats().Staged > 0 {
		t.Errorf("%s rows, %d staged", got, tg.Stats().Staged)
	}
}
