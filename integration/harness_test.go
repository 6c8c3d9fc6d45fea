// Package integration tests the whole daemon on real servers: clusters of
// package lab, the subscription in this process, and the built binary where a
// process must be killed or its exit code counts.
package integration

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"cbrepl/dtx"
	"cbrepl/integration/internal/built"
	"cbrepl/lab"
	"cbrepl/subscription"
	"cbrepl/subscription/config"
	"cbrepl/subscription/status"
)

// binary is the built cbrepl.
var binary string

func TestMain(m *testing.M) { os.Exit(built.Main(m, &binary)) }

// limit bounds one wait in a test.
const limit = 60 * time.Second

// pair is a source and a target with a subscription between them.
type pair struct {
	t    *testing.T
	src  *lab.Source
	dst  *lab.TargetCluster
	sub  *lab.Subscription
	cfg  *config.Config
	file string // of the subscription
	dir  string
}

// newPair starts clusters of n and m segments for one test.
func newPair(t *testing.T, n, m int, o lab.Options) *pair {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*limit)
	defer cancel()
	began := time.Now()
	o.KeepTemplate = true
	l, err := lab.New(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	p := &pair{t: t, dir: t.TempDir()}
	var g errgroup.Group
	g.Go(func() (err error) { p.src, err = l.StartSource(ctx, n); return err })
	g.Go(func() (err error) { p.dst, err = l.StartTarget(ctx, m); return err })
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d and %d segments started in %.1f s", n, m, time.Since(began).Seconds())
	return p
}

// tables makes tables on both sides.
func (p *pair) tables(ts ...lab.Table) {
	p.t.Helper()
	for _, tb := range ts {
		for _, c := range []interface {
			CreateTable(context.Context, lab.Table) error
		}{p.src, p.dst} {
			p.must(c.CreateTable(p.ctx(), tb))
		}
	}
}

// describe writes the subscription's file, after f has changed what is in it.
func (p *pair) describe(name string, f func(*lab.Subscription)) {
	p.t.Helper()
	var err error
	p.sub, err = lab.NewSubscription(name, p.dir, p.src, p.dst.DSNs())
	p.must(err)
	p.sub.Set("source.status_interval", "500ms")
	if f != nil {
		f(p.sub)
	}
	p.file = filepath.Join(p.dir, name+".yaml")
	p.must(p.sub.Write(p.file))
	p.cfg, err = config.Load(config.Sources{File: p.file})
	p.must(err)
}

// variant writes a changed copy of the subscription's file.
func (p *pair) variant(f func(*lab.Subscription)) string {
	p.t.Helper()
	s := p.sub.Clone()
	f(s)
	file := filepath.Join(p.dir, "variant.yaml")
	p.must(s.Write(file))
	return file
}

// with is a variant with one key set.
func (p *pair) with(key string, value any) string {
	p.t.Helper()
	return p.variant(func(s *lab.Subscription) { s.Set(key, value) })
}

// configure writes the subscription's file, prepares the target and makes slots.
func (p *pair) configure(name string) {
	p.t.Helper()
	p.configureWith(name, nil)
}

// configureWith is configure with a file that f has changed.
func (p *pair) configureWith(name string, f func(*lab.Subscription)) {
	p.t.Helper()
	p.describe(name, f)
	p.must(subscription.PrepareTarget(p.ctx(), p.cfg))
	_, err := subscription.CreateSlots(p.ctx(), p.cfg, 0, nil)
	p.must(err)
}

func (p *pair) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// ctx is a context for one step of a test.
func (p *pair) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	p.t.Cleanup(cancel)
	return ctx
}

// same requires that both sides hold the same rows in the right places.
func (p *pair) same(tables ...string) {
	p.t.Helper()
	r, err := lab.Compare(p.ctx(), p.src, p.dst, tables...)
	p.must(err)
	if !r.OK() {
		p.t.Errorf("the clusters differ:\n%s", r)
		for _, tb := range r.Tables {
			for _, e := range tb.Examples {
				p.t.Logf("%s %.200s", tb.Table, e)
			}
		}
	}
}

// confirmed reads the slots' confirmed positions.
func (p *pair) confirmed() map[dtx.Content]dtx.LSN {
	p.t.Helper()
	out := map[dtx.Content]dtx.LSN{}
	for _, c := range p.src.Contents() {
		lsn, err := dtx.ParseLSN(p.ask(p.src.Node(c), "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = '"+p.cfg.Source.Slot+"'"))
		p.must(err)
		out[c] = lsn
	}
	return out
}

// ask reads one value as text.
func (p *pair) ask(s *lab.Server, sql string) string {
	p.t.Helper()
	v, err := askText(p.ctx(), s.DSN(), sql)
	p.must(err)
	return v
}

// eventually waits until f is true.
func (p *pair) eventually(what string, f func() bool) {
	p.t.Helper()
	eventually(p.t, what, f)
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); time.Now().Before(end); <-tick.C {
		if f() {
			return
		}
	}
	t.Fatalf("%s: not within %s", what, limit)
}

