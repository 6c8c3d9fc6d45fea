package shards

import (
	"context"
	"errors"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/dtx"
)

const decideStatement = "cbrepl_decide"

// decideSQL is the decision: one statement, committed by itself. It does nothing
// at all unless the epoch is this daemon's and the recorded batch is the one
// before; the first result tells. A gxid is never both dropped and added here:
// one statement must not touch a row twice.
const decideSQL = `
WITH d AS (
	UPDATE cbrepl.subscription
	SET batch = $3::bigint, batch_epoch = $2::bigint, decided_at = clock_timestamp(), shard_batches = $4::bigint[]
	WHERE name = $1::text AND epoch = $2::bigint AND batch = $3::bigint - 1
	RETURNING 1),
p AS (
	UPDATE cbrepl.stream s SET lsn = u.lsn
	FROM unnest($5::smallint[], $6::pg_lsn[]) u(content, lsn)
	WHERE s.subscription = $1::text AND s.content = u.content AND EXISTS (SELECT FROM d)),
x AS (
	DELETE FROM cbrepl.dedup
	WHERE subscription = $1::text AND gxid = ANY ($7::numeric[]) AND EXISTS (SELECT FROM d)),
a AS (
	INSERT INTO cbrepl.dedup (subscription, gxid, contents, lsns)
	SELECT $1::text, u.gxid, u.contents::smallint[], u.lsns::pg_lsn[]
	FROM unnest($8::numeric[], $9::text[], $10::text[]) u(gxid, contents, lsns)
	WHERE EXISTS (SELECT FROM d)
	ON CONFLICT (subscription, gxid) DO UPDATE SET contents = excluded.contents, lsns = excluded.lsns)
SELECT count(*) FROM d`

// decide commits the batch on the coordinator database. On error the batch is
// not decided and rolled back, unless the connection was lost on the way: then
// the next Open tells. The decision does not stop half-way when ctx ends.
func (t *Target) decide(ctx context.Context, b *dtx.Batch, touched []*node) error {
	if err := ctx.Err(); err != nil { // told to stop: not begun
		t.abandon(ctx)
		return retry(opCommit, "", "stopped before batch %d was decided", b.Seq)
	}
	dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.opts.DecideTimeout)
	defer cancel()
	res := t.co.conn.ExecPrepared(dctx, decideStatement, t.decideParams(b, touched), nil, nil).Read()
	switch {
	case res.Err == nil && len(res.Rows) == 1 && string(res.Rows[0][0]) == "1":
		return nil
	case res.Err == nil:
		t.abandon(ctx)
		return t.fenced(opCommit, t.co)
	}
	var pg *pgconn.PgError
	if errors.As(res.Err, &pg) && !t.co.conn.IsClosed() && t.co.conn.TxStatus() == 'I' {
		t.abandon(ctx) // the server answered and lives: it has not committed
		return fail(opCommit, t.co.String(), res.Err)
	}
	if pgconn.SafeToRetry(res.Err) {
		t.abandon(ctx) // nothing was sent
		return &dtx.Error{Op: opCommit, Class: dtx.ClassRetry, Msg: t.co.String(), Err: res.Err}
	}
	return &dtx.Error{
		Op: opCommit, Class: dtx.ClassRetry, Err: pgside.Clean(res.Err),
		Msg: "the connection to the " + t.co.String() + " was lost while batch " + strconv.FormatUint(b.Seq, 10) + " was being decided; the next open tells whether it was",
	}
}

