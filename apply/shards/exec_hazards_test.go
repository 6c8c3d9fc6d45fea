package shards

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
)

// TestFiringTargets: what fires for replicated rows whatever the session's role is
// refused by name, on partitions too; so is a table that a crash empties.
func TestFiringTargets(t *testing.T) {
	const (
		table = "CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, v int); "
		parts = "CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id); CREATE TABLE app.p1 PARTITION OF app.t FOR VALUES FROM (0) TO (10); "
		fn    = "CREATE FUNCTION app.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; CREATE TABLE app.log (id int); "
		row   = "CREATE TRIGGER tr BEFORE INSERT OR UPDATE ON app.t FOR EACH ROW EXECUTE FUNCTION app.f(); "
		onP1  = "CREATE TRIGGER tr BEFORE INSERT OR UPDATE ON app.p1 FOR EACH ROW EXECUTE FUNCTION app.f(); "
		rule  = "CREATE RULE ru AS ON UPDATE TO app.t DO ALSO INSERT INTO app.log VALUES (NEW.id); "
	)
	for _, c := range []struct {
		name, target string
		want         []string // nothing: it is taken
	}{
		{"plain trigger", table + fn + row, nil},
		{"plain rule", table + fn + rule, nil},
		{"disabled trigger", table + fn + row + "ALTER TABLE app.t DISABLE TRIGGER tr", nil},
		{"always trigger", table + fn + row + "ALTER TABLE app.t ENABLE ALWAYS TRIGGER tr", []string{"app.t", "trigger tr", "shard 1", "ENABLE TRIGGER"}},
		{"replica trigger", table + fn + row + "ALTER TABLE app.t ENABLE REPLICA TRIGGER tr", []string{"trigger tr", "ENABLE REPLICA"}},
		{"always rule", table + fn + rule + "ALTER TABLE app.t ENABLE ALWAYS RULE ru", []string{"rule ru"}},
		{"replica rule", table + fn + rule + "ALTER TABLE app.t ENABLE REPLICA RULE ru", []string{"rule ru"}},
		{"always foreign key", table + "CREATE TABLE app.r (id int PRIMARY KEY); ALTER TABLE app.t ADD CONSTRAINT fk FOREIGN KEY (v) REFERENCES app.r; DO $$DECLARE n name; BEGIN FOR n IN SELECT tgname FROM pg_trigger WHERE tgrelid = 'app.t'::regclass LOOP EXECUTE format('ALTER TABLE app.t ENABLE ALWAYS TRIGGER %I', n); END LOOP; END$$", []string{"foreign key fk"}},
		{"on a partition", parts + fn + onP1 + "ALTER TABLE app.p1 ENABLE ALWAYS TRIGGER tr", []string{"trigger tr of partition app.p1"}},
		{"of the root, on a partition", parts + fn + row + "ALTER TABLE app.p1 ENABLE ALWAYS TRIGGER tr", []string{"trigger tr"}},
		{"unlogged", strings.Replace(table, "TABLE", "UNLOGGED TABLE", 1), []string{"app.t is not logged", "SET LOGGED"}},
		{"unlogged partition", parts + "CREATE UNLOGGED TABLE app.p2 PARTITION OF app.t FOR VALUES FROM (10) TO (20)", []string{"app.p2 is not logged"}},
		{"child of a plain table", table + "CREATE UNLOGGED TABLE app.heir () INHERITS (app.t)", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := newMirror(t, mirrorConfig{
				shards: 2, ddl: "CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, v int)", targetDDL: c.target,
				policies: map[string]string{"app.t": "replicated"},
			})
			if c.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			dtxtest.WantError(t, err, dtx.ClassStop, c.want...)
		})
	}
}

