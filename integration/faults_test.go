package integration

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"cbrepl/faultinject"
	"cbrepl/lab"
)

// Killing the daemon at each point between two durable steps, under load, loses
// nothing and applies nothing twice. Points that need a batch in doubt stand
// behind a kill that leaves one.
func TestKillAtFaultPoints(t *testing.T) {
	for _, tc := range []struct {
		name   string // spool.ack
		points []string
	}{
		{"applied", []string{
			"subscription.taken@2", "shards.before_begin@2", "shards.before_prepare@2",
			"shards.between_prepare@2", "shards.open_between_resolve",
			"shards.after_prepare@2", "shards.open_between_resolve", "shards.open_after_lock", "shards.open_after_epoch",
			"shards.open_between_fence@2", "shards.open_after_fence", "shards.after_decide@2", "shards.open_between_resolve",
			"shards.between_commit_prepared@2", "shards.after_commit@2", "subscription.committed@2", "subscription.applied@3",
			"subscription.confirmed@3", "subscription.released@3", "segment.spooled@20",
		}},
		{"spooled", []string{
			"subscription.spooled_written@30", "subscription.spooled_synced@2", "subscription.committed@2", "segment.spooled@20",
			"shards.after_decide@2", "subscription.released@3", "subscription.spooled_synced@5",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPair(t, 2, 2, lab.Options{})
			p.must(p.src.CreateWorkloadTables(p.ctx()))
			p.must(p.dst.CreateWorkloadTables(p.ctx()))
			p.configureWith("faults", func(s *lab.Subscription) { s.Set("spool.ack", tc.name) })
			p.src.LateMarkers(0, 20)
			_, stop := p.load(5, func(w *lab.Workload) { w.Workers = 3 })
			for i, point := range tc.points {
				for try := 1; !dies(p, point); try++ {
					// The kill before left nothing in doubt: its batch was on one shard.
					if try == 10 || !dies(p, tc.points[i-1]) {
						t.Fatalf("%s is not reached behind %s", point, tc.points[i-1])
					}
				}
			}
			r := p.spawn()
			p.eventually("applying", func() bool { rep := r.report(); return rep != nil && rep.Applied.Dtxs > 0 })
			stop()
			p.must(p.src.ReleaseMarkers(p.ctx()))
			r.drain()
			p.same()
			if code := r.terminate(); code != 0 {
				t.Error(fmt.Errorf("exit code %d", code))
			}
			for _, s := range p.dst.Nodes() {
				if n := p.ask(s, "select count(*)::text from pg_prepared_xacts"); n != "0" {
					t.Errorf("%s prepared transactions are left on %s", n, s.Name())
				}
			}
		})
	}
}

// dies starts a daemon that kills itself at a point. It reports false when the
// point is one of opening the target and the daemon has passed it.
func dies(p *pair, point string) bool {
	p.t.Helper()
	name, pass, ok := strings.Cut(point, "@")
	spec := name + "=kill"
	if ok {
		spec += "@" + pass
	}
	r := p.spawn(faultinject.EnvVar + "=" + spec)
	opening := strings.HasPrefix(name, "shards.open_")
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); ; {
		select {
		case <-r.done:
			var exit *exec.ExitError
			if !errors.As(r.err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				p.t.Fatalf("%s: the daemon ended with %v\n%s", point, r.err, tail(r.stderr.String(), 5))
			}
			return true
		case <-tick.C:
		}
		if rep := r.look(); opening && rep != nil && rep.Applied.Dtxs > 0 {
			r.kill()
			return false
		}
		if time.Now().After(end) {
			p.t.Fatalf("%s was not reached within %s", point, limit)
		}
	}
}
