package greenplum

import (
	"fmt"
	"strings"

	"cbrepl/lab"
	"cbrepl/router"
)

// schema holds every table of the load, on both sides.
const schema = "world"

// shape is a table of the load.
type shape struct {
	name    string
	columns string // as Greenplum 6 and PostgreSQL take them
	kind    router.PolicyKind
	key     []string
	// partitions follows the policy; leaves are found once the table is made.
	partitions string
	// full gives it REPLICA IDENTITY FULL.
	full bool
}

func (s *shape) sql() string { return schema + "." + s.name }

// distributed is the policy in SQL.
func (s *shape) distributed() string {
	switch s.kind {
	case router.Replicated:
		return "DISTRIBUTED REPLICATED"
	case router.Random:
		return "DISTRIBUTED RANDOMLY"
	}
	return "DISTRIBUTED BY (" + strings.Join(s.key, ", ") + ")"
}

// create makes the table on a Greenplum.
func (s *shape) create() string {
	sql := fmt.Sprintf("CREATE TABLE %s (%s) %s %s", s.sql(), s.columns, s.distributed(), s.partitions)
	if s.full {
		sql += "; ALTER TABLE " + s.sql() + " REPLICA IDENTITY FULL"
	}
	return sql
}

// onShards is the table under a name on shards, without partitions.
func (s *shape) onShards(name string) lab.Table {
	return lab.Table{Name: schema + "." + name, Columns: s.columns, Kind: s.kind, Key: s.key}
}

const types = "CREATE TYPE world.mood AS ENUM ('sad', 'glad'); CREATE DOMAIN world.code AS varchar(20); CREATE TYPE world.pair AS (a int, b text)"

// values are a form of each type of Greenplum 6 that PostgreSQL has, too.
var values = [][2]string{
	{"int2", "%d %% 30000"},
	{"int4", "-%d"},
	{"int8", "%d::int8 * 4000000000"},
	{"numeric", "%d / 7.0"},
	{"numeric(12,3)", "%d / 8.0"},
	{"float4", "%d / 3.0"},
	{"float8", "%d / 3.0"},
	{"bool", "%d %% 2 = 0"},
	{"text", "E'a\\tb\\n%d \\\\ ''q'' žluťoučký 日本'"},
	{"varchar(40)", "'v%d'"},
	{"char(9)", "'c%d'"},
	{"name", "'n%d'"},
	{`"char"`, "chr(65 + %d %% 20)::\"char\""},
	{"bytea", `'\x00ff%04d'`},
	{"date", "'2020-01-01'::date + %d %% 9999"},
	{"time", "'00:00:00.000001'::time + interval '1 s' * %d"},
	{"time(3)", "'00:00:00.001'::time + interval '1 s' * %d"},
	{"timetz", "('12:34:%d'::text || '+05:30')::timetz"},
	{"timestamp", "'2020-01-01'::timestamp + interval '1.5 s' * %d"},
	{"timestamptz", "'1883-11-18 12:03:58+00'::timestamptz + interval '1 h' * %d"},
	{"interval", "'1 year -2 months +3 days'::interval + interval '1 s' * %d"},
	{"uuid", "md5('%d')::uuid"},
	{"json", `'{"a":  %d}'`},
	{"jsonb", `'{"b": [1, %d, null], "a": "x"}'`},
	{"inet", "'10.0.0.1/8'::inet + %d"},
	{"cidr", "'10.1.0.0/16'::cidr"},
	{"macaddr", "'08:00:2b:01:02:03'::macaddr"},
	{"point", "point(%d, 0.5)"},
	{"box", "box(point(%d, 1), point(0, 0))"},
	{"path", "'[(0,0),(1,%d)]'::path"},
	{"polygon", "'((0,0),(1,1),(2,%d))'::polygon"},
	{"circle", "'<(0,0),%d>'::circle"},
	{"lseg", "'[(0,0),(1,%d)]'::lseg"},
	{"bit(8)", "(%d %% 256)::bit(8)"},
	{"varbit", "B'101'"},
	{"int4[]", "ARRAY[1, NULL, %d]"},
	{"int4[][]", "'[0:1][2:3]={{1,2},{3,%d}}'"},
	{"text[]", `ARRAY['a b', '"', NULL, 'x%d']`},
	{"int4range", "int4range(1, 2 + %d)"},
	{"tsvector", "to_tsvector('simple', 'a b x%d')"},
	{"tsquery", "to_tsquery('simple', 'a & x%d')"},
	{"money", "%d::int4::money"},
	{"oid", "%d::oid"},
	{"pg_lsn", "'0/16B3748'::pg_lsn"},
	{"txid_snapshot", "'10:20:10,14,15'::txid_snapshot"},
	{"world.mood", "(ARRAY['sad', 'glad'])[1 + %d %% 2]::world.mood"},
	{"world.code", "'d%d'"},
	{"world.pair", "ROW(%d, 'x \"y')::world.pair"},
	{"world.mood[]", "ARRAY['sad', 'glad']::world.mood[]"},
}

// shapes are the tables, in the order in which transactions lock them.
func shapes() []*shape {
	wide := []string{"id int8 primary key"}
	for i, v := range values {
		wide = append(wide, fmt.Sprintf("c%d %s", i, v[0]))
	}
	id := []string{"id"}
	return []*shape{
		{name: "bank", columns: "id int8 primary key, balance int8 not null", key: id},
		{name: "wide", columns: strings.Join(wide, ", "), key: id},
		{name: "large", columns: "id int8 primary key, n int4, v text, w text", key: id},
		{name: "orders", columns: "region text, no int8, n int4, primary key (region, no)", key: []string{"region", "no"}},
		{
			name: "parts", columns: "id int8, d date, r text, k int4, n int4, primary key (id, d, r, k)", key: id,
			partitions: `PARTITION BY RANGE (d)
 SUBPARTITION BY LIST (r) SUBPARTITION TEMPLATE (SUBPARTITION a VALUES ('a'), DEFAULT SUBPARTITION o)
 SUBPARTITION BY RANGE (k) SUBPARTITION TEMPLATE (SUBPARTITION low START (0) END (5), SUBPARTITION high START (5) END (10))
 (PARTITION jan START ('2020-01-01') END ('2020-02-01'), PARTITION feb START ('2020-02-01') END ('2020-03-01'))`,
		},
		{name: "copies", columns: "id int8 primary key, v text, n int4", kind: router.Replicated},
		{name: "anywhere", columns: "id int8, n int4, v text", kind: router.Random, full: true},
		{name: "moved", columns: "k int4, id int8, n int4, v text", key: id, full: true},
		{name: "emptied", columns: "id int8 primary key, n int4", key: id},
		{name: "emptied2", columns: "id int8 primary key, n int4", key: id},
	}
}
