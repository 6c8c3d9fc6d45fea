// Package assemble puts transactions together from the messages of one content's
// replication stream. It owns what pgoutput's messages mean: transactions that
// are sent whole, in pieces while they are in progress, or decoded at PREPARE;
// rolled back subtransactions; which schema a row was written under; which
// distributed transaction a local one is a part of. It never orders anything
// between contents and never looks inside a row.
//
// There is one state machine for all contents. What differs is where rows go: a
// segment's into the spool, while on the coordinator a row is a fault, and
// commit records are read there only.
//
// # What is reported
//
//   - A transaction that names its dtx (by a part message, or by its gid when it
//     was decoded at PREPARE) is an EventPart at its commit's end.
//   - The coordinator's commit records are EventRecords: at the end of the
//     transaction that carries them, in their order and behind its part; or at the
//     message, when it is not transactional.
//   - A transaction with none of these is a position. On a segment one with rows
//     and no name was written there directly: it stops the stream, or is dropped
//     and counted under LocalChanges Ignore.
//   - A prepared transaction is an EventHold at its PREPARE, and at its outcome an
//     EventPart that names the hold, or an EventUnhold.
//   - A keepalive while no transaction is half received is a position (package
//     feed). A source whose carrier is an Observer says positions in messages, and
//     PREPAREs and their ends (EventPrepared and others).
//
// # Faults
//
// What must stop the stream waits for the commit of its transaction: until then
// the transaction, or the subtransaction that did it, may be rolled back.
//
// # Schemas
//
// Relation messages outside streamed transactions change the schemas in force.
// Those inside one belong to it alone until it commits (it may have altered the
// table itself); then each becomes the one in force, unless a newer one was
// sent meanwhile. That mirrors the server: it counts a schema as sent to the
// whole stream from the commit of the streamed transaction on. Every row is
// spooled with the version it was sent under.
//
// # Limits of the protocol
//
// The server gives logical messages of a streamed transaction the top-level
// transaction's id, also when a subtransaction wrote them. A message of a
// rolled back subtransaction that was streamed therefore still counts.
package assemble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/source/stream/carrier"
	"cbrepl/source/stream/feed"
	"cbrepl/source/stream/repl"
	"cbrepl/store"
)

// LocalChanges says what to do with changes that belong to no dtx.
type LocalChanges uint8

const (
	// Stop ends the stream with an error that names them.
	Stop LocalChanges = iota
	// Ignore drops, counts and logs them.
	Ignore
)

// Options configure an Assembler.
type Options struct {
	Content dtx.Content
	// Carrier decodes commit records, part messages and gids; nil means
	// carrier.Messages.
	Carrier carrier.Carrier
	// Spool takes the rows of a segment. The coordinator has none.
	Spool        *store.Writer
	LocalChanges LocalChanges
	// Tables are the OIDs of the tables that are replicated, by schema.name, as
	// they are known to the target. A row of another table of such a name is a fault:
	// what the old one held was not taken off the target.
	Tables map[string]uint32
	// Forgotten are OIDs of tables whose rows are passed over when they are applied:
	// a table that has such a name is no fault.
	Forgotten map[uint32]bool
	// Logger takes ignored changes; nil discards.
	Logger *slog.Logger
}

// Counts count what was assembled.
type Counts struct {
	// Rows counts row messages spooled, Parts transactions reported as parts,
	// Records commit records, Ignored local transactions dropped.
	Rows, Parts, Records, Ignored int64
	// OpenTxns counts transactions whose commit has not been received, prepared
	// ones included.
	OpenTxns int64
}

type counters struct {
	rows, parts, records, ignored, open atomic.Int64
}

// Assembler is the sink of a content's feed. Except for Counts it is used by one
// goroutine.
type Assembler struct {
	o     Options
	spool *store.Writer // nil: rows are faults
	// observer is the carrier of a source that reports what it sees instead of
	// participants and positions; else nil.
	observer carrier.Observer
	// ownRecord is a commit record whose own part, the transaction that follows at
	// once, has not been received.
	ownRecord *dtx.CommitRecord
	// reconnected is set until the new connection has been reported.
	reconnected bool
	log         *slog.Logger
	version     string // of the server, for messages

	// relations holds the schemas in force outside streamed transactions.
	relations map[uint32]*relation
	relSeq    uint64

	// cur is the transaction being sent whole, block the streamed one whose piece
	// is being sent: at most one of them is set.
	cur, block *txn
	streams    map[dtx.XID]*txn
	// prepared outlives connections: a server sends a prepared transaction once.
	prepared map[string]*txn
	holds    dtx.SpoolID // last hold given to a transaction without spool

	// tables are Options.Tables and those seen since.
	tables map[string]uint32

	truncated     []store.RelVersion // scratch
	rowsUncounted int64              // rows not yet in n
	loggedAt      time.Time
	unlogged      int64
	n             counters
}

