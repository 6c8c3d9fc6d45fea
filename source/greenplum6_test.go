package source

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/check"
	"cbrepl/dtx"
	"cbrepl/lab/clustertest"
	"cbrepl/source/stream/repl"
)

// greenplum6 is a database of its own on a real Greenplum 6, and a source
// configuration for it.
type greenplum6 struct {
	*testing.T
	base string // another database's
	cfg  Config
}

func newGreenplum6(t *testing.T) *greenplum6 {
	t.Helper()
	g := &greenplum6{T: t, base: clustertest.SourceDSN(t)}
	name := "source_" + strings.ToLower(t.Name())
	u, err := url.Parse(g.base)
	if err != nil {
		t.Fatal(err)
	}
	g.sql(g.base, "DROP DATABASE IF EXISTS "+name)
	g.sql(g.base, "CREATE DATABASE "+name)
	t.Cleanup(func() { g.sql(g.base, "DROP DATABASE "+name) })
	u.Path = "/" + name
	g.cfg = Config{Kind: Greenplum6, Coordinator: u.String(), Slot: name, Publication: "p"}
	g.sql(g.cfg.Coordinator, "CREATE EXTENSION cbrepl_source")
	cl, err := Discover(t.Context(), ClusterConfig{Coordinator: g.cfg.Coordinator, Slot: name})
	if err != nil {
		t.Fatal(err)
	}
	if cl.Kind() != Greenplum6 {
		t.Fatalf("%s names a source of kind %s", clustertest.SourceEnvVar, cl.Kind())
	}
	g.cfg.Nodes = cl.Nodes()
	g.cfg.EnsureDefaults()
	return g
}

// sql runs statements one by one, each in a transaction of its own.
func (g *greenplum6) sql(dsn string, statements ...string) {
	g.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		g.Fatal(err)
	}
	defer closeConn(conn)
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			g.Fatalf("%.60s: %v", sql, err)
		}
	}
}

// try is sql in the test's database.
func (g *greenplum6) try(statements ...string) { g.Helper(); g.sql(g.cfg.Coordinator, statements...) }

func (g *greenplum6) publish(viaRoot bool, tables ...string) {
	g.Helper()
	if err := Publish(g.Context(), g.cfg.Coordinator, "p", tables, viaRoot); err != nil {
		g.Fatal(err)
	}
}

// findings are those of a check of the whole source.
func (g *greenplum6) findings(create bool) string {
	g.Helper()
	_, r, err := Check(g.Context(), g.cfg, create)
	if err != nil {
		g.Fatal(err)
	}
	return r.Findings.Error()
}

func (g *greenplum6) has(what, text string, want ...string) {
	g.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			g.Errorf("%s: %q is missing in\n%s", what, w, text)
		}
	}
}

