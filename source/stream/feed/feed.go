// Package feed keeps one content's replication stream running: it connects,
// checks that the server is still the one it was, hands every message to a
// sink, passes the sink's events on, and reconnects with backoff at the last
// position it has reported. Packages segment and coordinator are its sinks. It
// never interprets plugin messages.
//
// # Positions
//
// An event's LSN never lies before an earlier event's, and a transaction's
// events are all passed on before the connection is touched again, so a new
// connection starts at the last LSN reported and nothing is reported twice. A
// keepalive's position is reported only while the sink has no transaction open
// that is sent whole; transactions that are still being streamed commit later
// than it and are sent again from their first change.
package feed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"cbrepl/dtx"
	"cbrepl/logkey"
	"cbrepl/source/stream/repl"
)

// Emit passes an event on. It may block.
type Emit = func(context.Context, dtx.Event) error

// Sink makes events of messages. Its methods are called from one goroutine.
type Sink interface {
	// Reset is called for every new connection, before its first message: what was
	// received of unfinished transactions is void, because the server sends them
	// again, except prepared ones.
	Reset(s repl.Server, slot repl.Slot) error
	// Message handles one plugin message. The payload is valid during the call.
	Message(ctx context.Context, out *Out, lsn dtx.LSN, payload []byte) error
	// Quiet says that every transaction received so far has been reported, those
	// still being streamed excepted.
	Quiet() bool
	// Close ends what is open, prepared transactions included.
	Close() error
}

// Identity is the server that positions belong to.
type Identity struct {
	SystemID string
	Timeline int32
}

// Options configure a Feed.
type Options struct {
	Content dtx.Content
	DSN     string
	// Resolve, when set, is asked for the connection string before every connection
	// but the first: a segment's primary may have moved. Its errors count as the
	// connection's: one of class stop ends the feed.
	Resolve           func(context.Context) (string, error)
	Slot, Publication string
	// Plugin and PluginOptions are those of repl.Config.
	Plugin        repl.Plugin
	PluginOptions []repl.Option
	// Streaming asks for in-progress transactions.
	Streaming bool
	// Expect is the server that the start position was recorded for; zero: the
	// first one connected to. Any other server stops the feed.
	Expect Identity
	// StatusInterval and Timeout are those of repl.Config.
	StatusInterval, Timeout time.Duration
	// BackoffMin and BackoffMax bound the pause before a reconnect, which doubles
	// and is jittered. Defaults 100 ms and 10 s.
	BackoffMin, BackoffMax time.Duration
	// PositionEvery is the least time between positions reported of idle stretches.
	// Default 1 s; -1 reports each.
	PositionEvery time.Duration
	// Logger takes connects, disconnects and what sinks have to say; nil discards.
	Logger *slog.Logger
}

