package shards

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/internal/soak"
	"cbrepl/router"
)

// randomTable is a table of a random history.
type randomTable struct {
	name   string // qualified
	keyed  bool
	unique bool
}

// history builds a schema of random tables and runs random transactions on it.
type randomHistory struct {
	t      *rapid.T
	m      *mirror
	schema string
	tables []randomTable
	conn   *pgconn.PgConn
	log    []string
}

func (h *randomHistory) draw(label string, n int) int {
	return rapid.IntRange(0, n-1).Draw(h.t, label)
}

func (h *randomHistory) pick(label string, from ...string) string {
	return rapid.SampledFrom(from).Draw(h.t, label)
}

// create draws a table and makes it on both sides; it returns its policy.
func (h *randomHistory) create(i, shards int) {
	cols := []string{"id int NOT NULL", "d int NOT NULL", "u int", "v text", "big text", "n numeric(12,2)"}
	identity := h.pick("identity", "pk", "pk2", "index", "full with key", "full")
	tab := randomTable{name: fmt.Sprintf("%s.t%d", h.schema, i), keyed: identity != "full"}
	tab.unique = tab.keyed && h.pick("second unique", "no", "yes") == "yes"
	order := rapid.Permutation([]int{0, 1, 2, 3, 4, 5}).Draw(h.t, "target order")
	var target []string
	for _, j := range order {
		target = append(target, cols[j])
	}
	if h.pick("own column", "no", "yes") == "yes" {
		target = append(target, "own text DEFAULT 'own' NOT NULL")
	}
	var more []string
	switch identity {
	case "pk", "full with key":
		more = append(more, "PRIMARY KEY (id)")
	case "pk2":
		more = append(more, "PRIMARY KEY (d, id)")
	case "index":
		more = append(more, "UNIQUE (id)")
	}
	if tab.unique {
		more = append(more, "UNIQUE (u)")
	}
	ddl := "CREATE TABLE " + tab.name + " (" + strings.Join(append(cols, more...), ", ") + ");"
	ddl += "ALTER TABLE " + tab.name + " ALTER big SET STORAGE EXTERNAL;"
	switch identity {
	case "index":
		ddl += fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY USING INDEX t%d_id_key;", tab.name, i)
	case "full", "full with key":
		ddl += "ALTER TABLE " + tab.name + " REPLICA IDENTITY FULL;"
	}
	h.m.exec(h.m.src[0], ddl)
	for _, dsn := range h.m.o.Shards {
		h.m.exec(dsn, "CREATE TABLE "+tab.name+" ("+strings.Join(append(target, more...), ", ")+")")
	}
	policy := h.pick("policy", "hash id", "hash d", "hash d,id", "hash u", "hash big", "hash v,n", "random", "replicated")
	kind, key, _ := strings.Cut(policy, " ")
	h.m.exec(h.m.o.Coordinator, fmt.Sprintf("INSERT INTO cbrepl.distribution_policy VALUES ('%s', 't%d', '%s', '{%s}', NULL, %d)", h.schema, i, kind, key, shards))
	h.tables = append(h.tables, tab)
	h.note("%s identity %s, unique %v, policy %s over %d, target (%s)", tab.name, identity, tab.unique, policy, shards, strings.Join(target, ", "))
}

func (h *randomHistory) note(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

func (h *randomHistory) exec(sql string) error {
	return h.conn.Exec(context.Background(), sql).Close()
}

// value draws an expression for a column; i is a row number in scope.
func (h *randomHistory) value(col string) string {
	switch col {
	case "id":
		return h.pick("id", "id + 1", "id - 1", "id + 1000", "-id", "1001 - id", "id")
	case "d":
		return h.pick("d", "d + 1", "d * 2 % 7", "d")
	case "u":
		return h.pick("u", "u + 1", "u - 1", "NULL", "-u", "u")
	case "v":
		return h.pick("v", "v || 'x'", "NULL", "'same'", "''", `E'a\tb\\n'`, "v")
	case "big":
		return h.pick("big", "repeat(md5(random()::text), 100)", "NULL", "'small'", "big")
	}
	return h.pick("n", "n + 0.5", "NULL", "1.00", "n")
}

// where draws a condition that hits some rows.
func (h *randomHistory) where() string {
	k := h.draw("modulus", 9) + 1
	return fmt.Sprintf("(id %% %d + %d) %% %d = %d", k, k, k, h.draw("rest", k))
}

// statement draws one statement.
func (h *randomHistory) statement() string {
	tab := h.tables[h.draw("table", len(h.tables))]
	switch op := h.draw("operation", 20); {
	case op < 7:
		from := h.draw("from", 300)
		conflict := ""
		if tab.keyed {
			conflict = " ON CONFLICT DO NOTHING"
		}
		return fmt.Sprintf("INSERT INTO %s SELECT i, i %% 5, nullif(i, %d), 'v' || i %% 3, CASE WHEN i %% 2 = 0 THEN repeat(md5(random()::text), 100) END, i %% 4 FROM generate_series(%d, %d) i%s",
			tab.name, from+3, from, from+h.draw("rows", 120), conflict)
	case op < 14:
		var set []string
		for _, c := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"id", "d", "u", "v", "big", "n"}), 1, 3, rapid.ID).Draw(h.t, "columns") {
			set = append(set, c+" = "+h.value(c))
		}
		return "UPDATE " + tab.name + " SET " + strings.Join(set, ", ") + " WHERE " + h.where()
	case op < 18:
		if !tab.keyed && h.draw("some copies", 2) == 0 {
			return fmt.Sprintf("DELETE FROM %s WHERE ctid IN (SELECT ctid FROM %s WHERE %s LIMIT %d)", tab.name, tab.name, h.where(), 1+h.draw("limit", 10))
		}
		return "DELETE FROM " + tab.name + " WHERE " + h.where()
	case op == 18:
		return "UPDATE " + tab.name + " SET v = v"
	}
	return "TRUNCATE " + tab.name
}

