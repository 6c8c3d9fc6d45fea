package shards

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
)

// Target tables that do not look like their source.
func TestMirrorShapes(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 2, ddl: `
		CREATE SCHEMA app; CREATE SCHEMA "Sch-Ema ü";
		CREATE TABLE app.dropped (gone1 int, id int PRIMARY KEY, gone2 text, v text, gone3 int, n int);
		ALTER TABLE app.dropped DROP gone1, DROP gone2, DROP gone3;
		CREATE TABLE app.gen (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED);
		CREATE TABLE app.genfull (id int, a int, twice int GENERATED ALWAYS AS (a * 2) STORED); ALTER TABLE app.genfull REPLICA IDENTITY FULL;
		CREATE TABLE app.ident (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, other int, v text);
		CREATE TABLE app.ident2 (id int PRIMARY KEY, g int GENERATED ALWAYS AS IDENTITY, v text);
		CREATE TABLE app.list (id int PRIMARY KEY, secret text, v text);
		CREATE TABLE "Sch-Ema ü"."Ta""ble.x" ("Id " int, "select" text, "ä" text, PRIMARY KEY ("Id "));
		CREATE TABLE app.parent (id int PRIMARY KEY, v text); CREATE TABLE app.child (extra text, PRIMARY KEY (id)) INHERITS (app.parent);
		CREATE TABLE app.none (id int PRIMARY KEY);`,
		targetDDL: `
		CREATE SCHEMA app; CREATE SCHEMA "Sch-Ema ü";
		CREATE TABLE app.dropped (n int, gone int, v text, id int, added text DEFAULT 'added' NOT NULL, at timestamptz DEFAULT now(), PRIMARY KEY (id));
		ALTER TABLE app.dropped DROP gone;
		CREATE TABLE app.gen (twice int GENERATED ALWAYS AS (a * 2) STORED, id int PRIMARY KEY, a int, thrice int GENERATED ALWAYS AS (a * 3) STORED);
		CREATE TABLE app.genfull (id int, a int, twice int GENERATED ALWAYS AS (a * 2) STORED);
		CREATE TABLE app.ident (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, other int, v text, own int GENERATED ALWAYS AS IDENTITY);
		CREATE TABLE app.ident2 (id int PRIMARY KEY, g int GENERATED ALWAYS AS IDENTITY, v text);
		CREATE TABLE app.list (id int PRIMARY KEY, secret text DEFAULT 'not sent', v text);
		CREATE TABLE "Sch-Ema ü"."Ta""ble.x" ("Id " int, "select" text, "ä" text, PRIMARY KEY ("Id "));
		CREATE TABLE app.parent (id int PRIMARY KEY, v text); CREATE TABLE app.child (extra text, PRIMARY KEY (id)) INHERITS (app.parent);
		CREATE TABLE app.none (id int PRIMARY KEY);`,
		publication: `FOR TABLE ONLY app.parent, app.child, app.dropped, app.gen, app.genfull, app.ident, app.ident2, app.list (id, v), "Sch-Ema ü"."Ta""ble.x", app.none`,
		policies: map[string]string{
			"app.dropped": "hash id", "app.gen": "hash a", "app.genfull": "hash id", "app.ident": "hash id", "app.ident2": "hash id",
			"app.list": "hash id", `Sch-Ema ü.Ta"ble.x`: "hash Id ", "app.parent": "hash id", "app.child": "hash id", "app.none": "random",
		},
	})
	m.must(`INSERT INTO app.dropped SELECT i, 'v', i FROM generate_series(1, 50) i`, `INSERT INTO app.gen SELECT i, i FROM generate_series(1, 50) i`,
		`INSERT INTO app.genfull SELECT i % 5, i FROM generate_series(1, 50) i`,
		`INSERT INTO app.ident (other, v) SELECT i, 'v' FROM generate_series(1, 50) i`, `INSERT INTO app.ident2 (id, v) SELECT i, 'v' FROM generate_series(1, 50) i`,
		`INSERT INTO app.list SELECT i, 'canary', 'v' FROM generate_series(1, 50) i`,
		`INSERT INTO "Sch-Ema ü"."Ta""ble.x" SELECT i, 's', 'ä' FROM generate_series(1, 50) i`,
		`INSERT INTO app.parent SELECT i, 'p' FROM generate_series(1, 20) i`, `INSERT INTO app.child SELECT i, 'c', 'e' FROM generate_series(1, 20) i`,
		`INSERT INTO app.none SELECT generate_series(1, 20)`)
	for _, dsn := range m.o.Shards {
		m.exec(dsn, "UPDATE app.dropped SET added = 'kept'; UPDATE app.list SET secret = 'mine'")
	}
	m.must(`UPDATE app.dropped SET v = 'w' WHERE id % 2 = 0`, `UPDATE app.dropped SET id = id + 1000 WHERE id % 5 = 0`, `DELETE FROM app.dropped WHERE id % 7 = 0`,
		`UPDATE app.gen SET a = a + 1 WHERE id % 2 = 0`, `UPDATE app.gen SET id = id + 1000 WHERE id % 5 = 0`, `DELETE FROM app.gen WHERE id % 7 = 0`,
		`UPDATE app.genfull SET a = a + 100 WHERE id = 2`, `DELETE FROM app.genfull WHERE id = 3`,
		`UPDATE app.ident SET v = 'w', other = 7 WHERE id % 2 = 0`, `UPDATE app.ident SET id = DEFAULT WHERE id % 5 = 0`, `DELETE FROM app.ident WHERE id % 7 = 0`,
		`UPDATE app.ident2 SET v = 'w' WHERE id % 2 = 0`, `UPDATE app.ident2 SET g = DEFAULT WHERE id % 5 = 0`, `DELETE FROM app.ident2 WHERE id % 7 = 0`,
		`UPDATE app.list SET v = 'w', secret = 'canary2' WHERE id % 2 = 0`, `UPDATE app.list SET id = id + 1000 WHERE id % 5 = 0`,
		`UPDATE "Sch-Ema ü"."Ta""ble.x" SET "select" = 'x' WHERE "Id " % 2 = 0`, `UPDATE "Sch-Ema ü"."Ta""ble.x" SET "Id " = "Id " + 1000 WHERE "Id " % 5 = 0`,
		`DELETE FROM ONLY app.parent WHERE id < 5`, `UPDATE ONLY app.parent SET v = 'only' WHERE id > 15`, `UPDATE app.child SET v = 'child' WHERE id < 10`,
		`TRUNCATE ONLY app.parent`, `DELETE FROM app.none WHERE id < 5`, `UPDATE app.none SET id = id + 100 WHERE id > 15`)
	for _, dsn := range m.o.Shards {
		for _, q := range []string{
			"SELECT count(*) FROM app.dropped WHERE added <> 'kept'",
			"SELECT count(*) FROM app.list WHERE secret <> 'mine'",
			"SELECT count(*) FROM app.gen WHERE twice IS DISTINCT FROM a * 2 OR thrice IS DISTINCT FROM a * 3",
			"SELECT count(*) FROM app.genfull WHERE twice IS DISTINCT FROM a * 2",
		} {
			if got := m.query(dsn, q); got[0] != `"0"` {
				t.Errorf("%s: %s", q, got[0])
			}
		}
	}
	m.must(`TRUNCATE app.parent`, `INSERT INTO app.parent VALUES (1, 'again')`)
}

