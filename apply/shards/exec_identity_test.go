package shards

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Identities of every kind.
func TestMirrorIdentity(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 2, ddl: `
		CREATE SCHEMA app;
		CREATE TABLE app.pk (a int, b text, v text, PRIMARY KEY (b, a));
		CREATE TABLE app.idx (id int PRIMARY KEY, code text NOT NULL UNIQUE, v text);
		ALTER TABLE app.idx REPLICA IDENTITY USING INDEX idx_code_key;
		CREATE TABLE app.fullkey (id int PRIMARY KEY, v text, n int); ALTER TABLE app.fullkey REPLICA IDENTITY FULL;
		CREATE TABLE app.fullnokey (a int, b text, j json, x xml, p point, n numeric, f float8); ALTER TABLE app.fullnokey REPLICA IDENTITY FULL;
		CREATE TABLE app.nothing (id int, v text); ALTER TABLE app.nothing REPLICA IDENTITY NOTHING;
		CREATE COLLATION app.anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
		CREATE TABLE app.near (a int, c text COLLATE app.anycase, n numeric, f float8, i interval, r numrange, j jsonb, x numeric[]); ALTER TABLE app.near REPLICA IDENTITY FULL;
		CREATE TABLE app.keyonly (a int, b int, PRIMARY KEY (a, b));`,
		policies: map[string]string{
			"app.near": "hash a", "app.pk": "hash a", "app.idx": "hash code", "app.fullkey": "hash n",
			"app.fullnokey": "hash a", "app.nothing": "random", "app.keyonly": "hash b",
		},
	})
	m.must(`INSERT INTO app.pk SELECT i, 'k' || i, 'v' FROM generate_series(1, 100) i`,
		`INSERT INTO app.idx SELECT i, 'c' || i, 'v' FROM generate_series(1, 100) i`,
		`INSERT INTO app.fullkey SELECT i, 'v', i % 10 FROM generate_series(1, 100) i`,
		// Equal rows, NULLs, types without equality, numbers that are equal and print differently.
		`INSERT INTO app.fullnokey SELECT i % 3, NULL, '{"a": 1}', '<a/>', '(1,2)', 1.0, '-0' FROM generate_series(1, 30) i`,
		`INSERT INTO app.fullnokey SELECT i % 3, NULL, NULL, NULL, NULL, NULL, NULL FROM generate_series(1, 30) i`,
		`INSERT INTO app.fullnokey SELECT i % 3, 'b', '{"a":1}', '<b/>', '(1,3)', 1.00, 0 FROM generate_series(1, 30) i`,
		`INSERT INTO app.nothing SELECT i, 'v' FROM generate_series(1, 100) i`,
		`INSERT INTO app.keyonly SELECT i, i % 7 FROM generate_series(1, 100) i`)
	m.must(
		// A changed identity, in part and in whole.
		`UPDATE app.pk SET b = b || 'x' WHERE a % 2 = 0`, `UPDATE app.pk SET a = a + 1000 WHERE a % 3 = 0`,
		`UPDATE app.idx SET code = code || 'x' WHERE id % 2 = 0`, `UPDATE app.idx SET id = id + 1000 WHERE id % 3 = 0`,
		`UPDATE app.fullkey SET id = id + 1000 WHERE id % 2 = 0`, `UPDATE app.fullkey SET n = n + 1 WHERE id % 3 = 0`,
		`UPDATE app.keyonly SET a = a + 1000 WHERE a % 2 = 0`, `UPDATE app.keyonly SET a = a WHERE a % 2 = 1`,
		`DELETE FROM app.pk WHERE a % 5 = 0`, `DELETE FROM app.idx WHERE id % 5 = 0`, `DELETE FROM app.fullkey WHERE id % 5 = 0`)
	m.must(
		`DELETE FROM app.fullnokey WHERE ctid IN (SELECT ctid FROM app.fullnokey WHERE n = 1 AND a = 1 LIMIT 7)`,
		`DELETE FROM app.fullnokey WHERE ctid IN (SELECT ctid FROM app.fullnokey WHERE n IS NULL AND a = 2 LIMIT 3)`,
		`UPDATE app.fullnokey SET b = 'new' WHERE ctid IN (SELECT ctid FROM app.fullnokey WHERE a = 0 AND f IS NOT NULL LIMIT 5)`,
		`UPDATE app.fullnokey SET a = a + 1 WHERE ctid IN (SELECT ctid FROM app.fullnokey WHERE a = 0 LIMIT 5)`,
		`DELETE FROM app.fullnokey WHERE f::text = '-0'`)
	// Values that are equal and print differently, one column at a time: the row
	// that prints like the source's goes, not its twin, whichever comes first.
	for _, twin := range [][2]string{
		{"n, '1.0'", "n, '1.00'"},
		{"f, '0'", "f, '-0'"},
		{"i, '1 mon'", "i, '30 days'"},
		{"r, '[1.0,2)'", "r, '[1.00,2)'"},
		{"j, '1.0'", "j, '1.00'"},
		{"c, 'AbC'", "c, 'abc'"},
		{"x, '{1.0}'", "x, '{1.00}'"},
	} {
		for k, v := range append(twin[:], twin[0], twin[1]) {
			col, lit, _ := strings.Cut(v, ", ")
			m.exec(m.src[0], "INSERT INTO app.near (a, "+col+") VALUES ("+fmt.Sprint(k/2)+", "+lit+")")
		}
		col, lit, _ := strings.Cut(twin[0], ", ")
		if len(m.query(m.src[0], "SELECT 1 FROM app.near WHERE "+col+" = "+lit)) != 4 {
			t.Fatalf("%v are not equal", twin)
		}
		m.must()
		for _, v := range []string{twin[1], twin[0]} {
			_, lit, _ := strings.Cut(v, ", ")
			m.must("DELETE FROM app.near WHERE a = 0 AND " + col + "::text COLLATE \"C\" = " + lit)
		}
		m.must("DELETE FROM app.near")
	}
}