// New makes an Assembler, which owns the spool's writer.
func New(o Options) *Assembler {
	if o.Carrier == nil {
		o.Carrier = carrier.Messages{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	observer, _ := o.Carrier.(carrier.Observer)
	if o.Tables == nil {
		o.Tables = map[string]uint32{}
	}
	return &Assembler{
		o: o, spool: o.Spool, observer: observer, log: o.Logger.With("content", int(o.Content)),
		relations: map[uint32]*relation{}, streams: map[dtx.XID]*txn{}, prepared: map[string]*txn{}, tables: maps.Clone(o.Tables),
	}
}

// Counts may be called from any goroutine.
func (a *Assembler) Counts() Counts {
	return Counts{
		Rows: a.n.rows.Load(), Parts: a.n.parts.Load(), Records: a.n.records.Load(), Ignored: a.n.ignored.Load(),
		OpenTxns: a.n.open.Load(),
	}
}

// Reset implements feed.Sink.
func (a *Assembler) Reset(s repl.Server, _ repl.Slot) error {
	a.version = s.VersionText
	a.relations = map[uint32]*relation{} // a new session sends them anew
	a.reconnected = a.observer != nil
	return a.dropOpen()
}

// dropOpen gives up what has no outcome and was not prepared.
func (a *Assembler) dropOpen() error {
	var errs []error
	if a.cur != nil {
		errs = append(errs, a.cur.drop())
	}
	for _, t := range a.streams {
		errs = append(errs, t.drop())
	}
	a.cur, a.block, a.ownRecord = nil, nil, nil
	clear(a.streams)
	a.publishCounters()
	return errors.Join(errs...)
}

// Close implements feed.Sink.
func (a *Assembler) Close() error {
	errs := []error{a.dropOpen()}
	for _, t := range a.prepared {
		errs = append(errs, t.drop())
	}
	clear(a.prepared)
	if a.spool != nil {
		errs = append(errs, a.spool.Close())
	}
	a.publishCounters()
	return errors.Join(errs...)
}

// Quiet implements feed.Sink. Keepalives of a source with an observer name no
// positions.
func (a *Assembler) Quiet() bool { return a.cur == nil && a.block == nil && a.observer == nil }

func (a *Assembler) publishCounters() {
	if a.rowsUncounted > 0 {
		a.n.rows.Add(a.rowsUncounted)
		a.rowsUncounted = 0
	}
	open := len(a.streams) + len(a.prepared)
	if a.cur != nil {
		open++
	}
	a.n.open.Store(int64(open))
}

// open returns the transaction that a message between its borders belongs to.
func (a *Assembler) open() *txn {
	if a.block != nil {
		return a.block
	}
	return a.cur
}

// errorAt builds a fault of this stream.
func (a *Assembler) errorAt(lsn dtx.LSN, hint, format string, args ...any) *dtx.Error {
	return &dtx.Error{
		Op: "read stream", Content: dtx.AtContent(a.o.Content), LSN: lsn, Class: dtx.ClassStop,
		Msg: fmt.Sprintf(format, args...), Hint: hint,
	}
}

// violation is a message that the protocol does not allow here.
func (a *Assembler) violation(lsn dtx.LSN, typ byte, format string, args ...any) error {
	return a.errorAt(lsn, dtx.ReportBug+", with the server's version "+a.version,
		"protocol violation: message %q: %s", typ, fmt.Sprintf(format, args...))
}

func (a *Assembler) malformed(lsn dtx.LSN, typ byte, err error) error {
	return a.violation(lsn, typ, "%v", err)
}

// Message implements feed.Sink.
func (a *Assembler) Message(ctx context.Context, out *feed.Out, lsn dtx.LSN, payload []byte) error {
	typ, xid, body, err := pgoutput.Split(payload, a.block != nil)
	if err != nil {
		return a.malformed(lsn, typ, err)
	}
	if a.reconnected {
		a.reconnected = false
		if err := out.Observation(ctx, dtx.Event{Kind: dtx.EventReconnect}); err != nil {
			return err
		}
	}
	switch typ {
	case pgoutput.TypeInsert, pgoutput.TypeUpdate, pgoutput.TypeDelete:
		return a.row(ctx, lsn, typ, xid, body, payload)
	case pgoutput.TypeTruncate:
		return a.truncate(ctx, lsn, xid, body, payload)
	case pgoutput.TypeRelation:
		return a.relation(lsn, body)
	case pgoutput.TypeMessage:
		return a.message(ctx, out, lsn, body)
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
		a.publishCounters()
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
