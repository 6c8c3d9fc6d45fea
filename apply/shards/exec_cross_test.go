package shards

import (
	"fmt"
	"testing"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
)

// Only the target has a key, and the source does not distribute by it: a row
// leaves one segment and enters another, before or behind many other changes, in
// one dtx or two. It is neither a duplicate nor lost.
func TestMirrorRoaming(t *testing.T) {
	for _, from := range []int{0, 1} {
		for _, together := range []bool{true, false} {
			t.Run(fmt.Sprintf("from %d together %v", from, together), func(t *testing.T) {
				c := crossing
				c.engine = apply.Options{TurnRows: 2, WindowRows: 4, WindowBytes: 600, HoldBytes: 1 << 20, ChunkBytes: 50}
				m := mustMirror(t, c)
				m.together = together
				m.exec(m.src[from], "INSERT INTO app.t VALUES (1, 1), (2, 1); INSERT INTO app.o SELECT g, 'x' FROM generate_series(1, 40) g")
				m.must()
				m.exec(m.src[from], "BEGIN; UPDATE app.o SET v = v || 'y'; DELETE FROM app.t; COMMIT")
				m.exec(m.src[1-from], "BEGIN; INSERT INTO app.t VALUES (1, 2), (2, 2); COMMIT")
				m.must()
			})
		}
	}
}

var crossing = mirrorConfig{
	sources: 2, shards: 2,
	ddl: `CREATE SCHEMA app; CREATE TABLE app.t (id int, region int); ALTER TABLE app.t REPLICA IDENTITY FULL;
		CREATE TABLE app.o (id int PRIMARY KEY, v text)`,
	targetDDL: `CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY, region int); CREATE TABLE app.o (id int PRIMARY KEY, v text)`,
	policies:  map[string]string{"app.t": "hash id", "app.o": "hash id"}, random: []string{"app.t"},
}

// Where the insert cannot wait for the delete, because it comes in another batch,
// it is a duplicate, which on_conflict: log would leave out for good.
func TestMirrorRoamingUnderLog(t *testing.T) {
	c := crossing
	c.engine = apply.Options{OnConflict: apply.ConflictLog}
	_, err := newMirror(t, c)
	dtxtest.WantError(t, err, dtx.ClassStop, "app.t", "on_conflict: log", "distribute the table")
}
