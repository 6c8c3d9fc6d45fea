package subscription

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/check"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
	"cbrepl/subscription/config"
	"cbrepl/subscription/status"
)

// startup is an env that notes what is called, and fails where told.
type startup struct {
	mu     sync.Mutex
	calls  []string
	failAt string
	state  apply.State
	// passing is how many times "run" fails with fault.
	passing int
	fault   error
	// hang, when set, gives the target a batch, which returns when it is closed.
	hang chan struct{}
	// applied is what the spool knows of the target.
	applied apply.Record
}

func (s *startup) call(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, name)
	if name == "run" && s.passing > 0 {
		s.passing--
		return s.fault
	}
	if name == s.failAt {
		return &dtx.Error{Op: name, Msg: "told to fail", Class: dtx.ClassStop}
	}
	return nil
}

func (s *startup) trace() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.calls, " ")
}

type startTarget struct{ s *startup }

func (t startTarget) Check(context.Context) (apply.State, check.Report) {
	return apply.State{}, check.Report{Findings: check.Of(check.Target, t.s.call("check"))}
}

func (t startTarget) Open(context.Context) (apply.State, error) {
	return t.s.state, t.s.call("open")
}

func (t startTarget) RecordTables(context.Context, []catalog.ReplicatedTable) error { return nil }

func (t startTarget) Init(context.Context, apply.Beginning) error { return t.s.call("init") }

func (t startTarget) Apply(context.Context, *dtx.Batch, apply.Rows) (apply.Result, error) {
	if t.s.hang != nil {
		_ = t.s.call("apply")
		<-t.s.hang
	}
	return apply.Result{}, nil
}
func (t startTarget) Close() error { return t.s.call("close-target") }

type startSpool struct {
	rigSpool
	s *startup
}

func (p startSpool) Held() map[dtx.Content]dtx.LSN { return nil }
func (p startSpool) LastApplied() apply.Record     { return p.s.applied }
func (p startSpool) Close() error                  { return p.s.call("close-spool") }
func (p startSpool) Applied(apply.Record) error    { return nil }
func (p startSpool) Release([]dtx.Part) error      { return nil }

type startStream struct{ s *startup }

func (x startStream) Run(ctx context.Context, _ dtx.LSN, emit func(context.Context, dtx.Event) error) error {
	if err := x.s.call("run"); err != nil {
		return err
	}
	if x.s.hang != nil {
		if err := emit(ctx, dtx.Event{Kind: dtx.EventPosition, Content: dtx.Coordinator, LSN: 100}); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}
func (x startStream) Confirm(dtx.LSN)      {}
func (x startStream) Facts() status.Stream { return status.Stream{Content: -1, Connected: true} }

func (s *startup) env() *env {
	return &env{
		source: func(context.Context) (*sourceFacts, error) {
			return &sourceFacts{}, s.call("source")
		},
		checkResume: func(*sourceFacts, apply.State, map[dtx.Content]dtx.LSN) error { return s.call("resume") },
		target:      func(*sourceFacts) (apply.Target, error) { return startTarget{s}, nil },
		spool:       func(context.Context) (openSpool, error) { return startSpool{s: s}, s.call("spool") },
		streams: func(*sourceFacts, apply.State, openSpool) ([]ContentStream, error) {
			return []ContentStream{{-1, startStream{s}}}, s.call("streams")
		},
	}
}

// begin runs a subscription; stop tells it to end and returns what it ended with.
func begin(s *Subscription) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return func() error {
		cancel()
		return <-done
	}
}

