package shards

import (
	"fmt"
	"strings"
	"testing"

	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
)

// typeValues holds, per type, literals that are hard to carry.
var typeValues = []struct {
	typ    string
	values []string
}{
	{"bool", []string{"true", "false"}},
	{"int2", []string{"-32768", "32767", "0"}},
	{"int4", []string{"-2147483648", "2147483647"}},
	{"int8", []string{"-9223372036854775808", "9223372036854775807"}},
	{"numeric", []string{"'NaN'", "'Infinity'", "'-Infinity'", "0.00", "1e-1000", "12345678901234567890.1234567890123456789", "-0.10"}},
	{"numeric(10,2)", []string{"12345678.90", "-0.01"}},
	{"float4", []string{"'NaN'", "'-Infinity'", "'-0'", "1.17549435e-38", "0.1", "3.4028235e38"}},
	{"float8", []string{"'NaN'", "'Infinity'", "'-0'", "5e-324", "0.1", "1.7976931348623157e308", "0.30000000000000004"}},
	{"money", []string{"'-12.34'", "'92233720368547758.07'"}},
	{"text", []string{"''", `'\'`, `'\\'`, `'\.'`, `E'\\.'`, `E'a\nb\rc\td\be\ff\vg'`, `'"quoted"'`, `'it''s'`, `'\N'`, `'NULL'`, `E'\x01\x7f'`, "'äöü€𝄞'", "' lead and trail '", `E'\n'`, `E'\\N\n\\.'`, `'{a,b}'`, `'(a,b)'`}},
	{"varchar(20)", []string{"''", "'twenty characters 20'", "'trailing  '"}},
	{"char(5)", []string{"''", "'ab'", "'abcde'"}},
	{"bpchar", []string{"'ab'", "''"}},
	{`"char"`, []string{"'x'", `'\'`, "''"}},
	{"name", []string{"'some_name'", "''"}},
	{"bytea", []string{`''`, `'\x00ff5c0a0d09'`, `'\xdeadbeef'`}},
	{"date", []string{"'infinity'", "'-infinity'", "'4713-01-01 BC'", "'5874897-12-31'", "'2024-02-29'"}},
	{"time", []string{"'00:00'", "'24:00'", "'12:34:56.789012'"}},
	{"time(3)", []string{"'12:34:56.789'"}},
	{"timetz", []string{"'00:00+15:59'", "'23:59:59.999999-15:59'"}},
	{"timestamp", []string{"'infinity'", "'4713-01-01 BC'", "'294276-12-31 23:59:59.999999'", "'2024-02-29 12:34:56.789012'"}},
	{"timestamptz", []string{"'-infinity'", "'4713-01-02 BC'", "'294276-12-31 00:00+00'", "'2024-02-29 12:34:56.789012+05:30'"}},
	{"timestamptz(0)", []string{"'2024-02-29 12:34:56+02'"}},
	{"interval", []string{"'1 mon'", "'30 days'", "'720:00:00'", "'-1 year -2 mons +3 days -04:05:06.789'", "'0'", "'178000000 years'"}},
	{"interval day to second(2)", []string{"'1 02:03:04.56'"}},
	{"uuid", []string{"'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"}},
	{"inet", []string{"'10.1.2.3'", "'10.1.2.3/8'", "'::1'", "'2001:db8::/32'"}},
	{"cidr", []string{"'10.0.0.0/8'", "'2001:db8::/32'"}},
	{"macaddr", []string{"'08:00:2b:01:02:03'"}},
	{"macaddr8", []string{"'08:00:2b:01:02:03:04:05'"}},
	{"bit(5)", []string{"B'10101'", "B'00000'"}},
	{"varbit", []string{"B''", "B'1'", "B'101010101'"}},
	{"json", []string{`'{"b": 1, "a" :  2, "a": 3}'`, `'null'`, `'"\u00e4\\"'`, "' [1,\t2] '"}},
	{"jsonb", []string{`'{"b": 1.0, "a": 1.00}'`, `'null'`, `'"x\\y\"z"'`}},
	{"jsonpath", []string{`'$.a[*] ? (@.b == "x")'`}},
	{"xml", []string{"'<a b=\"c\">t&amp;</a>'", "'just text'", "''"}},
	{"point", []string{"'(1.5,-2)'", "'(Infinity,NaN)'"}},
	{"line", []string{"'{1,2,3}'"}},
	{"lseg", []string{"'[(1,2),(3,4)]'"}},
	{"box", []string{"'(3,4),(1,2)'", "'(2,6),(1,2)'"}}, // of one area: equal by =
	{"path", []string{"'[(1,2),(3,4)]'", "'((1,2),(3,4))'"}},
	{"polygon", []string{"'((1,2),(3,4),(5,0))'"}},
	{"circle", []string{"'<(1,2),3>'", "'<(7,7),3>'"}},
	{"int4range", []string{"'empty'", "'[1,5)'", "'(,)'"}},
	{"numrange", []string{"'[1.0,2.00)'", "'[1.00,2.0)'", "'empty'"}},
	{"tstzrange", []string{`'["2024-01-01 00:00:00+00",infinity)'`}},
	{"daterange", []string{"'[2024-01-01,)'"}},
	{"int8multirange", []string{"'{}'", "'{[1,3),[5,7)}'"}},
	{"nummultirange", []string{"'{[1.0,2.00)}'"}},
	{"tsvector", []string{"'a:1A fat:2B,4C ''it s'':3'", "''"}},
	{"tsquery", []string{"'fat & (rat | cat)'", "'super:*'"}},
	{"pg_lsn", []string{"'16/B374D848'"}},
	{"xid8", []string{"'18446744073709551615'"}},
	{"pg_snapshot", []string{"'10:20:10,14,15'"}},
	{"oid", []string{"4294967295"}},
	{"regclass", []string{"'pg_class'"}},
	{"regtype", []string{"'integer'"}},
	{"int2vector", []string{"'1 2 3'"}},
	{"oidvector", []string{"'1 2 3'", "''"}},
	{"int4[]", []string{"'{}'", "'{NULL,1}'", "'{{1,2},{3,4}}'", "'[0:1]={1,2}'"}},
	{"text[]", []string{`'{"a b","","NULL",NULL,"c\"d\\e"}'`, `'{{a,b},{c,d}}'`, `E'{"x\ny"}'`}},
	{"numeric[]", []string{"'{1.0,1.00}'", "'{1.00,1.0}'"}},
	{"bytea[]", []string{`'{"\\x00ff",NULL}'`}},
	{"json[]", []string{`'{"{\"a\": 1}"}'`}},
	{"app.mood", []string{"'sad'", `'it''s "ok"'`}},
	{"app.mood[]", []string{"'{sad,NULL}'"}},
	{"app.pair", []string{"'(1,\"x,y\")'", "'(,)'", "'(1,)'"}},
	{"app.pair[]", []string{`'{"(1,\"a \\\"b\")"}'`}},
	{"app.email", []string{"'a@b'"}},
	{"app.short", []string{"'abc'"}},
	{"app.nums", []string{"'{1,2}'"}},
	{"app.span", []string{"'[a,c)'"}},
	{"app.citext", []string{"'AbC'", "'abc'"}},
	{"app.ltree", []string{"'Top.Science'"}},
	{"app.hstore", []string{`'a=>1, "b c"=>NULL'`}},
	{`text COLLATE app.anycase`, []string{"'AbC'", "'abc'"}},
}

