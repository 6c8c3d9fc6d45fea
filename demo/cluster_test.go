package demo

import (
	"bytes"
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"cbrepl/lab"
	"cbrepl/lab/clustertest"
	"cbrepl/source"
)

const wait = 2 * time.Minute

func TestDiffer(t *testing.T) {
	for _, tc := range []struct {
		want, have     string
		missing, extra int64
	}{
		{"", "", 0, 0}, {"a b c", "a b c", 0, 0}, {"a b c", "b", 2, 0}, {"b", "a b c", 0, 2}, {"a a b", "a b b", 1, 1}, {"a", "b", 1, 1},
	} {
		m, e := differ(strings.Fields(tc.want), strings.Fields(tc.have))
		if m != tc.missing || e != tc.extra {
			t.Errorf("%q and %q: %d missing, %d extra", tc.want, tc.have, m, e)
		}
	}
}

// TestDemoCluster runs the demo into a real cluster, where it leaves nothing.
func TestDemoCluster(t *testing.T) {
	dsn := databases.Open(t, clustertest.DSNs(t)[0])
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	if err := Run(ctx, Options{SourceSegments: 2, Duration: 2 * time.Second, TargetDSN: dsn, Out: &out}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	m := regexp.MustCompile(`in schema (cbrepl_demo_[0-9a-f]{8})\n`).FindStringSubmatch(out.String())
	if m == nil || !strings.Contains(out.String(), "RESULT: both clusters hold the same rows, each on the right segment\nremoved schema "+m[1]) {
		t.Fatal(out.String())
	}
	traces(t, dsn, m[1])
	out.Reset()
	srv := lab.ServerForTest(t, lab.Options{})
	if err := Run(ctx, Options{TargetDSN: srv.DSN(), Out: &out}); err == nil || !strings.Contains(err.Error(), "is not the coordinator of a Cloudberry or Greenplum cluster") {
		t.Errorf("a stock server: %v", err)
	}
	if strings.Contains(out.String(), "starting") {
		t.Errorf("servers were started first: %s", out.String())
	}
}

// traces looks for what a demo has left.
func traces(t *testing.T, dsn, schema string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	conn := session(t, dsn)
	var left, state bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1), to_regclass('cbrepl.subscription') IS NOT NULL", schema).Scan(&left, &state); err != nil {
		t.Fatal(err)
	}
	if left {
		t.Errorf("schema %s is left", schema)
	}
	if !state {
		return
	}
	name := strings.TrimPrefix(schema, "cbrepl_")
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM cbrepl.subscription WHERE name = $1)
		OR EXISTS (SELECT 1 FROM cbrepl.stream WHERE subscription = $1) OR EXISTS (SELECT 1 FROM cbrepl.dedup WHERE subscription = $1)`, name).Scan(&left); err != nil || left {
		t.Errorf("state of %s is left: %t, %v", name, left, err)
	}
}

func session(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal("the connection string cannot be read")
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := pgx.ConnectConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// TestCompareCluster: the comparison finds every kind of difference, also rows
// that only a session on the segment itself can misplace.
func TestCompareCluster(t *testing.T) {
	dsn := databases.Open(t, clustertest.DSNs(t)[0])
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	src := lab.SourceForTest(t, lab.Options{Segments: 1})
	name, err := newName()
	if err != nil {
		t.Fatal(err)
	}
	opened, err := openCluster(ctx, "target", dsn, name)
	if err != nil {
		t.Fatal(err)
	}
	c := clusterTarget{opened}
	if err := src.CreateWorkloadTables(ctx); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := c.remove(ctx); err != nil {
			t.Error(err)
		}
		traces(t, dsn, c.schema)
	}()
	if err := c.create(ctx); err != nil {
		t.Fatal(err)
	}
	if err := lab.NewWorkload(src, 1).Fill(ctx); err != nil {
		t.Fatal(err)
	}
	conn := session(t, dsn)
	for _, d := range lab.WorkloadTables() {
		rows, err := src.RowsOf(ctx, d.Name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(ctx, "INSERT INTO "+c.table(d.Name)+" SELECT (r::"+c.table(d.Name)+").* FROM unnest($1::text[]) r", rows); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, want func(table string) lab.TableReport) {
		t.Helper()
		rep, err := compare(ctx, labSource{src}, c)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rep.Tables {
			w := want(r.Table)
			if r.Table == lab.Currencies {
				w.Missing = min(r.Missing, w.Misplaced) // which copy is read is the server's choice
			}
			if r.SourceRows == 0 || r.Missing != w.Missing || r.Extra != w.Extra || r.Misplaced != w.Misplaced {
				t.Errorf("%s: %+v", what, r)
			}
		}
	}
	check("as they should be", func(string) lab.TableReport { return lab.TableReport{} })
	cl, err := source.Discover(ctx, source.ClusterConfig{Coordinator: dsn})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range cl.Nodes()[1:] { // the same rows on every segment: all but one are misplaced
		seg := session(t, n.DSN)
		for _, table := range []string{lab.Accounts, lab.Audit} { // of constants the planner would keep the ones that belong here
			if _, err := seg.Exec(ctx, "INSERT INTO "+c.table(table)+" SELECT i, 0, 'x' FROM generate_series(-7, -7) i"); err != nil {
				t.Fatal(err)
			}
		}
		if n.Content == 0 {
			if _, err := seg.Exec(ctx, "DELETE FROM "+c.table(lab.Currencies)+" WHERE code = 'EUR'"); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, sql := range []string{"UPDATE " + c.table(lab.Orders) + " SET detail = 'changed' WHERE no = 1", "DELETE FROM " + c.table(lab.Events) + " WHERE id = (SELECT min(id::text)::uuid FROM " + c.table(lab.Events) + ")"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	n := int64(c.segments())
	check("spoilt", func(table string) lab.TableReport {
		switch table {
		case lab.Accounts:
			return lab.TableReport{Extra: n, Misplaced: n - 1}
		case lab.Audit:
			return lab.TableReport{Extra: n}
		case lab.Orders:
			return lab.TableReport{Missing: 1, Extra: 1}
		case lab.Events:
			return lab.TableReport{Missing: 1}
		}
		return lab.TableReport{Misplaced: 1}
	})
}