// TestGreenplum6PublicationChanges: what changes in a list of tables under a
// subscription so that changes can be missed is named; what cannot is not.
func TestGreenplum6PublicationChanges(t *testing.T) {
	g := newGreenplum6(t)
	for _, tc := range []struct {
		name, change string
		want         []string // none: nothing is wrong
	}{
		{"nothing", "SELECT 1", nil},
		{"another column", "ALTER TABLE acct ADD more int", nil},
		{"dropped", "DROP TABLE acct", []string{"table public.acct: it was replicated and is not published here any more", "cbrepl table forget"}},
		{"made anew", "DROP TABLE acct; CREATE TABLE acct (id int PRIMARY KEY)", []string{"table public.acct: it was replicated and is not published here any more", "cbrepl table forget"}},
		{"renamed", "ALTER TABLE acct RENAME TO other", []string{"table public.acct: it was replicated and is not published here any more", "cbrepl table forget"}},
		{"moved", "CREATE SCHEMA elsewhere; ALTER TABLE acct SET SCHEMA elsewhere", []string{"table public.acct: it was replicated and is not published here any more", "cbrepl table forget"}},
		{"partition", "ALTER TABLE parts DROP PARTITION a", []string{"table public.parts_1_prt_a: it was replicated and is not published here any more"}},
		{"unpublished", "DELETE FROM cbrepl.publication_table WHERE table_name = 'acct'", []string{"table public.acct: it was replicated and is not published here any more", "cbrepl table forget"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g.try("DROP SCHEMA IF EXISTS elsewhere CASCADE; DROP TABLE IF EXISTS acct, parts, other", "DROP SCHEMA IF EXISTS cbrepl CASCADE",
				"CREATE TABLE acct (id int PRIMARY KEY, note text) DISTRIBUTED BY (id)",
				"CREATE TABLE parts (id int, d int) DISTRIBUTED BY (id) PARTITION BY RANGE (d) (PARTITION a START (0) END (10), PARTITION b START (10) END (20))")
			g.publish(false, "public.acct", "public.parts")
			facts, _, err := Check(t.Context(), g.cfg, true)
			if err != nil {
				t.Fatal(err)
			}
			was := facts.Published()
			if len(was[0].Tables) != 3 {
				t.Fatalf("published: %+v", was)
			}
			g.try(tc.change)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			looks := 0
			err = WatchPublished(ctx, g.cfg, was[0].Tables, time.Millisecond, func(_ context.Context, n Node) (string, error) {
				if n.Content != dtx.Coordinator {
					t.Errorf("content %d is asked for a list that the coordinator has", n.Content)
				}
				if looks++; looks > 1 {
					cancel() // one whole look has found nothing
				}
				return n.DSN, nil
			})
			if tc.want == nil {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("unexpected: %v", err)
				}
				return
			}
			var fs check.Findings
			if !errors.As(err, &fs) || dtx.ClassOf(err) != dtx.ClassStop {
				t.Fatalf("%v", err)
			}
			g.has(tc.name, err.Error(), append(tc.want, "content -1")...)
		})
	}
}

// TestPublishing: what goes into a list and what does not, and what a list shows.
func TestPublishing(t *testing.T) {
	g := newGreenplum6(t)
	g.try(`CREATE TABLE "Odd name" (id int) DISTRIBUTED BY (id); CREATE TABLE acct (id int PRIMARY KEY) DISTRIBUTED BY (id)`,
		"CREATE TABLE history (id int) WITH (appendonly=true) DISTRIBUTED BY (id); CREATE VIEW v AS SELECT 1")
	listed, err := ListPublished(t.Context(), g.cfg.Coordinator, "p")
	if err != nil || len(listed) != 0 {
		t.Errorf("before any publication: %v, %v", listed, err)
	}
	g.publish(false, `public."Odd name"`, "public.acct", "public.history", "public.acct")
	for table, want := range map[string]string{
		"public.nowhere":           "there is no such table",
		"nowhere.t":                "there is no such table",
		"public.v":                 "it is not a table",
		"cbrepl.publication_table": "cbrepl's own table",
	} {
		err := Publish(t.Context(), g.cfg.Coordinator, "p", []string{"public.acct", table}, false)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), table) {
			t.Errorf("publish %s: %v", table, err)
		}
	}
	if err := Publish(t.Context(), g.cfg.Coordinator, "p", []string{"public.acct"}, true); err == nil || !strings.Contains(err.Error(), "--via-root false") {
		t.Errorf("published in another way: %v", err)
	}
	if listed, err = ListPublished(t.Context(), g.cfg.Coordinator, "p"); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, p := range listed {
		fmt.Fprintf(&text, "%s.%s %t %s\n", p.Schema, p.Name, p.ViaRoot, strings.Join(p.Notes, "; "))
	}
	g.has("list", text.String(), "public.acct false \n", "public.history is append-optimized (ao_row)", "source.copy_only", "public.Odd name has no replica identity")

	all := g.findings(true)
	g.has("append-optimized", all, "table public.history: it is append-optimized (ao_row), which the server does not decode", "source.copy_only")
	g.cfg.CopyOnly = []string{"public.history", "public.acct", "public.nowhere"}
	all = g.findings(true)
	g.has("copy_only", all, "table public.acct: source.copy_only names it, but it is a heap table", "table public.nowhere: source.copy_only names it, but publication")
	g.cfg.CopyOnly = []string{"public.history"}
	facts, r, err := Check(t.Context(), g.cfg, true)
	if err != nil || strings.Contains(r.Findings.Error(), "public.history") || len(facts.CopyOnly) != 1 || facts.CopyOnly[0] != "public.history" {
		t.Errorf("copy_only %v, %v, %v", facts.CopyOnly, r.Findings, err)
	}

	if err := Unpublish(t.Context(), g.cfg.Coordinator, "p", []string{"public.acct", "public.nowhere"}); err == nil || !strings.Contains(err.Error(), "does not hold it") {
		t.Errorf("unpublish what is not there: %v", err)
	}
	if err := Unpublish(t.Context(), g.cfg.Coordinator, "p", []string{"public.Odd name", "public.acct", "public.history"}); err != nil {
		t.Error(err)
	}
	g.has("empty", g.findings(true), `publication "p" has no table`, "cbrepl source publish")
}