func startConfig(t *testing.T, extra string) *config.Config {
	t.Helper()
	f := filepath.Join(t.TempDir(), "s.yaml")
	if err := os.WriteFile(f, []byte(config.Example+extra), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Sources{File: f, Env: []string{"CBREPL_HTTP_LISTEN=127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Nothing is changed before every check that can be made without changing
// anything has passed, and whatever was opened is closed, in reverse order.
func TestStartOrder(t *testing.T) {
	for _, tc := range []struct {
		failAt      string
		initialized bool
		want        string
	}{
		{"source", false, "source"},
		{"check", false, "source check close-target"},
		{"open", false, "source check open close-target"},
		{"spool", false, "source check open spool close-target"},
		{"resume", true, "source check open spool resume close-spool close-target"},
		{"streams", true, "source check open spool resume streams close-spool close-target"},
		{"run", true, "source check open spool resume streams run close-spool close-target"},
	} {
		s := &startup{failAt: tc.failAt, state: apply.State{Initialized: tc.initialized}}
		sub, err := New(Options{Config: startConfig(t, ""), private: s.env()})
		if err != nil {
			t.Fatal(err)
		}
		if err := sub.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "told to fail") {
			t.Errorf("%s: %v", tc.failAt, err)
		}
		if got := s.trace(); got != tc.want {
			t.Errorf("failing at %s did\n%s\nwant\n%s", tc.failAt, got, tc.want)
		}
		if r := sub.Report(); r.State != status.Stopped || r.LastError == nil || r.Healthy {
			t.Errorf("%s: status %+v", tc.failAt, r)
		}
	}
}

// Tables that are copied in part are not streamed into.
func TestUnfinishedCopy(t *testing.T) {
	copies := []apply.TableCopy{{Table: catalog.Name{Schema: "a", Table: "whole"}, State: apply.Copied}}
	for i := range 12 {
		copies = append(copies, apply.TableCopy{Table: catalog.Name{Schema: "a", Table: fmt.Sprint("part", i)}, State: []apply.CopyState{apply.CopyWaiting, apply.Copying}[i%2]})
	}
	s := &startup{state: apply.State{Initialized: true, Copies: copies}}
	c := startConfig(t, "")
	c.HTTP.Listen = config.Off
	sub, err := New(Options{Config: c, private: s.env()})
	if err != nil {
		t.Fatal(err)
	}
	dtxtest.WantError(t, sub.Run(t.Context()), dtx.ClassStop, "first copy of 12 tables is not finished: a.part0, a.part1", "a.part9, and 2 more")
	if got := s.trace(); got != "source check open close-target" {
		t.Errorf("it did %s", got)
	}
}

// A target that does not say where the subscription begins is not taken for a new
// one, and one that is behind what the spool knows is refused: with the remedy, and
// before anything is changed.
func TestUnknownBeginning(t *testing.T) {
	for _, tc := range []struct {
		state apply.State
		spool apply.Record
		want  []string
	}{
		{apply.State{Token: "t"}, apply.Record{}, []string{"does not record where this subscription begins", "cbrepl subscription reset"}},
		{apply.State{Token: "t"}, apply.Record{Token: "t", Batch: 3}, []string{"has run up to batch 3", "cbrepl subscription reset"}},
		{apply.State{Token: "u", Initialized: true, Batch: 9}, apply.Record{Token: "t", Batch: 3}, []string{"is not the one that was written up to batch 3", "cbrepl subscription reset"}},
		{apply.State{Token: "t", Initialized: true, Batch: 2}, apply.Record{Token: "t", Batch: 3}, []string{"is at batch 2", "commit batch 3", "cbrepl subscription reset"}},
	} {
		s := &startup{state: tc.state, applied: tc.spool}
		sub, err := New(Options{Config: startConfig(t, ""), private: s.env()})
		if err != nil {
			t.Fatal(err)
		}
		dtxtest.WantError(t, sub.Run(t.Context()), dtx.ClassStop, tc.want...)
		if got, want := s.trace(), "source check open spool close-spool close-target"; got != want {
			t.Errorf("it did\n%s\nwant\n%s", got, want)
		}
	}
}

// A passing fault of this machine begins a new life from the target's record.
func TestNewLife(t *testing.T) {
	for name, fault := range map[string]error{
		"a full disk": &dtx.Error{Op: "run", Msg: "disk full"},
		// What is published may have been altered with the target.
		"tables that do not fit": check.Findings{{Relation: "public.t", Found: "column b is missing"}}.Err("check target tables"),
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { testNewLife(t, fault) }) })
	}
}