// EnsureDefaults fills unset fields.
func (o *Options) EnsureDefaults() {
	if o.BackoffMin == 0 {
		o.BackoffMin = 100 * time.Millisecond
	}
	if o.BackoffMax == 0 {
		o.BackoffMax = 10 * time.Second
	}
	if o.PositionEvery == 0 {
		o.PositionEvery = time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

func (o *Options) repl() repl.Config {
	c := repl.Config{
		Content: o.Content, DSN: o.DSN, Slot: o.Slot, Publication: o.Publication, Streaming: o.Streaming,
		Plugin: o.Plugin, Options: o.PluginOptions,
		StatusInterval: o.StatusInterval, Timeout: o.Timeout,
	}
	c.EnsureDefaults()
	return c
}

// Validate reports every problem.
func (o *Options) Validate() error {
	c := o.repl()
	err := c.Validate()
	if o.BackoffMin <= 0 || o.BackoffMax < o.BackoffMin {
		err = errors.Join(err, fmt.Errorf("backoff from %s to %s", o.BackoffMin, o.BackoffMax))
	}
	if err != nil {
		return &dtx.Error{Op: "set up stream", Content: dtx.AtContent(o.Content), Err: err, Class: dtx.ClassStop}
	}
	return nil
}

// Feed is one content's stream.
type Feed struct {
	o     Options
	sink  Sink
	log   *slog.Logger
	st    stats
	tried bool // a connection has been tried
}

// New checks the options. It starts nothing.
func New(o Options, sink Sink) (*Feed, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Feed{o: o, sink: sink, log: o.Logger.With(logkey.Content, int(o.Content))}, nil
}

// Confirm says that everything up to lsn is applied: the server may forget it.
// Positions never go back. It does not block and may be called at any time.
func (f *Feed) Confirm(lsn dtx.LSN) {
	for {
		old := f.st.confirmed.Load()
		if uint64(lsn) <= old {
			return
		}
		if f.st.confirmed.CompareAndSwap(old, uint64(lsn)) {
			break
		}
	}
	if s := f.st.stream.Load(); s != nil {
		s.Confirm(lsn)
	}
}

// localError is a fault on this side of the connection, of sink or emit: a new
// connection mends nothing.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

// Run reports the stream's events from start on, in stream order, until ctx ends
// (its error is returned) or a fault asks for a person. It reconnects by itself at
// the last position reported. emit may block: keepalives are answered meanwhile.
// Run is called once. The sink is closed when it returns.
func (f *Feed) Run(ctx context.Context, start dtx.LSN, emit Emit) (err error) {
	out := NewOut(f.o.Content, start, f.o.PositionEvery, emit)
	out.st = &f.st
	f.st.reported.Store(uint64(start))
	defer func() {
		if cerr := f.sink.Close(); cerr != nil {
			err = errors.Join(err, cerr)
		}
	}()
	backoff := f.o.BackoffMin
	var told string
	for {
		before, began := out.reported, time.Now()
		err := f.once(ctx, out)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f.st.failed(err)
		var local *localError
		if errors.As(err, &local) {
			return local.err
		}
		if dtx.ClassOf(err) == dtx.ClassStop {
			return err
		}
		if out.reported != before || time.Since(began) > f.o.BackoffMax {
			backoff = f.o.BackoffMin
		}
		pause := time.Duration((0.5 + rand.Float64()) * float64(backoff))
		// The same fault again and again is told once; status shows it.
		if text := err.Error(); text != told {
			told = text
			f.log.Warn("stream lost, reconnecting", logkey.Error, err, logkey.LSN, out.reported.String(), logkey.Pause, pause)
		}
		backoff = min(2*backoff, f.o.BackoffMax)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
		f.st.reconnects.Add(1)
	}
}

// once runs one connection until it fails. The error is never nil.
func (f *Feed) once(ctx context.Context, out *Out) error {
	if f.tried && f.o.Resolve != nil {
		dsn, err := f.o.Resolve(ctx)
		if err != nil {
			return err
		}
		f.o.DSN = dsn
	}
	f.tried = true
	c, err := repl.Connect(ctx, f.o.repl())
	if err != nil {
		return err
	}
	defer c.Close()
	if err := f.identify(c.Server(), out.reported); err != nil {
		return err
	}
	s, err := c.Start(ctx, out.reported)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := f.sink.Reset(s.Server(), s.Slot()); err != nil {
		return &localError{err}
	}
	if out.reported == 0 {
		out.started(s.Start())
	}
	f.st.connected(s)
	defer f.st.disconnected()
	s.Confirm(dtx.LSN(f.st.confirmed.Load()))
	f.log.Info("streaming", logkey.LSN, s.Start().String(), logkey.Version, s.Server().VersionText)
	return f.pump(ctx, s, out)
}

// pump hands messages to the sink until something fails.
func (f *Feed) pump(ctx context.Context, s *repl.Stream, out *Out) error {
	for {
		m, err := s.Next(out.due())
		if err != nil {
			return err
		}
		switch m.Kind {
		case repl.Data:
			err = f.sink.Message(ctx, out, m.LSN, m.Payload)
		case repl.Keepalive:
			if f.sink.Quiet() {
				err = out.Position(ctx, m.LSN)
			}
		case repl.Idle:
			err = out.flush(ctx)
		}
		if err != nil {
			return &localError{err}
		}
	}
}

// identify refuses a server that the position does not belong to.
func (f *Feed) identify(s repl.Server, at dtx.LSN) error {
	want := &f.o.Expect
	if want.SystemID == "" {
		*want = Identity{s.SystemID, s.Timeline}
	}
	e := &dtx.Error{Op: "check source", Content: dtx.AtContent(f.o.Content), LSN: at, Class: dtx.ClassStop}
	switch {
	case s.SystemID != want.SystemID:
		e.Msg = fmt.Sprintf("the server has system identifier %s, but the recorded position belongs to %s: it is another server, or was made anew", s.SystemID, want.SystemID)
		e.Hint = "Correct the connection string; if the server was replaced, this content needs a new initial copy"
	case s.Timeline != want.Timeline:
		e.Msg = fmt.Sprintf("content %d needs resync: the server is on timeline %d, but the recorded position belongs to timeline %d: a mirror was promoted, or the server was restored", f.o.Content, s.Timeline, want.Timeline)
		e.Hint = "Changes may be missing from its log: this content needs a new initial copy"
	case s.WALEnd < at:
		e.Msg = fmt.Sprintf("content %d needs resync: the server's log ends at %s, before %s, which it has sent already: it was taken back to an older state (a disk snapshot or a backup)", f.o.Content, s.WALEnd, at)
		e.Hint = "What it has sent since that state may be on the target but not there: this content needs a new initial copy"
	default:
		return nil
	}
	return e
}
