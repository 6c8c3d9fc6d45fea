package greenplum

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cbrepl/dtx"
	"cbrepl/internal/soak"
	"cbrepl/subscription"
)

// A random history, with rewrites of the tables beside it, while the daemon is
// killed twenty times: no row lost, doubled or torn, no manual step.
func TestKillNine(t *testing.T) {
	for name, c := range map[string]struct {
		dst     func(*world) destination
		viaRoot bool
	}{
		"fewer shards by leaf": {shards(2), false},
		"more shards by root":  {shards(4), true},
		"cluster by leaf":      {cluster, false},
	} {
		t.Run(name, func(t *testing.T) {
			seed := soak.Seed(t, 1)
			r := rand.New(rand.NewPCG(seed, 0))
			w := newWorld(t, c.dst, c.viaRoot, shapes())
			w.fill()
			l := &load{dsn: w.dsn, seed: seed, workers: 4, rewrite: true}
			l.start()
			defer l.finish()
			watch := w.watchTotal()
			for range 20 {
				p := w.spawn()
				p.applied(1)
				select {
				case <-p.done:
				case <-time.After(time.Duration(r.IntN(1200)) * time.Millisecond): // anywhere in what it does
				}
				p.alive()
				p.kill()
			}
			l.finish()
			w.finish()
			w.spawn()
			w.drain()
			w.same()
			watch.check()
			l.check(t)
		})
	}
}

// finish ends the history with a truncation between rows of its transaction, so
// that no table is empty.
func (w *world) finish() {
	w.exec("BEGIN; INSERT INTO world.emptied SELECT 9999000 + i, i FROM generate_series(1, 20) i; TRUNCATE world.emptied, world.emptied2;" +
		" INSERT INTO world.emptied SELECT 9999010 + i, i FROM generate_series(1, 20) i; INSERT INTO world.emptied2 SELECT * FROM world.emptied; COMMIT")
}

// check requires that the load did something, and logs it.
func (l *load) check(t *testing.T) {
	t.Helper()
	t.Logf("%d transactions committed, %d rewrites, %d failures", l.commits.Load(), l.rewrote.Load(), l.fails.Load())
	for text, n := range l.errs {
		t.Logf("%4d times: %.200s", n, text)
	}
	if l.commits.Load() < 100 || l.rewrite && l.rewrote.Load() < 5 || l.fails.Load() > l.commits.Load() {
		t.Error("too little was tried")
	}
}

// totalWatch reads the bank's total on a target that shows its states in one
// snapshot.
type totalWatch struct {
	t       *testing.T
	stop    context.CancelFunc
	done    chan struct{}
	err     error
	reads   atomic.Int64
	nothing bool
}

// watchTotal reads until check is called. Shards have no snapshot in common.
func (w *world) watchTotal() *totalWatch {
	d, ok := w.dst.(*realCluster)
	tw := &totalWatch{t: w.t, done: make(chan struct{}), nothing: !ok}
	if !ok {
		return tw
	}
	ctx, cancel := context.WithCancel(context.Background())
	tw.stop = cancel
	w.t.Cleanup(cancel)
	go func() {
		defer close(tw.done)
		for ctx.Err() == nil && tw.err == nil {
			rows, err := w.try(d.dsn, "SELECT coalesce(sum(balance), 0) || ' ' || count(*) FROM world.bank")
			switch {
			case err != nil:
				tw.err = err
			case rows[0] != "0 0" && rows[0] != strconv.Itoa(accounts*balance)+" "+strconv.Itoa(accounts):
				tw.err = fmt.Errorf("total and number of accounts are %s", rows[0])
			default:
				tw.reads.Add(1)
			}
		}
	}()
	return tw
}

func (tw *totalWatch) check() {
	tw.t.Helper()
	if tw.nothing {
		return
	}
	tw.stop()
	<-tw.done
	if tw.err != nil {
		tw.t.Errorf("on the target: %v", tw.err)
	}
	tw.t.Logf("the total was read %d times", tw.reads.Load())
}

// Transfers between accounts on different segments: after each batch the total on
// the shards is the source's at every commit.
func TestTotals(t *testing.T) {
	w := newWorld(t, shards(2), false, shapes()[:1])
	w.fill()
	d := w.dst.(*labShards)
	checks := 0
	sub, err := subscription.New(subscription.Options{
		Config: w.cfg, Version: "test",
		AfterBatch: func(ctx context.Context, b *dtx.Batch) error {
			total, err := d.Total(ctx, "world.bank", "balance")
			if err == nil && total != 0 && total != accounts*balance {
				err = fmt.Errorf("after batch %d (%d transactions) the total is %d", b.Seq, len(b.GXIDs), total)
			}
			checks++
			return err
		},
	})
	w.must(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- sub.Run(ctx) }()
	l := &load{dsn: w.dsn, seed: soak.Seed(t, 3), workers: 4, transfers: true}
	l.start()
	defer l.finish()
	w.eventually("300 transfers are applied", func() bool { return len(ended) > 0 || sub.Report().Applied.Dtxs > 300 })
	l.finish()
	ends := w.ends()
	w.eventually("everything is applied", func() bool { rep := sub.Report(); return len(ended) > 0 || rep.Reached(ends) })
	w.same()
	p := sub.Report().Participants
	t.Logf("records waited for their participants %.0f ms (median), %.0f ms (most)", 1000*p.MedianSeconds, 1000*p.MaxSeconds)
	if p.MedianSeconds == 0 || p.MedianSeconds > 0.2 {
		t.Errorf("the median is %.3f s, want less than 0.2 s", p.MedianSeconds)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	t.Logf("the total was read after %d batches", checks)
	if checks < 10 {
		t.Error("too little was tried")
	}
}

// A million rows in one transaction, two thousand subtransactions in another,
// values of 10 MB.
func TestLargeTransactions(t *testing.T) {
	w := newWorld(t, shards(2), false, []*shape{
		{name: "rows", columns: "id int8 primary key, v text", key: []string{"id"}},
		{name: "large", columns: "id int8 primary key, n int4, v text", key: []string{"id"}},
	})
	w.exec("ALTER TABLE world.large ALTER v SET STORAGE EXTERNAL")
	w.spawn()
	w.exec("INSERT INTO world.rows SELECT i, 'row ' || i FROM generate_series(1, 1000000) i")
	var sql strings.Builder
	sql.WriteString("BEGIN;")
	for i := range 2000 {
		fmt.Fprintf(&sql, "SAVEPOINT s; INSERT INTO world.rows VALUES (%d, 'sub');", -1-i)
		if i%10 == 0 {
			sql.WriteString("ROLLBACK TO s;")
		}
		sql.WriteString("RELEASE s;")
	}
	sql.WriteString("COMMIT")
	w.exec(sql.String())
	w.exec("INSERT INTO world.large SELECT i, 0, repeat(chr(64 + i), 10485760) FROM generate_series(1, 4) i")
	w.exec("UPDATE world.large SET n = 1; UPDATE world.large SET v = repeat('z', 10485760) WHERE id = 2")
	w.drain()
	w.same()
}
