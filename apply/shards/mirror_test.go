package shards

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/router"
)

// mirror replicates real databases into real shards without a daemon: what the
// sources' slots decode becomes batches, and the real target applies them. Each
// source database stands for one segment.
type mirror struct {
	t     testing.TB
	c     mirrorConfig
	src   []string
	conns []*pgconn.PgConn // decoding sessions
	// sessions are kept by connection string.
	sessions map[string]*pgconn.PgConn
	rels     []map[uint32]*pgoutput.Relation
	o        Options
	tg       *Target
	rows     memRows
	seq      uint64
	gxid     dtx.GXID
	spool    dtx.SpoolID
	tables   map[string]*catalog.PublishedTable
	// together makes the i-th transactions of all sources one dtx.
	together bool
	// unchanged counts unchanged TOAST values decoded.
	unchanged int
}

// mirrorConfig says what to set up. Policies are "hash a,b", "random" or
// "replicated", by table; sources is the number of source databases.
type mirrorConfig struct {
	sources, shards int
	ddl             string
	targetDDL       string // ddl, when empty
	publication     string // behind CREATE PUBLICATION p; FOR ALL TABLES when empty
	policies        map[string]string
	// replicated and random list tables that are so on the source.
	replicated, random []string
	names              apply.NameMap
	engine             apply.Options
}

