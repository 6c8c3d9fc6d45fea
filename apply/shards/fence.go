package shards

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"cbrepl/apply/internal/pgside"
	"cbrepl/apply/ledger"
	"cbrepl/dtx"
	"cbrepl/logkey"
)

// takeShards makes this daemon the only one that can write, and resolves what
// older ones left. row is the coordinator's row after its epoch was raised.
func (t *Target) takeShards(ctx context.Context, row ledger.Row) error {
	// All shards are looked at before the first is changed: a shard or
	// coordinator database that lost data must be met as it is.
	before := make([]shardRow, len(t.shards))
	err := t.eachShard(ctx, opOpen, func(ctx context.Context, n *node) (err error) {
		if err := t.endOlderSessions(ctx, n); err != nil {
			return err
		}
		if before[n.index], err = t.readShard(ctx, n, opOpen, row.Token); err != nil {
			return err
		}
		if s := before[n.index]; s.batch > row.Decided.Batch || s.epoch >= row.Epoch {
			return pgside.Stop(opOpen, lostHint,
				"the %s stands at epoch %d, batch %d, the coordinator database records epoch %d, batch %d only: the coordinator database has lost committed work (it was restored, or failed over to a standby that was behind)",
				n, s.epoch, s.batch, row.Epoch-1, row.Decided.Batch)
		}
		ids, err := t.preparedOf(ctx, n)
		if err != nil {
			return err
		}
		for _, p := range ids {
			if judge(p.id, row.Decided) == refuseIt {
				return t.refusal(n, p, row.Decided)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = t.eachShard(ctx, opOpen, func(ctx context.Context, n *node) error {
		if err := t.point("open_between_fence"); err != nil {
			return n.Fail(opOpen, err)
		}
		return t.fence(ctx, n, row)
	})
	if err != nil {
		return err
	}
	return t.eachShard(ctx, opOpen, func(ctx context.Context, n *node) error {
		s, err := t.readShard(ctx, n, opOpen, row.Token)
		if err != nil {
			return err
		}
		if want := row.ShardBatches[n.index]; s.batch != want {
			return pgside.Stop(opOpen, lostHint,
				"the %s has committed up to batch %d, the coordinator database records batch %d as its last: the shard has lost committed work, or the coordinator database has (restored, or failed over to a standby that was behind)",
				n, s.batch, want)
		}
		return t.checkRoom(ctx, n)
	})
}

const lostHint = "Nothing is changed. Bring the servers of the target back to one common state, or make a new copy of the tables under a new subscription"

// fence raises a shard's epoch. Each batch transaction there holds a lock on the
// row until it has ended, prepared ones included, so this succeeds only once no
// older transaction is left. Older sessions are ended and prepared transactions
// resolved until it does or ctx ends.
func (t *Target) fence(ctx context.Context, n *node, row ledger.Row) error {
	epoch := strconv.FormatUint(row.Epoch, 10)
	if err := n.SetLockTimeout(ctx, opOpen, fenceLockTimeout.Milliseconds()); err != nil {
		return err
	}
	var blocked string
	for {
		if err := t.resolve(ctx, n, row.Decided); err != nil {
			return err
		}
		rows, err := n.Query(ctx, `UPDATE cbrepl.shard SET epoch = $1 WHERE subscription = $2 AND epoch < $1 RETURNING 1`, epoch, t.opts.Subscription)
		switch {
		case err == nil && len(rows) == 1:
			return nil
		case err == nil:
			return pgside.Stop(opOpen, "Stop the other daemon", "the epoch of subscription %s on the %s was raised by another daemon at the same time", t.opts.Subscription, n)
		case pgside.SQLState(err) != pgside.StateLockNotAvailable:
			if blocked != "" && errors.Is(err, context.DeadlineExceeded) {
				return pgside.Retry(opOpen, "It is tried again; end that session or transaction if it does not end by itself",
					"cannot raise the epoch on the %s: the row of subscription %s in cbrepl.shard is locked by %s", n, t.opts.Subscription, blocked)
			}
			return n.Fail(opOpen, err)
		}
		if blocked, err = t.blocker(ctx, n); err != nil {
			return n.Fail(opOpen, err)
		}
		if err := t.endOlderSessions(ctx, n); err != nil {
			return err
		}
	}
}

// blocker describes who holds the lock on the shard's row.
func (t *Target) blocker(ctx context.Context, n *node) (string, error) {
	rows, err := n.Query(ctx, `
		SELECT coalesce(
			(SELECT format('prepared transaction %s of database %s', p.gid, p.database) FROM pg_prepared_xacts p WHERE p.transaction = s.xmax),
			(SELECT format('server process %s, application %s, role %s', a.pid, a.application_name, a.usename)
			 FROM pg_stat_activity a WHERE a.backend_xid = s.xmax),
			'transaction ' || s.xmax)
		FROM cbrepl.shard s WHERE s.subscription = $1`, t.opts.Subscription)
	if err != nil || len(rows) == 0 {
		return "", err
	}
	return string(rows[0][0]), nil
}

// endOlderSessions joins the sessions of this subscription on a shard and ends
// the others: this daemon holds the lock, so they are left over from older ones.
// Where the role may not, an idle one does no harm and a working one shows as
// the blocker.
func (t *Target) endOlderSessions(ctx context.Context, n *node) error {
	// Advisory locks nest; the session holds it until its end.
	_, err := n.Query(ctx, `SELECT pg_advisory_lock_shared($2::int, id) FROM cbrepl.shard WHERE subscription = $1`,
		t.opts.Subscription, shardLockClass)
	if err != nil {
		return n.Fail(opOpen, err)
	}
	rows, err := n.Query(ctx, `
		SELECT l.pid FROM pg_locks l JOIN cbrepl.shard s ON l.objid = s.id::oid
		WHERE s.subscription = $1 AND l.locktype = 'advisory' AND l.database = $3::oid
		  AND l.classid = $2::oid AND l.objsubid = 2 AND l.pid <> pg_backend_pid()`,
		t.opts.Subscription, shardLockClass, strconv.FormatUint(uint64(n.facts.database), 10))
	if err != nil {
		return n.Fail(opOpen, err)
	}
	for _, r := range rows {
		gone, err := n.Query(ctx, `SELECT pg_terminate_backend($1::int, 5000)`, string(r[0]))
		if code := pgside.SQLState(err); code == pgside.StateInsufficientPriv {
			t.log.Warn("an older session of the subscription cannot be ended: the role is neither its owner nor a member of pg_signal_backend",
				slog.String(logkey.Server, n.Name), slog.String(logkey.PID, string(r[0])))
			continue
		}
		if err != nil {
			return n.Fail(opOpen, err)
		}
		if string(gone[0][0]) == "t" {
			t.count(func(s *Stats) { s.SessionsEnded++ })
			t.log.Info("ended a session of an older daemon", slog.String(logkey.Server, n.Name), slog.String(logkey.PID, string(r[0])))
		}
	}
	return nil
}

// preparedTx is a prepared transaction of this subscription on a shard.
type preparedTx struct {
	gid string
	id  ledger.BatchID
}

// preparedOf lists this subscription's prepared transactions in a shard's database.
func (t *Target) preparedOf(ctx context.Context, n *node) ([]preparedTx, error) {
	prefix := gidPrefix + t.opts.Subscription + ":"
	rows, err := n.Query(ctx, `SELECT gid FROM pg_prepared_xacts
		WHERE database = current_database() AND starts_with(gid, $1) ORDER BY gid`, prefix)
	if err != nil {
		return nil, n.Fail(opOpen, err)
	}
	var out []preparedTx
	for _, r := range rows {
		gid := string(r[0])
		id, ok := parseGID(gid, t.opts.Subscription, n.facts.database)
		if !ok {
			return nil, pgside.Stop(opOpen, "Find out where it comes from, and commit or roll it back",
				"the %s holds a prepared transaction %s that cbrepl has not made", n, gid)
		}
		out = append(out, preparedTx{gid, id})
	}
	return out, nil
}

func (t *Target) refusal(n *node, p preparedTx, decided ledger.BatchID) error {
	return pgside.Stop(opOpen, lostHint,
		"the %s holds prepared transaction %s, though batch %d is the last one decided and was begun after batch %d was finished everywhere: the shard was restored to an older state, or the coordinator database to a newer one",
		n, p.gid, decided.Batch, p.id.Batch)
}

// resolve ends the prepared transactions of this subscription on a shard by the
// table of the package comment.
func (t *Target) resolve(ctx context.Context, n *node, decided ledger.BatchID) error {
	list, err := t.preparedOf(ctx, n)
	if err != nil {
		return err
	}
	for _, p := range list {
		if err := t.point("open_between_resolve"); err != nil {
			return n.Fail(opOpen, err)
		}
		verb, counter := "ROLLBACK PREPARED ", func(s *Stats) { s.InDoubtRolledBack++ }
		switch judge(p.id, decided) {
		case refuseIt:
			return t.refusal(n, p, decided)
		case commitIt:
			verb, counter = "COMMIT PREPARED ", func(s *Stats) { s.InDoubtCommitted++ }
		case rollBackIt:
		}
		err := n.Exec(ctx, verb+pgside.QuoteLiteral(p.gid))
		switch pgside.SQLState(err) {
		case "":
			if err != nil {
				return n.Fail(opOpen, err)
			}
			t.count(counter)
			t.log.Info("resolved a prepared transaction", slog.String(logkey.Server, n.Name), slog.String(logkey.GID, p.gid),
				slog.String(logkey.Outcome, strings.ToLower(strings.TrimSuffix(verb, " PREPARED "))))
		case pgside.StateUndefinedObject, pgside.StateObjectNotInState:
			// An older daemon's session, about to be ended, finishes it or holds
			// it: the epoch cannot be raised before it is resolved.
		case pgside.StateInsufficientPriv:
			return pgside.Stop(opOpen, "Run the daemon under the role that prepared it, or as a superuser",
				"role %s may not finish prepared transaction %s on the %s", n.facts.role, p.gid, n)
		default:
			return n.Fail(opOpen, err)
		}
	}
	return nil
}

// checkRoom finds out whether a batch can be prepared on a shard.
func (t *Target) checkRoom(ctx context.Context, n *node) error {
	rows, err := n.Query(ctx, `SELECT gid, database FROM pg_prepared_xacts ORDER BY prepared`)
	if err != nil {
		return n.Fail(opOpen, err)
	}
	if len(rows) < n.facts.maxPrepared {
		return t.checkShare(ctx, n)
	}
	var names []string
	for i, r := range rows {
		if i == 10 {
			names = append(names, fmt.Sprintf("and %d more", len(rows)-i))
			break
		}
		names = append(names, fmt.Sprintf("%s (database %s)", r[0], r[1]))
	}
	return &dtx.Error{
		Op: opOpen, Class: dtx.ClassRetry,
		Msg: fmt.Sprintf("the %s has room for %d prepared transactions and holds %d, none of this subscription: %s",
			n, n.facts.maxPrepared, len(rows), strings.Join(names, ", ")),
		Hint: "Let their owners finish them, or raise max_prepared_transactions and restart that server",
	}
}

// checkShare finds out whether every subscription of a shard can have a batch
// prepared at once.
func (t *Target) checkShare(ctx context.Context, n *node) error {
	rows, err := n.Query(ctx, `SELECT count(*) FROM cbrepl.shard`)
	if err != nil {
		return n.Fail(opOpen, err)
	}
	if subs := int(pgside.Atoi(rows[0][0])); subs > n.facts.maxPrepared {
		return pgside.Stop(opOpen, "Raise it to at least that number, plus what other two-phase clients need, and restart that server",
			"the %s has max_prepared_transactions = %d and serves %d subscriptions", n, n.facts.maxPrepared, subs)
	}
	return nil
}