const typesDDL = `CREATE SCHEMA app;
	CREATE TYPE app.mood AS ENUM ('sad', 'it''s "ok"'); CREATE TYPE app.pair AS (a int, b text);
	CREATE DOMAIN app.email AS text CHECK (VALUE LIKE '%@%'); CREATE DOMAIN app.short AS varchar(3); CREATE DOMAIN app.nums AS int[];
	CREATE TYPE app.span AS RANGE (subtype = text);
	CREATE EXTENSION citext SCHEMA app; CREATE EXTENSION hstore SCHEMA app; CREATE EXTENSION ltree SCHEMA app;
	CREATE COLLATION app.anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
	ALTER TYPE app.citext OWNER TO CURRENT_USER;`

// Every built-in type, and every kind of type, comes through inserts, updates in
// place, moves with a fetched value, and deletes by whole rows, unchanged.
func TestMirrorValues(t *testing.T) {
	ddl := typesDDL
	var cols []string
	for i, v := range typeValues {
		cols = append(cols, fmt.Sprintf("c%d %s", i, v.typ))
	}
	ddl += "CREATE TABLE app.k (id int PRIMARY KEY, " + strings.Join(cols, ", ") + ");"
	ddl += "CREATE TABLE app.n (" + strings.Join(cols, ", ") + "); ALTER TABLE app.n REPLICA IDENTITY FULL;"
	target := strings.Replace(ddl, "CREATE TABLE app.k (id int PRIMARY KEY, ", "CREATE TABLE app.k (id int PRIMARY KEY, own text DEFAULT 'd', ", 1)
	m := mustMirror(t, mirrorConfig{shards: 2, ddl: ddl, targetDDL: target, policies: map[string]string{"app.k": "hash id", "app.n": "replicated"}})
	row := func(n int) []string {
		out := make([]string, len(typeValues))
		for i, v := range typeValues {
			if k := n % (len(v.values) + 1); k < len(v.values) {
				out[i] = v.values[k]
			} else {
				out[i] = "NULL"
			}
		}
		return out
	}
	var inserts []string
	const rows = 36
	for n := range rows {
		inserts = append(inserts, fmt.Sprintf("INSERT INTO app.k VALUES (%d, %s)", n, strings.Join(row(n), ", ")),
			fmt.Sprintf("INSERT INTO app.n VALUES (%s)", strings.Join(row(n), ", ")))
	}
	m.must("BEGIN; " + strings.Join(inserts, "; ") + "; COMMIT")
	var updates []string
	for n := range rows {
		var set []string
		for i, v := range row(n*7 + 3) {
			set = append(set, fmt.Sprintf("c%d = %s", i, v))
		}
		updates = append(updates, fmt.Sprintf("UPDATE app.k SET %s WHERE id = %d", strings.Join(set, ", "), n))
	}
	m.must("BEGIN; " + strings.Join(updates, "; ") + "; COMMIT")
	m.must("UPDATE app.k SET id = id + 1000")
	for i := range typeValues { // one row at a time, by its contents
		m.exec(m.src[0], fmt.Sprintf("DELETE FROM app.n WHERE ctid = (SELECT min(ctid) FROM app.n WHERE c%d IS NOT NULL)", i))
		if i%20 == 0 {
			m.must()
		}
	}
	m.must(fmt.Sprintf("UPDATE app.n SET c%d = 'changed'", 9))
}

