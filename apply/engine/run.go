package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

// run is one Apply.
type run struct {
	e     *Engine
	be    apply.Backend
	lanes *lanes
	// parts are the batch's parts in order; part is the one being read.
	parts []dtx.Part
	part  int32
	// bytes and rows are what the open window holds.
	bytes int64
	rows  int
	// dirty lists the tables with an open window, in the order they were opened.
	// A table may stand here twice, or be idle again.
	dirty []*table
	// skipped counts rows left out: those of which another content's copy is applied
	// (copies compares them with it), and those that a table's first copy holds.
	skipped int64
	copies  sentCopies
	// held is set when a dirty table holds inserts back, heldBytes their size.
	held      bool
	heldBytes int64
	// heldOnDisk is set when rows held back may be in spill.
	heldOnDisk bool
	// spill holds fetched rows that do not fit in memory.
	spill spill

	mu     sync.Mutex // guards result while lanes run
	result apply.Result

	rel *relation // of the change at hand
	// Scratch of the reading goroutine.
	tuple, vals, old []pgoutput.Value
	key              [][]byte
	keyBuf           []byte
	img              []byte
}

func newRun(ctx context.Context, e *Engine, b *dtx.Batch, be apply.Backend) *run {
	r := &run{e: e, be: be, lanes: newLanes(ctx, len(e.segments), e.opt.QueueBytes)}
	r.lanes.every = e.opt.KeepAlive
	r.lanes.alive = func(ctx context.Context, i int) error {
		return be.KeepAlive(ctx, e.segments[i])
	}
	r.spill.dir = e.opt.TempDir
	for _, s := range b.Steps {
		r.parts = append(r.parts, s.Parts...)
	}
	return r
}

func (r *run) finish(err error) error {
	defer r.spill.close()
	return r.lanes.finish(err)
}

// batch walks the steps.
func (r *run) batch(b *dtx.Batch, rows apply.Rows) error {
	base := 0
	for i := range b.Steps {
		s := &b.Steps[i]
		var err error
		if s.Barrier {
			err = r.barrier(base, s.Parts, rows)
		} else {
			err = r.step(base, s.Parts, rows)
		}
		if err != nil {
			return err
		}
		base += len(s.Parts)
	}
	return r.checkCopies()
}

// step applies parts without a TRUNCATE. Those of one content follow each other
// in order; contents, which stand in no order (dtx.Step), take turns.
func (r *run) step(base int, parts []dtx.Part, rows apply.Rows) (err error) {
	contents := byContent(base, parts)
	readers := make([]partReader, min(len(contents), openContents))
	defer func() {
		for i := range readers {
			if it := readers[i].it; it != nil {
				err = errors.Join(err, it.Close())
			}
		}
	}()
	return inTurns(len(readers), func(i int) (done bool, err error) {
		p := &readers[i]
		if p.it == nil {
			if len(p.left) == 0 {
				if len(contents) == 0 {
					return true, nil
				}
				p.left, contents = contents[0], contents[1:]
			}
			p.part, p.left = p.left[0], p.left[1:]
			if r.parts[p.part].Spool == 0 {
				return false, nil
			}
			if p.it, err = rows.Open(r.parts[p.part]); err != nil {
				return false, err
			}
		}
		r.part = p.part
		trunc, more, err := r.read(p.it)
		if trunc != nil && err == nil {
			err = r.partError("a TRUNCATE stands in a transaction that was not marked as a barrier",
				dtx.ReportBug)
		}
		if more || err != nil {
			return false, err
		}
		it := p.it
		p.it = nil
		if err := it.Close(); err != nil {
			return false, err
		}
		return false, r.endPart()
	})
}

// openContents bounds the parts that a step reads at a time.
const openContents = 32

// partReader reads the parts of one content after the other.
type partReader struct {
	it   apply.RowIter // of part; nil between parts
	part int32
	left []int32
}

// byContent numbers a step's parts, which begin at base in the batch, for each
// content in order.
func byContent(base int, parts []dtx.Part) [][]int32 {
	var out [][]int32
	at := map[dtx.Content]int{}
	for i := range parts {
		n, ok := at[parts[i].Content]
		if !ok {
			n = len(out)
			at[parts[i].Content] = n
			out = append(out, nil)
		}
		out[n] = append(out[n], int32(base+i))
	}
	return out
}

// inTurns calls f for 0 to n-1, and over again for those that are not done.
func inTurns(n int, f func(i int) (done bool, err error)) error {
	left := make([]int, n)
	for i := range left {
		left[i] = i
	}
	for len(left) > 0 {
		next := left[:0]
		for _, i := range left {
			done, err := f(i)
			if err != nil {
				return err
			}
			if !done {
				next = append(next, i)
			}
		}
		left = next
	}
	return nil
}

