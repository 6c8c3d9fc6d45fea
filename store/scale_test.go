package store

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/goleak"

	"cbrepl/dtx"
	"cbrepl/internal/soak"
	"cbrepl/pgoutput"
	"cbrepl/pgoutput/pgotest"
)

// diskStats is what tells whether the spool gets slower as it ages.
type diskStats struct {
	rangeDels, tables, sublevels int64
	compacted, flushed           uint64
}

func stats(t *testing.T, s *Spool) (d diskStats) {
	t.Helper()
	levels, err := s.db.SSTables(pebble.WithProperties())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range levels {
		for _, f := range l {
			d.rangeDels += int64(f.Properties.NumRangeDeletions)
			d.tables++
		}
	}
	m := s.db.Metrics()
	d.sublevels = int64(m.Levels[0].Sublevels)
	for i := range m.Levels {
		d.compacted += m.Levels[i].TableBytesCompacted
		d.flushed += m.Levels[i].TableBytesFlushed
	}
	return d
}

// TestTinyTransactions runs very many small transactions of several contents
// through the disk, some of them released late, and looks at what piles up:
// nothing may grow with the number of transactions.
func TestTinyTransactions(t *testing.T) {
	for _, mode := range []Mode{Applied, Spooled} {
		t.Run(mode.String(), func(t *testing.T) {
			ctx := context.Background()
			s := openTest(t, Options{Mode: mode, MemBytes: minMemBytes, tierBytes: -1, memtableBytes: 512 << 10, deleteBytes: 512 << 10})
			rng := rand.New(rand.NewPCG(1, 2))
			const contents = 3
			var ws [contents]*Writer
			for c := range ws {
				ws[c] = s.Writer(dtx.Content(c))
			}
			rel, err := ws[0].PutRelation(testRelation(7, "t", 1))
			if err != nil {
				t.Fatal(err)
			}
			n := soak.Times(20_000, 60_000)
			var queue, late []dtx.Part
			var first, last diskStats
			msg := pgotest.Insert(0, 7, pgotest.Text(value(1, 200)))
			for i := range n {
				w := ws[rng.IntN(contents)]
				tx := w.Begin(false)
				for range 1 + rng.IntN(3) {
					if err := tx.Append(ctx, rel, msg); err != nil {
						t.Fatal(err)
					}
				}
				p, err := tx.Commit(ctx, dtx.Part{EndLSN: dtx.LSN(i + 1)})
				if err != nil {
					t.Fatal(err)
				}
				if i%1000 == 0 {
					late = append(late, p)
				} else {
					queue = append(queue, p)
				}
				if len(queue) == 1000 {
					for _, p := range queue {
						if got := drain(t, s, p); int64(got) != p.Rows {
							t.Fatalf("%d rows of %d", got, p.Rows)
						}
					}
					if err := s.Release(queue); err != nil {
						t.Fatal(err)
					}
					queue = queue[:0]
				}
				if len(late) == 20 {
					for _, p := range late {
						if got := drain(t, s, p); int64(got) != p.Rows {
							t.Fatalf("%d rows of %d", got, p.Rows)
						}
					}
					if err := s.Release(late[:10]); err != nil {
						t.Fatal(err)
					}
					late = append(late[:0], late[10:]...)
				}
				switch i {
				case n / 4:
					first = stats(t, s)
				case n - 1:
					last = stats(t, s)
				}
			}
			t.Logf("after a quarter %+v, at the end %+v", first, last)
			waitUntil(t, func() bool {
				m := s.db.Metrics() // without logs, which are reused
				return m.Total().TablesSize < 6<<20
			})
			if last.rangeDels > 3*first.rangeDels+60 || last.rangeDels > 400 {
				t.Errorf("range tombstones pile up: %d, then %d", first.rangeDels, last.rangeDels)
			}
			if last.tables > 3*first.tables+60 {
				t.Errorf("tables pile up: %d, then %d", first.tables, last.tables)
			}
			if last.sublevels > 20 {
				t.Errorf("%d levels to read", last.sublevels)
			}
			if last.compacted > 2*last.flushed {
				t.Errorf("%d bytes rewritten of %d written", last.compacted, last.flushed)
			}
		})
	}
}

// TestBacklog spools far more than memory holds, from several contents in turns,
// then reads and releases all of it: blocks are written once and, where they
// are freed in order, dropped unread.
func TestBacklog(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{MemBytes: minMemBytes, memtableBytes: 2 << 20, deleteBytes: 8 << 20})
	const contents = 3
	size := soak.Times(32<<20, 96<<20)
	var ws [contents]*Writer
	for c := range ws {
		ws[c] = s.Writer(dtx.Content(c))
	}
	rel, err := ws[0].PutRelation(testRelation(7, "t", 1))
	if err != nil {
		t.Fatal(err)
	}
	msg := pgotest.Insert(0, 7, pgotest.Text(value(1, 1000)))
	var parts []dtx.Part
	for i := 0; s.Usage().Bytes < int64(size); i++ {
		tx := ws[i%contents].Begin(i%10 == 0)
		for range 500 {
			m := msg
			if i%10 == 0 {
				m = pgotest.Insert(5, 7, pgotest.Text(value(1, 1000)))
			}
			if err := tx.Append(ctx, rel, m); err != nil {
				t.Fatal(err)
			}
		}
		p, err := tx.Commit(ctx, dtx.Part{EndLSN: dtx.LSN(i + 1)})
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, p)
	}
	full := stats(t, s)
	// A content that is ahead of the others gives its room back.
	slices.SortStableFunc(parts, func(a, b dtx.Part) int { return int(a.Content) - int(b.Content) })
	if err := s.db.flush(ctx); err != nil {
		t.Fatal(err)
	}
	held := s.Usage().DiskBytes
	n := 0
	for n < len(parts) && parts[n].Content == 0 {
		n++
	}
	if err := s.Release(parts[:n]); err != nil {
		t.Fatal(err)
	}
	parts = parts[n:]
	if err := ws[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.reclaim(ctx, 0); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, func() bool { return s.Usage().DiskBytes < held*3/4 })
	for len(parts) > 0 {
		n := min(20, len(parts))
		for _, p := range parts[:n] {
			if got := drain(t, s, p); got != 500 {
				t.Fatalf("%d rows", got)
			}
		}
		if err := s.Release(parts[:n]); err != nil {
			t.Fatal(err)
		}
		parts = parts[n:]
	}
	for _, w := range ws[1:] {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.reclaim(ctx, 0); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, func() bool { return s.Usage().DiskBytes < 4<<20 })
	end := stats(t, s)
	t.Logf("full %+v, empty %+v", full, end)
	if end.compacted > full.flushed/2 {
		t.Errorf("%d bytes rewritten of %d written", end.compacted, full.flushed)
	}
}

