package source

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/dtx"
	"cbrepl/lab/clustertest"
	"cbrepl/source/stream/repl"
)

// gpCatalogue is the part of a cluster's catalogue that discovery reads, made on
// a stock server.
const gpCatalogue = `SET allow_system_table_mods = on;
	CREATE TABLE pg_catalog.gp_segment_configuration (dbid smallint, content smallint, role "char", preferred_role "char",
		mode "char", status "char", port integer, hostname text, address text, datadir text);
	CREATE TABLE pg_catalog.gp_distribution_policy (localoid oid, policytype "char", numsegments int4, distkey int2vector, distclass oidvector);
	INSERT INTO pg_catalog.gp_segment_configuration VALUES (1, -1, 'p', 'p', 'n', 'u', 1, 'mdw', 'mdw', '/c')`

// asCluster makes the coordinator's database look like a cluster's, with every
// segment at the address that its own connection string has.
func (c *cluster) asCluster() *cluster {
	c.t.Helper()
	c.all("DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE acct, dims") // not of all tables: the catalogue made here would count
	c.on(-1, gpCatalogue)
	for _, n := range c.cfg.Nodes[1:] {
		pc, err := pgx.ParseConfig(n.DSN)
		if err != nil {
			c.t.Fatal(err)
		}
		c.primary(n.Content, pc.Host, int(pc.Port))
	}
	c.on(-1, fmt.Sprintf(`INSERT INTO pg_catalog.gp_distribution_policy
		SELECT 'public.acct'::regclass, 'p', %[1]d, '1'::int2vector, (SELECT oid::text::oidvector FROM pg_opclass WHERE opcname = 'int4_ops' AND opcmethod = (SELECT oid FROM pg_am WHERE amname = 'hash'))
		UNION ALL SELECT 'public.dims'::regclass, 'r', %[1]d, ''::int2vector, ''::oidvector`, c.src.Segments()))
	return c
}

// primary makes a server the primary of a content.
func (c *cluster) primary(content dtx.Content, host string, port int) {
	c.t.Helper()
	c.on(-1, fmt.Sprintf(`SET allow_system_table_mods = on; DELETE FROM pg_catalog.gp_segment_configuration WHERE content = %d;
		INSERT INTO pg_catalog.gp_segment_configuration VALUES (%[1]d + 2, %[1]d, 'p', 'p', 's', 'u', %d, 'h', '%s', '/p'),
			(%[1]d + 102, %[1]d, 'm', 'm', 's', 'u', 1, 'mirror', 'mirror', '/m')`, content, port, host))
}

func (c *cluster) clusterConfig() ClusterConfig {
	return ClusterConfig{Coordinator: c.dsn(-1), Slot: c.slot}
}

// TestDiscover: the coordinator alone leads to all nodes and passes preflight.
func TestDiscover(t *testing.T) {
	c := newCluster(t, shared.Source(t)).good().asCluster()
	cl, err := Discover(c.ctx(), c.clusterConfig())
	if err != nil {
		t.Fatal(err)
	}
	if cl.Segments() != 3 || len(cl.Nodes()) != 4 || cl.Resolver(0) == nil {
		t.Fatalf("%d segments, %d nodes", cl.Segments(), len(cl.Nodes()))
	}
	c.cfg.Nodes = cl.Nodes()
	f, err := Preflight(c.ctx(), c.cfg, false)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Tables) != 2 || f.Tables[0].Policy.Columns[0].Opclass != "int4_ops" || f.Tables[0].Policy.NumSegments != 3 {
		t.Errorf("policies of gp_distribution_policy: %+v", f.Tables)
	}
}

