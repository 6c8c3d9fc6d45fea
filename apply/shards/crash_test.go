package shards

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"cbrepl/dtx"
	"cbrepl/internal/soak"
	"cbrepl/lab"
)

// crashTarget starts servers that a test may break: one per shard.
func crashTarget(t *testing.T, h history) (*lab.TargetCluster, Options) {
	cluster := lab.TargetForTest(t, lab.Options{Segments: h.shards})
	o := testOptions(cluster.DSN(), cluster.SegmentDSNs())
	prepareHistory(t, h, o)
	return cluster, o
}

// Each server of the target crashes between each pair of steps. The batch is
// then applied or not, never half, and Open puts the rest right.
func TestServerCrash(t *testing.T) {
	h := history{seed: soak.Seed(t, 1) & (1<<32 - 1), shards: 2, all: true}
	cluster, o := crashTarget(t, h)
	tg := historyTarget(t, h, o, 0)
	st := openUntil(t, tg)
	points := []string{
		"before_begin", "test_rows_written", "before_prepare", "between_prepare", "after_prepare",
		"after_decide", "between_commit_prepared", "after_commit",
	}
	for _, point := range points {
		for victim := range 3 {
			srv := cluster.Node(dtx.Content(victim - 1))
			passes := 0
			tg.private.onPoint = func(name string) error {
				if name != point {
					return nil
				}
				if passes++; point == "between_prepare" && passes == 1 {
					return nil // between the first and the second
				}
				return srv.Crash(testCtx(t))
			}
			seq := st.Batch + 1
			err := applyBatch(testCtx(t), tg, h, seq, 0)
			tg.private.onPoint = nil
			if err != nil && dtx.ClassOf(err) != dtx.ClassRetry {
				t.Errorf("%s, %s crashed: class is stop: %v", point, srv.Name(), err)
			}
			if serr := srv.Start(testCtx(t)); serr != nil {
				t.Fatalf("start %s: %v", srv.Name(), serr)
			}
			st = openUntil(t, tg)
			// A batch prepared everywhere is decided whatever becomes of a shard. Between
			// two PREPAREs the first was sent and may be through.
			prepared := point == "after_prepare" || point == "between_prepare" && victim == 1
			decided := point == "after_decide" || point == "between_commit_prepared" || point == "after_commit"
			switch {
			case err == nil && st.Batch != seq, decided && st.Batch != seq, st.Batch != seq && st.Batch != seq-1:
				t.Fatalf("%s, %s crashed: batch %d gave %v, the target records %d", point, srv.Name(), seq, err, st.Batch)
			}
			if st.Batch == seq && !decided && !prepared {
				t.Errorf("%s, %s crashed: batch %d was decided without it: %v", point, srv.Name(), seq, err)
			}
			checkWorld(t, h, o, st)
			t.Logf("%s, %s crashed: recorded %t, error %v", point, srv.Name(), st.Batch == seq, err)
		}
	}
	t.Logf("%+v", tg.Stats())
}

// Servers crash at random moments under a stream of batches.
func TestRandomCrashes(t *testing.T) {
	h := history{seed: soak.Seed(t, 1) & (1<<32 - 1), shards: 2}
	cluster, o := crashTarget(t, h)
	tg := historyTarget(t, h, o, 0)
	r := rand.New(rand.NewPCG(h.seed, 1))
	st := openUntil(t, tg)
	reported := uint64(0)
	for range 8 {
		srv := cluster.Node(dtx.Content(r.IntN(3) - 1))
		done, ctx := make(chan error, 1), testCtx(t)
		wait := time.Duration(r.IntN(120_000)) * time.Microsecond
		timer := time.AfterFunc(wait, func() {
			done <- srv.Crash(context.WithoutCancel(ctx))
		})
		seq := st.Batch
		for applyBatch(testCtx(t), tg, h, seq+1, 0) == nil {
			seq++
			reported = max(reported, seq)
		}
		timer.Stop()
		if err := <-done; err != nil {
			t.Fatalf("crash: %v", err)
		}
		if err := srv.Start(testCtx(t)); err != nil {
			t.Fatal(err)
		}
		st = openUntil(t, tg)
		if st.Batch < reported || st.Batch > seq+1 {
			t.Fatalf("the target records batch %d, %d were reported, %d was tried", st.Batch, reported, seq+1)
		}
		checkWorld(t, h, o, st)
	}
	t.Logf("%+v", tg.Stats())
}
