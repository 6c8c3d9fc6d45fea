package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"

	"cbrepl/dtx"
	"cbrepl/faultinject"
	"cbrepl/internal/soak"
	"cbrepl/pgoutput"
	"cbrepl/pgoutput/pgotest"
)

// history is a fixed run of work on a spool, and what it was told.
type history struct {
	s     *Spool
	mem   *vfs.MemFS
	parts []*modelTxn // acknowledged, not released
	gone  map[dtx.LSN]bool
	rng   *rand.Rand
}

// run works until an error or the end. Data is large against the memtables, so
// that flushes, compactions and bulk deletes happen.
func (h *history) run(ctx context.Context, o Options) (err error) {
	s, err := Open(ctx, o)
	if err != nil {
		return err
	}
	h.s = s
	defer func() {
		if cerr := s.Close(); err == nil {
			err = cerr
		}
	}()
	w := [2]*Writer{s.Writer(0), s.Writer(1)}
	rel, err := w[0].PutRelation(testRelation(7, "t", 1))
	if err != nil {
		return err
	}
	var open [2]*modelTxn
	for i := range 80 {
		c := i % 2
		x := open[c]
		if x == nil {
			x = &modelTxn{content: dtx.Content(c), streamed: i%7 < 3, aborted: map[dtx.XID]bool{}}
			if x.streamed {
				x.top = dtx.XID(i + 10)
			}
			x.tx = w[c].Begin(x.streamed)
			open[c] = x
		}
		for j := range 1 + h.rng.IntN(200) {
			r := wantRow{typ: pgoutput.TypeInsert, xid: x.top, id: i*1000 + j, size: 100, names: []string{"t"}, width: []int{1}}
			if j == 7 {
				r.size = 20_000
			}
			if err := x.tx.Append(ctx, rel, pgotest.Insert(x.top, 7, pgotest.Text(value(r.id, r.size)))); err != nil {
				return err
			}
			x.rows = append(x.rows, r)
		}
		if h.rng.IntN(3) == 0 {
			continue
		}
		open[c] = nil
		if h.rng.IntN(8) == 0 {
			if err := x.tx.Prepare(ctx); err != nil {
				return err
			}
		}
		p, err := x.tx.Commit(ctx, dtx.Part{GXID: dtx.GXID(i), EndLSN: dtx.LSN(i + 1)})
		if err != nil {
			return err
		}
		if err := s.Sync(ctx); err != nil {
			return err
		}
		x.part = p
		h.parts = append(h.parts, x)
		if err := readPart(s, h.parts[h.rng.IntN(len(h.parts))]); err != nil {
			return err
		}
		if len(h.parts) > 25 {
			var ps []dtx.Part
			for _, x := range h.parts[:10] {
				ps = append(ps, x.part)
				h.gone[x.part.EndLSN] = true
			}
			h.parts = h.parts[10:]
			if err := s.Release(ps); err != nil {
				return err
			}
		}
	}
	for _, x := range h.parts {
		if err := readPart(s, x); err != nil {
			return err
		}
	}
	for _, w := range w {
		if err := w.Close(); err != nil {
			return err
		}
	}
	return s.Sync(ctx)
}

