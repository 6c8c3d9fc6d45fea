package store

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"cbrepl/dtx"
)

// space counts spooled bytes and holds writers back while the spool is full.
//
// Invariants: full == (used >= max || committed >= maxParts) and blocked == (full
// && committed > 0) after every change;
// whoever waits has taken change under mu while it was held back, and change is
// closed at every transition that may let it go on, so no wakeup is lost.
//
// A full spool without a committed part holds nothing that a batch could
// release: only open transactions are in it, and stopping their streams would
// stop everything for good. Nobody is held back then.
type space struct {
	max      int64
	maxParts int
	now      func() time.Time

	// blocked is read without mu on the row path.
	blocked atomic.Bool

	mu        sync.Mutex
	used      int64
	committed int // unreleased parts with rows
	exempt    map[dtx.Content]struct{}
	change    chan struct{}
	fullSince time.Time
}

func newSpace(limit int64, maxParts int, now func() time.Time) *space {
	return &space{max: limit, maxParts: maxParts, now: now, exempt: map[dtx.Content]struct{}{}, change: make(chan struct{})}
}

// add changes the count of bytes and of committed parts.
func (s *space) add(bytes int64, parts int) {
	s.mu.Lock()
	s.used += bytes
	s.committed += parts
	full := s.used >= s.max || s.committed >= s.maxParts
	if full != !s.fullSince.IsZero() {
		if full {
			s.fullSince = s.now()
		} else {
			s.fullSince = time.Time{}
		}
	}
	s.setBlocked(full && s.committed > 0)
	s.mu.Unlock()
}

// setBlocked requires mu.
func (s *space) setBlocked(b bool) {
	if s.blocked.Load() == b {
		return
	}
	s.blocked.Store(b)
	if !b {
		s.wake()
	}
}

// wake requires mu.
func (s *space) wake() {
	close(s.change)
	s.change = make(chan struct{})
}

func (s *space) setExempt(cs []dtx.Content) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.exempt)
	for _, c := range cs {
		s.exempt[c] = struct{}{}
	}
	s.wake()
}

// wait returns when c may write, or with the context's error, or that of stop.
func (s *space) wait(ctx context.Context, c dtx.Content, stop <-chan struct{}, cause func() error) error {
	for {
		s.mu.Lock()
		_, exempt := s.exempt[c]
		ok := exempt || !s.blocked.Load()
		change := s.change
		s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return ctx.Err()
		case <-stop:
			return cause()
		}
	}
}

func (s *space) isExempt(c dtx.Content) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.exempt[c]
	return ok
}
