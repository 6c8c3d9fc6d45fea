package cloudberry

import (
	"strings"
	"testing"
	"time"

	"cbrepl/apply"
	"cbrepl/apply/conformance"
	"cbrepl/catalog"
)

// TestPlans: statements by key go over an index of the key and move no rows
// between segments, with statistics that are missing or lie.
func TestPlans(t *testing.T) {
	w := newWorld(t)
	for _, sql := range []string{
		"CREATE TABLE $S.heap (id bigint, k text, v text, PRIMARY KEY (id, k)) DISTRIBUTED BY (id)",
		"CREATE TABLE $S.part (id bigint, k text, v text) DISTRIBUTED BY (k)",
		"CREATE TABLE $S.ao (id bigint, k text, v text) " + w.storageClause(conformance.AORow) + " DISTRIBUTED BY (id)",
		"CREATE TABLE $S.rep (id bigint, k text, v text, PRIMARY KEY (id, k)) DISTRIBUTED REPLICATED",
		"CREATE TABLE $S.bare (id bigint, k text, v text) DISTRIBUTED BY (id)",
		"CREATE INDEX ON $S.part (k)", "CREATE INDEX ON $S.ao (id)",
	} {
		w.exec(sql)
	}
	var tables []*conformance.Table
	for _, n := range []string{"heap", "part", "ao", "rep", "bare"} {
		// Analysed when there was one row.
		w.exec("SET gp_autostats_mode = none; INSERT INTO $S." + n + " VALUES (0, 'k0', 'v'); ANALYZE $S." + n +
			"; INSERT INTO $S." + n + " SELECT g, 'k' || g, 'v' FROM generate_series(1, 50000) g")
		tables = append(tables, w.table(n, []string{"id", "k"}, "id bigint", "k text", "v text"))
	}
	src := conformance.NewSource(3, tables...)
	tg := w.start(src, tables...)
	var plans []string
	tg.opts.private.explain = func(p string) {
		var short []string
		for _, l := range strings.Split(p, "\n") {
			short = append(short, l[:min(len(l), 150)])
		}
		plans = append(plans, strings.Join(short, "\n"))
	}
	keys := func(n int) apply.Set {
		var rows [][]string
		for i := range n {
			rows = append(rows, []string{num(i), "k" + num(i)})
		}
		return set([]int{0, 1}, rows...)
	}
	vals := func(n int) apply.Set {
		var rows [][]string
		for range n {
			rows = append(rows, []string{"new"})
		}
		return set([]int{2}, rows...)
	}
	for _, tab := range tables {
		f := tg.tables.byName[catalog.Name{Schema: w.schema, Table: tab.Name}]
		for _, n := range []int{1, 50, stageRows} {
			for what, run := range map[string]func(b *backend) error{
				"delete": func(b *backend) error {
					_, err := b.Delete(testCtx(t), apply.ServerPlaced, &apply.DeleteOp{Table: f.Table, N: n, Keys: keys(n)})
					return err
				},
				"fetch": func(b *backend) error {
					_, err := b.Delete(testCtx(t), apply.ServerPlaced, &apply.DeleteOp{Table: f.Table, N: n, Keys: keys(n), Fetch: []int{2}})
					return err
				},
				"update": func(b *backend) error {
					_, err := b.Update(testCtx(t), apply.ServerPlaced, &apply.UpdateOp{Table: f.Table, N: n, Keys: keys(n), Set: vals(n)})
					return err
				},
			} {
				plans = nil
				inBatch(t, tg, func(b *backend) {
					if err := run(b); err != nil {
						t.Fatalf("%s %s %d: %v", tab.Name, what, n, err)
					}
				})
				for _, p := range plans {
					if strings.Contains(p, "Insert on") {
						continue // rows of values, not the table
					}
					for _, bad := range []string{"Redistribute Motion", "Broadcast Motion"} {
						if strings.Contains(p, bad) {
							t.Errorf("%s %s %d rows moves rows:\n%s", tab.Name, what, n, p)
						}
					}
					scans := strings.Contains(p, "Seq Scan on "+tab.Name)
					if want := tab.Name == "bare"; scans != want {
						t.Errorf("%s %s %d rows: scans the table: %t\n%s", tab.Name, what, n, scans, p)
					}
					if strings.Contains(p, "Function Scan") && strings.Contains(p, "(k0)::bigint = ANY") {
						t.Errorf("%s %s %d rows compares every value with every other:\n%s", tab.Name, what, n, p)
					}
					if tab.Name == "bare" && strings.Contains(p, "Nested Loop") {
						t.Errorf("%s %s %d rows scans the table once per row:\n%s", tab.Name, what, n, p)
					}
				}
			}
		}
	}
}