func TestDiscoverProblems(t *testing.T) {
	plain := newCluster(t, shared.Source(t))
	c := newCluster(t, shared.Source(t)).good().asCluster()
	for _, tc := range []struct {
		name   string
		change func(*ClusterConfig)
		want   string // "" is fine
	}{
		{"not a cluster", func(cc *ClusterConfig) { cc.Coordinator = plain.dsn(-1) }, "is not the coordinator of a Cloudberry or Greenplum cluster"},
		{"not a cluster, by hand", func(cc *ClusterConfig) { cc.Coordinator, cc.Segments = plain.dsn(-1), plain.cfg.Nodes[1:] }, ""},
		{"by hand", func(cc *ClusterConfig) { cc.Segments = c.cfg.Nodes[1:] }, ""},
		{"too few", func(cc *ClusterConfig) { cc.Segments = c.cfg.Nodes[1:3] }, "2 segments are listed under source.segments, but the cluster has 3; not listed: content 2"},
		{"other contents", func(cc *ClusterConfig) { cc.Segments = append([]Node{{7, "host=x"}}, c.cfg.Nodes[1:3]...) }, "not listed: content 2; not in the cluster: content 7"},
		{"no server", func(cc *ClusterConfig) { cc.Coordinator = "postgres://u:canary@127.0.0.1:1/x?sslmode=disable" }, "connect to source"},
		{"no server, by hand", func(cc *ClusterConfig) {
			cc.Coordinator, cc.Segments = "postgres://u:canary@127.0.0.1:1/x?sslmode=disable", c.cfg.Nodes[1:]
		}, ""},
		{"two at one address", func(cc *ClusterConfig) { cc.Addresses = []Address{{"127.0.0.1", "127.0.0.1:5"}} }, "is at 127.0.0.1:5, and so is content 0"},
		{"bad rule", func(cc *ClusterConfig) { cc.Addresses = []Address{{"a:b", "c"}} }, `"a:b" is neither host nor host:port`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cc := c.clusterConfig()
			tc.change(&cc)
			cl, err := Discover(c.ctx(), cc)
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want == "" && cl.Resolver(0) == nil != (len(cc.Segments) > 0):
				t.Error("segments listed by hand do not move, others do")
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "canary")):
				t.Errorf("%v\nwant %s", err, tc.want)
			}
		})
	}
	// A segment has the table, but nothing in it.
	c.on(0, gpCatalogue+"; DELETE FROM pg_catalog.gp_segment_configuration")
	for _, segments := range [][]Node{nil, c.cfg.Nodes[1:]} {
		if _, err := Discover(c.ctx(), ClusterConfig{Coordinator: c.dsn(0), Segments: segments, Slot: c.slot}); err == nil || !strings.Contains(err.Error(), "it is a segment, not the coordinator") {
			t.Errorf("a segment as coordinator: %v", err)
		}
	}
}

// TestUtilityOption: the setting's context tells which option a server takes.
func TestUtilityOption(t *testing.T) {
	dsn := newCluster(t, shared.Source(t)).dsn(-1)
	exec(t, dsn, `CREATE SCHEMA fake; CREATE TABLE fake.pg_settings (name text, setting text, context text)`)
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(conn)
	if _, err := conn.Exec(ctx, "SET search_path = fake, pg_catalog"); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ context, want string }{{"", ""}, {"superuser", ""}, {"backend", "-c gp_role=utility"}} {
		if _, err := conn.Exec(ctx, "TRUNCATE fake.pg_settings"); err != nil {
			t.Fatal(err)
		}
		if tc.context != "" {
			if _, err := conn.Exec(ctx, "INSERT INTO fake.pg_settings VALUES ('gp_role', 'dispatch', $1), ('gp_contentid', '2', 'postmaster')", tc.context); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := utilityOption(ctx, conn); err != nil || got != tc.want {
			t.Errorf("context %q: %q, %v; want %q", tc.context, got, err, tc.want)
		}
	}
}

// TestRealCluster reads the catalogue of a real Cloudberry or Greenplum cluster:
// its segments, a session in utility mode on each, policies with both families of
// operator classes, and storage that is not decoded.
func TestRealCluster(t *testing.T) {
	for _, dsn := range clustertest.DSNs(t) {
		realCluster(t, dsn)
	}
}

