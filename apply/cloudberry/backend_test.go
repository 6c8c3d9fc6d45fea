package cloudberry

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cbrepl/apply"
	"cbrepl/apply/conformance"
	"cbrepl/catalog"
	"cbrepl/pgoutput"
)

// storageClause declares storage in the server's way.
func (w *world) storageClause(s conformance.Storage) string {
	switch {
	case s == conformance.Heap && w.old:
		return ""
	case !w.old:
		return "USING " + string(s)
	case s == conformance.AORow:
		return "WITH (appendonly = true)"
	}
	return "WITH (appendonly = true, orientation = column)"
}

func set(cols []int, rows ...[]string) apply.Set {
	s := apply.Set{Cols: cols}
	for range cols {
		s.Vals = append(s.Vals, new(apply.Vec))
	}
	for _, r := range rows {
		for i, v := range r {
			if v == `\N` {
				s.Vals[i].AppendNull()
			} else {
				s.Vals[i].Append([]byte(v))
			}
		}
	}
	return s
}

// inBatch runs f on an open target's backend and undoes it.
func inBatch(t *testing.T, tg *Target, f func(b *backend)) {
	t.Helper()
	tg.backend.startBatch()
	f(tg.backend)
	tg.rollback(testCtx(t))
	tg.backend = newBackend(tg) // stages made in it are gone
}

func sessionRows(t *testing.T, tg *Target, sql string) []string {
	t.Helper()
	rows, err := tg.srv.Query(testCtx(t), sql)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range rows {
		var v []string
		for _, x := range r {
			if x == nil {
				x = []byte("NULL")
			}
			v = append(v, string(x))
		}
		out = append(out, strings.Join(v, "|"))
	}
	slices.Sort(out)
	return out
}

// TestShapes runs every operation in every shape a statement can have, on every
// storage and policy: they must answer alike and leave the same rows.
func TestShapes(t *testing.T) {
	w := newWorld(t)
	var tables []*conformance.Table
	for _, s := range []conformance.Storage{conformance.Heap, conformance.AORow, conformance.AOColumn} {
		for policy, clause := range map[string]string{"hash": "BY (id)", "legacy": "BY (k cdbhash_text_ops)", "random": "RANDOMLY", "rep": "REPLICATED"} {
			for _, index := range []string{"id, k", "k", ""} {
				if index != "id, k" && policy != "hash" {
					continue
				}
				name := fmt.Sprintf("%s_%s_%d", s, policy, len(index))
				w.exec(fmt.Sprintf("CREATE TABLE $S.%s (id integer, k text, a integer, f float8, b text) %s DISTRIBUTED %s", name, w.storageClause(s), clause))
				if index != "" {
					w.exec("CREATE INDEX ON $S." + name + " (" + index + ")")
				}
				w.exec("INSERT INTO $S." + name + " SELECT g, 'k' || g, g % 3, g / 10.0, 'b' || g FROM generate_series(1, 300) g")
				tables = append(tables, w.table(name, []string{"id", "k"}, "id integer", "k text", "a integer", "f double precision", "b text"))
			}
		}
	}
	src := conformance.NewSource(3, tables...)
	tg := w.start(src, tables...)
	for _, tab := range tables {
		f := tg.tables.byName[catalog.Name{Schema: w.schema, Table: tab.Name}]
		var first string
		for _, kind := range []rowsetKind{rowsUnnest, rowsStage, rowsAuto} {
			tg.opts.private.rowset = kind
			got := shapes(t, tg, f.Table)
			if first == "" {
				first = got
			} else if d := cmp.Diff(first, got); d != "" {
				t.Errorf("%s: kind %d answers differently:\n%s", tab.Name, kind, d)
			}
		}
		if d := cmp.Diff(wantShapes, first); d != "" {
			t.Errorf("%s (-want +got):\n%s", tab.Name, d)
		}
	}
}

