package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/router"
	"cbrepl/source/stream/repl/repltest"
)

// password stands in every connection string: a log must never show it.
const password = "pAsSwOrDcAnArY"

// settings shape one pair of clusters and its subscription.
type settings struct {
	Segments, Shards int
	GID              bool // parts named by gid, source.two_phase
	Streaming        bool
	Spooled          bool // spool.ack
	LogConflicts     bool // apply.on_conflict: log
	MaxRows, MaxDtxs int
	SpoolMiB         int
	Delay            string
	Workers          int
	Rows             int // of half a big transaction
	Late             int // commits that a one-phase marker may wait for
}

func draw(r *rand.Rand) settings {
	pick := func(ns ...int) int { return ns[r.IntN(len(ns))] }
	s := settings{
		Segments: 1 + r.IntN(4), Shards: 1 + r.IntN(3), GID: r.IntN(3) == 0,
		Streaming: r.IntN(4) > 0, Spooled: r.IntN(3) == 0, LogConflicts: r.IntN(5) == 0,
		MaxRows: pick(1, 50, 100000, 100000), MaxDtxs: pick(1, 3, 5000, 5000),
		SpoolMiB: pick(16, 16, 1024), Delay: []string{"0s", "0s", "200ms"}[r.IntN(3)],
		Workers: 4 + r.IntN(4), Rows: pick(400, 2000, 12000), Late: pick(0, 3, 40),
	}
	s.Spooled = s.Spooled && !s.GID // not offered together
	return s
}

// offers reports whether the daemon takes a table under these settings. Rows of
// a random source table go from one segment to another when they are deleted
// and inserted again; where such a table has a key, this is refused when
// conflicts are only logged.
func (s settings) offers(t shape) bool {
	keyed := strings.Contains(t.dst.Columns, "primary key")
	return !s.LogConflicts || s.Segments == 1 || !keyed || t.src.Kind != router.Random
}

// world is a pair of clusters, the daemon between them and a bad network.
type world struct {
	seed uint64
	set  settings
	dir  string
	logf func(string, ...any)
	all  []shape

	lab     *lab.Lab
	src     *lab.Source
	dst     *lab.TargetCluster
	proxies []*repltest.Proxy // one per server
	sub     *lab.Subscription
	file    string // the subscription's

	procs     int
	cur       *proc
	maxRSS    int64     // KiB
	disturbed time.Time // of the last fault of a server or the network
	problems  []string

	commits, fails, crashes atomic.Int64

	mu     sync.Mutex
	failed map[dtx.GXID]error // of the load
}

func (w *world) problem(format string, a ...any) {
	w.problems = append(w.problems, fmt.Sprintf(format, a...))
	w.logf("PROBLEM: %s", w.problems[len(w.problems)-1])
}

// newWorld starts the clusters, with slots and a prepared target. The world is
// to be closed whatever the error.
func newWorld(ctx context.Context, seed uint64, set settings, dir string, logf func(string, ...any)) (*world, error) {
	w := &world{seed: seed, set: set, dir: dir, logf: logf, failed: map[dtx.GXID]error{}}
	for _, s := range shapes() {
		if set.offers(s) {
			w.all = append(w.all, s)
		}
	}
	var err error
	w.lab, err = lab.New(ctx, lab.Options{
		GIDCarrier: set.GID, Seed: seed,
		Settings: map[string]string{"logical_decoding_work_mem": "64kB", "wal_sender_timeout": "15s"},
	})
	if err != nil {
		return w, err
	}
	var g errgroup.Group
	g.Go(func() (err error) { w.src, err = w.lab.StartSource(ctx, set.Segments); return err })
	g.Go(func() (err error) { w.dst, err = w.lab.StartTarget(ctx, set.Shards); return err })
	if err := g.Wait(); err != nil {
		return w, err
	}
	for _, s := range w.all {
		if err := w.src.CreateTable(ctx, s.src); err != nil {
			return w, err
		}
		if err := w.dst.CreateTable(ctx, s.dst); err != nil {
			return w, err
		}
	}
	w.src.LateMarkers(0, set.Late)
	return w, w.configure(ctx)
}

// fill gives the bank its accounts.
func (w *world) fill(ctx context.Context) error {
	return w.src.Do(ctx, func(tx *lab.Tx) error {
		rows := make([]lab.Row, accounts)
		for i := range rows {
			rows[i] = lab.Row{i + 1, balance}
		}
		return tx.Insert(ctx, bank, rows...)
	})
}

// close ends everything.
func (w *world) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if w.cur != nil {
		w.cur.kill()
	}
	for _, p := range w.proxies {
		p.Close()
	}
	if w.lab == nil {
		return
	}
	if err := w.lab.Close(ctx); err != nil {
		w.logf("close: %v", err)
	}
}

