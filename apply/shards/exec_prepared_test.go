package shards

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/router"
)

// Prepared statements outlive batches, a change of the table and their own
// number, and end with their connection.
func TestMirrorPrepared(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 1, ddl: `CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, v text, n int)`,
		policies: map[string]string{"app.t": "hash id"},
	})
	count := func() int {
		t.Helper()
		res := m.tg.shards[0].Conn.ExecParams(t.Context(), "SELECT count(*) FROM pg_prepared_statements WHERE name <> 'cbrepl_altered'", nil, nil, nil, nil).Read()
		if res.Err != nil {
			t.Fatal(res.Err)
		}
		return int(pgside.Atoi(res.Rows[0][0]))
	}
	m.must("INSERT INTO app.t SELECT i, 'v', i FROM generate_series(1, 1000) i")
	for n := range 10 { // other numbers of rows, one statement
		m.must(fmt.Sprintf("UPDATE app.t SET v = 'w%d' WHERE id <= %d", n, n+1), fmt.Sprintf("DELETE FROM app.t WHERE id = %d", 900+n))
	}
	if n := count(); n != 2 {
		t.Errorf("%d prepared statements after updates and deletes of one table", n)
	}
	m.must("UPDATE app.t SET v = 'many'")
	if n := count(); n != 2 {
		t.Errorf("%d prepared statements after an update of many rows", n)
	}
	m.exec(m.o.Shards[0], "ALTER TABLE app.t ADD own text DEFAULT 'x', ALTER n TYPE bigint, ALTER v TYPE varchar")
	m.exec(m.src[0], "UPDATE app.t SET v = 'x', n = n + 1 WHERE id < 5; DELETE FROM app.t WHERE id = 6")
	if err := m.applyAgain(); err != nil {
		t.Fatal(err)
	}
	if err := m.open(); err != nil { // new connections
		t.Fatal(err)
	}
	m.must("UPDATE app.t SET v = 'y' WHERE id < 5")
	if n := count(); n != 1 {
		t.Errorf("%d prepared statements on a new connection", n)
	}
	conn, err := pgconn.Connect(t.Context(), m.o.Shards[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	var s statements
	for i := range 2*preparedMax + 10 {
		q := query{keyed: true}
		q.format("SELECT %d", i)
		if res := s.run(t.Context(), conn, &q, 1); res.Err != nil || string(res.Rows[0][0]) != fmt.Sprint(i) {
			t.Fatalf("statement %d: %v", i, res.Err)
		}
	}
	if len(s.names) > preparedMax {
		t.Errorf("%d statements are kept", len(s.names))
	}
}

// A list of keys is compared row by row where the planner does not use the index,
// which it may not in small tables. So the statement is not one that is prepared,
// and kept while the table grows, and not one over many partitions.
func TestDeleteByList(t *testing.T) {
	typ, _ := router.BuiltinType(23)
	for _, c := range []struct {
		name string
		kind catalog.TableKind
		n    int
		keys []int
		want bool
	}{
		{"many", catalog.Heap, preparedRows + 1, []int{0}, true},
		{"few, prepared", catalog.Heap, preparedRows, []int{0}, false},
		{"partitions", catalog.PartitionRoot, preparedRows + 1, []int{0}, false},
		{"two columns", catalog.Heap, preparedRows + 1, []int{0, 1}, false},
		{"not unique", catalog.Heap, preparedRows + 1, []int{1}, false},
	} {
		table := &catalog.Table{
			Schema: "app", Name: "t", Kind: c.kind,
			Columns: []catalog.Column{{Name: "id", Type: typ, CastType: `"pg_catalog"."int4"`}, {Name: "n", Type: typ, CastType: `"pg_catalog"."int4"`}},
			Uniques: []catalog.Unique{{Columns: []int{0}, Plain: true, Primary: true}},
		}
		op := &apply.DeleteOp{Table: table, N: c.n, Keys: apply.Set{Cols: c.keys}}
		for range c.keys {
			v := new(apply.Vec)
			for i := range c.n {
				v.Append(strconv.AppendInt(nil, int64(i), 10))
			}
			op.Keys.Vals = append(op.Keys.Vals, v)
		}
		var q query
		q.deleteByKey(op, false)
		if got := strings.Contains(q.String(), "ANY ((SELECT"); got != c.want {
			t.Errorf("%s: by a list: %v", c.name, got)
		}
		if c.want && q.keyed {
			t.Errorf("%s: would be prepared", c.name)
		}
	}
}
