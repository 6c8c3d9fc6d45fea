package coordinator

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/source/stream/carrier"
	"cbrepl/source/stream/feed"
	"cbrepl/source/stream/repl"
)

// policyTable is where a source without gp_distribution_policy keeps policies.
// It lives on the coordinator, and a publication of all tables holds it.
const policyTable = "cbrepl.distribution_policy"

// txn is a local transaction whose outcome has not been received.
type txn struct {
	xid     dtx.XID
	records []dtx.CommitRecord
	id      carrier.Identity
	has     bool
	// faults are what must stop the stream if the transaction commits: until then
	// it may yet be rolled back, as a whole or the subtransaction that did it.
	faults []fault
	// gid is set for a transaction decoded at PREPARE, hold once it is prepared.
	twoPhase bool
	gid      string
	hold     dtx.SpoolID
}

// fault is one fault of a (sub)transaction; xid is 0 where the server does not
// say which.
type fault struct {
	xid dtx.XID
	err *dtx.Error
}

// maxFaults bounds the faults kept of one transaction; later ones count as the
// whole transaction's.
const maxFaults = 1000

func (t *txn) mark(xid dtx.XID, e *dtx.Error) {
	for _, f := range t.faults {
		if f.xid == xid || f.xid == 0 {
			return
		}
	}
	if len(t.faults) >= maxFaults {
		xid = 0
	}
	t.faults = append(t.faults, fault{xid, e})
}

func (t *txn) abortSub(xid dtx.XID) {
	t.faults = slices.DeleteFunc(t.faults, func(f fault) bool { return f.xid == xid })
}

// assembler is the sink of the coordinator's feed.
type assembler struct {
	carrier carrier.Carrier
	version string
	// tables names relations, to say which table a row is of.
	tables     map[uint32]string
	cur, block *txn
	streams    map[dtx.XID]*txn
	// prepared outlives connections: a server sends a prepared transaction once.
	prepared map[string]*txn
	holds    dtx.SpoolID // last hold id given out
	n        counters
}

func newAssembler(c carrier.Carrier) *assembler {
	return &assembler{carrier: c, tables: map[uint32]string{}, streams: map[dtx.XID]*txn{}, prepared: map[string]*txn{}}
}

// Reset implements feed.Sink.
func (a *assembler) Reset(s repl.Server, _ repl.Slot) error {
	a.version = s.VersionText
	a.tables = map[uint32]string{}
	a.dropOpen()
	return nil
}

func (a *assembler) dropOpen() {
	a.cur, a.block = nil, nil
	clear(a.streams)
	a.tell()
}

// Close implements feed.Sink.
func (a *assembler) Close() error {
	clear(a.prepared)
	a.dropOpen()
	return nil
}

// Quiet implements feed.Sink.
func (a *assembler) Quiet() bool { return a.cur == nil && a.block == nil }

func (a *assembler) tell() {
	open := len(a.streams) + len(a.prepared)
	if a.cur != nil {
		open++
	}
	a.n.open.Store(int64(open))
}

func (a *assembler) open() *txn {
	if a.block != nil {
		return a.block
	}
	return a.cur
}

// violation is a message that the protocol does not allow here.
func (a *assembler) violation(lsn dtx.LSN, typ byte, format string, args ...any) error {
	return errorAt(lsn, "The server (version "+a.version+") sent what cbrepl does not understand; report it",
		"protocol violation: message %q: %s", typ, fmt.Sprintf(format, args...))
}

// Message implements feed.Sink.
func (a *assembler) Message(ctx context.Context, out *feed.Out, lsn dtx.LSN, payload []byte) error {
	typ, xid, body, err := pgoutput.Split(payload, a.block != nil)
	if err != nil {
		return a.violation(lsn, typ, "%v", err)
	}
	return a.handle(ctx, out, lsn, typ, xid, body)
}

