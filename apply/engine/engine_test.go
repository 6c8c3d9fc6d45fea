package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/router"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench-like fixture: table t (id, u, v, big) with a unique u, and a column x
// that only the target has.
type fixture struct {
	e   *Engine
	m   *model
	rel *pgoutput.Relation
	tgt *catalog.Table
	src catalog.PublishedTable
}

func newFixture(t *testing.T, opt apply.Options, segments int, identity pgoutput.ReplicaIdentity) *fixture {
	t.Helper()
	f := &fixture{}
	f.rel = &pgoutput.Relation{ID: 1, Schema: "public", Name: "t", Identity: identity}
	f.src = catalog.PublishedTable{Schema: "public", Name: "t", Identity: identity, Policy: router.Policy{Kind: router.Hash, NumSegments: 1}}
	f.tgt = &catalog.Table{Schema: "public", Name: "t", Kind: catalog.Heap, Policy: router.Policy{
		Kind: router.Hash, NumSegments: segments,
		Columns: []router.Column{{Name: "id", Type: textType}},
	}}
	for i, n := range []string{"id", "u", "v", "big"} {
		f.rel.Columns = append(f.rel.Columns, pgoutput.Column{Name: n, TypeOID: 25, Key: i == 0 || identity == 'f'})
		f.src.Columns = append(f.src.Columns, catalog.PublishedColumn{Name: n, TypeOID: 25, Key: i == 0 || identity == 'f', PrimaryKey: i == 0})
		f.tgt.Columns = append(f.tgt.Columns, textColumn(n))
	}
	x := textColumn("x")
	x.HasDefault = true
	f.tgt.Columns = append(f.tgt.Columns, x)
	f.tgt.Columns[0].NotNull = true
	f.tgt.Uniques = []catalog.Unique{{Name: "pk", Columns: []int{0}, Reads: []int{0}, Plain: true, Primary: true}, {Name: "u", Columns: []int{1}, Reads: []int{1}, Plain: true}}
	f.m = newModel(segments, f.tgt)
	var err error
	if f.e, err = New(opt, apply.NameMap{}, []catalog.PublishedTable{f.src}, []*catalog.Table{f.tgt}, f.m.Segments(), nil); err != nil {
		t.Fatal(err)
	}
	return f
}

func vals(s ...string) []pgoutput.Value {
	var out []pgoutput.Value
	for _, v := range s {
		switch v {
		case "NULL":
			out = append(out, pgoutput.Value{Kind: 'n'})
		case "?":
			out = append(out, pgoutput.Value{Kind: 'u'})
		default:
			out = append(out, pgoutput.Value{Kind: 't', Data: []byte(v)})
		}
	}
	return out
}

func (f *fixture) ins(v ...string) *pgoutput.Change {
	return rowMessage(f.rel, 'I', 0, nil, vals(v...))
}

func (f *fixture) upd(v ...string) *pgoutput.Change {
	return rowMessage(f.rel, 'U', 0, nil, vals(v...))
}

func (f *fixture) del(id string) *pgoutput.Change {
	return rowMessage(f.rel, 'D', 'K', vals(id, "NULL", "NULL", "NULL"), nil)
}

func (f *fixture) key(old string, v ...string) *pgoutput.Change {
	return rowMessage(f.rel, 'U', 'K', vals(old, "NULL", "NULL", "NULL"), vals(v...))
}

// readOrder notes the content of every change that is read.
type readOrder struct {
	memRows
	contents []dtx.Content
}

type notedIter struct {
	apply.RowIter
	o *readOrder
	c dtx.Content
}

func (o *readOrder) Open(p dtx.Part) (apply.RowIter, error) {
	it, err := o.memRows.Open(p)
	return notedIter{it, o, p.Content}, err
}

func (it notedIter) Next() (*pgoutput.Change, error) {
	c, err := it.RowIter.Next()
	if err == nil {
		it.o.contents = append(it.o.contents, it.c)
	}
	return c, err
}

