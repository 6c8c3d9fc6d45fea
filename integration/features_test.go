package integration

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/subscription/status"
)

// TestFeatures runs one daemon over one pair of clusters through the shapes of
// transactions and the faults of single servers.
func TestFeatures(t *testing.T) {
	p := newPair(t, 3, 2, lab.Options{Settings: map[string]string{"logical_decoding_work_mem": "64kB"}})
	p.tables(
		lab.Table{Name: "plain", Columns: "id int8 primary key, v text", Key: []string{"id"}},
		lab.Table{Name: "wide", Columns: "id int8 primary key, v text", Key: []string{"id"}},
		lab.Table{Name: "quiet", Columns: "id int8 primary key, v text", Key: []string{"id"}, Unpublished: true},
	)
	p.configure("features")
	d := p.start(nil)
	f := &features{pair: p, d: d, outer: t}
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, f *features)
	}{
		{"empty participant", emptyParticipant},
		{"fifty at once", fiftyAtOnce},
		{"streamed savepoint", streamedSavepoint},
		{"late markers", lateMarkers},
		{"stalled segment", stalledSegment},
		{"idle tables", idleTables},
		{"empty transactions do not pass", emptyDoesNotPass},
		{"dispatcher crashes", dispatcherCrashes},
		{"server restarts", serverRestarts},
	} {
		if !t.Run(tc.name, func(t *testing.T) {
			outer := p.t
			p.t = t
			defer func() { p.t = outer }()
			tc.run(t, f)
			d.alive()
			d.drain()
			p.same("plain", "wide")
		}) {
			break
		}
	}
	if err := d.end(); err != nil {
		t.Error(err)
	}
}

type features struct {
	*pair
	d     *daemon
	next  int
	outer *testing.T
}

// ids returns n ids that no test has used.
func (f *features) ids(n int) []int {
	out := make([]int, n)
	for i := range out {
		f.next++
		out[i] = f.next
	}
	return out
}

// idsOn returns n unused ids whose rows live on one segment.
func (f *features) idsOn(c dtx.Content, n int) []int {
	f.t.Helper()
	var out []int
	for len(out) < n {
		f.next++
		at, err := f.src.SegmentOf(f.ctx(), "plain", f.next)
		f.must(err)
		if at == c {
			out = append(out, f.next)
		}
	}
	return out
}

func rows(ids []int, v string) []lab.Row {
	out := make([]lab.Row, len(ids))
	for i, id := range ids {
		out[i] = lab.Row{id, v}
	}
	return out
}

// insert commits rows in one transaction and returns its gxid.
func (f *features) insert(table string, ids ...int) dtx.GXID {
	f.t.Helper()
	var g dtx.GXID
	f.must(f.src.Do(f.ctx(), func(tx *lab.Tx) error {
		g = tx.GXID()
		return tx.Insert(f.ctx(), table, rows(ids, "x")...)
	}))
	return g
}

// onTarget counts the rows of the ids that the target has.
func (f *features) onTarget(table string, ids ...int) int {
	f.t.Helper()
	list := strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ","), "[]")
	n := 0
	for _, s := range f.dst.Nodes()[1:] {
		var k int
		_, err := fmt.Sscan(f.ask(s, "select count(*)::text from "+table+" where id in ("+list+")"), &k)
		f.must(err)
		n += k
	}
	return n
}

func emptyParticipant(_ *testing.T, f *features) {
	ids := f.idsOn(0, 1)
	f.must(f.src.Do(f.ctx(), func(tx *lab.Tx) error {
		return errors.Join(tx.Insert(f.ctx(), "plain", rows(ids, "x")...), tx.Touch(f.ctx(), 1, 2))
	}))
	f.must(f.src.Do(f.ctx(), func(tx *lab.Tx) error { return tx.Touch(f.ctx(), 0, 2) })) // nothing but silence
	f.must(f.src.Do(f.ctx(), func(tx *lab.Tx) error { return tx.Touch(f.ctx(), 1) }))
	f.d.drain()
	if n := f.onTarget("plain", ids...); n != 1 {
		f.t.Errorf("%d rows on the target", n)
	}
}

