package shards

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
)

// A run of batches leaves what the oracle says, and a second daemon finds it.
func TestHistory(t *testing.T) {
	h := history{seed: 1, shards: 3}
	coordinator, dbs := sharedDatabases(t, h.shards)
	o := testOptions(coordinator, dbs)
	prepareHistory(t, h, o)
	ignore := goleak.IgnoreCurrent()
	tg := historyTarget(t, h, o, 0)
	st, err := tg.Open(testCtx(t))
	if err != nil {
		t.Fatal(err)
	}
	if !st.Initialized || st.Epoch != 2 || st.Batch != 0 || len(st.Streams) != len(testContents) {
		t.Fatalf("state is %+v", st)
	}
	if s := st.Streams[0]; s != (apply.StreamIdentity{Content: -1, SystemID: "7000", Slot: `s"\,l`, Timeline: 3}) {
		t.Fatalf("stream is %+v", s)
	}
	for seq := uint64(1); seq <= 40; seq++ {
		if err := applyBatch(testCtx(t), tg, h, seq, 0); err != nil {
			t.Fatalf("batch %d: %v", seq, err)
		}
	}
	dtxtest.WantError(t, applyBatch(testCtx(t), tg, h, 42, 0), dtx.ClassStop, "batch 42 does not follow batch 40")
	if st, err = tg.Open(testCtx(t)); err != nil { // again, in one daemon's life
		t.Fatal(err)
	}
	if st.Batch != 40 || st.Epoch != 3 {
		t.Fatalf("batch %d epoch %d, want 40 and 3", st.Batch, st.Epoch)
	}
	checkWorld(t, h, o, st)
	if err := applyBatch(testCtx(t), tg, h, 41, 0); err != nil {
		t.Fatal(err)
	}
	if s := tg.Stats(); s.Batch != 41 || s.Batches != 41 || s.Opens != 2 || s.PositionBatches == 0 || s.InDoubtCommitted+s.InDoubtRolledBack != 0 {
		t.Errorf("stats are %+v", s)
	}
	if err := tg.Close(); err != nil {
		t.Fatal(err)
	}
	goleak.VerifyNone(t, ignore)
	dtxtest.WantError(t, applyBatch(testCtx(t), tg, h, 42, 0), dtx.ClassRetry, "not open")

	other := historyTarget(t, h, o, 0)
	if st, err = other.Open(testCtx(t)); err != nil {
		t.Fatal(err)
	}
	checkWorld(t, h, o, st)
}

