package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
	"cbrepl/pgoutput"
	"cbrepl/router"
)

// Run runs the whole suite on a target.
func Run(t *testing.T, f Fixture) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, f Fixture)
	}{
		{"Keyed", testKeyed},
		{"KeyMoves", testKeyMoves},
		{"SecondaryUnique", testSecondaryUnique},
		{"Toast", testToast},
		{"TargetOnlyColumns", testTargetOnly},
		{"Keyless", testKeyless},
		{"Replicated", testReplicated},
		{"Truncate", testTruncate},
		{"Partitions", testPartitions},
		{"Values", testValues},
		{"Names", testNames},
		{"ConflictStop", testConflictStop},
		{"ConflictLog", testConflictLog},
		{"Altered", testAltered},
		{"OtherErrors", testOtherErrors},
		{"State", testState},
		{"Lock", testLock},
		{"Fencing", testFencing},
		{"LostConnection", testLostConnection},
		{"FirstCopy", testFirstCopy},
		{"Random", testRandom},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, f) })
	}
}

// world is one test's source, target and tables.
type world struct {
	t      *testing.T
	f      Fixture
	src    *Source
	tg     apply.Target
	tables []*Table
	opts   TargetOptions
	state  apply.State
	result apply.Result
}

func testCtx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// subscriptions are told apart so that tests may share a target.
func subscription(t testing.TB) string {
	name := strings.ToLower(t.Name())
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, name)
	return fmt.Sprintf("t%d_%s", time.Now().UnixNano()%1_000_000_000, name[max(0, len(name)-40):])
}

// newWorld makes tables and a target that is open and has first positions.
func newWorld(t *testing.T, f Fixture, onConflict apply.OnConflict, tables ...*Table) *world {
	t.Helper()
	w := newTables(t, f, onConflict, tables...)
	w.open()
	streams, positions := w.src.First()
	if err := w.tg.Init(testCtx(t), apply.Beginning{Streams: streams, Positions: positions}); err != nil {
		t.Fatalf("init: %v", err)
	}
	return w
}

func newTables(t *testing.T, f Fixture, onConflict apply.OnConflict, tables ...*Table) *world {
	t.Helper()
	schema := f.Schema(t)
	w := &world{t: t, f: f, tables: tables}
	w.opts = TargetOptions{Subscription: subscription(t), Engine: apply.Options{OnConflict: onConflict}}
	for _, tab := range tables {
		tab.schema = schema
		if tab.Storage == "" {
			tab.Storage = Heap
		}
		if tab.Kind == 0 {
			tab.Kind = router.Hash
		}
		if tab.Identity == 0 {
			tab.Identity = pgoutput.IdentityDefault
		}
		f.Create(t, tab)
		w.opts.Tables = append(w.opts.Tables, tab.Source())
	}
	w.src = NewSource(3, tables...)
	w.tg = f.Target(t, w.opts)
	t.Cleanup(func() { _ = w.tg.Close() })
	return w
}

func (w *world) open() {
	w.t.Helper()
	st, err := w.tg.Open(testCtx(w.t))
	if err != nil {
		w.t.Fatalf("open: %v", err)
	}
	w.state = st
}

// apply applies what was committed and compares every table.
func (w *world) apply() {
	w.t.Helper()
	w.applyOnly()
	w.check()
}

func (w *world) applyOnly() {
	w.t.Helper()
	var err error
	if w.result, err = w.tg.Apply(testCtx(w.t), w.src.Batch(), w.src); err != nil {
		w.t.Fatalf("apply: %v", err)
	}
}

// commit ends the dtx and applies it.
func (w *world) commit() {
	w.t.Helper()
	w.src.Commit()
	w.apply()
}

// check compares all tables with the source, and every row's place with the
// router's answer.
func (w *world) check() {
	w.t.Helper()
	for _, tab := range w.tables {
		w.checkTable(tab, w.src.Rows(tab))
	}
}