// fiftyAtOnce holds fifty transactions open together, on all segments, and
// commits them at once.
func fiftyAtOnce(t *testing.T, f *features) {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	errs := make([]error, 50)
	var all []int
	for i := range errs {
		ids := f.ids(20)
		all = append(all, ids...)
		ready.Add(1)
		done.Go(func() {
			ctx := f.ctx()
			tx, err := f.src.Begin(ctx)
			if err == nil {
				err = tx.Insert(ctx, "plain", rows(ids, fmt.Sprint(i))...)
			}
			ready.Done()
			<-start
			if err == nil {
				err = tx.Commit(ctx)
			}
			errs[i] = err
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
	f.must(errors.Join(errs...))
	f.d.drain()
	if n := f.onTarget("plain", all...); n != len(all) {
		t.Errorf("%d of %d rows on the target", n, len(all))
	}
}

// streamedSavepoint rolls 500 of 1,005 rows back inside a transaction that the
// server streams while it is in progress (field case 10): 505 survive.
func streamedSavepoint(t *testing.T, f *features) {
	for _, on := range []struct {
		name string
		ids  []int
	}{{"one segment", f.idsOn(1, 1005)}, {"all segments", f.ids(1005)}} {
		before := f.streamed()
		ctx := f.ctx()
		big := strings.Repeat("v", 1500) // below what the server would compress
		f.must(f.src.Do(ctx, func(tx *lab.Tx) error {
			return errors.Join(
				tx.Insert(ctx, "wide", rows(on.ids[:5], big)...),
				tx.Savepoint(ctx, "a"),
				tx.Insert(ctx, "wide", rows(on.ids[5:505], big)...),
				tx.RollbackTo(ctx, "a"),
				tx.Insert(ctx, "wide", rows(on.ids[505:], big)...),
			)
		}))
		f.d.drain()
		if n := f.onTarget("wide", on.ids...); n != 505 {
			t.Errorf("%s: %d rows on the target, want 505", on.name, n)
		}
		f.eventually("the server reports streamed transactions", func() bool { return f.streamed() > before })
	}
}

// streamed counts the transactions that the segments have streamed in progress.
func (f *features) streamed() int {
	f.t.Helper()
	total := 0
	for _, s := range f.src.Nodes()[1:] {
		var n int
		_, err := fmt.Sscan(f.ask(s, "select coalesce(sum(stream_txns), 0)::text from pg_stat_replication_slots"), &n)
		f.must(err)
		total += n
	}
	return total
}

// lateMarkers: a one-phase transaction is complete in itself and is applied
// before its marker comes.
func lateMarkers(t *testing.T, f *features) {
	f.src.HoldMarkers()
	ids := f.idsOn(2, 10)
	for _, id := range ids {
		f.insert("plain", id)
	}
	f.eventually("one-phase rows without their markers", func() bool { return f.onTarget("plain", ids...) == 10 })
	more := f.ids(30)
	f.insert("plain", more...)
	f.eventually("a two-phase transaction behind them", func() bool { return f.onTarget("plain", more...) == 30 })
	if n := f.src.HeldMarkers(); n < 10 {
		t.Fatalf("%d markers are held back", n)
	}
	// The next life reads markers of parts that an earlier one applied.
	f.must(f.d.end())
	inner := f.t
	f.t = f.outer // the new life outlasts this test
	*f.d = *f.start(nil)
	f.t = inner
	f.must(f.src.ReleaseMarkers(f.ctx()))
	f.d.drain()
	f.eventually("the dedup set is empty again", func() bool {
		return f.ask(f.dst.Node(dtx.Coordinator), "select count(*)::text from cbrepl.dedup") == "0"
	})
}

// stalledSegment: status names the transaction and the segment it waits for
// (field case 17), and what does not depend on it goes on.
func stalledSegment(t *testing.T, f *features) {
	release := f.src.Stall(1)
	defer release()
	ids := append(f.idsOn(0, 1), f.idsOn(1, 1)...)
	gxid := make(chan dtx.GXID, 1)
	done := make(chan error, 1)
	ctx := f.ctx()
	go func() {
		done <- f.src.Do(ctx, func(tx *lab.Tx) error {
			gxid <- tx.GXID()
			return tx.Insert(ctx, "plain", rows(ids, "x")...)
		})
	}()
	g := <-gxid
	f.eventually("the wait line", func() bool {
		for _, w := range f.d.sub.Report().Waits {
			// COMMIT PREPARED comes in any order: content 0 may wait behind content 1.
			if w.GXID == uint64(g) && w.RecordSeen && slices.Contains(w.Missing, 1) && w.Blocking {
				return true
			}
		}
		return false
	})
	other := f.idsOn(2, 5)
	for _, id := range other {
		f.insert("plain", id)
	}
	f.eventually("other segments go on", func() bool { return f.onTarget("plain", other...) == 5 })
	if f.onTarget("plain", ids...) != 0 {
		t.Error("half a transaction is on the target")
	}
	var text strings.Builder
	rep := f.d.sub.Report()
	f.must(rep.WriteText(&text))
	if want := regexp.MustCompile(fmt.Sprintf("gxid %d waits for the part of content (0, )?1 since ", g)); !want.MatchString(text.String()) {
		t.Errorf("no %q in:\n%s", want, text.String())
	}
	release()
	f.must(<-done)
}

// idleTables: with nothing to apply, slots follow their servers, so that a
// quiet table in a busy server does not hold back the log (field case 5).
func idleTables(t *testing.T, f *features) {
	ends := map[dtx.Content]dtx.LSN{}
	restart := map[dtx.Content]dtx.LSN{}
	lsn := func(c dtx.Content, sql string) dtx.LSN {
		l, err := dtx.ParseLSN(f.ask(f.src.Node(c), sql))
		f.must(err)
		return l
	}
	slot := " from pg_replication_slots where slot_name = '" + f.cfg.Source.Slot + "'"
	for _, c := range f.src.Contents() {
		restart[c] = lsn(c, "select restart_lsn::text"+slot)
		for range 3 { // a busy neighbour, and checkpoints that log running transactions
			f.must(f.src.Exec(f.ctx(), c, "insert into quiet select g, repeat('x', 500) from generate_series(1, 2000) g on conflict (id) do update set v = excluded.v"))
			f.must(f.src.Exec(f.ctx(), c, "checkpoint"))
		}
		ends[c] = lsn(c, "select pg_current_wal_flush_lsn()::text")
	}
	began := time.Now()
	for c, end := range ends {
		f.eventually(fmt.Sprintf("content %d confirmed up to %s", c, end), func() bool {
			return lsn(c, "select confirmed_flush_lsn::text"+slot) >= end
		})
		f.eventually(fmt.Sprintf("content %d: restart_lsn moves", c), func() bool {
			if lsn(c, "select restart_lsn::text"+slot) > restart[c] {
				return true
			}
			f.must(f.src.Exec(f.ctx(), c, "checkpoint")) // the server moves it at the next snapshot
			return false
		})
	}
	if d := time.Since(began); d > 15*time.Second {
		t.Errorf("slots followed after %s", d)
	}
}

// emptyDoesNotPass: an empty transaction never moves a confirmed position past
// one that is not applied (field case 1).
func emptyDoesNotPass(t *testing.T, f *features) {
	release := f.src.Stall(1)
	defer release()
	// Of several, some commit on segment 0 before they stall on segment 1.
	var clients errgroup.Group
	ctx := f.ctx()
	for range 10 {
		ids := append(f.idsOn(0, 1), f.idsOn(1, 1)...)
		clients.Go(func() error {
			return f.src.Do(ctx, func(tx *lab.Tx) error { return tx.Insert(ctx, "plain", rows(ids, "x")...) })
		})
	}
	f.eventually("half of one arrived", func() bool {
		return slices.ContainsFunc(f.d.sub.Report().Waits, func(w status.Wait) bool { return len(w.Parts) == 1 && w.Parts[0] == 0 })
	})
	part, err := dtx.ParseLSN(f.ask(f.src.Node(0), "select pg_current_wal_insert_lsn()::text"))
	f.must(err)
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		f.must(f.src.Exec(f.ctx(), 0, "insert into quiet values (0, 'x') on conflict (id) do update set v = 'y'"))
		if at := f.confirmed()[0]; at > part {
			t.Fatalf("content 0 is confirmed up to %s, beyond its unapplied part, which ends before %s", at, part)
		}
		<-time.After(100 * time.Millisecond)
	}
	if s := f.d.sub.Report().Streams[1]; dtx.LSN(s.ReceivedLSN) <= part {
		t.Errorf("content 0 received %s: the empty transactions never arrived", s.ReceivedLSN)
	}
	release()
	f.must(clients.Wait())
	f.eventually("confirmed once it is applied", func() bool { return f.confirmed()[0] > part })
}

// dispatcherCrashes between each two steps of a commit; what its recovery
// decides is what the target has.
func dispatcherCrashes(t *testing.T, f *features) {
	for _, step := range lab.Steps() {
		ids := append(f.idsOn(0, 3), f.idsOn(2, 3)...)
		if step == lab.AfterOnePhase {
			ids = ids[:3]
		}
		ctx := f.ctx()
		tx, err := f.src.Begin(ctx)
		f.must(err)
		f.must(tx.Insert(ctx, "plain", rows(ids, "x")...))
		tx.CrashAt(step)
		if err := tx.Commit(ctx); !errors.Is(err, lab.ErrCrashed) {
			t.Fatalf("%s: %v", step, err)
		}
		// The daemon goes on with what does not depend on it.
		other := f.idsOn(1, 2)
		f.insert("plain", other...)
		f.eventually(step.String(), func() bool { return f.onTarget("plain", other...) == 2 })
		_, err = f.src.Recover(ctx)
		f.must(err)
		f.d.drain()
		want := 0
		if step.Committed() {
			want = len(ids)
		}
		if n := f.onTarget("plain", ids...); n != want {
			t.Errorf("%s: %d rows on the target, want %d", step, n, want)
		}
	}
}

// serverRestarts: a source or target server that goes away and comes back needs
// no person; a lost segment does not stop the others.
func serverRestarts(t *testing.T, f *features) {
	for _, s := range append(f.src.Nodes(), f.dst.Nodes()...) {
		f.must(s.Crash(f.ctx()))
		if s == f.src.Node(1) {
			other := f.idsOn(2, 3)
			for _, id := range other {
				f.insert("plain", id)
			}
			f.eventually("others go on without segment 1", func() bool { return f.onTarget("plain", other...) == 3 })
			f.eventually("status shows it", func() bool {
				return !f.d.sub.Report().Streams[2].Connected
			})
		}
		f.must(s.Start(f.ctx()))
		ids := f.ids(20)
		f.eventually("the lab is back", func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			return f.src.Do(ctx, func(tx *lab.Tx) error { return tx.Insert(ctx, "plain", rows(ids, "x")...) }) == nil
		})
		f.eventually(s.Name()+" restarted", func() bool {
			f.d.alive()
			return f.onTarget("plain", ids...) == 20
		})
	}
	f.eventually("healthy again", func() bool { return f.d.sub.Report().Healthy })
	if rep := f.d.sub.Report(); rep.State != status.Streaming {
		t.Error(rep.State)
	}
}
