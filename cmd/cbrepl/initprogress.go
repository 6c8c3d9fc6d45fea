package main

import (
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"cbrepl/apply"
	"cbrepl/snapshot"
	"cbrepl/subscription/status"
)

const (
	// levelQuiet leaves warnings and errors in the log.
	levelQuiet = slog.LevelWarn
	// barEvery is the pace of bars, lineEvery that of lines where there is no terminal.
	barEvery  = 200 * time.Millisecond
	lineEvery = 5 * time.Second
	// maxBars bounds the tables that have a bar of their own at a time.
	maxBars = 12
)

// showCopies shows how far tables have come until stop is called: by bars on a
// terminal, else by lines.
func showCopies(out io.Writer, terminal bool, progress func() []snapshot.Progress) (stop func()) {
	update, finish, every := lines(out), func() {}, lineEvery
	if terminal {
		b := newBars(out)
		update, finish, every = b.update, b.finish, barEvery
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				update(progress())
				finish()
				return
			case <-tick.C:
				update(progress())
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// total adds tables up, without those that were copied before.
func total(ps []snapshot.Progress) (t snapshot.Progress, copied, tables int) {
	for _, p := range ps {
		if p.Kept {
			continue
		}
		tables++
		if p.State == apply.Copied {
			copied++
		}
		t.Rows, t.Bytes, t.Expected = t.Rows+p.Rows, t.Bytes+p.Bytes, t.Expected+p.Expected
	}
	return t, copied, tables
}

// remaining is about how long the rest takes, if it goes on like that.
func remaining(rows, expected int64, took time.Duration) string {
	if rows == 0 || took <= 0 {
		return "?"
	}
	return time.Duration(float64(took) * float64(expected-rows) / float64(rows)).Round(time.Second).String()
}

// lines prints a line for all tables, and one for each that is finished.
func lines(out io.Writer) func(ps []snapshot.Progress) {
	began, told := time.Now(), map[string]bool{}
	return func(ps []snapshot.Progress) {
		for _, p := range ps {
			if p.State == apply.Copied && !p.Kept && !told[p.Table] {
				told[p.Table] = true
				_, _ = fmt.Fprintf(out, "%s: %d rows, %s in %.1f s\n", p.Table, p.Rows, status.Size(p.Bytes), p.Seconds) // progress only
			}
		}
		t, copied, tables := total(ps)
		took := time.Since(began)
		if copied < tables {
			_, _ = fmt.Fprintf(out, "%d of %d tables, %d of about %d rows, %s, %.0f rows/s, %s left\n", copied, tables, t.Rows, t.Expected, status.Size(t.Bytes),
				float64(t.Rows)/took.Seconds(), remaining(t.Rows, t.Expected, took))
		}
	}
}

// bars shows a bar for all tables and one for each that is being copied. Its methods
// are called from one goroutine.
type bars struct {
	p      *mpb.Progress
	all    *bar
	tables map[string]*bar
	began  time.Time
}

// bar is one bar with the words behind it, which mpb asks for when it draws.
type bar struct {
	*mpb.Bar
	words atomic.Pointer[string]
}

func newBars(out io.Writer) *bars {
	b := &bars{p: mpb.New(mpb.WithOutput(out), mpb.WithWidth(40), mpb.WithRefreshRate(barEvery)), tables: map[string]*bar{}, began: time.Now()}
	b.all = b.add("all tables", mpb.BarPriority(1<<30))
	return b
}

func (b *bars) add(name string, o ...mpb.BarOption) *bar {
	out := &bar{}
	out.Bar = b.p.AddBar(1, append(o, mpb.PrependDecorators(decor.Name(name, decor.WCSyncSpaceR)), mpb.AppendDecorators(
		decor.Percentage(decor.WCSyncSpace), decor.Any(func(decor.Statistics) string {
			if w := out.words.Load(); w != nil {
				return " " + *w
			}
			return ""
		})))...)
	return out
}

// show sets a bar.
func (b *bar) show(rows, bytes, expected int64, took time.Duration) {
	words := fmt.Sprintf("%d rows, %s, %.0f rows/s, %s left", rows, status.Size(bytes), float64(rows)/max(took.Seconds(), 0.001), remaining(rows, expected, took))
	b.words.Store(&words)
	b.SetTotal(max(expected, rows, 1), false)
	b.SetCurrent(rows)
}

func (b *bars) update(ps []snapshot.Progress) {
	for _, p := range ps {
		one := b.tables[p.Table]
		switch {
		case p.State != apply.Copying:
			if one != nil {
				one.SetTotal(-1, true)
				delete(b.tables, p.Table)
			}
			continue
		case one == nil && len(b.tables) >= maxBars:
			continue
		case one == nil:
			one = b.add(p.Table, mpb.BarRemoveOnComplete())
			b.tables[p.Table] = one
		}
		one.show(p.Rows, p.Bytes, p.Expected, time.Duration(p.Seconds*float64(time.Second)))
	}
	t, _, _ := total(ps)
	b.all.show(t.Rows, t.Bytes, t.Expected, time.Since(b.began))
}

// finish leaves the bar of all tables as it is.
func (b *bars) finish() {
	for _, one := range b.tables {
		one.Abort(true)
	}
	b.all.Abort(false)
	b.p.Wait()
}
