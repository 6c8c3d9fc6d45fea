// Package feedtest feeds a sink by hand, as package feed does from a server.
package feedtest

import (
	"context"
	"testing"

	"cbrepl/dtx"
	"cbrepl/pgoutput/pgotest"
	"cbrepl/source/stream/carrier"
	"cbrepl/source/stream/feed"
	"cbrepl/source/stream/repl"
)

// ServerVersion is what the sink takes for the server's version.
const ServerVersion = "15.99"

// Rig is a sink with what it has reported.
type Rig struct {
	T testing.TB
	// Out is where the sink's events go, every position at once.
	Out *feed.Out
	// Events are those passed on; whoever has looked at them may cut them off.
	Events []dtx.Event

	sink feed.Sink
}

// New begins the stream of a content at start.
func New(t testing.TB, c dtx.Content, start dtx.LSN, s feed.Sink) *Rig {
	t.Helper()
	r := &Rig{T: t}
	r.Restart(c, start, s)
	return r
}

// Restart begins anew with another sink, as a new daemon does. Events stay.
func (r *Rig) Restart(c dtx.Content, start dtx.LSN, s feed.Sink) {
	r.T.Helper()
	r.sink = s
	r.Out = feed.NewOut(c, start, -1, func(_ context.Context, ev dtx.Event) error {
		r.Events = append(r.Events, ev)
		return nil
	})
	r.Reset()
}

// Reset is a new connection.
func (r *Rig) Reset() {
	r.T.Helper()
	if err := r.sink.Reset(repl.Server{VersionText: ServerVersion}, repl.Slot{}); err != nil {
		r.T.Fatal(err)
	}
}

// Feed hands messages to the sink until one fails.
func (r *Rig) Feed(msgs ...[]byte) error {
	for _, m := range msgs {
		if err := r.sink.Message(context.Background(), r.Out, 0xABC, m); err != nil {
			return err
		}
	}
	return nil
}

// Must hands messages to the sink, none of which may fail.
func (r *Rig) Must(msgs ...[]byte) {
	r.T.Helper()
	if err := r.Feed(msgs...); err != nil {
		r.T.Fatal(err)
	}
}

// Part is the message that names a transaction's dtx.
func Part(xid dtx.XID, gxid dtx.GXID, kind dtx.Kind) []byte {
	return pgotest.Message(xid, true, 5, carrier.DefaultPartPrefix, carrier.AppendPart(nil, carrier.Identity{GXID: gxid, Kind: kind}))
}

// Join packs messages of at most 255 bytes into the input of a fuzz test.
func Join(msgs ...[]byte) []byte {
	var b []byte
	for _, m := range msgs {
		b = append(append(b, byte(len(m))), m...)
	}
	return b
}

// FeedJoined hands the messages of a fuzz test's input to the sink until one fails.
func (r *Rig) FeedJoined(b []byte) {
	for len(b) > 0 {
		n := min(int(b[0]), len(b)-1)
		if r.Feed(b[1:1+n]) != nil {
			return
		}
		b = b[1+n:]
	}
}