// verify opens the spool on a good disk and checks what was acknowledged.
func (h *history) verify(t *testing.T, o Options) {
	t.Helper()
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatalf("open on a good disk: %v", err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}()
	r, err := s.Recover(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if o.Mode == Applied {
		return
	}
	known := map[dtx.LSN]*modelTxn{}
	for _, x := range h.parts {
		known[x.part.EndLSN] = x
	}
	for _, ps := range r.Parts {
		for _, p := range ps {
			x := known[p.EndLSN]
			if x == nil {
				// Released before, or committed without the commit's return.
				if n := drain(t, s, p); int64(n) != p.Rows {
					t.Fatalf("part %+v has %d rows", p, n)
				}
				continue
			}
			if err := readPart(s, x); err != nil {
				t.Fatal(err)
			}
			delete(known, p.EndLSN)
		}
	}
	for _, x := range known {
		t.Errorf("acknowledged part %+v is lost", x.part)
	}
}

// TestReclaimCutOff ends between the records and the blocks of freed parts: the
// next life knows nothing of them and removes the blocks.
func TestReclaimCutOff(t *testing.T) {
	ctx := context.Background()
	mem := vfs.NewCrashableMem()
	o := Options{Dir: "spool", Mode: Spooled, FS: mem, deleteBytes: 1 << 30}
	s := openTest(t, o)
	w := s.Writer(0)
	var xs []*modelTxn
	for i := range 4 {
		x := &modelTxn{streamed: i%2 == 0}
		x.part.EndLSN = dtx.LSN(i + 1)
		writeRows(t, w, x, 500, 500)
		xs = append(xs, x)
	}
	if err := s.Release([]dtx.Part{xs[0].part, xs[1].part}); err != nil {
		t.Fatal(err)
	}
	if err := faultinject.Arm(FaultReclaimed + "=error"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = faultinject.Arm("") }()
	if err := s.reclaim(ctx, 0); !errors.Is(err, faultinject.ErrInjected) {
		t.Fatalf("reclaim: %v", err)
	}
	o.FS = mem.CrashClone(vfs.CrashCloneCfg{})
	s = openTest(t, o)
	r, err := s.Recover(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Parts[0]; len(got) != 2 || got[0] != xs[2].part || got[1] != xs[3].part {
		t.Fatalf("recovered %+v", got)
	}
	for _, x := range xs[2:] {
		if err := readPart(s, x); err != nil {
			t.Error(err)
		}
	}
	left := map[chainNum]bool{}
	if err := s.scan(ctx, prefixData, func(k, _ []byte) error {
		left[chainNum(binary.BigEndian.Uint64(k[4:]))] = true
		return nil
	}); err != nil || len(left) != 2 {
		t.Errorf("%d chains are on disk, %v", len(left), err)
	}
}

// TestFailingDisk fails the n-th operation on the file system, once or from then
// on, for rising n until nothing fails any more.
func TestFailingDisk(t *testing.T) {
	defer goleak.VerifyNone(t)
	seed := soak.Seed(t, 1)
	stride := int64(soak.Times(200, 4))
	if raceEnabled {
		stride = 500
	}
	for _, mode := range []Mode{Applied, Spooled} {
		for _, kind := range []string{"once", "from then on"} {
			t.Run(mode.String()+" "+kind, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 7))
				failures := 0
				for n := int64(1); ; n += 1 + rng.Int64N(stride) {
					h := &history{mem: vfs.NewCrashableMem(), gone: map[dtx.LSN]bool{}, rng: rand.New(rand.NewPCG(seed, 8))}
					var ops atomic.Int64
					var hit atomic.Pointer[string]
					fs := errorfs.Wrap(h.mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
						if i := ops.Add(1); i == n || i > n && kind != "once" {
							s := fmt.Sprintf("%d %s", op.Kind, op.Path)
							hit.CompareAndSwap(nil, &s)
							return errorfs.ErrInjected
						}
						return nil
					}))
					o := Options{
						Dir: "a/spool", Mode: mode, MemBytes: minMemBytes, tierBytes: 4 * blockSize,
						memtableBytes: 256 << 10, deleteBytes: 300 << 10, FS: fs,
					}
					err := h.run(context.Background(), o)
					if hit.Load() == nil {
						if err != nil {
							t.Fatalf("nothing failed, but: %v", err)
						}
						t.Logf("%d operations, %d runs failed", n, failures)
						break
					}
					if err != nil {
						failures++
						var e *dtx.Error
						if !errors.As(err, &e) {
							t.Fatalf("n=%d %s: error without a place: %v", n, *hit.Load(), err)
						}
					}
					crash := h.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(n % 101), RNG: rng})
					for _, disk := range []*vfs.MemFS{crash, h.mem} {
						o.FS = disk
						h.verify(t, o)
						if t.Failed() {
							t.Fatalf("n=%d %s: run ended with %v", n, *hit.Load(), err)
						}
					}
				}
				if failures == 0 {
					t.Errorf("only %d runs failed", failures)
				}
			})
		}
	}
}

// TestCloseWithFullMemtables: the last writes of a spool that is closed wait for no
// memtable, for nobody flushes any more.
func TestCloseWithFullMemtables(t *testing.T) {
	s := openTest(t, Options{Mode: Spooled, memtableBytes: 256 << 10})
	w := s.Writer(0)
	rel, err := w.PutRelation(testRelation(7, "t", 1))
	if err != nil {
		t.Fatal(err)
	}
	tx := w.Begin(true)
	if err := tx.Append(t.Context(), rel, pgotest.Insert(1, 7, pgotest.Text("x"))); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Commit(t.Context(), dtx.Part{GXID: 1, EndLSN: 1}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s.db.memtable = 0 // every write finds them full
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
