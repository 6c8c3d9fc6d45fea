package plugin

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// history is a random schema with random changes on a stock server.
type history struct {
	t      *testing.T
	ctx    context.Context
	c      *pgx.Conn
	r      *rand.Rand
	tables []*table
}

type table struct {
	name     string
	columns  []column // all but id
	identity string   // of REPLICA IDENTITY; "d" without a key takes inserts only
	key      bool
	nextID   int
}

type column struct{ name, typ string }

// values gives SQL literals per type; %d is a random number.
var values = map[string][]string{
	"int2":           {"%d %% 30000"},
	"int4":           {"%d", "-%d"},
	"int8":           {"%d::int8 * 4000000000"},
	"numeric":        {"%d / 7.0", "'NaN'", "'Infinity'"},
	"numeric(12,3)":  {"%d / 8.0"},
	"float4":         {"%d / 3.0", "'-0'", "'Infinity'", "'NaN'"},
	"float8":         {"%d / 3.0", "'5e-324'", "'-Infinity'"},
	"bool":           {"%d %% 2 = 0"},
	"text":           {"'text %d'", "''", "E'a\\tb\\n%d \\\\ ''q''", "'žluťoučký %d 日本'"},
	"varchar(40)":    {"'v%d'"},
	"char(9)":        {"'c%d'"},
	"name":           {"'n%d'"},
	`"char"`:         {"'x'"},
	"bytea":          {`'\x00ff%04d'`},
	"date":           {"'2020-01-01'::date + %d %% 9999", "'infinity'", "'0044-03-15 BC'"},
	"time":           {"'00:00:00.000001'::time + interval '1 s' * %d"},
	"timetz":         {"'12:34:56.789+05:30'"},
	"timestamp":      {"'2020-01-01'::timestamp + interval '1 s' * %d", "'-infinity'"},
	"timestamptz":    {"'2020-01-01 UTC'::timestamptz + interval '1 s' * %d", "'1883-11-18 12:03:58+00'"},
	"interval":       {"interval '1 s' * %d", "'1 year -2 months +3 days'"},
	"uuid":           {"md5('%d')::uuid"},
	"json":           {`'{"a":  %d}'`},
	"jsonb":          {`'{"b": [1, %d, null], "a": "x"}'`},
	"xml":            {"'<a>%d</a>'"},
	"inet":           {"'10.0.0.1/8'", "'::1'"},
	"cidr":           {"'10.1.0.0/16'"},
	"macaddr":        {"'08:00:2b:01:02:03'"},
	"point":          {"point(%d, 0.1)"},
	"box":            {"box(point(%d, 1), point(0, 0))"},
	"path":           {"'[(0,0),(1,%d)]'"},
	"polygon":        {"'((0,0),(1,1),(2,%d))'"},
	"circle":         {"'<(0,0),%d>'"},
	"lseg":           {"'[(0,0),(1,%d)]'"},
	"bit(8)":         {"B'10110001'"},
	"varbit":         {"B'101'"},
	"int4[]":         {"ARRAY[1, NULL, %d]", "'{}'", "'[0:1]={1,2}'"},
	"text[]":         {`ARRAY['a b', '"', NULL, 'x%d']`},
	"int4range":      {"int4range(1, 2 + %d)", "'empty'"},
	"tsvector":       {"to_tsvector('simple', 'a b x%d')"},
	"money":          {"%d::int4::money"},
	"oid":            {"%d::oid"},
	"regclass":       {"'pg_class'::regclass"},
	"pg_lsn":         {"'0/16B3748'"},
	"mood":           {"'sad'", "'glad'"},
	"pair":           {"ROW(%d, 'x \"y')::pair"},
	"short_text":     {"'d%d'"},
	"short_text[]":   {"ARRAY['e%d'::short_text]"},
	"int4multirange": {"'{[1,3),[7,9)}'"},
}

// large are for columns that may be stored out of line.
var large = []string{
	"(SELECT string_agg(md5((i * %d)::text), '') FROM generate_series(1, 300) i)",
	"repeat('x', 20000)",
}

var typeNames = func() []string {
	names := make([]string, 0, len(values))
	for n := range values {
		names = append(names, n)
	}
	// the order of a map is random: a seed must mean one history
	for i := range names {
		for j := i + 1; j < len(names); j++ {
			if names[j] < names[i] {
				names[i], names[j] = names[j], names[i]
			}
		}
	}
	return names
}()

