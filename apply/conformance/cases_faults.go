package conformance

import (
	"context"
	"crypto/md5"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/pgoutput/pgotest"
	"cbrepl/router"
)

// secret stands in rows whose values must not show up in errors.
const secret = "s3cr3t-value"

func testConflictStop(t *testing.T, f Fixture) {
	for _, s := range storages(f, Heap, AORow) {
		t.Run(string(s), func(t *testing.T) {
			tab := onStorage(intKey("stop"), s)
			kl := keyless("stop_kl", s, router.Hash)
			w := newWorld(t, f, apply.ConflictStop, tab, kl)
			for i := range 50 {
				w.src.Insert(tab, V(strconv.Itoa(i), "0", secret))
				w.src.Insert(kl, V(strconv.Itoa(i), secret, "1", `\N`))
			}
			w.commit()
			del := func(id string) {
				w.src.Raw(tab, V(id, "0", ""), func(rel uint32) []byte { return pgotest.Delete(0, rel, 'K', wire(V(id, `\N`, `\N`))...) })
			}
			upd := func(id string) {
				w.src.Raw(tab, V(id, "0", ""), func(rel uint32) []byte { return pgotest.Update(0, rel, 0, nil, wire(V(id, "1", secret))) })
			}
			ins := func(id string) {
				w.src.Raw(tab, V(id, "0", ""), func(rel uint32) []byte { return pgotest.Insert(0, rel, wire(V(id, "1", secret))...) })
			}
			gone := func() {
				w.src.Raw(kl, V("500", "", "", ""), func(rel uint32) []byte {
					return pgotest.Delete(0, rel, 'O', wire(V("500", secret, "1", `\N`))...)
				})
			}
			for name, c := range map[string]struct {
				run  func()
				says string
			}{
				"delete one":    {func() { del("5000") }, "the row to delete is not there"},
				"delete some":   {func() { del("1"); del("5001"); del("2") }, "the row to delete is not there"},
				"update one":    {func() { upd("5002") }, "the row to update is not there"},
				"update some":   {func() { upd("3"); upd("5003"); upd("4") }, "the row to update is not there"},
				"insert one":    {func() { ins("6") }, "the row to insert is there already"},
				"insert some":   {func() { ins("7000"); ins("7001"); ins("7"); ins("7002"); ins("7003") }, "the row to insert is there already"},
				"delete image":  {gone, "the row to delete is not there"},
				"fine, then no": {func() { ins("9000"); upd("9"); del("5004") }, "the row to delete is not there"},
			} {
				if tab.NoTargetKey && strings.HasPrefix(name, "insert") {
					continue // nothing on the target says that it is a duplicate
				}
				t.Run(name, func(t *testing.T) {
					c.run()
					gxid := w.src.Commit()
					wt := *w
					wt.t = t
					table := "stop"
					if name == "delete image" {
						table = "stop_kl"
					}
					err := wt.fails(dtx.ClassStop, c.says, table, "gxid "+gxid.String())
					if strings.Contains(err.Error(), secret) {
						t.Errorf("the error shows a value: %v", err)
					}
					w.src.batch--
				})
			}
			w.src.Insert(tab, V("8000", "0", "b")) // and it still works
			w.commit()
		})
	}
}

