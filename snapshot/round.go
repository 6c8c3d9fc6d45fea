package snapshot

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/logkey"
	"cbrepl/source"
)

// task is a piece of a table to be copied.
type task struct {
	group *group
	table *Table
	piece source.Piece
}

// round copies groups under one cut.
func (c *Copier) round(ctx context.Context, groups []*group) error {
	cut, err := c.o.TakeCut(ctx)
	if err != nil {
		return err
	}
	defer cut.Close()
	if err := point("after_cut"); err != nil {
		return err
	}
	seqs, err := c.o.Sequences(ctx)
	if err != nil {
		return err
	}
	r := &round{c: c, cut: cut, sequences: seqs, tasks: make(chan task)}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(r.tasks)
		return r.begin(ctx, groups)
	})
	for range c.o.Workers {
		g.Go(func() error { return r.work(ctx) })
	}
	return g.Wait()
}

// round is one cut and what is copied under it.
type round struct {
	c         *Copier
	cut       *source.Cut
	sequences []source.Sequence
	tasks     chan task
}

// begin begins the groups one after the other, the next one when all pieces of the
// last one are taken.
func (r *round) begin(ctx context.Context, groups []*group) error {
	readers := map[dtx.Content]*source.Reader{}
	l := r.c.target.NewLoader()
	defer func() {
		l.Close()
		for _, rd := range readers {
			rd.Close()
		}
	}()
	pieces := func(t *Table) (out []source.Piece, err error) {
		for _, p := range cutOf(r.cut, t.src).Positions {
			rd := readers[p.Content]
			if rd == nil {
				if rd, err = r.cut.Reader(ctx, p.Content); err != nil {
					return nil, err
				}
				readers[p.Content] = rd
			}
			some, err := rd.Pieces(ctx, t.src, r.c.o.PieceBlocks)
			if err != nil {
				return nil, err
			}
			out = append(out, some...)
		}
		return out, nil
	}
	listed := map[*group][]task{}
	for _, g := range groups {
		g.rewritten.Store(false)
		for _, t := range g.tables {
			ps, err := pieces(t)
			if errors.Is(err, source.ErrRewritten) {
				g.rewritten.Store(true)
				continue
			}
			if err != nil {
				return err
			}
			t.rows.Store(0)
			t.bytes.Store(0)
			t.expected.Store(0)
			for _, p := range ps {
				t.expected.Add(p.Rows)
				listed[g] = append(listed[g], task{g, t, p})
			}
		}
	}
	// The largest first, so that the end does not wait for one that was begun late.
	size := func(g *group) (n int64) {
		for i := range listed[g] {
			n += listed[g][i].piece.Blocks
		}
		return n
	}
	slices.SortStableFunc(groups, func(a, b *group) int { return cmp.Compare(size(b), size(a)) })
	for _, g := range groups {
		if err := r.start(ctx, l, g); err != nil {
			return err
		}
		g.left.Store(int64(len(listed[g])) + 1)
		// Pieces of the contents in turns: they are read from different servers.
		for _, t := range inTurns(listed[g]) {
			select {
			case r.tasks <- t:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := r.done(ctx, l, g); err != nil {
			return err
		}
	}
	return nil
}

// inTurns orders tasks so that those of one content do not follow each other.
func inTurns(tasks []task) []task {
	turn := map[*Table]map[dtx.Content]int{}
	order := make([]int, len(tasks))
	for i, t := range tasks {
		if turn[t.table] == nil {
			turn[t.table] = map[dtx.Content]int{}
		}
		order[i] = turn[t.table][t.piece.Content]
		turn[t.table][t.piece.Content]++
	}
	at := make([]int, len(tasks))
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(a, b int) int { return cmp.Compare(order[a], order[b]) })
	out := make([]task, len(tasks))
	for i, n := range at {
		out[i] = tasks[n]
	}
	return out
}

// start records the cut of a group's tables and empties their target table.
func (r *round) start(ctx context.Context, l apply.Loader, g *group) error {
	now := r.c.o.Now()
	for _, t := range g.tables {
		t.record = apply.TableCopy{Table: t.record.Table, State: apply.Copying, Cut: cutOf(r.cut, t.src), StartedAt: now}
		t.state.Store(apply.Copying)
		t.started.Store(now.UnixNano())
	}
	if err := r.c.record(ctx, g); err != nil {
		return err
	}
	if err := point("after_copying"); err != nil {
		return err
	}
	for _, seg := range g.segments {
		if err := l.Empty(ctx, seg, g.table); err != nil {
			return err
		}
	}
	return point("after_empty")
}

// record writes down how far a group has come.
func (c *Copier) record(ctx context.Context, g *group) error {
	list := make([]apply.TableCopy, len(g.tables))
	for i, t := range g.tables {
		list[i] = t.record
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.target.RecordCopies(ctx, list)
}

// done counts a piece of a group. The last one finishes it.
func (r *round) done(ctx context.Context, l apply.Loader, g *group) error {
	if g.left.Add(-1) > 0 {
		return nil
	}
	if g.rewritten.Load() {
		r.c.mu.Lock()
		r.c.again = append(r.c.again, g)
		r.c.mu.Unlock()
		r.c.o.Log.Info("the table was truncated or rewritten since its cut; it is copied again under another", slog.String(logkey.Relation, g.table.String()))
		return nil
	}
	for _, seg := range g.segments {
		if err := l.Analyze(ctx, seg, g.table); err != nil {
			return err
		}
	}
	for _, t := range g.tables {
		for _, s := range r.sequences {
			if s.Table != t.record.Table {
				continue
			}
			for _, seg := range g.segments {
				if err := l.SetSequence(ctx, seg, g.table, s.Column, s.Last, s.Called); err != nil {
					return err
				}
			}
		}
	}
	if err := point("before_copied"); err != nil {
		return err
	}
	now := r.c.o.Now()
	for _, t := range g.tables {
		t.record.State, t.record.FinishedAt = apply.Copied, now
		t.record.Rows, t.record.Bytes = t.rows.Load(), t.bytes.Load()
	}
	if err := r.c.record(ctx, g); err != nil {
		return err
	}
	for _, t := range g.tables {
		t.finished.Store(now.UnixNano())
		t.expected.Store(t.rows.Load())
		t.state.Store(apply.Copied)
		r.c.o.Log.Info("table is copied", slog.String(logkey.Relation, t.record.Table.String()), slog.Int64(logkey.Rows, t.record.Rows),
			slog.Duration(logkey.Took, now.Sub(t.record.StartedAt).Round(time.Millisecond)))
	}
	return point("after_copied")
}

// work copies pieces until there are none left.
func (r *round) work(ctx context.Context) error {
	w := &worker{r: r, loader: r.c.target.NewLoader(), readers: map[dtx.Content]*source.Reader{}}
	defer w.close()
	for t := range r.tasks {
		if !t.group.rewritten.Load() {
			err := w.copy(ctx, t)
			if errors.Is(err, source.ErrRewritten) {
				t.group.rewritten.Store(true)
			} else if err != nil {
				return err
			}
			if err := point("after_piece"); err != nil {
				return err
			}
		}
		if err := r.done(ctx, w.loader, t.group); err != nil {
			return err
		}
	}
	return nil
}

// worker has a session on every server that it has needed.
type worker struct {
	r       *round
	loader  apply.Loader
	readers map[dtx.Content]*source.Reader
}

func (w *worker) close() {
	w.loader.Close()
	for _, rd := range w.readers {
		rd.Close()
	}
}
