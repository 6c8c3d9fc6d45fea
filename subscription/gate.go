package subscription

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"cbrepl/dtx"
)

// gate holds back streams while the list of waiting transactions is full. Only
// streams that the next release needs may pass a closed gate: without that
// exception a full list could never empty.
type gate struct {
	closed  atomic.Bool
	mu      sync.Mutex
	passing []dtx.Content
	changed chan struct{}
}

func newGate() *gate { return &gate{changed: make(chan struct{})} }

// set opens the gate, or closes it for all but the named contents.
func (g *gate) set(closed bool, passing []dtx.Content) {
	if !closed {
		passing = nil
	}
	if !closed && !g.closed.Load() {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed.Load() == closed && slices.Equal(g.passing, passing) {
		return
	}
	g.passing = slices.Clone(passing)
	g.closed.Store(closed)
	close(g.changed)
	g.changed = make(chan struct{})
}

// pass blocks while c is held back.
func (g *gate) pass(ctx context.Context, c dtx.Content) error {
	for g.closed.Load() {
		g.mu.Lock()
		open := !g.closed.Load() || slices.Contains(g.passing, c)
		ch := g.changed
		g.mu.Unlock()
		if open {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// holds reports whether c is held back.
func (g *gate) holds(c dtx.Content) bool {
	if !g.closed.Load() {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return !slices.Contains(g.passing, c)
}