// TestGreenplum6BadInput: each names the node and the remedy.
func TestGreenplum6BadInput(t *testing.T) {
	g := newGreenplum6(t)
	g.try("CREATE TABLE acct (id int PRIMARY KEY) DISTRIBUTED BY (id)")
	g.publish(false, "public.acct")
	const segment = 1
	node := g.cfg.Nodes[segment+1].DSN

	// What a promoted mirror looks like: other nodes have the slot, it has none.
	drop := "SELECT pg_drop_replication_slot('" + g.cfg.Slot + "')"
	g.sql(node, "SELECT pg_create_logical_replication_slot('"+g.cfg.Slot+"', 'cbrepl_source')")
	t.Cleanup(func() { g.sql(node, drop) })
	g.has("no slot", g.findings(false), "content 0 needs resync", "(a promoted mirror does not have the slot", "content 2 needs resync", "cbrepl slots create")
	_, err := CreateSlots(t.Context(), g.cfg)
	if err == nil || !strings.Contains(err.Error(), "content 1: ") || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("create slots: %v", err)
	}

	// Another library, and none.
	set := func(sql string) {
		for _, n := range g.cfg.Nodes {
			if n.Content == segment {
				g.sql(n.DSN, "SET allow_system_table_mods = on; "+sql)
			}
		}
	}
	set("CREATE OR REPLACE FUNCTION cbrepl_source.version() RETURNS text LANGUAGE sql AS 'SELECT ''0.9''::text'")
	g.has("another version", g.findings(false), "content 1: the library cbrepl_source has version 0.9, want "+PluginVersion, "restart the cluster")
	set("DROP EXTENSION cbrepl_source CASCADE")
	g.has("no extension", g.findings(false), "content 1: extension cbrepl_source is not in this database", "CREATE EXTENSION")
}

// TestUnknownRecord: the decoder's own word for a record that it does not know is
// told from other faults of making a slot.
func TestUnknownRecord(t *testing.T) {
	for message, want := range map[string]bool{
		"unexpected RM_XACT_ID record type: 112":     true,
		"unexpected RM_XLOG_ID record type: 176":     true,
		"unexpected RM_HEAP_ID record type: 1":       false,
		"all replication slots are in use":           false,
		`replication slot "s" is already active: 12`: false,
	} {
		err := repl.Fault("create slot s", 0, "s", "p", &pgconn.PgError{Code: "XX000", Message: message})
		if got := metUnknownRecord(err); got != want {
			t.Errorf("%s: %t", message, got)
		}
	}
	if metUnknownRecord(nil) || metUnknownRecord(context.DeadlineExceeded) {
		t.Error("not a server's word")
	}
}