// TestTurns: contents are read in turns, so that the segments which their rows
// go to are at work side by side; the parts of one content in order.
func TestTurns(t *testing.T) {
	for _, deferrable := range []bool{false, true} {
		f := newFixture(t, apply.Options{TurnRows: 2}, 2, 'd')
		f.e.inOrder = deferrable
		o := &readOrder{memRows: memRows{}}
		step := dtx.Step{}
		id := 0
		for _, c := range []dtx.Content{0, 0, 1} {
			id++
			spool := dtx.SpoolID(id)
			for n := range 3 {
				k := fmt.Sprintf("%d.%d", id, n)
				o.memRows[spool] = append(o.memRows[spool], f.ins(k, k, "", ""))
			}
			step.Parts = append(step.Parts, dtx.Part{GXID: dtx.GXID(id), Content: c, Spool: spool})
		}
		if _, err := f.e.Apply(t.Context(), &dtx.Batch{Steps: []dtx.Step{step}}, o, f.m); err != nil {
			t.Fatal(err)
		}
		want := []dtx.Content{0, 0, 1, 1, 0, 1, 0, 0, 0}
		if deferrable { // rows may be held back to the end of their part
			want = []dtx.Content{0, 0, 0, 1, 1, 1, 0, 0, 0}
		}
		if !slices.Equal(o.contents, want) {
			t.Errorf("deferrable %v: read in the order %v, want %v", deferrable, o.contents, want)
		}
	}
}

// apply applies dtxs of one content each.
func (f *fixture) apply(ctx context.Context, dtxs ...[]*pgoutput.Change) (apply.Result, error) {
	rows := memRows{}
	step := dtx.Step{}
	for i, changes := range dtxs {
		rows[dtx.SpoolID(i+1)] = changes
		step.Parts = append(step.Parts, dtx.Part{GXID: dtx.GXID(100 + i), Content: 2, EndLSN: dtx.LSN(0x10 * (i + 1)), Spool: dtx.SpoolID(i + 1), Lowest: true})
	}
	return f.e.Apply(ctx, &dtx.Batch{Steps: []dtx.Step{step}}, rows, f.m)
}

