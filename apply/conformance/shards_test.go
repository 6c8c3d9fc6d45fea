package conformance_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"cbrepl/apply"
	"cbrepl/apply/conformance"
	"cbrepl/apply/ledger"
	"cbrepl/apply/shards"
	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/lab/clustertest"
	"cbrepl/router"
)

// TestShards runs the suite on stock PostgreSQL servers.
func TestShards(t *testing.T) {
	conformance.Run(t, &stock{cluster: shared.Target(t)})
}

// stock is a target of PostgreSQL servers.
type stock struct {
	cluster *lab.TargetCluster
	schemas int
}

func (s *stock) Name() string  { return "shards" }
func (s *stock) Segments() int { return s.cluster.Segments() }
func (s *stock) Has(st conformance.Storage) bool {
	return st == conformance.Heap || st == conformance.Partition
}

func (s *stock) HasType(_ testing.TB, typ, value string) bool {
	_, err := clustertest.TryQuery(s.cluster.DSN(), "SELECT '"+strings.ReplaceAll(value, "'", "''")+"'::"+typ)
	return err == nil
}

func (s *stock) Schema(t testing.TB) string {
	s.schemas++
	name := fmt.Sprintf("conf_%d", s.schemas)
	ctx := context.Background()
	if err := s.cluster.ExecAll(ctx, "CREATE SCHEMA "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.cluster.ExecAll(ctx, "DROP SCHEMA "+name+" CASCADE"); err != nil {
			t.Error(err)
		}
		if err := s.cluster.Exec(ctx, dtx.Coordinator, "DELETE FROM cbrepl.distribution_policy WHERE schema_name = $1", name); err != nil {
			t.Error(err)
		}
	})
	return name
}

func (s *stock) Create(t testing.TB, tab *conformance.Table) {
	sql := "CREATE TABLE " + tab.SQLName() + " (" + tab.Body() + ")"
	if tab.Storage == conformance.Partition {
		sql += " PARTITION BY RANGE (" + tab.PartitionBy + ")"
		for i := range 4 {
			sql += fmt.Sprintf("; CREATE TABLE %s.%s_p%d PARTITION OF %s FOR VALUES FROM (%d) TO (%d)", tab.Schema(), tab.Name, i, tab.SQLName(), 100*i, 100*i+100)
		}
		sql += fmt.Sprintf("; CREATE TABLE %s.%s_other PARTITION OF %s DEFAULT", tab.Schema(), tab.Name, tab.SQLName())
	}
	if tab.Index != "" {
		sql += "; CREATE INDEX ON " + tab.SQLName() + ` ("` + strings.ReplaceAll(tab.Index, `"`, `""`) + `")`
	}
	ctx := context.Background()
	if err := s.cluster.ExecAll(ctx, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	kind := map[router.PolicyKind]string{router.Hash: "hash", router.Random: "random", router.Replicated: "replicated"}[tab.Kind]
	opclasses := tab.Opclasses
	if opclasses == nil {
		opclasses = make([]string, len(tab.Dist))
	}
	dist := tab.Dist
	if dist == nil {
		dist, opclasses = []string{}, []string{}
	}
	if err := s.cluster.Exec(ctx, dtx.Coordinator, "INSERT INTO cbrepl.distribution_policy VALUES ($1, $2, $3, $4, $5, $6)",
		tab.Schema(), tab.Name, kind, dist, opclasses, s.Segments()); err != nil {
		t.Fatal(err)
	}
}

func (s *stock) Target(t testing.TB, o conformance.TargetOptions) apply.Target {
	opts := shards.Options{
		Options:     ledger.Options{Subscription: o.Subscription, Tables: o.Tables, Engine: o.Engine, LockWait: 300 * time.Millisecond},
		Coordinator: s.cluster.DSN(), Shards: s.cluster.SegmentDSNs(),
	}
	if err := shards.Prepare(context.Background(), opts); err != nil {
		t.Fatalf("prepare: %v", err)
	}
	tg, err := shards.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return tg
}

func (s *stock) Exec(t testing.TB, sql string) {
	for _, dsn := range s.cluster.SegmentDSNs() {
		clustertest.Exec(t, dsn, sql)
	}
}

func (s *stock) Dump(t testing.TB, tab *conformance.Table, columns []string) []conformance.Row {
	var out []conformance.Row
	for seg, dsn := range s.cluster.SegmentDSNs() {
		for _, r := range clustertest.Query(t, dsn, "SET lc_monetary = 'C'; SELECT "+columnList(columns)+" FROM "+tab.SQLName()) {
			out = append(out, conformance.Row{Segment: seg, Values: r})
		}
	}
	return out
}

func (s *stock) Sever(t testing.TB, subscription string) {
	app := "cbrepl:" + subscription
	for _, dsn := range append(s.cluster.SegmentDSNs(), s.cluster.DSN()) {
		clustertest.Exec(t, dsn, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name LIKE '"+
			strings.ReplaceAll(app[:min(len(app), 55)], "_", `\_`)+"%'")
	}
}
