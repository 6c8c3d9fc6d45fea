package shards

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"cbrepl/apply/ledger"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
)

// shortWait is the lock wait of a daemon that is not to get the lock.
const shortWait = 300 * time.Millisecond

// A daemon is paused inside a batch, loses its lock, and is replaced by another
// one, which applies another batch of the same number. The old one's Apply then
// fails and changes nothing.
func TestPausedDaemon(t *testing.T) {
	h := history{seed: 5, shards: 2, all: true}
	for _, point := range []string{"before_begin", "test_rows_written", "before_prepare", "between_prepare", "after_prepare"} {
		t.Run(point, func(t *testing.T) {
			coordinator, dbs := sharedDatabases(t, h.shards)
			o := testOptions(coordinator, dbs)
			prepareHistory(t, h, o)
			old, rival := historyTarget(t, h, o, 77), historyTarget(t, h, o, 0)
			openUntil(t, old)
			passes := 0
			old.private.onPoint = func(name string) error {
				if passes++; name != point || (point == "between_prepare" && passes < 5) {
					return nil
				}
				old.private.onPoint = nil
				// The lock goes with the session; the shards' sessions stay.
				execSQL(t, coordinator, fmt.Sprintf("SELECT pg_terminate_backend(%d, 5000)", old.co.Conn.PID()))
				openUntil(t, rival)
				return applyBatch(testCtx(t), rival, h, 1, 0)
			}
			err := applyBatch(testCtx(t), old, h, 1, 77)
			dtxtest.WantError(t, err, dtx.ClassRetry)
			t.Log(err)
			if err := applyBatch(testCtx(t), rival, h, 2, 0); err != nil {
				t.Fatalf("the new daemon: %v", err)
			}
			st := openUntil(t, rival)
			if st.Batch != 2 {
				t.Fatalf("batch %d, want 2", st.Batch)
			}
			checkWorld(t, h, o, st)
			old.opts.LockWait = shortWait
			_, err = old.Open(testCtx(t))
			dtxtest.WantError(t, err, dtx.ClassStop, "another daemon runs subscription test", fmt.Sprint("server process ", rival.co.Conn.PID()), "application cbrepl:test:4")
			if err := rival.Close(); err != nil {
				t.Fatal(err)
			}
			old.opts.LockWait = o.LockWait
			_, err = old.Open(testCtx(t))
			dtxtest.WantError(t, err, dtx.ClassStop, "another daemon has applied batches", "Restart the daemon")
		})
	}
}

// The old daemon has decided when it is paused: the new one finishes the batch.
func TestPausedAfterDecision(t *testing.T) {
	h := history{seed: 6, shards: 2, all: true}
	for _, point := range []string{"after_decide", "between_commit_prepared"} {
		t.Run(point, func(t *testing.T) {
			coordinator, dbs := sharedDatabases(t, h.shards)
			o := testOptions(coordinator, dbs)
			prepareHistory(t, h, o)
			old, rival := historyTarget(t, h, o, 0), historyTarget(t, h, o, 0)
			openUntil(t, old)
			old.private.onPoint = func(name string) error {
				if name != point {
					return nil
				}
				old.private.onPoint = nil
				execSQL(t, coordinator, fmt.Sprintf("SELECT pg_terminate_backend(%d, 5000)", old.co.Conn.PID()))
				if st := openUntil(t, rival); st.Batch != 1 {
					t.Errorf("the new daemon starts at batch %d", st.Batch)
				}
				return applyBatch(testCtx(t), rival, h, 2, 0)
			}
			dtxtest.WantError(t, applyBatch(testCtx(t), old, h, 1, 0), dtx.ClassRetry, "batch 1 is decided and not yet committed on")
			if err := rival.Close(); err != nil {
				t.Fatal(err)
			}
			checkWorld(t, h, o, openUntil(t, historyTarget(t, h, o, 0)))
		})
	}
}