// shapes runs operations and prints what they answered and left.
func shapes(t *testing.T, tg *Target, tab *catalog.Table) string {
	ctx := testCtx(t)
	var log strings.Builder
	note := func(what string, found apply.Found, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s %s: %v", tab.Name, what, err)
		}
		fmt.Fprintf(&log, "%s: rows %d, missing %d %v", what, found.Rows, found.MissingRows, found.Missing)
		var got []string
		n := 0
		if len(found.Ordinals) > 0 {
			n = len(found.Values) / len(found.Ordinals)
		}
		for i, o := range found.Ordinals {
			s := fmt.Sprint(o)
			for _, v := range found.Values[i*n : (i+1)*n] {
				if v.Kind == pgoutput.ValueNull {
					s += ",NULL"
				} else {
					s += "," + string(v.Data)
				}
			}
			got = append(got, s)
		}
		slices.Sort(got)
		fmt.Fprintf(&log, ", fetched %v\n", got)
	}
	key := func(ids ...int) apply.Set {
		var rows [][]string
		for _, i := range ids {
			rows = append(rows, []string{num(i), "k" + num(i)})
		}
		return set([]int{0, 1}, rows...)
	}
	left := func(b *backend) {
		fmt.Fprintf(&log, "  left %v\n", sessionRows(t, tg, "SELECT count(*), count(distinct id), sum(a), sum(length(b)) FROM "+tableSQL(tab)))
	}
	seg := apply.ServerPlaced
	inBatch(t, tg, func(b *backend) {
		f, err := b.Delete(ctx, seg, &apply.DeleteOp{Table: tab, N: 4, Keys: key(1, 2, 3, 9999)})
		note("delete", f, err)
		f, err = b.Delete(ctx, seg, &apply.DeleteOp{Table: tab, N: 1, Keys: key(4)})
		note("delete one", f, err)
		f, err = b.Delete(ctx, seg, &apply.DeleteOp{Table: tab, N: 1, Keys: key(4)})
		note("delete none", f, err)
		f, err = b.Delete(ctx, seg, &apply.DeleteOp{Table: tab, N: 3, Keys: key(5, 4, 6), Partial: true})
		note("delete partial", f, err)
		f, err = b.Delete(ctx, seg, &apply.DeleteOp{Table: tab, N: 3, Keys: key(7, 4, 8), Fetch: []int{4, 2}})
		note("delete fetch", f, err)
		f, err = b.Delete(ctx, seg, &apply.DeleteOp{Table: tab, N: 1, Keys: key(9), Fetch: []int{4}})
		note("delete fetch one", f, err)
		f, err = b.Delete(ctx, seg, &apply.DeleteOp{Table: tab, N: 2, Keys: key(10, 11), Ordinals: true, Partial: true})
		note("delete ordinals", f, err)
		f, err = b.Delete(ctx, seg, &apply.DeleteOp{
			Table: tab, N: 3, Keys: key(12, 13, 14), Ordinals: true, Partial: true,
			Differ: set([]int{2, 3}, []string{"0", "1.2"}, []string{"1", "1.30000000000000004"}, []string{"2", "1.5"}),
		})
		note("delete differ", f, err)
		f, err = b.Delete(ctx, seg, &apply.DeleteOp{Table: tab, N: 1, Keys: key(15), Differ: set([]int{4}, []string{"b15"})})
		note("delete differ one", f, err)
		left(b)
	})
	inBatch(t, tg, func(b *backend) {
		f, err := b.Update(ctx, seg, &apply.UpdateOp{Table: tab, N: 4, Keys: key(1, 9999, 3, 9998), Set: set([]int{4}, []string{"x"}, []string{"y"}, []string{`\N`}, []string{"z"})})
		note("update", f, err)
		f, err = b.Update(ctx, seg, &apply.UpdateOp{Table: tab, N: 1, Keys: key(5), Set: set([]int{2, 4}, []string{"100", "changed"})})
		note("update one", f, err)
		f, err = b.Update(ctx, seg, &apply.UpdateOp{Table: tab, N: 1, Keys: key(9999), Set: set([]int{2}, []string{"100"})})
		note("update none", f, err)
		f, err = b.Update(ctx, seg, &apply.UpdateOp{
			Table: tab, N: 3, Keys: key(6, 7, 8), Set: set([]int{4}, []string{"s"}, []string{"s"}, []string{"s"}),
			Same: set([]int{2, 3}, []string{"0", "0.6"}, []string{"0", "0.7"}, []string{"2", "0.80000000000000004"}),
		})
		note("update same", f, err)
		f, err = b.Update(ctx, seg, &apply.UpdateOp{Table: tab, N: 1, Keys: key(20), Set: set([]int{4}, []string{"s"}), Same: set([]int{2}, []string{"7"})})
		note("update same none", f, err)
		f, err = b.Update(ctx, seg, &apply.UpdateOp{Table: tab, N: 3, Keys: key(21, 9999, 22)})
		note("look", f, err)
		f, err = b.Update(ctx, seg, &apply.UpdateOp{Table: tab, N: 2, Keys: key(21, 9999), Partial: true, Set: set([]int{4}, []string{"p"}, []string{"p"})})
		note("update partial", f, err)
		left(b)
	})
	inBatch(t, tg, func(b *backend) {
		n, err := b.Copy(ctx, seg, &apply.CopyOp{
			Table: tab, Cols: []int{0, 1, 2, 3, 4}, Rows: 5,
			Data: []byte("500\tk500\t1\t0.5\tx\n500\tk500\t1\t0.5\tx\n500\tk500\t1\t0.5\tx\n\\N\t\\N\t\\N\t\\N\t\\N\n\\N\t\\N\t\\N\t\\N\t\\N\n"),
		})
		note("copy", apply.Found{Rows: n.Rows}, err)
		all := []int{0, 1, 2, 3, 4}
		f, err := b.DeleteImages(ctx, seg, &apply.ImageOp{Table: tab, N: 4, Count: []int64{2, 1, 3, 1}, Ordinals: true, Image: set(all,
			[]string{"500", "k500", "1", "0.5", "x"}, []string{`\N`, `\N`, `\N`, `\N`, `\N`}, []string{"1", "k1", "1", "0.1", "b1"}, []string{"2", "k2", "2", "0.2", "other"})})
		note("images", f, err)
		f, err = b.DeleteImages(ctx, seg, &apply.ImageOp{Table: tab, N: 3, Count: []int64{1, 2, 1}, Image: set(all,
			[]string{"500", "k500", "1", "0.5", "x"}, []string{`\N`, `\N`, `\N`, `\N`, `\N`}, []string{"3", "k3", "0", "0.3", "b3"})})
		note("images missing", f, err)
		f, err = b.DeleteImages(ctx, seg, &apply.ImageOp{Table: tab, N: 2, Count: []int64{1, 1}, Fetch: []int{4}, Image: set([]int{0, 2},
			[]string{"4", "1"}, []string{"6", "0"})})
		note("images fetch", f, err)
		left(b)
	})
	return log.String()
}