func (a *assembler) handle(ctx context.Context, out *feed.Out, lsn dtx.LSN, typ byte, xid dtx.XID, body []byte) error {
	var err error
	switch typ {
	case pgoutput.TypeMessage:
		return a.message(ctx, out, lsn, body)
	case pgoutput.TypeBegin:
		var m pgoutput.Begin
		if m, err = pgoutput.ParseBegin(body); err == nil {
			return a.begin(lsn, typ, m.XID)
		}
	case pgoutput.TypeCommit:
		var m pgoutput.Commit
		if m, err = pgoutput.ParseCommit(body); err == nil {
			t := a.cur
			if t == nil || a.block != nil || t.twoPhase {
				return a.violation(lsn, typ, "no transaction is open that it could end")
			}
			a.cur = nil
			return a.finish(ctx, out, t, m)
		}
	case pgoutput.TypeRelation:
		var r *pgoutput.Relation
		if r, err = pgoutput.ParseRelation(body); err == nil {
			a.tables[r.ID] = r.String()
			return nil
		}
	case pgoutput.TypeInsert, pgoutput.TypeUpdate, pgoutput.TypeDelete, pgoutput.TypeTruncate:
		return a.row(lsn, typ, xid, body)
	case pgoutput.TypeStreamStart:
		var m pgoutput.StreamStart
		if m, err = pgoutput.ParseStreamStart(body); err == nil {
			return a.streamStart(lsn, m)
		}
	case pgoutput.TypeStreamStop:
		if a.block == nil {
			return a.violation(lsn, typ, "no block of a streamed transaction is open")
		}
		a.block = nil
		return nil
	case pgoutput.TypeStreamCommit:
		var m pgoutput.StreamCommit
		if m, err = pgoutput.ParseStreamCommit(body); err == nil {
			t := a.streams[m.XID]
			if t == nil || a.open() != nil {
				return a.violation(lsn, typ, "transaction %d is not being streamed, or another one is open", m.XID)
			}
			delete(a.streams, m.XID)
			return a.finish(ctx, out, t, m.Commit)
		}
	case pgoutput.TypeStreamAbort:
		var m pgoutput.StreamAbort
		if m, err = pgoutput.ParseStreamAbort(body); err == nil {
			a.streamAbort(m)
			return nil
		}
	case pgoutput.TypeBeginPrepare, pgoutput.TypePrepare, pgoutput.TypeStreamPrepare,
		pgoutput.TypeCommitPrepared, pgoutput.TypeRollbackPrep:
		return a.twoPhase(ctx, out, lsn, typ, body)
	case pgoutput.TypeOrigin, pgoutput.TypeType:
		return nil
	default:
		return a.violation(lsn, typ, "not known")
	}
	return a.violation(lsn, typ, "%v", err)
}

func (a *assembler) begin(lsn dtx.LSN, typ byte, xid dtx.XID) error {
	if t := a.open(); t != nil {
		return a.violation(lsn, typ, "transaction %d is still open", t.xid)
	}
	a.cur = &txn{xid: xid}
	return nil
}

func (a *assembler) streamStart(lsn dtx.LSN, m pgoutput.StreamStart) error {
	const typ = pgoutput.TypeStreamStart
	if t := a.open(); t != nil {
		return a.violation(lsn, typ, "transaction %d is still open", t.xid)
	}
	t := a.streams[m.XID]
	if m.First == (t != nil) {
		return a.violation(lsn, typ, "transaction %d: first block is %v, but it was seen before is %v", m.XID, m.First, t != nil)
	}
	if t == nil {
		t = &txn{xid: m.XID}
		a.streams[m.XID] = t
	}
	a.block = t
	return nil
}

// streamAbort: aborts of transactions that were never streamed are harmless.
func (a *assembler) streamAbort(m pgoutput.StreamAbort) {
	t := a.streams[m.XID]
	switch {
	case t == nil:
	case m.SubXID == m.XID:
		if a.block == t {
			a.block = nil
		}
		delete(a.streams, m.XID)
	default:
		t.abortSub(m.SubXID)
	}
	a.tell()
}

// row marks a row change, which the coordinator must not have.
func (a *assembler) row(lsn dtx.LSN, typ byte, xid dtx.XID, body []byte) error {
	t := a.open()
	if t == nil {
		return a.violation(lsn, typ, "a row outside any transaction")
	}
	var ids []uint32
	if typ == pgoutput.TypeTruncate {
		r, err := pgoutput.ParseRow(typ, body)
		if err != nil {
			return a.violation(lsn, typ, "%v", err)
		}
		ids = r.Truncated
	} else {
		id, err := pgoutput.RelationID(body)
		if err != nil {
			return a.violation(lsn, typ, "%v", err)
		}
		ids = []uint32{id}
	}
	for _, id := range ids {
		name, ok := a.tables[id]
		if !ok {
			return a.violation(lsn, typ, "a row of relation %d, whose schema was not sent", id)
		}
		if name == policyTable {
			continue
		}
		e := errorAt(lsn, "Rows belong on segments. Undo the change there, and leave the table out of the coordinator's publication or do not write to it there",
			"a row of this table was changed on the coordinator itself, outside any segment")
		e.Relation = name
		t.mark(xid, e)
	}
	return nil
}

