// Package segment reads one segment's replication stream into the spool and
// reports each local transaction as a part of its distributed one. It joins a
// connection that is kept alive (package feed) and the state machine that puts
// transactions together (package assemble). It never orders anything between
// segments.
package segment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"cbrepl/dtx"
	"cbrepl/source/stream/assemble"
	"cbrepl/source/stream/carrier"
	"cbrepl/source/stream/feed"
	"cbrepl/source/stream/repl"
	"cbrepl/store"
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
	// Plugin and PluginOptions are those of repl.Config.
	Plugin        repl.Plugin
	PluginOptions []repl.Option
	// Streaming asks for in-progress transactions, where the server has them.
	// Whether transactions are decoded at PREPARE is a property of the slot.
	Streaming bool
	// Carrier decodes part messages and gids; nil means carrier.Messages.
	Carrier carrier.Carrier
	// Spool takes the rows. The Reader is its writer for this content.
	Spool        *store.Spool
	LocalChanges assemble.LocalChanges
	// Tables and Forgotten are those of assemble.Options.
	Tables    map[string]uint32
	Forgotten map[uint32]bool
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

// Validate reports every problem.
func (o *Options) Validate() error {
	var errs []error
	if o.Content < 0 {
		errs = append(errs, fmt.Errorf("content %d is not a segment", o.Content))
	}
	if o.Spool == nil {
		errs = append(errs, errors.New("no spool"))
	}
	if o.LocalChanges > assemble.Ignore {
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
	assembler *assemble.Assembler
}

// New checks the options. It starts nothing.
func New(o Options) (*Reader, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	a := assemble.New(assemble.Options{
		Content: o.Content, Carrier: o.Carrier, Spool: o.Spool.Writer(o.Content), LocalChanges: o.LocalChanges, Tables: o.Tables, Forgotten: o.Forgotten, Logger: o.Logger,
	})
	f, err := feed.New(feed.Options{
		Content: o.Content, DSN: o.DSN, Resolve: o.Resolve, Slot: o.Slot, Publication: o.Publication, Plugin: o.Plugin, PluginOptions: o.PluginOptions, Streaming: o.Streaming,
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
