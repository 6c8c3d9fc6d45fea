package shards

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
)

const conflictDDL = `CREATE SCHEMA app;
	CREATE TABLE app.t (id int PRIMARY KEY, u int UNIQUE, v text);
	CREATE TABLE app.d (id int PRIMARY KEY, d int, v text);
	CREATE TABLE app.x (id int, v text); ALTER TABLE app.x REPLICA IDENTITY FULL;
	CREATE TABLE app.r (id int PRIMARY KEY, v text);
	CREATE TABLE app.def (id int PRIMARY KEY, u int UNIQUE DEFERRABLE INITIALLY DEFERRED);`

var conflictPolicies = map[string]string{"app.def": "hash id", "app.t": "hash id", "app.d": "hash d", "app.x": "hash id", "app.r": "replicated"}

// Source and target differ: the subscription stops, says where, and applies
// nothing of the batch.
func TestMirrorDiverged(t *testing.T) {
	m := mustMirror(t, mirrorConfig{shards: 2, ddl: conflictDDL, policies: conflictPolicies})
	for _, c := range []struct {
		name, meddle, change string
		want                 []string
	}{
		{"update of a missing row", "DELETE FROM app.t WHERE id = 5", "UPDATE app.t SET v = 'canary' WHERE id IN (4, 5)", []string{"app.t", "to update is not there", "identity (id)", "e4da3b7fbbce2345d7772b0674a318d5"}},
		{"delete of a missing row", "DELETE FROM app.t WHERE id = 5", "DELETE FROM app.t WHERE id IN (4, 5)", []string{"app.t", "to delete is not there", "e4da3b7fbbce2345d7772b0674a318d5"}},
		{"insert of a row that is there", "INSERT INTO app.t VALUES (100, 100, 'canary')", "INSERT INTO app.t VALUES (99, 99, 'v'), (100, 101, 'canary')", []string{"app.t", "to insert is there already", "identity (id)", "f899139df5e1059396431415e770c6dd", "t_pkey"}},
		{"insert of another row's unique value", "INSERT INTO app.t VALUES (555, 100, 'canary')", "INSERT INTO app.t VALUES (100, 100, 'canary')", []string{"app.t", "there already", "t_u_key"}},
		{"a moved row is missing", "DELETE FROM app.d WHERE id = 5", "UPDATE app.d SET d = d + 1, v = 'canary' WHERE id = 5", []string{"app.d", "to update is not there"}},
		{"a changed key is missing", "DELETE FROM app.t WHERE id = 5", "UPDATE app.t SET id = 1000 WHERE id = 5", []string{"app.t", "is not there"}},
		{"an unlocated row is missing", "DELETE FROM app.d WHERE id = 5", "DELETE FROM app.d WHERE id = 5", []string{"app.d", "to delete is not there"}},
		{"an image is missing", "DELETE FROM app.x WHERE ctid = (SELECT min(ctid) FROM app.x WHERE id = 5)", "DELETE FROM app.x WHERE id = 5", []string{"app.x", "to delete is not there", "whole row"}},
		{"one copy lacks a row", "DELETE FROM app.r WHERE id = 5 AND current_database() LIKE '%1'", "UPDATE app.r SET v = 'canary'", []string{"app.r", "is not there"}},
		{"a duplicate under a deferrable constraint", "INSERT INTO app.def VALUES (100, 7)", "INSERT INTO app.def VALUES (99, 8), (101, 7)", []string{"app.def", "there already", "38b3eff8baf56627478ec76a704e9b52"}},
		{"nothing to set", "DELETE FROM app.t WHERE id = 5", "UPDATE app.t SET id = id WHERE id = 5", []string{"app.t", "is not there"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.recreate(conflictDDL)
			m.must("INSERT INTO app.t SELECT i, i, 'v' FROM generate_series(1, 10) i", "INSERT INTO app.d SELECT i, i, 'v' FROM generate_series(1, 10) i",
				"INSERT INTO app.x SELECT i % 8, 'v' FROM generate_series(1, 40) i", "INSERT INTO app.r SELECT i, 'v' FROM generate_series(1, 10) i")
			meddle := c.meddle
			for i, dsn := range m.o.Shards {
				if c.name == "one copy lacks a row" && i != 1 {
					continue
				}
				m.exec(dsn, strings.ReplaceAll(meddle, "AND current_database() LIKE '%1'", ""))
			}
			before := m.targetText()
			m.exec(m.src[0], c.change)
			_, err := m.apply()
			dtxtest.WantError(t, err, dtx.ClassStop, append(c.want, fmt.Sprintf("gxid %d", m.gxid), "content 0", "LSN 0/")...)
			if !errors.Is(err, apply.ErrDiverged) {
				t.Errorf("not ErrDiverged: %v", err)
			}
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("the error holds a row's value: %v", err)
			}
			m.seq--
			openUntil(t, m.tg)
			if after := m.targetText(); after != before {
				t.Errorf("something of the failed batch was applied:\nbefore %s\nafter  %s", before, after)
			}
		})
	}
}

