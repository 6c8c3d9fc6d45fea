package greenplum

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cbrepl/internal/soak"
	"cbrepl/source"
)

// envCrash asks for tests that kill processes of the source, which must then run
// on this machine. envStart is a shell command that starts servers of it that are
// down; without it no postmaster is killed.
const (
	envCrash = "CBREPL_TEST_SOURCE_CRASH"
	envStart = "CBREPL_TEST_SOURCE_START"
)

// kill -9 of segments and of the coordinator under load, backends and whole
// servers: crash recovery commits prepared transactions late. The daemon runs
// through all of it, and loses nothing.
func TestSourceCrash(t *testing.T) {
	for name, dst := range map[string]func(*world) destination{"shards": shards(4), "cluster": cluster} {
		t.Run(name, func(t *testing.T) {
			if os.Getenv(envCrash) == "" {
				t.Skipf("NOT RUN: %s is not set: it kills processes of the source, which must run on this machine", envCrash)
			}
			seed := soak.Seed(t, 2)
			r := rand.New(rand.NewPCG(seed, 0))
			w := newWorld(t, dst, false, shapes())
			w.fill()
			nodes := w.nodes()
			w.spawn().applied(1)
			l := &load{dsn: w.dsn, seed: seed, workers: 4, rewrite: true}
			l.start()
			defer l.finish()
			watch := w.watchTotal()
			for i := range 8 {
				node := nodes[(1+i)%len(nodes)]
				w.killServer(node, i >= 4)
				w.recovered()
				before := l.commits.Load()
				w.eventually("the load goes on", func() bool { return l.commits.Load() > before+20+int64(r.IntN(50)) })
				w.proc.alive()
			}
			l.finish()
			w.finish()
			w.drain()
			w.same()
			watch.check()
			l.check(t)
		})
	}
}

func (w *world) nodes() []source.Node {
	w.t.Helper()
	cl, err := source.Discover(w.ctx(), source.ClusterConfig{Coordinator: w.dsn})
	w.must(err)
	return cl.Nodes()
}

// killServer kills a backend of a server, which makes the server recover; or the
// server as a whole, and starts it again.
func (w *world) killServer(n source.Node, whole bool) {
	w.t.Helper()
	c, err := connect(w.ctx(), n.DSN)
	w.must(err)
	var dir string
	w.must(c.QueryRow(w.ctx(), "SHOW data_directory").Scan(&dir))
	start := os.Getenv(envStart)
	if !whole || start == "" {
		w.t.Logf("content %d: a backend is killed", n.Content)
		w.kill(int(c.PgConn().PID()))
		return
	}
	pid, err := os.ReadFile(filepath.Join(dir, "postmaster.pid"))
	w.must(err)
	first, _, _ := strings.Cut(string(pid), "\n")
	postmaster, err := strconv.Atoi(first)
	w.must(err)
	w.t.Logf("content %d: the server is killed", n.Content)
	servers := children(postmaster)
	w.kill(postmaster)
	for _, child := range servers {
		_ = kill(child) // it may have noticed that already
	}
	w.eventually("the server is gone", func() bool { return errors.Is(syscall.Kill(postmaster, 0), syscall.ESRCH) })
	if out, err := exec.CommandContext(w.ctx(), "sh", "-c", start).CombinedOutput(); err != nil {
		w.t.Fatalf("%s: %v\n%s", envStart, err, out)
	}
}

func kill(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}

func (w *world) kill(pid int) { w.t.Helper(); w.must(kill(pid)) }

// children lists the processes whose parent is pid.
func children(pid int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []int
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat)[strings.LastIndexByte(string(stat), ')')+1:])
		if len(fields) > 3 && fields[1] == strconv.Itoa(pid) {
			out = append(out, child)
		}
	}
	return out
}

// recovered waits until a distributed transaction succeeds and no prepared one is
// left behind from before.
func (w *world) recovered() {
	w.t.Helper()
	w.eventually("the source has recovered", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		c, err := connect(ctx, w.dsn)
		if err != nil {
			return false
		}
		defer func() { _ = c.Close(ctx) }()
		_, err = c.Exec(ctx, fmt.Sprintf("UPDATE world.bank SET balance = balance WHERE id <= %d", accounts))
		return err == nil
	})
}
