package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"cbrepl/catalog"
	"cbrepl/check"
	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/router"
	"cbrepl/source/stream/repl"
)

var shared lab.Shared

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

const wait = 60 * time.Second

var names atomic.Int64

// cluster is a fresh database on every node of a lab's source.
type cluster struct {
	t    *testing.T
	src  *lab.Source
	cfg  Config
	slot string
	db   string
	// passing is what preflight's fault is expected to be: it may be tried again.
	passing bool
}

func newCluster(t *testing.T, src *lab.Source) *cluster {
	t.Helper()
	n := names.Add(1)
	c := &cluster{t: t, src: src, slot: fmt.Sprintf("source_%d", n), db: fmt.Sprintf("source_%d", n)}
	c.cfg = Config{Slot: c.slot, Publication: "p", SlotWait: -1}
	for i, s := range src.Nodes() {
		content := dtx.Content(i - 1)
		exec(t, s.DSN(), "CREATE DATABASE "+c.db)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), wait)
			defer cancel()
			if err := s.DropDatabase(ctx, c.db); err != nil {
				t.Log(err)
			}
		})
		c.cfg.Nodes = append(c.cfg.Nodes, Node{content, s.DSNFor(c.db)})
	}
	return c
}

// good makes the cluster pass preflight: two tables, policies, slots.
func (c *cluster) good() *cluster {
	c.all("CREATE TABLE acct (id int PRIMARY KEY, note text); CREATE TABLE dims (k text PRIMARY KEY)")
	c.all("CREATE PUBLICATION p FOR ALL TABLES")
	c.on(-1, createPolicyTable)
	c.on(-1, fmt.Sprintf("INSERT INTO cbrepl.distribution_policy VALUES ('public', 'acct', 'hash', '{id}', '{\"\"}', %d), ('public', 'dims', 'replicated', '{}', '{}', %d)",
		c.src.Segments(), c.src.Segments()))
	if _, err := CreateSlots(c.ctx(), c.cfg); err != nil {
		c.t.Fatal(err)
	}
	return c
}

func (c *cluster) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	c.t.Cleanup(cancel)
	return ctx
}

