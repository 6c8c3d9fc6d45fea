package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cbrepl/dtx"
	"cbrepl/internal/soak"
	"cbrepl/pgoutput/pgotest"
)

// TestSpaceSchedule changes bytes, parts and exemptions at random and compares,
// whenever nothing moves any more, who waits with who has to.
func TestSpaceSchedule(t *testing.T) {
	for seed := range soak.Seeds(t, 50, 5000) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			s := newSpace(100, 5, time.Now)
			ctx, cancel := context.WithCancel(context.Background())
			stop := make(chan struct{})
			const writers = 5
			var mu sync.Mutex
			waiting := map[dtx.Content]bool{}
			start := func(c dtx.Content) {
				mu.Lock()
				waiting[c] = true
				mu.Unlock()
				go func() {
					err := s.wait(ctx, c, stop, func() error { return errClosed })
					if err != nil && !errors.Is(err, context.Canceled) {
						t.Errorf("seed %d: %v", seed, err)
					}
					mu.Lock()
					waiting[c] = false
					mu.Unlock()
				}()
			}
			used, parts := int64(0), 0
			var exempt []dtx.Content
			for step := range 300 {
				switch rng.IntN(4) {
				case 0:
					n := rng.Int64N(200) - 100
					if used+n < 0 {
						n = -used
					}
					used += n
					s.add(n, 0)
				case 1:
					n := rng.IntN(3) - 1
					if parts+n < 0 {
						n = 0
					}
					parts += n
					s.add(0, n)
				case 2:
					exempt = exempt[:0]
					for c := range dtx.Content(writers) {
						if rng.IntN(4) == 0 {
							exempt = append(exempt, c)
						}
					}
					s.setExempt(exempt)
				case 3:
					c := dtx.Content(rng.IntN(writers))
					mu.Lock()
					idle := !waiting[c]
					mu.Unlock()
					if idle {
						start(c)
					}
				}
				synctest.Wait()
				full := used >= 100 || parts >= 5
				mu.Lock()
				for c, is := range waiting {
					if is && (!full || parts == 0 || slices.Contains(exempt, c)) {
						t.Fatalf("seed %d step %d: content %d waits; used %d, %d parts, exempt %v", seed, step, c, used, parts, exempt)
					}
				}
				mu.Unlock()
				if s.blocked.Load() != (full && parts > 0) {
					t.Fatalf("seed %d step %d: blocked is %v; used %d, %d parts", seed, step, s.blocked.Load(), used, parts)
				}
				if full == s.fullSince.IsZero() {
					t.Fatalf("seed %d step %d: full since %v; used %d", seed, step, s.fullSince, used)
				}
			}
			// Who is held back must wait, and a stop or a cancel lets it go.
			s.setExempt(nil)
			s.add(1000, 1)
			start(writers)
			synctest.Wait()
			if !waiting[writers] {
				t.Fatalf("seed %d: a writer went on in a full spool", seed)
			}
			cancel()
			synctest.Wait()
			if waiting[writers] {
				t.Fatalf("seed %d: a cancelled writer still waits", seed)
			}
		})
	}
}

// TestFullSpool fills a spool from many writers while parts are released and
// exemptions move: everybody comes to an end.
func TestFullSpool(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	seed := soak.Seed(t, 1)
	const writers = 4
	s := openTest(t, Options{MaxBytes: 8 * blockSize, MemBytes: minMemBytes, tierBytes: 3 * blockSize, deleteBytes: 1})
	committed := make(chan dtx.Part, 10_000)
	var wg sync.WaitGroup
	for c := range dtx.Content(writers) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(c)))
			w := s.Writer(c)
			rel, err := w.PutRelation(testRelation(7, "t", 1))
			if err != nil {
				t.Error(err)
				return
			}
			msg := pgotest.Insert(0, 7, pgotest.Text(value(1, 900)))
			for i := range 60 {
				if err := w.Wait(ctx); err != nil {
					t.Error(err)
					return
				}
				tx := w.Begin(false)
				for range 1 + rng.IntN(100) {
					if err := tx.Append(ctx, rel, msg); err != nil {
						t.Error(err)
						return
					}
				}
				p, err := tx.Commit(ctx, dtx.Part{GXID: 1, EndLSN: dtx.LSN(i + 1)})
				if err != nil {
					t.Error(err)
					return
				}
				committed <- p
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
			committed <- dtx.Part{Content: c} // no more
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	// The merge of this test releases a dtx when every content has a part, and
	// exempts the contents that it waits for.
	rng := rand.New(rand.NewPCG(seed, 99))
	queues := map[dtx.Content][]dtx.Part{}
	over := map[dtx.Content]bool{}
	ended := false
	for {
		var missing []dtx.Content
		for c := range dtx.Content(writers) {
			if len(queues[c]) == 0 && !over[c] {
				missing = append(missing, c)
			}
		}
		if len(missing) == 0 || ended {
			var ps []dtx.Part
			for c, q := range queues {
				if len(q) > 0 {
					n := 1 + rng.IntN(len(q))
					ps, queues[c] = append(ps, q[:n]...), q[n:]
				}
			}
			if err := s.Release(ps); err != nil {
				t.Fatal(err)
			}
			if len(ps) > 0 {
				continue // who is missing now?
			}
			if ended && len(committed) == 0 {
				break
			}
		}
		s.SetExempt(missing)
		select {
		case p := <-committed:
			if p.EndLSN == 0 {
				over[p.Content] = true
			} else {
				queues[p.Content] = append(queues[p.Content], p)
			}
		case <-done:
			done, ended = nil, true
		case <-ctx.Done():
			t.Fatalf("seed %d: stuck: %+v", seed, s.Usage())
		}
	}
	if u := s.Usage(); u.Bytes != 0 || u.Parts != 0 {
		t.Errorf("left: %+v", u)
	}
}