// message takes commit records, part messages and DDL messages.
func (a *assembler) message(ctx context.Context, out *feed.Out, lsn dtx.LSN, body []byte) error {
	m, err := pgoutput.ParseMessage(body)
	if err != nil {
		return a.violation(lsn, pgoutput.TypeMessage, "%v", err)
	}
	t := a.open()
	if m.Transactional && t == nil {
		return a.violation(lsn, pgoutput.TypeMessage, "a transactional message outside any transaction")
	}
	if rec, mine, err := a.carrier.CommitRecord(m.Prefix, m.Content); mine {
		if err == nil && !m.Transactional {
			rec.EndLSN = m.LSN
			a.n.records.Add(1)
			return out.Event(ctx, dtx.Event{Kind: dtx.EventRecord, LSN: rec.EndLSN, Record: rec})
		}
		if err == nil {
			t.records = append(t.records, rec)
			return nil
		}
		return a.contract(t, m, err)
	}
	if id, mine, err := a.carrier.Part(m.Prefix, m.Content); mine {
		switch {
		case err == nil && !m.Transactional:
			err = fmt.Errorf("part message is not transactional")
		case err == nil && t.has && t.id != id:
			err = fmt.Errorf("one transaction is a part of two distributed ones: gxid %d and gxid %d", t.id.GXID, id.GXID)
		case err == nil:
			t.id, t.has = id, true
			return nil
		}
		return a.contract(t, m, err)
	}
	if strings.HasPrefix(m.Prefix, carrier.DDLPrefix) {
		e := errorAt(m.LSN, "Make the same change on the target by hand, then skip this transaction or start from a new initial copy",
			"DDL message (%s) is not supported", m.Prefix)
		if !m.Transactional {
			return e
		}
		t.mark(0, e)
	}
	return nil
}

// contract is a message that breaks the stream contract: a fault now, or when
// its transaction commits.
func (a *assembler) contract(t *txn, m pgoutput.Message, err error) error {
	e := errorAt(m.LSN, "The source (server version "+a.version+") breaks the stream contract", "message %q", m.Prefix)
	e.Err = err
	if !m.Transactional {
		return e
	}
	t.mark(0, e)
	return nil
}

// finish reports a committed transaction.
func (a *assembler) finish(ctx context.Context, out *feed.Out, t *txn, c pgoutput.Commit) error {
	a.tell()
	if len(t.faults) > 0 {
		e := t.faults[0].err
		if t.has {
			e.GXID = t.id.GXID
		}
		return e
	}
	if t.hold != 0 && !t.has {
		ev := dtx.Event{Kind: dtx.EventUnhold, LSN: c.EndLSN, More: len(t.records) > 0, Hold: t.hold}
		if err := out.Event(ctx, ev); err != nil {
			return err
		}
	}
	if t.has {
		ev := dtx.Event{Kind: dtx.EventPart, LSN: c.EndLSN, More: len(t.records) > 0, Hold: t.hold, Part: dtx.Part{
			GXID: t.id.GXID, Kind: t.id.Kind, Content: dtx.Coordinator, EndLSN: c.EndLSN, CommitTime: c.CommitTime,
		}}
		a.n.parts.Add(1)
		if err := out.Event(ctx, ev); err != nil {
			return err
		}
	}
	for i, rec := range t.records {
		rec.EndLSN = c.EndLSN
		a.n.records.Add(1)
		ev := dtx.Event{Kind: dtx.EventRecord, LSN: c.EndLSN, More: i < len(t.records)-1, Record: rec}
		if err := out.Event(ctx, ev); err != nil {
			return err
		}
	}
	if !t.has && t.hold == 0 && len(t.records) == 0 {
		return out.Position(ctx, c.EndLSN)
	}
	return nil
}
