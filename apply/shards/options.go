package shards

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"cbrepl/apply/internal/pgside"
	"cbrepl/apply/ledger"
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
	ledger.Options
	// Coordinator is the connection string of the database that keeps the ledger;
	// Shards are those of the shards, in the order of their numbers.
	Coordinator string
	Shards      []string
}

// maxShards bounds the shards of one target: each takes a session, and shard
// numbers are contents.
const maxShards = 4096

// Validate reports every problem.
func (o *Options) Validate() error {
	var errs []error
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
	return o.Options.Validate(errs...)
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
	return pgside.JoinErrors(op, errs)
}