// Init is done once; a batch before it, or one that moves an unknown stream or a
// position back, is refused before anything is written.
func TestRefusedBatches(t *testing.T) {
	h := history{seed: 2, shards: 2}
	coordinator, dbs := sharedDatabases(t, h.shards)
	o := testOptions(coordinator, dbs)
	if err := Prepare(testCtx(t), o); err != nil {
		t.Fatal(err)
	}
	tg := historyTarget(t, h, o, 0)
	dtxtest.WantError(t, initHistory(testCtx(t), tg), dtx.ClassRetry, "not open")
	st, err := tg.Open(testCtx(t))
	if err != nil {
		t.Fatal(err)
	}
	if st.Initialized || len(st.Positions) > 0 {
		t.Fatalf("state is %+v", st)
	}
	_, err = tg.Apply(testCtx(t), &dtx.Batch{Seq: 1}, nil)
	dtxtest.WantError(t, err, dtx.ClassStop, "without first positions")
	dtxtest.WantError(t, tg.Init(testCtx(t), apply.Beginning{Streams: []apply.StreamIdentity{{Content: 1}}, Positions: []dtx.Position{{Content: 2}}}), dtx.ClassStop, "no position for content 1")
	if err := initHistory(testCtx(t), tg); err != nil {
		t.Fatal(err)
	}
	dtxtest.WantError(t, initHistory(testCtx(t), tg), dtx.ClassStop, "already has positions")
	_, err = tg.Apply(testCtx(t), &dtx.Batch{Seq: 1, Positions: []dtx.Position{{Content: 9, LSN: 5}}}, nil)
	dtxtest.WantError(t, err, dtx.ClassStop, "content 9")
	_, err = tg.Apply(testCtx(t), &dtx.Batch{Seq: 1, Positions: []dtx.Position{{Content: 0, LSN: 0}}}, nil)
	dtxtest.WantError(t, err, dtx.ClassStop, "back from 0/1 to 0/0")
	_, err = tg.Apply(testCtx(t), &dtx.Batch{Seq: 1, Positions: []dtx.Position{{Content: 0, LSN: 0xab_0000_0001}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if st, err = tg.Open(testCtx(t)); err != nil {
		t.Fatal(err)
	}
	if st.Batch != 1 || st.Positions[1] != (dtx.Position{Content: 0, LSN: 0xab_0000_0001}) {
		t.Fatalf("state is %+v", st)
	}
}

// A daemon that is told to stop gives the batch up before its decision and
// finishes it after.
func TestCancel(t *testing.T) {
	h := history{seed: 30, shards: 2, all: true}
	coordinator, dbs := sharedDatabases(t, h.shards)
	o := testOptions(coordinator, dbs)
	prepareHistory(t, h, o)
	tg := historyTarget(t, h, o, 0)
	st := openUntil(t, tg)
	for _, c := range []struct {
		point string
		done  bool
	}{
		{"before_begin", false},
		{"test_rows_written", false},
		{"before_prepare", false},
		{"between_prepare", false},
		{"after_prepare", false},
		{"after_decide", true},
		{"between_commit_prepared", true},
		{"after_commit", true},
	} {
		ctx, cancel := context.WithCancel(testCtx(t))
		tg.private.onPoint = func(name string) error {
			if name == c.point {
				cancel()
			}
			return nil
		}
		begin := time.Now()
		err := applyBatch(ctx, tg, h, st.Batch+1, 0)
		if d := time.Since(begin); d > 3*time.Second {
			t.Errorf("%s: it took %s to stop", c.point, d)
		}
		tg.private.onPoint = nil
		cancel()
		if (err == nil) != c.done {
			t.Fatalf("%s: error is %v", c.point, err)
		}
		if err != nil && dtx.ClassOf(err) != dtx.ClassRetry {
			t.Errorf("%s: class of %v is stop", c.point, err)
		}
		if !c.done && c.point != "between_prepare" { // there it was sent and cut off: left to Open
			checkNonePrepared(t, o)
		}
		before := st.Batch
		st = openUntil(t, tg)
		if want := before + uint64(count(c.done)); st.Batch != want {
			t.Fatalf("%s: batch %d is recorded, want %d", c.point, st.Batch, want)
		}
		checkWorld(t, h, o, st)
	}
}

// A failing statement names its table and shard, and undoes the batch.
func TestBatchError(t *testing.T) {
	h := history{seed: 31, shards: 2, all: true}
	coordinator, dbs := sharedDatabases(t, h.shards)
	o := testOptions(coordinator, dbs)
	prepareHistory(t, h, o)
	tg := historyTarget(t, h, o, 0)
	openUntil(t, tg)
	execSQL(t, dbs[1], "INSERT INTO app.log VALUES (1, 0)") // the key of the batch's first row
	err := applyBatch(testCtx(t), tg, h, 1, 0)
	dtxtest.WantError(t, err, dtx.ClassStop, "table app.log", "log_pkey", "23505")
	if strings.Contains(err.Error(), "(1, 0)") {
		t.Errorf("the error holds row values: %v", err)
	}
	checkNonePrepared(t, o)
	execSQL(t, dbs[1], "DELETE FROM app.log")
	checkWorld(t, h, o, openUntil(t, tg))
	// A statement that waits for a lock gives up, and the batch is tried again.
	o.LockTimeout = 200 * time.Millisecond
	closeTarget(t, tg)
	tg = historyTarget(t, h, o, 0)
	openUntil(t, tg)
	execSQL(t, dbs[0], "BEGIN; LOCK app.account; PREPARE TRANSACTION 'holder'")
	dtxtest.WantError(t, applyBatch(testCtx(t), tg, h, 1, 0), dtx.ClassRetry, "55P03")
	execSQL(t, dbs[0], "ROLLBACK PREPARED 'holder'")
	openUntil(t, tg)
	if err := applyBatch(testCtx(t), tg, h, 1, 0); err != nil {
		t.Fatal(err)
	}
	checkWorld(t, h, o, openUntil(t, tg))
}
