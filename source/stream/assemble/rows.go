package assemble

import (
	"context"

	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/store"
)

// policyTable is where a source without gp_distribution_policy keeps policies.
// It is on the coordinator, and a publication of all tables holds it.
const policyTable = "cbrepl.distribution_policy"

// relation is a table's schema as it was sent at one point of the stream.
type relation struct {
	id      uint32
	version store.RelVersion // 0 on the coordinator, which spools nothing
	name    string
	seq     uint64 // rises with every relation message of the connection
}

// relation takes a schema. The spool gives equal ones one version.
func (a *Assembler) relation(lsn dtx.LSN, body []byte) error {
	rel, err := pgoutput.ParseRelation(body)
	if err != nil {
		return a.malformed(lsn, pgoutput.TypeRelation, err)
	}
	var v store.RelVersion
	if a.spool != nil {
		if v, err = a.spool.PutRelation(body); err != nil {
			return err
		}
	}
	a.relSeq++
	r := &relation{id: rel.ID, version: v, name: rel.String(), seq: a.relSeq}
	t := a.open()
	if t != nil {
		t.last = nil // its schema may have changed
	}
	if a.block == nil {
		a.relations[r.id] = r
		return nil
	}
	if t.overlay == nil {
		t.overlay = map[uint32]*relation{}
	}
	t.overlay[r.id] = r
	return nil
}

// schema returns the table's schema in force for t.
func (a *Assembler) schema(t *txn, id uint32) *relation {
	if t.streamed {
		return t.overlay[id]
	}
	return a.relations[id]
}

// adoptSchemas makes the schemas of a streamed transaction those in force, except
// where a newer one was sent.
func (a *Assembler) adoptSchemas(t *txn) {
	for id, r := range t.overlay {
		if g := a.relations[id]; g == nil || g.seq < r.seq {
			a.relations[id] = r
		}
	}
}

// spoolTxn returns t's place in the spool, making it at the first row.
func (a *Assembler) spoolTxn(t *txn) *store.Txn {
	if t.spool == nil {
		t.spool = a.spool.Begin(t.streamed)
	}
	return t.spool
}

// waitForSpace waits at the start of a transaction while the spool is full.
func (a *Assembler) waitForSpace(ctx context.Context) error {
	if a.spool == nil {
		return nil
	}
	return a.spool.Wait(ctx)
}

func (a *Assembler) row(ctx context.Context, lsn dtx.LSN, typ byte, xid dtx.XID, body, msg []byte) error {
	t := a.open()
	if t == nil {
		return a.violation(lsn, typ, "a row outside any transaction")
	}
	id, err := pgoutput.RelationID(body)
	if err != nil {
		return a.malformed(lsn, typ, err)
	}
	r := t.last
	if r == nil || r.id != id {
		if r = a.schema(t, id); r == nil {
			return a.violation(lsn, typ, "a row of relation %d, whose schema was not sent", id)
		}
		a.touch(t, lsn, xid, r)
	}
	sp := t.spool
	if sp == nil {
		if a.spool == nil {
			a.refuseRow(t, lsn, xid, r)
			return nil
		}
		sp = a.spoolTxn(t)
	}
	if err := sp.Append(ctx, r.version, msg); err != nil {
		return err
	}
	t.count(xid)
	a.rowsUncounted++
	return nil
}

func (a *Assembler) truncate(ctx context.Context, lsn dtx.LSN, xid dtx.XID, body, msg []byte) error {
	const typ = pgoutput.TypeTruncate
	t := a.open()
	if t == nil {
		return a.violation(lsn, typ, "a row outside any transaction")
	}
	row, err := pgoutput.ParseRow(typ, body)
	if err != nil {
		return a.malformed(lsn, typ, err)
	}
	a.truncated = a.truncated[:0]
	for _, id := range row.Truncated {
		r := a.schema(t, id)
		if r == nil {
			return a.violation(lsn, typ, "TRUNCATE of relation %d, whose schema was not sent", id)
		}
		a.touch(t, lsn, xid, r)
		a.truncated = append(a.truncated, r.version)
	}
	if a.spool == nil {
		// The coordinator of a cluster runs TRUNCATE on its own, empty relation, too.
		// What it empties is said by the segments' streams.
		return nil
	}
	if err := a.spoolTxn(t).AppendTruncate(ctx, a.truncated, msg); err != nil {
		return err
	}
	t.count(xid)
	a.rowsUncounted++
	return nil
}

// touch notes the table of a row, and refuses one that has taken the name of
// another.
func (a *Assembler) touch(t *txn, lsn dtx.LSN, xid dtx.XID, r *relation) {
	t.touch(r)
	if a.o.Forgotten[r.id] {
		return
	}
	switch was, seen := a.tables[r.name]; {
	case !seen:
		if t.fresh == nil {
			t.fresh = map[string]uint32{}
		}
		t.fresh[r.name] = r.id // known once t commits
	case was != r.id:
		e := a.errorAt(lsn, "The rows of the old table are still on the target: let go of it (`cbrepl table forget`), copy the new one and take it (`cbrepl table take`)",
			"another table has this name now: it was dropped and made anew, or swapped (its OID was %d and is %d)", was, r.id)
		e.Relation = r.name
		t.mark(xid, e)
		t.last = nil // a row of another subtransaction is to be looked at, too
	}
}

// refuseRow takes a row change on the coordinator, which must have none: rows are
// on segments. The table of policies is cbrepl's own.
func (a *Assembler) refuseRow(t *txn, lsn dtx.LSN, xid dtx.XID, r *relation) {
	if r.name == policyTable {
		return
	}
	if a.o.LocalChanges == Ignore {
		t.count(xid)
		return
	}
	e := a.errorAt(lsn, "Undo the change there, then start with source.local_changes: ignore, which drops such changes",
		"a row of this table was changed on the coordinator itself, but rows belong on segments")
	e.Relation = r.name
	t.mark(xid, e)
}
