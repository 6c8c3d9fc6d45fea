package cloudberry

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/dtx"
	"cbrepl/faultinject"
)

const opOpen = "open target"

// lockClass is the first half of cbrepl's advisory lock keys; the second is the
// subscription's id in cbrepl.subscription.
const lockClass = "1667396208" // "cbrp"

// sessionID tells one session of the server from every other.
type sessionID struct {
	pid, start string
}

// Open connects, takes the subscription's lock, raises the epoch, checks the
// target and reads the state. It may be called again at any time; it always
// starts from nothing, so no temporary table, statement or setting of an earlier
// session is relied on.
func (t *Target) Open(ctx context.Context) (st apply.State, err error) {
	t.open = false
	t.srv.close()
	ctx, cancel := context.WithTimeout(ctx, t.opts.OpenTimeout)
	defer cancel()
	defer func() {
		if err != nil {
			err = t.bounded(err)
			t.srv.close()
		}
	}()
	if err := t.connect(ctx); err != nil {
		return st, err
	}
	if err := t.srv.checkPrepared(ctx, opOpen); err != nil {
		return st, err
	}
	row, err := t.readSubscription(ctx, opOpen)
	if err != nil {
		return st, err
	}
	if err := t.lock(ctx, row.id); err != nil {
		return st, err
	}
	if err := faultinject.Point("cloudberry.open_after_lock"); err != nil {
		return st, err
	}
	if row, err = t.raiseEpoch(ctx, row); err != nil {
		return st, err
	}
	if err := t.checkRival(row); err != nil {
		return st, err
	}
	if err := faultinject.Point("cloudberry.open_after_epoch"); err != nil {
		return st, err
	}
	rows, err := t.readState(ctx, row)
	if err != nil {
		return st, err
	}
	if err := t.readCatalogue(ctx); err != nil {
		return st, err
	}
	st = apply.State{
		Initialized: row.initialized, Epoch: row.epoch, Batch: row.decided.batch,
		Positions: slices.Clone(row.positions), Dedup: rows.dedup,
	}
	for _, r := range rows.streams {
		st.Streams = append(st.Streams, apply.StreamIdentity{
			Content:  dtx.Content(pgside.Atoi(r[0])),
			SystemID: string(r[1]), Slot: string(r[2]), Timeline: int32(pgside.Atoi(r[3])),
		})
	}
	t.opened(row)
	return st, nil
}

// opened records what the target is known to hold.
func (t *Target) opened(row subscriptionRow) {
	t.epoch, t.token, t.batch, t.initialized = row.epoch, row.token, row.decided.batch, row.initialized
	t.known, t.tried, t.haveKnown = row.decided, row.decided, true
	t.positions = row.positions
	t.backend = newBackend(t)
	t.open = true
	t.count(func(s *Stats) { s.Epoch, s.Batch, s.Opens = t.epoch, t.batch, s.Opens+1 })
	t.log.Info("target is open", slog.String("subscription", t.opts.Subscription), slog.Uint64("epoch", t.epoch),
		slog.Uint64("batch", t.batch), slog.Int("segments", t.srv.facts.segments))
}

