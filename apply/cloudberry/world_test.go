package cloudberry

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cbrepl/apply"
	"cbrepl/apply/conformance"
	"cbrepl/apply/ledger"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/lab/clustertest"
)

var databases clustertest.Databases

func TestMain(m *testing.M) {
	code := databases.Main(m)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func testCtx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// world is a test's database, schema and subscription on the first cluster of the
// environment.
type world struct {
	t      testing.TB
	dsn    string
	schema string
	old    bool // storage is declared in Greenplum 6's way
	opts   Options
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return worldOn(t, clustertest.DSNs(t)[0])
}

var schemas int

func worldOn(t testing.TB, dsn string) *world {
	t.Helper()
	schemas++
	w := &world{t: t, dsn: databases.Open(t, dsn), schema: fmt.Sprintf("cb_%d", schemas)}
	w.old = w.one("SELECT count(*) FROM pg_attribute WHERE attrelid = 'pg_class'::regclass AND attname = 'relstorage'") == "1"
	w.exec("CREATE SCHEMA " + w.schema)
	t.Cleanup(func() { w.exec("DROP SCHEMA " + w.schema + " CASCADE") })
	w.opts = Options{
		Options:     ledger.Options{Subscription: fmt.Sprintf("sub_%d", schemas), LockWait: 300 * time.Millisecond},
		Coordinator: w.dsn,
	}
	if os.Getenv("CBREPL_TEST_LOG") != "" {
		w.opts.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return w
}

// exec runs SQL in a session of its own; $S stands for the test's schema.
func (w *world) exec(sql string) {
	w.t.Helper()
	clustertest.Exec(w.t, w.dsn, strings.ReplaceAll(sql, "$S", w.schema))
}

func (w *world) query(sql string) [][]*string {
	w.t.Helper()
	return clustertest.Query(w.t, w.dsn, strings.ReplaceAll(sql, "$S", w.schema))
}

// one returns the only value of a query.
func (w *world) one(sql string) string {
	w.t.Helper()
	rows := w.query(sql)
	if len(rows) != 1 || len(rows[0]) != 1 || rows[0][0] == nil {
		w.t.Fatalf("%s: %d rows", sql, len(rows))
	}
	return *rows[0][0]
}

// table describes a table whose DDL the test ran itself. columns are "name type",
// the first of them the key unless key says otherwise.
func (w *world) table(name string, key []string, columns ...string) *conformance.Table {
	tab := &conformance.Table{Name: name, Key: key, Identity: 'd'}
	if len(key) == 0 {
		tab.Identity = 'f'
	}
	for _, c := range columns {
		n, typ, _ := strings.Cut(c, " ")
		tab.Columns = append(tab.Columns, conformance.Column{Name: n, Type: typ})
	}
	tab.SetSchema(w.schema)
	return tab
}

// start prepares and opens a target over tables, with first positions.
func (w *world) start(src *conformance.Source, tables ...*conformance.Table) *Target {
	w.t.Helper()
	w.opts.Tables = sources(tables)
	if err := Prepare(testCtx(w.t), w.opts); err != nil {
		w.t.Fatalf("prepare: %v", err)
	}
	tg := w.target()
	w.open(tg)
	streams, positions := src.First()
	if err := tg.Init(testCtx(w.t), apply.Beginning{Streams: streams, Positions: positions}); err != nil {
		w.t.Fatalf("init: %v", err)
	}
	return tg
}

func sources(tables []*conformance.Table) []catalog.PublishedTable {
	var out []catalog.PublishedTable
	for _, tab := range tables {
		out = append(out, tab.Source())
	}
	return out
}

func (w *world) target() *Target {
	w.t.Helper()
	tg, err := New(w.opts)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = tg.Close() })
	return tg
}

func (w *world) open(tg *Target) apply.State {
	w.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		st, err := tg.Open(testCtx(w.t))
		if err == nil {
			return st
		}
		if dtx.ClassOf(err) == dtx.ClassStop || time.Now().After(deadline) {
			w.t.Fatalf("open: %v", err)
		}
	}
}

// apply commits the source's open dtx and applies it.
func (w *world) apply(tg *Target, src *conformance.Source) apply.Result {
	w.t.Helper()
	src.Commit()
	res, err := tg.Apply(testCtx(w.t), src.Batch(), src)
	if err != nil {
		w.t.Fatalf("apply: %v", err)
	}
	return res
}

func num(i int) string { return strconv.Itoa(i) }
