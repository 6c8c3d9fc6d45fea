package source

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"cbrepl/catalog"
	"cbrepl/check"
	"cbrepl/dtx"
)

// TestPublicationChanges: what changes under a subscription so that changes can be
// missed is named with table and node; what cannot is not.
func TestPublicationChanges(t *testing.T) {
	c := newCluster(t, shared.Source(t))
	for _, tc := range []struct {
		name   string
		change func(*cluster)
		want   []string
	}{
		{"nothing", func(*cluster) {}, nil},
		{"another table", func(c *cluster) { c.on(1, "CREATE TABLE other (a int PRIMARY KEY)") }, nil},
		{"another column", func(c *cluster) { c.all("ALTER TABLE acct ADD more int") }, nil},
		{"column dropped", func(c *cluster) { c.all("ALTER TABLE acct DROP note") }, nil},
		{"made anew", func(c *cluster) {
			c.on(1, "DROP TABLE acct; CREATE TABLE acct (id int PRIMARY KEY, note text)")
		}, []string{"content 1: table public.acct: another table has its name now"}},
		{"swapped", func(c *cluster) {
			c.on(1, "CREATE TABLE fresh (id int PRIMARY KEY, note text); ALTER TABLE acct RENAME TO stale; ALTER TABLE fresh RENAME TO acct")
		}, []string{"content 1: table public.acct: another table has its name now"}},
		{"dropped on all nodes", func(c *cluster) { c.all("DROP TABLE dims") }, eachNode("table public.dims: it was replicated and is not published here any more")},
		{"unlogged", func(c *cluster) { c.on(2, "ALTER TABLE dims SET UNLOGGED") }, []string{"content 2: table public.dims: it was replicated"}},
		{"narrowed", func(c *cluster) { c.on(0, "ALTER PUBLICATION p SET (publish = 'insert, delete')") }, []string{"content 0: the publication leaves out update, truncate now"}},
		{"publication gone", func(c *cluster) { c.on(0, "DROP PUBLICATION p") }, []string{"content 0: table public.acct: it was", "content 0: table public.dims: it was"}},
		{"taken out of the list", func(c *cluster) {
			c.on(2, "DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE acct")
		}, []string{"content 2: table public.dims: it was replicated"}},
		{"column list", func(c *cluster) {
			c.on(2, "DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE acct (id), dims")
		}, []string{`content 2: table public.acct: column "note" was replicated`}},
		{"row filter", func(c *cluster) {
			c.on(2, "DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE acct WHERE (id > 1), dims")
		}, []string{"content 2: table public.acct: its row filter was (none) and is ((id > 1))"}},
		{"type", func(c *cluster) {
			c.on(1, "ALTER TYPE pair DROP ATTRIBUTE a; ALTER TYPE pair ADD ATTRIBUTE a int")
		}, []string{`content 1: table public.dims: the type of column "p" was public.pair[] (a integer, b integer) and is public.pair[] (b integer, a integer)`}},
		{"generated", func(c *cluster) {
			c.on(2, "ALTER TABLE acct DROP note, ADD note text GENERATED ALWAYS AS (id::text) STORED")
		}, []string{`content 2: table public.acct: column "note" was replicated`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c.t = t
			c.all(`DROP PUBLICATION IF EXISTS p; DROP TABLE IF EXISTS acct, dims, other, stale; DROP TYPE IF EXISTS pair; CREATE TYPE pair AS (a int, b int);
				CREATE TABLE acct (id int PRIMARY KEY, note text); CREATE TABLE dims (k text PRIMARY KEY, p pair[]); CREATE PUBLICATION p FOR ALL TABLES`)
			var was []catalog.ReplicatedTable
			for _, n := range c.cfg.Nodes {
				p, err := readPublished(c.ctx(), &c.cfg, n)
				if err != nil {
					t.Fatal(err)
				}
				was = append(was, p.Tables...)
			}
			tc.change(c)
			if err := ComparePublished(was, nil); err != nil {
				t.Errorf("nodes that were not asked: %v", err)
			}
			if tc.want == nil {
				for _, n := range c.cfg.Nodes {
					p, err := readPublished(c.ctx(), &c.cfg, n)
					if err == nil {
						err = ComparePublished(was, []NodePublication{p})
					}
					if err != nil {
						t.Errorf("unexpected: %v", err)
					}
				}
				return
			}
			err := WatchPublished(c.ctx(), c.cfg, was, time.Millisecond, func(_ context.Context, n Node) (string, error) { return n.DSN, nil })
			var ps check.Findings
			if !errors.As(err, &ps) || dtx.ClassOf(err) != dtx.ClassStop {
				t.Fatalf("%v", err)
			}
			c.expect(ps, tc.want)
			if !strings.Contains(err.Error(), "cbrepl table forget") && !strings.Contains(err.Error(), "cbrepl slots create") {
				t.Errorf("no remedy: %v", err)
			}
		})
	}
}
