package ledger

import (
	"context"
	"strconv"
	"time"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
)

// timeFormat is how times are written; the session's time zone is UTC.
const timeFormat = "2006-01-02 15:04:05.999999"

// RecordCopies replaces the records of the first copies of the given tables, in one
// transaction that only this process can commit.
func (l *Ledger) RecordCopies(ctx context.Context, copies []apply.TableCopy) error {
	const op = "record first copies"
	if !l.open {
		return ErrNotOpen(op)
	}
	cols := make([][]string, 9)
	for i := range copies {
		c := &copies[i]
		contents, lsns := pgside.AppendPositions(nil, nil, c.Cut.Positions)
		for j, v := range []string{
			c.Table.Schema, c.Table.Table, string(c.State), string(contents), string(lsns),
			strconv.FormatInt(c.Rows, 10), strconv.FormatInt(c.Bytes, 10), printTime(c.StartedAt), printTime(c.FinishedAt),
		} {
			cols[j] = append(cols[j], v)
		}
	}
	args := []string{l.opts.Subscription}
	for _, c := range cols {
		args = append(args, pgside.TextArray(c))
	}
	err := l.srv.Transaction(ctx, op, func() error {
		if err := l.srv.Exec(ctx, l.Guarded("epoch = epoch", l.row.Decided.Batch, "true")); err != nil {
			return err
		}
		if _, err := l.srv.Query(ctx, `
			DELETE FROM cbrepl.copy c USING unnest($2::text[], $3::text[]) u(schema_name, table_name)
			WHERE c.subscription = $1::text AND c.schema_name = u.schema_name AND c.table_name = u.table_name`, args[:3]...); err != nil {
			return err
		}
		_, err := l.srv.Query(ctx, `
			INSERT INTO cbrepl.copy (subscription, schema_name, table_name, state, contents, lsns, rows, bytes, started_at, finished_at)
			SELECT $1::text, u.s, u.t, u.state, u.c::smallint[], u.l::pg_lsn[], u.rows::bigint, u.bytes::bigint,
			       nullif(u.started, '')::timestamptz, nullif(u.finished, '')::timestamptz
			FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[])
			     u(s, t, state, c, l, rows, bytes, started, finished)`, args...)
		if err != nil {
			return err
		}
		return l.point("copies_before_commit")
	})
	if pgside.SQLState(err) == StateFenced {
		l.open = false
		return l.Fenced(op, l.srv)
	}
	return err
}

func printTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(timeFormat)
}

// readCopies reads the records of the first copies.
func (l *Ledger) readCopies(ctx context.Context) ([]apply.TableCopy, error) {
	rows, err := l.srv.Query(ctx, `
		SELECT schema_name, table_name, state, array_to_string(contents, ','), array_to_string(lsns, ','), rows, bytes,
		       coalesce((started_at AT TIME ZONE 'UTC')::text, ''), coalesce((finished_at AT TIME ZONE 'UTC')::text, '')
		FROM cbrepl.copy WHERE subscription = $1::text ORDER BY schema_name, table_name`, l.opts.Subscription)
	if err != nil {
		return nil, l.srv.Fail(OpOpen, err)
	}
	var out []apply.TableCopy
	for _, r := range rows {
		c := apply.TableCopy{
			Table: catalog.Name{Schema: string(r[0]), Table: string(r[1])}, State: apply.CopyState(r[2]),
			Rows: pgside.Atoi(r[5]), Bytes: pgside.Atoi(r[6]),
		}
		var ok bool
		if c.Cut.Positions, ok = pgside.ParsePositions(r[3], r[4]); !ok || c.State == apply.Copied && len(c.Cut.Positions) == 0 {
			return nil, pgside.Stop(OpOpen, editedHint, "cbrepl.copy on the %s: the cut of table %s cannot be read", l.srv, c.Table)
		}
		if len(c.Cut.Positions) == 0 {
			c.Cut.Positions = nil
		}
		// They serve reports only: one that cannot be read is zero.
		c.StartedAt, _ = time.Parse(timeFormat, string(r[7]))
		c.FinishedAt, _ = time.Parse(timeFormat, string(r[8]))
		out = append(out, c)
	}
	return out, nil
}
