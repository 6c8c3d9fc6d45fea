package shards

import (
	"context"
	"log/slog"
	"strconv"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/apply/ledger"
	"cbrepl/logkey"
)

const opOpen = ledger.OpOpen

// shardLockClass is the first half of the advisory lock's key that marks the
// subscription's sessions on a shard; the second is its id in cbrepl.shard.
const shardLockClass = "1667396209"

// Open connects, takes the subscription's lock, raises the epoch on every
// server, resolves what older daemons left in doubt, checks the target and reads
// the state. It may be called again at any time; it always starts from nothing.
func (t *Target) Open(ctx context.Context) (st apply.State, err error) {
	t.disconnect()
	ctx, cancel := context.WithTimeout(ctx, t.opts.OpenTimeout)
	defer cancel()
	defer func() {
		if err != nil {
			t.disconnect()
		}
	}()
	if err := t.connectAll(ctx); err != nil {
		return st, err
	}
	if err := checkServers(t.shards).Err("check target servers"); err != nil {
		return st, err
	}
	if err := t.checkLayout(ctx); err != nil {
		return st, err
	}
	row, err := t.readRow(ctx)
	if err != nil {
		return st, err
	}
	// Shards of another target or in another order are found before anything changes.
	err = t.eachShard(ctx, opOpen, func(ctx context.Context, n *node) error {
		_, err := t.readShard(ctx, n, opOpen, row.Token)
		return err
	})
	if err != nil {
		return st, err
	}
	if err := t.ledger.Lock(ctx, row); err != nil {
		return st, err
	}
	if err := t.point("open_after_lock"); err != nil {
		return st, err
	}
	if err := t.co.SetLockTimeout(ctx, opOpen, fenceLockTimeout.Milliseconds()); err != nil {
		return st, err
	}
	if row, err = t.ledger.RaiseEpoch(ctx, row); err != nil {
		return st, err
	}
	if err := t.ledger.CheckRival(row); err != nil {
		return st, err
	}
	if err := t.point("open_after_epoch"); err != nil {
		return st, err
	}
	if err := t.takeShards(ctx, row); err != nil {
		return st, err
	}
	if err := t.point("open_after_fence"); err != nil {
		return st, err
	}
	if st, err = t.ledger.ReadState(ctx, row); err != nil {
		return st, err
	}
	t.stream.SetCopies(st.Copies, st.Positions)
	if err := t.readCatalogue(ctx); err != nil {
		return st, err
	}
	if err := t.finishSessions(ctx, row.Epoch); err != nil {
		return st, err
	}
	t.warnReplicaRole()
	t.opened(row)
	return st, nil
}

// opened records what the target is known to hold.
func (t *Target) opened(row ledger.Row) {
	t.ledger.Opened(row)
	t.count(func(s *Stats) { s.Epoch, s.Batch, s.Opens = t.ledger.Epoch(), t.ledger.Batch(), s.Opens+1 })
	t.log.Info("target is open", slog.String(logkey.Subscription, t.opts.Subscription),
		slog.Uint64(logkey.Epoch, t.ledger.Epoch()), slog.Uint64(logkey.Batch, t.ledger.Batch()), slog.Int(logkey.Shards, len(t.shards)))
}

// checkLayout reports every server on which Prepare has not run.
func (t *Target) checkLayout(ctx context.Context) error {
	return each(ctx, opOpen, t.nodes(), t.checkNodeLayout)
}

func (t *Target) checkNodeLayout(ctx context.Context, n *node) error {
	if n == t.co {
		return ledger.CheckPrepared(ctx, n.Session, opOpen, coordinatorObjects)
	}
	return ledger.CheckPrepared(ctx, n.Session, opOpen, shardObjects)
}

// finishSessions gives the sessions their working settings and names.
func (t *Target) finishSessions(ctx context.Context, epoch uint64) error {
	err := each(ctx, opOpen, t.nodes(), func(ctx context.Context, n *node) error {
		_, err := n.Query(ctx, `SELECT set_config('application_name', $1, false), set_config('lock_timeout', $2, false)`,
			appName(t.opts.Subscription, epoch), strconv.FormatInt(t.opts.LockTimeout.Milliseconds(), 10))
		if err == nil && n != t.co {
			err = pgside.PrepareCheck(ctx, n.Conn)
		}
		return n.Fail(opOpen, err)
	})
	if err != nil {
		return err
	}
	_, err = t.co.Conn.Prepare(ctx, decideStatement, decideSQL, nil)
	return t.co.Fail(opOpen, err)
}
