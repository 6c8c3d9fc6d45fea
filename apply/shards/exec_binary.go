package shards

import (
	"bytes"
	"context"
	"strings"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/dtx"
)

// copyBinary inserts rows in binary form.
//
// Such a COPY has the server trust the types of its sender: the bytes of an integer
// make a floating-point number just as well, or are refused as a fault of the sender.
// So before the first one of a transaction the table is locked, as COPY does it, and
// checked, which other statements leave to the end (pgside.Versions).
func (e *executor) copyBinary(ctx context.Context, n *node, op *apply.CopyOp) (int64, error) {
	if n.versions.Unchecked(op.Table) {
		lock := "LOCK TABLE ONLY " + pgside.TableName(op.Table) + " IN ROW EXCLUSIVE MODE"
		err := n.Exec(ctx, strings.Join(append([]string{lock}, n.versions.CheckTableSQL(op.Table)...), "; "))
		if altered := n.versions.Fault(opRows, n.String(), err); altered != nil {
			return 0, altered
		}
		if err != nil {
			return 0, fail(opRows, "", err)
		}
	}
	tag, err := n.Conn.CopyFrom(ctx, bytes.NewReader(op.Data), pgside.CopySQL(op.Table, op.Cols)+" WITH (FORMAT binary)")
	if err != nil {
		if s := pgside.SQLState(err); s == invalidBinary || s == protocolViolation {
			e.refused.Store(true)
			return 0, &dtx.Error{
				Op: opRows, Class: dtx.ClassRetry, Err: dataFault(err),
				Hint: dtx.ReportBug + ". Nothing is applied, and rows are sent as text from now on",
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