func realCluster(t *testing.T, dsn string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*wait)
	defer cancel()
	cl, err := Discover(ctx, ClusterConfig{Coordinator: dsn, Slot: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if cl.Segments() < 1 || cl.cat.option == "" {
		t.Fatalf("%d segments, option %q", cl.Segments(), cl.cat.option)
	}
	for _, n := range cl.Nodes() {
		conn, err := connect(ctx, n)
		if err != nil {
			t.Errorf("content %d: %v", n.Content, err)
			continue
		}
		p := probe{cfg: &Config{}, node: Node{Content: n.Content + 1}}
		if p.rightContent(ctx, conn) || len(p.findings) != 1 || !strings.Contains(p.findings[0].Found, fmt.Sprintf("holds content %d of its cluster", n.Content)) {
			t.Errorf("another content's server: %v", p.findings)
		}
		if is, ok, err := contentOf(ctx, conn); err != nil || !ok || is != n.Content {
			t.Errorf("content %d: the server says %d, %t, %v", n.Content, is, ok, err)
		}
		closeConn(conn)
		// The server is too old for more than the start of a replication session.
		rc, err := repl.ParseDSN(n.Content, n.DSN)
		if err != nil {
			t.Fatal(err)
		}
		rc.RuntimeParams["replication"] = "database"
		if pg, err := pgconn.ConnectConfig(ctx, rc); err != nil {
			t.Errorf("content %d: replication connection: %v", n.Content, err)
		} else {
			_ = pg.Close(ctx)
		}
		if dsn, err := cl.resolve(ctx, n.Content); n.Content >= 0 && (err != nil || dsn != n.DSN) {
			t.Errorf("content %d is elsewhere now: %v", n.Content, err)
		}
	}
	// A segment is no coordinator: the connection of a list made by hand may lead there.
	if _, err := Discover(ctx, ClusterConfig{Coordinator: cl.Nodes()[1].DSN, Slot: "s"}); err == nil || !strings.Contains(err.Error(), "it is a segment") {
		t.Errorf("a segment as coordinator: %v", err)
	}
	schema := fmt.Sprintf("cbrepl_source_%d", os.Getpid())
	defer exec(t, dsn, "DROP SCHEMA "+schema+" CASCADE")
	exec(t, dsn, strings.ReplaceAll(`CREATE SCHEMA @; CREATE DOMAIN @.posint AS int;
		CREATE TABLE @.modern (a int, b text, c @.posint) DISTRIBUTED BY (b, a, c);
		CREATE TABLE @.legacy (a int, b varchar(9)) DISTRIBUTED BY (a cdbhash_int4_ops, b cdbhash_text_ops);
		CREATE OPERATOR CLASS @.int4_ops FOR TYPE int4 USING hash AS OPERATOR 1 =, FUNCTION 1 hashint4(int4);
		CREATE TABLE @.own (a int) DISTRIBUTED BY (a @.int4_ops);
		CREATE TABLE @.rnd (a int) DISTRIBUTED RANDOMLY; CREATE TABLE @.rep (a int) DISTRIBUTED REPLICATED;
		CREATE TABLE @.ao (a int) WITH (appendonly=true) DISTRIBUTED BY (a);
		CREATE TABLE @.aoco (a int) WITH (appendonly=true, orientation=column) DISTRIBUTED BY (a);
		CREATE EXTERNAL WEB TABLE @.ext (a text) EXECUTE 'true' FORMAT 'TEXT'`, "@", schema))
	policies := map[string]string{}
	conn, err := connect(ctx, cl.Nodes()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(conn)
	rows, err := readPolicies(ctx, conn)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if r.schema != schema {
			continue
		}
		s := fmt.Sprintf("%s over %d", r.kind, r.numSegments)
		for _, k := range r.columns {
			s += fmt.Sprintf(" %s:%s:%s", k.name, k.typ.Name, k.opclass)
		}
		policies[r.table] = strings.ReplaceAll(s, schema+".", "S.")
	}
	n := cl.Segments()
	for table, want := range map[string]string{
		"modern": "hash over %d b:text:text_ops a:integer:int4_ops c:S.posint:int4_ops",
		"legacy": "hash over %d a:integer:cdbhash_int4_ops b:character varying:cdbhash_text_ops",
		"own":    "hash over %d a:integer:S.int4_ops", "rnd": "random over %d", "rep": "replicated over %d",
	} {
		if want = fmt.Sprintf(want, n); policies[table] != want {
			t.Errorf("%s: %s, want %s", table, policies[table], want)
		}
	}
	if p, err := ReadPolicy(ctx, dsn, schema+".legacy"); err != nil || p.NumSegments != n {
		t.Errorf("ReadPolicy: %+v, %v", p, err)
	}
	got := map[string]string{}
	srows, err := conn.Query(ctx, storageSQL("SELECT oid FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = '"+schema+"') AND relkind IN ('r', 'p', 'f')"))
	if err != nil {
		t.Fatal(err)
	}
	var name, kind, relstorage, am string
	if _, err := pgx.ForEachRow(srows, []any{&name, &kind, &relstorage, &am}, func() error {
		got[strings.TrimPrefix(name, schema+".")] = notDecoded(kind, relstorage, am)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || got["ao"] != "append-optimized (ao_row)" || got["aoco"] != "append-optimized (ao_column)" || !strings.Contains(got["ext"], "external table") {
		t.Errorf("storage: %v", got)
	}
}
