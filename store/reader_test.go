package store

import (
	"context"
	"errors"
	"io"
	"testing"

	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/pgoutput/pgotest"
)

// FuzzReader reads arbitrary bytes as a block: an error or an end, never a panic
// and never without end.
func FuzzReader(f *testing.F) {
	ctx := context.Background()
	s := openTest(f, Options{})
	w := s.Writer(0)
	rel, err := w.PutRelation(testRelation(7, "t", 1))
	if err != nil {
		f.Fatal(err)
	}
	// Blocks as they are written are the seeds.
	for i, n := range []int{10, 9000, 40} {
		tx := w.Begin(i == 2)
		xid := dtx.XID(0)
		if i == 2 {
			xid = 9
		}
		for range 3 {
			if err := tx.Append(ctx, rel, pgotest.Insert(xid, 7, pgotest.Text(value(1, n)))); err != nil {
				f.Fatal(err)
			}
		}
		if err := tx.AppendTruncate(ctx, []RelVersion{rel}, pgotest.Truncate(xid, 0, 7)); err != nil {
			f.Fatal(err)
		}
		p, err := tx.Commit(ctx, dtx.Part{EndLSN: dtx.LSN(i + 1)})
		if err != nil {
			f.Fatal(err)
		}
		r, err := s.Open(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append([]byte(nil), r.(*reader).b...))
		_ = r.Close()
	}
	lane := s.lane(5)
	f.Fuzz(func(t *testing.T, b []byte) {
		lane.mu.Lock()
		c := s.newChain(lane, classOwn)
		c.growing = false
		c.txns, c.live = []uint32{txnReadable}, 1
		if len(b) > 0 {
			c.mem = []memBlock{{buf: b}}
		}
		lane.mu.Unlock()
		p := dtx.Part{Content: 5, Spool: spoolID(c.num, 0)}
		r, err := s.Open(p)
		for n := 0; err == nil; n++ {
			var ch *pgoutput.Change
			if ch, err = r.Next(); err == nil && ch == nil || n > len(b) {
				t.Fatalf("no change and no error after %d", n)
			}
		}
		var e *dtx.Error
		if !errors.Is(err, io.EOF) && !errors.As(err, &e) {
			t.Fatalf("error without a place: %v", err)
		}
		if r != nil {
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Release([]dtx.Part{p}); err != nil {
			t.Fatal(err)
		}
	})
}

// TestReaderPinsRows: a part released under its reader stays readable to it, and
// its room is given back afterwards.
func TestReaderPinsRows(t *testing.T) {
	for name, o := range map[string]Options{"memory": {}, "disk": {tierBytes: -1}, "spooled": {Mode: Spooled}} {
		t.Run(name, func(t *testing.T) {
			o.deleteBytes = 1
			s := openTest(t, o)
			w := s.Writer(0)
			for _, streamed := range []bool{false, true} {
				x := &modelTxn{streamed: streamed}
				writeRows(t, w, x, 500, 500)
				r, err := s.Open(x.part)
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Release([]dtx.Part{x.part}); err != nil {
					t.Fatal(err)
				}
				if _, err := s.Open(x.part); !errors.Is(err, errNotSpooled) {
					t.Fatalf("released part opens: %v", err)
				}
				other := &modelTxn{}
				writeRows(t, w, other, 500, 500)
				for _, row := range x.rows {
					c, err := r.Next()
					if err != nil {
						t.Fatal(err)
					}
					if err := row.check(c); err != nil {
						t.Fatal(err)
					}
				}
				if err := errors.Join(r.Close(), r.Close()); err != nil {
					t.Fatal(err)
				}
				if err := s.Release([]dtx.Part{other.part}); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if u := s.Usage(); u.Bytes != 0 || u.MemBytes != 0 {
				t.Errorf("left: %+v", u)
			}
		})
	}
}

// TestRelationsAreStable: one pointer per version, whoever asks and whenever.
func TestRelationsAreStable(t *testing.T) {
	s := openTest(t, Options{})
	first := s.rels
	v, err := s.Writer(0).PutRelation(testRelation(1, "a", 1))
	if err != nil {
		t.Fatal(err)
	}
	a := first.get(v)
	for i := range 200 {
		if _, err := s.Writer(1).PutRelation(testRelation(uint32(i+2), "b", i%7)); err != nil {
			t.Fatal(err)
		}
	}
	again, err := s.Writer(2).PutRelation(testRelation(1, "a", 1))
	if err != nil || again != v || s.rels.get(again) != a {
		t.Errorf("version %d at %p became %d at %p (%v)", v, a, again, s.rels.get(again), err)
	}
	if _, err := s.Writer(0).PutRelation([]byte{1, 2}); !errors.Is(err, pgoutput.ErrMalformed) {
		t.Errorf("a malformed relation: %v", err)
	}
	if s.rels.get(0) != nil || s.rels.get(1000) != nil {
		t.Error("versions nobody announced are known")
	}
}

// TestRowsDoNotAllocate pins the row path at no allocation, both ways.
func TestRowsDoNotAllocate(t *testing.T) {
	for name, o := range map[string]Options{"memory": {}, "disk": {tierBytes: -1}} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			s := openTest(t, o)
			w := s.Writer(0)
			rel, err := w.PutRelation(testRelation(7, "t", 1))
			if err != nil {
				t.Fatal(err)
			}
			msg := pgotest.Insert(0, 7, pgotest.Text(value(1, 100)))
			const rows = 50_000
			var p dtx.Part
			write := testing.AllocsPerRun(3, func() {
				tx := w.Begin(false)
				for range rows {
					if err := tx.Append(ctx, rel, msg); err != nil {
						t.Fatal(err)
					}
				}
				if p, err = tx.Commit(ctx, dtx.Part{EndLSN: p.EndLSN + 1}); err != nil {
					t.Fatal(err)
				}
			})
			read := testing.AllocsPerRun(3, func() { drain(t, s, p) })
			// A block holds about 500 rows; what is allocated per block is not of interest.
			t.Logf("allocations of %d rows: %.0f written, %.0f read", rows, write, read)
			if write > rows/50 || read > rows/50 {
				t.Errorf("%.0f allocations to write %d rows, %.0f to read them", write, rows, read)
			}
		})
	}
}
