package shards

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/dtx"
)

const opOpen = "open target"

// First halves of cbrepl's advisory lock keys; the second half is the
// subscription's id in cbrepl.subscription, or in cbrepl.shard.
const (
	lockClass      = "1667396208" // "cbrp": exclusive, one daemon per subscription
	shardLockClass = "1667396209" // shared: marks the subscription's sessions on a shard
)

// sessionID tells one session of a server from every other.
type sessionID struct {
	pid, start string
}

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
	if err := t.connectAll(ctx, appName(t.opts.Subscription, 0)); err != nil {
		return st, err
	}
	if err := t.checkServers(); err != nil {
		return st, err
	}
	if err := t.checkLayout(ctx); err != nil {
		return st, err
	}
	row, err := t.readSubscription(ctx, opOpen)
	if err != nil {
		return st, err
	}
	// Shards of another target or in another order are found before anything changes.
	err = t.eachShard(ctx, opOpen, func(ctx context.Context, n *node) error {
		_, err := t.readShard(ctx, n, opOpen, row.token)
		return err
	})
	if err != nil {
		return st, err
	}
	if err := t.lock(ctx, row.id); err != nil {
		return st, err
	}
	if err := t.point("open_after_lock"); err != nil {
		return st, err
	}
	if row, err = t.raiseEpoch(ctx); err != nil {
		return st, err
	}
	if err := t.checkRival(row); err != nil {
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
	if st, err = t.readState(ctx, row); err != nil {
		return st, err
	}
	if err := t.readCatalogue(ctx); err != nil {
		return st, err
	}
	if err := t.finishSessions(ctx, row.epoch); err != nil {
		return st, err
	}
	t.warnReplicaRole()
	t.opened(row, st)
	return st, nil
}

// opened records what the target is known to hold.
func (t *Target) opened(row subscriptionRow, st apply.State) {
	t.epoch, t.batch, t.initialized = row.epoch, row.decided.batch, row.initialized
	t.shardBatches = row.shardBatches
	t.known, t.tried, t.haveKnown = row.decided, row.decided, true
	t.positions = make(map[dtx.Content]dtx.LSN, len(st.Positions))
	for _, p := range st.Positions {
		t.positions[p.Content] = p.LSN
	}
	t.open = true
	t.count(func(s *Stats) { s.Epoch, s.Batch, s.Opens = t.epoch, t.batch, s.Opens+1 })
	t.log.Info("target is open", slog.String("subscription", t.opts.Subscription),
		slog.Uint64("epoch", t.epoch), slog.Uint64("batch", t.batch), slog.Int("shards", len(t.shards)))
}

// checkLayout reports every server on which Prepare has not run.
func (t *Target) checkLayout(ctx context.Context) error {
	return each(ctx, opOpen, t.nodes(), func(ctx context.Context, n *node) error {
		if n == t.co {
			return n.checkPrepared(ctx, opOpen, coordinatorObjects)
		}
		return n.checkPrepared(ctx, opOpen, shardObjects)
	})
}

// lock takes the subscription's advisory lock, for as long as the session lives.
func (t *Target) lock(ctx context.Context, id string) error {
	n := t.co
	// A session of this very Target that the server has not missed yet.
	if t.session.pid != "" {
		if _, err := n.query(ctx, `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
			WHERE pid = $1::int AND backend_start = $2::timestamptz`, t.session.pid, t.session.start); err != nil {
			return fail(opOpen, n.String(), err)
		}
		t.session = sessionID{}
	}
	if err := n.setLockTimeout(ctx, t.opts.LockWait.Milliseconds()); err != nil {
		return err
	}
	_, err := n.query(ctx, `SELECT pg_advisory_lock($1, $2)`, lockClass, id)
	if pgside.SQLState(err) == pgside.StateLockNotAvailable {
		return t.lockHeld(ctx, id)
	}
	if err != nil {
		return fail(opOpen, n.String(), err)
	}
	rows, err := n.query(ctx, `SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()`)
	if err != nil || len(rows) == 0 {
		return fail(opOpen, n.String(), err)
	}
	t.session = sessionID{string(rows[0][0]), string(rows[0][1])}
	return n.setLockTimeout(ctx, fenceLockTimeout.Milliseconds())
}

// lockHeld names who holds the lock.
func (t *Target) lockHeld(ctx context.Context, id string) error {
	holder := "it is not visible to role " + t.co.facts.role + " in pg_stat_activity"
	rows, err := t.co.query(ctx, `
		SELECT l.pid, coalesce(a.application_name, '?'), coalesce(a.usename, '?'),
		       coalesce(host(a.client_addr), 'local'), coalesce(a.backend_start::text, 'not visible')
		FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
		WHERE l.locktype = 'advisory' AND l.granted AND l.database = $1::oid
		  AND l.classid = $2::oid AND l.objid = $3::oid AND l.objsubid = 2`,
		strconv.FormatUint(uint64(t.co.facts.database), 10), lockClass, id)
	if err != nil {
		return fail(opOpen, t.co.String(), err)
	}
	if len(rows) > 0 {
		r := rows[0]
		holder = fmt.Sprintf("server process %s, application %s, role %s, client %s, connected since %s", r[0], r[1], r[2], r[3], r[4])
	}
	return stop(opOpen,
		"Stop the other daemon; if it is gone and its session stays, end that server process with pg_terminate_backend",
		"another daemon runs subscription %s on the %s: %s", t.opts.Subscription, t.co, holder)
}