// TestLargeTransaction passes a transaction far larger than the spool's memory,
// with others open beside it, and watches the heap.
func TestLargeTransaction(t *testing.T) {
	for _, mode := range []Mode{Applied, Spooled} {
		t.Run(mode.String(), func(t *testing.T) {
			ctx := context.Background()
			size := int64(soak.Times(32<<20, 64<<20))
			s := openTest(t, Options{Mode: mode, MemBytes: minMemBytes})
			w := s.Writer(0)
			rel, err := w.PutRelation(testRelation(7, "t", 1))
			if err != nil {
				t.Fatal(err)
			}
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			base, peak := m.HeapInuse, uint64(0)
			look := func() {
				runtime.ReadMemStats(&m)
				peak = max(peak, m.HeapInuse+s.db.memtableBytes())
			}
			txs := []*Txn{w.Begin(true), w.Begin(true), w.Begin(true)}
			var rows [3]int
			for n := int64(0); n < size; {
				i := rows[0] / 1000 % 5
				if i > 2 {
					i = 0
				}
				msg := pgotest.Insert(dtx.XID(i+1), 7, pgotest.Text(value(rows[i], 1000)))
				if err := txs[i].Append(ctx, rel, msg); err != nil {
					t.Fatal(err)
				}
				rows[0]++
				if i > 0 {
					rows[i]++
				}
				n += int64(len(msg))
				if rows[0]%5000 == 0 {
					look()
				}
			}
			for i, tx := range txs {
				p, err := tx.Commit(ctx, dtx.Part{EndLSN: dtx.LSN(i + 1)})
				if err != nil {
					t.Fatal(err)
				}
				r, err := s.Open(p)
				if err != nil {
					t.Fatal(err)
				}
				got := int64(0)
				for ; ; got++ {
					if _, err := r.Next(); errors.Is(err, io.EOF) {
						break
					} else if err != nil {
						t.Fatal(err)
					}
					if got%5000 == 0 {
						look()
					}
				}
				if got != p.Rows {
					t.Fatalf("%d rows of %d", got, p.Rows)
				}
				_ = r.Close()
				if err := s.Release([]dtx.Part{p}); err != nil {
					t.Fatal(err)
				}
			}
			grown := int64(peak) - int64(base)
			t.Logf("heap grew by %d MiB at most", grown>>20)
			if grown > 5*minMemBytes {
				t.Errorf("heap grew by %d bytes with a budget of %d", grown, int64(minMemBytes))
			}
		})
	}
}

// TestConcurrent writes from several streams while others read, release and look.
func TestConcurrent(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, mode := range []Mode{Applied, Spooled} {
		s, err := Open(context.Background(), Options{
			Dir: t.TempDir(), Mode: mode, MemBytes: minMemBytes,
			tierBytes: 4 * blockSize, memtableBytes: 512 << 10, deleteBytes: 100 << 10, MaxBytes: 4 << 20,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		parts := make(chan *modelTxn, 16)
		var writers, readers sync.WaitGroup
		for c := range dtx.Content(4) {
			writers.Go(func() {
				w := s.Writer(c)
				rel, err := w.PutRelation(testRelation(7, "t", 1))
				if err != nil {
					t.Error(err)
					return
				}
				rng := rand.New(rand.NewPCG(uint64(c), 3))
				for i := range 100 {
					x := &modelTxn{content: c, streamed: i%3 == 0}
					if x.streamed {
						x.top = 5
					}
					x.tx = w.Begin(x.streamed)
					for j := range 1 + rng.IntN(300) {
						r := wantRow{typ: pgoutput.TypeInsert, xid: x.top, id: j, size: 100, names: []string{"t"}, width: []int{1}}
						if err := x.tx.Append(ctx, rel, pgotest.Insert(x.top, 7, pgotest.Text(value(r.id, r.size)))); err != nil {
							t.Error(err)
							return
						}
						x.rows = append(x.rows, r)
					}
					if x.part, err = x.tx.Commit(ctx, dtx.Part{EndLSN: dtx.LSN(i + 1)}); err != nil {
						t.Error(err)
						return
					}
					parts <- x
				}
				if err := w.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		for range 2 {
			readers.Go(func() {
				for x := range parts {
					if err := readPart(s, x); err != nil {
						t.Error(err)
					}
					_ = s.Usage()
					if err := s.Release([]dtx.Part{x.part}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		writers.Wait()
		close(parts)
		readers.Wait()
		cancel()
		if u := s.Usage(); u.Bytes != 0 || u.Parts != 0 || u.OpenTxns != 0 {
			t.Errorf("left: %+v", u)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
