package feed

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"cbrepl/dtx"
	"cbrepl/source/stream/repl"
)

type deafSink struct{ closed int }

func (*deafSink) Reset(repl.Server, repl.Slot) error                   { return nil }
func (*deafSink) Message(context.Context, *Out, dtx.LSN, []byte) error { return nil }
func (*deafSink) Quiet() bool                                          { return true }
func (s *deafSink) Close() error                                       { s.closed++; return nil }

// TestRetries: a server that cannot be reached is tried again and again, shows in
// the state, and is told once.
func TestRetries(t *testing.T) {
	var logs strings.Builder
	sink := &deafSink{}
	f, err := New(Options{
		Content: 4, DSN: "postgres://u:canary@127.0.0.1:1/x?sslmode=disable", Slot: "s", Publication: "p",
		BackoffMin: time.Millisecond, BackoffMax: 2 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&logs, nil)),
	}, sink)
	if err != nil {
		t.Fatal(err)
	}
	f.Confirm(70)
	f.Confirm(60)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx, 50, func(context.Context, dtx.Event) error { return nil }) }()
	deadline := time.Now().Add(20 * time.Second)
	for f.Stats().Reconnects < 20 {
		if time.Now().After(deadline) {
			t.Fatalf("%+v", f.Stats())
		}
		<-time.After(time.Millisecond)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || sink.closed != 1 {
		t.Errorf("%v, closed %d times", err, sink.closed)
	}
	s := f.Stats()
	if s.Connected || s.ConfirmedLSN != 70 || s.ReportedLSN != 50 || !strings.Contains(s.LastError, "content 4") {
		t.Errorf("%+v", s)
	}
	if n := strings.Count(logs.String(), "\n"); n != 1 {
		t.Errorf("%d log lines:\n%s", n, logs.String())
	}
	if strings.Contains(s.LastError+logs.String(), "canary") {
		t.Error("the password is printed")
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{
		{},
		{DSN: "x", Slot: "Bad Name", Publication: "p"},
		{DSN: "x", Slot: "s", Publication: "p", BackoffMin: time.Hour},
		{DSN: "x", Slot: "s", Publication: "p", StatusInterval: -1},
	} {
		if _, err := New(o, nil); err == nil || dtx.ClassOf(err) != dtx.ClassStop {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
