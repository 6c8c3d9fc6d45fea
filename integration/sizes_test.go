package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"cbrepl/dtx"
	"cbrepl/internal/soak"
	"cbrepl/lab"
)

// askText reads one value as text over a connection of its own.
func askText(ctx context.Context, dsn, sql string) (string, error) {
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return "", err
	}
	defer c.Close(ctx)
	var v *string
	if err := c.QueryRow(ctx, sql).Scan(&v); err != nil || v == nil {
		return "", err
	}
	return *v, nil
}

// totals reads the accounts' total over all shards, each in one snapshot.
type totals struct{ conns []*pgx.Conn }

func (p *pair) totals() *totals {
	p.t.Helper()
	tt := &totals{}
	for _, dsn := range p.dst.SegmentDSNs() {
		c, err := pgx.Connect(p.ctx(), dsn)
		p.must(err)
		tt.conns = append(tt.conns, c)
	}
	p.t.Cleanup(func() {
		for _, c := range tt.conns {
			_ = c.Close(context.Background())
		}
	})
	return tt
}

func (tt *totals) read(ctx context.Context) (sum int64, rows int64, err error) {
	for _, c := range tt.conns {
		var s, n int64
		if err := c.QueryRow(ctx, "select coalesce(sum(balance), 0)::int8, count(*) from accounts").Scan(&s, &n); err != nil {
			return 0, 0, err
		}
		sum, rows = sum+s, rows+n
	}
	return sum, rows, nil
}

// Every pair of sizes of the issue, with load running throughout: after each
// batch the total read on the target is what the source had at some commit, and
// at the end every row is there, on its shard.
func TestSizes(t *testing.T) {
	for _, size := range [][2]int{{3, 2}, {2, 3}, {3, 3}, {1, 1}} {
		t.Run(fmt.Sprintf("%dto%d", size[0], size[1]), func(t *testing.T) {
			p := newPair(t, size[0], size[1], lab.Options{})
			p.must(p.src.CreateWorkloadTables(p.ctx()))
			p.must(p.dst.CreateWorkloadTables(p.ctx()))
			p.configure("sizes")
			p.src.LateMarkers(0, 20)
			w, stop := p.load(uint64(size[0]*10 + size[1]))
			tt := p.totals()
			var checks atomic.Int64
			d := p.start(func(ctx context.Context, b *dtx.Batch) error {
				sum, rows, err := tt.read(ctx)
				if err != nil {
					return err
				}
				if rows != 0 && sum != w.Total() {
					return fmt.Errorf("after batch %d (%d transactions) the total over %d accounts is %d, at every commit of the source it was %d",
						b.Seq, len(b.GXIDs), rows, sum, w.Total())
				}
				checks.Add(1)
				return nil
			})
			for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
				d.alive()
				<-time.After(100 * time.Millisecond)
			}
			stop()
			p.must(p.src.ReleaseMarkers(p.ctx()))
			d.drain()
			p.same()
			dtxs, multi, _ := w.Counts()
			rep := d.sub.Report()
			if rep.Applied.Dtxs != dtxs {
				t.Errorf("%d transactions applied, %d committed", rep.Applied.Dtxs, dtxs)
			}
			if err := d.end(); err != nil {
				t.Error(err)
			}
			t.Logf("%d transactions, %d of them on several segments, %d batches, total checked %d times", dtxs, multi, rep.Applied.Batches, checks.Load())
			if checks.Load() < 10 || size[0] > 1 && multi == 0 {
				t.Error("too little was tried")
			}
		})
	}
}

// The release rules on hot rows: a handful of accounts, very late markers, and
// batches as small as the rules allow. The total after each batch shows a
// transfer that was torn or came before one that it depends on.
func TestHotRowsInSmallBatches(t *testing.T) {
	p := newPair(t, 3, 2, lab.Options{})
	p.must(p.src.CreateWorkloadTables(p.ctx()))
	p.must(p.dst.CreateWorkloadTables(p.ctx()))
	p.configure("hot")
	p.cfg.Batch.MaxDtxs = 1
	p.src.LateMarkers(20, 100)
	w, stop := p.load(1, func(w *lab.Workload) { w.Accounts, w.TransfersOnly = 8, true })
	<-time.After(3 * time.Second)
	stop() // the daemon finds a backlog: streams arrive in any order
	p.must(p.src.ReleaseMarkers(p.ctx()))
	tt := p.totals()
	batches, biggest := 0, 0
	d := p.start(func(ctx context.Context, b *dtx.Batch) error {
		sum, rows, err := tt.read(ctx)
		if err == nil && rows == int64(w.Accounts) && sum != w.Total() {
			err = fmt.Errorf("after batch %d (gxids %v) the total is %d, at every commit of the source it was %d", b.Seq, b.GXIDs, sum, w.Total())
		}
		batches++
		biggest = max(biggest, len(b.GXIDs))
		return err
	})
	d.drain()
	p.same(lab.Accounts)
	if err := d.end(); err != nil {
		t.Error(err)
	}
	n, multi, _ := w.Counts()
	t.Logf("%d transactions, %d on several segments, %d batches, the biggest of %d transactions", n, multi, batches, biggest)
	if biggest < 2 {
		t.Error("no marker came late enough to matter")
	}
}

