package segment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/source/stream/assemble"
	"cbrepl/source/stream/carrier"
	"cbrepl/source/stream/feed"
	"cbrepl/source/stream/feed/feedtest"
	"cbrepl/source/stream/repl/repltest"
	"cbrepl/store"
)

func TestReader(t *testing.T) {
	shared.Server(t)
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) }) // after the spool is closed
	n := newNode(t, shared.Database(t), false)
	x := n.start(n.options(smallMemory(t, n.dsn)), 0, nil)
	n.dtx(1, "INSERT INTO a VALUES (1, 'one'), (2, 'two')")
	n.exec("CREATE TABLE unpublished (x int); INSERT INTO unpublished VALUES (1)")
	n.dtx(2, "UPDATE a SET v = 'zwei' WHERE id = 2; DELETE FROM a WHERE id = 1")
	n.dtx(3, "SELECT 1")
	// Field case 10, at the server's own pace: 505 of 1,005 rows survive.
	n.dtx(4, `INSERT INTO b SELECT g, repeat('x', 300) FROM generate_series(1, 500) g; SAVEPOINT s;
		INSERT INTO b SELECT g, repeat('y', 300) FROM generate_series(1001, 1500) g; ROLLBACK TO s;
		INSERT INTO b SELECT g, 'z' FROM generate_series(2001, 2005) g`)
	// A streamed transaction that alters its table, with a truncate.
	n.dtx(5, `INSERT INTO a SELECT g, repeat('x', 300) FROM generate_series(10, 500) g; ALTER TABLE a ADD COLUMN w int DEFAULT 7;
		INSERT INTO a SELECT g, repeat('x', 300), g FROM generate_series(1001, 1500) g; TRUNCATE b; INSERT INTO a VALUES (3, 'last', 3)`)
	n.dtx(6, "INSERT INTO a VALUES (4, 'four', 4)")
	// Rolled back: nothing of it is heard of.
	n.exec("BEGIN; INSERT INTO b SELECT g, repeat('x', 300) FROM generate_series(1, 1000) g; ROLLBACK")
	// A rollback's record is not flushed at once: what is written may end before it.
	end := n.lsn("SELECT pg_current_wal_insert_lsn()::text")
	x.untilPosition(end)
	ps := parts(x.all())
	var gxids []dtx.GXID
	for _, p := range ps {
		gxids = append(gxids, p.GXID)
	}
	if !slices.Equal(gxids, []dtx.GXID{1, 2, 3, 4, 5, 6}) {
		t.Fatalf("parts of %v", gxids)
	}
	for i, want := range [][]string{
		{"a(idv)I:1:one", "a(idv)I:2:two"},
		{"a(idv)U:2:zwei", "a(idv)D:1:"},
		nil,
	} {
		if got := x.rows(ps[i]); !slices.Equal(got, want) {
			t.Errorf("gxid %d: rows %q, want %q", i+1, got, want)
		}
	}
	if got := x.rows(ps[3]); len(got) != 505 || got[504] != "b(idv)I:2005:z" {
		t.Errorf("%d rows survive, want 505", len(got))
	}
	if got := x.rows(ps[4]); len(got) != 991+2 || got[0] != "a(idv)I:10:"+strings.Repeat("x", 300) || got[991] != "b(idv)T" || got[992] != "a(idvw)I:3:last:3" || !ps[4].Barrier {
		t.Errorf("gxid 5: %d rows, barrier %v, last %q", len(got), ps[4].Barrier, got[len(got)-1])
	}
	if got := x.rows(ps[5]); !slices.Equal(got, []string{"a(idvw)I:4:four:4"}) {
		t.Errorf("gxid 6: %q", got)
	}
	s := x.r.Stats()
	if !s.Connected || s.Parts != 6 || s.OpenTxns != 0 || s.ReceivedLSN < end || s.ReportedLSN < end || s.Bytes == 0 || s.ServerLSN < end || s.Reconnects != 0 || s.LastError != "" {
		t.Errorf("stats %+v", s)
	}
	if err := x.stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run returns %v", err)
	}
	if x.r.Stats().Connected {
		t.Error("connected after the end")
	}
}