// churn runs random transactions that are valid one statement after the other and
// compares both sides after each. statement makes one.
func (m *mirror) churn(seed uint64, statement func(r *rand.Rand) string) {
	m.t.Helper()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 40 {
		sql := "DO $$BEGIN "
		for range 1 + r.IntN(8) {
			// Who violates a constraint on the source does nothing there.
			sql += "BEGIN " + statement(r) + "; EXCEPTION WHEN unique_violation OR exclusion_violation OR check_violation THEN NULL; END; "
		}
		m.must(sql + "END$$")
	}
}

// TestUniqueOfGenerated: rows swap values that a unique generated column is computed
// from.
func TestUniqueOfGenerated(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 2, ddl: `CREATE SCHEMA app;
			CREATE TABLE app.t (id int PRIMARY KEY, mail text, n int, low text GENERATED ALWAYS AS (lower(mail)) STORED UNIQUE,
				twice int GENERATED ALWAYS AS (n * 2) STORED, EXCLUDE USING btree (twice WITH =));
			CREATE UNIQUE INDEX ON app.t ((low || twice)) WHERE twice > 0;`,
		policies: map[string]string{"app.t": "replicated"},
	})
	m.must("INSERT INTO app.t (id, mail, n) VALUES (1, 'A', 1), (2, 'B', 2)")
	m.must("BEGIN; UPDATE app.t SET mail = 'tmp' WHERE id = 1; UPDATE app.t SET mail = 'a' WHERE id = 2; UPDATE app.t SET mail = 'B' WHERE id = 1; COMMIT")
	m.must("BEGIN; UPDATE app.t SET n = 9 WHERE id = 1; UPDATE app.t SET n = 1 WHERE id = 2; UPDATE app.t SET n = 2 WHERE id = 1; COMMIT")
	m.churn(1, func(r *rand.Rand) string {
		id, mail := r.IntN(6), string(rune('A'+r.IntN(6)))
		switch r.IntN(4) {
		case 0:
			return fmt.Sprintf("INSERT INTO app.t (id, mail, n) VALUES (%d, '%s', %d) ON CONFLICT DO NOTHING", id, mail, r.IntN(6))
		case 1:
			return fmt.Sprintf("UPDATE app.t SET mail = '%s' WHERE id = %d", mail, id)
		case 2:
			return fmt.Sprintf("UPDATE app.t SET n = %d WHERE id = %d", r.IntN(6), id)
		}
		return fmt.Sprintf("DELETE FROM app.t WHERE id = %d", id)
	})
}

// TestUniqueNotValid: a unique index that could not be completed is enforced all the
// same for new rows, and finds no row.
func TestUniqueNotValid(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 1, ddl: "CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, u int); CREATE TABLE app.f (id int NOT NULL, u int); ALTER TABLE app.f REPLICA IDENTITY FULL",
		policies: map[string]string{"app.t": "replicated", "app.f": "replicated"},
	})
	m.must("INSERT INTO app.t VALUES (1, 1), (2, 2)", "INSERT INTO app.f VALUES (1, 1), (2, 2)")
	// The index waits for an old snapshot in its last phase, and is cancelled.
	ctx := context.Background()
	old, builder := m.session(m.o.Shards[0]), m.connect(m.o.Shards[0])
	if err := old.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM pg_class LIMIT 1").Close(); err != nil {
		t.Fatal(err)
	}
	if err := builder.Exec(ctx, "SET lock_timeout = '200ms'").Close(); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{"CREATE UNIQUE INDEX CONCURRENTLY bad ON app.t (u)", "CREATE UNIQUE INDEX CONCURRENTLY bad2 ON app.f (id)"} {
		if err := builder.Exec(ctx, sql).Close(); err == nil {
			t.Fatal("the index could be built")
		}
	}
	if err := old.Exec(ctx, "COMMIT").Close(); err != nil {
		t.Fatal(err)
	}
	if got := m.query(m.o.Shards[0], "SELECT DISTINCT indisvalid, indisready FROM pg_index WHERE indexrelid::regclass::text IN ('app.bad', 'app.bad2')"); len(got) != 1 || got[0] != `"f"|"t"` {
		t.Fatalf("valid, ready: %v", got)
	}
	if err := m.open(); err != nil {
		t.Fatal(err)
	}
	m.must("BEGIN; UPDATE app.t SET u = 99 WHERE id = 1; UPDATE app.t SET u = 1 WHERE id = 2; UPDATE app.t SET u = 2 WHERE id = 1; COMMIT")
	m.must("BEGIN; UPDATE app.f SET id = 99 WHERE id = 1; UPDATE app.f SET id = 1 WHERE id = 2; UPDATE app.f SET id = 2 WHERE id = 99; COMMIT")
}