// kill -9 at random moments under load, many times in a row: no row lost,
// doubled or torn, and no manual step in between.
func TestKillNine(t *testing.T) {
	seed := soak.Seed(t, 1)
	rnd := rand.New(rand.NewPCG(seed, 0))
	p := newPair(t, 3, 2, lab.Options{})
	p.must(p.src.CreateWorkloadTables(p.ctx()))
	p.must(p.dst.CreateWorkloadTables(p.ctx()))
	p.configure("kill")
	p.src.LateMarkers(0, 20)
	w, stop := p.load(seed)
	var streamed int
	kills := soak.Times(8, 100)
	for i := range kills {
		r := p.spawn()
		applying := func() bool { rep := r.report(); return rep != nil && rep.Applied.Dtxs > 0 }
		if i%2 == 0 { // at any moment after it began to apply, else at any moment
			p.eventually("applying", applying)
			<-time.After(time.Duration(rnd.IntN(600)) * time.Millisecond)
		} else {
			<-time.After(time.Duration(100+rnd.IntN(1200)) * time.Millisecond)
		}
		if applying() {
			streamed++
		}
		r.kill()
	}
	r := p.spawn()
	p.eventually("applying again", func() bool { rep := r.report(); return rep != nil && rep.Applied.Dtxs > 0 })
	stop()
	p.must(p.src.ReleaseMarkers(p.ctx()))
	r.drain()
	p.same()
	tt := p.totals()
	if sum, _, err := tt.read(p.ctx()); err != nil || sum != w.Total() {
		t.Errorf("total %d, want %d, %v", sum, w.Total(), err)
	}
	if code := r.terminate(); code != 0 {
		t.Errorf("exit code %d after SIGTERM\n%s", code, tail(r.stderr.String(), 5))
	}
	t.Logf("%d of %d daemons had applied something when they were killed", streamed, kills)
}

// 200,000 rows in one distributed transaction pass in bounded memory.
func TestBigTransaction(t *testing.T) {
	p := newPair(t, 3, 2, lab.Options{})
	p.tables(lab.Table{Name: "big", Columns: "id int8 primary key, region text, filler text", Key: []string{"id"}})
	p.configure("big")
	r := p.spawn()
	const n, piece = 200_000, 20_000
	p.must(p.src.Do(p.ctx(), func(tx *lab.Tx) error {
		for at := 0; at < n; at += piece {
			rows := make([]lab.Row, piece)
			for i := range rows {
				rows[i] = lab.Row{at + i, "region " + strconv.Itoa(i%17), strings.Repeat("x", 200)}
			}
			if err := tx.Insert(p.ctx(), "big", rows...); err != nil {
				return err
			}
		}
		return nil
	}))
	r.drain()
	peak := peakRSS(t, r.cmd.Process.Pid)
	p.same("big")
	t.Logf("peak RSS %d MiB for %d rows", peak>>20, n)
	if peak > 512<<20 {
		t.Errorf("peak RSS is %d MiB, want at most 512", peak>>20)
	}
	p.must(p.src.Do(p.ctx(), func(tx *lab.Tx) error {
		_, err := tx.Update(p.ctx(), "big", lab.Values{"region": "elsewhere"}, lab.Values{})
		return err
	}))
	r.drain()
	p.same("big")
	peak = peakRSS(t, r.cmd.Process.Pid)
	t.Logf("peak RSS %d MiB after updating all of them in one transaction", peak>>20)
	if peak > 512<<20 {
		t.Errorf("peak RSS is %d MiB, want at most 512", peak>>20)
	}
	if code := r.terminate(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// peakRSS reads the high-water mark of a process's resident memory, in bytes.
func peakRSS(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skipf("no /proc on this system: %v", err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatal("no VmHWM in /proc")
	return 0
}
