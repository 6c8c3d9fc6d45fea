package shards

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

// executor is the apply.Backend of stock PostgreSQL shards. A prepared
// transaction must not have touched a temporary table, so there is no staging:
// inserts come by COPY, everything else as text arrays that the server unnests
// and casts. Sessions run as replica (no triggers, rules or foreign keys).
type executor struct {
	segments []dtx.Content
	// conn returns a shard inside the batch's transaction.
	conn connector
	// prepared are the statements of each shard's connection.
	prepared []statements
	// refused is set when a server did not take the binary form of rows.
	refused *atomic.Bool
}

// connector opens a shard's transaction on first use, and notes the tables that it
// is about to touch. It is called from that shard's goroutine.
type connector func(ctx context.Context, seg dtx.Content, tables ...*catalog.Table) (*node, error)

var _ apply.Backend = (*executor)(nil)

// newBackend returns the backend over n shards.
func newBackend(n int, conn connector, refused *atomic.Bool) apply.Backend {
	e := &executor{conn: conn, prepared: make([]statements, n), refused: refused}
	for i := range n {
		e.segments = append(e.segments, dtx.Content(i))
	}
	return e
}

// Segments lists the shards.
func (e *executor) Segments() []dtx.Content { return e.segments }

// opRows names the step in errors.
const opRows = "apply rows"

// Copy inserts rows by COPY. Where duplicates are skipped, COPY is tried first:
// they are the exception.
func (e *executor) Copy(ctx context.Context, seg dtx.Content, op *apply.CopyOp) (done apply.Inserted, err error) {
	done.Skipped = -1
	n, err := e.conn(ctx, seg, op.Table)
	if err != nil {
		return done, err
	}
	switch {
	case op.Binary:
		done.Rows, err = e.copyBinary(ctx, n, op)
	case !op.SkipDuplicates:
		done.Rows, err = copyIn(ctx, n.Conn, op)
	default:
		return copyNew(ctx, n.Conn, op)
	}
	return done, err
}

// copyNew inserts the rows that violate no unique or exclusion constraint.
func copyNew(ctx context.Context, conn *pgconn.PgConn, op *apply.CopyOp) (done apply.Inserted, err error) {
	done.Skipped = -1
	if err := conn.Exec(ctx, "SAVEPOINT cbrepl_copy").Close(); err != nil {
		return done, dataFault(err)
	}
	done.Rows, err = copyIn(ctx, conn, op)
	var de *apply.DataError
	if errors.As(err, &de) && de.Duplicate {
		done.Skipped = de.Row
		if err := conn.Exec(ctx, "ROLLBACK TO SAVEPOINT cbrepl_copy").Close(); err != nil {
			return done, dataFault(err)
		}
		if keys := deferrableKeys(op); len(keys) > 0 {
			done.Rows, err = insertOneByOne(ctx, conn, op, keys)
		} else {
			done.Rows, err = insertNew(ctx, conn, op)
		}
	}
	if err != nil {
		return done, err
	}
	if err := conn.Exec(ctx, "RELEASE SAVEPOINT cbrepl_copy").Close(); err != nil {
		return done, dataFault(err)
	}
	return done, nil
}

// copyIn inserts all rows, or fails.
func copyIn(ctx context.Context, conn *pgconn.PgConn, op *apply.CopyOp) (int64, error) {
	n, err := copyRows(ctx, conn, op)
	if err != nil {
		return n, err
	}
	if keys := deferrableKeys(op); len(keys) > 0 {
		err = checkDeferred(ctx, conn, op, keys)
	}
	return n, err
}

func copyRows(ctx context.Context, conn *pgconn.PgConn, op *apply.CopyOp) (int64, error) {
	if len(op.Cols) == 0 { // rows of defaults only; COPY cannot say that
		tag, err := conn.Exec(ctx, "INSERT INTO "+pgside.TableName(op.Table)+" SELECT FROM generate_series(1, "+
			strconv.FormatInt(op.Rows, 10)+")").ReadAll()
		if err != nil {
			return 0, dataFault(err)
		}
		return tag[0].CommandTag.RowsAffected(), nil
	}
	tag, err := conn.CopyFrom(ctx, bytes.NewReader(op.Data), pgside.CopySQL(op.Table, op.Cols))
	if err != nil {
		return 0, dataFault(err)
	}
	return tag.RowsAffected(), nil
}

