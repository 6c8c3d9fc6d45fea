package subscription

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/merge/mergetest"
)

// vtarget is a target cluster. What it holds survives restarts of the daemon.
type vtarget struct {
	ref *referee
	rnd *rand.Rand
	// trouble is the chance in percent that a call fails; half of the failures of
	// a commit strike after it.
	trouble int
	poison  dtx.GXID

	mu      sync.Mutex
	epoch   uint64
	streams []apply.StreamIdentity // nil before Init
	batch   uint64
	replica *mergetest.Replica
	open    bool
	biggest int // entries of the dedup set, at most
}

var errLink = &dtx.Error{Op: "apply batch", Msg: "connection lost", Class: dtx.ClassRetry}

func newVtarget(h *mergetest.History, ref *referee, rnd *rand.Rand) *vtarget {
	return &vtarget{ref: ref, rnd: rnd, replica: mergetest.NewReplica(h)}
}

func (t *vtarget) Open(ctx context.Context) (apply.State, error) {
	if err := pause(ctx, time.Duration(t.rnd.IntN(5))*time.Millisecond); err != nil {
		return apply.State{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rnd.IntN(100) < t.trouble {
		return apply.State{}, errLink
	}
	t.open = true
	t.epoch++
	return apply.State{
		Initialized: t.streams != nil, Token: vtoken, Epoch: t.epoch, Batch: t.batch, Streams: slices.Clone(t.streams),
		Positions: t.replica.PositionList(), Dedup: t.replica.DedupList(),
	}, nil
}

func (t *vtarget) RecordTables(context.Context, []catalog.ReplicatedTable) error { return nil }

func (t *vtarget) Init(_ context.Context, b apply.Beginning) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.streams = b.Streams
	for _, p := range b.Positions {
		t.replica.Positions[p.Content] = p.LSN
	}
	return nil
}

func (t *vtarget) Apply(ctx context.Context, b *dtx.Batch, _ apply.Rows) (apply.Result, error) {
	wait := pause(ctx, time.Duration(t.rnd.IntN(30))*time.Millisecond)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.open {
		return apply.Result{}, t.ref.foul("batch %d is applied on a target that must be opened first", b.Seq)
	}
	if b.Seq != t.batch+1 {
		return apply.Result{}, t.ref.foul("batch %d is applied after batch %d", b.Seq, t.batch)
	}
	if wait != nil {
		t.open = false
		return apply.Result{}, wait
	}
	if t.poison != 0 {
		for _, g := range b.GXIDs {
			if g == t.poison {
				t.open = false
				return apply.Result{}, &dtx.Error{Op: "apply batch", Relation: "public.t", Msg: "row is missing", Class: dtx.ClassStop}
			}
		}
	}
	if t.rnd.IntN(100) < t.trouble {
		t.open = false
		return apply.Result{}, errLink
	}
	if err := t.commit(b); err != nil {
		return apply.Result{}, err
	}
	if t.rnd.IntN(100) < t.trouble { // committed, but nobody hears of it
		t.open = false
		return apply.Result{}, errLink
	}
	return apply.Result{Rows: b.Rows}, nil
}

func (t *vtarget) commit(b *dtx.Batch) error {
	if err := t.replica.Apply(b); err != nil {
		return t.ref.foul("batch %d: %v", b.Seq, err)
	}
	t.batch = b.Seq
	t.biggest = max(t.biggest, len(t.replica.Dedup))
	return nil
}

func (t *vtarget) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open = false
	return nil
}

func (t *vtarget) recordedAt(c dtx.Content) dtx.LSN {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.replica.Positions[c]
}

// complete reports whether everything is applied and every position recorded.
func (t *vtarget) complete(h *mergetest.History) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range h.Contents() {
		if t.replica.Positions[c] != h.End(c, firstLSN) {
			return false
		}
	}
	return len(t.replica.Applied) == len(h.GXIDs)
}

func (t *vtarget) compare() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.replica.Compare()
}

// backup is the target's state as a backup would hold it.
type backup struct {
	batch   uint64
	replica *mergetest.Replica
}

func (t *vtarget) backup() backup {
	t.mu.Lock()
	defer t.mu.Unlock()
	return backup{t.batch, t.replica.Clone()}
}

// restore puts a backup in place, and returns what it replaces.
func (t *vtarget) restore(b backup) backup {
	now := t.backup()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.batch, t.replica, t.open = b.batch, b.replica.Clone(), false
	return now
}

// vtoken belongs to the target's record.
const vtoken = "token"

// firstLSN is where every slot starts.
const firstLSN = dtx.LSN(500)