// 1,600 columns, some of them large and unchanged.
func TestMirrorWide(t *testing.T) {
	var cols, vals []string
	for i := range 1599 {
		cols = append(cols, fmt.Sprintf("c%d int", i))
		vals = append(vals, fmt.Sprint(i))
	}
	m := mustMirror(t, mirrorConfig{
		shards: 2, ddl: `CREATE SCHEMA app; CREATE TABLE app.wide (id int PRIMARY KEY, ` + strings.Join(cols, ", ") + `)`,
		policies: map[string]string{"app.wide": "hash id"},
	})
	m.must("INSERT INTO app.wide SELECT i, " + strings.Join(vals, ", ") + " FROM generate_series(1, 20) i")
	m.must("UPDATE app.wide SET c5 = c5 + 1, c1598 = NULL WHERE id % 2 = 0", "UPDATE app.wide SET id = id + 100 WHERE id % 3 = 0", "DELETE FROM app.wide WHERE id % 5 = 0")
}

const partitioned = `CREATE SCHEMA app;
	CREATE TABLE app.p (id int, day date, v text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
	CREATE TABLE app.p1 PARTITION OF app.p FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
	CREATE TABLE app.p2 (v text, gone int, day date NOT NULL, id int NOT NULL); ALTER TABLE app.p2 DROP gone;
	ALTER TABLE app.p ATTACH PARTITION app.p2 FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');`

