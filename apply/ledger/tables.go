package ledger

import (
	"context"
	"encoding/json"
	"strconv"

	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

// RecordTables replaces the record of what is replicated, in one transaction that
// only this daemon can commit.
func (l *Ledger) RecordTables(ctx context.Context, tables []catalog.ReplicatedTable) error {
	const op = "record replicated tables"
	if !l.open {
		return ErrNotOpen(op)
	}
	cols := make([][]string, 6)
	for i := range tables {
		t := &tables[i]
		columns, err := json.Marshal(t.Columns)
		if err != nil {
			return l.srv.Fail(op, err)
		}
		for j, v := range []string{
			t.Content.String(), t.Name.Schema, t.Name.Table, strconv.FormatUint(uint64(t.OID), 10), string(rune(t.Identity)), string(columns),
		} {
			cols[j] = append(cols[j], v)
		}
	}
	err := l.srv.Transaction(ctx, op, func() error {
		if err := l.srv.Exec(ctx, l.Guarded("epoch = epoch", l.row.Decided.Batch, "true")); err != nil {
			return err
		}
		if _, err := l.srv.Query(ctx, `DELETE FROM cbrepl.replicated WHERE subscription = $1::text`, l.opts.Subscription); err != nil {
			return err
		}
		if len(tables) == 0 {
			return nil
		}
		_, err := l.srv.Query(ctx, `
			INSERT INTO cbrepl.replicated (subscription, content, schema_name, table_name, oid, identity, columns)
			SELECT $1::text, u.* FROM unnest($2::smallint[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[]) u`,
			l.opts.Subscription, pgside.TextArray(cols[0]), pgside.TextArray(cols[1]), pgside.TextArray(cols[2]),
			pgside.TextArray(cols[3]), pgside.TextArray(cols[4]), pgside.TextArray(cols[5]))
		return err
	})
	if pgside.SQLState(err) == StateFenced {
		l.open = false
		return l.Fenced(op, l.srv)
	}
	return err
}

// readTables reads the record of what is replicated.
func (l *Ledger) readTables(ctx context.Context) ([]catalog.ReplicatedTable, error) {
	rows, err := l.srv.Query(ctx, `SELECT content, schema_name, table_name, oid, identity, columns FROM cbrepl.replicated
		WHERE subscription = $1::text ORDER BY content, schema_name, table_name`, l.opts.Subscription)
	if err != nil {
		return nil, l.srv.Fail(OpOpen, err)
	}
	var out []catalog.ReplicatedTable
	for _, r := range rows {
		t := catalog.ReplicatedTable{
			Content: dtx.Content(pgside.Atoi(r[0])), Name: catalog.Name{Schema: string(r[1]), Table: string(r[2])}, OID: pgside.OID(r[3]),
		}
		if len(r[4]) == 1 {
			t.Identity = pgoutput.ReplicaIdentity(r[4][0])
		}
		if err := json.Unmarshal(r[5], &t.Columns); err != nil || t.Identity == 0 {
			return nil, pgside.Stop(OpOpen, editedHint, "cbrepl.replicated on the %s: table %s of content %s cannot be read", l.srv, t.Name, t.Content)
		}
		out = append(out, t)
	}
	return out, nil
}
