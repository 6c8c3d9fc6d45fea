package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/source/stream/repl/repltest"
)

// points are where a daemon may kill itself.
var points = []string{
	"subscription.taken", "subscription.committed", "subscription.applied", "subscription.confirmed", "subscription.released",
	"subscription.spooled_written", "subscription.spooled_synced", "segment.spooled",
	"shards.before_begin", "shards.before_prepare", "shards.between_prepare", "shards.after_prepare", "shards.after_decide",
	"shards.between_commit_prepared", "shards.after_commit", "shards.open_after_lock", "shards.open_after_epoch",
	"shards.open_between_resolve", "shards.open_between_fence", "shards.open_after_fence",
}

// pause waits a random time.
func pause(ctx context.Context, r *rand.Rand, least, most time.Duration) {
	sleep(ctx, least+time.Duration(r.Int64N(int64(most-least))))
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// act does one thing to the daemon, a server or the network, and says what.
func (w *world) act(ctx context.Context, r *rand.Rand) string {
	n := r.IntN(100)
	switch {
	case n >= 58:
		return w.hurt(ctx, r, n)
	case w.cur.ended():
		return "nothing: no daemon runs"
	case n < 18:
		w.cur.kill()
		return "kill -9"
	case n < 38:
		w.cur.kill()
		w.ensure(fmt.Sprintf("%s=kill@%d", points[r.IntN(len(points))], 1+r.IntN(4)))
		return fmt.Sprintf("armed %s, reached: %t", w.cur.fault, w.cur.within(time.Duration(2+r.IntN(5))*time.Second))
	case n < 48:
		return w.terminate()
	case n < 54:
		w.cur.signal(syscall.SIGSTOP)
		pause(ctx, r, 200*time.Millisecond, 3*time.Second)
		w.cur.signal(syscall.SIGCONT)
		return "SIGSTOP, SIGCONT"
	}
	return w.replace(ctx, r)
}

// hurt does something to a server or the network.
func (w *world) hurt(ctx context.Context, r *rand.Rand, n int) string {
	servers := append(slices.Clone(w.src.Nodes()), w.dst.Nodes()...)
	s := servers[r.IntN(len(servers))]
	p := w.proxies[r.IntN(len(w.proxies))]
	began := time.Now()
	w.disturbed = began
	defer func() { w.disturbed = time.Now() }()
	switch {
	case n < 66:
		err := s.Crash(ctx)
		pause(ctx, r, 0, 1500*time.Millisecond)
		if err == nil {
			err = s.Start(ctx)
		}
		return fmt.Sprintf("crash %s: %v", s.Name(), err)
	case n < 70:
		err := s.Restart(ctx)
		return fmt.Sprintf("restart %s in %.1f s: %v", s.Name(), time.Since(began).Seconds(), err)
	case n < 78:
		err := s.Pause()
		if err == nil {
			pause(ctx, r, 200*time.Millisecond, 4*time.Second)
			err = s.Resume()
		}
		return fmt.Sprintf("pause %s: %v", s.Name(), err)
	case n < 82:
		release := w.src.Stall(dtx.Content(r.IntN(w.set.Segments)))
		pause(ctx, r, 300*time.Millisecond, 2*time.Second)
		release()
		return "a segment stalls"
	case n < 86:
		w.src.HoldMarkers()
		pause(ctx, r, 500*time.Millisecond, 3*time.Second)
		return fmt.Sprintf("late markers: %v", w.src.ReleaseMarkers(ctx))
	}
	return w.network(ctx, r, p, n)
}

func (w *world) network(ctx context.Context, r *rand.Rand, p *repltest.Proxy, n int) string {
	switch {
	case n < 91:
		p.Cut()
		return "connections cut"
	case n < 95:
		p.CutAfter(r.Int64N(200_000))
		pause(ctx, r, 500*time.Millisecond, 1500*time.Millisecond)
		p.CutAfter(-1)
		return "connections cut at a random byte"
	case n < 98:
		p.Stall(true)
		pause(ctx, r, 200*time.Millisecond, 5*time.Second)
		p.Stall(false)
		return "network stalls"
	}
	p.Chunk(1 + r.IntN(20))
	pause(ctx, r, 500*time.Millisecond, 1500*time.Millisecond)
	p.Chunk(0)
	return "network in small pieces"
}

// replace starts a second daemon while the first is frozen and all its sessions
// are gone. When the first wakes up, it must not write: it ends, or waits for
// slots that it cannot have. Where the second gives up, because the spool's
// directory is the first one's, the first goes on.
func (w *world) replace(ctx context.Context, r *rand.Rand) string {
	old, address, spool := w.cur, w.setting("http.listen"), w.setting("spool.dir")
	w.disturbed = time.Now()
	old.signal(syscall.SIGSTOP)
	for _, s := range append(slices.Clone(w.src.Nodes()), w.dst.Nodes()...) {
		if err := endSessions(ctx, s); err != nil {
			w.logf("end sessions: %v", err)
		}
	}
	next, err := lab.FreeAddress()
	if err != nil {
		old.signal(syscall.SIGCONT)
		return err.Error()
	}
	w.change("http.listen", next)
	if !w.set.Spooled { // there the spool goes with the subscription
		w.change("spool.dir", filepath.Join(w.dir, fmt.Sprintf("spool-%d", w.procs)))
	}
	w.cur = w.spawn("")
	pause(ctx, r, 500*time.Millisecond, 4500*time.Millisecond)
	old.signal(syscall.SIGCONT)
	t := time.NewTimer(10 * time.Second)
	defer t.Stop()
	select {
	case <-old.done:
		return "replaced, the old daemon ended: " + old.last()
	case <-w.cur.done:
		what := "not replaced: " + w.cur.last()
		w.cur = old
		w.change("http.listen", address)
		w.change("spool.dir", spool)
		return what
	case <-t.C:
	}
	old.kill()
	return "replaced, the old daemon waited: " + old.last()
}

// recover finishes what crashed dispatchers left, once everything is up.
func (w *world) recover(ctx context.Context) (lab.Recovery, error) {
	for try := 0; ; try++ {
		rec, err := w.src.Recover(ctx)
		if err == nil {
			err = w.src.ReleaseMarkers(ctx)
		}
		if err == nil || try == 20 || ctx.Err() != nil {
			return rec, err
		}
		sleep(ctx, 300*time.Millisecond)
	}
}
