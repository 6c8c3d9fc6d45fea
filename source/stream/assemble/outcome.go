package assemble

import (
	"context"
	"fmt"
	"maps"
	"time"

	"cbrepl/dtx"
	"cbrepl/faultinject"
	"cbrepl/logkey"
	"cbrepl/pgoutput"
	"cbrepl/source/stream/feed"
)

// faultSpooled is between a part's rows in the spool and its event.
const faultSpooled = "segment.spooled"

func (a *Assembler) begin(ctx context.Context, lsn dtx.LSN, body []byte) error {
	const typ = pgoutput.TypeBegin
	m, err := pgoutput.ParseBegin(body)
	if err != nil {
		return a.malformed(lsn, typ, err)
	}
	if a.open() != nil {
		return a.violation(lsn, typ, "transaction %d is still open", a.open().xid)
	}
	a.cur = &txn{xid: m.XID}
	if a.ownRecord != nil {
		a.cur.records, a.ownRecord = []dtx.CommitRecord{*a.ownRecord}, nil
	}
	return a.waitForSpace(ctx)
}

func (a *Assembler) commit(ctx context.Context, out *feed.Out, lsn dtx.LSN, body []byte) error {
	const typ = pgoutput.TypeCommit
	m, err := pgoutput.ParseCommit(body)
	if err != nil {
		return a.malformed(lsn, typ, err)
	}
	t := a.cur
	if t == nil || a.block != nil || t.twoPhase {
		return a.violation(lsn, typ, "no transaction is open that it could end")
	}
	a.cur = nil
	return a.finish(ctx, out, t, m.EndLSN, m.CommitTime)
}

func (a *Assembler) streamStart(ctx context.Context, lsn dtx.LSN, body []byte) error {
	const typ = pgoutput.TypeStreamStart
	m, err := pgoutput.ParseStreamStart(body)
	if err != nil {
		return a.malformed(lsn, typ, err)
	}
	if a.open() != nil {
		return a.violation(lsn, typ, "transaction %d is still open", a.open().xid)
	}
	t := a.streams[m.XID]
	if m.First == (t != nil) {
		return a.violation(lsn, typ, "transaction %d: first block is %v, but it was seen before is %v", m.XID, m.First, t != nil)
	}
	if t == nil {
		t = &txn{xid: m.XID, streamed: true}
		a.streams[m.XID] = t
	}
	a.block = t
	return a.waitForSpace(ctx)
}

func (a *Assembler) streamCommit(ctx context.Context, out *feed.Out, lsn dtx.LSN, body []byte) error {
	const typ = pgoutput.TypeStreamCommit
	m, err := pgoutput.ParseStreamCommit(body)
	if err != nil {
		return a.malformed(lsn, typ, err)
	}
	t, err := a.endStream(lsn, typ, m.XID)
	if err != nil {
		return err
	}
	return a.finish(ctx, out, t, m.EndLSN, m.CommitTime)
}

// endStream takes a streamed transaction whose outcome has come out of the open
// ones.
func (a *Assembler) endStream(lsn dtx.LSN, typ byte, xid dtx.XID) (*txn, error) {
	t := a.streams[xid]
	if t == nil || a.open() != nil {
		return nil, a.violation(lsn, typ, "transaction %d is not being streamed, or another one is open", xid)
	}
	delete(a.streams, xid)
	return t, nil
}

// streamAbort rolls back a streamed transaction or a subtransaction of it. One
// that is not known changes nothing: servers send aborts of transactions that
// they never streamed.
func (a *Assembler) streamAbort(lsn dtx.LSN, body []byte) error {
	m, err := pgoutput.ParseStreamAbort(body)
	if err != nil {
		return a.malformed(lsn, pgoutput.TypeStreamAbort, err)
	}
	t := a.streams[m.XID]
	if t == nil {
		return nil
	}
	if m.SubXID != m.XID {
		t.abortSub(m.SubXID)
		return nil
	}
	if a.block == t {
		a.block = nil
	}
	delete(a.streams, m.XID)
	a.publishCounters()
	return t.drop()
}