// daemon is a subscription in this process.
type daemon struct {
	p    *pair
	sub  *subscription.Subscription
	log  *syncBuffer
	stop context.CancelFunc
	done chan struct{}
	err  error
}

// start runs the subscription in this process; it is stopped with the test.
func (p *pair) start(after func(context.Context, *dtx.Batch) error) *daemon {
	p.t.Helper()
	d := &daemon{p: p, log: &syncBuffer{}, done: make(chan struct{})}
	var err error
	d.sub, err = subscription.New(subscription.Options{
		Config: p.cfg, Version: "test", AfterBatch: after,
		Log: slog.New(slog.NewTextHandler(d.log, &slog.HandlerOptions{Level: slog.LevelInfo})),
	})
	p.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	d.stop = cancel
	go func() {
		defer close(d.done)
		d.err = d.sub.Run(ctx)
	}()
	p.t.Cleanup(func() {
		cancel()
		<-d.done
		if p.t.Failed() {
			p.t.Logf("the daemon's log:\n%s", tail(d.log.String(), 40))
		}
	})
	p.eventually("the daemon streams", func() bool {
		d.alive()
		return d.sub.Report().State == status.Streaming
	})
	return d
}

// alive fails the test when the daemon has ended.
func (d *daemon) alive() {
	d.p.t.Helper()
	select {
	case <-d.done:
		d.p.t.Fatalf("the daemon has ended: %v", d.err)
	default:
	}
}

// end stops the daemon and returns its error.
func (d *daemon) end() error {
	d.stop()
	<-d.done
	return d.err
}

// drain waits until everything written up to now is applied and recorded.
func (d *daemon) drain() {
	d.p.t.Helper()
	ends, err := d.p.src.Ends(d.p.ctx())
	d.p.must(err)
	d.p.eventually("drained", func() bool {
		d.alive()
		rep := d.sub.Report()
		return rep.Reached(ends)
	})
}

// process is the binary, running.
type process struct {
	p      *pair
	cmd    *exec.Cmd
	stderr *syncBuffer
	done   chan struct{}
	err    error
}

// spawn starts "cbrepl run" for the pair's file.
func (p *pair) spawn(env ...string) *process {
	p.t.Helper()
	r := &process{p: p, stderr: &syncBuffer{}, done: make(chan struct{})}
	r.cmd = exec.Command(binary, "run", "-c", p.file)
	r.cmd.Env = append(os.Environ(), env...)
	r.cmd.Stderr = r.stderr
	p.must(r.cmd.Start())
	go func() {
		defer close(r.done)
		r.err = r.cmd.Wait()
	}()
	p.t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.done
		if p.t.Failed() {
			p.t.Logf("the daemon's log:\n%s", tail(r.stderr.String(), 25))
		}
	})
	return r
}

// kill ends the process at once.
func (r *process) kill() {
	_ = r.cmd.Process.Kill()
	<-r.done
}

// terminate asks the process to end and returns its exit code.
func (r *process) terminate() int {
	r.p.t.Helper()
	r.p.must(r.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-r.done:
	case <-time.After(limit):
		r.p.t.Fatalf("the daemon has not ended %s after SIGTERM", limit)
	}
	return r.cmd.ProcessState.ExitCode()
}

func (r *process) running() bool {
	select {
	case <-r.done:
		return false
	default:
		return true
	}
}

// report fetches the process's status; nil while it does not answer.
func (r *process) report() *status.Report {
	r.p.t.Helper()
	if !r.running() {
		r.p.t.Fatalf("the daemon has ended: %v\n%s", r.err, tail(r.stderr.String(), 10))
	}
	return r.look()
}

// answer waits for the process's status.
func (r *process) answer() (rep *status.Report) {
	r.p.t.Helper()
	r.p.eventually("the daemon answers", func() bool { rep = r.report(); return rep != nil })
	return rep
}

// look is report for a process that may end at any moment.
func (r *process) look() *status.Report {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	rep, _, err := status.Fetch(ctx, r.p.cfg.HTTP.Listen)
	if err != nil {
		return nil
	}
	return rep
}

// drain waits until everything written up to now is applied and recorded.
func (r *process) drain() {
	r.p.t.Helper()
	ends, err := r.p.src.Ends(r.p.ctx())
	r.p.must(err)
	r.p.eventually("drained", func() bool {
		rep := r.report()
		return rep != nil && rep.Reached(ends)
	})
}

// load runs the workload until stop is called.
func (p *pair) load(seed uint64, shape ...func(*lab.Workload)) (w *lab.Workload, stop func()) {
	p.t.Helper()
	w = lab.NewWorkload(p.src, seed)
	for _, f := range shape {
		f(w)
	}
	p.must(w.Fill(p.ctx()))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				p.t.Errorf("load: %v", err)
			}
		})
	}
	p.t.Cleanup(stop)
	return w, stop
}

// command runs the binary to its end.
func command(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// syncBuffer is a buffer for one writer and any reader.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func tail(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
