package shards

import (
	"testing"

	"cbrepl/apply/internal/pgside"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
)

// Policies differ between source and target, in every combination.
func TestMirrorRouting(t *testing.T) {
	const columns = "(id int PRIMARY KEY, d int, v text)"
	m := mustMirror(t, mirrorConfig{
		sources: 2, shards: 3, ddl: `
		CREATE SCHEMA app;
		CREATE TABLE app.rep_hash ` + columns + `; CREATE TABLE app.rep_random ` + columns + `; CREATE TABLE app.rep_rep ` + columns + `;
		CREATE TABLE app.hash_rep ` + columns + `; CREATE TABLE app.hash_random ` + columns + `; CREATE TABLE app.hash_other ` + columns + `;
		CREATE TABLE app.random_hash (id int, d int, v text); ALTER TABLE app.random_hash REPLICA IDENTITY FULL;
		CREATE TABLE app.random_rep (id int, d int, v text); ALTER TABLE app.random_rep REPLICA IDENTITY FULL;`,
		policies: map[string]string{
			"app.rep_hash": "hash id", "app.rep_random": "random", "app.rep_rep": "replicated", "app.hash_rep": "replicated",
			"app.hash_random": "random", "app.hash_other": "hash d", "app.random_hash": "hash d,id", "app.random_rep": "replicated",
		},
		replicated: []string{"app.rep_hash", "app.rep_random", "app.rep_rep"}, random: []string{"app.random_hash", "app.random_rep"},
	})
	m.together = true
	both := func(sql string) {
		for _, tab := range []string{"rep_hash", "rep_random", "rep_rep"} {
			for _, dsn := range m.src {
				m.exec(dsn, "SET search_path = pg_catalog; "+replaceTable(sql, tab))
			}
		}
	}
	// A hash table's rows live on the source segment that the identity names.
	hashed := func(sql string) {
		for _, tab := range []string{"hash_rep", "hash_random", "hash_other", "random_hash", "random_rep"} {
			for i, dsn := range m.src {
				m.exec(dsn, replaceTable(sql, tab+"@"+string(rune('0'+i))))
			}
		}
	}
	both("INSERT INTO app.T SELECT i, i % 5, 'v' FROM generate_series(1, 50) i")
	hashed("INSERT INTO app.T SELECT i, i % 5, 'v' FROM generate_series(1, 100) i WHERE i % 2 = SEG")
	m.must()
	both("UPDATE app.T SET v = 'w' WHERE id % 3 = 0")
	both("UPDATE app.T SET id = id + 100 WHERE id % 5 = 0")
	both("DELETE FROM app.T WHERE id % 7 = 0")
	hashed("UPDATE app.T SET v = 'w' WHERE id % 3 = 0")
	// The target's distribution key changes, the identity does not; and the reverse.
	hashed("UPDATE app.T SET d = d + 1 WHERE id % 4 < 2")
	hashed("UPDATE app.T SET id = id + 1000 WHERE id % 10 = 2")
	hashed("DELETE FROM app.T WHERE id % 7 = 0")
	m.must()
	// Both at once, and several times.
	both("BEGIN; UPDATE app.T SET d = d + 1; UPDATE app.T SET id = id + 10000; UPDATE app.T SET d = d * 2, v = 'z'; COMMIT")
	hashed("BEGIN; UPDATE app.T SET d = d + 1; UPDATE app.T SET id = id + 10000; UPDATE app.T SET d = d * 2, v = 'z'; COMMIT")
	m.must()
}

// replaceTable puts a table (with its segment behind @) into a statement.
func replaceTable(sql, tab string) string {
	seg := "0"
	for i := range tab {
		if tab[i] == '@' {
			tab, seg = tab[:i], tab[i+1:]
			break
		}
	}
	out := ""
	for i := 0; i < len(sql); i++ {
		switch {
		case sql[i] == 'T' && i > 0 && sql[i-1] == '.':
			out += tab
		case len(sql) >= i+3 && sql[i:i+3] == "SEG":
			out += seg
			i += 2
		default:
			out += string(sql[i])
		}
	}
	return out
}

// Rows of a random table that somebody else placed are found.
func TestMirrorRandomElsewhere(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 3, ddl: `CREATE SCHEMA app;
		CREATE TABLE app.k (id int PRIMARY KEY, v text, b text); ALTER TABLE app.k ALTER b SET STORAGE EXTERNAL;
		CREATE TABLE app.n (id int, v text); ALTER TABLE app.n REPLICA IDENTITY FULL`,
		policies: map[string]string{"app.k": "random", "app.n": "random"},
	})
	m.must("INSERT INTO app.k SELECT i, 'v', "+big+" FROM generate_series(1, 60) i", "INSERT INTO app.n SELECT i % 10, 'v' FROM generate_series(1, 60) i")
	for _, tab := range []string{"k", "n"} { // all onto one shard
		for _, dsn := range m.o.Shards[1:] {
			for _, r := range queryRows(t, dsn, "SELECT r.id, r.v"+map[string]string{"k": ", r.b", "n": ", ''"}[tab]+" FROM app."+tab+" r") {
				sql := "INSERT INTO app." + tab + " VALUES (" + r[0] + ", " + pgside.QuoteLiteral(r[1])
				if tab == "k" {
					sql += ", " + pgside.QuoteLiteral(r[2])
				}
				m.exec(m.o.Shards[0], sql+")")
			}
			m.exec(dsn, "TRUNCATE app."+tab)
		}
	}
	m.check()
	m.must("UPDATE app.k SET v = 'w' WHERE id % 2 = 0", "DELETE FROM app.k WHERE id % 3 = 0", "UPDATE app.k SET id = id + 100 WHERE id % 5 = 0",
		"DELETE FROM app.n WHERE ctid IN (SELECT ctid FROM app.n WHERE id < 5 LIMIT 17)", "UPDATE app.n SET v = 'w' WHERE id = 7")
}

