package subscription

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/faultinject"
	"cbrepl/internal/soak"
	"cbrepl/merge"
	"cbrepl/merge/mergetest"
	"cbrepl/pgoutput"
	"cbrepl/pgoutput/pgotest"
	"cbrepl/store"
	"cbrepl/subscription/status"
)

// powerSim is a daemon with spool.ack: spooled, on a real spool whose disk loses at
// a power cut what was not synced. The source forgets what is confirmed to it.
type powerSim struct {
	h    *mergetest.History
	rnd  *rand.Rand
	disk *vfs.MemFS
	tgt  *vtarget
	ref  *referee

	mu        sync.Mutex
	confirmed map[dtx.Content]dtx.LSN // the slots
}

// rowSource sends a history as a reader does that spools rows as they come.
type rowSource struct {
	*powerSim
	c  dtx.Content
	sp *store.Spool
}

func (s rowSource) Run(ctx context.Context, start dtx.LSN, emit func(context.Context, dtx.Event) error) error {
	s.mu.Lock()
	gone := s.confirmed[s.c]
	s.mu.Unlock()
	if start < gone {
		return s.ref.foul("content %d starts at %s, the source has forgotten what is before %s", s.c, start, gone)
	}
	log, err := s.h.From(s.c, start)
	if err != nil {
		return err
	}
	w := s.sp.Writer(s.c)
	defer func() { _ = w.Close() }()
	for _, l := range log {
		ev := l.Event
		if ev.Kind == dtx.EventPart {
			if ev.Part, err = s.write(ctx, w, ev.Part); err != nil {
				return err
			}
		}
		if err := emit(ctx, ev); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// write spools one row that names the part.
func (s rowSource) write(ctx context.Context, w *store.Writer, p dtx.Part) (dtx.Part, error) {
	p.Spool = 0
	if p.Rows == 0 {
		return p, nil
	}
	rel := &pgoutput.Relation{ID: 7, Schema: "public", Name: "t", Identity: 'd', Columns: []pgoutput.Column{{Key: true, Name: "c", TypeOID: 25, TypeMod: -1}}}
	v, err := w.PutRelation(pgotest.Relation(0, rel)[1:])
	if err != nil {
		return p, err
	}
	tx := w.Begin(false)
	if err := tx.Append(ctx, v, pgotest.Insert(0, 7, pgotest.Text(rowOf(p)))); err != nil {
		return p, errors.Join(err, tx.Drop())
	}
	return tx.Commit(ctx, p)
}

func rowOf(p dtx.Part) string { return strconv.Itoa(int(p.GXID)) + "@" + p.Content.String() }

func (s rowSource) Confirm(lsn dtx.LSN) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.confirmed[s.c] = max(s.confirmed[s.c], lsn)
}

func (s rowSource) Facts() status.Stream { return status.Stream{Content: s.c, Connected: true} }

// readingTarget reads every part's rows before it applies the batch.
type readingTarget struct{ *vtarget }

func (t readingTarget) Apply(ctx context.Context, b *dtx.Batch, rows apply.Rows) (apply.Result, error) {
	for _, st := range b.Steps {
		for _, p := range st.Parts {
			if err := readPart(rows, p); err != nil {
				return apply.Result{}, t.ref.foul("batch %d: the rows of gxid %d on content %d: %v", b.Seq, p.GXID, p.Content, err)
			}
		}
	}
	return t.vtarget.Apply(ctx, b, rows)
}

func readPart(rows apply.Rows, p dtx.Part) error {
	it, err := rows.Open(p)
	if err != nil {
		return err
	}
	defer func() { _ = it.Close() }()
	for n := 0; ; n++ {
		ch, err := it.Next()
		switch {
		case errors.Is(err, io.EOF) && (n == 1 || n == 0 && p.Rows == 0):
			return nil
		case err != nil:
			return fmt.Errorf("%d rows, then %w", n, err)
		}
		if got := string(ch.New.Append(nil)[0].Data); got != rowOf(p) {
			return fmt.Errorf("a row of %s, want %s", got, rowOf(p))
		}
	}
}

// life runs a daemon until it ends by a fault or is complete, and returns how. The
// spool is closed only after an orderly end: the power is cut before.
func (s *powerSim) life(t *testing.T, fault string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sp, err := store.Open(ctx, store.Options{Dir: "spool", Subscription: "power", Mode: store.Spooled, FS: s.disk})
	if err != nil {
		t.Fatal(err)
	}
	kept, err := recoverSpool(ctx, sp)
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.tgt.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !st.Initialized {
		ids := []apply.StreamIdentity{}
		for _, c := range s.h.Contents() {
			ids = append(ids, apply.StreamIdentity{Content: c})
			st.Positions = append(st.Positions, dtx.Position{Content: c, LSN: firstLSN})
		}
		if err := s.tgt.Init(ctx, apply.Beginning{Streams: ids, Positions: st.Positions}); err != nil {
			t.Fatal(err)
		}
	}
	if err := st.CheckRecord(kept.applied, theSpool); err != nil {
		return errors.Join(err, sp.Close())
	}
	var streams []ContentStream
	replayed := 0
	for _, c := range s.h.Contents() {
		cs, err := newSpooledStream(ContentStream{c, rowSource{s, c, sp}}, sp, kept, time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, cs)
		for _, ev := range cs.Stream.(*spooledStream).events {
			if ev.Kind == dtx.EventPart && ev.Part.Spool != 0 {
				replayed++
			}
		}
	}
	if n := sp.Usage().Parts; n != replayed {
		t.Fatalf("the spool keeps %d parts, %d of them are replayed", n, replayed)
	}
	l, err := newLoop(loopOptions{
		Streams: streams, Target: readingTarget{s.tgt}, Spool: &spool{Spool: sp, recovered: kept}, State: st,
		Board: status.NewBoard("power", "test", 1, time.Now()), Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Limits: limits{
			batch: merge.Limits{MaxDtxs: 1 + s.rnd.IntN(10)}, idleEvery: 5 * time.Millisecond,
			backoffMin: time.Millisecond, backoffMax: time.Millisecond, maxPending: 1000,
		},
		Grace: time.Second, MinConflictLog: time.Second, RecordLast: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := faultinject.Arm(fault); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- l.run(ctx) }()
	for ended := false; !ended; {
		select {
		case err = <-done:
			ended = true
		case <-time.After(2 * time.Millisecond):
			if s.tgt.complete(s.h) && s.confirmedAll() {
				cancel()
			}
		}
	}
	_ = faultinject.Arm("")
	if err == nil {
		return sp.Close()
	}
	cut := s.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: s.rnd.IntN(101), RNG: rand.New(rand.NewPCG(s.rnd.Uint64(), 1))})
	_ = sp.Close() // on the disk of the past
	s.disk = cut
	return err
}

