package shards

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"cbrepl/check"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
)

// applyAgain applies what the sources have as the daemon's loop does: after an error
// that passes the target is opened anew and the same batch tried once more.
func (m *mirror) applyAgain() error {
	m.t.Helper()
	b := m.batch()
	defer clear(m.rows)
	ctx := context.Background()
	_, err := m.tg.Apply(ctx, b, m.rows)
	if err == nil || dtx.ClassOf(err) == dtx.ClassStop {
		return err
	}
	_, err = m.tg.Open(ctx)
	if found := check.Findings(nil); errors.As(err, &found) { // as a daemon does: the source is looked at as well
		m.readTables(m.c)
		err = m.open()
	}
	if err != nil {
		return err
	}
	_, err = m.tg.Apply(ctx, b, m.rows)
	return err
}

// TestSourceTypeChanges: a column's type that changes while the daemon runs is judged
// as it would be at start.
func TestSourceTypeChanges(t *testing.T) {
	changes := []struct {
		from, to, target string
		values           [2]string // before and after
		want             []string  // nothing: it goes on
	}{
		{"numeric(10,2)", "numeric", "numeric(10,2)", [2]string{"1.25", "1.2345"}, []string{`column "v" is numeric on the source and numeric(10,2) on the target`}},
		{"numeric(10,2)", "numeric(12,4)", "numeric(10,2)", [2]string{"1.25", "1.2345"}, []string{"numeric(12,4) on the source"}},
		{"numeric(10,2)", "numeric(12,4)", "numeric(12,4)", [2]string{"1.25", "1.2345"}, nil},
		{"timestamp", "timestamptz", "timestamp", [2]string{"2024-01-01", "2024-01-01 00:00+02"}, []string{"timestamp with time zone on the source and timestamp without time zone"}},
		{"timestamp(0)", "timestamp", "timestamp(0)", [2]string{"2024-01-01", "2024-01-01 00:00:00.789"}, []string{"timestamp without time zone on the source and timestamp(0)"}},
		{"char(5)", "text", "char(5)", [2]string{"ab", "ab  "}, []string{"text on the source and character(5) on the target"}},
		{"jsonb", "json", "jsonb", [2]string{"{}", `{"a": 1, "a": 2}`}, []string{"json on the source and jsonb"}},
		{"int", "text", "int", [2]string{"1", "007"}, []string{"text on the source and integer"}},
		{"int", "text", "text", [2]string{"1", "007"}, nil},
		{"int", "bigint", "bigint", [2]string{"1", "10000000000"}, nil},
		{"int", "bigint", "int", [2]string{"1", "2"}, []string{"bigint on the source and integer on the target"}},
		{"real", "double precision", "real", [2]string{"1.5", "0.1234567890123"}, []string{"double precision on the source and real"}},
		{"varchar(5)", "varchar(9)", "varchar(5)", [2]string{"a", "b"}, []string{"character varying(9) on the source"}},
		{"varchar(9)", "varchar(5)", "varchar(9)", [2]string{"a", "b"}, nil},
		{"bit(3)", "bit varying(9)", "bit(3)", [2]string{"101", "101"}, []string{"bit varying(9) on the source"}},
		{"int[]", "bigint[]", "int[]", [2]string{"{1}", "{2}"}, []string{"bigint[] on the source and integer[]"}},
		{"interval", "interval(3)", "interval", [2]string{"1 day", "2 days"}, nil},
		{"interval(3)", "interval day to second(6)", "interval(3)", [2]string{"1 day", "2 days"}, []string{"interval day to second(6) on the source"}},
		{"text", "app.mood", "text", [2]string{"sad", "ok"}, []string{"not built in"}},
		{"app.mood", "text", "app.mood", [2]string{"sad", "ok"}, []string{"text on the source and app.mood"}},
		{"app.mood", "app.mode", "app.mood", [2]string{"sad", "ok"}, []string{`column "v" was app.mood on the source and has another type now`, "the target's is app.mood"}},
	}
	types := "CREATE SCHEMA app; CREATE TYPE app.mood AS ENUM ('sad', 'ok'); CREATE TYPE app.mode AS ENUM ('sad', 'ok'); "
	ddl, target, policies := types, types, map[string]string{}
	for i, c := range changes {
		ddl += fmt.Sprintf("CREATE TABLE app.t%d (id int PRIMARY KEY, v %s); ", i, c.from)
		target += fmt.Sprintf("CREATE TABLE app.t%d (id int PRIMARY KEY, v %s); ", i, c.target)
		policies[fmt.Sprintf("app.t%d", i)] = "replicated"
	}
	m := mustMirror(t, mirrorConfig{shards: 1, ddl: ddl, targetDDL: target, policies: policies})
	for i, c := range changes {
		m.exec(m.src[0], fmt.Sprintf("INSERT INTO app.t%d VALUES (1, '%s')", i, c.values[0]))
	}
	if err := m.applyAgain(); err != nil {
		t.Fatal(err)
	}
	for i, c := range changes {
		m.exec(m.src[0], fmt.Sprintf("ALTER TABLE app.t%d ALTER v TYPE %s USING v::text::%s; INSERT INTO app.t%d VALUES (2, '%s')", i, c.to, c.to, i, c.values[1]))
		err := m.applyAgain()
		if c.want == nil {
			if err != nil {
				t.Errorf("%s to %s with %s on the target: %v", c.from, c.to, c.target, err)
			}
			m.mustMatch(fmt.Sprintf("SELECT id, v::text::%s::text FROM app.t%d ORDER BY 1", c.target, i))
		} else {
			dtxtest.WantError(t, err, dtx.ClassStop, append(c.want, fmt.Sprintf("app.t%d", i))...)
		}
		if err != nil { // the next case has a batch of the same number
			m.seq--
			if _, err := m.tg.Open(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestColumnsChange: columns that come, go and become generated while the daemon runs.
func TestColumnsChange(t *testing.T) {
	const table = "CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, a int, b int)"
	for _, c := range []struct {
		name           string
		source, target string
		want           []string // nothing: it goes on
	}{
		{"added on both sides", "ALTER TABLE app.t ADD c text DEFAULT 'x'", "ALTER TABLE app.t ADD c text", nil},
		{"added on the source", "ALTER TABLE app.t ADD c text DEFAULT 'x'", "", []string{`column "c" is missing on the target`}},
		{"added with another type", "ALTER TABLE app.t ADD c timestamptz DEFAULT now()", "ALTER TABLE app.t ADD c timestamp", []string{`column "c" is timestamp with time zone`}},
		{"dropped on both sides", "ALTER TABLE app.t DROP b", "ALTER TABLE app.t DROP b", nil},
		{"dropped on the source", "ALTER TABLE app.t DROP b", "", []string{`column "b" is sent no more`}},
		{"generated on the source", "ALTER TABLE app.t DROP b; ALTER TABLE app.t ADD b int GENERATED ALWAYS AS (a * 2) STORED", "", []string{`column "b" is sent no more`}},
		{"generated on both sides", "ALTER TABLE app.t DROP b; ALTER TABLE app.t ADD b int GENERATED ALWAYS AS (a * 2) STORED", "ALTER TABLE app.t DROP b; ALTER TABLE app.t ADD b int GENERATED ALWAYS AS (a * 2) STORED", nil},
		{"renamed on both sides", "ALTER TABLE app.t RENAME b TO c", "ALTER TABLE app.t RENAME b TO c", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := mustMirror(t, mirrorConfig{shards: 1, ddl: table, policies: map[string]string{"app.t": "replicated"}})
			m.must("INSERT INTO app.t (id, a) VALUES (1, 1)")
			m.exec(m.src[0], c.source)
			m.exec(m.src[0], "INSERT INTO app.t (id, a) VALUES (2, 2); UPDATE app.t SET a = 3 WHERE id = 1")
			if c.target != "" {
				m.exec(m.o.Shards[0], c.target)
			}
			err := m.applyAgain()
			if c.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				m.mustMatch("SELECT to_jsonb(t) - CASE WHEN id = 1 THEN 'c' ELSE '' END FROM app.t ORDER BY id")
				return
			}
			dtxtest.WantError(t, err, dtx.ClassStop, c.want...)
		})
	}
}

// TestGeneratedOnOneSide: at start, too.
func TestGeneratedOnOneSide(t *testing.T) {
	const plain, generated = "CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, b int)", "CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, b int GENERATED ALWAYS AS (id * 2) STORED)"
	_, err := newMirror(t, mirrorConfig{shards: 1, ddl: generated, targetDDL: plain, policies: map[string]string{"app.t": "replicated"}})
	dtxtest.WantError(t, err, dtx.ClassStop, `column "b" is generated on the source`, "plain column on the target")
	_, err = newMirror(t, mirrorConfig{shards: 1, ddl: plain, targetDDL: generated, policies: map[string]string{"app.t": "replicated"}})
	dtxtest.WantError(t, err, dtx.ClassStop, `column "b" is generated on the target`)
	m := mustMirror(t, mirrorConfig{shards: 1, ddl: generated, targetDDL: strings.Replace(plain, ", b int", "", 1), policies: map[string]string{"app.t": "replicated"}})
	m.exec(m.src[0], "INSERT INTO app.t VALUES (1)")
	if err := m.applyAgain(); err != nil {
		t.Fatal(err)
	}
}