func testConflictLog(t *testing.T, f Fixture) {
	for _, s := range storages(f, Heap, AORow) {
		t.Run(string(s), func(t *testing.T) {
			tab := onStorage(intKey("log"), s)
			two := onStorage(&Table{
				Name: "log2", Columns: []Column{{Name: "id", Type: "bigint"}, {Name: "u", Type: "numeric"}},
				Key: []string{"id"}, Unique: [][]string{{"id", "u"}}, Dist: []string{"id"},
			}, s)
			kl := keyless("log_kl", s, router.Hash)
			w := newWorld(t, f, apply.ConflictLog, tab, two, kl)
			for i := range 100 {
				w.src.Insert(tab, V(strconv.Itoa(i), "0", "b"))
				w.src.Insert(kl, V(strconv.Itoa(i), "x", "1", `\N`))
				w.src.Insert(two, V(strconv.Itoa(i), "1.0"))
			}
			w.commit()
			want := map[string]int64{}
			for i := range 60 { // some of each are not there
				id := strconv.Itoa(i)
				if i%10 == 3 {
					gone := strconv.Itoa(1000 + i)
					w.src.Raw(tab, V(gone, "0", ""), func(rel uint32) []byte { return pgotest.Update(0, rel, 0, nil, wire(V(gone, "1", "u"))) })
					w.src.Raw(tab, V("9"+gone, "0", ""), func(rel uint32) []byte { return pgotest.Delete(0, rel, 'K', wire(V("9"+gone, `\N`, `\N`))...) })
					w.src.Raw(kl, V(gone, "", "", ""), func(rel uint32) []byte {
						return pgotest.Delete(0, rel, 'O', wire(V(gone, "x", "1", `\N`))...)
					})
					want[tab.String()] += 2
					want[kl.String()]++
				}
				w.src.Update(tab, w.src.Find(tab, id), V(id, "1", "u"))
				w.src.Delete(kl, w.src.Find(kl, id))
			}
			w.commit()
			if d := cmp.Diff(want, w.result.Conflicts, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("conflicts counted (-want +got):\n%s", d)
			}
			if tab.NoTargetKey {
				return
			}
			// Duplicates: rows of the table, of the batch itself, and some that are equal
			// without printing alike.
			want = map[string]int64{}
			dup := func(tab *Table, v Values) {
				w.src.Raw(tab, v, func(rel uint32) []byte { return pgotest.Insert(0, rel, wire(v)...) })
				want[tab.String()]++
			}
			for i := range 20 {
				dup(tab, V(strconv.Itoa(i*3), "7", "dup"))
				w.src.Insert(tab, V(strconv.Itoa(2000+i), "7", "new"))
			}
			dup(tab, V("2003", "8", "again"))
			dup(two, V("5", "1.00"))
			w.src.Insert(two, V("500", "3.0"))
			dup(two, V("500", "3.00"))
			w.src.Insert(two, V("501", "3"))
			w.commit()
			if d := cmp.Diff(want, w.result.Conflicts, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("conflicts counted (-want +got):\n%s", d)
			}
			dup(tab, V("2004", "8", "alone"))
			want = map[string]int64{tab.String(): 1}
			w.commit()
			if s := w.result.Skipped; len(s) != 1 || s[0].Table != tab.String() || s[0].GXID == 0 || s[0].LSN == 0 || s[0].Identity != "id" ||
				s[0].Digest != fmt.Sprintf("%x", md5.Sum([]byte("2004"))) {
				t.Errorf("skipped: %+v", s)
			}
			if d := cmp.Diff(want, w.result.Conflicts, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("conflicts counted (-want +got):\n%s", d)
			}
		})
	}
}

