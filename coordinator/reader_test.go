package coordinator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/source/stream/repl/repltest"
)

var shared lab.Shared

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

const wait = 40 * time.Second

func connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func exec(t testing.TB, c *pgx.Conn, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	if _, err := c.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// recordSQL emits the commit record of a dtx on segment 1.
func recordSQL(transactional bool, gxid int) string {
	return fmt.Sprintf("SELECT pg_logical_emit_message(%v, 'cbrepl.commit', '\\x014f%016x00000000000000000001%04x'::bytea)", transactional, gxid, 1)
}

// collector keeps what a reader reports.
type collector struct {
	mu      sync.Mutex
	events  []dtx.Event
	changed chan struct{}
}

func (c *collector) emit(_ context.Context, ev dtx.Event) error {
	c.mu.Lock()
	c.events = append(c.events, ev)
	c.mu.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
	return nil
}

func (c *collector) records() []dtx.CommitRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []dtx.CommitRecord
	for _, ev := range c.events {
		if ev.Kind == dtx.EventRecord {
			out = append(out, ev.Record)
		}
	}
	return out
}

func start(t testing.TB, dsn, slot string) (*Reader, *collector, context.CancelFunc, chan error) {
	t.Helper()
	r, err := New(Options{
		DSN: dsn, Slot: slot, Publication: "p", BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond,
		PositionEvery: 50 * time.Millisecond, StatusInterval: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{changed: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, 0, c.emit) }()
	return r, c, cancel, done
}

func (c *collector) until(t testing.TB, what string, done chan error, ok func() bool) {
	t.Helper()
	deadline := time.After(wait)
	for !ok() {
		select {
		case <-c.changed:
		case <-time.After(50 * time.Millisecond):
		case err := <-done:
			t.Fatalf("%s: Run has ended: %v", what, err)
		case <-deadline:
			t.Fatalf("%s: not within %s", what, wait)
		}
	}
}

// TestReader: sessions emit records at the same time, in transactions and
// outside; over a network that cuts, each record arrives once, at a rising LSN,
// and positions follow when nothing happens.
func TestReader(t *testing.T) {
	dsn := shared.Database(t)
	leaks := goleak.IgnoreCurrent()
	c := connect(t, dsn)
	exec(t, c, "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR ALL TABLES")
	exec(t, c, "SELECT pg_create_logical_replication_slot('coordinator_1', 'pgoutput')")
	p, err := repltest.New(dsn)
	if err != nil {
		t.Fatal(err)
	}
	r, col, cancel, done := start(t, p.DSN(), "coordinator_1")
	const sessions, each = 4, 100
	var g errgroup.Group
	for s := range sessions {
		conn := connect(t, dsn)
		g.Go(func() error {
			for i := range each {
				gxid := 1 + s*each + i
				sql := recordSQL(false, gxid)
				if i%3 > 0 {
					sql = "BEGIN; " + recordSQL(true, gxid) + "; COMMIT"
				}
				ctx, cancel := context.WithTimeout(context.Background(), wait)
				_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
				cancel()
				if err != nil {
					return err
				}
				if i%7 == s {
					p.CutAfter(int64(1 + (gxid*131)%700))
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	p.CutAfter(-1)
	col.until(t, "all records", done, func() bool { return len(col.records()) >= sessions*each })
	seen := map[dtx.GXID]bool{}
	var last dtx.LSN
	for _, rec := range col.records() {
		if seen[rec.GXID] || rec.EndLSN <= last {
			t.Fatalf("gxid %d at %s, behind %s, seen before: %v", rec.GXID, rec.EndLSN, last, seen[rec.GXID])
		}
		seen[rec.GXID], last = true, rec.EndLSN
	}
	var end string
	exec(t, c, "CREATE TABLE quiet AS SELECT 1 AS x")
	if err := c.QueryRow(context.Background(), "SELECT pg_current_wal_lsn()::text").Scan(&end); err != nil {
		t.Fatal(err)
	}
	// The new table belongs to the publication of all tables, but its row was
	// written here.
	select {
	case err := <-done:
		if dtx.ClassOf(err) != dtx.ClassStop || !strings.Contains(err.Error(), "public.quiet") {
			t.Errorf("row on the coordinator: %v", err)
		}
	case <-time.After(wait):
		t.Fatal("a row on the coordinator does not stop the stream")
	}
	if s := r.Stats(); s.Records != sessions*each || s.Reconnects == 0 {
		t.Errorf("stats %+v", s)
	}
	cancel()
	p.Close()
	goleak.VerifyNone(t, leaks, goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgconn.(*PgConn).asyncClose.func1"))
}

// TestIdle: without records, positions follow the server and confirming them
// moves the slot.
func TestIdle(t *testing.T) {
	dsn := shared.Database(t)
	c := connect(t, dsn)
	exec(t, c, "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
	exec(t, c, "SELECT pg_create_logical_replication_slot('coordinator_2', 'pgoutput')")
	r, col, cancel, done := start(t, dsn, "coordinator_2")
	exec(t, c, "BEGIN; "+recordSQL(true, 7)+"; COMMIT; CREATE TABLE quiet AS SELECT 1 AS x")
	var text string
	if err := c.QueryRow(context.Background(), "SELECT pg_current_wal_lsn()::text").Scan(&text); err != nil {
		t.Fatal(err)
	}
	end, err := dtx.ParseLSN(text)
	if err != nil {
		t.Fatal(err)
	}
	col.until(t, "position", done, func() bool { return r.Stats().ReportedLSN >= end })
	r.Confirm(end)
	col.until(t, "confirmed slot", done, func() bool {
		var ok bool
		if err := c.QueryRow(context.Background(), "SELECT confirmed_flush_lsn = $1::pg_lsn FROM pg_replication_slots WHERE slot_name = 'coordinator_2'", text).Scan(&ok); err != nil {
			t.Fatal(err)
		}
		return ok
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
