package shards

import (
	"testing"

	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
	"cbrepl/lab"
	"cbrepl/pgoutput"
)

// Unchanged TOAST values are never lost and never written as NULL.
func TestMirrorToast(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 3, ddl: `
		CREATE SCHEMA app;
		CREATE TABLE app.d (id int PRIMARY KEY, a text, b text, d int, n int);
		ALTER TABLE app.d ALTER a SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL;
		CREATE TABLE app.f (LIKE app.d INCLUDING ALL); ALTER TABLE app.f REPLICA IDENTITY FULL;
		CREATE TABLE app.nokey (LIKE app.d INCLUDING STORAGE); ALTER TABLE app.nokey REPLICA IDENTITY FULL;
		CREATE TABLE app.dist (LIKE app.d INCLUDING ALL);
		CREATE TABLE app.only (id int PRIMARY KEY, a text); ALTER TABLE app.only ALTER a SET STORAGE EXTERNAL;
		CREATE TABLE app.key (id int, k text, v text, PRIMARY KEY (id, k)); ALTER TABLE app.key ALTER k SET STORAGE EXTERNAL;`,
		policies: map[string]string{"app.d": "hash id", "app.f": "hash id", "app.nokey": "hash d", "app.dist": "hash d,a", "app.only": "hash id", "app.key": "hash id"},
	})
	all := []string{"d", "f", "nokey", "dist"}
	each := func(sql string) []string {
		var out []string
		for _, tab := range all {
			out = append(out, "BEGIN; SELECT set_config('search_path', 'app, pg_catalog', true); CREATE TEMP VIEW t AS SELECT * FROM app."+tab+"; "+sql+"; DROP VIEW t; COMMIT")
		}
		return out
	}
	m.must(append(each("INSERT INTO t SELECT i, "+big+", "+big+", i % 5, 0 FROM generate_series(1, 30) i"),
		"INSERT INTO app.only SELECT i, "+big+" FROM generate_series(1, 10) i",
		"INSERT INTO app.key SELECT i, "+bigKey+", 'v' FROM generate_series(1, 10) i")...)
	m.must(append(append(append(append(append(append(
		// In one batch: insert, then an update that leaves the large values.
		each("INSERT INTO t VALUES (100, "+big+", "+big+", 1, 0); UPDATE t SET n = 1 WHERE id = 100"),
		// Two partial updates, each leaving another column unchanged.
		each("UPDATE t SET a = "+big+" WHERE id = 1; UPDATE t SET b = "+big+" WHERE id = 1")...),
		// With a key change, and one after the other.
		each("UPDATE t SET id = 300 WHERE id = 3; UPDATE t SET n = 7 WHERE id = 300; UPDATE t SET b = "+big+" WHERE id = 300; UPDATE t SET id = 301 WHERE id = 300")...),
		// Moved between shards by the distribution key, and by the identity.
		each("UPDATE t SET d = d + 1 WHERE id BETWEEN 10 AND 20")...),
		each("UPDATE t SET id = id + 1000 WHERE id BETWEEN 10 AND 15")...),
		// A large value set to NULL, and back.
		each("UPDATE t SET a = NULL WHERE id = 25; UPDATE t SET b = NULL WHERE id = 25; UPDATE t SET a = "+big+" WHERE id = 25")...),
		"UPDATE app.only SET a = a WHERE id = 1", // every column unchanged
		"UPDATE app.key SET v = 'w' WHERE id = 1",
		"UPDATE app.key SET id = 50 WHERE id = 2",
		"UPDATE app.key SET k = 'short' WHERE id = 3",
		"DELETE FROM app.key WHERE id = 4")...)
	if m.unchanged < 100 {
		t.Errorf("%d unchanged values were sent: the test does not test", m.unchanged)
	}
}

// bigKey makes text that stays out of line and fits an index entry compressed:
// storage EXTERNAL keeps it uncompressed in the table.
const bigKey = "repeat(md5(i::text), 80)"

// A key column without its value stops the subscription and is named.
func TestMirrorToastInKey(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 1, ddl: `CREATE SCHEMA app; CREATE TABLE app.key (id int, k text, v text, PRIMARY KEY (id, k))`,
		policies: map[string]string{"app.key": "hash id"},
	})
	m.must("INSERT INTO app.key VALUES (1, 'k', 'v')")
	// Servers before 14.2 send neither the old key nor the value.
	rel := &pgoutput.Relation{ID: 1, Schema: "app", Name: "key", Identity: 'd', Columns: []pgoutput.Column{
		{Key: true, Name: "id", TypeOID: 23}, {Key: true, Name: "k", TypeOID: 25}, {Name: "v", TypeOID: 25},
	}}
	row, err := pgoutput.ParseRow('U', []byte("\x00\x00\x00\x01N\x00\x03t\x00\x00\x00\x011ut\x00\x00\x00\x01w"))
	if err != nil {
		t.Fatal(err)
	}
	m.seq++
	b := &dtx.Batch{Seq: m.seq, Steps: []dtx.Step{{Parts: []dtx.Part{{GXID: 77, Content: 0, EndLSN: 0x55, Spool: 1}}}}}
	_, err = m.tg.Apply(t.Context(), b, memRows{1: {{Row: row, Relation: rel}}})
	dtxtest.WantError(t, err, dtx.ClassStop, "app.key", "column k", "gxid 77", "0/55", "TOAST")
}

// A row filter can turn an update into an insert that lacks a large value.
func TestMirrorFilterToast(t *testing.T) {
	lab.Need(t, shared.Server(t).DSN(), lab.RowFilters)
	m := mustMirror(t, mirrorConfig{
		shards: 2, ddl: `CREATE SCHEMA app;
		CREATE TABLE app.t (id int PRIMARY KEY, v text, b text); ALTER TABLE app.t ALTER b SET STORAGE EXTERNAL`,
		publication: "FOR TABLE app.t WHERE (id > 10)",
		policies:    map[string]string{"app.t": "hash id"},
	})
	for _, s := range []string{
		"INSERT INTO app.t SELECT i, 'v', 'b' FROM generate_series(1, 20) i", "UPDATE app.t SET id = id + 100 WHERE id < 5",
		"UPDATE app.t SET id = id - 50 WHERE id BETWEEN 15 AND 17", "DELETE FROM app.t WHERE id IN (7, 18)",
	} {
		m.exec(m.src[0], s)
	}
	if _, err := m.apply(); err != nil {
		t.Fatal(err)
	}
	m.compare(m.tables["app.t"], nameOf("app", "t"), m.query(m.src[0], "SELECT id::text, v, b FROM app.t WHERE id > 10 ORDER BY id::text"), "id::text, v, b")
	m.exec(m.src[0], "INSERT INTO app.t VALUES (1, 'v', "+big+")")
	m.exec(m.src[0], "UPDATE app.t SET id = 1000 WHERE id = 1")
	_, err := m.apply()
	dtxtest.WantError(t, err, dtx.ClassStop, "app.t", "column b", "row filter", "REPLICA IDENTITY FULL")
}