// transaction runs a few statements; those that fail are rolled back alone.
func (h *randomHistory) transaction() {
	h.must("BEGIN")
	for range 1 + h.draw("statements", 5) {
		s := h.statement()
		h.must("SAVEPOINT s")
		if err := h.exec(s); err != nil {
			h.must("ROLLBACK TO s")
			continue
		}
		h.note("%s", s)
		if h.draw("roll back", 10) == 0 {
			h.must("ROLLBACK TO s")
			h.note("  rolled back")
		}
	}
	h.must("COMMIT")
	h.note("COMMIT")
}

func (h *randomHistory) must(sql string) {
	if err := h.exec(sql); err != nil {
		h.t.Fatalf("%s: %v", sql, err)
	}
}

// TestMirrorRandom runs random histories of real transactions on random tables
// into 1, 2 and 3 shards, in random batches and under random limits, and
// compares with the source. rapid prints how to repeat a failure.
func TestMirrorRandom(t *testing.T) {
	base := mustMirror(t, mirrorConfig{shards: 3, ddl: "CREATE SCHEMA app; CREATE TABLE app.unused (id int PRIMARY KEY)", policies: map[string]string{"app.unused": "replicated"}})
	conn, err := pgconn.Connect(context.Background(), base.src[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	n := 0
	soak.Check(t, 8, 200, func(rt *rapid.T) {
		n++
		h := &randomHistory{t: rt, m: base, schema: fmt.Sprintf("r%d", n), conn: conn}
		m := base
		for _, dsn := range append([]string{m.src[0]}, m.o.Shards...) {
			m.exec(dsn, "CREATE SCHEMA "+h.schema)
			defer m.exec(dsn, "DROP SCHEMA "+h.schema+" CASCADE")
		}
		shards := 1 + h.draw("shards", 3)
		for i := range 1 + h.draw("tables", 3) {
			h.create(i, shards)
		}
		m.tables = map[string]*catalog.PublishedTable{}
		m.readTables(mirrorConfig{})
		delete(m.tables, "app.unused")
		m.o.Engine = apply.Options{
			WindowBytes: int64(rapid.SampledFrom([]int{5000, 100_000, 1 << 25}).Draw(rt, "window bytes")),
			WindowRows:  rapid.SampledFrom([]int{20, 300, 100_000}).Draw(rt, "window rows"),
			ChunkBytes:  rapid.SampledFrom([]int{2000, 1 << 19}).Draw(rt, "chunk bytes"),
			ChunkRows:   rapid.SampledFrom([]int{10, 50_000}).Draw(rt, "chunk rows"),
		}
		if err := m.open(); err != nil {
			rt.Fatal(err)
		}
		for range 1 + h.draw("batches", 4) {
			for range 1 + h.draw("transactions", 5) {
				h.transaction()
			}
			res, err := m.apply()
			if err != nil {
				m.seq--
				rt.Fatalf("%v\n%s", err, strings.Join(h.log, "\n"))
			}
			h.note("apply: %d rows", res.Rows)
			h.compare()
		}
	})
}

// compare checks every table's rows and places.
func (h *randomHistory) compare() {
	const list = "id::text, d::text, u::text, v, md5(big), n::text"
	for name, st := range h.m.tables {
		if !strings.HasPrefix(name, h.schema+".") {
			continue
		}
		want := sortRows(h.m.query(h.m.src[0], "SELECT "+list+" FROM "+name))
		p := h.m.policyOf(nameOf(st.Schema, st.Name))
		var got []string
		for i, dsn := range h.m.o.Shards[:p.NumSegments] {
			rows := sortRows(h.m.query(dsn, "SELECT "+list+" FROM "+name))
			switch p.Kind {
			case router.Replicated:
				if strings.Join(rows, "\n") != strings.Join(want, "\n") {
					h.t.Fatalf("%s, copy %d:\n got %s\nwant %s\n%s", name, i, clip(rows), clip(want), strings.Join(h.log, "\n"))
				}
				got = rows
				continue
			case router.Hash:
				h.m.checkPlaces(nameOf(st.Schema, st.Name), i, dsn, "", p)
			}
			got = append(got, rows...)
		}
		if got = sortRows(got); strings.Join(got, "\n") != strings.Join(want, "\n") {
			h.t.Fatalf("%s:\n got %s\nwant %s\n%s", name, clip(got), clip(want), strings.Join(h.log, "\n"))
		}
	}
}
