// Package greenplum tests the whole daemon with a real Greenplum 6 as the source,
// into shards of package lab and into a real cluster.
package greenplum

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"cbrepl/dtx"
	"cbrepl/integration/internal/built"
	"cbrepl/lab"
	"cbrepl/lab/clustertest"
	"cbrepl/router"
	"cbrepl/source"
	"cbrepl/subscription"
	"cbrepl/subscription/config"
	"cbrepl/subscription/status"
)

var (
	// binary is the built cbrepl.
	binary    string
	databases clustertest.Databases
)

type both struct{ m *testing.M }

func (b both) Run() int { return built.Main(b.m, &binary) }

func TestMain(m *testing.M) { os.Exit(databases.Main(both{m})) }

// limit bounds one wait in a test.
const limit = 3 * time.Minute

// world is a database of a Greenplum 6, a target and a subscription between them.
type world struct {
	t      *testing.T
	dsn    string // of the source's database
	shapes []*shape
	dst    destination
	cfg    *config.Config
	file   string
	proc   *process
}

// destination is a target.
type destination interface {
	// create makes a table, or a leaf of one under its own name.
	create(w *world, s *shape, leaves []string)
	describe(*lab.Subscription)
	// dsns are the servers that hold one copy of every row together.
	dsns(s *shape) []string
	// misplaced counts rows of a table that are not where they belong.
	misplaced(w *world, s *shape, table string) int64
}

func connect(ctx context.Context, dsn string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	// By statement: the processes on a cluster's segments do not get the settings of
	// a connection string.
	_, err = c.Exec(ctx, "SET timezone = 'UTC'; SET datestyle = 'ISO, MDY'; SET client_min_messages = error")
	return c, err
}

// newWorld makes schema, tables, publication, slots and a prepared target.
func newWorld(t *testing.T, dst func(*world) destination, viaRoot bool, tables []*shape) *world {
	t.Helper()
	w := &world{t: t, dsn: databases.Open(t, clustertest.SourceDSN(t)), shapes: tables}
	if n, err := strconv.Atoi(w.rows(w.dsn, "SHOW wal_keep_segments")[0]); err != nil || n < 64 {
		t.Skipf("NOT RUN: wal_keep_segments is %d on the source's coordinator, want 64: it does not keep log for slots (%v)", n, err)
	}
	w.clear()
	t.Cleanup(w.clear)
	w.exec("CREATE EXTENSION cbrepl_source; CREATE SCHEMA world; " + types)
	w.dst = dst(w)
	var names []string
	for _, s := range w.shapes {
		w.exec(s.create())
		names = append(names, s.sql())
		var leaves []string
		if s.partitions != "" && !viaRoot {
			leaves = w.rows(w.dsn, fmt.Sprintf("SELECT partitiontablename FROM pg_partitions WHERE schemaname = '%s' AND tablename = '%s' AND partitionlevel = 2 ORDER BY 1", schema, s.name))
			if len(leaves) != 8 {
				t.Fatalf("leaves of %s: %v", s.name, leaves)
			}
		}
		w.dst.create(w, s, leaves)
	}
	w.must(source.Publish(w.ctx(), w.dsn, "world", names, viaRoot))
	sub, err := lab.NewSubscription("world", t.TempDir(), publication(w.dsn), nil)
	w.must(err)
	sub.Set("source.status_interval", "500ms")
	w.dst.describe(sub)
	w.file = filepath.Join(t.TempDir(), "world.yaml")
	w.must(sub.Write(w.file))
	w.cfg, err = config.Load(config.Sources{File: w.file})
	w.must(err)
	w.must(subscription.PrepareTarget(w.ctx(), w.cfg))
	_, err = subscription.CreateSlots(w.ctx(), w.cfg, 0, nil)
	w.must(err)
	t.Cleanup(w.dropSlots)
	return w
}

// publication is the source as a subscription names it.
type publication string

func (p publication) DSNs() []string    { return []string{string(p)} }
func (publication) Publication() string { return "world" }

// clear removes what a test has made on the source.
func (w *world) clear() {
	w.eventually("the source is cleared", func() bool {
		_, err := w.try(w.dsn, "DROP SCHEMA IF EXISTS world, cbrepl CASCADE; DROP EXTENSION IF EXISTS cbrepl_source; DROP SCHEMA IF EXISTS cbrepl_source")
		return err == nil
	})
}

