package subscription

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/merge/mergetest"
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

// vstream sends a history's log as a slot does: from the requested start, which
// must not be before the confirmed position, and nothing before its time. Cut
// connections are mended where they were cut, as package feed does.
type vstream struct {
	h     *mergetest.History
	c     dtx.Content
	rnd   *rand.Rand
	spool *vspool
	ref   *referee
	tgt   *vtarget
	// stall keeps the stream silent between two times.
	stallFrom, stallTo time.Time
	// revert lets the server go back by some events once, at a reconnect; cutAt is
	// where its log ends after it was restored from a backup, 0 when it was not.
	revert bool
	cutAt  dtx.LSN

	mu         sync.Mutex
	confirmed  dtx.LSN // survives restarts: it is the slot's
	received   dtx.LSN
	heard      time.Time
	reconnects int64
}

func (s *vstream) Run(ctx context.Context, start dtx.LSN, emit func(context.Context, dtx.Event) error) error {
	if at := s.at(); start < at {
		return s.ref.foul("content %d starts at %s before the confirmed %s: what is between is gone", s.c, start, at)
	}
	if err := pause(ctx, time.Duration(s.rnd.IntN(20))*time.Millisecond); err != nil {
		return err
	}
	log, err := s.h.From(s.c, start)
	if err != nil {
		return s.ref.foul("%v", err)
	}
	for i := 0; i < len(log); i++ {
		ev := log[i].Event
		if err := s.wait(ctx, log[i].At); err != nil {
			return err
		}
		if ev.Kind == dtx.EventPart && ev.Part.Spool != 0 {
			if err := s.spool.write(ctx, s.c, ev.Part); err != nil {
				return err
			}
		}
		if s.rnd.IntN(50) == 0 { // cut before the event was reported
			if ev.Kind == dtx.EventPart {
				s.spool.drop(ev.Part)
			}
			s.mu.Lock()
			s.reconnects++
			s.mu.Unlock()
			if i > 1 && s.revert {
				s.revert = false
				i -= min(i, 2)
			}
			i--
			continue
		}
		if err := emit(ctx, ev); err != nil {
			return err
		}
		s.mu.Lock()
		s.received = max(s.received, ev.LSN)
		s.heard = time.Now()
		s.mu.Unlock()
	}
	<-ctx.Done()
	return ctx.Err()
}

// wait blocks until an event of that time can arrive.
func (s *vstream) wait(ctx context.Context, at dtx.PGTime) error {
	d := time.Until(at.Time())
	if s.rnd.IntN(3) == 0 {
		d = max(d, 0) + time.Duration(s.rnd.IntN(20))*time.Millisecond
	}
	if now := time.Now().Add(d); !now.Before(s.stallFrom) && now.Before(s.stallTo) {
		d = time.Until(s.stallTo)
	}
	if d <= 0 {
		return nil
	}
	return pause(ctx, d)
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

// walEnd is how far the server has written by now.
func (s *vstream) walEnd() dtx.LSN {
	end := firstLSN
	for _, l := range s.h.Logs[s.c] {
		if l.At.Time().After(time.Now()) {
			break
		}
		end = max(end, l.LSN)
	}
	if s.cutAt != 0 {
		return min(end, s.cutAt)
	}
	return end
}

func (s *vstream) Facts() status.Stream {
	end := s.walEnd()
	s.mu.Lock()
	defer s.mu.Unlock()
	return status.Stream{
		Content: s.c, Connected: true, Since: time.Now(), LastHeard: s.heard, Reconnects: s.reconnects,
		ReceivedLSN: status.LSN(s.received), ServerLSN: status.LSN(end),
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
	batch   uint64
	noted   bool // batch is what the target had
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

// drop frees a part that was received and will be sent again.
func (s *vspool) drop(p dtx.Part) { _ = s.Release([]dtx.Part{p}) }

// Applied comes at the start and once per batch, before its parts are released.
func (s *vspool) Applied(r apply.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Token != vtoken || r.Batch <= s.batch && s.batch > 0 {
		return s.ref.foul("batch %d of %q is noted after batch %d", r.Batch, r.Token, s.batch)
	}
	s.batch, s.noted = r.Batch, true
	return nil
}

func (s *vspool) Release(parts []dtx.Part) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range parts {
		if p.Spool == 0 {
			continue
		}
		if !s.noted {
			return s.ref.foul("part of gxid %d on content %d is released before the spool knows what the target has", p.GXID, p.Content)
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
