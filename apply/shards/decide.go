package shards

import (
	"context"
	"errors"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
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
	SET batch = $3::bigint, batch_epoch = $2::bigint, decided_at = clock_timestamp(), shard_batches = $4::bigint[],
	    contents = $5::smallint[], lsns = $6::pg_lsn[]
	WHERE name = $1::text AND epoch = $2::bigint AND batch = $3::bigint - 1
	RETURNING 1),
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
func (t *Target) decide(ctx context.Context, b *dtx.Batch, shardBatches []uint64) error {
	if err := ctx.Err(); err != nil { // told to stop: not begun
		t.abandon(ctx)
		return pgside.Retry(opCommit, "", "stopped before batch %d was decided", b.Seq)
	}
	dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.opts.DecideTimeout)
	defer cancel()
	res := t.co.Conn.ExecPrepared(dctx, decideStatement, t.decideParams(b, shardBatches), nil, nil).Read()
	switch {
	case res.Err == nil && len(res.Rows) == 1 && string(res.Rows[0][0]) == "1":
		return nil
	case res.Err == nil:
		t.abandon(ctx)
		return t.ledger.Fenced(opCommit, t.co.Session)
	}
	var pg *pgconn.PgError
	if errors.As(res.Err, &pg) && !t.co.Conn.IsClosed() && t.co.Conn.TxStatus() == 'I' {
		t.abandon(ctx) // the server answered and lives: it has not committed
		return t.co.Fail(opCommit, res.Err)
	}
	if pgconn.SafeToRetry(res.Err) {
		t.abandon(ctx) // nothing was sent
		return &dtx.Error{Op: opCommit, Class: dtx.ClassRetry, Msg: t.co.String(), Err: res.Err}
	}
	return &dtx.Error{
		Op: opCommit, Class: dtx.ClassRetry, Err: pgside.Clean(res.Err, false),
		Msg: "the connection to the " + t.co.String() + " was lost while batch " + strconv.FormatUint(b.Seq, 10) + " was being decided; the next open tells whether it was",
	}
}

// decideParams encodes the statement's parameters, as text.
func (t *Target) decideParams(b *dtx.Batch, shardBatches []uint64) [][]byte {
	contents, lsns := pgside.AppendPositions(nil, nil, t.ledger.Moved(b))
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
	batches := newArray(len(shardBatches))
	for _, v := range shardBatches {
		batches.uint(v)
	}
	return [][]byte{
		[]byte(t.opts.Subscription),
		strconv.AppendUint(nil, t.ledger.Epoch(), 10),
		strconv.AppendUint(nil, b.Seq, 10),
		batches.end(), contents, lsns, drop.end(), gxids.end(), pendingContents.end(), pendingLSNs.end(),
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

// Init records where a new subscription begins, once.
func (t *Target) Init(ctx context.Context, b apply.Beginning) error {
	return t.ledger.Init(ctx, b)
}

// RecordTables replaces the record of the source's tables whose rows are taken.
func (t *Target) RecordTables(ctx context.Context, tables []catalog.ReplicatedTable) error {
	return t.ledger.RecordTables(ctx, tables)
}