func (h *history) literal(typ string) string {
	if h.r.IntN(8) == 0 {
		return "NULL"
	}
	forms := values[typ]
	if typ == "text" && h.r.IntN(3) == 0 {
		forms = large
	}
	f := forms[h.r.IntN(len(forms))]
	if strings.Contains(f, "%") {
		return fmt.Sprintf(f, 1+h.r.IntN(9000))
	}
	return f
}

func (h *history) column(i int) column {
	typ := typeNames[h.r.IntN(len(typeNames))]
	if h.r.IntN(3) == 0 {
		typ = "text"
	}
	return column{fmt.Sprintf(`c%d "q`, i), typ}
}

func (c column) quoted() string { return `"` + strings.ReplaceAll(c.name, `"`, `""`) + `"` }

// try runs a statement of the open transaction in a savepoint of its own; one that
// fails leaves an aborted subtransaction.
func (h *history) try(sql string) bool {
	must(h.ctx, h.t, h.c, "SAVEPOINT try")
	if _, err := h.c.Exec(h.ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		h.t.Logf("failed, as some do: %.160s: %v", sql, err)
		must(h.ctx, h.t, h.c, "ROLLBACK TO try")
		return false
	}
	must(h.ctx, h.t, h.c, "RELEASE try")
	return true
}

func (h *history) setup(viaRoot bool) []string {
	must(h.ctx, h.t, h.c, `CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE TYPE pair AS (a int, b text); CREATE DOMAIN short_text AS text;
		CREATE SCHEMA "odd ""schema"`)
	var names []string
	for i := range 5 {
		tb := &table{name: fmt.Sprintf(`public."t%d"`, i), nextID: 1, key: i != 3}
		if i == 1 {
			tb.name = `"odd ""schema"."T 1, x"`
		}
		for j := range 2 + h.r.IntN(5) {
			tb.columns = append(tb.columns, h.column(j))
		}
		def := []string{"junk int", "id int not null"}
		for _, c := range tb.columns {
			def = append(def, c.quoted()+" "+c.typ)
		}
		if i%2 == 0 {
			def = append(def, "g int GENERATED ALWAYS AS (id * 2) STORED")
		}
		if tb.key {
			def = append(def, "PRIMARY KEY (id)")
		}
		must(h.ctx, h.t, h.c, "CREATE TABLE "+tb.name+" ("+strings.Join(def, ", ")+")")
		must(h.ctx, h.t, h.c, "ALTER TABLE "+tb.name+" DROP COLUMN junk")
		if h.r.IntN(2) == 0 {
			for _, c := range tb.columns {
				if c.typ == "text" {
					must(h.ctx, h.t, h.c, fmt.Sprintf("ALTER TABLE %s ALTER %s SET STORAGE EXTERNAL", tb.name, c.quoted()))
				}
			}
		}
		tb.identity = []string{"DEFAULT", "DEFAULT", "FULL", "FULL", "USING INDEX"}[i]
		if tb.identity == "USING INDEX" {
			must(h.ctx, h.t, h.c, fmt.Sprintf("CREATE UNIQUE INDEX t%d_other ON %s (id)", i, tb.name))
			tb.identity = fmt.Sprintf("USING INDEX t%d_other", i)
		}
		must(h.ctx, h.t, h.c, "ALTER TABLE "+tb.name+" REPLICA IDENTITY "+tb.identity)
		h.tables = append(h.tables, tb)
		names = append(names, tb.name)
	}
	// three levels, with leaves whose columns stand in another order
	must(h.ctx, h.t, h.c, `CREATE TABLE root (id int not null, k int not null, v text, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
		CREATE TABLE mid PARTITION OF root FOR VALUES IN (0, 1) PARTITION BY RANGE (id);
		CREATE TABLE leaf_a PARTITION OF mid FOR VALUES FROM (0) TO (1000);
		CREATE TABLE leaf_b (v text, gone int, k int not null, id int not null, PRIMARY KEY (id, k));
		ALTER TABLE leaf_b DROP COLUMN gone; ALTER TABLE mid ATTACH PARTITION leaf_b FOR VALUES FROM (1000) TO (100000);
		CREATE TABLE leaf_c PARTITION OF root DEFAULT; ALTER TABLE leaf_b REPLICA IDENTITY FULL;
		CREATE TABLE unpublished (id int primary key, v text); CREATE UNLOGGED TABLE unlogged (id int)`)
	names = append(names, "public.root", "public.unlogged")
	publication := strings.ReplaceAll(strings.Join(names, ", "), ", public.unlogged", "")
	must(h.ctx, h.t, h.c, fmt.Sprintf("CREATE PUBLICATION pub FOR TABLE %s WITH (publish_via_partition_root = %v)", publication, viaRoot))
	return names
}