func newMirror(t testing.TB, c mirrorConfig) (*mirror, error) {
	t.Helper()
	m := &mirror{t: t, c: c, rows: memRows{}, sessions: map[string]*pgconn.PgConn{}}
	if c.targetDDL == "" {
		c.targetDDL = c.ddl
	}
	if c.publication == "" {
		c.publication = "FOR ALL TABLES"
	}
	for range max(c.sources, 1) {
		dsn := shared.Database(t)
		m.src = append(m.src, dsn)
		m.exec(dsn, c.ddl)
		m.exec(dsn, "CREATE PUBLICATION p "+c.publication)
		conn, err := pgconn.Connect(context.Background(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		m.conns = append(m.conns, conn)
		m.rels = append(m.rels, map[uint32]*pgoutput.Relation{})
		m.exec(dsn, "SELECT pg_create_logical_replication_slot('m'||current_database(), 'pgoutput')")
		if err := conn.Exec(context.Background(), `SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET extra_float_digits = 3;
			SET bytea_output = 'hex'; SET timezone = 'UTC'; SET client_encoding = 'UTF8'; SET search_path = pg_catalog`).Close(); err != nil {
			t.Fatal(err)
		}
	}
	var dbs []string
	for range max(c.shards, 1) {
		dsn := shared.Database(t)
		dbs = append(dbs, dsn)
		m.exec(dsn, c.targetDDL)
	}
	m.o = testOptions(shared.Database(t), dbs)
	m.o.Names, m.o.Engine = c.names, c.engine
	if err := Prepare(context.Background(), m.o); err != nil {
		t.Fatal(err)
	}
	for name, p := range c.policies {
		schema, table, _ := strings.Cut(name, ".")
		kind, cols, _ := strings.Cut(p, " ")
		if cols != "" {
			cols = `"` + strings.ReplaceAll(cols, ",", `","`) + `"`
		}
		m.exec(m.o.Coordinator, fmt.Sprintf("INSERT INTO cbrepl.distribution_policy VALUES (%s, %s, '%s', %s, NULL, %d)",
			pgside.QuoteLiteral(schema), pgside.QuoteLiteral(table), kind, pgside.QuoteLiteral("{"+cols+"}"), len(dbs)))
	}
	m.readTables(c)
	return m, m.open()
}

// open makes a target for the tables as they are.
func (m *mirror) open() error {
	if m.tg != nil {
		if err := m.tg.Close(); err != nil {
			return err
		}
	}
	tg, err := New(m.o)
	if err != nil {
		return err
	}
	m.t.Cleanup(func() { _ = tg.Close() })
	m.tg = tg
	ctx := context.Background()
	st, err := tg.Open(ctx)
	if err != nil || st.Initialized {
		return err
	}
	var streams []apply.StreamIdentity
	var at []dtx.Position
	for i := range m.src {
		streams = append(streams, apply.StreamIdentity{Content: dtx.Content(i), SystemID: "1", Slot: "m", Timeline: 1})
		at = append(at, dtx.Position{Content: dtx.Content(i), LSN: 1})
	}
	return tg.Init(ctx, apply.Beginning{Streams: streams, Positions: at})
}

// session returns a session of the mirror's own on a database.
func (m *mirror) session(dsn string) *pgconn.PgConn {
	m.t.Helper()
	if c := m.sessions[dsn]; c != nil && !c.IsClosed() && c.TxStatus() == 'I' {
		return c
	}
	c := m.connect(dsn)
	m.sessions[dsn] = c
	return c
}

// connect makes a session of its own on a database.
func (m *mirror) connect(dsn string) *pgconn.PgConn {
	m.t.Helper()
	c, err := pgconn.Connect(context.Background(), dsn)
	if err == nil {
		err = c.Exec(context.Background(), "SET datestyle = 'ISO'; SET timezone = 'UTC'; SET extra_float_digits = 3").Close()
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func (m *mirror) exec(dsn, sql string) {
	m.t.Helper()
	if err := m.session(dsn).Exec(context.Background(), sql).Close(); err != nil {
		m.t.Fatalf("%.500s: %v", sql, err)
	}
}

// query runs SQL and returns rows joined by |.
func (m *mirror) query(dsn, sql string) []string {
	m.t.Helper()
	res, err := m.session(dsn).Exec(context.Background(), sql).ReadAll()
	if err != nil {
		m.t.Fatalf("%.500s: %v", sql, err)
	}
	var out []string
	for _, r := range res[len(res)-1].Rows {
		var f []string
		for _, v := range r {
			if v == nil {
				f = append(f, "NULL")
			} else {
				f = append(f, fmt.Sprintf("%q", v))
			}
		}
		out = append(out, strings.Join(f, "|"))
	}
	return out
}

// readTables describes the published tables of the first source.
func (m *mirror) readTables(c mirrorConfig) {
	m.tables = map[string]*catalog.PublishedTable{}
	for _, r := range queryRows2(m.t, m.src[0], `
		SELECT p.schemaname, p.tablename, c.relreplident, a.attname, a.atttypid, format_type(a.atttypid, a.atttypmod), a.attgenerated,
		       coalesce(a.attnum = ANY (k.indkey), false), coalesce(a.attnum = ANY (r.indkey), false),
		       CASE WHEN c.relispartition THEN pg_partition_root(c.oid)::regclass::text ELSE '' END,
		       EXISTS (SELECT FROM pg_constraint x WHERE x.conrelid = c.oid AND x.condeferrable AND x.contype IN ('p', 'u', 'x'))
		FROM pg_publication_tables p
		JOIN pg_class c ON c.oid = (quote_ident(p.schemaname) || '.' || quote_ident(p.tablename))::regclass
		JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND coalesce((to_jsonb(p)->'attnames') ? a.attname::text, true)
		LEFT JOIN pg_index k ON k.indrelid = c.oid AND k.indisprimary
		LEFT JOIN pg_index r ON r.indrelid = c.oid AND (c.relreplident = 'i' AND r.indisreplident OR c.relreplident = 'd' AND r.indisprimary AND r.indimmediate)
		ORDER BY 1, 2, a.attnum`) {
		name := r[0] + "." + r[1]
		st := m.tables[name]
		if st == nil {
			st = &catalog.PublishedTable{
				Schema: r[0], Name: r[1], Identity: pgoutput.ReplicaIdentity(r[2][0]), Root: r[9], Deferrable: r[10] == "t",
				Policy: router.Policy{Kind: router.Hash, NumSegments: len(m.src)},
			}
			if slices.Contains(c.replicated, name) {
				st.Policy.Kind = router.Replicated
			}
			if slices.Contains(c.random, name) {
				st.Policy.Kind = router.Random
			}
			m.tables[name] = st
		}
		st.Columns = append(st.Columns, catalog.PublishedColumn{
			Name: r[3], TypeOID: pgside.OID([]byte(r[4])), TypeName: r[5],
			Generated: r[6] != "", PrimaryKey: r[7] == "t", Key: r[8] == "t" || r[2] == "f",
		})
	}
	m.o.Tables = nil
	for _, st := range m.tables {
		m.o.Tables = append(m.o.Tables, *st)
	}
	slices.SortFunc(m.o.Tables, func(a, b catalog.PublishedTable) int { return strings.Compare(a.String(), b.String()) })
}

func queryRows2(t testing.TB, dsn, sql string) [][]string {
	t.Helper()
	conn, err := pgconn.Connect(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	res := conn.ExecParams(context.Background(), sql, nil, nil, nil, nil).Read()
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	var out [][]string
	for _, r := range res.Rows {
		row := make([]string, len(r))
		for i, v := range r {
			row[i] = string(v)
		}
		out = append(out, row)
	}
	return out
}

// decoded is one transaction of one source.
type decoded struct {
	changes []*pgoutput.Change
	barrier bool
}

// decode reads what source i's slot has.
func (m *mirror) decode(i int) []decoded {
	m.t.Helper()
	res := m.conns[i].ExecParams(context.Background(), `SELECT data FROM pg_logical_slot_get_binary_changes('m'||current_database(), NULL, NULL,
		'proto_version', '1', 'publication_names', 'p')`, nil, nil, nil, []int16{1}).Read()
	if res.Err != nil {
		m.t.Fatalf("decode: %v", res.Err)
	}
	var out []decoded
	for _, r := range res.Rows {
		typ, _, body, err := pgoutput.Split(r[0], false)
		if err != nil {
			m.t.Fatal(err)
		}
		switch typ {
		case pgoutput.TypeBegin:
			out = append(out, decoded{})
		case pgoutput.TypeRelation:
			rel, err := pgoutput.ParseRelation(body)
			if err != nil {
				m.t.Fatal(err)
			}
			m.rels[i][rel.ID] = rel
		case pgoutput.TypeInsert, pgoutput.TypeUpdate, pgoutput.TypeDelete, pgoutput.TypeTruncate:
			row, err := pgoutput.ParseRow(typ, body)
			if err != nil {
				m.t.Fatal(err)
			}
			c := &pgoutput.Change{Row: row, Relation: m.rels[i][row.RelationID]}
			for _, v := range row.New.Append(nil) {
				if v.Kind == pgoutput.ValueUnchanged {
					m.unchanged++
				}
			}
			d := &out[len(out)-1]
			for _, id := range row.Truncated {
				c.Relations = append(c.Relations, m.rels[i][id])
				d.barrier = true
			}
			d.changes = append(d.changes, c)
		}
	}
	return out
}

// batch makes one batch of everything the sources have.
func (m *mirror) batch() *dtx.Batch {
	m.t.Helper()
	m.seq++
	b := &dtx.Batch{Seq: m.seq}
	streams := make([][]decoded, len(m.src))
	longest := 0
	for i := range m.src {
		streams[i] = m.decode(i)
		longest = max(longest, len(streams[i]))
	}
	part := func(i int, d decoded, lowest bool) dtx.Part {
		m.spool++
		m.rows[m.spool] = d.changes
		return dtx.Part{
			GXID: m.gxid, Content: dtx.Content(i), EndLSN: dtx.LSN(m.spool), Spool: m.spool, Rows: int64(len(d.changes)),
			Barrier: d.barrier, Lowest: lowest,
		}
	}
	var open []dtx.Part
	closeStep := func() {
		if len(open) > 0 {
			slices.SortStableFunc(open, func(a, b dtx.Part) int { return int(a.Content) - int(b.Content) })
			b.Steps = append(b.Steps, dtx.Step{Parts: open})
		}
		open = nil
	}
	for n := range longest {
		var parts []dtx.Part
		barrier := false
		m.gxid++
		for i, s := range streams {
			if n >= len(s) {
				continue
			}
			if !m.together && len(parts) > 0 {
				m.gxid++
			}
			parts = append(parts, part(i, s[n], i == 0))
			barrier = barrier || s[n].barrier
		}
		switch {
		case !barrier:
			open = append(open, parts...)
		case m.together:
			closeStep()
			b.Steps = append(b.Steps, dtx.Step{Barrier: true, Parts: parts})
		default:
			for _, p := range parts {
				closeStep()
				b.Steps = append(b.Steps, dtx.Step{Barrier: p.Barrier, Parts: []dtx.Part{p}})
			}
		}
	}
	closeStep()
	return b
}

// apply applies what the sources have.
func (m *mirror) apply() (apply.Result, error) {
	m.t.Helper()
	b := m.batch()
	res, err := m.tg.Apply(context.Background(), b, m.rows)
	clear(m.rows)
	return res, err
}

// must applies and checks that every published table is the same on both sides.
func (m *mirror) must(sql ...string) apply.Result {
	m.t.Helper()
	for _, s := range sql {
		m.exec(m.src[0], s)
	}
	res, err := m.apply()
	if err != nil {
		m.t.Fatalf("apply: %v", err)
	}
	if len(res.Conflicts) > 0 {
		m.t.Fatalf("conflicts: %v", res.Conflicts)
	}
	m.check()
	return res
}

// check compares the published columns of every table that has the same name on
// the target, and each row's place.
func (m *mirror) check() {
	m.t.Helper()
	for name, st := range m.tables {
		tgt := m.o.Names.Target(st.QualifiedName())
		m.compare(st, tgt, m.sourceRows(name), m.selectList(st))
	}
}

func (m *mirror) selectList(st *catalog.PublishedTable) string {
	var cols []string
	for _, c := range st.Columns {
		cols = append(cols, pgside.QuoteIdent(c.Name)+"::text")
	}
	return strings.Join(cols, ", ")
}

// sourceRows reads a table from every source, or one copy of a replicated one.
func (m *mirror) sourceRows(name string) []string {
	m.t.Helper()
	st := m.tables[name]
	var rows []string
	for i, dsn := range m.src {
		if i > 0 && st.Policy.Kind == router.Replicated {
			break
		}
		only := "ONLY "
		if len(m.query(dsn, "SELECT 1 FROM pg_partitioned_table WHERE partrelid = "+pgside.QuoteLiteral(quotedTable(st.Schema, st.Name))+"::regclass")) > 0 {
			only = ""
		}
		rows = append(rows, m.query(dsn, "SELECT "+m.selectList(st)+" FROM "+only+quotedTable(st.Schema, st.Name))...)
	}
	slices.Sort(rows)
	return rows
}

// compare checks rows and places of a target table.
func (m *mirror) compare(st *catalog.PublishedTable, tgt catalog.Name, want []string, list string) {
	m.t.Helper()
	engine := m.policyOf(tgt)
	var got []string
	for i, dsn := range m.o.Shards {
		only := "ONLY "
		if len(m.query(dsn, "SELECT 1 FROM pg_partitioned_table WHERE partrelid = "+pgside.QuoteLiteral(quotedTable(tgt.Schema, tgt.Table))+"::regclass")) > 0 {
			only = ""
		}
		rows := m.query(dsn, "SELECT "+list+" FROM "+only+quotedTable(tgt.Schema, tgt.Table))
		switch engine.Kind {
		case router.Replicated:
			slices.Sort(rows)
			if !slices.Equal(rows, want) {
				m.t.Fatalf("table %s, copy on shard %d:\n got %s\nwant %s", tgt, i, clip(rows), clip(want))
			}
			got = rows
			continue
		case router.Hash:
			m.checkPlaces(tgt, i, dsn, only, engine)
		}
		got = append(got, rows...)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		m.t.Fatalf("table %s:\n got %s\nwant %s", tgt, clip(got), clip(want))
	}
}

func (m *mirror) checkPlaces(tgt catalog.Name, shard int, dsn, only string, p router.Policy) {
	m.t.Helper()
	r, err := router.New(p)
	if err != nil {
		m.t.Fatal(err)
	}
	var cols []string
	for _, c := range p.Columns {
		cols = append(cols, pgside.QuoteIdent(c.Name)+"::text")
	}
	res := m.session(dsn).ExecParams(context.Background(), "SELECT "+strings.Join(cols, ", ")+" FROM "+only+quotedTable(tgt.Schema, tgt.Table), nil, nil, nil, nil).Read()
	if res.Err != nil {
		m.t.Fatal(res.Err)
	}
	for _, key := range res.Rows {
		seg, err := r.Segment(key)
		if err != nil {
			m.t.Fatal(err)
		}
		if int(seg) != shard {
			m.t.Fatalf("table %s: a row with key %q is on shard %d, its place is %d", tgt, key, shard, seg)
		}
	}
}

// policyOf reads a target table's policy as the target does.
func (m *mirror) policyOf(name catalog.Name) router.Policy {
	m.t.Helper()
	ctx := context.Background()
	rows, err := m.tg.readPolicies(ctx, []catalog.Name{name})
	if err != nil {
		m.t.Fatal(err)
	}
	cat, err := readTables(ctx, m.tg.shards[0], []catalog.Name{name})
	if err != nil {
		m.t.Fatal(err)
	}
	p, err := rows[name].policy(cat.tables[name])
	if err != nil {
		m.t.Fatal(err)
	}
	return p
}

func clip(rows []string) string {
	s := strings.Join(rows, "\n     ")
	if len(s) > 3000 {
		s = s[:3000] + "..."
	}
	return s
}

func nameOf(schema, table string) catalog.Name { return catalog.Name{Schema: schema, Table: table} }

func renamed(t catalog.PublishedTable, schema, name string) *catalog.PublishedTable {
	t.Schema, t.Name = schema, name
	return &t
}

func quotedTable(schema, table string) string {
	return pgside.QuoteIdent(schema) + "." + pgside.QuoteIdent(table)
}