func exec(t *testing.T, dsn, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(conn)
	if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (c *cluster) dsn(content dtx.Content) string { return c.cfg.Nodes[content+1].DSN }

func (c *cluster) on(content dtx.Content, sql string) {
	c.t.Helper()
	exec(c.t, c.dsn(content), sql)
}

func (c *cluster) all(sql string) {
	c.t.Helper()
	for _, n := range c.cfg.Nodes {
		exec(c.t, n.DSN, sql)
	}
}

// problems runs preflight and returns what it finds.
func (c *cluster) problems(create bool) check.Findings {
	c.t.Helper()
	_, err := Preflight(c.ctx(), c.cfg, create)
	if err == nil {
		return nil
	}
	var ps check.Findings
	if !errors.As(err, &ps) || (dtx.ClassOf(err) == dtx.ClassRetry) != c.passing {
		c.t.Fatalf("preflight: %v", err)
	}
	return ps
}

func TestPreflight(t *testing.T) {
	shared.Source(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	c := newCluster(t, shared.Source(t)).good()
	// What a server defaults to does not change how names and types are read.
	c.all("ALTER DATABASE " + c.db + " SET quote_all_identifiers = on")
	c.all(`CREATE TYPE mood AS ENUM ('sad'); CREATE DOMAIN posint AS int;
		CREATE TABLE part (k posint, d date, v int GENERATED ALWAYS AS (k * 2) STORED, PRIMARY KEY (k, d)) PARTITION BY RANGE (d);
		CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
		CREATE TABLE "Odd.Name" ("the Key" text, b text COLLATE "C"); ALTER TABLE "Odd.Name" REPLICA IDENTITY FULL;
		CREATE TABLE ix (a int NOT NULL, b int); CREATE UNIQUE INDEX ix_a ON ix (a); ALTER TABLE ix REPLICA IDENTITY USING INDEX ix_a`)
	c.on(-1, `INSERT INTO cbrepl.distribution_policy VALUES
		('public', 'part', 'hash', '{k}', '{cdbhash_int4_ops}', 2), ('public', 'Odd.Name', 'hash', '{"the Key",b}', '{"",text_ops}', 3),
		('public', 'ix', 'random', '{}', '{}', 3), ('other', 'unpublished', 'random', '{}', '{}', 3)`)
	f, err := Preflight(c.ctx(), c.cfg, false)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Nodes) != 4 || f.Segments() != 3 || len(f.Missing()) != 0 {
		t.Errorf("facts of %d nodes, slots missing on %v", len(f.Nodes), f.Missing())
	}
	for i, n := range f.Nodes {
		if n.Content != dtx.Content(i-1) || n.Server.Version < minVersion || n.Slot.Plugin != "pgoutput" || n.Encoding != "UTF8" {
			t.Errorf("node %+v", n)
		}
	}
	var got []string
	for _, tb := range f.Tables {
		got = append(got, fmt.Sprintf("%s %c kind %d over %d root %q", tb.String(), tb.Identity, tb.Policy.Kind, tb.Policy.NumSegments, tb.Root))
	}
	want := []string{
		`public.Odd.Name f kind 1 over 3 root ""`,
		`public.acct d kind 1 over 3 root ""`,
		`public.dims d kind 3 over 3 root ""`,
		`public.ix i kind 2 over 3 root ""`,
		`public.part_1 d kind 1 over 2 root "public.part"`,
	}
	slices.Sort(got)
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	table := func(name string) catalog.PublishedTable {
		i := slices.IndexFunc(f.Tables, func(tb catalog.PublishedTable) bool { return tb.Name == name })
		return f.Tables[i]
	}
	part := table("part_1")
	integer, _ := router.BuiltinType(23)
	// search_path is pg_catalog, so the domain prints with its schema.
	wantCols := []catalog.PublishedColumn{
		{Name: "k", TypeOID: part.Columns[0].TypeOID, TypeName: "public.posint", Key: true, PrimaryKey: true, Type: &router.Type{
			OID: part.Columns[0].TypeOID, Name: "public.posint", Kind: router.DomainType, Elem: integer, ElemName: "integer",
		}},
		{Name: "d", TypeOID: 1082, TypeName: "date", Key: true, PrimaryKey: true},
		{Name: "v", TypeOID: 23, TypeName: "integer", Generated: true},
	}
	if d := cmp.Diff(wantCols, part.Columns); d != "" {
		t.Error(d)
	}
	k := part.Policy.Columns[0]
	if k.Opclass != "cdbhash_int4_ops" || k.Type.Kind != router.DomainType || k.Type.Elem == nil || k.Type.Elem.OID != 23 {
		t.Errorf("policy column %+v", k)
	}
	if ix := table("ix"); !ix.Columns[0].Key || ix.Columns[0].PrimaryKey || ix.Columns[1].Key {
		t.Errorf("columns of ix: %+v", ix.Columns)
	}
	// What streams need: slots' positions and what they belong to.
	if rs := f.Streams(); len(rs) != 4 || rs[0].LSN == 0 || rs[0].SystemID == "" || rs[0].Slot != c.slot {
		t.Errorf("streams %+v", rs)
	}
	if err := CheckResume(f, f.Streams()); err != nil {
		t.Errorf("resume at the slots' own positions: %v", err)
	}
	// With create, the same slots are in the way.
	if ps := c.problems(true); len(ps) != 4 || !strings.Contains(ps[0].Found, "exists already") {
		t.Errorf("create: %v", ps)
	}
}

// TestRemedies (field case 40): each thing that can be wrong is found, by name,
// and what the message tells to do makes it go away.
func TestRemedies(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(*cluster)
		want  []string // one per problem, in any order
	}{
		{"publication", func(c *cluster) { c.on(1, "DROP PUBLICATION p") }, []string{
			`content 1: publication "p" does not exist`,
		}},
		{
			"partial publication", func(c *cluster) { c.on(0, "ALTER PUBLICATION p SET (publish = 'insert, truncate')") },
			[]string{"content 0: publication \"p\" leaves out update, delete"},
		},
		{
			"no policy table", func(c *cluster) { c.on(-1, "DROP SCHEMA cbrepl CASCADE") },
			[]string{"says how tables are distributed"},
		},
		{
			"no policy", func(c *cluster) { c.on(-1, "DELETE FROM cbrepl.distribution_policy") },
			[]string{"table public.acct: it has no distribution policy", "table public.dims: it has no distribution policy"},
		},
		{"slots", func(c *cluster) {
			if err := DropSlots(c.ctx(), c.cfg); err != nil {
				c.t.Fatal(err)
			}
		}, []string{"content -1 (coordinator): slot", "content 0: slot", "content 1: slot", "content 2: slot"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t, shared.Source(t)).good()
			tc.spoil(c)
			ps := c.problems(false)
			c.expect(ps, tc.want)
			for range 3 { // a remedy may uncover the next problem
				if len(ps) == 0 {
					break
				}
				for _, f := range ps {
					for _, sql := range f.SQL {
						content, _ := f.Content.Get()
						c.on(content, sql)
					}
				}
				if slices.Contains(ps[0].Commands, "cbrepl slots create -c FILE") {
					if _, err := CreateSlots(c.ctx(), c.cfg); err != nil {
						t.Fatal(err)
					}
				}
				ps = c.problems(false)
			}
			if len(ps) > 0 {
				t.Errorf("after the remedies: %v", ps)
			}
		})
	}
}