// testOtherErrors: what is not a divergence stops with its place, shows no values
// and leaves nothing behind.
func testOtherErrors(t *testing.T, f Fixture) {
	tab := intKey("errs")
	tab.Columns[2].NotNull = true
	w := newWorld(t, f, apply.ConflictLog, tab)
	for i := range 10 {
		w.src.Insert(tab, V(strconv.Itoa(i), "0", "b"))
	}
	w.commit()
	w.f.Exec(t, "ALTER TABLE "+tab.SQLName()+" ADD CONSTRAINT small CHECK (a < 1000)")
	for name, run := range map[string]func(){
		"check, many": func() {
			for i := range 10 {
				w.src.Raw(tab, V(strconv.Itoa(100+i)), func(rel uint32) []byte {
					return pgotest.Insert(0, rel, wire(V(strconv.Itoa(100+i), strconv.Itoa(995+i), secret))...)
				})
			}
		},
		"check, one": func() {
			w.src.Raw(tab, V("100"), func(rel uint32) []byte { return pgotest.Insert(0, rel, wire(V("100", "1000", secret))...) })
		},
		"not null": func() {
			w.src.Raw(tab, V("100"), func(rel uint32) []byte { return pgotest.Insert(0, rel, wire(V("100", "1", `\N`))...) })
		},
		"update": func() {
			w.src.Raw(tab, V("1"), func(rel uint32) []byte { return pgotest.Update(0, rel, 0, nil, wire(V("1", "5000", secret))) })
		},
		"updates": func() {
			for i := range 5 {
				w.src.Raw(tab, V("1"), func(rel uint32) []byte {
					return pgotest.Update(0, rel, 0, nil, wire(V(strconv.Itoa(i), strconv.Itoa(998+i), secret)))
				})
			}
		},
		"no number": func() {
			w.src.Raw(tab, V("100"), func(rel uint32) []byte { return pgotest.Insert(0, rel, wire(V("100", secret, "b"))...) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			run()
			gxid := w.src.Commit()
			wt := *w
			wt.t = t
			err := wt.fails(dtx.ClassStop, tab.String(), "gxid "+gxid.String())
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error shows a value: %v", err)
			}
			w.src.batch--
		})
	}
	w.src.Insert(tab, V("100", "1", "b"))
	w.commit()
}

// testState: positions, identities, batch number and dedup set are what was
// recorded, whoever opens.
func testState(t *testing.T, f Fixture) {
	w := newTables(t, f, apply.ConflictStop, intKey("state"))
	w.open()
	if w.state.Initialized || len(w.state.Positions) > 0 {
		t.Fatalf("a new subscription is initialized: %+v", w.state)
	}
	if _, err := w.tg.Apply(testCtx(t), w.src.Batch(), w.src); dtx.ClassOf(err) != dtx.ClassStop || err == nil {
		t.Fatalf("a batch before the first positions: %v", err)
	}
	w.src.batch--
	streams, positions := w.src.First()
	if err := w.tg.Init(testCtx(t), apply.Beginning{Streams: streams, Positions: positions}); err != nil {
		t.Fatalf("init: %v", err)
	}
	if err := w.tg.Init(testCtx(t), apply.Beginning{Streams: streams, Positions: positions}); err == nil {
		t.Fatal("positions were recorded twice")
	}
	want := apply.State{Initialized: true, Positions: positions, Streams: streams}
	dedup := map[dtx.GXID]dtx.DedupEntry{}
	check := func() {
		t.Helper()
		_ = w.tg.Close()
		again := f.Target(t, w.opts)
		t.Cleanup(func() { _ = again.Close() })
		w.tg = again
		w.open()
		want.Dedup = nil
		for g := dtx.GXID(0); g < 1000; g++ {
			if e, ok := dedup[g]; ok {
				want.Dedup = append(want.Dedup, e)
			}
		}
		if e, ok := dedup[1<<63+5]; ok {
			want.Dedup = append(want.Dedup, e)
		}
		if w.state.Epoch <= want.Epoch {
			t.Fatalf("epoch %d after epoch %d", w.state.Epoch, want.Epoch)
		}
		want.Epoch = w.state.Epoch
		if want.Token == "" {
			want.Token = w.state.Token // given by Init, for good
		}
		if d := cmp.Diff(want, w.state, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("state (-want +got):\n%s", d)
		}
	}
	check()
	apply := func(b *dtx.Batch) {
		t.Helper()
		b.Seq = want.Batch + 1
		if _, err := w.tg.Apply(testCtx(t), b, w.src); err != nil {
			t.Fatalf("apply: %v", err)
		}
		want.Batch++
		for _, p := range b.Positions {
			for i := range want.Positions {
				if want.Positions[i].Content == p.Content {
					want.Positions[i].LSN = p.LSN
				}
			}
		}
		for _, g := range b.DedupDrop {
			delete(dedup, g)
		}
		for _, e := range b.DedupAdd {
			dedup[e.GXID] = e
		}
	}
	entry := func(g dtx.GXID, ps ...dtx.Position) dtx.DedupEntry { return dtx.DedupEntry{GXID: g, Pending: ps} }
	apply(&dtx.Batch{Positions: []dtx.Position{{Content: 1, LSN: 0xABCDEF12345}}}) // positions only
	check()
	apply(&dtx.Batch{DedupAdd: []dtx.DedupEntry{entry(5, dtx.Position{Content: -1, LSN: dtx.MaxLSN}, dtx.Position{Content: 2, LSN: 7}), entry(1<<63 + 5)}})
	check()
	many := &dtx.Batch{Positions: []dtx.Position{{Content: -1, LSN: 0x2000}, {Content: 0, LSN: 0x1000}}}
	for g := dtx.GXID(10); g < 300; g++ {
		many.DedupAdd = append(many.DedupAdd, entry(g, dtx.Position{Content: 0, LSN: dtx.LSN(g)}))
	}
	apply(many)
	check()
	// One is replaced, many go, some come.
	many = &dtx.Batch{DedupDrop: []dtx.GXID{5}, DedupAdd: []dtx.DedupEntry{entry(5, dtx.Position{Content: 2, LSN: 7})}}
	for g := dtx.GXID(10); g < 290; g++ {
		many.DedupDrop = append(many.DedupDrop, g)
	}
	for g := dtx.GXID(300); g < 312; g++ {
		many.DedupAdd = append(many.DedupAdd, entry(g, dtx.Position{Content: 1, LSN: dtx.LSN(g)}))
	}
	apply(many)
	check()
	for name, b := range map[string]*dtx.Batch{
		"a number left out": {Seq: want.Batch + 2},
		"the last again":    {Seq: want.Batch},
		"a stream moves back": {
			Seq:       want.Batch + 1,
			Positions: []dtx.Position{{Content: 1, LSN: 5}},
		},
		"an unknown stream": {Seq: want.Batch + 1, Positions: []dtx.Position{{Content: 17, LSN: 5}}},
	} {
		if _, err := w.tg.Apply(testCtx(t), b, w.src); err == nil || dtx.ClassOf(err) != dtx.ClassStop {
			t.Errorf("%s: %v", name, err)
		}
	}
	check()
}