// insertNew inserts the rows of a COPY that violate no unique or exclusion
// constraint.
func insertNew(ctx context.Context, conn *pgconn.PgConn, op *apply.CopyOp) (int64, error) {
	vals := make([]*apply.Vec, len(op.Cols))
	for i := range vals {
		vals[i] = new(apply.Vec)
	}
	pgside.ParseCopy(op.Data, vals)
	var q query
	q.insertNew(op, vals)
	res := q.run(ctx, conn)
	if res.Err != nil {
		return 0, dataFault(res.Err)
	}
	return res.CommandTag.RowsAffected(), nil
}

// Delete deletes rows by key.
func (e *executor) Delete(ctx context.Context, seg dtx.Content, op *apply.DeleteOp) (apply.Found, error) {
	var q query
	fetched := op.Ordinals || len(op.Fetch) > 0
	q.deleteByKey(op, fetched)
	return e.run(ctx, seg, op.Table, &q, op.N, fetched, len(op.Fetch))
}

// Update updates rows by key.
func (e *executor) Update(ctx context.Context, seg dtx.Content, op *apply.UpdateOp) (apply.Found, error) {
	var q query
	q.updateByKey(op)
	return e.run(ctx, seg, op.Table, &q, op.N, false, 0)
}

// DeleteImages deletes rows by their whole contents.
func (e *executor) DeleteImages(ctx context.Context, seg dtx.Content, op *apply.ImageOp) (apply.Found, error) {
	var q query
	fetched := op.Ordinals || len(op.Fetch) > 0
	q.deleteImages(op, fetched)
	return e.run(ctx, seg, op.Table, &q, op.N, fetched, len(op.Fetch))
}

// run executes q, on table t, and reads its answer: ordinals with fetched columns, or counts
// with the ordinals that were missing.
func (e *executor) run(ctx context.Context, seg dtx.Content, t *catalog.Table, q *query, rows int, fetched bool, columns int) (apply.Found, error) {
	n, err := e.conn(ctx, seg, t)
	if err != nil {
		return apply.Found{}, err
	}
	conn := n.Conn
	if err := e.prepared[seg].plan(ctx, conn, n.begun, q); err != nil {
		return apply.Found{}, dataFault(err)
	}
	var res *pgconn.Result
	if fetched { // its columns' types may change under a prepared statement
		res = q.run(ctx, conn)
	} else {
		res = e.prepared[seg].run(ctx, conn, q, rows)
	}
	if res.Err != nil {
		return apply.Found{}, dataFault(res.Err)
	}
	if fetched {
		return readFetched(res, columns), nil
	}
	return readCounts(res), nil
}

func readFetched(res *pgconn.Result, columns int) apply.Found {
	found := apply.Found{
		Rows: int64(len(res.Rows)), Ordinals: make([]int, 0, len(res.Rows)),
		Values: make([]pgoutput.Value, 0, columns*len(res.Rows)),
	}
	for _, row := range res.Rows {
		found.Ordinals = append(found.Ordinals, int(pgside.Atoi(row[0]))-1)
		for _, v := range row[1:] {
			if v == nil {
				found.Values = append(found.Values, pgoutput.Value{Kind: pgoutput.ValueNull})
			} else {
				found.Values = append(found.Values, pgoutput.Value{Kind: pgoutput.ValueText, Data: v})
			}
		}
	}
	return found
}

// readCounts reads a row of: rows affected, rows missing, ordinals of missing
// ones as text joined by commas.
func readCounts(res *pgconn.Result) apply.Found {
	if len(res.Rows) == 0 {
		return apply.Found{Rows: res.CommandTag.RowsAffected()}
	}
	row := res.Rows[0]
	found := apply.Found{Rows: pgside.Atoi(row[0])}
	if len(row) > 1 {
		found.MissingRows = pgside.Atoi(row[1])
		for _, f := range pgside.SplitList(row[2]) {
			found.Missing = append(found.Missing, int(pgside.Atoi([]byte(f)))-1)
		}
	}
	return found
}

// Truncate empties tables.
func (e *executor) Truncate(ctx context.Context, seg dtx.Content, tables []*catalog.Table, restartIdentity bool) error {
	n, err := e.conn(ctx, seg, tables...)
	if err != nil {
		return err
	}
	if err := n.Conn.Exec(ctx, pgside.TruncateSQL(tables, restartIdentity)).Close(); err != nil {
		return fail(opRows, "", err) // no rows are in it
	}
	return nil
}

// KeepAlive runs an empty query.
func (e *executor) KeepAlive(ctx context.Context, seg dtx.Content) error {
	n, err := e.conn(ctx, seg)
	if err != nil {
		return err
	}
	if err := n.Conn.Exec(ctx, ";").Close(); err != nil {
		return fail(opRows, "", err)
	}
	return nil
}