func (w *world) checkTable(tab *Table, want []Values) {
	w.t.Helper()
	var cols []string
	for _, c := range tab.Published() {
		cols = append(cols, c.Name)
	}
	rows := w.f.Dump(w.t, tab, cols)
	copies := [][]Values{nil}
	if tab.Kind == router.Replicated {
		copies = make([][]Values, w.f.Segments())
		for _, r := range rows {
			copies[r.Segment] = append(copies[r.Segment], r.Values)
		}
	} else {
		for _, r := range rows {
			copies[0] = append(copies[0], r.Values)
		}
		w.checkPlaces(tab, cols, rows)
	}
	for i, c := range copies {
		if d := cmp.Diff(lines(want), lines(c)); d != "" {
			w.t.Fatalf("table %s, copy %d (-source +target):\n%s", tab, i, d)
		}
	}
}

// checkPlaces compares each row's segment with the router's.
func (w *world) checkPlaces(tab *Table, cols []string, rows []Row) {
	w.t.Helper()
	if tab.Kind != router.Hash {
		return
	}
	r, err := router.New(tab.Policy(w.f.Segments()))
	if err != nil {
		w.t.Fatalf("policy of %s: %v", tab, err)
	}
	for _, row := range rows {
		var key [][]byte
		for _, d := range tab.Dist {
			v := row.Values[slices.Index(cols, d)]
			if v == nil {
				key = append(key, nil)
			} else {
				key = append(key, []byte(*v))
			}
		}
		seg, err := r.Segment(key)
		if err != nil {
			w.t.Fatalf("route a row of %s: %v", tab, err)
		}
		if int(seg) != row.Segment {
			w.t.Fatalf("a row of %s with key %s is on segment %d, the router says %d", tab, line(row.Values), row.Segment, seg)
		}
	}
}

// fails applies and wants an error of the given class that says all of parts;
// nothing may have been applied.
func (w *world) fails(class dtx.Class, parts ...string) error {
	w.t.Helper()
	before := map[*Table][]string{}
	for _, tab := range w.tables {
		before[tab] = w.dump(tab)
	}
	b := w.src.Batch()
	_, err := w.tg.Apply(testCtx(w.t), b, w.src)
	wantError(w.t, err, class, parts...)
	for _, tab := range w.tables {
		if d := cmp.Diff(before[tab], w.dump(tab)); d != "" {
			w.t.Fatalf("a failed batch has changed table %s:\n%s", tab, d)
		}
	}
	w.open()
	if w.state.Batch != b.Seq-1 {
		w.t.Fatalf("after a failed batch %d the target records batch %d", b.Seq, w.state.Batch)
	}
	return err
}

// dump prints every row of a table with its segment, all columns.
func (w *world) dump(tab *Table) []string {
	var cols []string
	for _, c := range tab.Columns {
		cols = append(cols, c.Name)
	}
	var out []string
	for _, r := range w.f.Dump(w.t, tab, cols) {
		out = append(out, fmt.Sprintf("%d: %s", r.Segment, line(r.Values)))
	}
	slices.Sort(out)
	return out
}

// wantError ends the case when the error is another one.
func wantError(t *testing.T, err error, class dtx.Class, parts ...string) {
	t.Helper()
	dtxtest.WantError(t, err, class, parts...)
	if t.Failed() {
		t.FailNow()
	}
}

// tables of the suite.

func intKey(name string) *Table {
	return &Table{
		Name: name, Columns: []Column{{Name: "id", Type: "bigint"}, {Name: "a", Type: "integer"}, {Name: "b", Type: "text"}},
		Key: []string{"id"}, Dist: []string{"id"},
	}
}

// storages lists the storages that a target has among those asked for.
func storages(f Fixture, want ...Storage) []Storage {
	return slices.DeleteFunc(want, func(s Storage) bool { return !f.Has(s) })
}

// onStorage adapts a keyed table: append-optimized tables have no unique index
// everywhere, so the key becomes a plain index.
func onStorage(tab *Table, s Storage) *Table {
	tab.Storage = s
	if s == AORow || s == AOColumn {
		tab.NoTargetKey, tab.Index, tab.Unique = true, tab.Key[0], nil
	}
	return tab
}