// TestUniqueOfPartition: rows change places between partitions that have unique
// indexes of their own.
func TestUniqueOfPartition(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 1, ddl: "CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, p int, u int, UNIQUE (p, u)); CREATE TABLE app.e (id int PRIMARY KEY, p int, u int, UNIQUE (p, u))",
		targetDDL: `CREATE SCHEMA app;
			CREATE TABLE app.t (id int NOT NULL, p int, u int) PARTITION BY LIST (p);
			CREATE TABLE app.t1 PARTITION OF app.t (PRIMARY KEY (id), UNIQUE (u)) FOR VALUES IN (1);
			CREATE TABLE app.t2 (u int, p int, x int, id int NOT NULL PRIMARY KEY, UNIQUE (u)); ALTER TABLE app.t2 DROP x; ALTER TABLE app.t ATTACH PARTITION app.t2 FOR VALUES IN (2);
			CREATE TABLE app.t3 PARTITION OF app.t (PRIMARY KEY (id), UNIQUE (u)) FOR VALUES IN (3) ;
			CREATE TABLE app.e (id int NOT NULL, p int, u int) PARTITION BY RANGE ((p * 2));
			CREATE TABLE app.e1 PARTITION OF app.e (PRIMARY KEY (id), UNIQUE (u)) FOR VALUES FROM (0) TO (3);
			CREATE TABLE app.e2 PARTITION OF app.e FOR VALUES FROM (3) TO (9) PARTITION BY LIST (p);
			CREATE TABLE app.e22 PARTITION OF app.e2 (PRIMARY KEY (id), UNIQUE (u)) FOR VALUES IN (2);
			CREATE TABLE app.e23 PARTITION OF app.e2 (PRIMARY KEY (id), UNIQUE (u)) FOR VALUES IN (3);`,
		policies: map[string]string{"app.t": "replicated", "app.e": "replicated"},
	})
	for _, tab := range []string{"app.t", "app.e"} {
		m.must("INSERT INTO " + tab + " VALUES (1, 1, 5), (2, 2, 5)")
		m.must(strings.ReplaceAll("BEGIN; UPDATE $t SET p = 3 WHERE id = 1; UPDATE $t SET p = 1 WHERE id = 2; UPDATE $t SET p = 2 WHERE id = 1; COMMIT", "$t", tab))
	}
	m.churn(2, func(r *rand.Rand) string {
		tab, id, p, u := "app."+[]string{"t", "e"}[r.IntN(2)], r.IntN(8), 1+r.IntN(3), r.IntN(4)
		switch r.IntN(5) {
		case 0, 1:
			return fmt.Sprintf("INSERT INTO %s VALUES (%d, %d, %d) ON CONFLICT DO NOTHING", tab, id, p, u)
		case 2, 3:
			return fmt.Sprintf("UPDATE %s SET p = %d, u = %d WHERE id = %d", tab, p, u, id)
		}
		return fmt.Sprintf("DELETE FROM %s WHERE id = %d", tab, id)
	})
}

