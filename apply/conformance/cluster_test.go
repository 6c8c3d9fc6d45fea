package conformance_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cbrepl/apply"
	"cbrepl/apply/cloudberry"
	"cbrepl/apply/conformance"
	"cbrepl/apply/ledger"
	"cbrepl/lab"
	"cbrepl/lab/clustertest"
	"cbrepl/router"
)

var (
	shared    lab.Shared
	databases clustertest.Databases
)

func TestMain(m *testing.M) {
	shared.Options.Segments = 2
	os.Exit(databases.Main(run(func() int { return shared.Main(m) })))
}

type run func() int

func (r run) Run() int { return r() }

// TestCluster runs the suite on every real cluster of the environment.
func TestCluster(t *testing.T) {
	for _, dsn := range clustertest.DSNs(t) {
		c := &cluster{dsn: databases.Open(t, dsn)}
		rows := clustertest.Query(t, c.dsn, "SELECT count(*) FROM gp_segment_configuration WHERE content >= 0 AND role = 'p'")
		c.segments, _ = strconv.Atoi(*rows[0][0])
		c.old = *clustertest.Query(t, c.dsn, "SELECT count(*) FROM pg_attribute WHERE attrelid = 'pg_class'::regclass AND attname = 'relstorage'")[0][0] == "1"
		t.Run(fmt.Sprintf("%dsegments", c.segments), func(t *testing.T) { conformance.Run(t, c) })
	}
}

// cluster is a Cloudberry or Greenplum cluster behind its coordinator.
type cluster struct {
	dsn      string
	segments int
	old      bool // storage and partitions are declared in Greenplum 6's way
	schemas  int
}

func (c *cluster) Name() string                   { return "cluster" }
func (c *cluster) Segments() int                  { return c.segments }
func (c *cluster) Has(s conformance.Storage) bool { return true }

func (c *cluster) HasType(_ testing.TB, typ, value string) bool {
	_, err := clustertest.TryQuery(c.dsn, "SELECT '"+strings.ReplaceAll(value, "'", "''")+"'::"+typ)
	return err == nil
}

func (c *cluster) Schema(t testing.TB) string {
	c.schemas++
	name := fmt.Sprintf("conf_%d", c.schemas)
	clustertest.Exec(t, c.dsn, "CREATE SCHEMA "+name)
	t.Cleanup(func() { clustertest.Exec(t, c.dsn, "DROP SCHEMA "+name+" CASCADE") })
	return name
}

// with is the storage clause of a table.
func (c *cluster) with(s conformance.Storage) string {
	if !c.old {
		switch s {
		case conformance.AORow, conformance.AOColumn:
			return " USING " + string(s)
		}
		return " USING heap"
	}
	switch s {
	case conformance.AORow:
		return " WITH (appendonly = true)"
	case conformance.AOColumn:
		return " WITH (appendonly = true, orientation = column)"
	}
	return ""
}

func (c *cluster) Create(t testing.TB, tab *conformance.Table) {
	sql := "CREATE TABLE " + tab.SQLName() + " (" + tab.Body() + ")"
	parts := tab.Storage == conformance.Partition || tab.Storage == conformance.Mixed
	if !parts {
		sql += c.with(tab.Storage)
	}
	var dist []string
	for i, d := range tab.Dist {
		col := `"` + strings.ReplaceAll(d, `"`, `""`) + `"`
		if i < len(tab.Opclasses) {
			col += " " + tab.Opclasses[i]
		}
		dist = append(dist, col)
	}
	switch tab.Kind {
	case router.Replicated:
		sql += " DISTRIBUTED REPLICATED"
	case router.Random:
		sql += " DISTRIBUTED RANDOMLY"
	default:
		sql += " DISTRIBUTED BY (" + strings.Join(dist, ", ") + ")"
	}
	if parts {
		sql += " PARTITION BY RANGE (" + tab.PartitionBy + ") (PARTITION nul DEFAULT PARTITION"
		sql = strings.Replace(sql, "PARTITION nul DEFAULT PARTITION", "DEFAULT PARTITION other", 1)
		for i := range 4 {
			sql += fmt.Sprintf(", PARTITION p%d START (%d) END (%d)", i, 100*i, 100*i+100)
			if tab.Storage == conformance.Mixed && i%2 == 1 {
				sql += " WITH (appendonly = true)"
			}
		}
		sql += ")"
	}
	if tab.Index != "" {
		sql += "; CREATE INDEX ON " + tab.SQLName() + ` ("` + strings.ReplaceAll(tab.Index, `"`, `""`) + `")`
	}
	clustertest.Exec(t, c.dsn, sql)
}

func (c *cluster) Target(t testing.TB, o conformance.TargetOptions) apply.Target {
	opts := cloudberry.Options{
		Options:     ledger.Options{Subscription: o.Subscription, Tables: o.Tables, Engine: o.Engine, LockWait: 300 * time.Millisecond},
		Coordinator: c.dsn,
	}
	if err := cloudberry.Prepare(context.Background(), opts); err != nil {
		t.Fatalf("prepare: %v", err)
	}
	tg, err := cloudberry.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return tg
}

func (c *cluster) Exec(t testing.TB, sql string) { clustertest.Exec(t, c.dsn, sql) }

func (c *cluster) Dump(t testing.TB, tab *conformance.Table, columns []string) []conformance.Row {
	var out []conformance.Row
	if tab.Kind != router.Replicated {
		for _, r := range clustertest.Query(t, c.dsn, "SET extra_float_digits = 0; SELECT gp_segment_id, "+columnList(columns)+" FROM "+tab.SQLName()) {
			seg, _ := strconv.Atoi(*r[0])
			out = append(out, conformance.Row{Segment: seg, Values: r[1:]})
		}
		return out
	}
	for _, r := range clustertest.Query(t, c.dsn, "SELECT gp_execution_segment(), "+columnList(columns)+
		" FROM gp_dist_random('"+strings.ReplaceAll(tab.SQLName(), "'", "''")+"')") {
		seg, _ := strconv.Atoi(*r[0])
		out = append(out, conformance.Row{Segment: seg, Values: r[1:]})
	}
	return out
}

func columnList(columns []string) string {
	list := slices.Clone(columns)
	for i, c := range list {
		list[i] = `"` + strings.ReplaceAll(c, `"`, `""`) + `"`
	}
	return strings.Join(list, ", ")
}

func (c *cluster) Sever(t testing.TB, subscription string) {
	app := "cbrepl:" + subscription
	clustertest.Exec(t, c.dsn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '"+app[:min(len(app), 63)]+"'")
}