func (f *fixture) must(t *testing.T, dtxs ...[]*pgoutput.Change) apply.Result {
	t.Helper()
	res, err := f.apply(t.Context(), dtxs...)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func changes(c ...*pgoutput.Change) []*pgoutput.Change { return c }

// A batch that contradicts itself or the target names the dtx at fault, by each
// path a change can take.
func TestConflictPlace(t *testing.T) {
	for _, c := range []struct {
		name string
		// bad is the second of three dtxs.
		bad  func(f *fixture) []*pgoutput.Change
		want string
	}{
		{"insert of a row there, passed on", func(f *fixture) []*pgoutput.Change { return changes(f.ins("1", "x", "v", "b")) }, "to insert is there already"},
		{"insert of a row there, folded", func(f *fixture) []*pgoutput.Change {
			return changes(f.del("3"), f.ins("1", "x", "v", "b"))
		}, "to insert is there already"},
		{"insert twice in the batch", func(f *fixture) []*pgoutput.Change {
			return changes(f.del("3"), f.ins("9", "9", "v", "b"), f.ins("9", "99", "v", "b"))
		}, "to insert is there already"},
		{"unique value taken", func(f *fixture) []*pgoutput.Change { return changes(f.ins("8", "u1", "v", "b")) }, "to insert is there already"},
		{"update", func(f *fixture) []*pgoutput.Change { return changes(f.upd("8", "8", "v", "b")) }, "to update is not there"},
		{"update that sets nothing", func(f *fixture) []*pgoutput.Change { return changes(f.upd("8", "?", "?", "?")) }, "to update is not there"},
		{"update of a row deleted before", func(f *fixture) []*pgoutput.Change { return changes(f.del("2"), f.upd("2", "8", "v", "b")) }, "to update is not there"},
		{"delete", func(f *fixture) []*pgoutput.Change { return changes(f.del("8")) }, "to delete is not there"},
		{"delete twice", func(f *fixture) []*pgoutput.Change { return changes(f.del("2"), f.del("2")) }, "to delete is not there"},
		{"insert, delete, delete", func(f *fixture) []*pgoutput.Change {
			return changes(f.del("3"), f.ins("9", "9", "v", "b"), f.del("9"), f.del("9"))
		}, "to delete is not there"},
		{"key change", func(f *fixture) []*pgoutput.Change { return changes(f.key("8", "9", "8", "v", "b")) }, "to update is not there"},
		{"key change with a fetch", func(f *fixture) []*pgoutput.Change { return changes(f.key("8", "9", "8", "v", "?")) }, "to update is not there"},
		{"key change onto another row", func(f *fixture) []*pgoutput.Change { return changes(f.key("2", "1", "8", "v", "b")) }, "to insert is there already"},
		{"key change onto a row of the batch", func(f *fixture) []*pgoutput.Change {
			return changes(f.upd("1", "u1", "w", "b"), f.key("2", "1", "8", "v", "b"))
		}, "to insert is there already"},
	} {
		t.Run(c.name, func(t *testing.T) {
			segments := 2
			if c.name == "unique value taken" { // by a row that may be elsewhere
				segments = 1
			}
			f := newFixture(t, apply.Options{}, segments, 'd')
			f.must(t, changes(f.ins("1", "u1", "v", "b"), f.ins("2", "u2", "v", "b"), f.ins("3", "u3", "v", "b"), f.ins("4", "u4", "v", "b"), f.ins("5", "u5", "v", "b")))
			before := f.m.lines(f.tgt, true)
			_, err := f.apply(t.Context(), changes(f.ins("50", "50", "v", "b"), f.upd("4", "u4", "w", "?")), c.bad(f), changes(f.upd("5", "u5", "w", "b"), f.ins("51", "51", "v", "b")))
			if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, apply.ErrDiverged) {
				t.Fatalf("error %v, want %q", err, c.want)
			}
			var de *dtx.Error
			if !errors.As(err, &de) || de.GXID != 101 || de.Content != dtx.AtContent(2) || de.LSN != 0x20 || de.Relation != "public.t" || de.Class != dtx.ClassStop {
				t.Errorf("place of %v", err)
			}
			// Logged instead: everything else is applied.
			f = newFixture(t, apply.Options{OnConflict: apply.ConflictLog}, segments, 'd')
			f.must(t, changes(f.ins("1", "u1", "v", "b"), f.ins("2", "u2", "v", "b"), f.ins("3", "u3", "v", "b"), f.ins("4", "u4", "v", "b"), f.ins("5", "u5", "v", "b")))
			res := f.must(t, changes(f.ins("50", "50", "v", "b"), f.upd("4", "u4", "w", "?")), c.bad(f), changes(f.upd("5", "u5", "w", "b"), f.ins("51", "51", "v", "b")))
			if res.Conflicts["public.t"] != 1 {
				t.Errorf("conflicts %v, want 1", res.Conflicts)
			}
			after := strings.Join(f.m.lines(f.tgt, false), " ")
			for _, want := range []string{"[50 50 v b default]", "[51 51 v b default]", "[4 u4 w b default]", "[5 u5 w b default]"} {
				if !strings.Contains(after, want) {
					t.Errorf("row %s is missing: %s (before %v)", want, after, before)
				}
			}
		})
	}
}

// Every operation of a batch fails once: the error comes through, nothing hangs,
// and the engine is ready for the batch again.
func TestFailAtEveryOperation(t *testing.T) {
	for n := 1; ; n++ {
		f := newFixture(t, apply.Options{WindowRows: 3, ChunkBytes: 1, QueueBytes: 64}, 3, 'd')
		f.must(t, changes(f.ins("1", "u1", "v", "b"), f.ins("2", "u2", "v", "b"), f.ins("3", "u3", "v", "b")))
		work := func() []*pgoutput.Change {
			return changes(f.ins("4", "u4", "v", "b"), f.upd("1", "u9", "w", "?"), f.key("2", "20", "u2", "w", "?"), f.del("3"), f.ins("5", "u5", "v", "b"),
				f.ins("3", "u3", "again", "b"), f.upd("5", "u5", "w", "b"), f.del("4"))
		}
		saved := map[dtx.Content][]*mrow{}
		for seg, rows := range f.m.rows[f.tgt] {
			for _, r := range rows {
				saved[seg] = append(saved[seg], &mrow{slices.Clone(r.vals)})
			}
		}
		f.m.statements, f.m.failAt = 0, n
		_, err := f.apply(t.Context(), work())
		if err == nil {
			if n < 8 {
				t.Fatalf("only %d operations", n-1)
			}
			return
		}
		if !strings.Contains(err.Error(), "injected") || !strings.Contains(err.Error(), "public.t") || !strings.Contains(err.Error(), "gxid 100") {
			t.Fatalf("operation %d: %v", n, err)
		}
		f.m.rows[f.tgt], f.m.failAt = saved, 0 // rolled back
		f.must(t, work())
		if got := strings.Join(f.m.lines(f.tgt, false), " "); got != "[1 u9 w b default] [20 u2 w b default] [3 u3 again b default] [5 u5 w b default]" {
			t.Fatalf("after a failure of operation %d and a retry: %s", n, got)
		}
	}
}

