package segment

import (
	"context"
	"fmt"
	"time"

	"cbrepl/dtx"
	"cbrepl/faultinject"
	"cbrepl/pgoutput"
	"cbrepl/source/stream/feed"
)

// faultSpooled is between a part's rows in the spool and its event.
const faultSpooled = "segment.spooled"

func (a *assembler) begin(ctx context.Context, lsn dtx.LSN, body []byte) error {
	const typ = pgoutput.TypeBegin
	m, err := pgoutput.ParseBegin(body)
	if err != nil {
		return a.malformed(lsn, typ, err)
	}
	if a.open() != nil {
		return a.violation(lsn, typ, "transaction %d is still open", a.open().xid)
	}
	a.cur = &txn{xid: m.XID}
	return a.spool.Wait(ctx)
}

func (a *assembler) commit(ctx context.Context, out *feed.Out, lsn dtx.LSN, body []byte) error {
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

func (a *assembler) streamStart(ctx context.Context, lsn dtx.LSN, body []byte) error {
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
	return a.spool.Wait(ctx)
}

func (a *assembler) streamCommit(ctx context.Context, out *feed.Out, lsn dtx.LSN, body []byte) error {
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
func (a *assembler) endStream(lsn dtx.LSN, typ byte, xid dtx.XID) (*txn, error) {
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
func (a *assembler) streamAbort(lsn dtx.LSN, body []byte) error {
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
	a.tell()
	return t.drop()
}

func (a *assembler) beginPrepare(ctx context.Context, lsn dtx.LSN, body []byte) error {
	const typ = pgoutput.TypeBeginPrepare
	m, err := pgoutput.ParseBeginPrepare(body)
	if err != nil {
		return a.malformed(lsn, typ, err)
	}
	if a.open() != nil {
		return a.violation(lsn, typ, "transaction %d is still open", a.open().xid)
	}
	a.cur = &txn{xid: m.XID, gid: m.GID, twoPhase: true}
	return a.spool.Wait(ctx)
}

func (a *assembler) prepare(ctx context.Context, out *feed.Out, lsn dtx.LSN, body []byte) error {
	const typ = pgoutput.TypePrepare
	m, err := pgoutput.ParsePrepare(body)
	if err != nil {
		return a.malformed(lsn, typ, err)
	}
	t := a.cur
	if t == nil || !t.twoPhase || a.block != nil || t.gid != m.GID {
		return a.violation(lsn, typ, "no transaction is open that it could end")
	}
	a.cur = nil
	return a.hold(ctx, out, t, m)
}

func (a *assembler) streamPrepare(ctx context.Context, out *feed.Out, lsn dtx.LSN, body []byte) error {
	const typ = pgoutput.TypeStreamPrepare
	m, err := pgoutput.ParsePrepare(body)
	if err != nil {
		return a.malformed(lsn, typ, err)
	}
	t, err := a.endStream(lsn, typ, m.XID)
	if err != nil {
		return err
	}
	a.merge(t)
	t.gid, t.twoPhase = m.GID, true
	return a.hold(ctx, out, t, m)
}

// hold keeps a prepared transaction until its outcome. It is named by a part
// message or, without one, by its gid. An empty gid comes from servers that do
// not log it: no outcome could be matched to it.
func (a *assembler) hold(ctx context.Context, out *feed.Out, t *txn, m pgoutput.Prepare) error {
	if m.GID == "" || !t.has && t.fault == nil {
		id, err := a.carrier.GID(m.GID)
		if err == nil {
			err = t.name(id)
		}
		switch {
		case err == nil:
		case m.GID != "" && a.local == Ignore: // somebody's own prepared transaction
		default:
			return &dtx.Error{
				Op: "read prepared transaction", Content: dtx.AtContent(a.content), LSN: m.EndLSN, Class: dtx.ClassStop, Err: err,
				Msg:  fmt.Sprintf("server version %s sent a prepared transaction that cannot be matched to a distributed one", a.version),
				Hint: "Use a slot without two_phase and part messages, or prepare with the gxid as gid",
			}
		}
	}
	if a.prepared[m.GID] != nil {
		return a.violation(m.EndLSN, pgoutput.TypePrepare, "gid %q is prepared already", m.GID)
	}
	sp := a.spooled(t) // also without rows: its id names the hold
	if err := sp.Prepare(ctx, m.GID, m.PrepareLSN); err != nil {
		return err
	}
	a.prepared[m.GID] = t
	a.tell()
	err := out.Event(ctx, dtx.Event{Kind: dtx.EventHold, LSN: m.PrepareLSN, Hold: sp.ID()})
	if err != nil {
		return err
	}
	return out.Advance(m.EndLSN)
}

func (a *assembler) commitPrepared(ctx context.Context, out *feed.Out, lsn dtx.LSN, body []byte) error {
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
func (a *assembler) committedAlone(ctx context.Context, out *feed.Out, m pgoutput.CommitPrepared) error {
	t := &txn{xid: m.XID}
	if id, err := a.carrier.GID(m.GID); err != nil || t.name(id) != nil {
		return out.Position(ctx, m.EndLSN)
	}
	return a.finish(ctx, out, t, m.EndLSN, m.CommitTime)
}

func (a *assembler) rollbackPrepared(ctx context.Context, out *feed.Out, lsn dtx.LSN, body []byte) error {
	m, err := pgoutput.ParseRollbackPrepared(body)
	if err != nil {
		return a.malformed(lsn, pgoutput.TypeRollbackPrep, err)
	}
	t := a.prepared[m.GID]
	if t == nil { // prepared before this stream began
		return out.Position(ctx, m.EndLSN)
	}
	delete(a.prepared, m.GID)
	return a.unhold(ctx, out, t, m.EndLSN)
}

// unhold gives a prepared transaction up.
func (a *assembler) unhold(ctx context.Context, out *feed.Out, t *txn, end dtx.LSN) error {
	a.tell()
	id := t.spool.ID()
	if err := t.drop(); err != nil {
		return err
	}
	return out.Event(ctx, dtx.Event{Kind: dtx.EventUnhold, LSN: end, Hold: id})
}

// finish reports a committed transaction that ends at end.
func (a *assembler) finish(ctx context.Context, out *feed.Out, t *txn, end dtx.LSN, at dtx.PGTime) error {
	if t.streamed && !t.twoPhase {
		a.merge(t)
	}
	t.endRun()
	if t.fault != nil {
		t.fault.Content = dtx.AtContent(a.content)
		if t.has {
			t.fault.GXID = t.id.GXID
		}
		return t.fault
	}
	if !t.has {
		if t.alive() {
			if a.local == Stop {
				return a.localChange(t, end)
			}
			a.ignored(t, end)
		}
		if t.twoPhase {
			return a.unhold(ctx, out, t, end)
		}
		a.tell()
		if err := t.drop(); err != nil {
			return err
		}
		return out.Position(ctx, end)
	}
	// Not synced: whoever confirms positions of a spool that is the only copy syncs
	// it first, once for many parts.
	sp := a.spooled(t)
	part, err := sp.CommitNoSync(ctx, dtx.Part{
		GXID: t.id.GXID, Kind: t.id.Kind, Content: a.content, EndLSN: end, CommitTime: at,
	})
	if err != nil {
		return err
	}
	ev := dtx.Event{Kind: dtx.EventPart, LSN: end, Part: part}
	if t.twoPhase {
		ev.Hold = sp.ID()
	}
	if err := faultinject.Point(faultSpooled); err != nil {
		return err
	}
	a.n.parts.Add(1)
	a.tell()
	return out.Event(ctx, ev)
}

// merge makes the schemas of a streamed transaction those in force, except
// where a newer one was sent.
func (a *assembler) merge(t *txn) {
	for id, r := range t.overlay {
		if g := a.relations[id]; g == nil || g.seq < r.seq {
			a.relations[id] = r
		}
	}
}

// localChange is the fault of rows that belong to no dtx.
func (a *assembler) localChange(t *txn, end dtx.LSN) error {
	return &dtx.Error{
		Op: "read stream", Content: dtx.AtContent(a.content), LSN: end, Class: dtx.ClassStop,
		Msg: fmt.Sprintf("local transaction %d changed %d rows of %s and names no distributed transaction: somebody wrote to the segment directly",
			t.xid, t.rows-t.dead, t.tableList()),
		Hint: "Undo the change there or make it on the target too, then start with local_changes: ignore, which drops such transactions",
	}
}

// ignoreLogEvery is the least time between two log lines about ignored changes.
const ignoreLogEvery = 10 * time.Second

func (a *assembler) ignored(t *txn, end dtx.LSN) {
	a.n.ignored.Add(1)
	a.unlogged++
	now := time.Now()
	if now.Sub(a.loggedAt) < ignoreLogEvery {
		return
	}
	a.log.Warn("dropped changes that belong to no distributed transaction",
		"transactions", a.unlogged, "tables", t.tableList(), "rows", t.rows-t.dead, "lsn", end.String())
	a.loggedAt, a.unlogged = now, 0
}