// proxied lists connection strings that go through a proxy and hold a password.
func (w *world) proxied(servers []*lab.Server) ([]string, error) {
	var out []string
	for _, s := range servers {
		u, err := url.Parse(s.DSN())
		if err != nil {
			return nil, err
		}
		u.User = url.UserPassword(u.User.Username(), password)
		p, err := repltest.New(u.String())
		if err != nil {
			return nil, err
		}
		w.proxies = append(w.proxies, p)
		out = append(out, p.DSN())
	}
	return out, nil
}

// configure writes the subscription's file, makes slots and prepares the target.
func (w *world) configure(ctx context.Context) error {
	var err error
	if w.sub, err = lab.NewSubscription("chaos", w.dir, w.src, w.dst.DSNs()); err != nil {
		return err
	}
	if w.sub.Source, err = w.proxied(w.src.Nodes()); err != nil {
		return err
	}
	if w.sub.Target, err = w.proxied(w.dst.Nodes()); err != nil {
		return err
	}
	choose := func(yes bool, a, b string) string {
		if yes {
			return a
		}
		return b
	}
	for key, value := range map[string]any{
		"source.status_interval": "300ms", "source.two_phase": w.set.GID, "source.streaming": w.set.Streaming,
		"apply.on_conflict": choose(w.set.LogConflicts, "log", "stop"),
		"batch.max_rows":    w.set.MaxRows, "batch.max_dtxs": w.set.MaxDtxs, "batch.max_delay": w.set.Delay,
		"spool.dir": filepath.Join(w.dir, "spool-0"), "spool.max_bytes": fmt.Sprintf("%dMiB", w.set.SpoolMiB),
		"spool.ack": choose(w.set.Spooled, "spooled", "applied"),
		"log.level": "debug",
	} {
		w.sub.Set(key, value)
	}
	w.file = filepath.Join(w.dir, "chaos.yaml")
	if err := w.sub.Write(w.file); err != nil {
		return err
	}
	for _, args := range [][]string{{"target", "prepare"}, {"slots", "create"}} {
		if out, err := exec.CommandContext(ctx, binary, append(args, "-c", w.file)...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", args, err, out)
		}
	}
	return nil
}

// change sets a key in the subscription's file.
func (w *world) change(key string, value any) {
	w.sub.Set(key, value)
	if err := w.sub.Write(w.file); err != nil {
		w.problem("%v", err)
	}
}

// setting is a key's value in the subscription's file.
func (w *world) setting(key string) string { s, _ := w.sub.Settings[key].(string); return s }

// load runs transactions until ctx ends.
func (w *world) load(ctx context.Context) {
	var wg sync.WaitGroup
	for i := range w.set.Workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(w.seed, uint64(i)))
			for ctx.Err() == nil {
				w.one(r)
			}
		})
	}
	wg.Wait()
}

// one runs one transaction. That it fails is no fault: servers are down, and
// transactions lose to others.
func (w *world) one(r *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	tx, err := w.src.Begin(ctx)
	if err != nil {
		w.fails.Add(1)
		return
	}
	err = step(ctx, r, tx, w.all, w.set.Segments, w.set.Rows)
	if err == nil && r.IntN(60) == 0 {
		tx.CrashAt(lab.Steps()[r.IntN(len(lab.Steps()))])
	}
	if err == nil && r.IntN(25) > 0 {
		err = tx.Commit(ctx)
	}
	_ = tx.Rollback(context.WithoutCancel(ctx)) // no effect after Commit
	switch {
	case errors.Is(err, lab.ErrCrashed):
		w.crashes.Add(1)
	case err != nil:
		w.fails.Add(1)
		w.mu.Lock()
		w.failed[tx.GXID()] = err
		w.mu.Unlock()
		if *verbose {
			w.logf("gxid %s: %v", tx.GXID(), err)
		}
	default:
		w.commits.Add(1)
	}
}

// ask reads one value as text.
func ask(ctx context.Context, s *lab.Server, sql string) (string, error) {
	conn, err := pgx.Connect(ctx, s.DSN())
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	var v string
	err = conn.QueryRow(ctx, sql).Scan(&v)
	return v, err
}

// endSessions ends the daemons' sessions on a server.
func endSessions(ctx context.Context, s *lab.Server) error {
	_, err := ask(ctx, s, `select count(pg_terminate_backend(pid))::text from pg_stat_activity
		where application_name like 'cbrepl%' and application_name <> 'cbrepl lab' and pid <> pg_backend_pid()`)
	return err
}

// number reads the kernel's count of KiB from a line of /proc/PID/status.
func number(status, key string) int64 {
	for l := range strings.Lines(status) {
		if f := strings.Fields(l); len(f) > 1 && f[0] == key {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n
		}
	}
	return 0
}