func (h *history) change(tb *table) string {
	insert := func(n int) string {
		var rows []string
		for range n {
			row := []string{fmt.Sprint(tb.nextID)}
			tb.nextID++
			for _, c := range tb.columns {
				row = append(row, h.literal(c.typ))
			}
			rows = append(rows, "("+strings.Join(row, ", ")+")")
		}
		cols := []string{"id"}
		for _, c := range tb.columns {
			cols = append(cols, c.quoted())
		}
		return fmt.Sprintf("INSERT INTO %s (%s) VALUES %s", tb.name, strings.Join(cols, ", "), strings.Join(rows, ", "))
	}
	id := 1 + h.r.IntN(tb.nextID)
	switch n := h.r.IntN(10); {
	case n < 4 || len(tb.columns) == 0:
		return insert(1 + h.r.IntN(4))
	case n < 7:
		c := tb.columns[h.r.IntN(len(tb.columns))]
		return fmt.Sprintf("UPDATE %s SET %s = %s WHERE id BETWEEN %d AND %d", tb.name, c.quoted(), h.literal(c.typ), id, id+2)
	case n < 8:
		return fmt.Sprintf("UPDATE %s SET id = -id WHERE id = %d", tb.name, id)
	default:
		return fmt.Sprintf("DELETE FROM %s WHERE id = %d", tb.name, id)
	}
}

// shape is a change of a table's schema in mid-stream.
func (h *history) shape(tb *table) string {
	switch h.r.IntN(7) {
	case 0:
		c := h.column(100 + h.r.IntN(900))
		tb.columns = append(tb.columns, c)
		def := ""
		if h.r.IntN(2) == 0 && c.typ == "text" {
			def = " DEFAULT 'filled in'"
		}
		return fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s%s", tb.name, c.quoted(), c.typ, def)
	case 1:
		if len(tb.columns) > 1 {
			i := h.r.IntN(len(tb.columns))
			c := tb.columns[i]
			tb.columns = append(append([]column{}, tb.columns[:i]...), tb.columns[i+1:]...)
			return fmt.Sprintf("ALTER TABLE %s DROP COLUMN %s", tb.name, c.quoted())
		}
		return "VACUUM" // fails in a transaction: an aborted subtransaction
	case 2:
		return fmt.Sprintf("ALTER TABLE %s ALTER id TYPE bigint; ALTER TABLE %s ALTER id TYPE int", tb.name, tb.name)
	case 3:
		return fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY %s", tb.name, []string{"DEFAULT", "FULL", "NOTHING", tb.identity}[h.r.IntN(4)])
	case 4:
		return "CLUSTER " + tb.name + " USING " + "t4_other"
	case 5:
		return fmt.Sprintf("TRUNCATE %s%s", tb.name, []string{"", " RESTART IDENTITY", " CASCADE", ", root", ", leaf_a, unpublished"}[h.r.IntN(5)])
	default:
		return "ALTER TYPE pair RENAME TO pair_; ALTER TYPE pair_ RENAME TO pair"
	}
}

func (h *history) partitioned() string {
	id, k := h.r.IntN(2000), h.r.IntN(3)
	switch h.r.IntN(6) {
	case 0, 1:
		return fmt.Sprintf("INSERT INTO root (id, k, v) VALUES (%d, %d, %s) ON CONFLICT DO NOTHING", id, k, h.literal("text"))
	case 2:
		return fmt.Sprintf("UPDATE root SET v = %s WHERE k = %d", h.literal("text"), k)
	case 3:
		return fmt.Sprintf("UPDATE root SET k = %d WHERE id %% 7 = %d", k, id%7) // rows move between leaves
	case 4:
		return fmt.Sprintf("DELETE FROM root WHERE id %% 11 = %d", id%11)
	default:
		return []string{"TRUNCATE leaf_b", "TRUNCATE mid", "INSERT INTO unpublished VALUES (1, 'x') ON CONFLICT DO NOTHING", "INSERT INTO unlogged VALUES (1)"}[h.r.IntN(4)]
	}
}

