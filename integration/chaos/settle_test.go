package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/subscription/status"
)

// drainLimit is how long the daemon may take to apply what is there, on a
// machine that does much else.
const drainLimit = 3 * time.Minute

// memoryLimit bounds the daemon's memory, in KiB.
const memoryLimit = 512 << 10

// round runs load and faults for d, then settles everything and compares.
func (w *world) round(ctx context.Context, r *rand.Rand, d time.Duration) error {
	loadCtx, stopLoad := context.WithCancel(ctx)
	defer stopLoad()
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		w.load(loadCtx)
	}()
	w.ensure("")
	for end := time.Now().Add(d); time.Now().Before(end) && ctx.Err() == nil; {
		pause(ctx, r, 0, 1500*time.Millisecond)
		w.ensure("")
		began := time.Now()
		what := w.act(ctx, r)
		w.logf("%4.1f s: %s", time.Since(began).Seconds(), what)
		w.measure()
		if r.IntN(4) == 0 {
			rctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			if _, err := w.src.Recover(rctx); err != nil {
				w.logf("recover: %v", err)
			}
			cancel()
		}
	}
	stopLoad()
	<-loaded
	rec, err := w.recover(ctx)
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	w.logf("load: %d commits, %d failed, %d dispatcher crashes, recovered %+v; %d daemons so far", w.commits.Load(), w.fails.Load(), w.crashes.Load(), rec, w.procs)
	return w.settle(ctx)
}

// settle drains and checks everything that must hold when nothing goes on.
func (w *world) settle(ctx context.Context) error {
	rep, err := w.drain(ctx)
	if err != nil {
		return err
	}
	if len(rep.Conflicts) > 0 {
		w.problem("conflicts: %v", rep.Conflicts)
	}
	if err := w.same(ctx); err != nil {
		return err
	}
	for _, s := range w.dst.Nodes()[1:] {
		if v, err := ask(ctx, s, "select count(*)::text from pg_prepared_xacts"); err != nil || v != "0" {
			w.problem("%s prepared transactions on %s (%v)", v, s.Name(), err)
		}
	}
	if err := w.positions(ctx); err != nil {
		return err
	}
	w.measure()
	if w.maxRSS > memoryLimit {
		w.problem("a daemon used %d MiB", w.maxRSS>>10)
	}
	w.logf("most memory of a daemon: %d MiB", w.maxRSS>>10)
	return w.leaks()
}

// drain waits until everything written up to now is applied and recorded.
func (w *world) drain(ctx context.Context) (*status.Report, error) {
	ends, err := w.src.Ends(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	for {
		w.ensure("")
		rep := w.report(ctx)
		if rep != nil && rep.Reached(ends) {
			w.logf("drained in %.1f s", time.Since(began).Seconds())
			return rep, nil
		}
		if time.Since(began) > drainLimit || ctx.Err() != nil {
			w.logf("%s", w.statusText(context.WithoutCancel(ctx)))
			w.evidence(context.WithoutCancel(ctx), rep)
			w.cur.expected = true
			w.cur.signal(syscall.SIGQUIT)
			<-w.cur.done
			return nil, fmt.Errorf("not drained after %s; the daemon's goroutines are in %s", drainLimit, w.cur.log)
		}
		sleep(ctx, 100*time.Millisecond)
	}
}

// evidence shows what the source's log says of the transactions waited for.
func (w *world) evidence(ctx context.Context, rep *status.Report) {
	if rep == nil {
		return
	}
	for _, wait := range rep.Waits[:min(len(rep.Waits), 2)] {
		n, err := ask(ctx, w.src.Nodes()[0], fmt.Sprintf("select count(*)::text from cbrepl_lab.decision where gxid = %d", wait.GXID))
		w.mu.Lock()
		failed := w.failed[dtx.GXID(wait.GXID)]
		w.mu.Unlock()
		w.logf("gxid %d: %s decisions (%v), missing %v, in the load: %v", wait.GXID, n, err, wait.Missing, failed)
		for _, s := range w.src.Nodes()[1:] {
			first, err := ask(ctx, s, "select min(name) from pg_ls_waldir() where name ~ '^[0-9A-F]{24}$'")
			if err != nil {
				w.logf("%s: %v", s.Name(), err)
				continue
			}
			// It ends with an error at the end of the log.
			out, _ := exec.CommandContext(ctx, filepath.Join(w.lab.BinDir(), "pg_waldump"), "-r", "Transaction", "-p", filepath.Join(s.DataDir(), "pg_wal"), first).Output()
			for l := range strings.Lines(string(out)) {
				if strings.Contains(l, fmt.Sprintf("gid %d:", wait.GXID)) {
					w.logf("%s: %s", s.Name(), strings.TrimSpace(l))
				}
			}
		}
	}
}

// same compares the clusters, and the bank's total with what it began with.
func (w *world) same(ctx context.Context) error {
	rep, err := lab.Compare(ctx, w.src, w.dst)
	if err != nil {
		return err
	}
	if !rep.OK() {
		w.problem("the clusters differ:\n%s", rep)
		for _, t := range rep.Tables {
			for _, e := range t.Examples {
				w.logf("%s %.200s", t.Table, e)
			}
		}
	}
	n, err := w.dst.Total(ctx, bank, "balance")
	if err == nil && n != accounts*balance {
		w.problem("the bank's total is %d", n)
	}
	return err
}

// positions requires that no slot is beyond what the target records.
func (w *world) positions(ctx context.Context) error {
	for _, c := range w.src.Contents() {
		confirmed, err1 := ask(ctx, w.src.Node(c), "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = 'cbrepl_chaos'")
		recorded, err2 := ask(ctx, w.dst.Node(dtx.Coordinator), fmt.Sprintf("select lsn::text from cbrepl.positions where subscription = 'chaos' and content = %d", c))
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		a, err1 := dtx.ParseLSN(confirmed)
		b, err2 := dtx.ParseLSN(recorded)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if a > b && !w.set.Spooled {
			w.problem("content %d: confirmed %s is beyond the recorded %s", c, confirmed, recorded)
		}
	}
	return nil
}

// leaks looks for row values, passwords and broken programs in the daemons' logs.
func (w *world) leaks() error {
	files, err := filepath.Glob(filepath.Join(w.dir, "daemon-*.log"))
	if err != nil {
		return err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		for l := range strings.Lines(string(b)) {
			for _, bad := range []string{canary, password, "panic", "DATA RACE"} {
				if strings.Contains(l, bad) {
					w.problem("%s holds %q: %.300s", filepath.Base(f), bad, l)
				}
			}
		}
	}
	return nil
}