// Values as identities and as distribution keys of types outside pg_catalog.
func TestMirrorKeyTypes(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 2, ddl: typesDDL + `
		CREATE TABLE app.ci (id app.citext PRIMARY KEY, v text); CREATE TABLE app.en (id app.mood PRIMARY KEY, v text);
		CREATE TABLE app.co (id app.pair PRIMARY KEY, v text); CREATE TABLE app.ar (id text[] PRIMARY KEY, v text);
		CREATE TABLE app.nu (id numeric PRIMARY KEY, v text); CREATE TABLE app.nd (id text COLLATE app.anycase PRIMARY KEY, v text);
		CREATE TABLE app.dm (id app.short PRIMARY KEY, v text); CREATE TABLE app.bp (id char(8) PRIMARY KEY, v text);
		CREATE TABLE app.ts (id timestamptz PRIMARY KEY, v text); CREATE TABLE app.iv (id interval PRIMARY KEY, v text);
		CREATE TABLE app.lt (id app.ltree PRIMARY KEY, v text);
		CREATE DOMAIN app.mood2 AS app.mood; CREATE TABLE app.de (id app.mood2 PRIMARY KEY, v text);
		CREATE DOMAIN app.pair2 AS app.pair; CREATE TABLE app.dc (id app.pair2 PRIMARY KEY, v text);
		CREATE TABLE app.dg (id text PRIMARY KEY, v text, g app.mood2 UNIQUE);
		CREATE DOMAIN app.span2 AS int4range; CREATE TABLE app.dr (id app.span2 PRIMARY KEY, v text);`,
		policies: map[string]string{
			"app.ci": "replicated", "app.en": "random", "app.co": "random", "app.ar": "hash id", "app.nu": "hash id",
			"app.nd": "replicated", "app.dm": "hash id", "app.bp": "hash id", "app.ts": "hash id", "app.iv": "random", "app.lt": "random",
			"app.de": "replicated", "app.dc": "replicated", "app.dr": "replicated", "app.dg": "hash id",
		},
	})
	keys := map[string][2][]string{
		"ci": {{"'AbC'", "'b'"}, {"'aBc'"}}, "en": {{"'sad'"}, {`'it''s "ok"'`}}, "co": {{"'(1,x)'::app.pair", "'(2,\"a,b\")'"}, {"'(3,)'"}},
		"ar": {{"'{a,NULL}'", "'{}'"}, {`'{{"x\"y"}}'`}}, "nu": {{"1.0", "2.50", "'NaN'"}, {"1.00"}}, "nd": {{"'AbC'", "'b'"}, {"'aBC'"}},
		"dm": {{"'abc'", "''"}, {"'xyz'"}}, "bp": {{"'ab'", "''"}, {"'cd '"}}, "ts": {{"'infinity'", "'2024-01-01 00:00+05'"}, {"'2024-01-01 00:00'"}},
		"iv": {{"'1 mon'", "'0'"}, {"'30 days'"}}, "lt": {{"'a.b'", "'c'"}, {"'a.b.c'"}},
		"de": {{"'sad'"}, {`'it''s "ok"'`}}, "dc": {{"'(1,x)'"}, {"'(2,\"a,b\")'"}}, "dr": {{"'[1,5)'", "'empty'"}, {"'[2,5)'"}}, "dg": {{"'a'", "'b'"}, {"'c'"}},
	}
	m.exec(m.src[0], "SET search_path = app, pg_catalog")
	for tab, k := range keys {
		for _, v := range k[0] {
			m.exec(m.src[0], fmt.Sprintf("INSERT INTO app.%s VALUES (%s, 'v')", tab, v))
		}
	}
	m.must()
	for tab, k := range keys {
		m.exec(m.src[0], fmt.Sprintf("UPDATE app.%s SET v = 'w'", tab))
		// The key takes a value that is equal and prints differently, or a new one.
		m.exec(m.src[0], fmt.Sprintf("UPDATE app.%s SET id = %s WHERE ctid = (SELECT min(ctid) FROM app.%s)", tab, k[1][0], tab))
	}
	m.must()
	for tab := range keys {
		m.exec(m.src[0], fmt.Sprintf("UPDATE app.%s SET v = 'x'; DELETE FROM app.%s WHERE ctid = (SELECT min(ctid) FROM app.%s)", tab, tab, tab))
	}
	m.must()
}