// Several changes of one row in one batch.
func TestMirrorChains(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 2, ddl: `
		CREATE SCHEMA app;
		CREATE TABLE app.t (id int PRIMARY KEY, v text, u int UNIQUE, target_only text DEFAULT 'd');`,
		targetDDL: `CREATE SCHEMA app;
		CREATE TABLE app.t (id int PRIMARY KEY, target_only text DEFAULT 'd', u int, v text);`,
		publication: "FOR TABLE app.t (id, v, u)",
		policies:    map[string]string{"app.t": "hash id"},
	})
	m.must(`INSERT INTO app.t SELECT i, 'v', i FROM generate_series(1, 20) i`)
	for _, dsn := range m.o.Shards {
		m.exec(dsn, `UPDATE app.t SET target_only = 'mine'`)
	}
	m.must(
		// Two rows swap keys.
		`BEGIN; UPDATE app.t SET id = -1 WHERE id = 1; UPDATE app.t SET id = 1 WHERE id = 2; UPDATE app.t SET id = 2 WHERE id = -1; COMMIT`,
		// Delete, then insert of the same key.
		`BEGIN; DELETE FROM app.t WHERE id = 3; INSERT INTO app.t VALUES (3, 'again', 3); COMMIT`,
		// Insert, update, delete of one row.
		`BEGIN; INSERT INTO app.t VALUES (100, 'a', 100); UPDATE app.t SET v = 'b' WHERE id = 100; DELETE FROM app.t WHERE id = 100; COMMIT`,
		// Insert, update, move.
		`BEGIN; INSERT INTO app.t VALUES (101, 'a', 101); UPDATE app.t SET v = 'b' WHERE id = 101; UPDATE app.t SET id = 102 WHERE id = 101; COMMIT`,
		// A key moves on twice, and the first one is taken again.
		`BEGIN; UPDATE app.t SET id = 200 WHERE id = 5; UPDATE app.t SET id = 201 WHERE id = 200; INSERT INTO app.t VALUES (5, 'five', 500); COMMIT`,
		// Nothing changes.
		`UPDATE app.t SET v = v WHERE id = 7`)
	var got []string
	for _, dsn := range m.o.Shards {
		got = append(got, m.query(dsn, `SELECT id FROM app.t WHERE target_only = 'd' ORDER BY id`)...)
	}
	// Columns that only the target has stay with the row through updates and
	// moves; a row that was deleted and inserted again is a new one.
	if s := strings.Join(sortRows(got), " "); s != `"102" "3" "5"` {
		t.Errorf("rows with the default in the target's own column: %s", s)
	}
}

// sortRows returns a sorted copy.
func sortRows(rows []string) []string {
	return slices.Sorted(slices.Values(rows))
}