func (s *powerSim) confirmedAll() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.h.Contents() {
		if s.h.End(c, 0) > s.confirmed[c] {
			return false
		}
	}
	return true
}

// TestPowerCut: with spool.ack: spooled the source forgets what the spool has
// synced. The power is cut between any two steps, again and again: nothing is
// lost, doubled or torn; a target from an older backup is refused; and in the end
// the spool is empty.
func TestPowerCut(t *testing.T) {
	faults := []string{faultWritten, faultSynced, faultTaken, faultCommitted, faultApplied, faultConfirmed, faultReleased}
	left, refused := 0, 0
	for seed := range soak.Seeds(t, 12, 600) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		s := &powerSim{
			h:   mergetest.NewHistory(rnd, mergetest.Options{Txns: 150, AtCommit: true}),
			rnd: rnd, disk: vfs.NewCrashableMem(), ref: &referee{}, confirmed: map[dtx.Content]dtx.LSN{},
		}
		s.tgt = newVtarget(s.h, s.ref, rand.New(rand.NewPCG(seed, 5)))
		var olds []backup
		for n := range 4 {
			fault := fmt.Sprintf("%s=error@%d", faults[rnd.IntN(len(faults))], 1+rnd.IntN(12))
			err := s.life(t, fault)
			if err != nil && !errors.Is(err, faultinject.ErrInjected) {
				t.Fatalf("seed %d: life %d (%s) ended with %v", seed, n, fault, err)
			}
			olds = append(olds, s.tgt.backup())
			s.restored(t, seed, olds[rnd.IntN(len(olds))])
		}
		left += len(s.h.GXIDs) - len(s.tgt.replica.Applied)
		if err := s.life(t, ""); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := errors.Join(s.ref.verdict(), s.tgt.compare()); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if s.restored(t, seed, olds[rnd.IntN(len(olds))]) {
			refused++
		}
		s.empty(t, seed)
	}
	if left == 0 || refused == 0 {
		t.Errorf("the last lives had %d dtxs to apply, %d older targets were refused", left, refused)
	}
}

// restored starts a daemon on an older state of the target, and takes everything
// back afterwards. It is refused, or the spool has all that the target has lost.
func (s *powerSim) restored(t *testing.T, seed uint64, old backup) (refused bool) {
	t.Helper()
	disk, confirmed, now := s.disk, maps.Clone(s.confirmed), s.tgt.restore(old)
	s.disk = disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(seed, 6))})
	err := s.life(t, "")
	refused = err != nil && strings.Contains(err.Error(), "older state")
	if err == nil {
		err = s.tgt.compare()
	}
	if err = errors.Join(err, s.ref.verdict()); err != nil && !refused {
		t.Fatalf("seed %d: a daemon on a target restored to batch %d of %d ends with %v", seed, old.batch, now.batch, err)
	}
	s.tgt.restore(now)
	s.disk, s.confirmed = disk, confirmed
	return refused
}

// empty opens the spool once more: nothing is left in it.
func (s *powerSim) empty(t *testing.T, seed uint64) {
	t.Helper()
	sp, err := store.Open(t.Context(), store.Options{Dir: "spool", Subscription: "power", Mode: store.Spooled, FS: s.disk})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sp.Close() }()
	r, err := sp.Recover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, ps := range r.Parts {
		n += len(ps)
	}
	if u := sp.Usage(); n > 0 || len(r.Records) > 0 || u.Bytes > 0 || u.Parts > 0 {
		t.Errorf("seed %d: %d parts, %d records and %d bytes are never released", seed, n, len(r.Records), u.Bytes)
	}
}