// A partitioned table published by its root, and by its leaves, to a target with
// other partitions, other column orders, or none.
func TestMirrorPartitions(t *testing.T) {
	history := [][]string{
		{`INSERT INTO app.p SELECT i, date '2024-01-01' + i % 59, 'v' FROM generate_series(1, 100) i`},
		{
			`UPDATE app.p SET v = 'w' WHERE id % 2 = 0`, `UPDATE app.p SET day = '2024-02-10' WHERE id % 5 = 0`, `DELETE FROM app.p WHERE id % 7 = 0`,
			`UPDATE app.p SET id = id + 1000 WHERE id % 3 = 0`,
		},
		{`TRUNCATE app.p`, `INSERT INTO app.p VALUES (1, '2024-01-05', 'a'), (2, '2024-02-05', 'b')`},
	}
	other := `CREATE SCHEMA app;
		CREATE TABLE app.p (v text, day date, id int, PRIMARY KEY (id, day)) PARTITION BY HASH (id);
		CREATE TABLE app.x0 (id int NOT NULL, day date NOT NULL, v text); ALTER TABLE app.p ATTACH PARTITION app.x0 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
		CREATE TABLE app.x1 PARTITION OF app.p FOR VALUES WITH (MODULUS 2, REMAINDER 1);`
	plain := `CREATE SCHEMA app; CREATE TABLE app.p (id int, v text, day date, PRIMARY KEY (id, day))`
	leaves := `CREATE SCHEMA app; CREATE TABLE app.p1 (id int, day date, v text, PRIMARY KEY (id, day)); CREATE TABLE app.p2 (id int, day date, v text, PRIMARY KEY (id, day))`
	for _, c := range []struct {
		name, publication, target string
		policies                  map[string]string
		byRoot                    bool
	}{
		{"root to the same", "FOR TABLE app.p WITH (publish_via_partition_root)", partitioned, map[string]string{"app.p": "hash id"}, true},
		{"root to other partitions", "FOR TABLE app.p WITH (publish_via_partition_root)", other, map[string]string{"app.p": "hash day"}, true},
		{"root to a plain table", "FOR TABLE app.p WITH (publish_via_partition_root)", plain, map[string]string{"app.p": "hash day,id"}, true},
		{"leaves to leaves", "FOR TABLE app.p", partitioned, map[string]string{"app.p1": "hash id", "app.p2": "hash id"}, false},
		{"leaves to plain tables", "FOR TABLE app.p", leaves, map[string]string{"app.p1": "hash id", "app.p2": "random"}, false},
		{"leaves to a root with other partitions", "FOR TABLE app.p", other, map[string]string{"app.p": "hash id"}, true},
		{"leaves to a plain table", "FOR TABLE app.p", plain, map[string]string{"app.p": "replicated"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := mustMirror(t, mirrorConfig{shards: 2, ddl: partitioned, publication: c.publication, targetDDL: c.target, policies: c.policies})
			for _, batch := range history {
				for _, s := range batch {
					m.exec(m.src[0], s)
				}
				if _, err := m.apply(); err != nil {
					t.Fatal(err)
				}
				if !c.byRoot {
					m.check()
					continue
				}
				st := *renamed(m.o.Tables[0], "app", "p")
				m.compare(&st, nameOf("app", "p"), m.query(m.src[0], "SELECT id::text, day::text, v FROM app.p ORDER BY 1, 2"), "id::text, day::text, v")
			}
			if c.name == "leaves to a plain table" {
				m.exec(m.src[0], "TRUNCATE app.p1")
				_, err := m.apply()
				dtxtest.WantError(t, err, dtx.ClassStop, "app.p1", "app.p2", "same target table")
			}
		})
	}
}

// A leaf that maps to nothing is refused at start, by name.
func TestMirrorLeafWithoutTable(t *testing.T) {
	_, err := newMirror(t, mirrorConfig{
		shards: 1, ddl: partitioned,
		targetDDL: `CREATE SCHEMA app; CREATE TABLE app.p1 (id int, day date, v text, PRIMARY KEY (id, day))`,
		policies:  map[string]string{"app.p1": "hash id"},
	})
	dtxtest.WantError(t, err, dtx.ClassStop, "app.p2", "app.p", "no table")
}

