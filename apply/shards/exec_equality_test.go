package shards

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// mustArrive runs statements on the first source and applies them, without the
// comparison that must makes: values may print otherwise on the target.
func (m *mirror) mustArrive(sql ...string) {
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
}

// mustMatch compares the rows that a query gives on the source and on the target's
// first shard.
func (m *mirror) mustMatch(sql string) {
	m.t.Helper()
	want, got := strings.Join(m.query(m.src[0], sql), "; "), strings.Join(m.query(m.o.Shards[0], sql), "; ")
	if want != got {
		m.t.Fatalf("%s: source %s, target %s", sql, want, got)
	}
}

// TestTrailingBlanks: bpchar without a length keeps trailing blanks that its = does
// not see. Of rows that differ in nothing else the right one is deleted, and an update
// of blanks alone arrives.
func TestTrailingBlanks(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 1, ddl: `CREATE SCHEMA app; CREATE DOMAIN app.code AS bpchar; CREATE TYPE app.pair AS (a bpchar, b int);
			CREATE TABLE app.free (v bpchar, n int); ALTER TABLE app.free REPLICA IDENTITY FULL;
			CREATE TABLE app.dom (v app.code, p app.pair, l bpchar[], n int); ALTER TABLE app.dom REPLICA IDENTITY FULL;
			CREATE TABLE app.keyed (id int PRIMARY KEY, v bpchar UNIQUE, n int);`,
		policies: map[string]string{"app.free": "replicated", "app.dom": "replicated", "app.keyed": "replicated"},
	})
	check := func() {
		t.Helper()
		m.mustMatch("SELECT octet_length(v), n FROM app.free ORDER BY 1, 2")
		m.mustMatch("SELECT octet_length(v), p, l, n FROM app.dom ORDER BY 1, 2, 3, 4")
		m.mustMatch("SELECT id, octet_length(v), n FROM app.keyed ORDER BY 1")
	}
	m.mustArrive(`INSERT INTO app.free VALUES ('ab', 1), ('ab  ', 1), (NULL, 1)`,
		`INSERT INTO app.dom VALUES ('x', ('a', 1), '{a}', 1), ('x ', ('a', 1), '{a}', 1), ('x', ('a ', 1), '{a}', 1), ('x', ('a', 1), '{"a "}', 1)`,
		`INSERT INTO app.keyed VALUES (1, 'ab', 1), (2, 'cd', 1)`)
	check()
	m.mustArrive("DELETE FROM app.free WHERE octet_length(v) = 4", "DELETE FROM app.dom WHERE octet_length(v) = 2")
	check()
	m.mustArrive("UPDATE app.dom SET n = 2 WHERE l::text <> '{a}'", "DELETE FROM app.dom WHERE octet_length((p).a) = 2")
	check()
	m.mustArrive("UPDATE app.keyed SET v = 'ab  ', n = 2 WHERE id = 1", "UPDATE app.free SET n = 3 WHERE v IS NULL")
	check()
	m.mustArrive("BEGIN; UPDATE app.keyed SET v = 'tmp' WHERE id = 1; UPDATE app.keyed SET v = 'ab' WHERE id = 2; UPDATE app.keyed SET v = 'cd ' WHERE id = 1; COMMIT")
	check()
}