// TestFullWaits pins what a full spool does to a writer, step by step.
func TestFullWaits(t *testing.T) {
	ctx := context.Background()
	now := time.Unix(1000, 0)
	s := openTest(t, Options{MaxBytes: blockSize, Now: func() time.Time { return now }})
	w0, w1 := s.Writer(0), s.Writer(1)
	rel, err := w0.PutRelation(testRelation(7, "t", 1))
	if err != nil {
		t.Fatal(err)
	}
	msg := pgotest.Insert(0, 7, pgotest.Text(value(1, 1000)))
	fill := func(tx *Txn) {
		for range 100 {
			if err := tx.Append(ctx, rel, msg); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Open transactions alone never hold each other back.
	a := w0.Begin(false)
	fill(a)
	fill(a)
	if u := s.Usage(); u.FullSince != now {
		t.Fatalf("not full: %+v", u)
	}
	if err := w1.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	part, err := a.Commit(ctx, dtx.Part{EndLSN: 1})
	if err != nil {
		t.Fatal(err)
	}

	// With a part that can be released, writers wait; the exempt do not.
	b := w1.Begin(true)
	short, cancel := context.WithCancel(ctx)
	res := make(chan error)
	go func() { res <- b.Append(short, rel, pgotest.Insert(9, 7, pgotest.Text("x"))) }()
	waitUntil(t, func() bool { return s.Usage().Contents[1].Waiting })
	cancel()
	if err := <-res; !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled append: %v", err)
	}
	go func() { res <- b.Append(ctx, rel, pgotest.Insert(9, 7, pgotest.Text("y"))) }()
	waitUntil(t, func() bool { return s.Usage().Contents[1].Waiting })
	s.SetExempt([]dtx.Content{0})
	s.SetExempt([]dtx.Content{1})
	if err := <-res; err != nil {
		t.Fatalf("exempt append: %v", err)
	}
	if c := s.Usage().Contents[1]; !c.Exempt || c.Waiting {
		t.Fatalf("exempt content: %+v", c)
	}
	s.SetExempt(nil)
	go func() { res <- w0.Wait(ctx) }()
	waitUntil(t, func() bool { return s.Usage().Contents[0].Waiting })
	if err := s.Release([]dtx.Part{part}); err != nil {
		t.Fatal(err)
	}
	if err := <-res; err != nil {
		t.Fatal(err)
	}
	if u := s.Usage(); !u.FullSince.IsZero() {
		t.Fatalf("still full: %+v", u)
	}
	// The append that was cancelled has left nothing behind.
	p, err := b.Commit(ctx, dtx.Part{EndLSN: 2})
	if err != nil || p.Rows != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
}

// TestCloseWakes closes a spool under a waiting writer.
func TestCloseWakes(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, Options{MaxBytes: blockSize})
	w := s.Writer(0)
	rel, err := w.PutRelation(testRelation(7, "t", 1))
	if err != nil {
		t.Fatal(err)
	}
	tx := w.Begin(false)
	for range 200 {
		if err := tx.Append(ctx, rel, pgotest.Insert(0, 7, pgotest.Text(value(1, 1000)))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tx.Commit(ctx, dtx.Part{EndLSN: 1}); err != nil {
		t.Fatal(err)
	}
	res := make(chan error)
	go func() { res <- w.Wait(ctx) }()
	waitUntil(t, func() bool { return s.Usage().Contents[0].Waiting })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-res; !errors.Is(err, errClosed) {
		t.Fatalf("wait in a closed spool: %v", err)
	}
	for what, f := range map[string]func() error{
		"sync":    func() error { return s.Sync(ctx) },
		"release": func() error { return s.Release(nil) },
		"wait":    func() error { return w.Wait(ctx) },
		"commit": func() error {
			_, err := w.Begin(false).Commit(ctx, dtx.Part{})
			return err
		},
		"open": func() error { _, err := s.Open(dtx.Part{Spool: 1 << 20}); return err },
	} {
		if err := f(); err == nil {
			t.Errorf("%s on a closed spool succeeds", what)
		} else {
			_ = fmt.Sprint(err)
		}
	}
}

// waitUntil polls a condition under a deadline.
func waitUntil(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("condition does not come true")
		}
	}
}

// TestFullBound: a content that is not exempt stops within a block of the limit.
func TestFullBound(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	const limit = 5 * blockSize
	s := openTest(t, Options{MaxBytes: limit})
	w := s.Writer(0)
	rel, err := w.PutRelation(testRelation(7, "t", 1))
	if err != nil {
		t.Fatal(err)
	}
	res := make(chan error)
	go func() {
		msg := pgotest.Insert(0, 7, pgotest.Text(value(1, 300)))
		for i := 1; ; i++ {
			tx := w.Begin(false)
			for range i {
				if err := tx.Append(ctx, rel, msg); err != nil {
					res <- err
					return
				}
			}
			if _, err := tx.Commit(ctx, dtx.Part{EndLSN: dtx.LSN(i)}); err != nil {
				res <- err
				return
			}
		}
	}()
	waitUntil(t, func() bool { u := s.Usage(); return len(u.Contents) > 0 && u.Contents[0].Waiting })
	if u := s.Usage(); u.Bytes < limit || u.Bytes > limit+blockSize+400 {
		t.Errorf("a full spool of %d bytes holds %d", int64(limit), u.Bytes)
	}
	cancel()
	if err := <-res; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
