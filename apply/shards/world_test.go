package shards

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/apply/ledger"
	"cbrepl/dtx"
	"cbrepl/lab"
)

var shared lab.Shared

func TestMain(m *testing.M) {
	if os.Getenv(loopEnv) != "" {
		os.Exit(runLoop())
	}
	os.Exit(shared.Main(m))
}

func testCtx(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// history is a random but repeatable list of batches and what they leave behind.
// It is the oracle: state(k) is what must be found once batch k is the last one.
type history struct {
	seed   uint64
	shards int
	// all makes every batch touch every shard.
	all bool
}

const testAccounts = 5

var testContents = []dtx.Content{-1, 0, 1, 2}

// world is the state of a target.
type world struct {
	Balance   []map[int]int64      // per shard and account
	Log       []map[[2]uint64]bool // per shard: batch, number
	Positions map[dtx.Content]dtx.LSN
	Dedup     map[dtx.GXID]string
	Marks     []uint64 // last batch of each shard
}

func (h history) start() *world {
	w := &world{Positions: map[dtx.Content]dtx.LSN{}, Dedup: map[dtx.GXID]string{}, Marks: make([]uint64, h.shards)}
	for range h.shards {
		b := map[int]int64{}
		for a := range testAccounts {
			b[a] = 100
		}
		w.Balance = append(w.Balance, b)
		w.Log = append(w.Log, map[[2]uint64]bool{})
	}
	for _, c := range testContents {
		w.Positions[c] = 1
	}
	return w
}

// change is what a batch does on one shard.
type change struct {
	delta map[int]int64
	rows  int
}

// batch returns batch seq and its changes by shard. salt tells rival daemons'
// batches of the same number apart.
func (h history) batch(seq uint64, salt uint64) (*dtx.Batch, map[int]change) {
	r := rand.New(rand.NewPCG(h.seed+salt<<32, seq))
	b := &dtx.Batch{Seq: seq}
	for _, c := range testContents {
		if r.IntN(2) == 0 {
			b.Positions = append(b.Positions, dtx.Position{Content: c, LSN: dtx.LSN(seq*0x1_0000_0000 + uint64(c+2))})
		}
	}
	b.DedupAdd = []dtx.DedupEntry{{GXID: dtx.GXID(seq * 10), Pending: []dtx.Position{
		{Content: -1, LSN: dtx.MaxLSN}, {Content: dtx.Content(r.IntN(3)), LSN: dtx.LSN(seq * 7)},
	}}}
	for g := range seq {
		switch {
		case g > 0 && r.IntN(6) == 0:
			b.DedupDrop = append(b.DedupDrop, dtx.GXID(g*10))
		case g > 0 && r.IntN(12) == 0: // rewritten: dropped and added
			b.DedupDrop = append(b.DedupDrop, dtx.GXID(g*10))
			b.DedupAdd = append(b.DedupAdd, dtx.DedupEntry{GXID: dtx.GXID(g * 10), Pending: []dtx.Position{{Content: 1, LSN: dtx.LSN(seq)}}})
		}
	}
	slices.SortFunc(b.DedupAdd, func(x, y dtx.DedupEntry) int { return int(x.GXID) - int(y.GXID) })
	changes := map[int]change{}
	if h.all || r.IntN(8) > 0 {
		b.Steps = []dtx.Step{{Parts: []dtx.Part{{GXID: dtx.GXID(seq * 10), Spool: dtx.SpoolID(seq)}}}}
		for s := range h.shards {
			if h.all || r.IntN(3) > 0 {
				changes[s] = change{delta: map[int]int64{}, rows: 1 + r.IntN(3)}
			}
		}
		if touched := slices.Sorted(maps.Keys(changes)); len(touched) > 0 { // money moves, the total stays
			amount := int64(r.IntN(50))
			changes[touched[0]].delta[r.IntN(testAccounts)] -= amount
			changes[touched[len(touched)-1]].delta[r.IntN(testAccounts)] += amount
		}
	}
	return b, changes
}

// apply moves w over batch seq.
func (h history) apply(w *world, b *dtx.Batch, changes map[int]change) {
	for s, c := range changes {
		for a, d := range c.delta {
			w.Balance[s][a] += d
		}
		for n := range c.rows {
			w.Log[s][[2]uint64{b.Seq, uint64(n)}] = true
		}
		w.Marks[s] = b.Seq
	}
	for _, p := range b.Positions {
		w.Positions[p.Content] = p.LSN
	}
	for _, g := range b.DedupDrop {
		delete(w.Dedup, g)
	}
	for _, e := range b.DedupAdd {
		w.Dedup[e.GXID] = fmt.Sprint(e.Pending)
	}
}

// state is the oracle's answer.
func (h history) state(k uint64) *world {
	w := h.start()
	for seq := uint64(1); seq <= k; seq++ {
		b, changes := h.batch(seq, 0)
		h.apply(w, b, changes)
	}
	return w
}

// writer writes a history's changes through a Target's own connections: the
// protocol is tested apart from the engine.
type writer struct {
	t    *Target
	h    history
	salt uint64
}

func (w *writer) Apply(ctx context.Context, b *dtx.Batch, _ apply.Rows, _ apply.Backend) (apply.Result, error) {
	_, changes := w.h.batch(b.Seq, w.salt)
	errs := make([]error, len(w.t.shards))
	var wg sync.WaitGroup
	for s, c := range changes {
		wg.Go(func() { errs[s] = w.write(ctx, dtx.Content(s), b.Seq, c) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return apply.Result{}, fail(opApply, "rows", err)
	}
	return apply.Result{Rows: 1}, w.t.point("test_rows_written")
}

func (w *writer) write(ctx context.Context, seg dtx.Content, seq uint64, c change) error {
	n, err := w.t.shardConn(ctx, seg)
	if err != nil {
		return err
	}
	for a, d := range c.delta {
		if err := n.Exec(ctx, fmt.Sprintf("UPDATE app.account SET balance = balance + %d WHERE id = %d", d, a)); err != nil {
			return err
		}
	}
	if n, err = w.t.shardConn(ctx, seg); err != nil { // asked for again: the same transaction
		return err
	}
	return n.Exec(ctx, fmt.Sprintf("INSERT INTO app.log SELECT %d, n FROM generate_series(0, %d) n", seq, c.rows-1))
}

// options for a test's subscription over the given databases.
func testOptions(coordinator string, shards []string) Options {
	o := Options{
		Options: ledger.Options{
			Subscription: "test",
			LockWait:     15 * time.Second, OpenTimeout: 40 * time.Second, DecideTimeout: 20 * time.Second,
		},
		Coordinator: coordinator, Shards: shards,
	}
	if os.Getenv("CBREPL_TEST_LOG") != "" {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return o
}

// sharedDatabases makes a target of m shards from databases of one server: the
// same global ids meet there.
func sharedDatabases(t *testing.T, m int) (coordinator string, shards []string) {
	for range m {
		shards = append(shards, shared.Database(t))
	}
	return shared.Database(t), shards
}

// openUntil opens tg, again while the fault passes.
func openUntil(t *testing.T, tg *Target) apply.State {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		st, err := tg.Open(testCtx(t))
		if err == nil {
			return st
		}
		if dtx.ClassOf(err) == dtx.ClassStop || time.Now().After(deadline) {
			t.Fatalf("open: %v", err)
		}
	}
}

// execSQL runs SQL in a session of its own.
func execSQL(t *testing.T, dsn, sql string) {
	t.Helper()
	if err := tryExec(testCtx(t), dsn, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func tryExec(ctx context.Context, dsn, sql string) error {
	conn, err := pgconn.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	return conn.Exec(ctx, sql).Close()
}

// queryRows runs a query in a session of its own.
func queryRows(t *testing.T, dsn, sql string) [][]string {
	t.Helper()
	conn, err := pgconn.Connect(testCtx(t), dsn)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	results, err := conn.Exec(testCtx(t), sql).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	var out [][]string
	for _, r := range results[len(results)-1].Rows {
		var row []string
		for _, v := range r {
			row = append(row, string(v))
		}
		out = append(out, row)
	}
	return out
}

// prepareHistory prepares the target and the tables that a history writes to.
func prepareHistory(t *testing.T, h history, o Options) {
	t.Helper()
	if err := Prepare(testCtx(t), o); err != nil {
		t.Fatalf("prepare: %v", err)
	}
	for _, dsn := range o.Shards {
		execSQL(t, dsn, fmt.Sprintf(`CREATE SCHEMA app;
			CREATE TABLE app.account (id int PRIMARY KEY, balance bigint NOT NULL);
			CREATE TABLE app.log (batch bigint, n int, PRIMARY KEY (batch, n));
			INSERT INTO app.account SELECT n, 100 FROM generate_series(0, %d) n`, testAccounts-1))
	}
	tg := historyTarget(t, h, o, 0)
	if _, err := tg.Open(testCtx(t)); err != nil {
		t.Fatalf("open: %v", err)
	}
	if err := initHistory(testCtx(t), tg); err != nil {
		t.Fatalf("init: %v", err)
	}
	if err := tg.Close(); err != nil {
		t.Fatal(err)
	}
}

func initHistory(ctx context.Context, tg *Target) error {
	var streams []apply.StreamIdentity
	var positions []dtx.Position
	for _, c := range testContents {
		streams = append(streams, apply.StreamIdentity{Content: c, SystemID: "7000", Slot: `s"\,l`, Timeline: 3})
		positions = append(positions, dtx.Position{Content: c, LSN: 1})
	}
	return tg.Init(ctx, apply.Beginning{Streams: streams, Positions: positions})
}

// historyTarget returns a Target that writes a history's changes.
func historyTarget(t *testing.T, h history, o Options, salt uint64) *Target {
	t.Helper()
	tg, err := newHistoryTarget(h, o, salt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tg.Close() })
	return tg
}

func newHistoryTarget(h history, o Options, salt uint64) (*Target, error) {
	tg, err := New(o)
	if err != nil {
		return nil, err
	}
	tg.private.newEngine = func() applier { return &writer{tg, h, salt} }
	return tg, nil
}

func closeTarget(t testing.TB, tg *Target) {
	t.Helper()
	if err := tg.Close(); err != nil {
		t.Error(err)
	}
}

func applyBatch(ctx context.Context, tg *Target, h history, seq, salt uint64) error {
	b, _ := h.batch(seq, salt)
	_, err := tg.Apply(ctx, b, nil)
	return err
}

// observe reads the world as the databases hold it.
func observe(t *testing.T, o Options, st apply.State) *world {
	t.Helper()
	w := &world{Positions: map[dtx.Content]dtx.LSN{}, Dedup: map[dtx.GXID]string{}}
	for _, dsn := range o.Shards {
		balance, log := map[int]int64{}, map[[2]uint64]bool{}
		for _, r := range queryRows(t, dsn, "SELECT id, balance FROM app.account") {
			balance[int(pgside.Atoi([]byte(r[0])))] = pgside.Atoi([]byte(r[1]))
		}
		for _, r := range queryRows(t, dsn, "SELECT batch, n FROM app.log") {
			log[[2]uint64{pgside.Atou([]byte(r[0])), pgside.Atou([]byte(r[1]))}] = true
		}
		w.Balance, w.Log = append(w.Balance, balance), append(w.Log, log)
		w.Marks = append(w.Marks, pgside.Atou([]byte(queryRows(t, dsn, "SELECT batch FROM cbrepl.shard WHERE subscription = 'test'")[0][0])))
	}
	for _, p := range st.Positions {
		w.Positions[p.Content] = p.LSN
	}
	for _, e := range st.Dedup {
		w.Dedup[e.GXID] = fmt.Sprint(e.Pending)
	}
	return w
}

// checkWorld compares the databases with the oracle at the recorded batch, and
// sees that nothing is left prepared.
func checkWorld(t *testing.T, h history, o Options, st apply.State) {
	t.Helper()
	compareWorld(t, o, st, h.state(st.Batch))
}

func compareWorld(t *testing.T, o Options, st apply.State, want *world) {
	t.Helper()
	got := observe(t, o, st)
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("the target differs from the oracle at batch %d (-want +got):\n%s", st.Batch, d)
	}
	checkNonePrepared(t, o)
}

func checkNonePrepared(t *testing.T, o Options) {
	t.Helper()
	for i, dsn := range o.Shards {
		if left := queryRows(t, dsn, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"); len(left) > 0 {
			t.Fatalf("shard %d still holds prepared transactions: %v", i, left)
		}
	}
}
