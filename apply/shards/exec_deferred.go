package shards

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/dtx"
)

// A deferrable unique constraint is checked by a trigger of its own, at the end
// of the statement or transaction. As a replica the session fires no triggers,
// so the server would take duplicates without a word. After inserts into a table
// with such constraints they are therefore looked for. Updates never change a
// unique column (apply.UpdateOp.Same).

// deferrableKeys lists the columns of each deferrable unique constraint that
// the operation writes.
func deferrableKeys(op *apply.CopyOp) [][]int {
	var out [][]int
	for _, u := range op.Table.Uniques {
		if !u.Deferrable || u.Exclusion {
			continue
		}
		ok := len(u.Columns) > 0
		for _, c := range u.Columns {
			ok = ok && slices.Contains(op.Cols, c)
		}
		if ok {
			out = append(out, u.Columns)
		}
	}
	return out
}

// checkDeferred looks for rows that share a deferrable key with one just
// inserted.
func checkDeferred(ctx context.Context, conn *pgconn.PgConn, op *apply.CopyOp, keys [][]int) error {
	vals := make([]*apply.Vec, len(op.Cols))
	for i := range vals {
		vals[i] = new(apply.Vec)
	}
	pgside.ParseCopy(op.Data, vals)
	for _, key := range keys {
		set := apply.Set{Cols: key}
		for _, c := range key {
			set.Vals = append(set.Vals, vals[slices.Index(op.Cols, c)])
		}
		var q query
		q.WriteString("SELECT v.o FROM " + pgside.Only(op.Table) + " AS t JOIN ")
		q.unnest(namedSet{"k", set.Vals})
		q.WriteString(" ON ")
		q.keysMatch(op.Table, set)
		q.WriteString(" GROUP BY v.o HAVING count(*) > 1 ORDER BY v.o LIMIT 1")
		res := q.run(ctx, conn)
		if res.Err != nil {
			return dataFault(res.Err)
		}
		if len(res.Rows) > 0 {
			return &apply.DataError{
				Row: int(pgside.Atoi(res.Rows[0][0])) - 1, Duplicate: true,
				Err: &dtx.Error{Op: opRows, Class: dtx.ClassStop, Msg: "a duplicate of a deferrable unique constraint"},
			}
		}
	}
	return nil
}

// insertOneByOne inserts the rows of a COPY that violate no constraint, each
// under a savepoint: ON CONFLICT does not work with deferrable constraints.
func insertOneByOne(ctx context.Context, conn *pgconn.PgConn, op *apply.CopyOp, keys [][]int) (int64, error) {
	var n int64
	for line := range bytes.Lines(op.Data) {
		one := &apply.CopyOp{Table: op.Table, Cols: op.Cols, Data: line, Rows: 1}
		if err := conn.Exec(ctx, "SAVEPOINT cbrepl_row").Close(); err != nil {
			return n, dataFault(err)
		}
		_, err := copyRows(ctx, conn, one)
		if err == nil {
			err = checkDeferred(ctx, conn, one, keys)
		}
		end := "RELEASE SAVEPOINT cbrepl_row"
		var de *apply.DataError
		switch {
		case err == nil:
			n++
		case errors.As(err, &de) && de.Duplicate:
			end = "ROLLBACK TO SAVEPOINT cbrepl_row; RELEASE SAVEPOINT cbrepl_row"
		default:
			return n, err
		}
		if err := conn.Exec(ctx, end).Close(); err != nil {
			return n, dataFault(err)
		}
	}
	return n, nil
}
