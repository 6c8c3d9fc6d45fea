package store

import (
	"context"
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"cbrepl/dtx"
)

// Writer spools one content's stream. It and its transactions belong to one
// goroutine; several transactions may be open at a time.
type Writer struct {
	s    *Spool
	lane *lane

	// log is the chain that transactions sent whole are appended to, logOff where
	// its next transaction begins. In mode Applied buf is the log's first block
	// as far as it is built, shared by all its transactions.
	log    *chain
	logOff int
	buf    []byte
	// inLog is the transaction being appended to the log, apart are the others
	// that are open, and own those of them that hold a buffer, most recently used
	// last.
	inLog *Txn
	apart map[*Txn]struct{}
	own   []*Txn
}

// maxBuffers bounds the buffers of a writer's interleaved transactions: when
// more of them are open, the least recently used one's block is closed short.
const maxBuffers = 4

// logSpare is what must be left of a log chain's first block for another
// transaction to begin in it.
const logSpare = 256

// Writer returns a writer for a content's stream. A stream that reconnects goes
// on with its writer, after dropping its open transactions, or closes it.
func (s *Spool) Writer(c dtx.Content) *Writer {
	return &Writer{s: s, lane: s.lane(c), apart: map[*Txn]struct{}{}}
}

// Close drops the writer's open transactions (not the prepared ones) and gives
// its buffers back.
func (w *Writer) Close() error {
	var errs []error
	if w.inLog != nil {
		errs = append(errs, w.inLog.Drop())
	}
	for t := range w.apart {
		errs = append(errs, t.Drop())
	}
	if w.log != nil {
		errs = append(errs, w.endLog(context.Background()))
	}
	if err := errors.Join(errs...); err != nil {
		return w.s.fault("close spool writer", w.lane.content, err)
	}
	return nil
}

// PutRelation takes the body of a relation message (without the transaction id
// of streams) and returns its version. raw is copied.
func (w *Writer) PutRelation(raw []byte) (RelVersion, error) {
	s := w.s
	v, err := s.rels.put(raw, func(v RelVersion) error {
		if s.opts.Mode == Applied {
			return nil
		}
		// Not synced: the log keeps order, so whatever is synced later and
		// refers to the version has it on disk before.
		return s.db.update(context.Background(), false, func(b *pebble.Batch) error {
			return b.Set(appendRelationKey(nil, v), raw, nil)
		})
	})
	if err != nil {
		return 0, s.fault("spool relation", w.lane.content, err)
	}
	return v, nil
}

// Wait blocks while the spool is full, unless the content is exempt. A reader
// calls it before it reads on, so that it stops between messages.
func (w *Writer) Wait(ctx context.Context) error {
	if err := w.s.err(); err != nil {
		return w.s.fault("spool", w.lane.content, err)
	}
	if !w.s.space.blocked.Load() {
		return nil
	}
	return w.waitFull(ctx)
}

func (w *Writer) waitFull(ctx context.Context) error {
	l := w.lane
	l.mu.Lock()
	l.blocked++
	l.mu.Unlock()
	err := w.s.space.wait(ctx, l.content, w.s.db.stop, w.s.err)
	l.mu.Lock()
	l.blocked--
	l.mu.Unlock()
	if err != nil {
		return w.s.fault("wait for room in the spool", l.content, err)
	}
	return nil
}

// Begin starts a transaction. streamed says that its messages carry a
// transaction id and that other transactions' messages may come in between.
func (w *Writer) Begin(streamed bool) *Txn {
	t := &Txn{w: w}
	if streamed {
		t.flags = flagStreamed
	}
	l := w.lane
	l.mu.Lock()
	if streamed || w.inLog != nil {
		t.chain = w.s.newChain(l, classOwn)
	} else {
		if w.log == nil {
			w.log = w.s.newChain(l, classLog)
			w.logOff = 0
		}
		t.chain, t.off = w.log, w.logOff
		w.inLog = t
	}
	t.chain.txns = append(t.chain.txns, uint32(t.off))
	t.chain.live++
	l.open++
	l.mu.Unlock()

	t.id = spoolID(t.chain.num, t.off)
	switch {
	case t != w.inLog:
		w.apart[t] = struct{}{}
		return t // its buffer comes with the first row
	case w.s.opts.Mode == Applied:
		if w.buf == nil {
			w.buf = w.s.tier.buffer()
		}
		t.buf, t.counted = w.buf, len(w.buf)
	default:
		t.buf, t.blockOff = w.s.tier.buffer(), uint64(t.off)
	}
	t.buf = appendBegin(t.buf, t.flags)
	return t
}

// claim gives t, an interleaved transaction, a buffer and makes it the most
// recently used.
func (w *Writer) claim(ctx context.Context, t *Txn) error {
	if n := len(w.own); t.buf != nil {
		if w.own[n-1] == t {
			return nil
		}
		w.disown(t)
	} else {
		if n == maxBuffers {
			if err := w.own[0].evict(ctx); err != nil {
				return err
			}
		}
		t.buf, t.counted = w.s.tier.buffer(), 0
		if t.blockOff == 0 {
			t.buf = appendBegin(t.buf, t.flags)
		}
		if t.rel != 0 {
			t.buf = appendRel(t.buf, t.rel)
		}
	}
	w.own = append(w.own, t)
	return nil
}

func (w *Writer) disown(t *Txn) {
	for i, o := range w.own {
		if o == t {
			w.own = append(w.own[:i], w.own[i+1:]...)
			return
		}
	}
}

// endLog closes the log chain; its shared block, if it is still being built,
// goes where blocks go.
func (w *Writer) endLog(ctx context.Context) error {
	c, buf := w.log, w.buf
	w.log, w.buf = nil, nil
	var err error
	if len(buf) > 0 {
		// The block holds committed transactions, whatever becomes of this call.
		err = w.s.storeBlock(context.WithoutCancel(ctx), w.lane, c, 0, buf)
	}
	w.s.endChain(w.lane, c)
	return err
}