func (w *world) dropSlots() {
	if w.proc != nil {
		w.proc.kill()
	}
	w.eventually("the slots are dropped", func() bool { return subscription.DropSlots(w.ctx(), w.cfg) == nil })
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// ctx is a context for one step of a test.
func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	w.t.Cleanup(cancel)
	return ctx
}

func (w *world) eventually(what string, f func() bool) {
	w.t.Helper()
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); time.Now().Before(end); <-tick.C {
		if f() {
			return
		}
	}
	w.t.Fatalf("%s: not within %s", what, limit)
}

// try runs SQL in a session of its own and returns one column.
func (w *world) try(dsn, sql string) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c, err := connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close(ctx) }()
	results, err := c.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, row := range results[len(results)-1].Rows {
		out = append(out, string(row[0]))
	}
	return out, nil
}

func (w *world) rows(dsn, sql string) []string {
	w.t.Helper()
	rows, err := w.try(dsn, sql)
	if err != nil {
		w.t.Fatalf("%.200s: %v", sql, err)
	}
	return rows
}

func (w *world) exec(sql string) { w.t.Helper(); w.rows(w.dsn, sql) }

// fill gives the bank its accounts, in one transaction.
func (w *world) fill() {
	w.exec(fmt.Sprintf("INSERT INTO world.bank SELECT i, %d FROM generate_series(1, %d) i", balance, accounts))
}

// process is the daemon.
type process struct {
	w    *world
	cmd  *exec.Cmd
	log  *syncBuffer
	done chan struct{}
}

func (w *world) spawn() *process {
	w.t.Helper()
	p := &process{w: w, cmd: exec.Command(binary, "run", "-c", w.file), log: &syncBuffer{}, done: make(chan struct{})}
	p.cmd.Stderr = p.log
	w.must(p.cmd.Start())
	w.proc = p
	go func() { defer close(p.done); _ = p.cmd.Wait() }()
	w.t.Cleanup(func() {
		p.kill()
		if w.t.Failed() && w.proc == p {
			lines := strings.Split(p.log.String(), "\n")
			w.t.Logf("the daemon's log:\n%s", strings.Join(lines[max(0, len(lines)-30):], "\n"))
		}
	})
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *process) alive() {
	p.w.t.Helper()
	select {
	case <-p.done:
		p.w.t.Fatal("the daemon has ended by itself")
	default:
	}
}

// report is nil while the daemon gives none.
func (p *process) report() *status.Report {
	p.w.t.Helper()
	p.alive()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	r, _, err := status.Fetch(ctx, p.w.cfg.HTTP.Listen)
	if err != nil {
		return nil
	}
	return r
}

// applied waits until this daemon has applied n batches.
func (p *process) applied(n int64) {
	p.w.t.Helper()
	p.w.eventually("the daemon applies", func() bool { r := p.report(); return r != nil && r.Applied.Batches >= n })
}

// drain waits until everything on the source is applied.
func (w *world) drain() {
	w.t.Helper()
	ends := w.ends()
	w.eventually("everything is applied", func() bool { r := w.proc.report(); return r != nil && r.Reached(ends) })
}

// ends are the positions up to which the source's logs are on disk.
func (w *world) ends() map[dtx.Content]dtx.LSN {
	w.t.Helper()
	cl, err := source.Discover(w.ctx(), source.ClusterConfig{Coordinator: w.dsn})
	w.must(err)
	out := map[dtx.Content]dtx.LSN{}
	for _, n := range cl.Nodes() {
		r := cl.FlushReader(n.Content)
		out[n.Content], err = r.FlushLSN(w.ctx())
		r.Close()
		w.must(err)
	}
	return out
}

// same compares every table, row by row, and where the target's rows are.
func (w *world) same() {
	w.t.Helper()
	for _, s := range w.shapes {
		// A float's text depends on the server's version.
		columns := w.rows(w.dsn, fmt.Sprintf(`SELECT string_agg(CASE WHEN atttypid IN (700, 701) THEN 'encode(float8send(t.' || quote_ident(attname) || '::float8), ''hex'')'
 ELSE 't.' || quote_ident(attname) || '::text' END, ', ' ORDER BY attname) FROM pg_attribute WHERE attrelid = '%s'::regclass AND attnum > 0 AND NOT attisdropped`, s.sql()))[0]
		sql := func(table string) string {
			return fmt.Sprintf("SELECT row(%s)::text FROM %s.%s t", columns, schema, table)
		}
		want := w.rows(w.dsn, sql(s.name))
		var have []string
		for _, dsn := range w.dst.dsns(s) {
			for _, table := range w.targetTables(s) {
				have = append(have, w.rows(dsn, sql(table))...)
			}
		}
		slices.Sort(want)
		slices.Sort(have)
		if len(want) == 0 {
			w.t.Errorf("%s is empty: nothing was compared", s.name)
		}
		w.t.Logf("%-10s %6d rows", s.name, len(want))
		if !slices.Equal(want, have) {
			w.t.Errorf("%s: %d rows on the source, %d on the target", s.name, len(want), len(have))
			w.differences(want, have)
		}
		for _, table := range w.targetTables(s) {
			if n := w.dst.misplaced(w, s, table); n != 0 {
				w.t.Errorf("%s: %d rows are not where they belong", table, n)
			}
		}
	}
}

