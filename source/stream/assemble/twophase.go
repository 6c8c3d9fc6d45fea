package assemble

import (
	"context"

	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/source/stream/feed"
)

func (a *Assembler) beginPrepare(ctx context.Context, lsn dtx.LSN, body []byte) error {
	const typ = pgoutput.TypeBeginPrepare
	m, err := pgoutput.ParseBeginPrepare(body)
	if err != nil {
		return a.malformed(lsn, typ, err)
	}
	if a.open() != nil {
		return a.violation(lsn, typ, "transaction %d is still open", a.open().xid)
	}
	a.cur = &txn{xid: m.XID, gid: m.GID, twoPhase: true}
	return a.waitForSpace(ctx)
}

func (a *Assembler) prepare(ctx context.Context, out *feed.Out, lsn dtx.LSN, body []byte) error {
	const typ = pgoutput.TypePrepare
	m, err := pgoutput.ParsePrepare(body)
	if err != nil {
		return a.malformed(lsn, typ, err)
	}
	t := a.cur
	if a.open() == nil {
		// Newer servers send PREPARE alone of a transaction that changed nothing.
		t = &txn{xid: m.XID, gid: m.GID, twoPhase: true}
	}
	if t == nil || !t.twoPhase || a.block != nil || t.gid != m.GID {
		return a.violation(lsn, typ, "no transaction is open that it could end")
	}
	a.cur = nil
	return a.hold(ctx, out, t, m)
}

func (a *Assembler) streamPrepare(ctx context.Context, out *feed.Out, lsn dtx.LSN, body []byte) error {
	const typ = pgoutput.TypeStreamPrepare
	m, err := pgoutput.ParsePrepare(body)
	if err != nil {
		return a.malformed(lsn, typ, err)
	}
	t, err := a.endStream(lsn, typ, m.XID)
	if err != nil {
		return err
	}
	a.adoptSchemas(t)
	t.gid, t.twoPhase = m.GID, true
	return a.hold(ctx, out, t, m)
}

// hold keeps a prepared transaction until its outcome. It is named by a part
// message or, without one, by its gid. One that neither names was prepared by
// somebody else: its rows, if it has any, are looked at when it commits. An empty
// gid comes from servers that do not log it: no outcome could be matched to it.
func (a *Assembler) hold(ctx context.Context, out *feed.Out, t *txn, m pgoutput.Prepare) error {
	switch {
	case m.GID == "":
		return a.errorAt(m.EndLSN, "Use a slot without two_phase, and part messages",
			"server version %s sent a prepared transaction without a gid, so it cannot be matched to a distributed one", a.version)
	case a.prepared[m.GID] != nil:
		return a.violation(m.EndLSN, pgoutput.TypePrepare, "gid %q is prepared already", m.GID)
	}
	if !t.named {
		if id, err := a.o.Carrier.GID(m.GID); err == nil {
			t.id, t.named = id, true
		}
	}
	t.endRun()
	if !t.named && !t.alive() && len(t.faults) == 0 && len(t.records) == 0 {
		// Whatever becomes of it, there is nothing to report.
		a.publishCounters()
		if err := t.drop(); err != nil {
			return err
		}
		return out.Position(ctx, m.EndLSN)
	}
	if m.EndLSN <= out.Last() {
		// Prepared while the slot was made, before its first position: the server sends
		// such a transaction when it commits, and again after every reconnect before that.
		a.prepared[m.GID] = t
		a.publishCounters()
		return nil
	}
	a.holds++
	t.hold = a.holds
	if a.spool != nil {
		sp := a.spoolTxn(t) // also without rows: its id names the hold
		if err := sp.Prepare(ctx); err != nil {
			return err
		}
		t.hold = sp.ID()
	}
	a.prepared[m.GID] = t
	a.publishCounters()
	if err := out.Event(ctx, dtx.Event{Kind: dtx.EventHold, LSN: m.PrepareLSN, Hold: t.hold, Part: dtx.Part{GXID: t.id.GXID}}); err != nil {
		return err
	}
	return out.Advance(m.EndLSN)
}

func (a *Assembler) commitPrepared(ctx context.Context, out *feed.Out, lsn dtx.LSN, body []byte) error {
	const typ = pgoutput.TypeCommitPrepared
	m, err := pgoutput.ParseCommitPrepared(body)
	if err != nil {
		return a.malformed(lsn, typ, err)
	}
	if a.open() != nil {
		return a.violation(lsn, typ, "transaction %d is still open", a.open().xid)
	}
	t := a.prepared[m.GID]
	if t == nil {
		return a.committedAlone(ctx, out, m)
	}
	delete(a.prepared, m.GID)
	return a.finish(ctx, out, t, m.EndLSN, m.CommitTime)
}

// committedAlone reports a COMMIT PREPARED without its PREPARE, as a part without
// rows. Either it is one: a server sends no PREPARE of a transaction that changed
// nothing decodable, a participant that wrote nothing or only locked rows. Or its
// PREPARE lies before the start: a position beyond a PREPARE is recorded only
// once that transaction is applied, so it is in the dedup set, which drops this
// part. A gid that names no dtx is a position: such a transaction is named by a
// message, with which its PREPARE is sent.
func (a *Assembler) committedAlone(ctx context.Context, out *feed.Out, m pgoutput.CommitPrepared) error {
	t := &txn{xid: m.XID}
	if id, err := a.o.Carrier.GID(m.GID); err != nil || t.setIdentity(id) != nil {
		return out.Position(ctx, m.EndLSN)
	}
	return a.finish(ctx, out, t, m.EndLSN, m.CommitTime)
}

func (a *Assembler) rollbackPrepared(ctx context.Context, out *feed.Out, lsn dtx.LSN, body []byte) error {
	m, err := pgoutput.ParseRollbackPrepared(body)
	if err != nil {
		return a.malformed(lsn, pgoutput.TypeRollbackPrep, err)
	}
	t := a.prepared[m.GID]
	if t == nil { // prepared before this stream began
		return out.Position(ctx, m.EndLSN)
	}
	delete(a.prepared, m.GID)
	return a.unhold(ctx, out, t, m.EndLSN, false)
}

// unhold gives a prepared transaction up. more: another event of the same LSN
// follows.
func (a *Assembler) unhold(ctx context.Context, out *feed.Out, t *txn, end dtx.LSN, more bool) error {
	a.publishCounters()
	if err := t.drop(); err != nil {
		return err
	}
	if t.hold == 0 {
		if more {
			return nil
		}
		return out.Position(ctx, end)
	}
	return out.Event(ctx, dtx.Event{Kind: dtx.EventUnhold, LSN: end, More: more, Hold: t.hold})
}