// decideParams encodes the statement's parameters, as text.
func (t *Target) decideParams(b *dtx.Batch, touched []*node) [][]byte {
	batches := append([]uint64(nil), t.shardBatches...)
	for _, n := range touched {
		batches[n.index] = b.Seq
	}
	contents, lsns := pgside.AppendPositions(nil, nil, b.Positions)
	drop := newArray(len(b.DedupDrop))
	add := 0
	for _, g := range b.DedupDrop { // both lists rise in gxid
		for add < len(b.DedupAdd) && b.DedupAdd[add].GXID < g {
			add++
		}
		if add < len(b.DedupAdd) && b.DedupAdd[add].GXID == g {
			continue // replaced, not dropped
		}
		drop.uint(uint64(g))
	}
	gxids, pendingContents, pendingLSNs := newArray(len(b.DedupAdd)), newArray(len(b.DedupAdd)), newArray(len(b.DedupAdd))
	for i := range b.DedupAdd {
		e := &b.DedupAdd[i]
		gxids.uint(uint64(e.GXID))
		c, l := pgside.AppendPositions(nil, nil, e.Pending)
		pendingContents.quoted(c)
		pendingLSNs.quoted(l)
	}
	shardBatches := newArray(len(batches))
	for _, v := range batches {
		shardBatches.uint(v)
	}
	return [][]byte{
		[]byte(t.opts.Subscription),
		strconv.AppendUint(nil, t.epoch, 10),
		strconv.AppendUint(nil, b.Seq, 10),
		shardBatches.end(), contents, lsns, drop.end(), gxids.end(), pendingContents.end(), pendingLSNs.end(),
	}
}

// array builds an array literal of values that need no quotes, or of array
// literals in quotes.
type array struct{ b []byte }

func newArray(n int) *array { return &array{append(make([]byte, 0, 8+8*n), '{')} }

func (a *array) next() {
	if len(a.b) > 1 {
		a.b = append(a.b, ',')
	}
}

func (a *array) uint(v uint64) {
	a.next()
	a.b = strconv.AppendUint(a.b, v, 10)
}

// quoted adds a literal that holds neither quotes nor backslashes.
func (a *array) quoted(lit []byte) {
	a.next()
	a.b = append(append(append(a.b, '"'), lit...), '"')
}

func (a *array) end() []byte { return append(a.b, '}') }

// Init records the first positions of a new subscription, once.
func (t *Target) Init(ctx context.Context, streams []apply.StreamIdentity, positions []dtx.Position) error {
	const op = "record first positions"
	if !t.open {
		return errNotOpen(op)
	}
	if t.initialized {
		return stop(op, "Use another subscription name for a new copy", "subscription %s already has positions", t.opts.Subscription)
	}
	at := make(map[dtx.Content]dtx.LSN, len(positions))
	for _, p := range positions {
		at[p.Content] = p.LSN
	}
	if len(at) != len(positions) || len(at) != len(streams) || len(streams) == 0 {
		return stop(op, "This is a fault of cbrepl", "%d streams with %d positions", len(streams), len(positions))
	}
	var contents, lsns, systems, slots, timelines []string
	for _, s := range streams {
		lsn, ok := at[s.Content]
		if !ok {
			return stop(op, "This is a fault of cbrepl", "no position for content %d", s.Content)
		}
		contents = append(contents, s.Content.String())
		lsns = append(lsns, lsn.String())
		systems = append(systems, s.SystemID)
		slots = append(slots, s.Slot)
		timelines = append(timelines, strconv.FormatInt(int64(s.Timeline), 10))
	}
	if err := t.point("init_before_commit"); err != nil {
		return err
	}
	rows, err := t.co.query(ctx, `
		WITH d AS (
			UPDATE cbrepl.subscription SET initialized = true
			WHERE name = $1::text AND epoch = $2::bigint AND NOT initialized RETURNING 1),
		i AS (
			INSERT INTO cbrepl.stream (subscription, content, lsn, system_id, slot, timeline)
			SELECT $1::text, u.* FROM unnest($3::smallint[], $4::pg_lsn[], $5::text[], $6::text[], $7::integer[]) u
			WHERE EXISTS (SELECT FROM d))
		SELECT count(*) FROM d`,
		t.opts.Subscription, strconv.FormatUint(t.epoch, 10), pgside.TextArray(contents), pgside.TextArray(lsns), pgside.TextArray(systems), pgside.TextArray(slots), pgside.TextArray(timelines))
	if err != nil {
		t.open = false
		return fail(op, t.co.String(), err)
	}
	if string(rows[0][0]) != "1" {
		t.open = false
		return t.fenced(op, t.co)
	}
	t.initialized, t.positions = true, at
	return nil
}
