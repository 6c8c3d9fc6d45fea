package segment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/source/stream/carrier"
	"cbrepl/source/stream/feed"
	"cbrepl/source/stream/repl"
	"cbrepl/store"
)

// assembler is the sink of a segment's feed: it puts transactions together.
type assembler struct {
	content dtx.Content
	carrier carrier.Carrier
	spool   *store.Writer
	local   LocalChanges
	log     *slog.Logger
	version string // of the server, for messages

	// relations holds the schemas in force outside streamed transactions.
	relations map[uint32]*relation
	relSeq    uint64

	// cur is the transaction being sent whole, block the streamed one whose piece
	// is being sent: at most one of them is set.
	cur, block *txn
	streams    map[dtx.XID]*txn
	// prepared outlives connections: a server sends a prepared transaction once.
	prepared map[string]*txn

	truncated []store.RelVersion // scratch
	rowsTold  int64              // rows not yet in n
	loggedAt  time.Time
	unlogged  int64
	n         counters
}

func newAssembler(c dtx.Content, car carrier.Carrier, w *store.Writer, local LocalChanges, log *slog.Logger) *assembler {
	return &assembler{
		content: c, carrier: car, spool: w, local: local, log: log.With("content", int(c)),
		relations: map[uint32]*relation{}, streams: map[dtx.XID]*txn{}, prepared: map[string]*txn{},
	}
}

// Reset implements feed.Sink.
func (a *assembler) Reset(s repl.Server, _ repl.Slot) error {
	a.version = s.VersionText
	a.relations = map[uint32]*relation{} // a new session sends them anew
	return a.dropOpen()
}

// dropOpen gives up what has no outcome and was not prepared.
func (a *assembler) dropOpen() error {
	var errs []error
	if a.cur != nil {
		errs = append(errs, a.cur.drop())
	}
	for _, t := range a.streams {
		errs = append(errs, t.drop())
	}
	a.cur, a.block = nil, nil
	clear(a.streams)
	a.tell()
	return errors.Join(errs...)
}

// Close implements feed.Sink.
func (a *assembler) Close() error {
	errs := []error{a.dropOpen()}
	for _, t := range a.prepared {
		errs = append(errs, t.drop())
	}
	clear(a.prepared)
	errs = append(errs, a.spool.Close())
	a.tell()
	return errors.Join(errs...)
}

// Quiet implements feed.Sink.
func (a *assembler) Quiet() bool { return a.cur == nil && a.block == nil }

// tell publishes counters.
func (a *assembler) tell() {
	if a.rowsTold > 0 {
		a.n.rows.Add(a.rowsTold)
		a.rowsTold = 0
	}
	open := len(a.streams) + len(a.prepared)
	if a.cur != nil {
		open++
	}
	a.n.open.Store(int64(open))
}

// violation is a message that the protocol does not allow here.
func (a *assembler) violation(lsn dtx.LSN, typ byte, format string, args ...any) error {
	return &dtx.Error{
		Op: "read stream", Content: dtx.AtContent(a.content), LSN: lsn, Class: dtx.ClassStop,
		Msg:  fmt.Sprintf("protocol violation: message %q: %s", typ, fmt.Sprintf(format, args...)),
		Hint: "The server (version " + a.version + ") sent what cbrepl does not understand; report it",
	}
}

func (a *assembler) malformed(lsn dtx.LSN, typ byte, err error) error {
	return a.violation(lsn, typ, "%v", err)
}

// Message implements feed.Sink.
func (a *assembler) Message(ctx context.Context, out *feed.Out, lsn dtx.LSN, payload []byte) error {
	typ, xid, body, err := pgoutput.Split(payload, a.block != nil)
	if err != nil {
		return a.malformed(lsn, typ, err)
	}
	switch typ {
	case pgoutput.TypeInsert, pgoutput.TypeUpdate, pgoutput.TypeDelete:
		return a.row(ctx, lsn, typ, xid, body, payload)
	case pgoutput.TypeTruncate:
		return a.truncate(ctx, lsn, xid, body, payload)
	case pgoutput.TypeRelation:
		return a.relation(lsn, body)
	case pgoutput.TypeMessage:
		return a.message(lsn, body)
	case pgoutput.TypeBegin:
		return a.begin(ctx, lsn, body)
	case pgoutput.TypeCommit:
		return a.commit(ctx, out, lsn, body)
	case pgoutput.TypeStreamStart:
		return a.streamStart(ctx, lsn, body)
	case pgoutput.TypeStreamStop:
		if a.block == nil {
			return a.violation(lsn, typ, "no block of a streamed transaction is open")
		}
		a.block = nil
		a.tell()
		return nil
	case pgoutput.TypeStreamCommit:
		return a.streamCommit(ctx, out, lsn, body)
	case pgoutput.TypeStreamAbort:
		return a.streamAbort(lsn, body)
	case pgoutput.TypeBeginPrepare:
		return a.beginPrepare(ctx, lsn, body)
	case pgoutput.TypePrepare:
		return a.prepare(ctx, out, lsn, body)
	case pgoutput.TypeStreamPrepare:
		return a.streamPrepare(ctx, out, lsn, body)
	case pgoutput.TypeCommitPrepared:
		return a.commitPrepared(ctx, out, lsn, body)
	case pgoutput.TypeRollbackPrep:
		return a.rollbackPrepared(ctx, out, lsn, body)
	case pgoutput.TypeOrigin, pgoutput.TypeType:
		return nil
	}
	return a.violation(lsn, typ, "not known")
}