// TestTwoPhase: a transaction decoded at PREPARE is held there; confirming the
// hold's position makes a new daemon get it again, though the server has sent it
// before.
func TestTwoPhase(t *testing.T) {
	n := newNode(t, shared.Database(t), true)
	for _, streamed := range []bool{false, true} {
		t.Run(fmt.Sprintf("streamed=%v", streamed), func(t *testing.T) {
			n.t = t
			n.exec("TRUNCATE a")
			gid, rows := "1001", "generate_series(1, 3)"
			if streamed {
				gid, rows = "1700000000-1002", "generate_series(1, 2000)"
			}
			o := n.options(smallMemory(t, n.dsn))
			o.LocalChanges = assemble.Ignore // the TRUNCATE
			x := n.start(o, 0, nil)
			n.exec("BEGIN; INSERT INTO a SELECT g, repeat('x', 200) FROM " + rows + " g; PREPARE TRANSACTION '" + gid + "'")
			hold := func(evs []dtx.Event) *dtx.Event {
				i := slices.IndexFunc(evs, func(ev dtx.Event) bool { return ev.Kind == dtx.EventHold })
				if i < 0 {
					return nil
				}
				return &evs[i]
			}
			h := hold(x.until("hold", func(evs []dtx.Event) bool { return hold(evs) != nil }))
			n.exec("CREATE TABLE IF NOT EXISTS other (x int); DROP TABLE other")
			x.untilPosition(n.lsn("SELECT pg_current_wal_lsn()::text"))
			// A daemon that starts at the hold gets the PREPARE again.
			x.r.Confirm(h.LSN)
			_ = x.stop()
			if c := n.confirmed(); c != h.LSN {
				t.Fatalf("confirmed %s, want the hold's %s", c, h.LSN)
			}
			y := n.start(o, h.LSN, nil)
			y.until("hold again", func(evs []dtx.Event) bool { return hold(evs) != nil })
			n.exec("COMMIT PREPARED '" + gid + "'")
			p := y.untilParts(1)[0]
			want := 3
			if streamed {
				want = 2000
			}
			if got := y.rows(p); len(got) != want || p.GXID != map[bool]dtx.GXID{false: 1001, true: 1700000000<<32 | 1002}[streamed] || p.Kind != dtx.TwoPhase {
				t.Errorf("part %+v with %d rows", p, len(got))
			}
			_ = y.stop()
			// One that starts behind the PREPARE, which is applied then, gets the outcome
			// alone, for the dedup set.
			z := n.start(o, h.LSN+8, nil)
			if again := z.untilParts(1)[0]; again.GXID != p.GXID || again.EndLSN != p.EndLSN || again.Rows != 0 {
				t.Errorf("part %+v", again)
			}
			z.r.Confirm(p.EndLSN)
			_ = z.stop()
		})
	}
}

// TestPreparedWithoutChanges: a prepared transaction that changed nothing still
// delivers its part, as long as it logged something decodable: an empty message,
// or a row that was rolled back. Of one that only locked rows some servers send
// COMMIT PREPARED, which then is the part, and some send nothing.
func TestPreparedWithoutChanges(t *testing.T) {
	n := newNode(t, shared.Database(t), true)
	tx := func(sql, gid, outcome string) {
		n.exec("BEGIN; " + sql + "; PREPARE TRANSACTION '" + gid + "'")
		n.exec(outcome + " PREPARED '" + gid + "'")
	}
	const lock = "SELECT v FROM a FOR UPDATE"
	x := n.start(n.options(n.dsn), 0, nil)
	tx("INSERT INTO a VALUES (1, 'x')", "1", "COMMIT")
	tx("SELECT 1", "2", "COMMIT") // logged nothing before its PREPARE: nothing at all is sent
	tx(lock, "1700000000-3", "COMMIT")
	tx("SAVEPOINT s; "+lock+"; ROLLBACK TO s", "4", "COMMIT")
	tx("SAVEPOINT s; DELETE FROM a; ROLLBACK TO s", "5", "COMMIT")
	tx(lock, "6", "ROLLBACK")
	tx(lock, "of somebody else", "COMMIT")
	tx("SELECT pg_logical_emit_message(true, 'empty', '')", "8", "COMMIT")
	tx("DELETE FROM a", "7", "COMMIT")
	got := map[dtx.GXID]int64{}
	x.until("the last part", func(evs []dtx.Event) bool {
		ps := parts(evs)
		return len(ps) > 0 && ps[len(ps)-1].GXID == 7
	})
	for _, p := range parts(x.all()) {
		if _, twice := got[p.GXID]; twice || p.Kind != dtx.TwoPhase {
			t.Errorf("part %+v, twice: %v", p, twice)
		}
		got[p.GXID] = p.Rows
	}
	// Some servers send the COMMIT PREPARED of a transaction that only locked rows.
	delete(got, 1700000000<<32|3)
	delete(got, 4)
	if want := map[dtx.GXID]int64{1: 1, 5: 0, 7: 1, 8: 0}; !maps.Equal(got, want) {
		t.Errorf("rows of parts %v, want %v", got, want)
	}
	_ = x.stop()
}

