package shards

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cbrepl/apply/internal/pgside"
	"cbrepl/router"
)

// benchRows is the size of the benchmarks' table; CBREPL_BENCH_ROWS changes it.
func benchRows() int {
	if n, err := strconv.Atoi(os.Getenv("CBREPL_BENCH_ROWS")); err == nil && n > 0 {
		return n
	}
	return 100_000
}

// BenchmarkInsertOnly applies inserts that were read from a slot to two shards,
// and loads the same rows by one plain COPY per shard, both shards at once. The
// ratio is COPY's time to the engine's: 1 means as fast as COPY.
func BenchmarkInsertOnly(b *testing.B) {
	rows := benchRows()
	ddl := `CREATE SCHEMA app; CREATE TABLE app.t (id bigint PRIMARY KEY, a int, b text, ts timestamptz)`
	m, err := newMirror(b, mirrorConfig{shards: 2, ddl: ddl, policies: map[string]string{"app.t": "hash id"}})
	if err != nil {
		b.Fatal(err)
	}
	m.exec(m.src[0], fmt.Sprintf("INSERT INTO app.t SELECT i, i %% 100, repeat('x', 100), now() FROM generate_series(1, %d) i", rows))
	batch := m.batch()
	typ, _ := router.BuiltinType(20)
	rt, err := router.New(router.Policy{Kind: router.Hash, NumSegments: 2, Columns: []router.Column{{Name: "id", Type: typ}}})
	if err != nil {
		b.Fatal(err)
	}
	data := make([]bytes.Buffer, 2)
	for _, row := range queryRows2(b, m.src[0], "SELECT id, a, b, ts FROM app.t") {
		var r [][]byte
		for _, v := range row {
			r = append(r, []byte(v))
		}
		seg, err := rt.Segment(r[:1])
		if err != nil {
			b.Fatal(err)
		}
		data[seg].Write(bytes.Join(r, []byte{'\t'}))
		data[seg].WriteByte('\n')
	}
	var plain, ours time.Duration
	for b.Loop() {
		for _, dsn := range m.o.Shards {
			m.exec(dsn, "TRUNCATE app.t; CHECKPOINT")
		}
		start := time.Now()
		var wg sync.WaitGroup
		for i, dsn := range m.o.Shards {
			c := m.session(dsn)
			wg.Go(func() {
				if _, err := c.CopyFrom(context.Background(), bytes.NewReader(data[i].Bytes()), "COPY app.t FROM STDIN"); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		plain += time.Since(start)
		for _, dsn := range m.o.Shards {
			m.exec(dsn, "TRUNCATE app.t; CHECKPOINT")
		}
		start = time.Now()
		batch.Seq = m.seq
		if _, err := m.tg.Apply(context.Background(), batch, m.rows); err != nil {
			b.Fatal(err)
		}
		m.seq++
		ours += time.Since(start)
	}
	b.ReportMetric(float64(rows)*float64(b.N)/ours.Seconds(), "rows/s")
	b.ReportMetric(float64(rows)*float64(b.N)/plain.Seconds(), "copy-rows/s")
	b.ReportMetric(plain.Seconds()/ours.Seconds(), "of-copy")
}

// BenchmarkUpdates makes 10 updates of every row, one transaction per pass, and
// compares with built-in logical replication of the same changes into a database
// of the same server. Each side reads its own slot. The ratio is built-in's time
// to ours.
func BenchmarkUpdates(b *testing.B) {
	benchChanges(b, func(m *mirror, rows int) int {
		for k := range 10 {
			m.exec(m.src[0], fmt.Sprintf("UPDATE app.t SET a = a + %d, b = repeat('y', 100)", k))
		}
		return 10 * rows
	})
}

// BenchmarkDeletes deletes every row in passes of a tenth.
func BenchmarkDeletes(b *testing.B) {
	benchChanges(b, func(m *mirror, rows int) int {
		for k := range 10 {
			m.exec(m.src[0], fmt.Sprintf("DELETE FROM app.t WHERE id %% 10 = %d", k))
		}
		return rows
	})
}

func benchChanges(b *testing.B, change func(m *mirror, rows int) int) {
	rows := benchRows()
	ddl := `CREATE SCHEMA app; CREATE TABLE app.t (id bigint PRIMARY KEY, a int, b text, ts timestamptz)`
	m, err := newMirror(b, mirrorConfig{shards: 2, ddl: ddl, policies: map[string]string{"app.t": "hash id"}})
	if err != nil {
		b.Fatal(err)
	}
	sub := shared.Database(b)
	name := queryRows2(b, sub, "SELECT current_database()")[0][0]
	src := queryRows2(b, m.src[0], "SELECT current_database()")[0][0]
	m.exec(sub, ddl)
	var builtin, ours time.Duration
	total := 0
	for b.Loop() {
		for _, dsn := range append([]string{sub, m.src[0]}, m.o.Shards...) {
			m.exec(dsn, "TRUNCATE app.t")
		}
		load := fmt.Sprintf("INSERT INTO app.t SELECT i, i %% 100, repeat('x', 100), now() FROM generate_series(1, %d) i", rows)
		m.exec(m.src[0], load)
		m.exec(sub, load+"; CHECKPOINT")
		m.mustApply(b)
		slot := "s_" + name
		m.exec(m.src[0], fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", slot))
		total += change(m, rows)

		start := time.Now()
		m.exec(sub, fmt.Sprintf("CREATE SUBSCRIPTION %s CONNECTION %s PUBLICATION p WITH (create_slot = false, copy_data = false, slot_name = '%s')",
			slot, pgside.QuoteLiteral(strings.Replace(m.src[0], "/"+name, "/"+src, 1)), slot))
		end := queryRows2(b, m.src[0], "SELECT pg_current_wal_lsn()")[0][0]
		for deadline := time.Now().Add(5 * time.Minute); ; {
			if queryRows2(b, m.src[0], fmt.Sprintf("SELECT confirmed_flush_lsn >= '%s' FROM pg_replication_slots, pg_sleep(0.005) WHERE slot_name = '%s'", end, slot))[0][0] == "t" {
				break
			}
			if time.Now().After(deadline) {
				b.Fatal("built-in replication does not catch up")
			}
		}
		builtin += time.Since(start)
		m.exec(sub, "DROP SUBSCRIPTION "+slot)

		start = time.Now()
		m.mustApply(b)
		ours += time.Since(start)
	}
	b.ReportMetric(float64(total)/ours.Seconds(), "changes/s")
	b.ReportMetric(float64(total)/builtin.Seconds(), "builtin-changes/s")
	b.ReportMetric(builtin.Seconds()/ours.Seconds(), "times-builtin")
}

func (m *mirror) mustApply(b *testing.B) {
	b.Helper()
	if _, err := m.apply(); err != nil {
		b.Fatal(err)
	}
}
