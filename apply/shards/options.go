package shards

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
)

const (
	// minVersion is the oldest server_version_num that a target server may have.
	minVersion = 140000
	// fenceLockTimeout is how long one attempt to raise a shard's epoch waits.
	fenceLockTimeout = time.Second
	// cleanupTimeout bounds rolling back after a failed batch; what it does not
	// reach is rolled back by the server or by the next Open.
	cleanupTimeout = 5 * time.Second
)

// Options configures a target of shards.
type Options struct {
	// Subscription names the subscription: [a-z0-9_-]{1,63}.
	Subscription string
	// Coordinator is the connection string of the coordinator database.
	Coordinator string
	// Shards are the connection strings of the shards, in shard order.
	Shards []string

	// Tables are the source's published tables; each must have its table on the
	// target, found by Names. Engine bounds the memory of applying and says what
	// happens on conflicts.
	Tables []catalog.PublishedTable
	Names  apply.NameMap
	Engine apply.Options

	// LockWait is how long Open waits for another daemon's lock. 0 means 5 s.
	LockWait time.Duration
	// OpenTimeout bounds Open. 0 means 60 s.
	OpenTimeout time.Duration
	// DecideTimeout bounds each step of one batch's commit: PREPARE TRANSACTION,
	// the decision, and COMMIT PREPARED. The last two go on when the daemon is told
	// to stop. 0 means 30 s.
	DecideTimeout time.Duration
	// StatementTimeout bounds one statement on a shard. 0 means 10 min.
	StatementTimeout time.Duration
	// LockTimeout bounds the wait for one lock on a shard. 0 means 30 s.
	LockTimeout time.Duration
	// IdleTimeout bounds how long a shard keeps the open transaction of a daemon
	// that sends nothing. 0 means 10 min.
	IdleTimeout time.Duration

	// Logger is where Open and Apply log; nil means nowhere.
	Logger *slog.Logger
}

// EnsureDefaults fills unset fields.
func (o *Options) EnsureDefaults() {
	set := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	o.Engine.EnsureDefaults()
	set(&o.LockWait, 5*time.Second)
	set(&o.OpenTimeout, time.Minute)
	set(&o.DecideTimeout, 30*time.Second)
	set(&o.StatementTimeout, 10*time.Minute)
	set(&o.LockTimeout, 30*time.Second)
	set(&o.IdleTimeout, 10*time.Minute)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// maxShards bounds the shards of one target: each takes a session, and shard
// numbers are contents.
const maxShards = 4096

// Validate reports every problem.
func (o *Options) Validate() error {
	errs := []error{o.Engine.Validate(), o.Names.Validate()}
	if !namePattern.MatchString(o.Subscription) {
		errs = append(errs, fmt.Errorf("subscription name %q: want 1 to 63 of a-z, 0-9, _ and -", o.Subscription))
	}
	if o.Coordinator == "" {
		errs = append(errs, errors.New("the coordinator database's connection string is missing"))
	}
	if len(o.Shards) == 0 || len(o.Shards) > maxShards {
		errs = append(errs, fmt.Errorf("%d shards are listed, want 1 to %d", len(o.Shards), maxShards))
	}
	for i, s := range o.Shards {
		if s == "" {
			errs = append(errs, fmt.Errorf("the connection string of shard %d is missing", i))
		}
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"lock wait", o.LockWait},
		{"open timeout", o.OpenTimeout},
		{"decide timeout", o.DecideTimeout},
		{"statement timeout", o.StatementTimeout},
		{"lock timeout", o.LockTimeout},
		{"idle timeout", o.IdleTimeout},
	} {
		if d.d < time.Millisecond {
			errs = append(errs, fmt.Errorf("%s is %s, want at least 1ms", d.name, d.d))
		}
	}
	return pgside.Together("read configuration", errs)
}

// eachShard runs f for every shard at once and returns all their errors as one.
func (t *Target) eachShard(ctx context.Context, op string, f func(ctx context.Context, n *node) error) error {
	return each(ctx, op, t.shards, f)
}

func each(ctx context.Context, op string, nodes []*node, f func(ctx context.Context, n *node) error) error {
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() { errs[i] = f(ctx, n) })
	}
	wg.Wait()
	return pgside.Together(op, errs)
}