// finish reports a committed transaction.
func (a *Assembler) finish(ctx context.Context, out *feed.Out, t *txn, end dtx.LSN, at dtx.PGTime) error {
	if t.streamed && !t.twoPhase {
		a.adoptSchemas(t)
	}
	t.endRun()
	if len(t.faults) > 0 {
		e := t.faults[0].err
		if t.named {
			e.GXID = t.id.GXID
		}
		return e
	}
	if a.observer != nil && len(t.records) > 0 && (!t.named || t.id.GXID != t.records[0].GXID) {
		return a.violation(end, pgoutput.TypeCommit, "the commit record of gxid %d says that the coordinator has a part of it, which does not follow", t.records[0].GXID)
	}
	maps.Copy(a.tables, t.fresh)
	var err error
	if t.named {
		err = a.finishPart(ctx, out, t, end, at)
	} else {
		err = a.finishUnnamed(ctx, out, t, end)
	}
	if err != nil {
		return err
	}
	for i, rec := range t.records {
		rec.EndLSN = end
		a.n.records.Add(1)
		ev := dtx.Event{Kind: dtx.EventRecord, LSN: end, More: i < len(t.records)-1, Record: rec}
		if err := out.Event(ctx, ev); err != nil {
			return err
		}
	}
	return nil
}

// finishPart reports a transaction that is a part of a dtx.
func (a *Assembler) finishPart(ctx context.Context, out *feed.Out, t *txn, end dtx.LSN, at dtx.PGTime) error {
	part := dtx.Part{GXID: t.id.GXID, Kind: t.id.Kind, Content: a.o.Content, EndLSN: end, CommitTime: at}
	if a.spool != nil {
		// Not synced: whoever confirms positions of a spool that is the only copy
		// syncs it first, once for many parts.
		var err error
		if part, err = a.spoolTxn(t).Commit(ctx, part); err != nil {
			return err
		}
		if err := faultinject.Point(faultSpooled); err != nil {
			return err
		}
	} else if t.alive() {
		a.countIgnored(t, end) // rows on the coordinator
	}
	a.n.parts.Add(1)
	a.publishCounters()
	return out.Event(ctx, dtx.Event{Kind: dtx.EventPart, LSN: end, More: len(t.records) > 0, Hold: t.hold, Part: part})
}

// finishUnnamed ends a transaction that is no part of a dtx: without rows it is
// nothing but a position.
func (a *Assembler) finishUnnamed(ctx context.Context, out *feed.Out, t *txn, end dtx.LSN) error {
	if t.alive() {
		if a.o.LocalChanges == Stop {
			return a.localChange(t, end)
		}
		a.countIgnored(t, end)
	}
	return a.unhold(ctx, out, t, end, len(t.records) > 0)
}

// localChange is the fault of rows that belong to no dtx.
func (a *Assembler) localChange(t *txn, end dtx.LSN) error {
	prepared := ""
	if t.twoPhase {
		prepared = fmt.Sprintf(" (prepared as %q on server version %s)", t.gid, a.version)
	}
	return a.errorAt(end, "Undo the change there or make it on the target too, then start with source.local_changes: ignore, which drops such transactions",
		"local transaction %d%s changed %d rows of %s and names no distributed transaction: somebody wrote to the segment directly",
		t.xid, prepared, t.rows-t.dead, t.tableList())
}

// ignoreLogEvery is the least time between two log lines about ignored changes.
const ignoreLogEvery = 10 * time.Second

func (a *Assembler) countIgnored(t *txn, end dtx.LSN) {
	a.n.ignored.Add(1)
	a.unlogged++
	now := time.Now()
	if now.Sub(a.loggedAt) < ignoreLogEvery {
		return
	}
	a.log.Warn("dropped changes that belong to no distributed transaction",
		logkey.Transactions, a.unlogged, logkey.Tables, t.tableList(), logkey.Rows, t.rows-t.dead, logkey.LSN, end.String())
	a.loggedAt, a.unlogged = now, 0
}
