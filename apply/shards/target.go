package shards

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"cbrepl/apply"
	"cbrepl/apply/engine"
	"cbrepl/apply/internal/pgside"
	"cbrepl/apply/ledger"
	"cbrepl/dtx"
	"cbrepl/faultinject"
)

var _ apply.Target = (*Target)(nil)

// Target applies the batches of one subscription. Its methods are called from
// one goroutine at a time, Stats from any.
type Target struct {
	opts   Options
	log    *slog.Logger
	co     *node
	shards []*node
	ledger *ledger.Ledger

	// engine is made anew by every Open.
	engine  applier
	stream  engine.Stream // what the engines learned of the source's relations
	backend apply.Backend
	// textOnly is set once a server has refused the binary form of rows: engines
	// made from then on send text.
	textOnly atomic.Bool

	mu    sync.Mutex
	stats Stats

	private struct {
		// onPoint is called at every fault point, with its name without the
		// package's prefix.
		onPoint func(name string) error
		// newEngine replaces the reading of the catalogue.
		newEngine func() applier
	}
}

// applier writes the rows of a batch; it is *engine.Engine.
type applier interface {
	Apply(ctx context.Context, b *dtx.Batch, rows apply.Rows, be apply.Backend) (apply.Result, error)
}

// point is a place between two durable steps; see the package comment.
func (t *Target) point(name string) error {
	if f := t.private.onPoint; f != nil {
		if err := f(name); err != nil {
			return err
		}
	}
	return faultinject.Point("shards." + name)
}

// Stats counts what a Target has done since New.
type Stats struct {
	// Epoch is this daemon's epoch, Batch the number of the last batch decided.
	Epoch, Batch uint64
	// Batches counts batches applied; PositionBatches those without rows.
	Batches, PositionBatches int64
	// Opens counts successful Opens.
	Opens int64
	// InDoubtCommitted and InDoubtRolledBack count prepared transactions that
	// Open has resolved.
	InDoubtCommitted, InDoubtRolledBack int64
	// CommitRetries counts COMMIT PREPARED statements that had to be repeated.
	CommitRetries int64
	// SessionsEnded counts sessions of older daemons that Open has terminated.
	SessionsEnded int64
}

// New returns a target. It makes no connection.
func New(o Options) (*Target, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	var errs []error
	add := func(n *node, err error) *node {
		errs = append(errs, err)
		return n
	}
	t := &Target{opts: o, log: o.Logger}
	t.co = add(newNode("coordinator database", -1, o.Coordinator))
	for i, dsn := range o.Shards {
		t.shards = append(t.shards, add(newNode(fmt.Sprintf("shard %d", i), i, dsn)))
	}
	if err := pgside.JoinErrors("read configuration", errs); err != nil {
		return nil, err
	}
	t.ledger = ledger.New(t.co.Session, &t.opts.Options, t.point)
	t.backend = placed{newBackend(len(t.shards), t.shardConn, &t.textOnly), t.shards, o.StatementTimeout + hangGrace}
	return t, nil
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

// Close gives up lock and connections. Open transactions are rolled back.
func (t *Target) Close() error {
	t.disconnect()
	return nil
}

// nodes lists the coordinator database and the shards.
func (t *Target) nodes() []*node {
	return append([]*node{t.co}, t.shards...)
}

// disconnect ends all sessions.
func (t *Target) disconnect() {
	t.ledger.Closed()
	_ = each(context.Background(), "", t.nodes(), func(_ context.Context, n *node) error {
		n.close()
		return nil
	})
}

// appName is what a session of this daemon calls itself. The server cuts it off
// at 63 bytes; it is for people, nothing is decided by it.
func appName(subscription string, epoch uint64) string {
	if epoch == 0 {
		return gidPrefix + subscription
	}
	return fmt.Sprintf("%s%s:%d", gidPrefix, subscription, epoch)
}

// connectAll connects to every server at once.
func (t *Target) connectAll(ctx context.Context) error {
	return each(ctx, "connect to target", t.nodes(), t.connectNode)
}

// connectNode connects to one server.
func (t *Target) connectNode(ctx context.Context, n *node) error {
	if err := n.connect(ctx, appName(t.opts.Subscription, 0)); err != nil {
		return err
	}
	return n.prepareSession(ctx, settings{statement: t.opts.StatementTimeout, lock: t.opts.LockTimeout, idle: t.opts.IdleTimeout})
}