// Secondary unique values are swapped, shifted and handed over; each is valid
// one by one or under a deferrable constraint on the source, and never
// deferrable on the target.
func TestMirrorUnique(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 2, ddl: `
		CREATE SCHEMA app;
		CREATE TABLE app.plain (id int PRIMARY KEY, u int UNIQUE, v text);
		CREATE TABLE app.def (id int PRIMARY KEY, u int UNIQUE DEFERRABLE INITIALLY DEFERRED, v text, big text);
		ALTER TABLE app.def ALTER big SET STORAGE EXTERNAL;
		CREATE TABLE app.expr (id int PRIMARY KEY, mail text, active bool, v text);
		CREATE UNIQUE INDEX ON app.expr (lower(mail)) WHERE active;
		CREATE TABLE app.excl (id int PRIMARY KEY, r int4range, EXCLUDE USING gist (r WITH &&));
		CREATE TABLE app.fulldef (id int PRIMARY KEY DEFERRABLE, v text); ALTER TABLE app.fulldef REPLICA IDENTITY FULL;`,
		targetDDL: `
		CREATE SCHEMA app;
		CREATE TABLE app.plain (id int PRIMARY KEY, u int UNIQUE, v text);
		CREATE TABLE app.def (id int PRIMARY KEY, u int UNIQUE, v text, big text, target_only int DEFAULT 5);
		CREATE TABLE app.expr (id int PRIMARY KEY, mail text, active bool, v text);
		CREATE UNIQUE INDEX ON app.expr (lower(mail)) WHERE active;
		CREATE TABLE app.excl (id int PRIMARY KEY, r int4range, EXCLUDE USING gist (r WITH &&));
		CREATE TABLE app.fulldef (id int PRIMARY KEY, v text);`,
		policies: map[string]string{"app.plain": "replicated", "app.def": "hash id", "app.expr": "replicated", "app.excl": "replicated", "app.fulldef": "hash id"},
	})
	m.must(`INSERT INTO app.plain SELECT i, i, 'v' FROM generate_series(1, 100) i`,
		`INSERT INTO app.def SELECT i, i, 'v', `+big+` FROM generate_series(1, 100) i`,
		`INSERT INTO app.expr SELECT i, 'M' || i % 50, i <= 50, 'v' FROM generate_series(1, 100) i`,
		`INSERT INTO app.excl SELECT i, int4range(i * 10, i * 10 + 10) FROM generate_series(1, 50) i`,
		`INSERT INTO app.fulldef SELECT i, 'v' || i FROM generate_series(1, 100) i`)
	m.must(
		`UPDATE app.def SET u = u + 1`,
		`UPDATE app.def SET u = 102 - u, v = 'x' WHERE id % 2 = 0`,
		`BEGIN; INSERT INTO app.def VALUES (1000, 50, 'dup', 'b'); UPDATE app.def SET u = 5000 WHERE u = 50 AND id < 1000; COMMIT`,
		// Valid one by one: values are handed on.
		`BEGIN; UPDATE app.plain SET u = -1 WHERE id = 1; UPDATE app.plain SET u = 1 WHERE id = 2; UPDATE app.plain SET u = 2 WHERE id = 1; COMMIT`,
		`BEGIN; DELETE FROM app.plain WHERE id = 3; UPDATE app.plain SET u = 3 WHERE id = 4; INSERT INTO app.plain VALUES (3, 4, 'n'); COMMIT`,
		`UPDATE app.plain SET v = 'other' WHERE id > 50`,
		`BEGIN; UPDATE app.expr SET active = false WHERE id = 7; UPDATE app.expr SET active = true WHERE id = 57; COMMIT`,
		`BEGIN; UPDATE app.expr SET mail = 'tmp' WHERE id = 8; UPDATE app.expr SET mail = 'm8' WHERE id = 9; UPDATE app.expr SET mail = 'M9' WHERE id = 8; COMMIT`,
		`BEGIN; UPDATE app.excl SET r = 'empty' WHERE id = 1; UPDATE app.excl SET r = '[10,20)' WHERE id = 2; UPDATE app.excl SET r = '[20,30)' WHERE id = 1; COMMIT`,
		`UPDATE app.fulldef SET id = id + 1`,
		`UPDATE app.fulldef SET id = CASE id WHEN 2 THEN 3 ELSE 2 END WHERE id IN (2, 3)`)
}
