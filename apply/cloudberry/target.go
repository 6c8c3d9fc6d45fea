package cloudberry

import (
	"context"
	"log/slog"
	"sync"

	"cbrepl/apply"
	"cbrepl/apply/engine"
	"cbrepl/apply/ledger"
	"cbrepl/faultinject"
)

var _ apply.Target = (*Target)(nil)

// Target applies the batches of one subscription. Its methods are called from
// one goroutine at a time, Stats from any.
type Target struct {
	opts   Options
	log    *slog.Logger
	srv    *server
	ledger *ledger.Ledger

	// internal counts internal errors since the last batch applied.
	internal int

	tables  *tables
	engine  *engine.Engine
	stream  engine.Stream // what the engines learned of the source's relations
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
	t := &Target{opts: o, log: o.Logger, srv: srv}
	t.ledger = ledger.New(srv.Session, &t.opts.Options, point)
	return t, nil
}

// point is a place between two durable steps; see the package comment.
func point(name string) error { return faultinject.Point("cloudberry." + name) }

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
	t.ledger.Closed()
	t.srv.Close()
	return nil
}

// appName is what a session of this daemon calls itself. The server cuts it off
// at 63 bytes; it is for people, nothing is decided by it.
func (t *Target) appName() string { return "cbrepl:" + t.opts.Subscription }

func (t *Target) connect(ctx context.Context) error {
	return t.srv.connect(ctx, t.appName(), &t.opts)
}
