package ledger

import (
	"context"
	"fmt"
	"strconv"

	"cbrepl/apply/internal/pgside"
)

// lockClass is the first half of the advisory lock's key; the second is the
// subscription's id in cbrepl.subscription.
const lockClass = "1667396208" // "cbrp"

// sessionID tells one session of a server from every other.
type sessionID struct {
	pid, start string
}

// Lock takes the subscription's advisory lock, for as long as the session lives.
// It leaves the session's lock_timeout at LockWait.
func (l *Ledger) Lock(ctx context.Context, row Row) error {
	// A session of this very Ledger that the server has not missed yet.
	if l.session.pid != "" {
		if _, err := l.srv.Query(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE pid = $1::int AND backend_start = $2::timestamptz`, l.session.pid, l.session.start); err != nil {
			return l.srv.Fail(OpOpen, err)
		}
		l.session = sessionID{}
	}
	if err := l.srv.SetLockTimeout(ctx, OpOpen, l.opts.LockWait.Milliseconds()); err != nil {
		return err
	}
	_, err := l.srv.Query(ctx, `SELECT pg_advisory_lock($1, $2)`, lockClass, row.ID)
	if pgside.SQLState(err) == pgside.StateLockNotAvailable {
		return l.lockHeld(ctx, row.ID)
	}
	if err != nil {
		return l.srv.Fail(OpOpen, err)
	}
	rows, err := l.srv.Query(ctx, `SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()`)
	if err != nil || len(rows) == 0 {
		return l.srv.Fail(OpOpen, err)
	}
	l.session = sessionID{string(rows[0][0]), string(rows[0][1])}
	return nil
}

// lockHeld names who holds the lock. A cluster's pg_locks lists the locks of the
// segments, too; advisory locks are on the coordinator only.
func (l *Ledger) lockHeld(ctx context.Context, id string) error {
	rows, err := l.srv.Query(ctx, `
		SELECT l.pid, coalesce(a.application_name, '?'), coalesce(a.usename, '?'),
		       coalesce(host(a.client_addr), 'local'), coalesce(a.backend_start::text, 'not visible')
		FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
		WHERE l.locktype = 'advisory' AND l.granted
		  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		  AND l.classid = $1::oid AND l.objid = $2::oid AND l.objsubid = 2`, lockClass, id)
	if err != nil {
		return l.srv.Fail(OpOpen, err)
	}
	holder := "its session is not visible to this role in pg_stat_activity"
	if len(rows) > 0 {
		r := rows[0]
		holder = fmt.Sprintf("server process %s, application %s, role %s, client %s, connected since %s", r[0], r[1], r[2], r[3], r[4])
	}
	return pgside.Stop(OpOpen,
		"Stop the other daemon; if it is gone and its session stays, end that server process with pg_terminate_backend",
		"another daemon runs subscription %s on the %s: %s", l.opts.Subscription, l.srv, holder)
}

// RaiseEpoch makes this daemon the only one that can record a batch, and returns
// the row as it is from then on: its decision is final.
func (l *Ledger) RaiseEpoch(ctx context.Context, row Row) (Row, error) {
	_, err := l.srv.Query(ctx, `UPDATE cbrepl.subscription SET epoch = epoch + 1 WHERE name = $1::text AND token = $2::uuid`,
		l.opts.Subscription, row.Token)
	if err != nil {
		return row, l.srv.Fail(OpOpen, err)
	}
	raised, err := l.ReadRow(ctx, OpOpen)
	if err != nil {
		return row, err
	}
	if raised.Token != row.Token || raised.Epoch <= row.Epoch {
		return row, pgside.Retry(OpOpen, "It is tried again", "the row of subscription %s on the %s was replaced meanwhile", l.opts.Subscription, l.srv)
	}
	return raised, nil
}

// CheckRival stops a daemon that has lost its place to another: what it holds in
// memory no longer follows from what the target records.
func (l *Ledger) CheckRival(row Row) error {
	const hint = "Restart the daemon: it then reads its positions anew"
	if !l.seen {
		return nil
	}
	if row.Token != l.row.Token {
		return pgside.Stop(OpOpen, hint, "subscription %s on the target was dropped and prepared again meanwhile", l.opts.Subscription)
	}
	if row.Decided == l.row.Decided || row.Decided == l.tried {
		return nil
	}
	return pgside.Stop(OpOpen, hint,
		"another daemon has applied batches of subscription %s meanwhile: the last known here is %d of epoch %d, the target records %d of epoch %d",
		l.opts.Subscription, l.row.Decided.Batch, l.row.Decided.Epoch, row.Decided.Batch, row.Decided.Epoch)
}

// StateFenced is the SQLSTATE that a guarded statement raises.
const StateFenced = "CBF01"

// Guarded is a statement that changes the subscription's row, or fails with
// StateFenced when that row is not this daemon's any more or not at the given
// batch. A block is one statement without parameters, so that COMMIT can follow
// it in one message. What goes into it is numbers, LSNs, a checked name and a
// uuid.
func (l *Ledger) Guarded(set string, batch uint64, and string) string {
	return fmt.Sprintf(`DO $cbrepl$ BEGIN
UPDATE cbrepl.subscription SET %s WHERE name = '%s' AND token = '%s' AND epoch = %d AND batch = %d AND %s;
IF NOT FOUND THEN RAISE EXCEPTION USING ERRCODE = '%s', MESSAGE = 'the subscription belongs to another daemon'; END IF;
END $cbrepl$`, set, l.opts.Subscription, l.row.Token, l.row.Epoch, batch, and, StateFenced)
}

// Fenced is the end of a daemon that has been replaced, noticed on s. The class
// is retry: the next Open finds out whether the other daemon is still there.
func (l *Ledger) Fenced(op string, s *pgside.Session) error {
	return pgside.Retry(op, "Only one daemon may run a subscription",
		"another daemon has taken over subscription %s: the %s is no longer at epoch %s and batch %d, or the subscription was dropped there; nothing is written",
		l.opts.Subscription, s, strconv.FormatUint(l.row.Epoch, 10), l.row.Decided.Batch)
}