// TestWidenedColumns: where the target's column is wider, a value can print otherwise
// there than on the source, and rows without a key are found all the same.
func TestWidenedColumns(t *testing.T) {
	wider := [][3]string{ // source type, target type, values
		{"int", "numeric(14,2)", "1;2;-7;0;2147483647"},
		{"smallint", "numeric(8,3)", "1;2;-7"},
		{"bigint", "numeric(20,1)", "1;9223372036854775807"},
		{"numeric(10,2)", "numeric(14,4)", "1.5;1.50;0.01;-3;99999999.99"},
		{"numeric(5)", "numeric(10,3)", "7;12345"},
		{"numeric(10,2)", "numeric", "1.5;0.01"},
		{"int[]", "numeric(14,2)[]", "{1,NULL};{{1},{2}};{}"},
		{"numeric(6,1)[]", "numeric(9,3)[]", "{1.5};{2.0,NULL}"},
		{"char(3)", "char(6)", "a;abc;"},
		{"char(3)[]", "char(6)[]", `{a,abc};{NULL,""}`},
		{"char(3)", "varchar(3)", "a;abc"},
		{"char(3)", "text", "a;abc"},
		{"varchar(3)[]", "text[]", "{a};{abc}"},
		{"real", "double precision", "0.1;-0;NaN;1e-20"},
		{"smallint", "real", "1;-300"},
		{"real[]", "double precision[]", "{0.1,NULL}"},
		{"int", "bigint", "1;2"},
		{"int", "text", "1;-2"},
		{"timestamp(0)", "timestamp(3)", "2024-01-01;2024-01-01 12:34:56"},
		{"timestamptz(0)", "timestamptz", "2024-01-01 00:00+02"},
		{"time(1)", "time(4)", "12:34:56.7"},
		{"interval(0)", "interval(3)", "1 day 00:00:01"},
		{"interval year to month", "interval", "1 year 2 mons"},
		{"varbit(3)", "varbit(9)", "101;1"},
		{"bool", "text", "t;f"},
		{"jsonb", "text", `{"a": 1.0};[]`},
	}
	ddl, target := "CREATE SCHEMA app;", "CREATE SCHEMA app;"
	policies := map[string]string{}
	for i, w := range wider {
		table := func(typ string) string { return fmt.Sprintf("CREATE TABLE app.t%d (n int, v %s);", i, typ) }
		ddl += table(w[0]) + fmt.Sprintf("ALTER TABLE app.t%d REPLICA IDENTITY FULL;", i)
		target += table(w[1])
		// A unique column is a guard of updates in place.
		ddl += fmt.Sprintf("CREATE TABLE app.k%d (n int PRIMARY KEY, v %s);", i, w[0])
		target += fmt.Sprintf("CREATE TABLE app.k%d (n int PRIMARY KEY, v %s, UNIQUE (n, v));", i, w[1])
		policies[fmt.Sprintf("app.t%d", i)], policies[fmt.Sprintf("app.k%d", i)] = "replicated", "replicated"
	}
	m := mustMirror(t, mirrorConfig{shards: 1, ddl: ddl, targetDDL: target, policies: policies})
	r := rand.New(rand.NewPCG(17, 0))
	check := func() {
		t.Helper()
		for i, w := range wider {
			// Both sides as the target's type: that is what the target holds.
			for _, tab := range []string{"t", "k"} {
				list := fmt.Sprintf("SELECT n, v::%s::text FROM app.%s%d ORDER BY 1, 2", w[1], tab, i)
				switch {
				case strings.HasPrefix(w[0], "real"): // text names the number, the cast does not
					list = fmt.Sprintf("SELECT n, v::text FROM app.%s%d ORDER BY 1, 2", tab, i)
				case w[0] == "bool": // casts to text spell it out
					list = fmt.Sprintf("SELECT n, left(v::text, 1) FROM app.%s%d ORDER BY 1, 2", tab, i)
				case w[0] == "char(3)" && w[1] != "char(6)": // and take blanks away
					list = fmt.Sprintf("SELECT n, octet_length(v), rtrim(v::text) FROM app.%s%d ORDER BY 1, 2, 3", tab, i)
				}
				m.mustMatch(list)
			}
		}
	}
	n := 0
	for range 4 {
		var sql []string
		for i, w := range wider {
			vals := strings.Split(w[2], ";")
			pick := func() string {
				if r.IntN(6) == 0 {
					return "NULL"
				}
				return "'" + vals[r.IntN(len(vals))] + "'"
			}
			for range 12 {
				switch r.IntN(4) {
				case 0, 1:
					n++
					sql = append(sql, fmt.Sprintf("INSERT INTO app.t%d VALUES (%d, %s), (%d, %s)", i, r.IntN(3), pick(), r.IntN(3), pick()),
						fmt.Sprintf("INSERT INTO app.k%d VALUES (%d, %s)", i, n, pick()))
				case 2:
					sql = append(sql, fmt.Sprintf("UPDATE app.t%d SET v = %s WHERE ctid IN (SELECT ctid FROM app.t%d ORDER BY random() LIMIT 2)", i, pick(), i),
						fmt.Sprintf("UPDATE app.k%d SET v = %s WHERE n %% 3 = %d", i, pick(), r.IntN(3)))
				default:
					sql = append(sql, fmt.Sprintf("DELETE FROM app.t%d WHERE ctid IN (SELECT ctid FROM app.t%d ORDER BY random() LIMIT 1)", i, i),
						fmt.Sprintf("UPDATE app.t%d SET n = n + 1 WHERE n = %d", i, r.IntN(3)))
				}
			}
		}
		m.mustArrive(append([]string{"SELECT setseed(0.17)"}, sql...)...)
		check()
	}
}

