package shards

import (
	"bytes"
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgbinary"
	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/dtx"
)

// A COPY in binary format has the server trust the types of its sender: the bytes
// of an integer make a floating-point number just as well. The engine's types are
// those of the catalogue when the target was opened. So before the first such COPY
// of a transaction the table is locked, as COPY does it, and its types compared:
// they cannot change until the transaction ends.

// checkedTypes are the tables whose types were compared in transaction tx of a
// shard.
type checkedTypes struct {
	tx     uint64
	tables []*catalog.Table
}

// copyBinary inserts rows in binary form.
func (e *executor) copyBinary(ctx context.Context, seg dtx.Content, conn *pgconn.PgConn, tx uint64, op *apply.CopyOp) (int64, error) {
	c := &e.types[seg]
	if c.tx != tx {
		c.tx, c.tables = tx, c.tables[:0]
	}
	if !slices.Contains(c.tables, op.Table) {
		if err := compareTypes(ctx, conn, op); err != nil {
			return 0, err
		}
		c.tables = append(c.tables, op.Table)
	}
	tag, err := conn.CopyFrom(ctx, bytes.NewReader(op.Data), pgside.CopySQL(op.Table, op.Cols)+" WITH (FORMAT binary)")
	if err != nil {
		if s := pgside.SQLState(err); s == invalidBinary || s == protocolViolation {
			e.refused.Store(true)
			return 0, &dtx.Error{
				Op: opRows, Class: dtx.ClassRetry, Err: dataFault(err),
				Hint: "This is a bug in cbrepl; please report it. Nothing is applied, and rows are sent as text from now on",
			}
		}
		return 0, dataFault(err)
	}
	return tag.RowsAffected(), nil
}

// SQLSTATEs of rows whose binary form the server cannot read.
const (
	invalidBinary     = "22P03"
	protocolViolation = "08P01"
)

// compareTypes locks op's table and fails when a column has another type than the
// engine took it for. All columns count: a later COPY may have more than op.
func compareTypes(ctx context.Context, conn *pgconn.PgConn, op *apply.CopyOp) error {
	table := pgside.TableName(op.Table)
	res, err := conn.Exec(ctx, "LOCK TABLE ONLY "+table+` IN ROW EXCLUSIVE MODE;
		SELECT attname, atttypid FROM pg_catalog.pg_attribute
		WHERE attrelid = `+pgside.QuoteLiteral(table)+`::pg_catalog.regclass AND attnum > 0 AND NOT attisdropped`).ReadAll()
	if err != nil {
		return dataFault(err)
	}
	types := make(map[string]uint32, len(op.Table.Columns))
	for _, r := range res[1].Rows {
		types[string(r[0])] = pgside.OID(r[1])
	}
	for i := range op.Table.Columns {
		// Other types are not sent in binary form, and those that are not built in have
		// an OID of their own on every shard.
		col := &op.Table.Columns[i]
		if col.Type == nil || pgbinary.ForType(col.Type.OID) == nil || types[col.Name] == col.Type.OID {
			continue
		}
		return pgside.Retry(opRows, "This passes: the catalogue is read again and the batch tried once more",
			"column %q of table %s had type %s when the target was opened, and has the type of OID %d now", col.Name, op.Table, col.Type.Name, types[col.Name])
	}
	return nil
}