func (h *history) transaction() {
	must(h.ctx, h.t, h.c, "BEGIN")
	for range 1 + h.r.IntN(6) {
		tb := h.tables[h.r.IntN(len(h.tables))]
		saved := append([]column{}, tb.columns...)
		switch n := h.r.IntN(20); {
		case n < 11:
			h.try(h.change(tb))
		case n < 15:
			h.try(h.partitioned())
		case n < 18:
			if !h.try(h.shape(tb)) {
				tb.columns = saved
			}
		case n < 19:
			must(h.ctx, h.t, h.c, "SAVEPOINT outer_one")
			h.try(h.change(tb))
			h.try(h.partitioned())
			must(h.ctx, h.t, h.c, "ROLLBACK TO outer_one")
		default:
			h.try(fmt.Sprintf("SELECT pg_logical_emit_message(true, 'prefix %d', 'content')", n))
		}
	}
	must(h.ctx, h.t, h.c, "COMMIT")
}

// read returns the stream's messages of a slot, up to now, with their positions.
func read(ctx context.Context, t *testing.T, c *pgx.Conn, slot string, options ...string) [][]byte {
	t.Helper()
	var quoted []string
	for _, o := range options {
		quoted = append(quoted, "'"+strings.ReplaceAll(o, "'", "''")+"'")
	}
	rows, err := c.Query(ctx, fmt.Sprintf("SELECT data FROM pg_logical_slot_get_binary_changes('%s', NULL, NULL, %s)", slot, strings.Join(quoted, ", ")))
	if err != nil {
		t.Fatalf("read slot %s: %v", slot, err)
	}
	messages, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		t.Fatalf("read slot %s: %v", slot, err)
	}
	return messages
}

// quoteTable gives a name of the history in the form of the option "tables".
func quoteTable(name string) string {
	if schema, table, _ := strings.Cut(name, "."); !strings.HasPrefix(schema, `"`) {
		return `"` + schema + `".` + `"` + strings.Trim(table, `"`) + `"`
	}
	return name
}

func TestSameMessagesAsPgoutput(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	srv := pluginServer(t, map[string]string{"logical_decoding_work_mem": "64kB"})
	for seed := range uint64(6) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			viaRoot := seed%2 == 1
			name := fmt.Sprintf("history%d", seed)
			if err := srv.Exec(ctx, "CREATE DATABASE "+name); err != nil {
				t.Fatal(err)
			}
			h := &history{t: t, ctx: ctx, c: connect(ctx, t, srv.DSNFor(name)), r: rand.New(rand.NewPCG(seed, 1))}
			// as the plugin pins them in a walsender
			must(ctx, t, h.c, "SET datestyle = ISO; SET extra_float_digits = 3; SET timezone = 'Asia/Kolkata'")
			names := h.setup(viaRoot)
			for i := range names {
				names[i] = quoteTable(names[i])
			}
			theirSlot, ourSlot := "theirs_"+name, "ours_"+name
			for slot, plugin := range map[string]string{theirSlot: "pgoutput", ourSlot: "cbrepl_source"} {
				must(ctx, t, h.c, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', '%s')", slot, plugin))
			}

			var total int
			for range 5 {
				for range 14 {
					h.transaction()
				}
				theirs := read(ctx, t, h.c, theirSlot, "proto_version", "1", "publication_names", "pub", "messages", "true")
				ours := read(ctx, t, h.c, ourSlot, "proto_version", "1", "publication_names", "pub",
					"tables", strings.Join(names, ","), "publish_via_partition_root", fmt.Sprint(viaRoot))
				total += compare(t, theirs, ours)
			}
			if total < 200 {
				t.Errorf("the history has %d messages only", total)
			}
		})
	}
}

func compare(t *testing.T, theirs, ours [][]byte) int {
	t.Helper()
	for i := range max(len(theirs), len(ours)) {
		var a, b string
		if i < len(theirs) {
			a = string(theirs[i])
		}
		if i < len(ours) {
			b = string(ours[i])
		}
		if a != b {
			for j := max(0, i-3); j < i; j++ {
				t.Logf("both %d: %.300q", j, theirs[j])
			}
			t.Fatalf("message %d of %d and %d\npgoutput:      %.600q\ncbrepl_source: %.600q", i, len(theirs), len(ours), a, b)
		}
	}
	return len(ours)
}