// TestInputFunctions: text becomes a value as the type's input function reads it, and
// is compared as its output function prints it, whatever casts there are.
func TestInputFunctions(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 1, ddl: `CREATE SCHEMA app;
			CREATE TYPE app.state AS ENUM ('on', 'off', 'unknown');
			CREATE FUNCTION app.of_text(text) RETURNS app.state LANGUAGE sql AS $$SELECT CASE lower($1) WHEN 'yes' THEN 'on'::app.state WHEN 'no' THEN 'off' ELSE 'unknown' END$$;
			CREATE CAST (text AS app.state) WITH FUNCTION app.of_text(text);
			CREATE TYPE app.pair AS (a int, b int);
			CREATE FUNCTION app.pair_text(app.pair) RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT (($1).a + ($1).b)::text$$;
			CREATE CAST (app.pair AS text) WITH FUNCTION app.pair_text(app.pair);
			CREATE FUNCTION app.list(text) RETURNS int[] LANGUAGE sql AS $$SELECT '{13}'::int[]$$;
			CREATE CAST (text AS int[]) WITH FUNCTION app.list(text) AS ASSIGNMENT;
			CREATE DOMAIN app.sum AS app.pair;
			CREATE TABLE app.t (id int PRIMARY KEY, v app.state, c regclass, l int[], "char" "char", x xml, n name, b bpchar(3));
			CREATE TABLE app.bystate (v app.state PRIMARY KEY, n int);
			CREATE TABLE app.bypair (p app.pair, s app.sum, c regclass, n int); ALTER TABLE app.bypair REPLICA IDENTITY FULL;`,
		policies: map[string]string{"app.t": "replicated", "app.bystate": "replicated", "app.bypair": "replicated"},
	})
	m.must("INSERT INTO app.t VALUES (1, 'on', 'pg_class', '{1,2}', 'a', '<a/>', 'n', 'ab')", "INSERT INTO app.bystate VALUES ('on', 1), ('off', 2), ('unknown', 3)",
		"INSERT INTO app.bypair VALUES ((1, 4), (1, 4), 'pg_class', 1), ((2, 3), (2, 3), '-', 1), ((2, 3), (1, 4), NULL, 1), (NULL, NULL, '-', 1)")
	m.must("UPDATE app.t SET v = 'off', c = 0, l = '{3}', \"char\" = '', x = '<b/> ', b = 'c'", "UPDATE app.bystate SET n = 7 WHERE v = 'off'")
	m.must("DELETE FROM app.bystate WHERE v <> 'off'", "DELETE FROM app.bypair WHERE (p).a = 2 AND (s).a = 2", "UPDATE app.bypair SET n = 2 WHERE c IS NULL")
	m.must("INSERT INTO app.t SELECT i, 'on', 'pg_class', ARRAY[i], 'b', '<c/>', 'm', 'x' FROM generate_series(2, 400) i",
		"UPDATE app.t SET v = 'off', l = l || 5, c = 'pg_type' WHERE id % 2 = 0", "DELETE FROM app.bypair")
	m.must("UPDATE app.t SET v = 'unknown', c = '-' WHERE id > 1", "DELETE FROM app.t WHERE id < 390")
}