// Many rows are deleted by the list of their keys, of whatever type; one that is
// missing is named.
func TestMirrorDeleteMany(t *testing.T) {
	types := []struct{ name, key string }{
		{"int8", "i"},
		{"text", "'k' || i"},
		{"app.citext", "'K' || i"},
		{"numeric", "i / 8.0"},
		{"char(8)", "i::text"},
		{"app.short", "i::text"},
		{"timestamptz", "to_timestamp(i * 1e6)"},
		{"uuid", "md5(i::text)::uuid"},
		{"interval", "i * interval '1 day 2 s'"},
		{"text COLLATE app.anycase", "'k' || i"},
		{"bytea", "decode(md5(i::text), 'hex')"},
		{"app.ltree", "('a.b' || i)::app.ltree"},
		{"app.pair", "ROW(i, 'x')::app.pair"},
		{"int4range", "int4range(i, i + 5)"},
		{"float8", "i / 7.0"},
		{"date", "'2000-01-01'::date + i"},
		{"int4[]", "ARRAY[i, NULL]"},
	}
	c := mirrorConfig{shards: 1, ddl: typesDDL, policies: map[string]string{}}
	table := func(i int) string { return fmt.Sprintf("app.t%d", i) }
	var inserts, deletes, clears []string
	for i, typ := range types {
		c.ddl += fmt.Sprintf("CREATE TABLE %s (id %s PRIMARY KEY, n int);", table(i), typ.name)
		c.policies[table(i)] = "replicated"
		inserts = append(inserts, fmt.Sprintf("INSERT INTO %s SELECT %s, i FROM generate_series(1, 300) i", table(i), typ.key))
		deletes = append(deletes, "DELETE FROM "+table(i)+" WHERE n <> 20")
		clears = append(clears, "DELETE FROM "+table(i))
	}
	m := mustMirror(t, c)
	m.must(inserts...)
	m.must(deletes...)
	m.must(append(clears, inserts...)...)
	for i, typ := range types {
		t.Run(typ.name, func(t *testing.T) {
			digest := m.query(m.src[0], "SELECT md5(concat_ws(',', id)) FROM "+table(i)+" WHERE n = 7")[0]
			m.exec(m.o.Shards[0], "DELETE FROM "+table(i)+" WHERE n = 7")
			m.exec(m.src[0], clears[i])
			_, err := m.apply()
			dtxtest.WantError(t, err, dtx.ClassStop, table(i), strings.Trim(digest, `"`))
			m.seq-- // the batch was not applied
			if err := m.open(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// 50 MiB of text, in one value, through every path.
func TestMirrorHuge(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 2, ddl: `CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, v text, n int)`,
		policies: map[string]string{"app.t": "hash id"},
	})
	same := func() {
		t.Helper()
		var got []string
		for _, dsn := range m.o.Shards {
			got = append(got, m.query(dsn, "SELECT id, n, md5(v), length(v) FROM app.t ORDER BY id")...)
		}
		if s, w := strings.Join(sortRows(got), " "), strings.Join(sortRows(m.query(m.src[0], "SELECT id, n, md5(v), length(v) FROM app.t")), " "); s != w {
			t.Fatalf("got %s\nwant %s", s, w)
		}
	}
	for _, s := range []string{
		`INSERT INTO app.t SELECT i, repeat(E'\\x\t\n' || md5(i::text), 1500000), 0 FROM generate_series(1, 1) i; INSERT INTO app.t VALUES (2, 'v', 0)`,
		`UPDATE app.t SET n = 1 WHERE id = 1`,
		`UPDATE app.t SET id = 100 WHERE id = 1`,
	} {
		m.exec(m.src[0], s)
		if _, err := m.apply(); err != nil {
			t.Fatal(err)
		}
		same()
	}
}

// A server of another encoding is refused at start.
func TestMirrorEncoding(t *testing.T) {
	dsn := shared.Database(t)
	name := queryRows(t, dsn, "SELECT current_database()")[0][0] + "latin"
	execSQL(t, dsn, "CREATE DATABASE "+name+" ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
	t.Cleanup(func() { execSQL(t, dsn, "DROP DATABASE "+name+" WITH (FORCE)") })
	o := testOptions(shared.Database(t), []string{strings.Replace(dsn, strings.TrimSuffix(name, "latin"), name, 1)})
	dtxtest.WantError(t, Prepare(testCtx(t), o), dtx.ClassStop, "LATIN1", "UTF8")
}