// TestPruning: statements by key look into the partitions that hold the keys only.
func TestPruning(t *testing.T) {
	w := newWorld(t)
	w.exec(`CREATE TABLE $S.days (id bigint, d date, v text, PRIMARY KEY (id, d)) DISTRIBUTED BY (id)
		PARTITION BY RANGE (d) (START (date '2020-01-01') END (date '2020-07-01') EVERY (interval '10 days'));
		INSERT INTO $S.days SELECT g, date '2020-01-01' + g % 180, 'v' FROM generate_series(1, 20000) g;
		CREATE TABLE $S.bare (a integer, d date) DISTRIBUTED BY (a)
		PARTITION BY RANGE (d) (START (date '2020-01-01') END (date '2020-07-01') EVERY (interval '10 days'));
		INSERT INTO $S.bare SELECT g, date '2020-01-01' + g % 180 FROM generate_series(1, 2000) g`)
	days, bare := w.table("days", []string{"id", "d"}, "id bigint", "d date", "v text"), w.table("bare", nil, "a integer", "d date")
	src := conformance.NewSource(3, days, bare)
	tg := w.start(src, days, bare)
	var plan string
	tg.opts.private.explain = func(p string) {
		if strings.Contains(p, "_1_prt_") {
			plan = p
		}
	}
	parts := func(p string) int {
		seen := map[string]bool{}
		for _, l := range strings.Fields(p) {
			if i := strings.Index(l, "_1_prt_"); i >= 0 && !strings.Contains(l, "pkey") {
				seen[l] = true
			}
		}
		return len(seen)
	}
	f := tg.tables.byName[catalog.Name{Schema: w.schema, Table: "days"}]
	for _, c := range []struct{ rows, days, most int }{{1, 1, 1}, {40, 3, 1}, {40, 15, 2}, {3000, 15, 2}, {6000, 100, 10}} {
		var keys [][]string
		for i := range c.rows {
			id := 180*(i/c.days+1) + i%c.days
			keys = append(keys, []string{num(id), time.Date(2020, 1, 1+i%c.days, 0, 0, 0, 0, time.UTC).Format(time.DateOnly)})
		}
		inBatch(t, tg, func(b *backend) {
			found, err := b.Delete(testCtx(t), apply.ServerPlaced, &apply.DeleteOp{Table: f.Table, N: c.rows, Keys: set([]int{0, 1}, keys...), Ordinals: true})
			if err != nil {
				t.Fatal(err)
			}
			if n := parts(plan); n == 0 || n > c.most {
				t.Errorf("%d rows of %d days look into %d partitions, want at most %d", c.rows, c.days, n, c.most)
			}
			if c.rows <= 6000 && found.Rows < int64(min(c.rows, 1000)) {
				t.Errorf("%d rows of %d days: %d deleted", c.rows, c.days, found.Rows)
			}
		})
	}
	fb := tg.tables.byName[catalog.Name{Schema: w.schema, Table: "bare"}]
	inBatch(t, tg, func(b *backend) {
		found, err := b.DeleteImages(testCtx(t), apply.ServerPlaced, &apply.ImageOp{
			Table: fb.Table, N: 2, Count: []int64{1, 1},
			Image: set([]int{0, 1}, []string{"3", "2020-01-04"}, []string{"4", "2020-01-05"}),
		})
		if err != nil || found.Rows != 2 {
			t.Fatalf("%d rows, %v", found.Rows, err)
		}
		if n := parts(plan); n != 1 {
			t.Errorf("rows of one partition are looked for in %d", n)
		}
	})
}