func (m *mirror) targetText() string {
	var b strings.Builder
	for _, dsn := range m.o.Shards {
		for _, tab := range []string{"t", "d", "x", "r"} {
			b.WriteString(strings.Join(m.query(dsn, "SELECT x::text FROM app."+tab+" x ORDER BY 1"), " ") + "\n")
		}
	}
	return b.String()
}

// on_conflict: log counts and goes on, with everything else applied.
func TestMirrorConflictLog(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 2, ddl: conflictDDL + `
		CREATE TABLE app.defpk (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text); ALTER TABLE app.defpk REPLICA IDENTITY FULL;`,
		policies: map[string]string{"app.t": "hash id", "app.d": "hash d", "app.x": "hash id", "app.r": "replicated", "app.def": "hash id", "app.defpk": "hash id"},
		engine:   apply.Options{OnConflict: apply.ConflictLog},
	})
	m.must("INSERT INTO app.t SELECT i, i, 'v' FROM generate_series(1, 20) i", "INSERT INTO app.d SELECT i, i, 'v' FROM generate_series(1, 20) i",
		"INSERT INTO app.x SELECT i % 8, 'v' FROM generate_series(1, 40) i", "INSERT INTO app.r SELECT i, 'v' FROM generate_series(1, 20) i",
		"INSERT INTO app.def SELECT i, i FROM generate_series(1, 20) i", "INSERT INTO app.defpk SELECT i, 'v' FROM generate_series(1, 20) i")
	for _, dsn := range m.o.Shards {
		m.exec(dsn, `DELETE FROM app.t WHERE id IN (5, 6, 7); INSERT INTO app.t SELECT id, id, 'theirs' FROM generate_series(101, 104) id;
			DELETE FROM app.d WHERE id IN (5, 6, 7); DELETE FROM app.r WHERE id = 5; INSERT INTO app.r VALUES (100, 'theirs');
			DELETE FROM app.x WHERE ctid IN (SELECT ctid FROM app.x WHERE id = 5 LIMIT 2);
			INSERT INTO app.def VALUES (30, 300), (310, 31), (3333, 1000); INSERT INTO app.defpk VALUES (30, 'theirs')`)
	}
	m.exec(m.src[0], `
		UPDATE app.t SET v = 'w' WHERE id IN (4, 5);   -- one missing
		DELETE FROM app.t WHERE id IN (6, 8);          -- one missing
		UPDATE app.t SET id = 1000 WHERE id = 7;       -- missing: not inserted
		INSERT INTO app.t SELECT i, i, 'v' FROM generate_series(100, 106) i; -- four are there
		UPDATE app.d SET v = 'w' WHERE id IN (4, 5); UPDATE app.d SET d = d + 1 WHERE id IN (6, 9); DELETE FROM app.d WHERE id IN (7, 8);
		UPDATE app.r SET v = 'w' WHERE id IN (4, 5); INSERT INTO app.r VALUES (100, 'v'), (101, 'v');
		DELETE FROM app.x WHERE id = 5;
		INSERT INTO app.def SELECT i, i FROM generate_series(30, 34) i; INSERT INTO app.defpk VALUES (30, 'v'), (31, 'v');
		UPDATE app.def SET u = 1000 WHERE id = 3`)
	res, err := m.apply()
	if err != nil {
		t.Fatal(err)
	}
	// t: 5, 6, 7 and, per shard that has them, the four duplicates: each of the
	// two shards was given all four, and each insert goes to one.
	want := map[string]int64{"app.t": 3 + 4, "app.d": 3, "app.r": 2, "app.x": 2, "app.def": 3, "app.defpk": 1}
	for tab, n := range want {
		if res.Conflicts[tab] != n {
			t.Errorf("%s: %d conflicts, want %d", tab, res.Conflicts[tab], n)
		}
	}
	var got []string
	for _, dsn := range m.o.Shards {
		got = append(got, m.query(dsn, "SELECT id::text, v FROM app.t WHERE v <> 'theirs' AND (id < 10 OR id > 90) ORDER BY id")...)
	}
	if s := strings.Join(sortRows(got), " "); s != `"1"|"v" "100"|"v" "105"|"v" "106"|"v" "2"|"v" "3"|"v" "4"|"w" "9"|"v"` {
		t.Errorf("rows of app.t: %s", s)
	}
}

