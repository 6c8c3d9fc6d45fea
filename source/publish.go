package source

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/dtx"
	"cbrepl/source/stream/repl"
)

// Published is a table of a publication of a Greenplum 6 source.
type Published struct {
	Schema, Name string
	OID          uint32
	// ViaRoot reports that the changes of a partitioned table are sent as the root's.
	ViaRoot bool
	// Notes say what keeps it from being replicated as it is, and what to do.
	Notes []string
}

// createPublicationTable makes the list. It is distributed as any table, so that
// the server's own tools (gpcheckcat, pg_dump) see nothing special in it.
const createPublicationTable = `CREATE TABLE ` + publicationTable + ` (publication text NOT NULL, schema_name text NOT NULL,
 table_name text NOT NULL, relid oid NOT NULL, via_root boolean NOT NULL, PRIMARY KEY (publication, schema_name, table_name))
 DISTRIBUTED BY (publication, schema_name, table_name)`

// publishSession runs do in a transaction on the coordinator of a Greenplum 6.
func publishSession(ctx context.Context, op, dsn string, do func(pgx.Tx) error) error {
	conn, err := connect(ctx, Node{Content: dtx.Coordinator, DSN: dsn})
	if err != nil {
		return err
	}
	defer closeConn(conn)
	cat, err := readCatalogue(ctx, conn)
	if err == nil && cat.kind != Greenplum6 {
		err = &dtx.Error{
			Op: op, Content: dtx.AtContent(dtx.Coordinator), Class: dtx.ClassStop,
			Msg:  "the server is not the coordinator of a Greenplum 6 cluster",
			Hint: "On other sources use CREATE PUBLICATION and ALTER PUBLICATION on every node",
		}
	}
	if err == nil {
		err = pgx.BeginFunc(ctx, conn, do)
	}
	return repl.Fault(op, dtx.Coordinator, "", "", err)
}

// Publish puts tables into a publication, which it makes when there is none.
// Tables are named as SQL names them, with their schema. All or none are taken.
func Publish(ctx context.Context, dsn, publication string, tables []string, viaRoot bool) error {
	const op = "publish tables"
	return publishSession(ctx, op, dsn, func(tx pgx.Tx) error {
		var there bool
		if err := tx.QueryRow(ctx, "SELECT to_regclass('"+publicationTable+"') IS NOT NULL").Scan(&there); err != nil {
			return err
		}
		if !there {
			for _, sql := range []string{"CREATE SCHEMA IF NOT EXISTS " + policySchema, createPublicationTable} {
				if _, err := tx.Exec(ctx, sql); err != nil {
					return err
				}
			}
		}
		var others int
		if err := tx.QueryRow(ctx, "SELECT count(*)::int FROM "+publicationTable+" WHERE publication = $1 AND via_root <> $2", publication, viaRoot).Scan(&others); err != nil {
			return err
		}
		if others > 0 {
			return &dtx.Error{
				Op: op, Class: dtx.ClassStop,
				Msg:  fmt.Sprintf("publication %s has tables that were published with --via-root %t", pgx.Identifier{publication}.Sanitize(), !viaRoot),
				Hint: "All tables of a publication are published in one way: leave --via-root as it was, or use another publication",
			}
		}
		for _, t := range tables {
			schema, name, oid, err := findTable(ctx, tx, op, t)
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "DELETE FROM "+publicationTable+" WHERE publication = $1 AND schema_name = $2 AND table_name = $3", publication, schema, name); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "INSERT INTO "+publicationTable+" VALUES ($1, $2, $3, $4, $5)", publication, schema, name, oid, viaRoot); err != nil {
				return err
			}
		}
		return nil
	})
}

// findTable looks a table up by its name in SQL.
func findTable(ctx context.Context, tx pgx.Tx, op, table string) (schema, name string, oid uint32, err error) {
	var kind string
	err = tx.QueryRow(ctx, `SELECT n.nspname, c.relname, c.oid, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = $1::text::regclass`, table).Scan(&schema, &name, &oid, &kind)
	var pe *pgconn.PgError
	e := &dtx.Error{Op: op, Relation: table, Class: dtx.ClassStop}
	switch {
	case errors.As(err, &pe) && (pe.Code == "42P01" || pe.Code == "3F000" || pe.Code == "42602"):
		e.Msg, e.Hint = "there is no such table", "Name it with its schema: sales.orders"
	case err != nil:
		return "", "", 0, err
	case kind != "r":
		e.Msg = "it is not a table"
	case schema == policySchema:
		e.Msg = "it is cbrepl's own table"
	default:
		return schema, name, oid, nil
	}
	return "", "", 0, e
}

// Unpublish takes tables out of a publication. A table that was dropped is named
// as it was called.
func Unpublish(ctx context.Context, dsn, publication string, tables []string) error {
	const op = "unpublish tables"
	return publishSession(ctx, op, dsn, func(tx pgx.Tx) error {
		for _, t := range tables {
			tag, err := tx.Exec(ctx, "DELETE FROM "+publicationTable+` WHERE publication = $1
 AND $2 IN (schema_name || '.' || table_name, quote_ident(schema_name) || '.' || quote_ident(table_name))`, publication, t)
			if err != nil {
				return err
			}
			if tag.RowsAffected() == 0 {
				return &dtx.Error{
					Op: op, Relation: t, Class: dtx.ClassStop, Msg: fmt.Sprintf("publication %s does not hold it", pgx.Identifier{publication}.Sanitize()),
					Hint: "cbrepl source list shows what it holds",
				}
			}
		}
		return nil
	})
}

// ListPublished lists a publication's tables, with what is wrong with them.
func ListPublished(ctx context.Context, dsn, publication string) ([]Published, error) {
	conn, err := connect(ctx, Node{Content: dtx.Coordinator, DSN: dsn})
	if err != nil {
		return nil, err
	}
	defer closeConn(conn)
	l, err := readListed(ctx, dsn, conn, publication)
	if err != nil {
		return nil, repl.Fault("list published tables", dtx.Coordinator, "", "", err)
	}
	out := make([]Published, 0, len(l.entries))
	for i := range l.entries {
		e := &l.entries[i]
		p := Published{Schema: e.schema, Name: e.name, OID: e.oid, ViaRoot: l.viaRoot}
		if f := e.fault(); f != nil {
			p.Notes = append(p.Notes, f.Found+". "+f.Remedy)
		}
		for _, t := range l.other {
			if t.named(e.String()) {
				p.Notes = append(p.Notes, fmt.Sprintf("%s is %s: its changes are not in the stream. Name it in source.copy_only",
					t.String(), notDecoded(t.relkind, t.relstorage, "")))
			}
		}
		for _, t := range l.heap {
			if t.named(e.String()) && !t.identified() {
				p.Notes = append(p.Notes, fmt.Sprintf("%s has no replica identity: an UPDATE or DELETE of it stops the subscription. Give it a primary key, or run ALTER TABLE ... REPLICA IDENTITY FULL", t.String()))
			}
		}
		out = append(out, p)
	}
	return out, nil
}

// identified reports whether an UPDATE of the table names the row.
func (t *nodeTable) identified() bool {
	for _, c := range t.Columns {
		if c.Key {
			return true
		}
	}
	return false
}