func (n *node) setLockTimeout(ctx context.Context, ms int64) error {
	_, err := n.query(ctx, `SELECT set_config('lock_timeout', $1, false)`, strconv.FormatInt(ms, 10))
	return fail(opOpen, n.String(), err)
}

// raiseEpoch makes this daemon the only one that can decide, and returns the
// row as it stands from then on: its decision is final.
func (t *Target) raiseEpoch(ctx context.Context) (subscriptionRow, error) {
	rows, err := t.co.query(ctx, `UPDATE cbrepl.subscription SET epoch = epoch + 1 WHERE name = $1 RETURNING epoch`, t.opts.Subscription)
	if err != nil {
		return subscriptionRow{}, fail(opOpen, t.co.String(), err)
	}
	if len(rows) != 1 {
		return subscriptionRow{}, stop(opOpen, prepareHint, "subscription %s has vanished from the %s", t.opts.Subscription, t.co)
	}
	return t.readSubscription(ctx, opOpen)
}

// checkRival stops a daemon that has lost its place to another: what it holds
// in memory no longer follows from what the target records.
func (t *Target) checkRival(row subscriptionRow) error {
	if !t.haveKnown || row.decided == t.known || row.decided == t.tried {
		return nil
	}
	return stop(opOpen, "Restart the daemon: it then reads its positions anew",
		"another daemon has applied batches of subscription %s meanwhile: the last known here is %d of epoch %d, the target records %d of epoch %d",
		t.opts.Subscription, t.known.batch, t.known.epoch, row.decided.batch, row.decided.epoch)
}

// readState reads positions, stream identities and the dedup set.
func (t *Target) readState(ctx context.Context, row subscriptionRow) (apply.State, error) {
	st := apply.State{Initialized: row.initialized, Epoch: row.epoch, Batch: row.decided.batch}
	rows, err := t.co.query(ctx, `SELECT content, lsn, system_id, slot, timeline FROM cbrepl.stream
		WHERE subscription = $1 ORDER BY content`, t.opts.Subscription)
	if err != nil {
		return st, fail(opOpen, t.co.String(), err)
	}
	for _, r := range rows {
		lsn, err := dtx.ParseLSN(string(r[1]))
		if err != nil {
			return st, fail(opOpen, t.co.String(), err)
		}
		c := dtx.Content(pgside.Atoi(r[0]))
		st.Positions = append(st.Positions, dtx.Position{Content: c, LSN: lsn})
		st.Streams = append(st.Streams, apply.StreamIdentity{
			Content: c, SystemID: string(r[2]), Slot: string(r[3]), Timeline: int32(pgside.Atoi(r[4])),
		})
	}
	if row.initialized != (len(rows) > 0) {
		return st, stop(opOpen, "Somebody has edited these tables; restore them from a backup",
			"cbrepl.subscription and cbrepl.stream on the %s disagree about whether subscription %s has positions", t.co, t.opts.Subscription)
	}
	st.Dedup, err = t.readDedup(ctx)
	return st, err
}

func (t *Target) readDedup(ctx context.Context) ([]dtx.DedupEntry, error) {
	rows, err := t.co.query(ctx, `SELECT gxid, array_to_string(contents, ','), array_to_string(lsns, ',')
		FROM cbrepl.dedup WHERE subscription = $1 ORDER BY gxid`, t.opts.Subscription)
	if err != nil {
		return nil, fail(opOpen, t.co.String(), err)
	}
	var out []dtx.DedupEntry
	for _, r := range rows {
		e := dtx.DedupEntry{GXID: dtx.GXID(pgside.Atou(r[0]))}
		var ok bool
		if e.Pending, ok = pgside.ParsePositions(r[1], r[2]); !ok {
			return nil, stop(opOpen, "Somebody has edited the table; restore it from a backup",
				"cbrepl.dedup on the %s: the positions of gxid %s do not fit together", t.co, e.GXID)
		}
		out = append(out, e)
	}
	return out, nil
}

// finishSessions gives the sessions their working settings and names.
func (t *Target) finishSessions(ctx context.Context, epoch uint64) error {
	err := each(ctx, opOpen, t.nodes(), func(ctx context.Context, n *node) error {
		_, err := n.query(ctx, `SELECT set_config('application_name', $1, false), set_config('lock_timeout', $2, false)`,
			appName(t.opts.Subscription, epoch), strconv.FormatInt(t.opts.LockTimeout.Milliseconds(), 10))
		return fail(opOpen, n.String(), err)
	})
	if err != nil {
		return err
	}
	_, err = t.co.conn.Prepare(ctx, decideStatement, decideSQL, nil)
	return fail(opOpen, t.co.String(), err)
}