// Data that the target refuses stops the subscription, with the place and
// without the value.
func TestMirrorRefused(t *testing.T) {
	m := mustMirror(t, mirrorConfig{shards: 1, ddl: conflictDDL, policies: conflictPolicies})
	for _, c := range []struct {
		name, target, change string
		want                 []string
	}{
		{"a check on insert", "ALTER TABLE app.t ADD CHECK (v <> 'canary')", "INSERT INTO app.t VALUES (11, 11, 'ok'); INSERT INTO app.t VALUES (12, 12, 'canary')", []string{"t_v_check"}},
		{"a check on update", "ALTER TABLE app.t ADD CHECK (v <> 'canary')", "UPDATE app.t SET v = 'ok' WHERE id = 3; UPDATE app.t SET v = 'canary' WHERE id = 3", []string{"t_v_check", "app.t"}},
		{"not null", "ALTER TABLE app.t ALTER v SET NOT NULL", "INSERT INTO app.t VALUES (11, 11, NULL)", []string{"column", "v", "23502"}},
		{"a value of the wrong type", "ALTER TABLE app.t ALTER v TYPE int USING 1", "INSERT INTO app.t VALUES (11, 11, 'canary')", []string{"22P02"}},
		{"a value that is too long", "ALTER TABLE app.t ALTER v TYPE varchar(3)", "UPDATE app.t SET v = 'canary' WHERE id = 3", []string{"22001"}},
		{"the table is gone", "DROP TABLE app.t", "UPDATE app.t SET v = 'canary' WHERE id = 3", []string{"42P01"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.recreate(conflictDDL)
			m.must("INSERT INTO app.t SELECT i, i, 'v' FROM generate_series(1, 10) i")
			m.exec(m.o.Shards[0], c.target)
			for _, s := range strings.Split(c.change, ";") {
				m.exec(m.src[0], s)
			}
			_, err := m.apply()
			if c.name == "a check on insert" {
				// The second transaction of the batch, not the first.
				c.want = []string{"t_v_check", fmt.Sprintf("gxid %d", m.gxid)}
			}
			dtxtest.WantError(t, err, dtx.ClassStop, append(c.want, "app.t")...)
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("the error holds a row's value: %v", err)
			}
			m.seq--
		})
	}
}

// recreate starts over with empty tables on both sides.
func (m *mirror) recreate(ddl string) {
	m.t.Helper()
	for _, dsn := range append(slices.Clone(m.src), m.o.Shards...) {
		m.exec(dsn, "DROP SCHEMA app CASCADE; "+ddl)
	}
	for i := range m.src {
		m.decode(i)
	}
	if err := m.open(); err != nil {
		m.t.Fatal(err)
	}
}