// stuck blocks in Copy until the context ends.
type stuck struct {
	*model
	entered chan struct{}
}

func (s stuck) Copy(ctx context.Context, _ dtx.Content, _ *apply.CopyOp) (apply.Inserted, error) {
	s.entered <- struct{}{}
	<-ctx.Done()
	return apply.Inserted{}, ctx.Err()
}

// A canceled context ends Apply, with operations running and waiting.
func TestCancel(t *testing.T) {
	f := newFixture(t, apply.Options{ChunkBytes: 1, QueueBytes: 10}, 2, 'd')
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b := stuck{f.m, make(chan struct{}, 100)}
	go func() {
		<-b.entered
		cancel()
	}()
	var rows []*pgoutput.Change
	for i := range 500 {
		rows = append(rows, f.ins(fmt.Sprint(i), fmt.Sprint(i), "v", "b"))
	}
	_, err := f.e.Apply(ctx, &dtx.Batch{Steps: []dtx.Step{{Parts: []dtx.Part{{GXID: 1, Spool: 1}}}}}, memRows{1: rows}, b)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
}

// Errors of the stream itself.
func TestProtocolErrors(t *testing.T) {
	f := newFixture(t, apply.Options{}, 2, 'd')
	none := newFixture(t, apply.Options{}, 2, 'n')
	full := newFixture(t, apply.Options{}, 2, 'f')
	other := &pgoutput.Relation{ID: 9, Schema: "public", Name: "other", Columns: f.rel.Columns}
	more := &pgoutput.Relation{ID: 1, Schema: "public", Name: "t", Identity: 'd', Columns: append(slices.Clone(f.rel.Columns), pgoutput.Column{Name: "new"})}
	binary := rowMessage(f.rel, 'I', 0, nil, vals("1", "2", "3", "4"))
	raw := binary.New.Raw()
	raw[0] = 'b'
	for _, c := range []struct {
		name   string
		f      *fixture
		change *pgoutput.Change
		want   []string
	}{
		{"unknown table", f, rowMessage(other, 'I', 0, nil, vals("1", "2", "3", "4")), []string{"public.other", "not among those that are replicated", "cbrepl table take"}},
		{"unknown column", f, rowMessage(more, 'I', 0, nil, vals("1", "2", "3", "4", "5")), []string{`column "new" is missing on the target`}},
		{"too few columns", f, rowMessage(f.rel, 'I', 0, nil, vals("1", "2", "3")), []string{"3 columns, its relation 4"}},
		{"binary", f, binary, []string{"binary format"}},
		{"insert without a value", f, f.ins("1", "2", "3", "?"), []string{"without a value for column big"}},
		{"key without its value", f, f.upd("?", "2", "3", "4"), []string{"column id belongs to the row's identity"}},
		{"null key", f, f.upd("NULL", "2", "3", "4"), []string{"column id", "NULL"}},
		{"update without identity", none, none.upd("1", "2", "3", "4"), []string{"update of a row without an identity"}},
		{"delete without identity", none, none.del("1"), []string{"delete of a row without an identity"}},
		{"full without old row", full, full.upd("1", "2", "3", "4"), []string{"without its old row"}},
		{"full with a key only", full, full.del("1"), []string{"the key of the old row only"}},
		{"truncate outside a barrier", f, &pgoutput.Change{Row: pgoutput.Row{Type: 'T'}, Relations: []*pgoutput.Relation{f.rel}}, []string{"not marked as a barrier"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := c.f.apply(t.Context(), changes(c.change))
			if err == nil {
				t.Fatal("no error")
			}
			if c.name == "unknown column" { // the target's catalogue is read again, once
				if dtx.ClassOf(err) != dtx.ClassRetry {
					t.Errorf("class of %v", err)
				}
				_, err = c.f.apply(t.Context(), changes(c.change))
			}
			if dtx.ClassOf(err) != dtx.ClassStop {
				t.Errorf("class of %v", err)
			}
			for _, w := range append(c.want, "gxid 100", "content 2", "LSN 0/10") {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error does not say %q: %v", w, err)
				}
			}
		})
	}
}

