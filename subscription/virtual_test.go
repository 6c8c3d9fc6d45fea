package subscription

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/subscription/status"
)

// The virtual wire: streams, spool and target that behave as the real ones do
// in every way the loop can see, on the clock of a synctest bubble, where
// sleeping takes no time.

// referee collects broken promises; the first one fails the test.
type referee struct {
	mu  sync.Mutex
	err error
}

func (r *referee) foul(format string, args ...any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := fmt.Errorf("FOUL: "+format, args...)
	if r.err == nil {
		r.err = err
	}
	return err
}

func (r *referee) verdict() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// vstream sends a world's log as a slot does: from the requested start, which
// must not lie before the confirmed position.
type vstream struct {
	w     *world
	c     dtx.Content
	rnd   *rand.Rand
	spool *vspool
	ref   *referee
	tgt   *vtarget

	mu        sync.Mutex
	confirmed dtx.LSN // survives restarts: it is the slot's
	received  dtx.LSN
	stalled   time.Duration
}

func (s *vstream) Run(ctx context.Context, start dtx.LSN, emit func(context.Context, dtx.Event) error) error {
	s.mu.Lock()
	confirmed := s.confirmed
	s.mu.Unlock()
	if start < confirmed {
		return s.ref.foul("content %d starts at %s before the confirmed %s: what lies between is gone", s.c, start, confirmed)
	}
	if err := pause(ctx, time.Duration(s.rnd.IntN(20))*time.Millisecond+s.stalled); err != nil {
		return err
	}
	sent := map[dtx.SpoolID]bool{}
	for _, l := range s.w.logs[s.c] {
		ev := l.ev
		switch {
		case ev.Kind == dtx.EventHold:
			if l.prepare <= start {
				continue // a server does not send it again
			}
			sent[ev.Hold] = true
			ev.LSN = max(ev.LSN, start)
		case ev.LSN <= start:
			continue
		case l.prepare != 0 && !sent[ev.Part.Spool]:
			// The server takes the rows for received and sends COMMIT PREPARED alone.
			return s.ref.foul("content %d: the prepared rows of gxid %d will never be sent again", s.c, ev.Part.GXID)
		}
		if s.rnd.IntN(3) == 0 {
			if err := pause(ctx, time.Duration(s.rnd.IntN(40))*time.Millisecond); err != nil {
				return err
			}
		}
		if ev.Kind == dtx.EventPart && ev.Part.Spool != 0 {
			if err := s.spool.write(ctx, s.c, ev.Part); err != nil {
				return err
			}
		}
		if err := emit(ctx, ev); err != nil {
			return err
		}
		s.mu.Lock()
		s.received = max(s.received, ev.LSN)
		s.mu.Unlock()
	}
	<-ctx.Done()
	return ctx.Err()
}