// A table that appears on the source later stops the subscription.
func TestMirrorUnknownTable(t *testing.T) {
	m := mustMirror(t, mirrorConfig{shards: 1, ddl: `CREATE SCHEMA app; CREATE TABLE app.a (id int PRIMARY KEY)`, policies: map[string]string{"app.a": "hash id"}})
	m.exec(m.src[0], "CREATE TABLE app.b (id int PRIMARY KEY); INSERT INTO app.a VALUES (1); INSERT INTO app.b VALUES (1)")
	_, err := m.apply()
	dtxtest.WantError(t, err, dtx.ClassStop, "app.b", "gxid", "content 0")
	// So does a column that the target lacks.
	m = mustMirror(t, mirrorConfig{shards: 1, ddl: `CREATE SCHEMA app; CREATE TABLE app.a (id int PRIMARY KEY)`, policies: map[string]string{"app.a": "hash id"}})
	m.exec(m.src[0], "ALTER TABLE app.a ADD v text; INSERT INTO app.a VALUES (1, 'x')")
	dtxtest.WantError(t, m.applyAgain(), dtx.ClassStop, "app.a", `column "v" is missing`)
}

// Schemas and tables are renamed by rules.
func TestMirrorNames(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 2, ddl: `CREATE SCHEMA app; CREATE SCHEMA two; CREATE TABLE app.a (id int PRIMARY KEY, v text);
			CREATE TABLE app.b (id int PRIMARY KEY, v text); CREATE TABLE two.a (id int PRIMARY KEY, v text)`,
		targetDDL: `CREATE SCHEMA "New"; CREATE SCHEMA two; CREATE TABLE "New".a (id int PRIMARY KEY, v text); CREATE TABLE two.b2 (id int PRIMARY KEY, v text);
			CREATE TABLE two.a (id int PRIMARY KEY, v text)`,
		names: apply.NameMap{
			Schemas: map[string]string{"app": "New"},
			Tables:  map[catalog.Name]catalog.Name{{Schema: "app", Table: "b"}: {Schema: "two", Table: "b2"}},
		},
		policies: map[string]string{"New.a": "hash id", "two.b2": "replicated", "two.a": "hash id"},
	})
	m.must("INSERT INTO app.a SELECT i, 'a' FROM generate_series(1, 20) i", "INSERT INTO app.b SELECT i, 'b' FROM generate_series(1, 20) i",
		"INSERT INTO two.a SELECT i, 'c' FROM generate_series(1, 20) i")
	m.must("UPDATE app.a SET v = 'x' WHERE id < 5", "DELETE FROM app.b WHERE id < 5", "TRUNCATE two.a")
}

// The source's table changes between the rows of one batch.
func TestMirrorAltered(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 2, ddl: `CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, v text)`,
		targetDDL: `CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, own text DEFAULT 'never sent', v text, n int DEFAULT 7)`,
		policies:  map[string]string{"app.t": "hash id"},
	})
	for _, s := range []string{
		`INSERT INTO app.t SELECT i, 'v' FROM generate_series(1, 20) i`,
		`UPDATE app.t SET v = 'w' WHERE id < 6`, `ALTER TABLE app.t ADD n int`, `UPDATE app.t SET n = id WHERE id < 4`,
		`INSERT INTO app.t (id, v, n) VALUES (21, 'new', 1)`, `UPDATE app.t SET id = id + 100 WHERE id = 3`, `DELETE FROM app.t WHERE id = 10`,
		`ALTER TABLE app.t REPLICA IDENTITY FULL`, `UPDATE app.t SET v = 'full' WHERE id = 5`, `ALTER TABLE app.t REPLICA IDENTITY DEFAULT`, `UPDATE app.t SET v = 'default' WHERE id = 5`,
	} {
		m.exec(m.src[0], s)
	}
	if _, err := m.apply(); err != nil {
		t.Fatal(err)
	}
	want := sortRows(m.query(m.src[0], "SELECT id::text, v, CASE WHEN n IS NULL THEN CASE WHEN id = 5 THEN NULL ELSE 7 END ELSE n END::text FROM app.t"))
	var got []string
	for _, dsn := range m.o.Shards {
		got = append(got, m.query(dsn, "SELECT id::text, v, n::text FROM app.t")...)
	}
	if got = sortRows(got); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Fatalf("got %s\nwant %s", clip(got), clip(want))
	}
}

