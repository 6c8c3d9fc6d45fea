package lab

import (
	"errors"
	"strings"
	"testing"

	"cbrepl/dtx"
)

// TestCrashSteps crashes at every step; after Recover a transfer has happened
// on both segments or on neither, as its commit record says.
func TestCrashSteps(t *testing.T) {
	s := shared.Source(t)
	ctx := testCtx(t)
	bank(t, s, "bankcrash", 20)
	rows := accountsBySegment(t, s, "bankcrash", 20)
	for _, step := range Steps() {
		t.Run(strings.ReplaceAll(step.String(), " ", "_"), func(t *testing.T) {
			from, to := rows[0][0], rows[1][0]
			if step == AfterOnePhase {
				to = rows[0][1]
			}
			before := balance(t, s, from)
			tx, err := s.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := transfer(ctx, tx, "bankcrash", from, to, 7); err != nil {
				t.Fatal(err)
			}
			tx.CrashAt(step)
			if err := tx.Commit(ctx); !errors.Is(err, ErrCrashed) {
				t.Fatalf("commit: %v, want a crash", err)
			}
			r, err := s.Recover(ctx)
			if err != nil {
				t.Fatal(err)
			}
			want := map[Step]Recovery{
				BeforePrepare: {}, AfterFirstPrepare: {RolledBack: 1}, AfterPrepare: {RolledBack: 2},
				AfterRecord: {Committed: 2}, AfterFirstCommit: {Committed: 1}, AfterOnePhase: {Markers: 1},
			}[step]
			if r != want {
				t.Errorf("recovery did %+v, want %+v", r, want)
			}
			moved := before - balance(t, s, from)
			if step.Committed() && moved != 7 || !step.Committed() && moved != 0 {
				t.Errorf("%d moved", moved)
			}
			if got := total(t, s, "bankcrash"); got != 2000 {
				t.Errorf("total is %d", got)
			}
			if n := prepared(t, s); n != 0 {
				t.Errorf("%d prepared transactions are left", n)
			}
		})
	}
}

// accountsBySegment groups account ids by the segment they live on.
func accountsBySegment(t *testing.T, s *Source, table string, n int) [][]int {
	t.Helper()
	out := make([][]int, s.Segments())
	for i := range n {
		c, err := s.SegmentOf(testCtx(t), table, i)
		if err != nil {
			t.Fatal(err)
		}
		out[c] = append(out[c], i)
	}
	return out
}

func balance(t *testing.T, s *Source, id int) int {
	t.Helper()
	c, err := s.SegmentOf(testCtx(t), "bankcrash", id)
	if err != nil {
		t.Fatal(err)
	}
	return queryOne[int](t, s.Node(c).DSN(), "select balance from bankcrash where id = $1", id)
}

// TestServerCrash crashes a segment between PREPARE and COMMIT PREPARED: the
// decision stands, and Commit finishes when the segment is back.
func TestServerCrash(t *testing.T) {
	s := shared.NewSource(t, Options{Segments: 2})
	ctx := testCtx(t)
	bank(t, s, "bankcrash", 10)
	rows := accountsBySegment(t, s, "bankcrash", 10)
	release := s.Stall(1)
	defer release()
	tx, err := s.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := transfer(ctx, tx, "bankcrash", rows[0][0], rows[1][0], 5); err != nil {
		t.Fatal(err)
	}
	committed := make(chan error, 1)
	go func() { committed <- tx.Commit(ctx) }()
	waitFor(t, func() bool {
		return queryOne[int](t, s.DSN(), "select count(*)::int from cbrepl_lab.decision where gxid = $1", int64(tx.GXID())) == 1
	})
	if err := s.Node(1).Crash(ctx); err != nil {
		t.Fatal(err)
	}
	release()
	if err := s.Node(1).Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-committed; err != nil {
		t.Fatal(err)
	}
	if got := total(t, s, "bankcrash"); got != 1000 {
		t.Errorf("total is %d", got)
	}
	if n := balance(t, s, rows[1][0]); n != 105 {
		t.Errorf("balance is %d, want 105", n)
	}
}

// TestCoordinatorCrash crashes the coordinator when all is prepared: without a
// commit record the transaction is rolled back everywhere once it is back.
func TestCoordinatorCrash(t *testing.T) {
	s := shared.NewSource(t, Options{Segments: 2})
	ctx := testCtx(t)
	bank(t, s, "bankcrash", 10)
	rows := accountsBySegment(t, s, "bankcrash", 10)
	tx, err := s.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := transfer(ctx, tx, "bankcrash", rows[0][0], rows[1][0], 5); err != nil {
		t.Fatal(err)
	}
	if err := s.Node(dtx.Coordinator).Crash(ctx); err != nil {
		t.Fatal(err)
	}
	committed := make(chan error, 1)
	go func() { committed <- tx.Commit(ctx) }()
	waitFor(t, func() bool {
		return queryOne[int](t, s.Node(1).DSN(), "select count(*)::int from pg_prepared_xacts") == 1
	})
	if err := s.Node(dtx.Coordinator).Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-committed; err == nil {
		t.Error("the commit succeeded without a record")
	}
	if n, b := prepared(t, s), balance(t, s, rows[0][0]); n != 0 || b != 100 {
		t.Errorf("%d prepared transactions are left, balance %d", n, b)
	}
}
