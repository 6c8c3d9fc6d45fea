package shards

import (
	"context"
	"fmt"
	"strconv"

	"cbrepl/apply"
	"cbrepl/apply/engine"
	"cbrepl/apply/internal/load"
	"cbrepl/apply/internal/pgside"
	"cbrepl/apply/ledger"
	"cbrepl/catalog"
	"cbrepl/dtx"
)

var _ apply.CopyTarget = (*Target)(nil)

// CopyPlan says where the rows of a source table go.
func (t *Target) CopyPlan(src catalog.Name) (apply.CopyPlan, error) {
	e, ok := t.engine.(*engine.Engine)
	if !ok || !t.ledger.IsOpen() {
		return apply.CopyPlan{}, ledger.ErrNotOpen(opOpen)
	}
	return e.CopyPlan(src)
}

// RecordCopies replaces the records of the given tables' first copies.
func (t *Target) RecordCopies(ctx context.Context, copies []apply.TableCopy) error {
	return t.ledger.RecordCopies(ctx, copies)
}

// NewLoader returns a loader, which has a session per shard that it writes to.
func (t *Target) NewLoader() apply.Loader {
	epoch := strconv.FormatUint(t.ledger.Epoch(), 10)
	connect := func(ctx context.Context, seg dtx.Content) (*pgside.Session, error) {
		n, err := newNode(fmt.Sprintf("shard %d", seg), int(seg), t.opts.Shards[seg])
		if err != nil {
			return nil, err
		}
		if err := n.connect(ctx, appName(t.opts.Subscription, t.ledger.Epoch())); err != nil {
			return nil, err
		}
		err = n.prepareSession(ctx, settings{lock: t.opts.LockTimeout, idle: t.opts.IdleTimeout})
		if err == nil {
			// The next daemon's Open ends the session by this lock (endOlderSessions).
			_, err = n.Query(ctx, `SELECT pg_advisory_lock_shared($2::int, id) FROM cbrepl.shard WHERE subscription = $1`, t.opts.Subscription, shardLockClass)
		}
		if err != nil {
			n.close()
			return nil, n.Fail(opOpen, err)
		}
		return n.Session, nil
	}
	fence := func(ctx context.Context, s *pgside.Session) error {
		rows, err := s.Query(ctx, `SELECT 1 FROM cbrepl.shard WHERE subscription = $1 AND epoch = $2::bigint`, t.opts.Subscription, epoch)
		if err == nil && len(rows) == 0 {
			err = t.ledger.Fenced("copy table", s)
		}
		return err
	}
	segments := make([]dtx.Content, len(t.shards))
	for i := range segments {
		segments[i] = dtx.Content(i)
	}
	return load.New(segments, connect, fence, t.point)
}