func (w *world) differences(want, have []string) {
	n := 0
	for _, side := range []struct {
		sign string
		a, b []string
	}{{"-", want, have}, {"+", have, want}} {
		for _, row := range side.a {
			if _, there := slices.BinarySearch(side.b, row); !there && n < 10 {
				n++
				w.t.Logf("%s%.300s", side.sign, row)
			}
		}
	}
}

// targetTables are a shape's tables on the target: itself, or its leaves where
// they are tables of their own.
func (w *world) targetTables(s *shape) []string {
	if d, ok := w.dst.(*labShards); ok && d.leaves[s.name] != nil {
		return d.leaves[s.name]
	}
	return []string{s.name}
}

// labShards are a target of the lab.
type labShards struct {
	*lab.TargetCluster
	leaves map[string][]string
}

// shards starts a target of n shards.
func shards(n int) func(*world) destination {
	return func(w *world) destination {
		l, err := lab.New(w.ctx(), lab.Options{})
		w.must(err)
		w.t.Cleanup(func() {
			if err := l.Close(w.ctx()); err != nil {
				w.t.Error(err)
			}
		})
		t, err := l.StartTarget(w.ctx(), n)
		w.must(err)
		w.must(t.ExecAll(w.ctx(), "CREATE SCHEMA world; "+types))
		return &labShards{t, map[string][]string{}}
	}
}

func (d *labShards) create(w *world, s *shape, leaves []string) {
	w.t.Helper()
	if leaves == nil {
		leaves = []string{s.name}
	} else {
		d.leaves[s.name] = leaves
	}
	for _, name := range leaves {
		w.must(d.CreateTable(w.ctx(), s.onShards(name)))
	}
}

func (d *labShards) describe(s *lab.Subscription) { s.Target = d.DSNs() }

func (d *labShards) dsns(s *shape) []string {
	if s.kind == router.Replicated {
		return d.SegmentDSNs()[:1]
	}
	return d.SegmentDSNs()
}

func (d *labShards) misplaced(w *world, _ *shape, table string) int64 {
	n, err := d.VerifyPlacement(w.ctx(), schema+"."+table)
	w.must(err)
	return n
}

// realCluster is a target that the environment names.
type realCluster struct{ dsn string }

func cluster(w *world) destination {
	d := &realCluster{databases.Open(w.t, clustertest.DSNs(w.t)[0])}
	drop := "DROP SCHEMA IF EXISTS world, cbrepl CASCADE"
	w.rows(d.dsn, drop+"; CREATE SCHEMA world; "+types)
	w.t.Cleanup(func() { w.rows(d.dsn, drop) })
	return d
}

func (d *realCluster) create(w *world, s *shape, _ []string) { w.rows(d.dsn, s.create()) }

func (d *realCluster) describe(s *lab.Subscription) {
	s.Target = []string{d.dsn}
	s.Set("target.kind", "cloudberry")
}

func (d *realCluster) dsns(*shape) []string { return []string{d.dsn} }

// misplaced lets the cluster itself say where a row belongs: it distributes a copy
// of the rows that remembers where they were.
func (d *realCluster) misplaced(w *world, s *shape, table string) int64 {
	if s.kind != router.Hash {
		return 0 // of a replicated table the cluster reads any one copy
	}
	key := strings.Join(s.key, ", ")
	rows := w.rows(d.dsn, fmt.Sprintf(`CREATE TEMP TABLE placed AS SELECT gp_segment_id AS was, %s FROM %s.%s DISTRIBUTED BY (%[1]s);
 SELECT count(*) FROM placed WHERE was <> gp_segment_id`, key, schema, table))
	var n int64
	_, err := fmt.Sscan(rows[0], &n)
	w.must(err)
	return n
}

// syncBuffer is a buffer for one writer and any reader.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
