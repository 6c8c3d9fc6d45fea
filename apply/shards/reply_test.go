package shards

import (
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
	"cbrepl/internal/soak"
)

// gate stands between a Target and one server. When it is armed, the next
// request reaches the server and the connection is cut before its answer comes
// back.
type gate struct {
	listener net.Listener
	server   string
	wg       sync.WaitGroup

	mu    sync.Mutex
	armed bool
	conns []net.Conn
}

func newGate(t *testing.T, dsn string) (*gate, string) {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{listener: l, server: u.Host}
	u.Host = l.Addr().String()
	g.wg.Go(g.accept)
	t.Cleanup(func() {
		_ = l.Close()
		g.mu.Lock()
		for _, c := range g.conns {
			_ = c.Close()
		}
		g.mu.Unlock()
		g.wg.Wait()
	})
	return g, u.String()
}

func (g *gate) accept() {
	for {
		client, err := g.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", g.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		g.mu.Lock()
		g.conns = append(g.conns, client, server)
		g.mu.Unlock()
		g.wg.Go(func() {
			_, _ = io.Copy(server, client)
			_ = server.Close()
		})
		g.wg.Go(func() {
			defer func() { _ = client.Close() }()
			buf := make([]byte, 64<<10)
			for {
				n, err := server.Read(buf)
				if err != nil {
					return
				}
				if g.cut() {
					_ = client.Close()
					_ = server.Close()
					return
				}
				if _, err := client.Write(buf[:n]); err != nil {
					return
				}
			}
		})
	}
}

// arm makes the gate swallow the next answer.
func (g *gate) arm() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed = true
}

func (g *gate) cut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	armed := g.armed
	g.armed = false
	return armed
}

// The server does what it is told and the answer is lost, for every kind of
// request. The daemon then does not know, and the next Open does.
func TestLostReplies(t *testing.T) {
	h := history{seed: soak.Seed(t, 1) & (1<<32 - 1), shards: 2, all: true}
	coordinator, dbs := sharedDatabases(t, h.shards)
	o := testOptions(coordinator, dbs)
	prepareHistory(t, h, o)
	direct := o
	gates := make([]*gate, 3)
	gates[0], o.Coordinator = newGate(t, coordinator)
	o.Shards = make([]string, len(dbs))
	for i, dsn := range dbs {
		gates[i+1], o.Shards[i] = newGate(t, dsn)
	}
	tg := historyTarget(t, h, o, 0)
	st := openUntil(t, tg)
	for _, c := range []struct {
		what, point string
		gate        int
		done        bool
	}{
		{"begin on shard 0", "before_begin", 1, false},
		{"begin on shard 1", "before_begin", 2, false},
		{"prepare on shard 0", "before_prepare", 1, false},
		{"prepare on shard 1", "before_prepare", 2, false},
		{"decision", "after_prepare", 0, true},
		{"commit on shard 0", "after_decide", 1, true},
		{"commit on shard 1", "after_decide", 2, true},
	} {
		tg.private.onPoint = func(name string) error {
			if name == c.point {
				gates[c.gate].arm()
			}
			return nil
		}
		err := applyBatch(testCtx(t), tg, h, st.Batch+1, 0)
		tg.private.onPoint = nil
		dtxtest.WantError(t, err, dtx.ClassRetry)
		want := st.Batch + uint64(count(c.done))
		if st = openUntil(t, tg); st.Batch != want {
			t.Errorf("%s: batch %d is recorded, want %d", c.what, st.Batch, want)
		}
		checkWorld(t, h, direct, st)
	}
	if s := tg.Stats(); s.InDoubtCommitted == 0 || s.InDoubtRolledBack == 0 {
		t.Errorf("stats are %+v: nothing was in doubt", s)
	}
}

// A server that is reached but never answers costs the decide timeout, not more.
func TestSilentServer(t *testing.T) {
	h := history{seed: 40, shards: 1, all: true}
	cluster, o := crashTarget(t, h)
	o.DecideTimeout = time.Second
	for _, c := range []struct {
		point, says string
		content     dtx.Content
	}{
		{"before_begin", "apply batch: shard 0", 0},
		{"before_prepare", "commit batch: shard 0", 0},
		{"after_prepare", "was being decided", -1},
		{"after_decide", "is decided and not yet committed on 1 of 1 shards", 0},
	} {
		o.OpenTimeout, o.LockTimeout = 40*time.Second, time.Second
		tg := historyTarget(t, h, o, 0)
		st := openUntil(t, tg)
		srv := cluster.Node(c.content)
		tg.private.onPoint = func(name string) error {
			if name == c.point {
				return srv.Pause()
			}
			return nil
		}
		begin := time.Now()
		dtxtest.WantError(t, applyBatch(testCtx(t), tg, h, st.Batch+1, 0), dtx.ClassRetry, c.says, "no answer in time")
		tg.private.onPoint = nil
		tg.opts.OpenTimeout = time.Second
		_, err := tg.Open(testCtx(t))
		dtxtest.WantError(t, err, dtx.ClassRetry, "connect to target", "deadline")
		if d := time.Since(begin); d > 20*time.Second {
			t.Errorf("%s: it took %s", c.point, d)
		}
		if err := srv.Resume(); err != nil {
			t.Fatal(err)
		}
		tg.opts.OpenTimeout = o.OpenTimeout
		checkWorld(t, h, o, openUntil(t, tg))
		closeTarget(t, tg)
	}
}

// A cancelled Open leaves no session and no goroutine behind.
func TestOpenCancelled(t *testing.T) {
	h := history{seed: 41, shards: 2}
	coordinator, dbs := sharedDatabases(t, h.shards)
	o := testOptions(coordinator, dbs)
	prepareHistory(t, h, o)
	for _, point := range []string{"open_after_lock", "open_after_epoch", "open_between_fence", "open_after_fence"} {
		tg := historyTarget(t, h, o, 0)
		ctx, cancel := context.WithCancel(testCtx(t))
		tg.private.onPoint = func(name string) error {
			if name == point {
				cancel()
			}
			return nil
		}
		_, err := tg.Open(ctx)
		cancel()
		if err == nil || dtx.ClassOf(err) != dtx.ClassRetry {
			t.Fatalf("%s: open gives %v", point, err)
		}
		other := historyTarget(t, h, o, 0)
		checkWorld(t, h, o, openUntil(t, other)) // the lock is free
		closeTarget(t, other)
	}
}
