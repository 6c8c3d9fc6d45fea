package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"cbrepl/apply"
	"cbrepl/dtx"
)

// Bounds of what is on its way in one worker.
const (
	workerBytes = 8 << 20
	queueChunks = 4
	minChunk    = 8 << 10
	maxChunk    = 128 << 10
)

// copy reads a piece and writes its rows where they belong.
func (w *worker) copy(ctx context.Context, t task) error {
	rd := w.readers[t.piece.Content]
	if rd == nil {
		var err error
		if rd, err = w.r.cut.Reader(ctx, t.piece.Content); err != nil {
			return err
		}
		w.readers[t.piece.Content] = rd
	}
	g, ctx := errgroup.WithContext(ctx)
	plan := &t.table.plan
	f := newFan(ctx, plan, func(i int, r io.Reader) {
		g.Go(func() error {
			rows, err := w.loader.Load(ctx, plan.Segments[i], plan.Table, plan.Cols, r)
			if err == nil && rows != r.(*intake).rows {
				err = &dtx.Error{
					Op: "copy table", Relation: plan.Table.String(), Class: dtx.ClassStop,
					Msg:  fmt.Sprintf("of %d rows that were sent to segment %d the server inserted %d", r.(*intake).rows, plan.Segments[i], rows),
					Hint: "Look for a trigger or rule of the table that fires for replicated rows",
				}
			}
			return err
		})
	}, func(rows, size int64) {
		t.table.rows.Add(rows)
		t.table.bytes.Add(size)
	})
	err := rd.Copy(ctx, t.table.src, &t.piece, plan.Columns, f)
	if err == nil {
		err = f.flush()
	}
	f.end(err)
	loaded := g.Wait()
	if loaded != nil && (err == nil || ctx.Err() != nil && errors.Is(err, context.Canceled)) {
		return loaded
	}
	return err
}

// chunk is some lines on their way to one segment or all.
type chunk struct {
	data []byte
	rows int64
	refs atomic.Int32
}

var chunks = sync.Pool{New: func() any { return &chunk{} }}

// fan takes rows, one line of COPY text per Write, and sends each to the segments it
// belongs to. A segment's load begins with its first chunk.
type fan struct {
	ctx   context.Context //nolint:containedctx // that of one piece, as an io.Writer needs it
	plan  *apply.CopyPlan
	load  func(i int, r io.Reader)
	sent  func(rows, bytes int64)
	size  int // of a chunk
	open  []*chunk
	outs  []*intake
	key   [][]byte
	field []byte // unescaped values of key
	// failed is why the rows end early; it is set before the intakes are closed.
	failed error
}

func newFan(ctx context.Context, plan *apply.CopyPlan, load func(i int, r io.Reader), sent func(rows, bytes int64)) *fan {
	n := len(plan.Segments)
	return &fan{
		ctx: ctx, plan: plan, load: load, sent: sent, size: min(max(workerBytes/(n*(queueChunks+2)), minChunk), maxChunk),
		open: make([]*chunk, n), outs: make([]*intake, n), key: make([][]byte, plan.Key),
	}
}

// Write takes one row.
func (f *fan) Write(line []byte) (int, error) {
	place := f.plan.Fixed
	if f.plan.Key > 0 {
		if err := f.readKey(line); err != nil {
			return 0, err
		}
		var err error
		if place, err = f.plan.Place(f.key); err != nil {
			return 0, err
		}
	}
	at := max(place, 0) // what goes everywhere is collected once
	c := f.open[at]
	if c == nil {
		c = chunks.Get().(*chunk)
		f.open[at] = c
	}
	c.data = append(c.data, line...)
	c.rows++
	if len(c.data) >= f.size {
		if err := f.send(place); err != nil {
			return 0, err
		}
	}
	return len(line), nil
}

// readKey reads the values that decide the row's place, the first ones of the line.
func (f *fan) readKey(line []byte) error {
	f.field = f.field[:0]
	line = bytes.TrimSuffix(line, []byte{'\n'})
	for i := range f.key {
		raw, rest, more := bytes.Cut(line, []byte{'\t'})
		if !more && i+1 < len(f.key) {
			return &dtx.Error{
				Op: "copy table", Relation: f.plan.Table.String(), Class: dtx.ClassStop,
				Msg: fmt.Sprintf("a row came with %d columns, want at least %d", i+1, len(f.key)), Hint: "This is a protocol violation of the source server",
			}
		}
		line = rest
		switch {
		case string(raw) == `\N`:
			f.key[i] = nil
		case bytes.IndexByte(raw, '\\') < 0:
			f.key[i] = raw
		default:
			from := len(f.field)
			f.field = appendUnescaped(f.field, raw)
			f.key[i] = f.field[from:len(f.field):len(f.field)]
		}
	}
	return nil
}

// escapes holds the byte that a letter behind a backslash stands for in what a server
// prints in COPY's text format; others stand for themselves.
var escapes = [256]byte{'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', 'v': '\v'}

func appendUnescaped(dst, raw []byte) []byte {
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c == '\\' && i+1 < len(raw) {
			i++
			if c = raw[i]; escapes[c] != 0 {
				c = escapes[c]
			}
		}
		dst = append(dst, c)
	}
	return dst
}

// send passes the open chunk of a place on.
func (f *fan) send(place int) error {
	at := max(place, 0)
	c := f.open[at]
	f.open[at] = nil
	f.sent(c.rows, int64(len(c.data)))
	from, to := at, at+1
	if place == apply.Everywhere {
		from, to = 0, len(f.outs)
	}
	c.refs.Store(int32(to - from))
	for i := from; i < to; i++ {
		if f.outs[i] == nil {
			f.outs[i] = &intake{f: f, chunks: make(chan *chunk, queueChunks)}
			f.load(i, f.outs[i])
		}
		select {
		case f.outs[i].chunks <- c:
		case <-f.ctx.Done():
			return f.ctx.Err()
		}
	}
	return nil
}

// flush sends what is left.
func (f *fan) flush() error {
	for i, c := range f.open {
		if c == nil {
			continue
		}
		place := i
		if f.plan.Key == 0 {
			place = f.plan.Fixed
		}
		if err := f.send(place); err != nil {
			return err
		}
	}
	return nil
}

// end ends the loads: with err they are undone.
func (f *fan) end(err error) {
	f.failed = err
	for _, o := range f.outs {
		if o != nil {
			close(o.chunks)
		}
	}
}

// intake is one segment's rows, read by its load.
type intake struct {
	f      *fan
	chunks chan *chunk
	now    *chunk
	off    int
	rows   int64
}

// Read returns the next bytes; the error of the source when its rows end early.
func (r *intake) Read(p []byte) (int, error) {
	for r.now == nil || r.off == len(r.now.data) {
		if r.now != nil {
			r.now.release()
			r.now = nil
		}
		select {
		case c, ok := <-r.chunks:
			switch {
			case ok:
				r.now, r.off = c, 0
				r.rows += c.rows
			case r.f.failed != nil:
				return 0, errSource
			default:
				return 0, io.EOF
			}
		case <-r.f.ctx.Done():
			return 0, errSource
		}
	}
	n := copy(p, r.now.data[r.off:])
	r.off += n
	return n, nil
}

// errSource tells a server why its rows end; it may print it.
var errSource = errors.New("the source's rows could not be read to their end")

func (c *chunk) release() {
	if c.refs.Add(-1) > 0 {
		return
	}
	if cap(c.data) > 2*maxChunk {
		return // a large row's
	}
	c.data, c.rows = c.data[:0], 0
	chunks.Put(c)
}