func (c *cluster) expect(ps check.Findings, want []string) {
	c.t.Helper()
	left := slices.Clone(ps)
	for _, w := range want {
		i := slices.IndexFunc(left, func(p check.Finding) bool { return strings.Contains(p.String(), w) })
		if i < 0 {
			c.t.Errorf("no problem has %q", w)
			continue
		}
		left = slices.Delete(left, i, i+1)
	}
	if len(left) > 0 || c.t.Failed() {
		c.t.Errorf("all that was found: %v", ps)
	}
}

// TestFindings are problems whose remedy is no statement.
func TestFindings(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(*cluster)
		want  []string
	}{
		{"storage (field case 41)", func(c *cluster) {
			// A stock server has no append-optimized tables; their access method's name is
			// what tells them.
			c.all(`CREATE ACCESS METHOD ao_row TYPE TABLE HANDLER heap_tableam_handler; CREATE ACCESS METHOD pax TYPE TABLE HANDLER heap_tableam_handler;
				CREATE TABLE old (a int PRIMARY KEY) USING ao_row; CREATE TABLE root (a int PRIMARY KEY) PARTITION BY RANGE (a);
				CREATE TABLE root_1 PARTITION OF root FOR VALUES FROM (1) TO (9) USING pax;
				ALTER PUBLICATION p SET (publish_via_partition_root = true)`)
			c.on(-1, "INSERT INTO cbrepl.distribution_policy VALUES ('public', 'old', 'random', '{}', '{}', 3), ('public', 'root', 'random', '{}', '{}', 3)")
		}, eachNode("table public.old: it is append-optimized (ao_row)", "table public.root_1: it is storage pax")},
		{"foreign partition", func(c *cluster) {
			c.all(`ALTER PUBLICATION p SET (publish_via_partition_root = true); CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;
				CREATE TABLE root (a int) PARTITION BY RANGE (a)`)
			c.on(2, "CREATE FOREIGN TABLE far PARTITION OF root FOR VALUES FROM (1) TO (9) SERVER s")
			c.on(-1, "INSERT INTO cbrepl.distribution_policy VALUES ('public', 'root', 'random', '{}', '{}', 3)")
		}, []string{"content 2: table public.far: it is a foreign or external table"}},
		{"tables differ", func(c *cluster) {
			c.on(0, "ALTER TABLE acct ALTER note TYPE varchar(10)")
			c.on(1, "DROP TABLE acct")
			c.on(2, "CREATE TABLE extra (a int)")
			c.on(2, "ALTER TABLE dims REPLICA IDENTITY FULL")
		}, []string{
			"content 0: table public.acct: it differs", "content 1: table public.acct: it is published on the coordinator, but not here",
			"content 2: table public.extra: it is published here, but not on the coordinator", "content 2: table public.dims: it differs",
		}},
		{"policies", func(c *cluster) {
			c.on(-1, "UPDATE cbrepl.distribution_policy SET numsegments = 4 WHERE table_name = 'acct'; UPDATE cbrepl.distribution_policy SET kind = 'round' WHERE table_name = 'dims'")
			c.all("CREATE TABLE c (a int); CREATE TABLE d (a int)")
			c.on(-1, "INSERT INTO cbrepl.distribution_policy VALUES ('public', 'c', 'hash', '{nosuch}', '{\"\"}', 3), ('public', 'd', 'hash', '{}', '{}', 3)")
		}, []string{"spreads it over 4 segments, but 3", `of kind "round"`, `names column "nosuch"`, "names no column"}},
		{
			"one slot lost", func(c *cluster) { c.on(1, "SELECT pg_drop_replication_slot('"+c.slot+"')") },
			[]string{`content 1: slot "SLOT" does not exist. Other nodes have it`},
		},
		{"wrong plugin", func(c *cluster) {
			c.on(1, "SELECT pg_drop_replication_slot('"+c.slot+"')")
			c.on(1, "SELECT pg_create_logical_replication_slot('"+c.slot+"', 'test_decoding')")
		}, []string{`content 1: check slot: slot "SLOT" is logical with plugin "test_decoding"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t, shared.Source(t)).good()
			tc.spoil(c)
			ps := c.problems(false)
			for i := range tc.want {
				tc.want[i] = strings.ReplaceAll(tc.want[i], "SLOT", c.slot)
			}
			c.expect(ps, tc.want)
		})
	}
}

// TestWrongList: the list of nodes does not fit the servers.
func TestWrongList(t *testing.T) {
	c := newCluster(t, shared.Source(t)).good()
	good := slices.Clone(c.cfg.Nodes)
	for _, tc := range []struct {
		name  string
		spoil func(*cluster)
		want  []string
	}{
		{
			"not two-phase", func(c *cluster) { c.cfg.TwoPhase = true },
			[]string{"content 0: slot", "content 1: slot", "content 2: slot"},
		},
		{"no server", func(c *cluster) {
			c.cfg.Nodes[2].DSN, c.passing = "postgres://u:canary@127.0.0.1:1/x?sslmode=disable", true
		}, []string{"content 1: connect to source"}},
		{
			"no database", func(c *cluster) { c.cfg.Nodes[2].DSN = strings.Replace(c.cfg.Nodes[2].DSN, c.db, "nosuch", 1) },
			[]string{"content 1: connect to source"},
		},
		{"bad string", func(c *cluster) { c.cfg.Nodes[2].DSN = "postgres://u:canary@[::x/" }, []string{"content 1: read connection string"}},
		{"one server twice", func(c *cluster) { c.cfg.Nodes[2].DSN = c.cfg.Nodes[1].DSN }, []string{"content 1: it is the same server as content 0"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c.t = t
			c.cfg.Nodes, c.cfg.TwoPhase, c.passing = slices.Clone(good), false, false
			tc.spoil(c)
			ps := c.problems(false)
			c.expect(ps, tc.want)
			if strings.Contains(ps.Error(), "canary") {
				t.Errorf("a password is printed: %v", ps)
			}
		})
	}
}

// eachNode repeats findings for every node.
func eachNode(found ...string) []string {
	var out []string
	for _, c := range []string{"-1 (coordinator)", "0", "1", "2"} {
		for _, f := range found {
			out = append(out, "content "+c+": "+f)
		}
	}
	return out
}

// TestEverythingAtOnce: unrelated problems of several nodes come in one report.
func TestEverythingAtOnce(t *testing.T) {
	c := newCluster(t, shared.Source(t)).good()
	c.on(0, "DROP TABLE dims")
	c.on(-1, "UPDATE cbrepl.distribution_policy SET numsegments = 9 WHERE table_name = 'acct'")
	c.on(2, "SELECT pg_drop_replication_slot('"+c.slot+"')")
	c.expect(c.problems(false), []string{"content 0: table public.dims", "9 segments", "content 2: slot"})
}

// TestServerSettings: what needs a restart is found before anything is made, and
// the printed statements mend it.
func TestServerSettings(t *testing.T) {
	src := lab.SourceForTest(t, lab.Options{Segments: 1, Settings: map[string]string{
		"wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "2",
	}})
	c := newCluster(t, src)
	c.all("CREATE TABLE a (id int PRIMARY KEY); CREATE PUBLICATION p FOR ALL TABLES; CREATE ROLE plain LOGIN")
	c.on(-1, createPolicyTable)
	c.on(-1, "INSERT INTO cbrepl.distribution_policy VALUES ('public', 'a', 'hash', '{id}', '{\"\"}', 1)")
	c.all("SELECT pg_create_physical_replication_slot('taken')")
	admin := c.cfg.Nodes[1].DSN
	c.cfg.Nodes[1].DSN = strings.Replace(admin, "://", "://plain@", 1)
	if at := strings.LastIndexByte(admin, '@'); at >= 0 {
		c.cfg.Nodes[1].DSN = "postgres://plain" + admin[at:]
	}
	ps := c.problems(true)
	c.expect(ps, []string{
		"content -1 (coordinator): wal_level is replica", "content -1 (coordinator): all 1 replication slots",
		"content 0: wal_level is replica", "content 0: all 1 replication slots", "content 0: role plain may not replicate",
	})
	restart := map[dtx.Content]bool{}
	for _, p := range ps {
		content, _ := p.Content.Get()
		for _, sql := range p.SQL {
			if content == 0 {
				exec(t, admin, sql)
			} else {
				c.on(content, sql)
			}
		}
		restart[content] = restart[content] || p.Restart
	}
	for content := range restart {
		if err := src.Node(content).Restart(c.ctx()); err != nil {
			t.Fatal(err)
		}
	}
	if ps = c.problems(true); len(ps) > 0 {
		t.Fatalf("after the remedies: %v", ps)
	}
	if _, err := CreateSlots(c.ctx(), c.cfg); err != nil {
		t.Fatal(err)
	}
	if ps = c.problems(false); len(ps) > 0 {
		t.Fatalf("with slots: %v", ps)
	}
	// All WAL senders of the segment taken.
	rc := repl.Config{DSN: admin, Slot: "x", Publication: "p"}
	for range 2 {
		conn, err := repl.Connect(c.ctx(), rc)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
	}
	c.expect(c.problems(false), []string{"content 0: all 2 WAL senders"})
}

func TestEncoding(t *testing.T) {
	c := newCluster(t, shared.Source(t)).good()
	name := c.db + "_latin1"
	s := c.src.Node(0)
	exec(t, s.DSN(), "CREATE DATABASE "+name+" TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
	t.Cleanup(func() { exec(t, s.DSN(), "DROP DATABASE "+name+" WITH (FORCE)") })
	c.cfg.Nodes[1].DSN = s.DSNFor(name)
	c.on(0, "CREATE TABLE acct (id int PRIMARY KEY, note text); CREATE TABLE dims (k text PRIMARY KEY); CREATE PUBLICATION p FOR ALL TABLES")
	c.expect(c.problems(false), []string{"content 0: the database has encoding LATIN1", `content 0: check slot: slot "` + c.slot + `" belongs to database`})
}

// TestSlotInUse: a slot that stays in use is a problem that names the session;
// ending that session, as told, mends it. One that becomes free meanwhile, as
// after a killed daemon, is waited for.
func TestSlotInUse(t *testing.T) {
	c := newCluster(t, shared.Source(t)).good()
	use := func() *repl.Stream {
		conn, err := repl.Connect(c.ctx(), repl.Config{Content: 1, DSN: c.dsn(1), Slot: c.slot, Publication: "p"})
		if err != nil {
			t.Fatal(err)
		}
		s, err := conn.Start(c.ctx(), 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	use()
	ps := c.problems(false)
	c.expect(ps, []string{"content 1: slot \"" + c.slot + "\" is in use by the session with pid"})
	c.on(1, ps[0].SQL[0])
	c.cfg.SlotWait = wait
	if ps = c.problems(false); len(ps) > 0 {
		t.Errorf("after ending the session: %v", ps)
	}
	s := use()
	done := make(chan check.Findings, 1)
	go func() { done <- c.problems(false) }()
	s.Close()
	if ps = <-done; len(ps) > 0 {
		t.Errorf("a slot that becomes free: %v", ps)
	}
}

func TestValidate(t *testing.T) {
	n := func(cs ...dtx.Content) Config {
		c := Config{Slot: "s", Publication: "p"}
		for _, x := range cs {
			c.Nodes = append(c.Nodes, Node{x, "dsn"})
		}
		return c
	}
	good := n(1, -1, 0)
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for want, c := range map[string]Config{
		"coordinator (content -1) is missing": n(0, 1), "segment 1 is missing": n(-1, 0, 2), "listed twice": n(-1, 0, 0),
		"no segment": n(-1), "content -2": n(-2, -1, 0), "slot name": {Nodes: good.Nodes, Publication: "p", Slot: "A-b"},
		"no publication": {Nodes: good.Nodes, Slot: "s"}, "no connection string": {Slot: "s", Publication: "p", Nodes: []Node{{-1, "x"}, {0, ""}}},
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", want, err)
		}
	}
}