// testLock: one daemon at a time.
func testLock(t *testing.T, f Fixture) {
	w := newWorld(t, f, apply.ConflictStop, intKey("locked"))
	w.src.Insert(w.tables[0], V("1", "1", "b"))
	w.commit()
	rival := f.Target(t, w.opts)
	defer func() { _ = rival.Close() }()
	_, err := rival.Open(testCtx(t))
	wantError(t, err, dtx.ClassStop, "another daemon", w.opts.Subscription)
	w.src.Insert(w.tables[0], V("2", "1", "b"))
	w.commit() // the first goes on
	_ = w.tg.Close()
	st, err := rival.Open(testCtx(t))
	if err != nil || st.Epoch <= w.state.Epoch || st.Batch != 2 {
		t.Fatalf("open after the first has closed: %+v, %v", st, err)
	}
}

// testFencing: a daemon that lost its session, and with it the lock, cannot write
// once another one has opened, and learns that it was replaced.
func testFencing(t *testing.T, f Fixture) {
	tab := intKey("fenced")
	w := newWorld(t, f, apply.ConflictStop, tab)
	for i := range 20 {
		w.src.Insert(tab, V(strconv.Itoa(i), "1", "b"))
	}
	w.commit()
	rival := f.Target(t, w.opts)
	defer func() { _ = rival.Close() }()
	f.Sever(t, w.opts.Subscription)
	if _, err := openUntil(t, rival); err != nil {
		t.Fatalf("open of the rival: %v", err)
	}
	w.src.Insert(tab, V("50", "1", "old"))
	w.src.Commit()
	b := w.src.Batch()
	if _, err := w.tg.Apply(testCtx(t), b, w.src); err == nil || dtx.ClassOf(err) != dtx.ClassRetry {
		t.Fatalf("the old daemon's batch: %v", err)
	}
	w.tables = nil
	if got := f.Dump(t, tab, []string{"id"}); len(got) != 20 {
		t.Fatalf("%d rows after the old daemon's batch", len(got))
	}
	// The rival applies a batch of its own; the old daemon then must not go on from
	// what it holds in memory.
	if _, err := rival.Apply(testCtx(t), b, w.src); err != nil {
		t.Fatalf("the rival's batch: %v", err)
	}
	_ = rival.Close()
	_, err := w.tg.Open(testCtx(t))
	if err == nil {
		t.Fatal("the old daemon opened as if nothing had happened")
	}
	wantError(t, err, dtx.ClassStop, "another daemon has applied batches")
}