// The old tuple of kind K: nulls are not values (a partial update after a key
// change keeps the large value), and an unchanged key is read from it.
func TestOldTuple(t *testing.T) {
	f := newFixture(t, apply.Options{}, 2, 'd')
	f.must(t, changes(f.ins("1", "u1", "v", "BIG"), f.ins("2", "u2", "v", "BIG2")))
	f.must(t, changes(f.key("1", "10", "u1", "w", "?"), f.upd("10", "u1", "x", "?")), changes(f.key("2", "?", "u2", "w", "?")))
	if got := strings.Join(f.m.lines(f.tgt, false), " "); got != "[10 u1 x BIG default] [2 u2 w BIG2 default]" {
		t.Fatal(got)
	}
}

// Problems found at start are all in one error.
func TestNewEngineProblems(t *testing.T) {
	good := newFixture(t, apply.Options{}, 2, 'd')
	src := func(name string, cols ...string) catalog.PublishedTable {
		s := catalog.PublishedTable{Schema: "public", Name: name, Identity: 'd', Policy: router.Policy{Kind: router.Hash, NumSegments: 2}}
		for i, c := range cols {
			s.Columns = append(s.Columns, catalog.PublishedColumn{Name: c, TypeOID: 25, Key: i == 0, PrimaryKey: i == 0})
		}
		return s
	}
	tgt := func(name, dist string, cols ...string) *catalog.Table {
		t := &catalog.Table{Schema: "public", Name: name, Kind: catalog.Heap, Policy: router.Policy{Kind: router.Random, NumSegments: 2}}
		for _, c := range cols {
			t.Columns = append(t.Columns, textColumn(c))
		}
		if dist != "" {
			t.Policy.Kind = router.Hash
			t.Policy.Columns = []router.Column{{Name: dist, Type: textType}}
		}
		return t
	}
	gen := tgt("gen", "", "id", "g")
	gen.Columns[1].Generated = true
	view := tgt("view", "", "id")
	view.Kind = catalog.OtherKind
	notNull := tgt("nn", "", "id", "must")
	notNull.Columns[1].NotNull = true
	unhashable := tgt("enum", "id", "id")
	unhashable.Policy.Columns[0].Type = &router.Type{OID: 99999, Name: "mood", Kind: router.EnumType}
	wide := tgt("wide", "", "id")
	wide.Policy.NumSegments = 5
	excl := tgt("excl", "", "id")
	excl.Uniques = []catalog.Unique{{Name: "no_overlap", Columns: []int{0}, Reads: []int{0}, Plain: true, Exclusion: true, Deferrable: true}}
	leaf := src("leaf", "id")
	leaf.Root = "public.root"
	_, err := New(apply.Options{}, apply.NameMap{}, []catalog.PublishedTable{
		src("lost", "id"), leaf, src("gen", "id", "g"), src("view", "id"), src("nn", "id"), src("enum", "id"), src("short", "id", "v"), src("dist", "id"), src("wide", "id"), src("excl", "id"), good.src,
	}, []*catalog.Table{gen, view, notNull, unhashable, tgt("short", "", "id"), tgt("dist", "d", "id", "d"), wide, excl, good.tgt}, good.m.Segments(), nil)
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range []string{
		"table public.lost): there is no table public.lost on the target", "public.leaf or its root public.root", `column "g" is generated on the target`,
		"view on the target is not a table", `column "must" exists on the target only, is NOT NULL and has no default`, "mood", `column "v" is missing on the target`,
		`column "d" of the target's distribution key is not among the published columns`, "spread over 5 segments on the target, which has 2", "no_overlap", "deferrable",
	} {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error does not say %q:\n%v", w, err)
		}
	}
	if dtx.ClassOf(err) != dtx.ClassStop {
		for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
			if dtx.ClassOf(e) != dtx.ClassStop {
				t.Errorf("class of %v", e)
			}
		}
	}
}

