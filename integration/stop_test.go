package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/subscription/status"
)

// secret is a row value that must stay in the rows.
const secret = "cAnArY-row-value"

// A conflict stops the subscription: the error names table and gxid, everything
// before it is applied and nothing of it is; on_stop: wait keeps status up;
// after the repair it goes on. Passwords and row values come out nowhere
// (field case 39).
func TestConflictStopsAndResumes(t *testing.T) {
	p := newPair(t, 2, 2, lab.Options{})
	p.tables(lab.Table{Name: "t", Columns: "id int8 primary key, v text", Key: []string{"id"}})
	p.configure("conflict")
	p.withPassword()
	p.sub.Set("on_stop", "wait")
	p.sub.Set("log.level", "debug")
	p.must(p.sub.Write(p.file))

	insert := func(id int) dtx.GXID {
		var g dtx.GXID
		p.must(p.src.Do(p.ctx(), func(tx *lab.Tx) error {
			g = tx.GXID()
			return tx.Insert(p.ctx(), "t", lab.Row{id, secret})
		}))
		return g
	}
	const n, culprit = 200, 150
	home, err := p.dst.SegmentOf(p.ctx(), "t", culprit)
	p.must(err)
	p.must(p.dst.Exec(p.ctx(), home, "insert into t values ($1, 'somebody wrote here')", culprit))
	var gxid dtx.GXID
	for id := 1; id <= n; id++ {
		if g := insert(id); id == culprit {
			gxid = g
		}
	}
	r := p.spawn() // all of it is one batch
	p.eventually("stopped", func() bool { rep := r.report(); return rep != nil && rep.State == status.Stopped })
	rep := r.answer()
	if rep.LastError == nil || rep.LastError.GXID != uint64(gxid) || rep.LastError.Relation != "public.t" || !rep.LastError.Stops {
		t.Errorf("last error %+v, want gxid %d", rep.LastError, gxid)
	}
	// What stands before it in its own segment's stream is applied; of the other
	// segment's one-phase transactions, any may be.
	segment, err := p.src.SegmentOf(p.ctx(), "t", culprit)
	p.must(err)
	for id := 1; id < culprit; id++ {
		from, err := p.src.SegmentOf(p.ctx(), "t", id)
		p.must(err)
		to, err := p.dst.SegmentOf(p.ctx(), "t", id)
		p.must(err)
		if from == segment && p.ask(p.dst.Node(to), fmt.Sprintf("select count(*)::text from t where id = %d", id)) != "1" {
			t.Errorf("row %d stands before gxid %d and is not applied", id, gxid)
		}
	}

	get := func(path string) (int, string) {
		resp, err := http.Get("http://" + p.cfg.HTTP.Listen + path)
		p.must(err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		p.must(err)
		return resp.StatusCode, string(b)
	}
	var seen strings.Builder
	code, body := get("/healthz")
	if code != http.StatusServiceUnavailable || !strings.Contains(body, "stopped") {
		t.Errorf("healthz %d %s", code, body)
	}
	seen.WriteString(body)
	for _, path := range []string{"/status", "/metrics"} {
		_, body := get(path)
		seen.WriteString(body)
	}
	c, stdout, stderr := command(t, nil, "status", "--addr", p.cfg.HTTP.Listen)
	if c != 4 || !strings.Contains(stdout, fmt.Sprintf("gxid %d", gxid)) || !strings.Contains(stdout, "NOT HEALTHY") {
		t.Errorf("status %d\n%s%s", c, stdout, stderr)
	}
	seen.WriteString(stdout + stderr)
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", r.cmd.Process.Pid)); err == nil {
		seen.Write(b)
	}
	if code := r.terminate(); code != 3 {
		t.Errorf("exit code %d", code)
	}
	seen.WriteString(r.stderr.String())
	if !strings.Contains(r.stderr.String(), fmt.Sprintf("gxid %d", gxid)) {
		t.Error("the log does not name the transaction")
	}
	for _, c := range []string{canary, secret} {
		if i := strings.Index(seen.String(), c); i >= 0 {
			t.Errorf("%s came out: %q", c, seen.String()[max(0, i-200):i+len(c)])
		}
	}

	p.must(p.dst.Exec(p.ctx(), home, "delete from t where id = $1", culprit))
	r = p.spawn()
	r.drain()
	p.same("t")
	if code := r.terminate(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// SIGTERM under load: the daemon exits within seconds, with code 0, and the
// next one goes on where it was.
func TestTerminateUnderLoad(t *testing.T) {
	p := newPair(t, 2, 3, lab.Options{})
	p.must(p.src.CreateWorkloadTables(p.ctx()))
	p.must(p.dst.CreateWorkloadTables(p.ctx()))
	p.configure("term")
	_, stop := p.load(7)
	for range 3 {
		r := p.spawn()
		p.eventually("applying", func() bool { rep := r.report(); return rep != nil && rep.Applied.Dtxs > 0 })
		began := time.Now()
		if code := r.terminate(); code != 0 {
			t.Errorf("exit code %d\n%s", code, tail(r.stderr.String(), 5))
		}
		if d := time.Since(began); d > 8*time.Second {
			t.Errorf("it took %s to end", d)
		}
	}
	stop()
	r := p.spawn()
	r.drain()
	p.same()
}

// Ack mode spooled: the source may forget what the spool holds while the target
// is away, and kill -9 loses none of it.
func TestAckSpooled(t *testing.T) {
	p := newPair(t, 2, 2, lab.Options{})
	p.must(p.src.CreateWorkloadTables(p.ctx()))
	p.must(p.dst.CreateWorkloadTables(p.ctx()))
	p.configure("spooled")
	p.sub.Set("spool.ack", "spooled")
	p.must(p.sub.Write(p.file))
	w, stop := p.load(11)
	r := p.spawn()
	p.eventually("applying", func() bool { rep := r.report(); return rep != nil && rep.Applied.Dtxs > 0 })
	gone := p.dst.Node(1)
	p.must(gone.Crash(p.ctx()))
	p.eventually("the target fails", func() bool { rep := r.report(); return rep != nil && rep.Target.Activity == status.Retrying })
	before, _, _ := w.Counts()
	p.eventually("the load goes on", func() bool { n, _, _ := w.Counts(); return n > before+300 })
	stop()
	ends, err := p.src.Ends(p.ctx())
	p.must(err)
	p.eventually("confirmed on arrival", func() bool {
		for c, lsn := range p.confirmed() {
			if lsn < ends[c] {
				return false
			}
		}
		return true
	})
	applied := r.answer().Applied.Dtxs
	r.kill()
	p.must(gone.Start(p.ctx()))
	for range 3 { // and again, in the middle of applying what the spool alone has
		r = p.spawn()
		p.eventually("applying from the spool", func() bool { rep := r.report(); return rep != nil && rep.Applied.Dtxs > 0 })
		r.kill()
	}
	r = p.spawn()
	r.drain()
	p.same()
	if total, err := p.dst.Total(context.Background(), lab.Accounts, "balance"); err != nil || total != w.Total() {
		t.Errorf("total %d, %v", total, err)
	}
	p.eventually("the spool is empty", func() bool { rep := r.answer(); return rep.Spool.Bytes < 1<<20 && rep.Pending.Dtxs == 0 })
	t.Logf("%d transactions were applied when the target went away", applied)

	// Without its spool such a subscription must not go on: what was confirmed is
	// nowhere else.
	p.must(gone.Crash(p.ctx()))
	more := make([]lab.Row, 200) // both shards get some
	for i := range more {
		more[i] = lab.Row{1_000_000_000 + i, 0, "x"}
	}
	p.must(p.src.Do(p.ctx(), func(tx *lab.Tx) error { return tx.Insert(p.ctx(), lab.Audit, more...) }))
	ends, err = p.src.Ends(p.ctx())
	p.must(err)
	p.eventually("confirmed on arrival", func() bool {
		for c, lsn := range p.confirmed() {
			if lsn < ends[c] {
				return false
			}
		}
		return true
	})
	r.kill()
	p.must(gone.Start(p.ctx()))
	p.must(os.RemoveAll(p.cfg.Spool.Dir))
	p.refused(nil, []string{"run", "-c", p.file}, 3, "is confirmed up to", "beyond the recorded position")
}