func tableSQL(t *catalog.Table) string { return `"` + t.Schema + `"."` + t.Name + `"` }

const wantShapes = `delete: rows 3, missing 1 [3], fetched []
delete one: rows 1, missing 0 [], fetched []
delete none: rows 0, missing 1 [0], fetched []
delete partial: rows 2, missing 0 [], fetched []
delete fetch: rows 2, missing 0 [], fetched [0,b7,1 2,b8,2]
delete fetch one: rows 1, missing 0 [], fetched [0,b9]
delete ordinals: rows 2, missing 0 [], fetched [0 1]
delete differ: rows 1, missing 0 [], fetched [2]
delete differ one: rows 0, missing 1 [0], fetched []
  left [288|288|286|1065]
update: rows 2, missing 2 [1 3], fetched []
update one: rows 1, missing 0 [], fetched []
update none: rows 0, missing 1 [0], fetched []
update same: rows 2, missing 1 [1], fetched []
update same none: rows 0, missing 1 [0], fetched []
look: rows 2, missing 1 [1], fetched []
update partial: rows 1, missing 0 [], fetched []
  left [300|300|398|1090]
copy: rows 5, missing 0 [], fetched []
images: rows 4, missing 3 [2 3], fetched [0 0 1 2]
images missing: rows 3, missing 1 [1], fetched []
images fetch: rows 2, missing 0 [], fetched [0,b4 1,b6]
  left [296|296|298|1084]
`

// TestDigits: texts of floating-point values are compared with all their digits,
// in worker processes that do not have the session's settings, too.
func TestDigits(t *testing.T) {
	w := newWorld(t)
	w.exec("CREATE TABLE $S.p (p point) DISTRIBUTED RANDOMLY")
	tab := w.table("p", nil, "p point")
	src := conformance.NewSource(3, tab)
	tg := w.start(src, tab)
	for range 4 {
		src.Insert(tab, conformance.V("(0.3,0)"))
		src.Insert(tab, conformance.V("(0.30000000000000004,0)"))
	}
	w.apply(tg, src)
	sess := w.one("SELECT sess_id FROM pg_stat_activity WHERE application_name = 'cbrepl:" + w.opts.Subscription + "'")
	w.query("SELECT pg_terminate_backend(pid) FROM gp_dist_random('pg_stat_activity') WHERE sess_id = " + sess)
	for ctx := testCtx(t); tg.srv.Exec(ctx, "SELECT count(*) FROM "+w.schema+".p") != nil; {
		if ctx.Err() != nil || tg.srv.Conn.IsClosed() {
			t.Fatal("the session does not get new worker processes")
		}
	}
	for range 4 {
		src.Delete(tab, src.Find(tab, "(0.30000000000000004,0)"))
	}
	w.apply(tg, src)
	if got := w.one("SELECT count(*) FROM $S.p WHERE p ~= '(0.3,0)' AND p[0] = 0.3"); got != "4" {
		t.Errorf("%s of the 4 rows that stay are left", got)
	}
}
