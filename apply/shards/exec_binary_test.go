package shards

import (
	"fmt"
	"strings"
	"testing"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
	"cbrepl/router"
)

// binaryDDL is a table of every type that rows are sent in binary form of.
const binaryDDL = `CREATE SCHEMA app; CREATE TABLE app.t (id int8 PRIMARY KEY, a bool, b bytea, c int2, d int4, e text, f oid, g json, h float4, i float8,
	j char(5), k varchar(9), l date, m time, n timestamp, o timestamptz, p numeric, q numeric(9, 2), r uuid, s jsonb)`

// Rows in binary form hold what the source's do, whatever the limits of a chunk;
// one with a value that has no such form takes the table back to text.
func TestMirrorBinary(t *testing.T) {
	for _, before := range []string{"", "INSERT INTO app.t (id, p) VALUES (0, repeat('1', 12100)::numeric)"} {
		for _, chunk := range []int{1, 3000} {
			m := mustMirror(t, mirrorConfig{
				shards: 2, ddl: binaryDDL, policies: map[string]string{"app.t": "hash id"}, engine: apply.Options{ChunkBytes: chunk},
			})
			if before != "" {
				m.exec(m.src[0], before)
			}
			m.exec(m.src[0], `INSERT INTO app.t SELECT i, i % 2 = 0, decode(md5(i::text), 'hex'), i, -i, E'a\tb\\' || i, i, '{"a": 1}', random(), -random(),
				i % 1000, 'é' || i, '2000-01-01'::date - i, '12:00:00.5', '2024-02-29 12:00:00.25', '1969-12-31 23:59:59.999999+00', -i / 7.0, i / 7.0, md5(i::text)::uuid, '[1.50]'
				FROM generate_series(1, 3000) i`)
			m.exec(m.src[0], `INSERT INTO app.t SELECT i FROM generate_series(3001, 3100) i`)
			m.exec(m.src[0], `INSERT INTO app.t VALUES (-1, NULL, '', 0, 0, '', 0, 'null', 'NaN', '-Infinity', '', '', 'infinity', '24:00', '-infinity', 'infinity', 'NaN', 0, NULL, '{}')`)
			m.must()
		}
	}
}

// A duplicate is named as precisely as in text.
func TestMirrorBinaryDuplicate(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 1, ddl: `CREATE SCHEMA app; CREATE TABLE app.t (id int8, r uuid, v text, PRIMARY KEY (id, r))`,
		policies: map[string]string{"app.t": "hash id"}, engine: apply.Options{ChunkBytes: 200},
	})
	const id = "00000000-0000-0000-0000-0000000000ff"
	m.exec(m.o.Shards[0], "INSERT INTO app.t VALUES (77, '"+id+"', 'here')")
	m.exec(m.src[0], "INSERT INTO app.t SELECT i, '"+id+"', 'v' FROM generate_series(1, 50) i")
	m.exec(m.src[0], "INSERT INTO app.t SELECT i, '"+id+"', 'v' FROM generate_series(51, 100) i")
	_, err := m.apply()
	digest := queryRows2(t, m.src[0], "SELECT md5(concat_ws(',', 77, '"+id+"'))")[0][0]
	dtxtest.WantError(t, err, dtx.ClassStop, "app.t", "identity (id, r)", digest, fmt.Sprintf("gxid %d", m.gxid))
}

// A column that takes another type while the target is open must not get the
// bytes of the old one: neither where the server would refuse them, nor where it
// would read them as another value.
func TestMirrorBinaryAltered(t *testing.T) {
	for name, c := range map[string]struct{ column, alter string }{
		"of the same length": {"int4", "ALTER v TYPE float4"},
		"of another length":  {"int4", "ALTER v TYPE int8"},
		"text":               {"timestamptz", "ALTER v TYPE text"},
		"swapped":            {"int4", "RENAME v TO w; ALTER TABLE app.t ADD v float4"},
	} {
		t.Run(name, func(t *testing.T) {
			m := mustMirror(t, mirrorConfig{
				shards: 1, ddl: fmt.Sprintf(`CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, v %s)`, c.column),
				policies: map[string]string{"app.t": "hash id"}, engine: apply.Options{ChunkBytes: 100},
			})
			value := "i"
			if c.column != "int4" {
				value = "to_timestamp(i)"
			}
			m.exec(m.o.Shards[0], "ALTER TABLE app.t "+c.alter)
			m.exec(m.src[0], "INSERT INTO app.t SELECT i, "+value+" FROM generate_series(1, 100) i")
			b := m.batch()
			_, err := m.tg.Apply(t.Context(), b, m.rows)
			dtxtest.WantError(t, err, dtx.ClassRetry, "app.t", "was altered on the shard 0")
			// The daemon opens the target anew and tries again. A type that does not hold
			// the source's values is refused there; others get what the source has.
			if err := m.open(); err != nil {
				dtxtest.WantError(t, err, dtx.ClassStop, "app.t")
				return
			}
			if _, err := m.tg.Apply(t.Context(), b, m.rows); err != nil {
				t.Fatal(err)
			}
			got, want := m.query(m.o.Shards[0], "SELECT id, v::text FROM app.t"), m.query(m.src[0], "SELECT id, v::text FROM app.t")
			if g, w := sortRows(got), sortRows(want); strings.Join(g, "\n") != strings.Join(w, "\n") {
				t.Errorf("got %s\nwant %s", clip(g), clip(w))
			}
		})
	}
}

