package shards

import (
	"testing"
)

// mustMirror sets up a mirror that opens.
func mustMirror(t testing.TB, c mirrorConfig) *mirror {
	t.Helper()
	m, err := newMirror(t, c)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return m
}

const big = "repeat(md5(random()::text), 400)" // stays out of line: random hex does not compress below 2 kB

// The basic kinds of table and change.
func TestMirrorBasics(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 3, ddl: `
		CREATE SCHEMA app;
		CREATE TABLE app.h (id int PRIMARY KEY, v text, n numeric);
		CREATE TABLE app.r (id int PRIMARY KEY, v text);
		CREATE TABLE app.x (id int, v text); ALTER TABLE app.x REPLICA IDENTITY FULL;
		CREATE TABLE app.ins (id int, v text);`,
		policies: map[string]string{"app.h": "hash id", "app.r": "replicated", "app.x": "random", "app.ins": "random"},
	})
	m.must("INSERT INTO app.h SELECT i, 'v' || i, i / 7.0 FROM generate_series(1, 500) i",
		"INSERT INTO app.r SELECT i, 'v' || i FROM generate_series(1, 50) i",
		"INSERT INTO app.x SELECT i % 10, nullif(i % 3, 0) FROM generate_series(1, 100) i",
		"INSERT INTO app.ins SELECT i, 'v' FROM generate_series(1, 50) i")
	m.must("UPDATE app.h SET v = v || 'x' WHERE id % 3 = 0", "DELETE FROM app.h WHERE id % 5 = 0",
		"UPDATE app.h SET id = id + 10000 WHERE id % 7 = 0",
		"UPDATE app.r SET v = 'new' WHERE id % 2 = 0", "DELETE FROM app.r WHERE id % 3 = 0",
		"DELETE FROM app.x WHERE ctid IN (SELECT ctid FROM app.x WHERE id < 5 LIMIT 13)", "UPDATE app.x SET v = 'u' WHERE id = 7")
	m.must("TRUNCATE app.h", "BEGIN; INSERT INTO app.h VALUES (1, 'a'), (2, 'b'); TRUNCATE app.r; INSERT INTO app.r VALUES (9, 'z'); COMMIT")
}
