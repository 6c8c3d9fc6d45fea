package shards

import (
	"testing"
	"time"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

// slowRows has wait run before a part's second change.
type slowRows struct {
	memRows
	wait func()
}

type slowIter struct {
	apply.RowIter
	n    int
	wait func()
}

func (r slowRows) Open(p dtx.Part) (apply.RowIter, error) {
	it, err := r.memRows.Open(p)
	return &slowIter{RowIter: it, wait: r.wait}, err
}

func (it *slowIter) Next() (*pgoutput.Change, error) {
	if it.n++; it.n == 2 {
		it.wait()
	}
	return it.RowIter.Next()
}

// A shard that got rows early and then none for longer than its server lets a
// session stand idle must not lose its transaction: the batch would fail the same
// way each time it is tried.
func TestKeepAlive(t *testing.T) {
	m := mustMirror(t, mirrorConfig{
		shards: 1, ddl: `CREATE SCHEMA app; CREATE TABLE app.t (id int PRIMARY KEY)`,
		policies: map[string]string{"app.t": "hash id"}, engine: apply.Options{ChunkBytes: 1},
	})
	m.o.IdleTimeout = 900 * time.Millisecond
	if err := m.open(); err != nil {
		t.Fatal(err)
	}
	m.exec(m.src[0], "INSERT INTO app.t SELECT generate_series(1, 3)")
	b := m.batch()
	rows := slowRows{m.rows, func() {
		for deadline := time.Now().Add(time.Minute); ; {
			// Until the transaction is old enough, or the server has ended the session.
			s := queryRows2(t, m.o.Shards[0], `SELECT count(*), count(*) FILTER (WHERE clock_timestamp() - xact_start > '3 s')
				FROM pg_stat_activity, pg_sleep(0.02) WHERE datname = current_database() AND application_name LIKE 'cbrepl:%'`)[0]
			if s[0] == "0" || s[1] == "1" {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("sessions, old ones: %v", s)
			}
		}
	}}
	if _, err := m.tg.Apply(t.Context(), b, rows); err != nil {
		t.Fatal(err)
	}
	if n := m.query(m.o.Shards[0], "SELECT count(*) FROM app.t")[0]; n != `"3"` {
		t.Errorf("%s rows", n)
	}
}