// truncate is a TRUNCATE as one part sent it.
type truncate struct {
	rels    []*pgoutput.Relation
	restart bool
}

// read applies the changes of a turn, up to the part's end or the next TRUNCATE,
// which it returns; more tells that the part goes on. Where inserts may be
// held back, a part is read in one turn.
func (r *run) read(it apply.RowIter) (trunc *truncate, more bool, err error) {
	for n := 0; n < r.e.opt.TurnRows || r.e.inOrder; n++ {
		c, err := it.Next()
		if errors.Is(err, io.EOF) {
			return nil, false, nil
		}
		if err != nil {
			return nil, false, err
		}
		if c.Type == pgoutput.TypeTruncate {
			return &truncate{append([]*pgoutput.Relation(nil), c.Relations...), c.RestartIdentity}, true, nil
		}
		if err := r.change(c); err != nil {
			return nil, false, err
		}
	}
	return nil, true, nil
}

// change folds or passes on one row.
func (r *run) change(c *pgoutput.Change) error {
	rel := r.e.last
	if rel == nil || rel.rel != c.Relation || r.e.forgotten != nil {
		var err error
		if rel, err = r.e.resolve(r.parts[r.part].Content, c.Relation); err != nil {
			return r.placed(err)
		}
		if rel == nil {
			r.skipped++
			return nil
		}
	}
	if rel.lowestOnly {
		r.addCopyOf(rel, c)
		if !r.parts[r.part].Lowest {
			r.skipped++
			return nil // another copy of the same rows
		}
	}
	if rel.cut != nil && rel.cut.Has(&r.parts[r.part]) {
		r.skipped++
		return nil // the table's first copy has it
	}
	r.result.Rows++
	r.rel = rel
	t := rel.table
	if t.shape != rel.shape {
		if t.mode != modeIdle {
			if err := r.flush(t, false); err != nil {
				return err
			}
		}
		t.shape = rel.shape
	}
	var err error
	switch c.Type {
	case pgoutput.TypeInsert:
		err = r.insert(t, c)
	case pgoutput.TypeUpdate:
		err = r.update(t, c)
	case pgoutput.TypeDelete:
		err = r.delete(t, c)
	default:
		err = r.rowError(t, fmt.Sprintf("a row message of type %q", c.Type), "")
	}
	if err != nil {
		return err
	}
	if r.bytes > r.e.opt.WindowBytes || r.rows > r.e.opt.WindowRows {
		return r.flushAll(true)
	}
	return nil
}

// flushAll ends the window: everything read so far is queued for the segments,
// in order. midway tells that the part being read goes on.
func (r *run) flushAll(midway bool) error {
	left := r.dirty[:0]
	for _, t := range r.dirty {
		if t.mode == modeIdle || slices.Contains(left, t) {
			continue
		}
		unchanged := t.held && t.bytes == 0 && t.rows == 0 // since it was held
		if !midway || !unchanged {
			if err := r.flush(t, midway); err != nil {
				return err
			}
		}
		if t.mode != modeIdle {
			left = append(left, t)
		}
	}
	r.dirty = left
	r.held = len(left) > 0
	if !r.held {
		r.heldOnDisk = false
	}
	if !r.heldOnDisk {
		r.spill.reset()
	}
	return nil
}

// endPart sends the inserts held back while a part was read. Those of a table whose rows
// cross contents are held on: a later part may take away what they are in the way of.
func (r *run) endPart() error {
	if !r.held {
		return nil
	}
	r.held = false
	for _, t := range r.dirty {
		switch {
		case t.mode == modeIdle || !t.held:
		case t.crossesContents:
			r.held = true
		default:
			if err := r.flush(t, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// partError is a protocol fault in the part being read.
func (r *run) partError(msg, hint string) error {
	return r.placed(&dtx.Error{Op: "apply rows", Msg: msg, Hint: hint, Class: dtx.ClassStop})
}

// rowError is a fault in a change of t.
func (r *run) rowError(t *table, msg, hint string) error {
	return r.placed(&dtx.Error{Op: "apply rows", Relation: t.String(), Msg: msg, Hint: hint, Class: dtx.ClassStop})
}

// placed adds the part being read to an error that names none.
func (r *run) placed(err error) error { return r.at(r.part, err) }

// at adds a part's place to an error that names none.
func (r *run) at(part int32, err error) error {
	var e *dtx.Error
	if errors.As(err, &e) && e.GXID == 0 && part >= 0 && int(part) < len(r.parts) {
		p := &r.parts[part]
		c := *e
		c.GXID, c.Content, c.LSN = p.GXID, dtx.AtContent(p.Content), p.EndLSN
		return &c
	}
	return err
}
