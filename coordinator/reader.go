// Package coordinator reads the coordinator's replication stream: commit
// records in their order, and the coordinator's own parts of distributed
// transactions. It owns what the stream's messages mean; it never takes rows
// and never orders anything against other streams.
//
// A commit record counts when the transaction that carries it commits, at that
// commit's end; a record in a non-transactional message counts at the message.
// Records of one transaction keep their order and share its LSN. A transaction
// with neither record nor part is a position.
//
// Rows and DDL messages stop the stream: rows live on segments. The table of
// distribution policies is cbrepl's own and may change.
package coordinator

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"cbrepl/dtx"
	"cbrepl/source/stream/carrier"
	"cbrepl/source/stream/feed"
)

// Options configure a Reader.
type Options struct {
	DSN               string
	Slot, Publication string
	// Carrier decodes commit records and part messages; nil means
	// carrier.Messages.
	Carrier carrier.Carrier
	// Expect is the server that the start position was recorded for; zero accepts
	// the first one met.
	Expect feed.Identity
	// StatusInterval and Timeout are those of repl.Config; zero takes its defaults.
	StatusInterval, Timeout time.Duration
	// BackoffMin, BackoffMax and PositionEvery are those of feed.Options.
	BackoffMin, BackoffMax, PositionEvery time.Duration
	// Logger takes reconnects; nil discards.
	Logger *slog.Logger
}

// EnsureDefaults fills unset fields, except those of package feed.
func (o *Options) EnsureDefaults() {
	if o.Carrier == nil {
		o.Carrier = carrier.Messages{}
	}
}

// Reader reads the coordinator's stream.
type Reader struct {
	*feed.Feed
	n *counters
}

// New checks the options. It starts nothing.
func New(o Options) (*Reader, error) {
	o.EnsureDefaults()
	a := newAssembler(o.Carrier)
	f, err := feed.New(feed.Options{
		Content: dtx.Coordinator, DSN: o.DSN, Slot: o.Slot, Publication: o.Publication, Streaming: true,
		Expect: o.Expect, StatusInterval: o.StatusInterval, Timeout: o.Timeout,
		BackoffMin: o.BackoffMin, BackoffMax: o.BackoffMax, PositionEvery: o.PositionEvery, Logger: o.Logger,
	}, a)
	if err != nil {
		return nil, err
	}
	return &Reader{f, &a.n}, nil
}

// Stats describe the stream at the time of the call.
type Stats struct {
	feed.Stats
	// Records counts commit records, Parts the coordinator's own parts.
	Records, Parts int64
	// OpenTxns counts transactions whose commit has not been received.
	OpenTxns int64
}

// Stats may be called from any goroutine.
func (r *Reader) Stats() Stats {
	return Stats{Stats: r.Feed.Stats(), Records: r.n.records.Load(), Parts: r.n.parts.Load(), OpenTxns: r.n.open.Load()}
}

type counters struct {
	records, parts, open atomic.Int64
}

// errorAt builds a fault of the coordinator's stream.
func errorAt(lsn dtx.LSN, hint, format string, args ...any) *dtx.Error {
	return &dtx.Error{
		Op: "read stream", Content: dtx.AtContent(dtx.Coordinator), LSN: lsn, Class: dtx.ClassStop,
		Msg: fmt.Sprintf(format, args...), Hint: hint,
	}
}