func (s *vstream) Confirm(lsn dtx.LSN) {
	if rec := s.tgt.recordedAt(s.c); lsn > rec {
		_ = s.ref.foul("content %d confirms %s, the target records %s", s.c, lsn, rec)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if lsn < s.confirmed {
		_ = s.ref.foul("content %d confirms %s after %s", s.c, lsn, s.confirmed)
	}
	s.confirmed = lsn
}

func (s *vstream) at() dtx.LSN {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.confirmed
}

func (s *vstream) Facts() status.Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return status.Stream{
		Content: s.c, Connected: true, Since: time.Now(), LastHeard: time.Now(),
		ReceivedLSN: status.LSN(s.received), ServerLSN: status.LSN(s.w.end(s.c)),
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// vspool has room for so many bytes; streams wait for room unless exempt.
type vspool struct {
	apply.Rows
	ref *referee
	max int64

	mu      sync.Mutex
	used    int64
	parts   map[dtx.SpoolID]int64
	exempt  map[dtx.Content]bool
	changed chan struct{}
	waited  int
}

func newVspool(ref *referee, maxBytes int64) *vspool {
	return &vspool{ref: ref, max: maxBytes, parts: map[dtx.SpoolID]int64{}, exempt: map[dtx.Content]bool{}, changed: make(chan struct{})}
}

func (s *vspool) write(ctx context.Context, c dtx.Content, p dtx.Part) error {
	for {
		s.mu.Lock()
		if s.used < s.max || s.exempt[c] {
			s.used += p.Bytes
			s.parts[p.Spool] = p.Bytes
			s.mu.Unlock()
			return nil
		}
		ch := s.changed
		s.waited++
		s.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *vspool) Release(parts []dtx.Part) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range parts {
		if p.Spool == 0 {
			continue
		}
		n, ok := s.parts[p.Spool]
		if !ok {
			return s.ref.foul("part of gxid %d on content %d is released twice, or was never spooled", p.GXID, p.Content)
		}
		delete(s.parts, p.Spool)
		s.used -= n
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

func (s *vspool) Exempt(cs []dtx.Content) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.exempt)
	for _, c := range cs {
		s.exempt[c] = true
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *vspool) Usage() status.Spool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return status.Spool{Bytes: s.used, MaxBytes: s.max, Full: s.used >= s.max}
}

// vtarget is a target cluster. What it holds survives restarts of the daemon.
type vtarget struct {
	w   *world
	ref *referee
	rnd *rand.Rand
	// trouble is the chance in percent that a call fails; half of the failures of
	// a commit strike after it.
	trouble int
	poison  dtx.GXID

	mu      sync.Mutex
	state   apply.State
	rows    map[int]int
	applied map[dtx.GXID]bool
	open    bool
	biggest int // dtxs in one batch
}

var errLink = &dtx.Error{Op: "apply batch", Msg: "connection lost", Class: dtx.ClassRetry}

func newVtarget(w *world, ref *referee, rnd *rand.Rand) *vtarget {
	t := &vtarget{w: w, ref: ref, rnd: rnd, rows: map[int]int{}, applied: map[dtx.GXID]bool{}}
	for r := range w.rows {
		t.rows[r] = startAmount
	}
	return t
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
	t.state.Epoch++
	st := t.state
	st.Positions = append([]dtx.Position(nil), st.Positions...)
	st.Dedup = append([]dtx.DedupEntry(nil), st.Dedup...)
	return st, nil
}

func (t *vtarget) Init(_ context.Context, ids []apply.StreamIdentity, ps []dtx.Position) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state.Initialized, t.state.Streams, t.state.Positions = true, ids, append([]dtx.Position(nil), ps...)
	return nil
}

func (t *vtarget) Apply(ctx context.Context, b *dtx.Batch, _ apply.Rows) (apply.Result, error) {
	wait := pause(ctx, time.Duration(t.rnd.IntN(30))*time.Millisecond)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.open {
		return apply.Result{}, t.ref.foul("batch %d is applied on a target that must be opened first", b.Seq)
	}
	if b.Seq != t.state.Batch+1 {
		return apply.Result{}, t.ref.foul("batch %d is applied after batch %d", b.Seq, t.state.Batch)
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
	t.biggest = max(t.biggest, len(b.GXIDs))
	for _, g := range b.GXIDs {
		if t.applied[g] {
			return t.ref.foul("gxid %d is applied twice", g)
		}
		t.applied[g] = true
	}
	for _, s := range b.Steps {
		for _, p := range s.Parts {
			for r, v := range t.w.images[p.Spool] {
				t.rows[r] = v
			}
		}
	}
	sum := 0
	for _, v := range t.rows {
		sum += v
	}
	if sum != startAmount*t.w.rows {
		return t.ref.foul("after batch %d (gxids %v) the total is %d, at every commit of the source it was %d", b.Seq, b.GXIDs, sum, startAmount*t.w.rows)
	}
	pos := map[dtx.Content]dtx.LSN{}
	for _, p := range append(append([]dtx.Position(nil), t.state.Positions...), b.Positions...) {
		if p.LSN < pos[p.Content] {
			return t.ref.foul("content %d goes back to %s", p.Content, p.LSN)
		}
		pos[p.Content] = p.LSN
	}
	drop := map[dtx.GXID]bool{}
	for _, g := range b.DedupDrop {
		drop[g] = true
	}
	var dedup []dtx.DedupEntry
	in := map[dtx.GXID]bool{}
	for _, d := range t.state.Dedup {
		if !drop[d.GXID] {
			dedup = append(dedup, d)
		}
	}
	dedup = append(dedup, b.DedupAdd...) // a dtx in both lists is rewritten
	for _, d := range dedup {
		in[d.GXID] = true
	}
	t.state.Batch, t.state.Dedup, t.state.Positions = b.Seq, dedup, nil
	for c, l := range pos {
		t.state.Positions = append(t.state.Positions, dtx.Position{Content: c, LSN: l})
	}
	dtx.SortPositions(t.state.Positions)
	if err := t.w.check(pos, in, t.applied); err != nil {
		return t.ref.foul("after batch %d: %v", b.Seq, err)
	}
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
	for _, p := range t.state.Positions {
		if p.Content == c {
			return p.LSN
		}
	}
	return 0
}

// complete reports that everything is applied and every position recorded.
func (t *vtarget) complete() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.applied) != len(t.w.gxids) {
		return false
	}
	for _, p := range t.state.Positions {
		if p.LSN != max(t.w.end(p.Content), firstLSN) {
			return false
		}
	}
	return true
}

// compare checks the final rows.
func (t *vtarget) compare() error {
	for r, v := range t.w.final {
		if t.rows[r] != v {
			return fmt.Errorf("row %d is %d on the target and %d on the source", r, t.rows[r], v)
		}
	}
	if len(t.applied) != len(t.w.gxids) {
		return errors.New("transactions are missing")
	}
	return nil
}

// firstLSN is where every slot starts.
const firstLSN = dtx.LSN(500)
