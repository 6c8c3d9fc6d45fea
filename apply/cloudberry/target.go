package cloudberry

import (
	"context"
	"log/slog"
	"sync"

	"cbrepl/apply"
	"cbrepl/apply/engine"
	"cbrepl/dtx"
)

var _ apply.Target = (*Target)(nil)

// Target applies the batches of one subscription. Its methods are called from
// one goroutine at a time, Stats from any.
type Target struct {
	opts Options
	log  *slog.Logger
	srv  *server

	open        bool
	epoch       uint64
	token       string
	initialized bool
	// batch is the last batch committed, positions what stands recorded with it.
	batch     uint64
	positions []dtx.Position
	// known is the last decision this Target has seen, tried the one it may have
	// made since without learning the outcome. A third one on the next Open is
	// another daemon's.
	known, tried batchID
	haveKnown    bool
	// session identifies the session of the last Open, which may outlive a lost
	// connection and still hold the lock.
	session sessionID
	// internal counts internal errors since the last batch applied.
	internal int

	tables  *tables
	engine  *engine.Engine
	backend *backend

	mu    sync.Mutex
	stats Stats
}

// Stats counts what a Target has done since New.
type Stats struct {
	// Epoch is this daemon's epoch, Batch the number of the last batch committed.
	Epoch, Batch uint64
	// Batches counts batches applied; PositionBatches those without rows.
	Batches, PositionBatches int64
	// Opens counts successful Opens.
	Opens int64
	// Unknown counts batches whose outcome only the next Open could tell.
	Unknown int64
	// Staged counts statements whose rows went through a stage table.
	Staged int64
}

// New returns a target. It makes no connection.
func New(o Options) (*Target, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	srv, err := newServer(o.Coordinator)
	if err != nil {
		return nil, err
	}
	return &Target{opts: o, log: o.Logger, srv: srv}, nil
}

// Stats returns the counters.
func (t *Target) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stats
}

func (t *Target) count(f func(s *Stats)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.stats)
}

// Close gives up lock and connection. An open transaction is rolled back.
func (t *Target) Close() error {
	t.open = false
	t.srv.close()
	return nil
}

// appName is what a session of this daemon calls itself. The server cuts it off
// at 63 bytes; it is for people, nothing is decided by it.
func (t *Target) appName() string { return "cbrepl:" + t.opts.Subscription }

func (t *Target) connect(ctx context.Context) error {
	return t.srv.connect(ctx, t.appName(), &t.opts)
}