// The epoch alone keeps an old daemon out, on every server, with all of its
// sessions alive.
func TestEpochFences(t *testing.T) {
	h := history{seed: 7, shards: 2, all: true}
	coordinator, dbs := sharedDatabases(t, h.shards)
	o := testOptions(coordinator, dbs)
	prepareHistory(t, h, o)
	tg := historyTarget(t, h, o, 0)
	for i, c := range []struct{ dsn, table, where string }{
		{coordinator, "subscription", "coordinator database"}, {dbs[0], "shard", "shard 0"}, {dbs[1], "shard", "shard 1"},
	} {
		st := openUntil(t, tg)
		execSQL(t, c.dsn, "UPDATE cbrepl."+c.table+" SET epoch = epoch + 1")
		dtxtest.WantError(t, applyBatch(testCtx(t), tg, h, st.Batch+1, 0), dtx.ClassRetry, fmt.Sprintf("no longer at epoch %d and batch", st.Epoch), c.where)
		checkNonePrepared(t, o) // already before the next open
		execSQL(t, c.dsn, "UPDATE cbrepl."+c.table+" SET epoch = epoch - 1")
		if st = openUntil(t, tg); st.Batch != uint64(2*i) {
			t.Fatalf("batch is %d, want %d", st.Batch, i)
		}
		checkWorld(t, h, o, st)
		for range 2 {
			st.Batch++
			if err := applyBatch(testCtx(t), tg, h, st.Batch, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Nor is a batch decided twice, or over a gap.
	for _, set := range []string{"batch = batch + 1", "batch = batch - 1"} {
		st := openUntil(t, tg)
		tg.private.onPoint = func(name string) error {
			if name == "after_prepare" {
				execSQL(t, coordinator, "UPDATE cbrepl.subscription SET "+set)
			}
			return nil
		}
		dtxtest.WantError(t, applyBatch(testCtx(t), tg, h, st.Batch+1, 0), dtx.ClassRetry, "another daemon has taken over subscription test")
		tg.private.onPoint = nil
		execSQL(t, coordinator, fmt.Sprintf("UPDATE cbrepl.subscription SET batch = %d", st.Batch))
		checkWorld(t, h, o, openUntil(t, tg))
	}
}

// A second daemon gets an error within the lock wait and changes nothing.
func TestSecondDaemon(t *testing.T) {
	h := history{seed: 8, shards: 1}
	coordinator, dbs := sharedDatabases(t, h.shards)
	o := testOptions(coordinator, dbs)
	prepareHistory(t, h, o)
	first := historyTarget(t, h, o, 0)
	st := openUntil(t, first)
	o.LockWait = shortWait
	second := historyTarget(t, h, o, 0)
	begin := time.Now()
	_, err := second.Open(testCtx(t))
	dtxtest.WantError(t, err, dtx.ClassStop, "another daemon runs subscription test", "server process "+fmt.Sprint(first.co.Conn.PID()),
		"application cbrepl:test:2", "role postgres", "client 127.0.0.1", "connected since 2", "Stop the other daemon")
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("it took %s", d)
	}
	for seq := st.Batch + 1; seq < st.Batch+6; seq++ {
		if err := applyBatch(testCtx(t), first, h, seq, 0); err != nil {
			t.Fatalf("the first daemon is disturbed: %v", err)
		}
	}
	// It waits for a daemon that ends in time.
	o.LockWait = 20 * time.Second
	second = historyTarget(t, h, o, 0)
	var g errgroup.Group
	g.Go(func() error {
		var err error
		st, err = second.Open(testCtx(t))
		return err
	})
	for deadline := time.Now().Add(15 * time.Second); ; {
		n := queryRows2(t, o.Coordinator, "SELECT count(*) FROM pg_stat_activity, pg_sleep(0.02) WHERE datname = current_database() AND application_name LIKE 'cbrepl:test%'")
		if n[0][0] == "2" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the second daemon does not wait")
		}
	}
	first.co.close()
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	checkWorld(t, h, o, st)
}

// A session that holds a shard's row and cannot be ended is named.
func TestBlockedEpoch(t *testing.T) {
	h := history{seed: 9, shards: 1}
	coordinator, dbs := sharedDatabases(t, h.shards)
	o := testOptions(coordinator, dbs)
	prepareHistory(t, h, o)
	o.OpenTimeout = 3 * time.Second
	tg := historyTarget(t, h, o, 0)
	const foreign = "somebody:else"
	execSQL(t, dbs[0], "BEGIN; UPDATE cbrepl.shard SET batch = batch; PREPARE TRANSACTION '"+foreign+"'")
	_, err := tg.Open(testCtx(t))
	dtxtest.WantError(t, err, dtx.ClassRetry, "cannot raise the epoch on the shard 0", "locked by prepared transaction "+foreign)
	execSQL(t, dbs[0], "ROLLBACK PREPARED '"+foreign+"'")
	checkWorld(t, h, o, openUntil(t, tg))
}

// A session of an older daemon that still works on a shard is ended.
func TestOlderSessionEnded(t *testing.T) {
	h := history{seed: 10, shards: 2, all: true}
	coordinator, dbs := sharedDatabases(t, h.shards)
	o := testOptions(coordinator, dbs)
	prepareHistory(t, h, o)
	old, rival := historyTarget(t, h, o, 0), historyTarget(t, h, o, 0)
	openUntil(t, old)
	if err := old.begin(testCtx(t), old.shards[1]); err != nil {
		t.Fatal(err)
	}
	execSQL(t, coordinator, fmt.Sprintf("SELECT pg_terminate_backend(%d, 5000)", old.co.Conn.PID()))
	st := openUntil(t, rival)
	if s := rival.Stats(); s.SessionsEnded != 2 {
		t.Errorf("stats are %+v, want 2 sessions ended", s)
	}
	checkWorld(t, h, o, st)
}

func TestGID(t *testing.T) {
	name := strings.Repeat("x", 63)
	id := ledger.BatchID{Epoch: 1<<64 - 1, Batch: 1<<64 - 1}
	gid := gidOf(id, name, 1<<32-1)
	if len(gid) >= 200 {
		t.Errorf("the longest global id has %d bytes", len(gid))
	}
	if got, ok := parseGID(gid, name, 1<<32-1); !ok || got != id {
		t.Errorf("%s parses as %v %t", gid, got, ok)
	}
	for _, bad := range []string{
		"cbrepl:a:1:2", "cbrepl:a:1:2:4", "cbrepl:a:01:2:3", "cbrepl:a:1:+2:3", "cbrepl:a:1:2:3:", "cbrepl:a:1:2:3 ",
		"cbrepl:ab:1:2:3", "cbrepl:a::2:3", "cbrepl:a:x:2:3", "other:a:1:2:3", "",
	} {
		if id, ok := parseGID(bad, "a", 3); ok {
			t.Errorf("%q parses as %v", bad, id)
		}
	}
	if id, ok := parseGID("cbrepl:a:1:2:3", "a", 3); !ok || id != (ledger.BatchID{Epoch: 1, Batch: 2}) {
		t.Errorf("parsed as %v %t", id, ok)
	}
}