// openUntil opens, again while the fault passes.
func openUntil(t *testing.T, tg apply.Target) (apply.State, error) {
	deadline := time.Now().Add(time.Minute)
	for {
		st, err := tg.Open(testCtx(t))
		if err == nil || time.Now().After(deadline) {
			return st, err
		}
	}
}

// testLostConnection: the session is cut while rows are being read; nothing of the
// batch stays, and after Open it is applied as if never tried.
func testLostConnection(t *testing.T, f Fixture) {
	tab := intKey("lost")
	w := newWorld(t, f, apply.ConflictStop, tab)
	for i := range 500 {
		w.src.Insert(tab, V(strconv.Itoa(i), "1", "b"))
	}
	w.commit()
	for i := range 400 {
		w.src.Update(tab, w.src.Find(tab, strconv.Itoa(i)), V(strconv.Itoa(i), "2", strings.Repeat("x", 3000)))
	}
	for i := 1000; i < 1500; i++ {
		w.src.Insert(tab, V(strconv.Itoa(i), "1", strings.Repeat("y", 3000)))
	}
	w.src.Commit()
	b := w.src.Batch()
	read := 0
	w.src.OnRow = func() {
		if read++; read == 700 {
			f.Sever(t, w.opts.Subscription)
		}
	}
	if _, err := w.tg.Apply(testCtx(t), b, w.src); err == nil || dtx.ClassOf(err) != dtx.ClassRetry {
		t.Fatalf("apply over a cut connection: %v", err)
	}
	w.src.OnRow = nil
	if _, err := w.tg.Apply(testCtx(t), b, w.src); err == nil {
		t.Fatal("apply went on without Open")
	}
	st, err := openUntil(t, w.tg)
	if err != nil || st.Batch != b.Seq-1 {
		t.Fatalf("open: %+v, %v", st, err)
	}
	if _, err := w.tg.Apply(testCtx(t), b, w.src); err != nil {
		t.Fatalf("apply again: %v", err)
	}
	w.check()
	// A spool that fails and a daemon told to stop leave nothing behind either.
	w.src.Insert(tab, V("5000", "1", "b"))
	w.src.Commit()
	b = w.src.Batch()
	if _, err := w.tg.Apply(testCtx(t), b, brokenRows{}); err == nil {
		t.Fatal("a broken spool went unnoticed")
	}
	if _, err := openUntil(t, w.tg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(testCtx(t))
	w.src.OnRow = cancel
	if _, err := w.tg.Apply(ctx, b, w.src); err == nil {
		t.Fatal("a cancelled batch was applied")
	}
	w.src.OnRow = nil
	if st, err = openUntil(t, w.tg); err != nil || st.Batch != b.Seq-1 {
		t.Fatalf("open: %+v, %v", st, err)
	}
	if _, err := w.tg.Apply(testCtx(t), b, w.src); err != nil {
		t.Fatal(err)
	}
	w.check()
}

// brokenRows is a spool that cannot be read.
type brokenRows struct{}

func (brokenRows) Open(dtx.Part) (apply.RowIter, error) { return brokenRows{}, nil }
func (brokenRows) Next() (*pgoutput.Change, error) {
	return nil, fmt.Errorf("read spool: %w", io.ErrUnexpectedEOF)
}
func (brokenRows) Close() error { return nil }
