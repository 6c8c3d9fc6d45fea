// Package coordinator reads the coordinator's replication stream: commit
// records in their order, and the coordinator's own parts of distributed
// transactions. It joins a connection that is kept alive (package feed) and the
// state machine that puts transactions together (package assemble). It never
// takes rows and never orders anything against other streams.
package coordinator

import (
	"log/slog"
	"time"

	"cbrepl/dtx"
	"cbrepl/source/stream/assemble"
	"cbrepl/source/stream/carrier"
	"cbrepl/source/stream/feed"
	"cbrepl/source/stream/repl"
)

// Options configure a Reader.
type Options struct {
	DSN               string
	Slot, Publication string
	// Plugin and PluginOptions are those of repl.Config.
	Plugin        repl.Plugin
	PluginOptions []repl.Option
	// Carrier decodes commit records and part messages; nil means
	// carrier.Messages.
	Carrier carrier.Carrier
	// LocalChanges says what to do with rows that were changed there.
	LocalChanges assemble.LocalChanges
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

// Reader reads the coordinator's stream.
type Reader struct {
	*feed.Feed
	assembler *assemble.Assembler
}

// New checks the options. It starts nothing.
func New(o Options) (*Reader, error) {
	a := assemble.New(assemble.Options{Content: dtx.Coordinator, Carrier: o.Carrier, LocalChanges: o.LocalChanges, Logger: o.Logger})
	f, err := feed.New(feed.Options{
		Content: dtx.Coordinator, DSN: o.DSN, Slot: o.Slot, Publication: o.Publication, Plugin: o.Plugin, PluginOptions: o.PluginOptions, Streaming: true,
		Expect: o.Expect, StatusInterval: o.StatusInterval, Timeout: o.Timeout,
		BackoffMin: o.BackoffMin, BackoffMax: o.BackoffMax, PositionEvery: o.PositionEvery, Logger: o.Logger,
	}, a)
	if err != nil {
		return nil, err
	}
	return &Reader{f, a}, nil
}

// Stats describe the stream at the time of the call.
type Stats struct {
	feed.Stats
	assemble.Counts
}

// Stats may be called from any goroutine.
func (r *Reader) Stats() Stats { return Stats{r.Feed.Stats(), r.assembler.Counts()} }
