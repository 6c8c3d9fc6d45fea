package cloudberry

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply/conformance"
)

// BenchmarkRatios compares batches with the least that the same cluster can do, in
// alternation in one run: only the ratios of the medians mean something. Aims:
// insert-only batches of 10,000 rows and more at least 0.8 of plain COPY's speed;
// 1,000 updates or deletes in a table of one million rows at most 6 times a COPY of
// 1,000 rows; one small dtx at most 2 times the smallest two-phase transaction. It
// is a measurement, not a test: it never fails on a number.
func BenchmarkRatios(b *testing.B) {
	w := newWorld(b)
	w.exec(`CREATE TABLE $S.ins (id bigint PRIMARY KEY, a integer, b text, ts timestamptz) DISTRIBUTED BY (id);
		CREATE TABLE $S.plain (LIKE $S.ins INCLUDING ALL) DISTRIBUTED BY (id);
		CREATE TABLE $S.big (LIKE $S.ins INCLUDING ALL) DISTRIBUTED BY (id);
		CREATE TABLE $S.rep (a integer) DISTRIBUTED REPLICATED;
		INSERT INTO $S.big SELECT g, g % 100, repeat('x', 100), now() FROM generate_series(1, 1000000) g;
		ANALYZE $S.big`)
	w.exec("VACUUM $S.big") // as a table that was not loaded a moment ago
	cols := []string{"id bigint", "a integer", "b text", "ts timestamp with time zone"}
	ins, big := w.table("ins", []string{"id"}, cols...), w.table("big", []string{"id"}, cols...)
	src := conformance.NewSource(1, ins, big)
	tg := w.start(src, ins, big)
	conn, err := pgconn.Connect(testCtx(b), w.dsn)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = conn.Close(testCtx(b)) }()
	text, stamp := strings.Repeat("y", 100), "2024-02-03 04:05:06.789+00"
	next := 5_000_000
	plainCopy := func(rows int) func() {
		var data strings.Builder
		for range rows {
			next++
			fmt.Fprintf(&data, "%d\t7\t%s\t%s\n", next, text, stamp)
		}
		return func() {
			// In a transaction, as a batch is.
			_, err := conn.CopyFrom(testCtx(b), strings.NewReader(data.String()), "BEGIN; COPY "+w.schema+".plain FROM STDIN")
			if err == nil {
				err = conn.Exec(testCtx(b), "COMMIT").Close()
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	apply := func() func() {
		src.Commit()
		batch := src.Batch()
		return func() {
			if _, err := tg.Apply(testCtx(b), batch, src); err != nil {
				b.Fatal(err)
			}
		}
	}
	row := func(id int) conformance.Values { return conformance.V(num(id), "7", text, stamp) }
	inserts := func(n int) func() {
		for range n {
			next++
			src.Insert(ins, row(next))
		}
		return apply()
	}
	at := 0
	changes := func(n int, msg func(id int, rel uint32) []byte) func() {
		for range n {
			at += 997 // spread over the table, each row once
			id := at%1_000_000 + 1
			src.Raw(big, row(id), func(rel uint32) []byte { return msg(id, rel) })
		}
		return apply()
	}
	update := func(id int, rel uint32) []byte { return conformance.UpdateMessage(rel, row(id)) }
	remove := func(id int, rel uint32) []byte { return conformance.DeleteMessage(rel, row(id), []int{0}) }
	smallest := func() func() {
		return func() {
			for _, sql := range []string{"BEGIN", "INSERT INTO " + w.schema + ".rep VALUES (1)", "COMMIT"} {
				if err := conn.Exec(testCtx(b), sql).Close(); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	for _, c := range []struct {
		name       string
		base, mine func() func()
		runs       int
		speed      bool // base over mine, to be at least aim; else mine over base, at most aim
		aim        float64
	}{
		{"insert 10000", func() func() { return plainCopy(10_000) }, func() func() { return inserts(10_000) }, 25, true, 0.8},
		{"insert 50000", func() func() { return plainCopy(50_000) }, func() func() { return inserts(50_000) }, 15, true, 0.8},
		{"update 1000 of 1M", func() func() { return plainCopy(1000) }, func() func() { return changes(1000, update) }, 25, false, 6},
		{"delete 1000 of 1M", func() func() { return plainCopy(1000) }, func() func() { return changes(1000, remove) }, 25, false, 6},
		{"one small dtx", smallest, func() func() { return inserts(1) }, 200, false, 2},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				var base, mine []time.Duration
				for range c.runs {
					base, mine = append(base, clock(c.base())), append(mine, clock(c.mine()))
				}
				slices.Sort(base)
				slices.Sort(mine)
				ratio := float64(mine[c.runs/2]) / float64(base[c.runs/2])
				if c.speed {
					ratio = 1 / ratio
				}
				b.ReportMetric(ratio, "ratio")
				b.ReportMetric(c.aim, "aim")
				b.ReportMetric(float64(base[c.runs/2].Microseconds()), "base-µs")
			}
		})
	}
}

func clock(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}
