package ledger

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"

	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/dtx"
)

// RecordTables replaces the record of what is replicated, in one transaction that
// only this daemon can commit.
func (l *Ledger) RecordTables(ctx context.Context, tables []catalog.ReplicatedTable) error {
	const op = "record replicated tables"
	if !l.open {
		return ErrNotOpen(op)
	}
	err := l.srv.Transaction(ctx, op, func() error {
		if err := l.srv.Exec(ctx, l.Guarded("epoch = epoch", l.row.Decided.Batch, "true")); err != nil {
			return err
		}
		if _, err := l.srv.Query(ctx, `DELETE FROM cbrepl.replicated WHERE subscription = $1::text`, l.opts.Subscription); err != nil {
			return err
		}
		return l.insertTables(ctx, tables)
	})
	if pgside.SQLState(err) == StateFenced {
		l.open = false
		return l.Fenced(op, l.srv)
	}
	return err
}

// insertTables adds to the record, inside a transaction.
func (l *Ledger) insertTables(ctx context.Context, tables []catalog.ReplicatedTable) error {
	if len(tables) == 0 {
		return nil
	}
	cols := make([][]string, 6)
	for i := range tables {
		t := &tables[i]
		published, err := json.Marshal(t.Published)
		if err != nil {
			return err
		}
		for j, v := range []string{
			t.Content.String(), strconv.FormatUint(uint64(t.OID), 10), t.Name.Schema, t.Name.Table, string(published), strconv.FormatBool(t.Forgotten),
		} {
			cols[j] = append(cols[j], v)
		}
	}
	_, err := l.srv.Query(ctx, `
		INSERT INTO cbrepl.replicated (subscription, content, oid, schema_name, table_name, published, forgotten)
		SELECT $1::text, u.* FROM unnest($2::smallint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::boolean[]) u`,
		l.opts.Subscription, pgside.TextArray(cols[0]), pgside.TextArray(cols[1]), pgside.TextArray(cols[2]),
		pgside.TextArray(cols[3]), pgside.TextArray(cols[4]), pgside.TextArray(cols[5]))
	return err
}

// Taken returns the tables whose rows are taken: of those in the options, the ones
// that the record names, where only those are wanted.
func (l *Ledger) Taken(recorded []catalog.ReplicatedTable) []catalog.PublishedTable {
	if !l.opts.OnlyRecorded {
		return l.opts.Tables
	}
	return slices.DeleteFunc(slices.Clone(l.opts.Tables), func(t catalog.PublishedTable) bool {
		return !catalog.IsTaken(recorded, t.QualifiedName())
	})
}

// ReadTables reads the record of what is replicated.
func (l *Ledger) ReadTables(ctx context.Context) ([]catalog.ReplicatedTable, error) {
	rows, err := l.srv.Query(ctx, `SELECT content, oid, schema_name, table_name, published, forgotten FROM cbrepl.replicated
		WHERE subscription = $1::text ORDER BY content, schema_name, table_name, oid`, l.opts.Subscription)
	if err != nil {
		return nil, l.srv.Fail(OpOpen, err)
	}
	var out []catalog.ReplicatedTable
	for _, r := range rows {
		t := catalog.ReplicatedTable{
			Content: dtx.Content(pgside.Atoi(r[0])), OID: pgside.OID(r[1]), Name: catalog.Name{Schema: string(r[2]), Table: string(r[3])},
			Forgotten: string(r[5]) == "t",
		}
		if err := json.Unmarshal(r[4], &t.Published); err != nil {
			return nil, pgside.Stop(OpOpen, editedHint, "cbrepl.replicated on the %s: table %s of content %s cannot be read", l.srv, t.Name, t.Content)
		}
		out = append(out, t)
	}
	return out, nil
}