func testNewLife(t *testing.T, fault error) {
	{
		s := &startup{state: apply.State{Initialized: true}, passing: 2, fault: fault}
		c := startConfig(t, "")
		c.HTTP.Listen = config.Off
		sub, err := New(Options{Config: c, private: s.env()})
		if err != nil {
			t.Fatal(err)
		}
		stop := begin(sub)
		time.Sleep(time.Minute)
		synctest.Wait()
		life := "source check open spool resume streams run"
		if got, want := s.trace(), strings.Repeat(life+" close-spool close-target ", 2)+life; got != want {
			t.Errorf("it did\n%s\nwant\n%s", got, want)
		}
		if r := sub.Report(); r.State != status.Streaming || r.LastError == nil || r.LastError.Stops {
			t.Errorf("status %+v", r)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

// A source that cannot be reached is tried again for as long as it lasts, at the
// first start as later; meanwhile what is in doubt on the target is resolved,
// once.
func TestFirstConnectionIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &startup{state: apply.State{Initialized: true}}
		e := s.env()
		starts := 0
		e.source = func(context.Context) (*sourceFacts, error) {
			if starts++; starts <= 5 {
				return nil, &dtx.Error{Op: "check source", Msg: "a server is down", Class: dtx.ClassRetry}
			}
			return &sourceFacts{}, s.call("source")
		}
		c := startConfig(t, "")
		c.HTTP.Listen = config.Off
		sub, err := New(Options{Config: c, private: e})
		if err != nil {
			t.Fatal(err)
		}
		stop := begin(sub)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if r := sub.Report(); r.State != status.Starting || r.Healthy || !strings.Contains(r.Unhealthy[0], "a server is down") {
			t.Errorf("while it is down: %s, %v", r.State, r.Unhealthy)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got, want := s.trace(), "open close-target source check open spool resume streams run"; got != want {
			t.Errorf("it did\n%s\nwant\n%s", got, want)
		}
		if r := sub.Report(); r.State != status.Streaming || starts != 6 {
			t.Errorf("%d starts, status %+v", starts, r)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Nothing is closed under a call of the target that does not return, and no
// other life begins beside it.
func TestHangingTargetIsNotClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &startup{state: apply.State{Initialized: true, Positions: []dtx.Position{{Content: -1, LSN: 50}}}, hang: make(chan struct{})}
		c := startConfig(t, "")
		c.HTTP.Listen = config.Off
		sub, err := New(Options{Config: c, private: s.env()})
		if err != nil {
			t.Fatal(err)
		}
		stop := begin(sub)
		time.Sleep(time.Minute)
		if err := stop(); !errors.Is(err, errTargetHangs) {
			t.Errorf("stopped with %v", err)
		}
		if got, want := s.trace(), "source check open spool resume streams run apply"; got != want {
			t.Errorf("it did\n%s\nwant\n%s", got, want)
		}
		close(s.hang)
	})
}

// Being told to stop while the start is under way is no error, whatever the
// step that it interrupts makes of it.
func TestStopWhileStarting(t *testing.T) {
	for name, wrap := range map[string]func(error) error{
		"as it is": func(err error) error { return err },
		"wrapped": func(err error) error {
			return &dtx.Error{Op: "open target", Class: dtx.ClassRetry, Err: errors.Join(fmt.Errorf("stopped: %w", err), errors.New("gone"))}
		},
		"lost": func(error) error {
			return &dtx.Error{Op: "open target", Class: dtx.ClassRetry, Msg: "the connection was lost"}
		},
	} {
		s := &startup{state: apply.State{Initialized: true}}
		e := s.env()
		reached := make(chan struct{})
		e.source = func(ctx context.Context) (*sourceFacts, error) {
			close(reached)
			<-ctx.Done()
			return nil, wrap(ctx.Err())
		}
		sub, err := New(Options{Config: startConfig(t, ""), private: e})
		if err != nil {
			t.Fatal(err)
		}
		stop := begin(sub)
		<-reached
		if err := stop(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// With on_stop: wait a stopped subscription stays inspectable until ctx ends,
// and Run returns its error then.
func TestStoppedStaysInspectable(t *testing.T) {
	s := &startup{failAt: "resume", state: apply.State{Initialized: true}}
	c := startConfig(t, "on_stop: wait\n")
	c.HTTP.Listen = freeAddress(t)
	sub, err := New(Options{Config: c, private: s.env()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sub.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for end := time.Now().Add(10 * time.Second); ; <-time.After(5 * time.Millisecond) {
		if resp, err := client.Get("http://" + c.HTTP.Listen + "/healthz"); err == nil {
			_ = resp.Body.Close()
			if r, _, err := status.Fetch(ctx, c.HTTP.Listen); err == nil && r.State == status.Stopped {
				if resp.StatusCode != http.StatusServiceUnavailable && resp.StatusCode != http.StatusOK || !r.LastError.Stops {
					t.Errorf("%d %+v", resp.StatusCode, r)
				}
				break
			}
		}
		if time.Now().After(end) {
			t.Fatal("not stopped within 10 s")
		}
	}
	select {
	case err := <-done:
		t.Fatalf("Run has returned: %v", err)
	default:
	}
	cancel()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "told to fail") {
		t.Error(err)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := listenLoopback()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// A daemon whose address is taken says by whom.
func TestAddressTaken(t *testing.T) {
	l, err := listenLoopback()
	if err != nil {
		t.Fatal(err)
	}
	b := status.NewBoard("dr_site", "test", 4711, time.Now())
	h, err := status.Handler(func() status.Report { return b.Report(time.Now()) })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	c := startConfig(t, "")
	c.HTTP.Listen = l.Addr().String()
	s := &startup{}
	sub, err := New(Options{Config: c, private: s.env()})
	if err != nil {
		t.Fatal(err)
	}
	go func() { done <- status.Serve(ctx, l, h, sub.log) }()
	err = sub.Run(t.Context())
	var e *dtx.Error
	if !errors.As(err, &e) || !strings.Contains(err.Error(), "a daemon of subscription dr_site (pid 4711)") || !strings.Contains(err.Error(), "stop that one first") {
		t.Error(err)
	}
	if s.trace() != "" {
		t.Errorf("it went on: %s", s.trace())
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func listenLoopback() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }
