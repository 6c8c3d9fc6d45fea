package coordinator

import (
	"context"

	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/source/stream/feed"
)

// twoPhase handles the messages of transactions decoded at PREPARE. What they
// carry counts at COMMIT PREPARED.
func (a *assembler) twoPhase(ctx context.Context, out *feed.Out, lsn dtx.LSN, typ byte, body []byte) error {
	var err error
	switch typ {
	case pgoutput.TypeBeginPrepare:
		var m pgoutput.Prepare
		if m, err = pgoutput.ParseBeginPrepare(body); err == nil {
			if err := a.begin(lsn, typ, m.XID); err != nil {
				return err
			}
			a.cur.twoPhase, a.cur.gid = true, m.GID
			return nil
		}
	case pgoutput.TypePrepare, pgoutput.TypeStreamPrepare:
		var m pgoutput.Prepare
		if m, err = pgoutput.ParsePrepare(body); err == nil {
			return a.prepare(ctx, out, lsn, typ, m)
		}
	case pgoutput.TypeCommitPrepared:
		var m pgoutput.CommitPrepared
		if m, err = pgoutput.ParseCommitPrepared(body); err == nil {
			if t := a.open(); t != nil {
				return a.violation(lsn, typ, "transaction %d is still open", t.xid)
			}
			t := a.prepared[m.GID]
			if t == nil { // prepared before the start, and applied (see package segment)
				return out.Position(ctx, m.EndLSN)
			}
			delete(a.prepared, m.GID)
			return a.finish(ctx, out, t, pgoutput.Commit{CommitLSN: m.CommitLSN, EndLSN: m.EndLSN, CommitTime: m.CommitTime})
		}
	case pgoutput.TypeRollbackPrep:
		var m pgoutput.RollbackPrepared
		if m, err = pgoutput.ParseRollbackPrepared(body); err == nil {
			t := a.prepared[m.GID]
			if t == nil { // prepared before this stream began
				return out.Position(ctx, m.EndLSN)
			}
			delete(a.prepared, m.GID)
			a.tell()
			return out.Event(ctx, dtx.Event{Kind: dtx.EventUnhold, LSN: m.EndLSN, Hold: t.hold})
		}
	}
	return a.violation(lsn, typ, "%v", err)
}

// prepare holds the stream before a prepared transaction. One without part
// message is named by its gid when that is a gxid; another gid makes it an
// ordinary transaction of the coordinator's database.
func (a *assembler) prepare(ctx context.Context, out *feed.Out, lsn dtx.LSN, typ byte, m pgoutput.Prepare) error {
	t := a.cur
	if typ == pgoutput.TypeStreamPrepare {
		t = a.streams[m.XID]
		if a.open() != nil {
			t = nil
		}
		delete(a.streams, m.XID)
	} else if t != nil && (!t.twoPhase || t.gid != m.GID || a.block != nil) {
		t = nil
	}
	if t == nil || a.prepared[m.GID] != nil {
		return a.violation(lsn, typ, "no transaction is open that it could end, or gid %q is prepared already", m.GID)
	}
	a.cur = nil
	if m.GID == "" {
		return errorAt(m.EndLSN, "Use a slot without two_phase on the coordinator",
			"server version %s sent a prepared transaction without a gid", a.version)
	}
	if !t.has {
		if id, err := a.carrier.GID(m.GID); err == nil {
			t.id, t.has = id, true
		}
	}
	a.holds++
	t.twoPhase, t.gid, t.hold = true, m.GID, a.holds
	a.prepared[m.GID] = t
	a.tell()
	if err := out.Event(ctx, dtx.Event{Kind: dtx.EventHold, LSN: m.PrepareLSN, Hold: t.hold}); err != nil {
		return err
	}
	return out.Advance(m.EndLSN)
}