// Rows of a window are bounded by bytes, whatever one row holds.
func TestWindowBytes(t *testing.T) {
	f := newFixture(t, apply.Options{WindowBytes: 10_000, ChunkBytes: 1 << 20, QueueBytes: 20_000}, 1, 'd')
	var rows []*pgoutput.Change
	for i := range 200 {
		rows = append(rows, f.ins(fmt.Sprint(i), fmt.Sprint(i), "v", strings.Repeat("x", 1000)))
	}
	f.must(t, rows)
	if f.m.statements < 15 {
		t.Errorf("200 kB of inserts in %d operations under a window of 10 kB", f.m.statements)
	}
	rows = nil
	for i := range 200 {
		rows = append(rows, f.upd(fmt.Sprint(i), fmt.Sprint(i), "w", strings.Repeat("y", 1000)))
	}
	f.m.statements = 0
	f.must(t, rows)
	if f.m.statements < 15 {
		t.Errorf("200 kB of updates in %d operations under a window of 10 kB", f.m.statements)
	}
}

// What a later change of the same row took in is counted, and nothing else.
func TestFolded(t *testing.T) {
	f := newFixture(t, apply.Options{}, 1, 'd')
	res := f.must(t, changes(f.ins("1", "1", "v", "b"), f.ins("2", "2", "v", "b"), f.ins("3", "3", "v", "b")))
	if res.Rows != 3 || res.Folded != 0 || res.Updates != 0 {
		t.Errorf("inserts: %+v", res)
	}
	res = f.must(t,
		changes(f.upd("1", "1", "w", "?"), f.upd("2", "2", "w", "?"), f.key("1", "9", "1", "w", "?")), // 1 folded
		changes(f.upd("9", "1", "x", "b"), f.del("3"), f.ins("3", "3", "n", "b")),                     // 1
		changes(f.del("9"), f.upd("3", "3", "m", "b"), f.upd("2", "2", "y", "b")))                     // 3
	if res.Rows != 9 || res.Folded != 5 || res.Updates != 6 {
		t.Errorf("changes: %+v", res)
	}
}

// Half of a distribution key is unchanged and was not sent: the row moves when
// the other half changes, and stays when it does not.
func TestPartlyKnownDistributionKey(t *testing.T) {
	for _, id := range []string{"1", "2", "3", "4", "5", "6"} { // on whichever segment
		f := newFixture(t, apply.Options{}, 3, 'd')
		f.tgt.Policy.Columns = []router.Column{{Name: "big", Type: textType}, {Name: "v", Type: textType}}
		var err error
		if f.e, err = New(apply.Options{}, apply.NameMap{}, []catalog.PublishedTable{f.src}, []*catalog.Table{f.tgt}, f.m.Segments(), nil); err != nil {
			t.Fatal(err)
		}
		f.must(t, changes(f.ins(id, "u1", "v", "BIG")))
		f.must(t, changes(f.upd(id, "u1", "w"+id, "?")))
		f.must(t, changes(f.upd(id, "u1", "w"+id, "?")))
		seg, err := f.e.tables[catalog.Name{Schema: "public", Table: "t"}].router.Segment([][]byte{[]byte("BIG"), []byte("w" + id)})
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("%d: [%s u1 w%s BIG default]", seg, id, id)
		if got := f.m.lines(f.tgt, true); len(got) != 1 || got[0] != want {
			t.Errorf("got %v, want %s", got, want)
		}
	}
}

// A relation message in the middle of a batch: rows before it are read by the
// old columns, rows behind it by the new ones, in order.
func TestRelationChanges(t *testing.T) {
	f := newFixture(t, apply.Options{}, 2, 'd')
	old := f.rel
	next := &pgoutput.Relation{ID: 1, Schema: "public", Name: "t", Identity: 'd', Columns: []pgoutput.Column{
		{Name: "v", TypeOID: 25}, {Name: "x", TypeOID: 25}, {Name: "big", TypeOID: 25}, {Name: "u", TypeOID: 25}, {Key: true, Name: "id", TypeOID: 25},
	}}
	rows := changes(f.ins("1", "u1", "v", "b"), f.upd("1", "u1", "w", "b"), f.ins("2", "u2", "v", "b"))
	f.rel = next
	rows = append(rows, f.ins("new", "x3", "b3", "u3", "3"), f.upd("y", "x1", "b", "u1", "1"), rowMessage(next, 'D', 'K', vals("NULL", "NULL", "NULL", "NULL", "2"), nil))
	f.rel = old
	rows = append(rows, f.upd("3", "u3", "z", "c"), f.ins("2", "u2", "again", "b"))
	f.must(t, rows)
	if got := strings.Join(f.m.lines(f.tgt, false), " "); got != "[1 u1 y b x1] [2 u2 again b default] [3 u3 z c x3]" {
		t.Fatal(got)
	}
}