// lock takes the subscription's advisory lock, for as long as the session lives.
func (t *Target) lock(ctx context.Context, id string) error {
	s := t.srv
	// A session of this very Target that the server has not missed yet.
	if t.session.pid != "" {
		if _, err := s.query(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE pid = $1::int AND backend_start = $2::timestamptz`, t.session.pid, t.session.start); err != nil {
			return fail(opOpen, s.String(), err)
		}
		t.session = sessionID{}
	}
	if err := t.lockTimeout(ctx, t.opts.LockWait.Milliseconds()); err != nil {
		return err
	}
	_, err := s.query(ctx, `SELECT pg_advisory_lock($1, $2)`, lockClass, id)
	if pgside.SQLState(err) == pgside.StateLockNotAvailable {
		return t.lockHeld(ctx, id)
	}
	if err != nil {
		return fail(opOpen, s.String(), err)
	}
	rows, err := s.query(ctx, `SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()`)
	if err != nil || len(rows) == 0 {
		return fail(opOpen, s.String(), err)
	}
	t.session = sessionID{string(rows[0][0]), string(rows[0][1])}
	return t.lockTimeout(ctx, t.opts.LockTimeout.Milliseconds())
}

func (t *Target) lockTimeout(ctx context.Context, ms int64) error {
	_, err := t.srv.query(ctx, `SELECT set_config('lock_timeout', $1, false)`, strconv.FormatInt(ms, 10))
	return fail(opOpen, t.srv.String(), err)
}

// lockHeld names who holds the lock. pg_locks lists the locks of the segments,
// too; advisory locks are on the coordinator only.
func (t *Target) lockHeld(ctx context.Context, id string) error {
	s := t.srv
	holder := "it is not visible to role " + s.facts.role + " in pg_stat_activity"
	rows, err := s.query(ctx, `
		SELECT l.pid, coalesce(a.application_name, '?'), coalesce(a.usename, '?'),
		       coalesce(host(a.client_addr), 'local'), coalesce(a.backend_start::text, 'not visible')
		FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
		WHERE l.locktype = 'advisory' AND l.granted AND l.database = $1::oid
		  AND l.classid = $2::oid AND l.objid = $3::oid AND l.objsubid = 2`,
		strconv.FormatUint(uint64(s.facts.database), 10), lockClass, id)
	if err != nil {
		return fail(opOpen, s.String(), err)
	}
	if len(rows) > 0 {
		r := rows[0]
		holder = fmt.Sprintf("server process %s, application %s, role %s, client %s, connected since %s", r[0], r[1], r[2], r[3], r[4])
	}
	return stop(opOpen,
		"Stop the other daemon; if it is gone and its session stays, end that server process with pg_terminate_backend",
		"another daemon runs subscription %s on the %s: %s", t.opts.Subscription, s, holder)
}

// raiseEpoch makes this daemon the only one that can commit a batch, and returns
// the row as it stands from then on.
func (t *Target) raiseEpoch(ctx context.Context, row subscriptionRow) (subscriptionRow, error) {
	_, err := t.srv.query(ctx, `UPDATE cbrepl.subscription SET epoch = epoch + 1 WHERE name = $1::text AND token = $2::uuid`,
		t.opts.Subscription, row.token)
	if err != nil {
		return row, fail(opOpen, t.srv.String(), err)
	}
	raised, err := t.readSubscription(ctx, opOpen)
	if err != nil {
		return row, err
	}
	if raised.token != row.token || raised.epoch <= row.epoch {
		return row, retry(opOpen, "It is tried again", "the row of subscription %s on the %s was replaced meanwhile", t.opts.Subscription, t.srv)
	}
	return raised, nil
}

// checkRival stops a daemon that has lost its place to another: what it holds
// in memory no longer follows from what the target records.
func (t *Target) checkRival(row subscriptionRow) error {
	if t.haveKnown && row.token != t.token {
		return stop(opOpen, "Restart the daemon: it then reads its positions anew",
			"subscription %s on the target was dropped and prepared again meanwhile", t.opts.Subscription)
	}
	if !t.haveKnown || row.decided == t.known || row.decided == t.tried {
		return nil
	}
	return stop(opOpen, "Restart the daemon: it then reads its positions anew",
		"another daemon has applied batches of subscription %s meanwhile: the last known here is %d of epoch %d, the target records %d of epoch %d",
		t.opts.Subscription, t.known.batch, t.known.epoch, row.decided.batch, row.decided.epoch)
}

// Init records the first positions of a new subscription, once.
func (t *Target) Init(ctx context.Context, streams []apply.StreamIdentity, positions []dtx.Position) error {
	const op = "record first positions"
	if !t.open {
		return errNotOpen(op)
	}
	if t.initialized {
		return stop(op, "Use another subscription name for a new copy", "subscription %s already has positions", t.opts.Subscription)
	}
	sorted := slices.Clone(positions)
	dtx.SortPositions(sorted)
	var contents, systems, slots, timelines []string
	for _, st := range streams {
		if !slices.ContainsFunc(sorted, func(p dtx.Position) bool { return p.Content == st.Content }) {
			return stop(op, "This is a fault of cbrepl", "no position for content %d", st.Content)
		}
		contents = append(contents, st.Content.String())
		systems = append(systems, st.SystemID)
		slots = append(slots, st.Slot)
		timelines = append(timelines, strconv.FormatInt(int64(st.Timeline), 10))
	}
	if len(streams) == 0 || len(slices.CompactFunc(slices.Clone(sorted), func(a, b dtx.Position) bool { return a.Content == b.Content })) != len(streams) || len(sorted) != len(streams) {
		return stop(op, "This is a fault of cbrepl", "%d streams with %d positions", len(streams), len(positions))
	}
	s := t.srv
	err := func() error {
		if err := s.simple(ctx, "BEGIN"); err != nil {
			return err
		}
		if _, err := s.query(ctx, `
			INSERT INTO cbrepl.stream (subscription, content, system_id, slot, timeline)
			SELECT $1::text, u.* FROM unnest($2::smallint[], $3::text[], $4::text[], $5::integer[]) u`,
			t.opts.Subscription, pgside.TextArray(contents), pgside.TextArray(systems), pgside.TextArray(slots), pgside.TextArray(timelines)); err != nil {
			return err
		}
		if err := faultinject.Point("cloudberry.init_before_commit"); err != nil {
			return err
		}
		c, l := pgside.AppendPositions(nil, nil, sorted)
		return s.simple(ctx, t.guarded("initialized = true, contents = '"+string(c)+"', lsns = '"+string(l)+"'", t.batch, "NOT initialized")+"; COMMIT")
	}()
	if err != nil {
		t.open = false
		t.rollback(ctx)
		if pgside.SQLState(err) == stateFenced {
			return t.fenced(op)
		}
		return fail(op, s.String(), err)
	}
	t.initialized, t.positions = true, sorted
	return nil
}
