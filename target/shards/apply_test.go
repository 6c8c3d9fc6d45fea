package shards

import (
	"testing"

	"go.uber.org/goleak"

	"cbrepl/dtx"
	"cbrepl/target"
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
	if s := st.Streams[0]; s != (target.StreamIdentity{Content: -1, SystemID: "7000", Slot: `s"\,l`, Timeline: 3}) {
		t.Fatalf("stream is %+v", s)
	}
	for seq := uint64(1); seq <= 40; seq++ {
		if err := applyBatch(testCtx(t), tg, h, seq, 0); err != nil {
			t.Fatalf("batch %d: %v", seq, err)
		}
	}
	wantError(t, applyBatch(testCtx(t), tg, h, 42, 0), dtx.ClassStop, "batch 42 does not follow batch 40")
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
	wantError(t, applyBatch(testCtx(t), tg, h, 42, 0), dtx.ClassRetry, "not open")

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
	wantError(t, initHistory(testCtx(t), tg), dtx.ClassRetry, "not open")
	st, err := tg.Open(testCtx(t))
	if err != nil {
		t.Fatal(err)
	}
	if st.Initialized || len(st.Positions) > 0 {
		t.Fatalf("state is %+v", st)
	}
	_, err = tg.Apply(testCtx(t), &dtx.Batch{Seq: 1}, nil)
	wantError(t, err, dtx.ClassStop, "without first positions")
	wantError(t, tg.Init(testCtx(t), []target.StreamIdentity{{Content: 1}}, []dtx.Position{{Content: 2}}), dtx.ClassStop, "no position for content 1")
	if err := initHistory(testCtx(t), tg); err != nil {
		t.Fatal(err)
	}
	wantError(t, initHistory(testCtx(t), tg), dtx.ClassStop, "already has positions")
	_, err = tg.Apply(testCtx(t), &dtx.Batch{Seq: 1, Positions: []dtx.Position{{Content: 9, LSN: 5}}}, nil)
	wantError(t, err, dtx.ClassStop, "content 9")
	_, err = tg.Apply(testCtx(t), &dtx.Batch{Seq: 1, Positions: []dtx.Position{{Content: 0, LSN: 0}}}, nil)
	wantError(t, err, dtx.ClassStop, "back from 0/1 to 0/0")
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