// TestCopiesOfDefaults: a column that only the target has gets the same value in all
// copies of a replicated table, or the table is refused.
func TestCopiesOfDefaults(t *testing.T) {
	const domain = "CREATE SCHEMA app; CREATE DOMAIN app.stamp AS timestamptz DEFAULT clock_timestamp(); "
	config := func(policy string, defaults ...string) mirrorConfig {
		c := mirrorConfig{shards: 2, ddl: domain, targetDDL: domain, policies: map[string]string{}}
		for i, def := range defaults {
			table := fmt.Sprintf("CREATE TABLE app.t%d (id int PRIMARY KEY, v int); ", i)
			c.ddl += table
			c.targetDDL += table + fmt.Sprintf("ALTER TABLE app.t%d ADD x %s; ", i, def)
			c.policies[fmt.Sprintf("app.t%d", i)] = policy
		}
		return c
	}
	same := []string{
		"int DEFAULT 7", "text DEFAULT lower('A') || 'b'", "timestamptz DEFAULT '2024-01-01 00:00+00'", "int", "int GENERATED ALWAYS AS (v * 2) STORED",
	}
	m := mustMirror(t, config("replicated", same...))
	for i := range same {
		m.must(fmt.Sprintf("INSERT INTO app.t%d VALUES (1, 1)", i), fmt.Sprintf("UPDATE app.t%d SET id = 2", i))
	}
	differ := []string{
		"timestamptz DEFAULT now()", "timestamptz DEFAULT current_timestamp", "uuid DEFAULT gen_random_uuid()", "serial",
		"int GENERATED BY DEFAULT AS IDENTITY", "text DEFAULT 'x' || clock_timestamp()::text", "app.stamp",
	}
	_, err := newMirror(t, config("replicated", differ...))
	dtxtest.WantError(t, err, dtx.ClassStop, fmt.Sprintf("%d problems", len(differ)), `column "x" exists on the target only`, "app.t0", "app.t6")
	mustMirror(t, config("hash id", differ...))
}

// A table that becomes unfit while the target is open is noticed within the batch that
// touches it: a composite type altered in place, a trigger that fires for replicated
// rows, storage that a crash empties, a default that differs by shard.
func TestMirrorBecomesUnfit(t *testing.T) {
	for _, c := range []struct{ name, alter, want string }{
		{"composite", "ALTER TYPE app.pair DROP ATTRIBUTE a; ALTER TYPE app.pair ADD ATTRIBUTE a int", ""},
		{"trigger", `CREATE FUNCTION app.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.v := 0; RETURN NEW; END';
			CREATE TRIGGER tr BEFORE INSERT ON app.t FOR EACH ROW EXECUTE FUNCTION app.f(); ALTER TABLE app.t ENABLE ALWAYS TRIGGER tr`, "trigger tr"},
		{"unlogged", "ALTER TABLE app.t SET UNLOGGED", "is not logged"},
		{"a default", "ALTER TABLE app.t ALTER x SET DEFAULT random()", "its default would differ"},
		{"a column", "ALTER TABLE app.t ADD y float8 DEFAULT random()", "its default would differ"},
	} {
		t.Run(c.name, func(t *testing.T) {
			const table = "CREATE SCHEMA app; CREATE TYPE app.pair AS (a int, b int); CREATE TABLE app.t (id int PRIMARY KEY, v int, p app.pair[]"
			m := mustMirror(t, mirrorConfig{
				shards: 2, ddl: table + ")", targetDDL: table + ", x float8)", policies: map[string]string{"app.t": "replicated"},
			})
			m.must("INSERT INTO app.t VALUES (1, 1, NULL)")
			for _, dsn := range m.o.Shards {
				m.exec(dsn, c.alter)
			}
			m.exec(m.src[0], "INSERT INTO app.t VALUES (2, 2, ARRAY[(1, 2)::app.pair])")
			_, err := m.apply()
			dtxtest.WantError(t, err, dtx.ClassRetry, "table app.t", "was altered on the shard 0", "shard 1")
			if got := m.query(m.o.Shards[1], "SELECT count(*) FROM app.t"); got[0] != `"1"` {
				t.Errorf("%s rows on shard 1", got)
			}
			if c.want != "" {
				dtxtest.WantError(t, m.open(), dtx.ClassStop, "app.t", c.want)
			}
		})
	}
}
