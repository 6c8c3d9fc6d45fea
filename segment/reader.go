// Package segment reads one segment's replication stream into the spool and
// reports each local transaction as a part of its distributed one. It owns what
// a stream's messages mean for the spool: transactions sent whole, in pieces
// while in progress, or decoded at PREPARE; rolled back subtransactions; which
// schema a row was written under. It never orders anything between segments and
// never looks inside a row.
//
// # What is reported
//
//   - A transaction that names its dtx (by a part message, or by its gid when it
//     was decoded at PREPARE) is an EventPart at its commit's end.
//   - One with neither rows nor a name is a position. One with rows and no name
//     was written to the segment directly: it stops the stream, or is dropped
//     and counted under LocalChanges Ignore.
//   - A prepared transaction is an EventHold at its PREPARE, and at its outcome an
//     EventPart that names the hold, or an EventUnhold.
//   - A keepalive while no transaction is half received is a position (package
//     feed).
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
package segment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"cbrepl/dtx"
	"cbrepl/source/stream/carrier"
	"cbrepl/source/stream/feed"
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

// Options configure a Reader.
type Options struct {
	// Content is the segment's content id, 0 or above.
	Content dtx.Content
	DSN     string
	// Resolve is that of feed.Options: where the segment is when it must be
	// connected to again; nil: where DSN says.
	Resolve           func(context.Context) (string, error)
	Slot, Publication string
	// Streaming asks for in-progress transactions, where the server has them.
	// Whether transactions are decoded at PREPARE is a property of the slot.
	Streaming bool
	// Carrier decodes part messages and gids; nil means carrier.Messages.
	Carrier carrier.Carrier
	// Spool takes the rows. The Reader is its writer for this content.
	Spool        *store.Spool
	LocalChanges LocalChanges
	// Expect is the server that the start position was recorded for; zero accepts
	// the first one met.
	Expect feed.Identity
	// StatusInterval and Timeout are those of repl.Config; zero takes its defaults.
	StatusInterval, Timeout time.Duration
	// BackoffMin, BackoffMax and PositionEvery are those of feed.Options.
	BackoffMin, BackoffMax, PositionEvery time.Duration
	// Logger takes reconnects and ignored changes; nil discards.
	Logger *slog.Logger
}

// EnsureDefaults fills unset fields, except those of package feed.
func (o *Options) EnsureDefaults() {
	if o.Carrier == nil {
		o.Carrier = carrier.Messages{}
	}
}

// Validate reports every problem.
func (o *Options) Validate() error {
	var errs []error
	if o.Content < 0 {
		errs = append(errs, fmt.Errorf("content %d is not a segment", o.Content))
	}
	if o.Spool == nil {
		errs = append(errs, errors.New("no spool"))
	}
	if o.LocalChanges > Ignore {
		errs = append(errs, fmt.Errorf("unknown choice %d for local changes", o.LocalChanges))
	}
	if err := errors.Join(errs...); err != nil {
		return &dtx.Error{Op: "set up stream", Content: dtx.AtContent(o.Content), Err: err, Class: dtx.ClassStop}
	}
	return nil
}

// Reader reads one segment's stream.
type Reader struct {
	*feed.Feed
	n *counters
}

// New checks the options. It starts nothing.
func New(o Options) (*Reader, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	fo := feed.Options{
		Content: o.Content, DSN: o.DSN, Resolve: o.Resolve, Slot: o.Slot, Publication: o.Publication, Streaming: o.Streaming,
		Expect: o.Expect, StatusInterval: o.StatusInterval, Timeout: o.Timeout,
		BackoffMin: o.BackoffMin, BackoffMax: o.BackoffMax, PositionEvery: o.PositionEvery, Logger: o.Logger,
	}
	fo.EnsureDefaults() // its logger is the assembler's, too
	a := newAssembler(o.Content, o.Carrier, o.Spool.Writer(o.Content), o.LocalChanges, fo.Logger)
	f, err := feed.New(fo, a)
	if err != nil {
		return nil, err
	}
	return &Reader{f, &a.n}, nil
}

// Stats describe the stream at the time of the call.
type Stats struct {
	feed.Stats
	// Rows counts row messages spooled, Parts transactions reported as parts,
	// Ignored local transactions dropped.
	Rows, Parts, Ignored int64
	// OpenTxns counts transactions whose commit has not been received, prepared
	// ones included.
	OpenTxns int64
}

// Stats may be called from any goroutine.
func (r *Reader) Stats() Stats {
	return Stats{
		Stats: r.Feed.Stats(), Rows: r.n.rows.Load(), Parts: r.n.parts.Load(), Ignored: r.n.ignored.Load(),
		OpenTxns: r.n.open.Load(),
	}
}

type counters struct {
	rows, parts, ignored, open atomic.Int64
}
