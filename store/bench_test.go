package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"cbrepl/dtx"
	"cbrepl/pgoutput/pgotest"
)

// drain reads a part to its end and returns the rows seen.
func drain(tb testing.TB, s *Spool, p dtx.Part) int {
	r, err := s.Open(p)
	if err != nil {
		tb.Fatal(err)
	}
	n := 0
	for {
		_, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			tb.Fatal(err)
		}
		n++
	}
	if err := r.Close(); err != nil {
		tb.Fatal(err)
	}
	return n
}

// cpuTime is the processor time of the process so far, Pebble's work included.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRows writes and reads back rows of 100 bytes; an operation is a row.
// size is the rows of a transaction, lag how many transactions the reader is
// behind.
func BenchmarkRows(b *testing.B) {
	for _, mode := range []struct {
		name string
		o    Options
	}{
		{"memory", Options{}},
		{"disk", Options{tierBytes: -1}},
		{"spooled", Options{Mode: Spooled}},
	} {
		for _, size := range []int{1, 3, 100, 100_000} {
			b.Run(fmt.Sprintf("%s/txn=%d", mode.name, size), func(b *testing.B) {
				ctx := context.Background()
				o := mode.o
				o.Dir = b.TempDir()
				s, err := Open(ctx, o)
				if err != nil {
					b.Fatal(err)
				}
				w := s.Writer(0)
				rel, err := w.PutRelation(testRelation(7, "t", 1))
				if err != nil {
					b.Fatal(err)
				}
				msg := pgotest.Insert(0, 7, pgotest.Text(strings.Repeat("x", 88)))
				lag := max(1, 10_000/size)
				var queue []dtx.Part
				b.SetBytes(int64(len(msg)))
				b.ReportAllocs()
				b.ResetTimer()
				cpu := cpuTime()
				flush := func() {
					for _, p := range queue {
						if n := drain(b, s, p); int64(n) != p.Rows {
							b.Fatal(n, p.Rows)
						}
					}
					if err := s.Release(queue); err != nil {
						b.Fatal(err)
					}
					queue = queue[:0]
				}
				for left := b.N; left > 0; left -= size {
					tx := w.Begin(false)
					for range min(size, left) {
						if err := tx.Append(ctx, rel, msg); err != nil {
							b.Fatal(err)
						}
					}
					p, err := tx.Commit(ctx, dtx.Part{EndLSN: dtx.LSN(b.N - left + 1)})
					if err != nil {
						b.Fatal(err)
					}
					if queue = append(queue, p); len(queue) >= lag {
						flush()
					}
				}
				flush()
				b.StopTimer()
				b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/op")
				_ = w.Close()
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}
