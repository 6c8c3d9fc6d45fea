// Package pgotest builds pgoutput messages as a server sends them, for tests of
// decoders and for virtual streams. It never decodes.
package pgotest

import (
	"encoding/binary"

	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

var be = binary.BigEndian

// Begin builds 'B'.
func Begin(final dtx.LSN, at dtx.PGTime, xid dtx.XID) []byte {
	b := be.AppendUint64([]byte{pgoutput.TypeBegin}, uint64(final))
	b = be.AppendUint64(b, uint64(at))
	return be.AppendUint32(b, uint32(xid))
}

func appendCommit(b []byte, commit, end dtx.LSN, at dtx.PGTime) []byte {
	b = append(b, 0)
	b = be.AppendUint64(b, uint64(commit))
	b = be.AppendUint64(b, uint64(end))
	return be.AppendUint64(b, uint64(at))
}

// Commit builds 'C'.
func Commit(commit, end dtx.LSN, at dtx.PGTime) []byte {
	return appendCommit([]byte{pgoutput.TypeCommit}, commit, end, at)
}

// StreamStart builds 'S'.
func StreamStart(xid dtx.XID, first bool) []byte {
	b := be.AppendUint32([]byte{pgoutput.TypeStreamStart}, uint32(xid))
	if first {
		return append(b, 1)
	}
	return append(b, 0)
}

// StreamStop builds 'E'.
func StreamStop() []byte { return []byte{pgoutput.TypeStreamStop} }

// StreamCommit builds 'c'.
func StreamCommit(xid dtx.XID, commit, end dtx.LSN, at dtx.PGTime) []byte {
	return appendCommit(be.AppendUint32([]byte{pgoutput.TypeStreamCommit}, uint32(xid)), commit, end, at)
}

// StreamAbort builds 'A'.
func StreamAbort(xid, sub dtx.XID) []byte {
	return be.AppendUint32(be.AppendUint32([]byte{pgoutput.TypeStreamAbort}, uint32(xid)), uint32(sub))
}

// Prepare builds 'b', 'P' or 'p'.
func Prepare(typ byte, prepare, end dtx.LSN, at dtx.PGTime, xid dtx.XID, gid string) []byte {
	b := []byte{typ}
	if typ != pgoutput.TypeBeginPrepare {
		b = append(b, 0)
	}
	b = be.AppendUint64(b, uint64(prepare))
	b = be.AppendUint64(b, uint64(end))
	b = be.AppendUint64(b, uint64(at))
	b = be.AppendUint32(b, uint32(xid))
	return append(append(b, gid...), 0)
}

// CommitPrepared builds 'K'.
func CommitPrepared(commit, end dtx.LSN, at dtx.PGTime, xid dtx.XID, gid string) []byte {
	return Prepare(pgoutput.TypeCommitPrepared, commit, end, at, xid, gid)
}

// RollbackPrepared builds 'r'.
func RollbackPrepared(prepareEnd, end dtx.LSN, prepared, at dtx.PGTime, xid dtx.XID, gid string) []byte {
	b := be.AppendUint64([]byte{pgoutput.TypeRollbackPrep, 0}, uint64(prepareEnd))
	b = be.AppendUint64(b, uint64(end))
	b = be.AppendUint64(b, uint64(prepared))
	b = be.AppendUint64(b, uint64(at))
	b = be.AppendUint32(b, uint32(xid))
	return append(append(b, gid...), 0)
}

// head starts a message that carries a transaction id inside streamed blocks
// (xid 0: outside).
func head(typ byte, xid dtx.XID) []byte {
	if xid == 0 {
		return []byte{typ}
	}
	return be.AppendUint32([]byte{typ}, uint32(xid))
}

// Relation builds 'R'; xid is 0 outside streamed blocks.
func Relation(xid dtx.XID, r *pgoutput.Relation) []byte {
	b := be.AppendUint32(head(pgoutput.TypeRelation, xid), r.ID)
	b = append(append(b, r.Schema...), 0)
	b = append(append(b, r.Name...), 0)
	b = append(b, byte(r.Identity))
	b = be.AppendUint16(b, uint16(len(r.Columns)))
	for _, c := range r.Columns {
		if c.Key {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
		b = append(append(b, c.Name...), 0)
		b = be.AppendUint32(b, c.TypeOID)
		b = be.AppendUint32(b, uint32(c.TypeMod))
	}
	return b
}

// Text is a value in text form.
func Text(s string) pgoutput.Value {
	return pgoutput.Value{Kind: pgoutput.ValueText, Data: []byte(s)}
}

// Null is the NULL value.
func Null() pgoutput.Value { return pgoutput.Value{Kind: pgoutput.ValueNull} }

// Unchanged is a TOASTed value that was not sent.
func Unchanged() pgoutput.Value { return pgoutput.Value{Kind: pgoutput.ValueUnchanged} }

func appendTuple(b []byte, vs []pgoutput.Value) []byte {
	b = be.AppendUint16(b, uint16(len(vs)))
	for _, v := range vs {
		b = append(b, v.Kind)
		if v.Kind == pgoutput.ValueText || v.Kind == pgoutput.ValueBinary {
			b = be.AppendUint32(b, uint32(len(v.Data)))
			b = append(b, v.Data...)
		}
	}
	return b
}

// Insert builds 'I'; xid is 0 outside streamed blocks.
func Insert(xid dtx.XID, rel uint32, row ...pgoutput.Value) []byte {
	b := be.AppendUint32(head(pgoutput.TypeInsert, xid), rel)
	return appendTuple(append(b, 'N'), row)
}

// Update builds 'U'; oldKind is 0 (no old tuple), 'K' or 'O'.
func Update(xid dtx.XID, rel uint32, oldKind byte, old, row []pgoutput.Value) []byte {
	b := be.AppendUint32(head(pgoutput.TypeUpdate, xid), rel)
	if oldKind != 0 {
		b = appendTuple(append(b, oldKind), old)
	}
	return appendTuple(append(b, 'N'), row)
}

// Delete builds 'D'; oldKind is 'K' or 'O'.
func Delete(xid dtx.XID, rel uint32, oldKind byte, old ...pgoutput.Value) []byte {
	b := be.AppendUint32(head(pgoutput.TypeDelete, xid), rel)
	return appendTuple(append(b, oldKind), old)
}

// Truncate builds 'T'.
func Truncate(xid dtx.XID, opts byte, rels ...uint32) []byte {
	b := be.AppendUint32(head(pgoutput.TypeTruncate, xid), uint32(len(rels)))
	b = append(b, opts)
	for _, r := range rels {
		b = be.AppendUint32(b, r)
	}
	return b
}

// Message builds 'M'.
func Message(xid dtx.XID, transactional bool, lsn dtx.LSN, prefix string, content []byte) []byte {
	b := head(pgoutput.TypeMessage, xid)
	if transactional {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	b = be.AppendUint64(b, uint64(lsn))
	b = append(append(b, prefix...), 0)
	b = be.AppendUint32(b, uint32(len(content)))
	return append(b, content...)
}