// Rows without a key in a partitioned table: addresses repeat between
// partitions, and equal rows count.
func TestMirrorPartitionsWithoutKey(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 2,
		ddl: `CREATE SCHEMA app;
			CREATE TABLE app.p (a int, d int, v text) PARTITION BY LIST (d);
			CREATE TABLE app.p0 PARTITION OF app.p FOR VALUES IN (0); CREATE TABLE app.p1 PARTITION OF app.p FOR VALUES IN (1, 2);
			ALTER TABLE app.p REPLICA IDENTITY FULL; ALTER TABLE app.p0 REPLICA IDENTITY FULL; ALTER TABLE app.p1 REPLICA IDENTITY FULL`,
		targetDDL: `CREATE SCHEMA app;
			CREATE TABLE app.p (v text, d int, a int, own text DEFAULT 'd') PARTITION BY LIST (d);
			CREATE TABLE app.p0 PARTITION OF app.p FOR VALUES IN (0, 1); CREATE TABLE app.p1 PARTITION OF app.p FOR VALUES IN (2)`,
		publication: "FOR TABLE app.p WITH (publish_via_partition_root)",
		policies:    map[string]string{"app.p": "hash a"},
	})
	m.must("INSERT INTO app.p SELECT i % 4, i % 3, 'v' FROM generate_series(1, 120) i")
	for _, dsn := range m.o.Shards {
		m.exec(dsn, "UPDATE app.p SET own = 'mine'")
	}
	m.must("DELETE FROM app.p WHERE (tableoid, ctid) IN (SELECT tableoid, ctid FROM app.p WHERE a = 1 LIMIT 9)",
		"UPDATE app.p SET v = 'w' WHERE (tableoid, ctid) IN (SELECT tableoid, ctid FROM app.p WHERE a = 2 AND d = 2 LIMIT 4)",
		"UPDATE app.p SET d = 0 WHERE a = 3 AND d = 2")
	for _, dsn := range m.o.Shards {
		// An update that moves a row between partitions is a delete and an insert on
		// the source, too; the others keep what only the target has.
		if got := m.query(dsn, "SELECT count(*) FROM app.p WHERE own <> 'mine' AND v = 'w'"); got[0] != `"0"` {
			t.Errorf("%s updated rows lost their own column", got[0])
		}
	}
}

// TestWideWithoutStatistics: how rows of a very wide table are found does not depend on
// whether the target's was ever analyzed.
func TestWideWithoutStatistics(t *testing.T) {
	const rows = 400
	var cols []string
	for i := range 1590 {
		cols = append(cols, fmt.Sprintf("c%d text", i))
	}
	list := strings.Join(cols, ", ")
	ddl := "CREATE SCHEMA app; "
	policies := map[string]string{}
	for _, name := range []string{"keyed", "uniq", "bare"} {
		ddl += fmt.Sprintf("CREATE TABLE app.%s (id int %s, u int %s, %s); ALTER TABLE app.%s SET (autovacuum_enabled = off); ", name,
			map[bool]string{true: "PRIMARY KEY"}[name != "bare"], map[bool]string{true: "UNIQUE"}[name == "uniq"], list, name)
		policies["app."+name] = "replicated"
	}
	m := mustMirror(t, mirrorConfig{shards: 1, ddl: ddl + "ALTER TABLE app.bare REPLICA IDENTITY FULL", policies: policies})
	measure := func(what string) map[string]time.Duration {
		out := map[string]time.Duration{}
		for _, s := range []string{
			"UPDATE app.keyed SET c7 = c7 || 'x'", "UPDATE app.uniq SET c7 = c7 || 'x', u = 1000 - u", "UPDATE app.bare SET c7 = c7 || 'x'",
			fmt.Sprintf("DELETE FROM app.keyed WHERE id > %d", rows-100),
		} {
			m.exec(m.src[0], s)
			b := m.batch()
			began := time.Now()
			if _, err := m.tg.Apply(context.Background(), b, m.rows); err != nil {
				t.Fatalf("%s: %v", s, err)
			}
			out[s] = time.Since(began)
			clear(m.rows)
		}
		t.Log(what, out)
		return out
	}
	fill := func() {
		for name := range policies {
			m.exec(m.src[0], fmt.Sprintf("TRUNCATE %s; INSERT INTO %s (id, u, c7, c1500) SELECT i, i, 'a', 'b' FROM generate_series(1, %d) i", name, name, rows))
			if err := m.applyAgain(); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill()
	without := measure("never analyzed")
	fill()
	m.exec(m.o.Shards[0], "ANALYZE app.keyed; ANALYZE app.uniq; ANALYZE app.bare")
	with := measure("analyzed")
	for s, d := range without {
		if d > 4*with[s]+2*time.Second { // the machine may be busy; a plan that rescans is far beyond
			t.Errorf("%s: %v without statistics, %v with", s, d, with[s])
		}
	}
}