// TRUNCATE of several tables, with rows before and behind it in the same
// transaction, from several segments.
func TestMirrorTruncate(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		sources: 2, shards: 2, ddl: `
		CREATE SCHEMA app;
		CREATE TABLE app.a (id int PRIMARY KEY, s serial, v text);
		CREATE TABLE app.b (id int PRIMARY KEY, a int REFERENCES app.a, v text);
		CREATE TABLE app.c (id int PRIMARY KEY, v text);`,
		policies: map[string]string{"app.a": "hash id", "app.b": "hash a", "app.c": "replicated"},
	})
	m.together = true
	both := func(sql string) {
		for i, dsn := range m.src {
			m.exec(dsn, replaceTable(sql, "@"+string(rune('0'+i))))
		}
	}
	both("INSERT INTO app.a SELECT i, i, 'v' FROM generate_series(1, 40) i WHERE i % 2 = SEG; INSERT INTO app.b SELECT i, i, 'v' FROM generate_series(1, 40) i WHERE i % 2 = SEG; INSERT INTO app.c SELECT i, 'v' FROM generate_series(1, 40) i WHERE i % 2 = SEG")
	m.must()
	for _, dsn := range m.o.Shards {
		m.exec(dsn, "SELECT setval('app.a_s_seq', 100)")
	}
	both(`BEGIN;
		INSERT INTO app.a SELECT i, i, 'before' FROM generate_series(101, 110) i WHERE i % 2 = SEG;
		DELETE FROM app.b WHERE id < 10;
		UPDATE app.c SET v = 'kept' WHERE id < 10;
		TRUNCATE app.a, app.b RESTART IDENTITY CASCADE;
		INSERT INTO app.a SELECT i, i, 'between' FROM generate_series(1, 10) i WHERE i % 2 = SEG;
		INSERT INTO app.b SELECT i, i, 'between' FROM generate_series(1, 10) i WHERE i % 2 = SEG;
		TRUNCATE app.b;
		INSERT INTO app.b SELECT i, i, 'after' FROM generate_series(3, 8) i WHERE i % 2 = SEG;
		UPDATE app.a SET v = 'after' WHERE id > 5;
		COMMIT`)
	m.must()
	for _, dsn := range m.o.Shards {
		if got := m.query(dsn, "SELECT last_value, is_called FROM app.a_s_seq"); got[0] != `"1"|"f"` {
			t.Errorf("RESTART IDENTITY left the sequence at %s", got[0])
		}
	}
	// CASCADE alone names what it reached.
	both("TRUNCATE app.a CASCADE")
	m.must()

	// The target does not cascade into a table that the source did not empty.
	m.exec(m.o.Shards[0], "CREATE TABLE app.mine (id int REFERENCES app.c); INSERT INTO app.mine SELECT id FROM app.c LIMIT 1")
	both("TRUNCATE app.c")
	_, err := m.apply()
	dtxtest.WantError(t, err, dtx.ClassStop, "truncate tables", "app.c", "cannot truncate a table referenced in a foreign key constraint (SQLSTATE 0A000)", "gxid")
}

// A part that lacks a TRUNCATE of its dtx is an error.
func TestMirrorTruncateDisagrees(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		sources: 2, shards: 2, ddl: `CREATE SCHEMA app; CREATE TABLE app.a (id int PRIMARY KEY); CREATE TABLE app.b (id int PRIMARY KEY)`,
		policies: map[string]string{"app.a": "hash id", "app.b": "hash id"},
	})
	m.together = true
	m.exec(m.src[0], "BEGIN; INSERT INTO app.a VALUES (1); TRUNCATE app.a; COMMIT")
	m.exec(m.src[1], "INSERT INTO app.a VALUES (2)")
	_, err := m.apply()
	dtxtest.WantError(t, err, dtx.ClassStop, "ends before TRUNCATE number 1", "content 1", "content 0")

	m2 := mustMirror(t, mirrorConfig{
		sources: 2, shards: 1, ddl: `CREATE SCHEMA app; CREATE TABLE app.a (id int PRIMARY KEY); CREATE TABLE app.b (id int PRIMARY KEY)`,
		policies: map[string]string{"app.a": "hash id", "app.b": "hash id"},
	})
	m2.together = true
	m2.exec(m2.src[0], "TRUNCATE app.a")
	m2.exec(m2.src[1], "TRUNCATE app.b")
	_, err = m2.apply()
	dtxtest.WantError(t, err, dtx.ClassStop, "names other tables")
}