// TestPreparedWhileSlotIsMade: the server sends such a transaction when it
// commits, with its PREPARE from before the slot's first position.
func TestPreparedWhileSlotIsMade(t *testing.T) {
	dsn := shared.Database(t)
	n := newNode(t, dsn, true)
	session := func() *pgx.Conn {
		c, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(context.Background()) })
		return c
	}
	run := func(c *pgx.Conn, sql string) {
		t.Helper()
		if _, err := c.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	begin := func(c *pgx.Conn) (xid string) {
		t.Helper()
		run(c, "BEGIN")
		if err := c.QueryRow(t.Context(), "SELECT pg_current_xact_id()::text").Scan(&xid); err != nil {
			t.Fatal(err)
		}
		return xid
	}
	first, second, third, maker := session(), session(), session(), session()
	slot := fmt.Sprintf("%s_late", n.slot)
	waitsFor := func(xid string) {
		t.Helper()
		deadline := time.Now().Add(wait)
		for n.query("SELECT count(*)::text FROM pg_locks WHERE NOT granted AND locktype = 'transactionid' AND transactionid::text = '"+xid+"'") == "0" {
			if time.Now().After(deadline) {
				t.Fatal("making the slot does not wait for transaction " + xid)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	x1 := begin(first)
	made := make(chan error, 1)
	go func() {
		_, err := maker.Exec(context.Background(), "SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, true)", slot)
		made <- err
	}()
	waitsFor(x1)
	x2 := begin(second)
	run(first, "COMMIT")
	waitsFor(x2)
	run(third, "BEGIN; INSERT INTO a VALUES (1, 'x'); PREPARE TRANSACTION '77'")
	run(second, "COMMIT")
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	n.slot = slot
	x := n.start(n.options(dsn), 0, nil)
	n.exec("INSERT INTO b VALUES (1, 'y'); " + name(78, 'O'))
	if p := x.untilParts(1)[0]; p.GXID != 78 {
		t.Fatalf("part %+v", p)
	}
	n.exec("COMMIT PREPARED '77'")
	p := x.untilParts(2)[1]
	if p.GXID != 77 || !slices.Equal(x.rows(p), []string{"a(idv)I:1:x"}) {
		t.Errorf("part %+v with rows %v", p, x.rows(p))
	}
	if err := x.stop(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestInProgressIsSentAgain: a keepalive's position may be confirmed while a
// transaction is being streamed. This proves what that rests on: a session that
// starts beyond the first pieces sends the transaction again from its first row.
func TestInProgressIsSentAgain(t *testing.T) {
	n := newNode(t, shared.Database(t), false)
	x := n.start(n.options(smallMemory(t, n.dsn)), 0, nil)
	n.exec("BEGIN; INSERT INTO a SELECT g, repeat('x', 300) FROM generate_series(1, 1000) g")
	// Writes of another session push the log forward, far beyond the first pieces.
	c, err := pgx.Connect(context.Background(), n.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	if _, err := c.Exec(context.Background(), "CREATE TABLE unpublished AS SELECT g FROM generate_series(1, 10000) g"); err != nil {
		t.Fatal(err)
	}
	x.until("first pieces", func([]dtx.Event) bool { return x.r.Stats().Rows > 500 })
	at := n.lsn("SELECT pg_current_wal_lsn()::text")
	x.untilPosition(at)
	if s := x.r.Stats(); s.OpenTxns != 1 {
		t.Fatalf("stats %+v", s)
	}
	x.r.Confirm(at)
	_ = x.stop()
	if got := n.confirmed(); got != at {
		t.Fatalf("confirmed %s, want %s", got, at)
	}
	y := n.start(n.options(smallMemory(t, n.dsn)), at, nil)
	n.exec("INSERT INTO a SELECT g, repeat('x', 300) FROM generate_series(1001, 2000) g; " + name(9, 'O') + "COMMIT")
	p := y.untilParts(1)[0]
	if got := y.rows(p); len(got) != 2000 || !strings.HasPrefix(got[0], "a(idv)I:1:") {
		t.Errorf("%d rows, first %.20q", len(got), got[0])
	}
	_ = y.stop()
}

// TestIdleStreamFollows (field cases 4 and 5): writes that are not published,
// and empty transactions, move the position, and confirming it lets the server
// drop its log.
func TestIdleStreamFollows(t *testing.T) {
	n := newNode(t, shared.Database(t), false)
	x := n.start(n.options(n.dsn), 0, nil)
	n.dtx(1, "INSERT INTO a VALUES (1, 'x')")
	restart := n.lsn("SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = '" + n.slot + "'")
	n.exec("CREATE TABLE u AS SELECT g FROM generate_series(1, 1000) g; CHECKPOINT")
	end := n.lsn("SELECT pg_current_wal_lsn()::text")
	x.untilPosition(end)
	x.r.Confirm(end)
	deadline := time.Now().Add(wait)
	for n.confirmed() < end || n.lsn("SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = '"+n.slot+"'") <= restart {
		if time.Now().After(deadline) {
			t.Fatal("the slot does not follow")
		}
		// The restart position moves with the server's own records of running transactions.
		n.exec("CHECKPOINT")
		now := n.lsn("SELECT pg_current_wal_lsn()::text")
		x.untilPosition(now)
		x.r.Confirm(now)
	}
	if evs := x.all(); len(evs) > 400 {
		t.Errorf("%d events for an idle stream", len(evs))
	}
	_ = x.stop()
}

// TestCutConnections: over a network that cuts at random bytes, every
// transaction is reported once and whole, in commit order (field cases 6, 7).
func TestCutConnections(t *testing.T) {
	n := newNode(t, shared.Database(t), true)
	p, err := repltest.New(n.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	x := n.start(n.options(smallMemory(t, p.DSN())), 0, nil)
	const dtxs = 120
	var want []string
	for i := 1; i <= dtxs; i++ {
		rows := 1 + i%7
		if i%10 == 0 {
			rows = 900
		}
		ins := fmt.Sprintf("INSERT INTO a SELECT g, repeat('x', 200) FROM generate_series(%d, %d) g", i*10000, i*10000+rows-1)
		switch i % 4 {
		case 0:
			n.exec(fmt.Sprintf("BEGIN; %s; PREPARE TRANSACTION '%d'", ins, i))
			if i%3 == 0 {
				p.CutAfter(int64(1 + i*37%5000))
			}
			n.exec(fmt.Sprintf("COMMIT PREPARED '%d'", i))
		default:
			n.dtx(i, ins)
		}
		want = append(want, fmt.Sprintf("%d:%d", i, rows))
		if i%2 == 1 {
			p.CutAfter(int64(1 + i*7919%4000))
		}
		if i%10 == 0 {
			x.untilParts(i) // or the writer is done before the reader meets the cuts
		}
	}
	p.CutAfter(-1)
	var got []string
	for _, pt := range x.untilParts(dtxs) {
		got = append(got, fmt.Sprintf("%d:%d", pt.GXID, len(x.rows(pt))))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	s := x.r.Stats()
	if s.Reconnects < 5 || s.LastError == "" || s.LastErrorAt.IsZero() {
		t.Errorf("the network was not bad enough: %+v", s)
	}
	t.Logf("%d reconnects", s.Reconnects)
	_ = x.stop()
	if u := x.spool.Usage(); u.OpenTxns != 0 {
		t.Errorf("%d transactions stay open in the spool", u.OpenTxns)
	}
}

// TestBlockedConsumer (field case 36): while emit blocks for several sender
// timeouts, the connection stays.
func TestBlockedConsumer(t *testing.T) {
	n := newNode(t, shared.Database(t), false)
	n.exec("ALTER ROLE " + n.query("SELECT quote_ident(current_user)") + " IN DATABASE " + n.query("SELECT current_database()::text") + " SET wal_sender_timeout = '900ms'")
	gate := make(chan struct{})
	x := n.start(n.options(n.dsn), 0, gate)
	for i := 1; i <= 30; i++ {
		n.dtx(i, fmt.Sprintf("INSERT INTO a SELECT g, repeat('x', 1000) FROM generate_series(%d, %d) g", i*1000, i*1000+999))
	}
	<-time.After(3 * time.Second)
	if s := x.r.Stats(); !s.Connected || s.Reconnects != 0 {
		t.Errorf("while blocked: %+v", s)
	}
	close(gate)
	if got := x.untilParts(30); len(got) != 30 {
		t.Errorf("%d parts", len(got))
	}
	if s := x.r.Stats(); s.Reconnects != 0 {
		t.Errorf("after: %+v", s)
	}
	_ = x.stop()
}

// TestFullSpool: a full spool stops the reader, not its connection; exempting
// the content lets it go on.
func TestFullSpool(t *testing.T) {
	n := newNode(t, shared.Database(t), false)
	sp, err := store.Open(context.Background(), store.Options{Dir: t.TempDir() + "/spool", Subscription: "t", MemBytes: 8 << 20, MaxBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sp.Close() }()
	o := n.options(n.dsn)
	o.Spool = sp
	x := n.start(o, 0, nil)
	for i := 1; i <= 8; i++ {
		n.dtx(i, fmt.Sprintf("INSERT INTO a SELECT g, repeat('x', 1000) FROM generate_series(%d, %d) g", i*1000, i*1000+499))
	}
	x.until("full", func([]dtx.Event) bool {
		return slices.ContainsFunc(sp.Usage().Contents, func(c store.ContentUsage) bool { return c.Waiting })
	})
	if k := len(parts(x.all())); k == 0 || k == 8 {
		t.Errorf("%d parts while full", k)
	}
	sp.SetExempt([]dtx.Content{content})
	x.untilParts(8)
	if s := x.r.Stats(); s.Reconnects != 0 {
		t.Errorf("stats %+v", s)
	}
	_ = x.stop()
}

// TestStops: what a person must mend ends Run with an error of class stop that
// names the place; what passes does not.
func TestStops(t *testing.T) {
	t.Run("slot gone", func(t *testing.T) {
		n := newNode(t, shared.Database(t), false)
		o := n.options(n.dsn)
		o.BackoffMin, o.BackoffMax = 2*time.Second, 2*time.Second
		x := n.start(o, 0, nil)
		n.dtx(1, "INSERT INTO a VALUES (1, 'x')")
		x.untilParts(1)
		n.exec("SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = '" + n.slot + "'; SELECT pg_drop_replication_slot('" + n.slot + "')")
		checkStop(t, x.failure(), "does not exist", "new initial copy")
	})
	t.Run("slot moved", func(t *testing.T) {
		n := newNode(t, shared.Database(t), false)
		n.dtx(1, "INSERT INTO a VALUES (1, 'x')")
		from := n.confirmed()
		n.exec("SELECT pg_replication_slot_advance('" + n.slot + "', pg_current_wal_lsn())")
		checkStop(t, n.start(n.options(n.dsn), from, nil).failure(), "beyond the recorded position")
	})
	t.Run("server taken back in time", func(t *testing.T) {
		n := newNode(t, shared.Database(t), false)
		sent := n.lsn("SELECT (pg_current_wal_lsn() + 1000000)::text")
		checkStop(t, n.start(n.options(n.dsn), sent, nil).failure(), "content 2 needs resync", sent.String(), "older state")
	})
	t.Run("another server", func(t *testing.T) {
		n := newNode(t, shared.Database(t), false)
		o := n.options(n.dsn)
		o.Expect = feed.Identity{SystemID: "4711", Timeline: 1}
		checkStop(t, n.start(o, 0x10, nil).failure(), "belongs to 4711", "content 2")
		o.Expect = feed.Identity{SystemID: n.query("SELECT system_identifier::text FROM pg_control_system()"), Timeline: 9}
		checkStop(t, n.start(o, 0x10, nil).failure(), "timeline 9")
	})
	t.Run("local change", func(t *testing.T) {
		n := newNode(t, shared.Database(t), false)
		x := n.start(n.options(n.dsn), 0, nil)
		n.exec("INSERT INTO a VALUES (1, 'secret-value')")
		checkStop(t, x.failure(), "public.a", "local_changes: ignore")
		// The remedy, literally.
		o := n.options(n.dsn)
		o.LocalChanges = assemble.Ignore
		x = n.start(o, n.confirmed(), nil)
		x.untilPosition(n.lsn("SELECT pg_current_wal_lsn()::text"))
		if s := x.r.Stats(); s.Ignored != 1 || len(parts(x.all())) != 0 {
			t.Errorf("stats %+v", s)
		}
		_ = x.stop()
	})
	t.Run("other fault first", func(t *testing.T) {
		n := newNode(t, shared.Database(t), false)
		x := n.start(n.options("postgres://127.0.0.1:1/x?sslmode=disable"), 0, nil)
		x.until("retries", func([]dtx.Event) bool { return x.r.Stats().Reconnects > 2 })
		if s := x.r.Stats(); s.Connected || s.LastError == "" {
			t.Errorf("stats %+v", s)
		}
		if err := x.stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Run("consumer fails", func(t *testing.T) {
		n := newNode(t, shared.Database(t), false)
		sp, err := store.Open(context.Background(), store.Options{Dir: t.TempDir() + "/spool", Subscription: "t", MemBytes: 8 << 20})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = sp.Close() }()
		o := n.options(n.dsn)
		o.Spool = sp
		r, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		n.dtx(1, "INSERT INTO a VALUES (1, 'x')")
		boom := errors.New("boom")
		if err := r.Run(t.Context(), 0, func(context.Context, dtx.Event) error { return boom }); !errors.Is(err, boom) || r.Stats().Reconnects != 0 {
			t.Errorf("%v after %d reconnects", err, r.Stats().Reconnects)
		}
	})
	t.Run("two readers", func(t *testing.T) {
		n := newNode(t, shared.Database(t), false)
		x := n.start(n.options(n.dsn), 0, nil)
		n.dtx(1, "INSERT INTO a VALUES (1, 'x')")
		x.untilParts(1)
		y := n.start(n.options(n.dsn), 0, nil)
		y.until("retries", func([]dtx.Event) bool { return y.r.Stats().Reconnects > 1 })
		if !strings.Contains(y.r.Stats().LastError, "active") {
			t.Errorf("stats %+v", y.r.Stats())
		}
		_ = x.stop()
		y.untilParts(1)
		_ = y.stop()
	})
}

func checkStop(t *testing.T, err error, wants ...string) {
	t.Helper()
	if err == nil || dtx.ClassOf(err) != dtx.ClassStop {
		t.Fatalf("class %d: %v", dtx.ClassOf(err), err)
	}
	for _, w := range wants {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q lacks %q", err, w)
		}
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("row value in %q", err)
	}
}

// TestServerRestart: the reader goes on when its server comes back.
func TestServerRestart(t *testing.T) {
	srv := lab.ServerForTest(t, lab.Options{})
	n := newNode(t, srv.DSN(), true)
	x := n.start(n.options(n.dsn), 0, nil)
	n.exec("BEGIN; INSERT INTO a VALUES (1, 'x'); PREPARE TRANSACTION '1'")
	x.until("hold", func(evs []dtx.Event) bool {
		return slices.ContainsFunc(evs, func(ev dtx.Event) bool { return ev.Kind == dtx.EventHold })
	})
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	_ = n.sql.Close(ctx)
	if err := srv.Crash(ctx); err != nil {
		t.Fatal(err)
	}
	x.until("disconnect", func([]dtx.Event) bool { return !x.r.Stats().Connected })
	if err := srv.Start(ctx); err != nil {
		t.Fatal(err)
	}
	var err error
	if n.sql, err = pgx.Connect(ctx, n.dsn); err != nil {
		t.Fatal(err)
	}
	n.exec("COMMIT PREPARED '1'")
	n.dtx(2, "INSERT INTO a VALUES (2, 'y')")
	ps := x.untilParts(2)
	if len(ps) != 2 || len(x.rows(ps[0])) != 1 || len(x.rows(ps[1])) != 1 || ps[0].GXID != 1 {
		t.Errorf("parts %+v", ps)
	}
	_ = x.stop()
}

func TestOptions(t *testing.T) {
	if _, err := New(Options{Content: -1, LocalChanges: 9, Carrier: carrier.Messages{}}); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("%v", err)
	}
	if _, err := New(Options{DSN: "host=h", Slot: "s", Publication: "p", Spool: feedtest.OpenSpool(t)}); err != nil {
		t.Errorf("what may be left out: %v", err)
	}
}