// open returns the transaction that a message between its borders belongs to.
func (a *assembler) open() *txn {
	if a.block != nil {
		return a.block
	}
	return a.cur
}

// schema returns the table's schema in force for t.
func (a *assembler) schema(t *txn, id uint32) *relation {
	if t.streamed {
		return t.overlay[id]
	}
	return a.relations[id]
}

// spooled returns t's place in the spool, making it at the first row.
func (a *assembler) spooled(t *txn) *store.Txn {
	if t.spool == nil {
		t.spool = a.spool.Begin(t.streamed)
	}
	return t.spool
}

func (a *assembler) row(ctx context.Context, lsn dtx.LSN, typ byte, xid dtx.XID, body, msg []byte) error {
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
		t.touch(r)
	}
	sp := t.spool
	if sp == nil {
		sp = a.spooled(t)
	}
	if err := sp.Append(ctx, r.version, msg); err != nil {
		return err
	}
	t.count(xid)
	a.rowsTold++
	return nil
}

func (a *assembler) truncate(ctx context.Context, lsn dtx.LSN, xid dtx.XID, body, msg []byte) error {
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
		t.touch(r)
		a.truncated = append(a.truncated, r.version)
	}
	if err := a.spooled(t).AppendTruncate(ctx, a.truncated, msg); err != nil {
		return err
	}
	t.count(xid)
	a.rowsTold++
	return nil
}

// relation takes a schema. The spool gives equal ones one version.
func (a *assembler) relation(lsn dtx.LSN, body []byte) error {
	rel, err := pgoutput.ParseRelation(body)
	if err != nil {
		return a.malformed(lsn, pgoutput.TypeRelation, err)
	}
	v, err := a.spool.PutRelation(body)
	if err != nil {
		return err
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

// message looks for the transaction's name. A fault waits for the commit.
func (a *assembler) message(lsn dtx.LSN, body []byte) error {
	m, err := pgoutput.ParseMessage(body)
	if err != nil {
		return a.malformed(lsn, pgoutput.TypeMessage, err)
	}
	id, mine, err := a.carrier.Part(m.Prefix, m.Content)
	ddl := strings.HasPrefix(m.Prefix, carrier.DDLPrefix)
	if !mine && !ddl {
		return nil
	}
	t := a.open()
	if !m.Transactional || t == nil {
		return &dtx.Error{
			Op: "read stream", Content: dtx.AtContent(a.content), LSN: m.LSN, Class: dtx.ClassStop,
			Msg:  fmt.Sprintf("message %q stands outside any transaction", m.Prefix),
			Hint: "The source must emit it with transactional set, in the transaction that it belongs to",
		}
	}
	if ddl {
		t.mark(&dtx.Error{
			Op: "read stream", Msg: fmt.Sprintf("the transaction holds a DDL message (%s), which is not supported", m.Prefix),
			Hint: "Make the same change on the target by hand, then skip this transaction or start from a new initial copy",
		}, m.LSN)
		return nil
	}
	if err == nil {
		err = t.name(id)
	}
	if err != nil {
		t.mark(&dtx.Error{
			Op: "read part message", Err: err,
			Hint: "The source (server version " + a.version + ") breaks the stream contract",
		}, m.LSN)
	}
	return nil
}

// mark keeps the first fault of a transaction.
func (t *txn) mark(e *dtx.Error, lsn dtx.LSN) {
	if t.fault == nil {
		e.LSN, e.Class = lsn, dtx.ClassStop
		t.fault = e
	}
}
