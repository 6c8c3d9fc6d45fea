package segment

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/source/stream/feed/feedtest"
	"cbrepl/store"
)

var shared lab.Shared

const content dtx.Content = 2

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

const wait = 40 * time.Second

var names atomic.Int64

// node is a fresh database on a server, with a slot and SQL access.
type node struct {
	t    testing.TB
	dsn  string
	slot string
	sql  *pgx.Conn
}

func newNode(t testing.TB, dsn string, twoPhase bool) *node {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	n := &node{t, dsn, fmt.Sprintf("segment_%d", names.Add(1)), c}
	n.exec("CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE a, b")
	if twoPhase {
		lab.Need(t, dsn, lab.TwoPhaseStreams)
	}
	n.exec(fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput', false, %v)", n.slot, twoPhase))
	return n
}

func (n *node) exec(sql string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	if _, err := n.sql.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
		n.t.Fatalf("%s: %v", sql, err)
	}
}

func (n *node) query(sql string) string {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	var s *string
	if err := n.sql.QueryRow(ctx, sql).Scan(&s); err != nil {
		n.t.Fatalf("%s: %v", sql, err)
	}
	if s == nil {
		return ""
	}
	return *s
}

func (n *node) lsn(sql string) dtx.LSN {
	n.t.Helper()
	l, err := dtx.ParseLSN(n.query(sql))
	if err != nil {
		n.t.Fatal(err)
	}
	return l
}

func (n *node) confirmed() dtx.LSN {
	n.t.Helper()
	return n.lsn("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '" + n.slot + "'")
}

// name is SQL that names the transaction's dtx.
func name(gxid int, kind byte) string {
	return fmt.Sprintf("SELECT pg_logical_emit_message(true, 'cbrepl.part', '\\x01%02x%016x'::bytea); ", kind, gxid)
}

// dtx runs statements as one named transaction.
func (n *node) dtx(gxid int, sql string) {
	n.t.Helper()
	n.exec("BEGIN; " + sql + "; " + name(gxid, 'O') + "COMMIT")
}

// smallMemory makes the server stream transactions after a few rows.
func smallMemory(t testing.TB, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("logical_decoding_work_mem", "64kB")
	u.RawQuery = q.Encode()
	return u.String()
}

// run is a reader at work and what it has reported.
type run struct {
	t      testing.TB
	r      *Reader
	spool  *store.Spool
	cancel context.CancelFunc
	done   chan error

	mu      sync.Mutex
	events  []dtx.Event
	changed chan struct{}
	gate    chan struct{} // emit waits for it when set
}

func (n *node) options(dsn string) Options {
	return Options{
		Content: content, DSN: dsn, Slot: n.slot, Publication: "p", Streaming: true,
		StatusInterval: time.Second, PositionEvery: 50 * time.Millisecond, BackoffMin: 5 * time.Millisecond, BackoffMax: 100 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	}
}

func (n *node) start(o Options, from dtx.LSN, gate chan struct{}) *run {
	n.t.Helper()
	if o.Spool == nil {
		o.Spool = feedtest.OpenSpool(n.t)
	}
	r, err := New(o)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	x := &run{t: n.t, r: r, spool: o.Spool, cancel: cancel, done: make(chan error, 1), changed: make(chan struct{}, 1), gate: gate}
	go func() { x.done <- r.Run(ctx, from, x.emit) }()
	n.t.Cleanup(func() { _ = x.stop() })
	return x
}

func (x *run) emit(ctx context.Context, ev dtx.Event) error {
	if x.gate != nil {
		select {
		case <-x.gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	x.mu.Lock()
	x.events = append(x.events, ev)
	x.mu.Unlock()
	select {
	case x.changed <- struct{}{}:
	default:
	}
	return nil
}

// stop ends the reader and returns Run's error. Again, it returns nil.
func (x *run) stop() error {
	x.cancel()
	select {
	case err, ok := <-x.done:
		if ok {
			close(x.done)
		}
		return err
	case <-time.After(wait):
		x.t.Fatal("Run does not return")
		return nil
	}
}

// failure waits for Run to end by itself.
func (x *run) failure() error {
	x.t.Helper()
	select {
	case err := <-x.done:
		close(x.done)
		return err
	case <-time.After(wait):
		x.t.Fatal("Run does not end")
		return nil
	}
}

func (x *run) all() []dtx.Event {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.events)
}

// until waits for events that satisfy ok.
func (x *run) until(what string, ok func([]dtx.Event) bool) []dtx.Event {
	x.t.Helper()
	deadline := time.After(wait)
	for {
		evs := x.all()
		if ok(evs) {
			return evs
		}
		select {
		case <-x.changed:
		case <-time.After(100 * time.Millisecond):
		case err := <-x.done:
			close(x.done)
			x.t.Fatalf("%s: Run has ended: %v", what, err)
		case <-deadline:
			x.t.Fatalf("%s: not within %s; stats %+v; %d events", what, wait, x.r.Stats(), len(evs))
		}
	}
}

func parts(evs []dtx.Event) []dtx.Part {
	var out []dtx.Part
	for _, ev := range evs {
		if ev.Kind == dtx.EventPart {
			out = append(out, ev.Part)
		}
	}
	return out
}

func (x *run) untilParts(n int) []dtx.Part {
	x.t.Helper()
	return parts(x.until(fmt.Sprintf("%d parts", n), func(evs []dtx.Event) bool { return len(parts(evs)) >= n }))
}

func (x *run) untilPosition(lsn dtx.LSN) {
	x.t.Helper()
	x.until("position "+lsn.String(), func(evs []dtx.Event) bool { return len(evs) > 0 && evs[len(evs)-1].LSN >= lsn })
}

// rows reads a part back.
func (x *run) rows(p dtx.Part) []string {
	x.t.Helper()
	return feedtest.RowsOf(x.t, x.spool, p)
}