// Rows of one table may be laid out differently in one transaction: the source
// gets a column, or moved rows carry a column that only the target has. Every
// column's type counts from the first COPY on.
func TestMirrorBinaryAlteredElsewhere(t *testing.T) {
	for name, c := range map[string]struct{ target, alter, first, then, want string }{
		"a column the source gets later": {
			"CREATE TABLE app.t (id int PRIMARY KEY, v int, w int)", "ALTER w TYPE float4",
			"INSERT INTO app.t SELECT i, i FROM generate_series(101, 200) i",
			"ALTER TABLE app.t ADD w float4; INSERT INTO app.t SELECT i, i, i FROM generate_series(201, 300) i",
			`column "w" is real on the source and integer on the target`,
		},
		"a column of the target alone": {
			"CREATE TABLE app.t (id int PRIMARY KEY, v int, x int DEFAULT 7)", "ALTER x TYPE float4",
			"INSERT INTO app.t SELECT i, i FROM generate_series(101, 200) i",
			"UPDATE app.t SET id = id + 5000 WHERE id <= 100",
			"was altered",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := mustMirror(t, mirrorConfig{
				shards: 1, ddl: "CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, v int)", targetDDL: "CREATE SCHEMA app; " + c.target,
				policies: map[string]string{"app.t": "hash id"}, engine: apply.Options{ChunkBytes: 100},
			})
			m.exec(m.src[0], "INSERT INTO app.t SELECT i, i FROM generate_series(1, 100) i")
			if _, err := m.apply(); err != nil {
				t.Fatal(err)
			}
			m.exec(m.o.Shards[0], "ALTER TABLE app.t "+c.alter)
			m.exec(m.src[0], c.first)
			for _, s := range strings.Split(c.then, "; ") {
				m.exec(m.src[0], s)
			}
			_, err := m.apply()
			dtxtest.WantError(t, err, dtx.ClassRetry, "app.t", c.want)
		})
	}
}

// A server that does not take the bytes gets text from the next Open on, rather
// than the same bytes for ever.
func TestMirrorBinaryRefused(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 1, ddl: `CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY)`,
		policies: map[string]string{"app.t": "hash id"}, engine: apply.Options{ChunkBytes: 1},
	})
	m.exec(m.src[0], "INSERT INTO app.t SELECT generate_series(1, 10)")
	b := m.batch()
	typ, _ := router.BuiltinType(23)
	if err := m.tg.ledger.Begin(b); err != nil {
		t.Fatal(err)
	}
	_, err := m.tg.backend.Copy(t.Context(), 0, &apply.CopyOp{
		Table: &catalog.Table{Schema: "app", Name: "t", Kind: catalog.Heap, Columns: []catalog.Column{{Name: "id", Type: typ}}},
		Cols:  []int{0}, Data: append([]byte("PGCOPY\n\xff\r\n\x00"), "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x02\x00\x07"...), Binary: true, Rows: 1,
	})
	dtxtest.WantError(t, err, dtx.ClassRetry, "report it", "08P01")
	if !m.tg.textOnly.Load() {
		t.Error("the binary form would be sent again")
	}
	if _, err := m.tg.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.tg.Apply(t.Context(), b, m.rows); err != nil {
		t.Fatal(err)
	}
	if n := m.query(m.o.Shards[0], "SELECT count(*) FROM app.t")[0]; n != `"10"` {
		t.Errorf("%s rows", n)
	}
}
