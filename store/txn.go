package store

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"cbrepl/dtx"
)

// Txn is a transaction being spooled. It ends with Commit, Drop, or, for a
// prepared one, either of them after Prepare.
type Txn struct {
	w     *Writer
	chain *chain
	off   int
	id    dtx.SpoolID
	flags byte
	state txnState
	// err is the first failed write: the transaction can only be dropped.
	err error

	// buf is the block under construction, blockOff its offset in the chain,
	// counted how much of it space accounting knows. sealed says that a block of
	// this transaction is complete.
	buf      []byte
	blockOff uint64
	counted  int
	sealed   bool
	rel      RelVersion

	// written is the size of the blocks completed (Spooled).
	written int64

	rows, bytes int64
	barrier     bool
	aborted     []dtx.XID
}

type txnState uint8

const (
	txnOpen txnState = iota
	txnPrepared
	txnEnded
)

var (
	errTxnEnded   = errors.New("transaction has ended")
	errNotOpen    = errors.New("transaction takes no more rows")
	errNoRelation = errors.New("relation version is not known")
)

// ID returns the transaction's place in the spool.
func (t *Txn) ID() dtx.SpoolID { return t.id }

// Append spools an insert, update or delete message as received (type byte,
// transaction id when streamed, body), to be decoded with relation version rel.
// msg is copied. It blocks while the spool is full, unless the content is
// exempt. After an error the transaction can only be dropped.
func (t *Txn) Append(ctx context.Context, rel RelVersion, msg []byte) error {
	n := len(t.buf) + frameHeader + len(msg)
	if t.rel != rel || rel == 0 || t.buf == nil || n > blockRoom || len(msg) > maxWhole || t.err != nil ||
		t.state != txnOpen || t.w.s.space.blocked.Load() {
		return t.appendSlow(ctx, rel, msg)
	}
	t.buf = append(binary.BigEndian.AppendUint32(t.buf, uint32(frameRow)<<24|uint32(len(msg))), msg...)
	t.rows++
	t.bytes += int64(len(msg))
	return nil
}

func (t *Txn) appendSlow(ctx context.Context, rel RelVersion, msg []byte) error {
	if err := t.ready(ctx); err != nil {
		return err
	}
	if t.rel != rel || rel == 0 {
		if t.w.s.rels.get(rel) == nil {
			return t.fail(errNoRelation)
		}
		if err := t.need(ctx, relLen); err != nil {
			return t.fail(err)
		}
		t.rel = rel
		t.buf = appendRel(t.buf, rel)
	}
	return t.add(ctx, frameRow, msg, len(msg))
}

// AppendTruncate spools a TRUNCATE message as received, with the versions of
// its relations in message order.
func (t *Txn) AppendTruncate(ctx context.Context, rels []RelVersion, msg []byte) error {
	if err := t.ready(ctx); err != nil {
		return err
	}
	p := binary.BigEndian.AppendUint32(make([]byte, 0, 4+4*len(rels)+len(msg)), uint32(len(rels)))
	for _, v := range rels {
		if t.w.s.rels.get(v) == nil {
			return t.fail(errNoRelation)
		}
		p = binary.BigEndian.AppendUint32(p, uint32(v))
	}
	if err := t.add(ctx, frameTrunc, append(p, msg...), len(msg)); err != nil {
		return err
	}
	t.barrier = true
	return nil
}

// ready checks that the transaction takes rows, waits while the spool is full,
// and gets a block to write to.
func (t *Txn) ready(ctx context.Context) error {
	if t.err != nil {
		return t.err
	}
	if t.state != txnOpen {
		return t.w.s.fault("spool row", t.w.lane.content, errNotOpen)
	}
	if t.w.s.space.blocked.Load() {
		if err := t.w.waitFull(ctx); err != nil {
			return err // nothing was written: the caller may try again
		}
	}
	if t != t.w.inLog {
		if err := t.w.claim(ctx, t); err != nil {
			return t.fail(err)
		}
	}
	return nil
}

func (t *Txn) fail(err error) error {
	if t.err == nil {
		t.err = t.w.s.fault("spool row", t.w.lane.content, err)
	}
	return t.err
}

// need makes room for n bytes in the block.
func (t *Txn) need(ctx context.Context, n int) error {
	if len(t.buf)+n <= blockRoom {
		return nil
	}
	return t.nextBlock(ctx)
}

// nextBlock completes the block and starts another one.
func (t *Txn) nextBlock(ctx context.Context) error {
	if err := t.seal(ctx); err != nil {
		return err
	}
	t.buf, t.counted = t.w.s.tier.buffer(), 0
	if t.rel != 0 {
		t.buf = appendRel(t.buf, t.rel)
	}
	return nil
}

// seal hands the block to the tier or to Pebble.
func (t *Txn) seal(ctx context.Context) error {
	w := t.w
	buf, off := t.buf, t.blockOff
	w.s.count(w.lane, t.chain, len(buf)-t.counted)
	t.buf = nil
	t.blockOff += uint64(len(buf))
	t.written += int64(len(buf))
	t.sealed = true
	if t == w.inLog {
		w.buf = nil
	}
	return w.s.storeBlock(ctx, w.lane, t.chain, off, buf)
}

// evict takes the buffer of a transaction that is not being appended to.
func (t *Txn) evict(ctx context.Context) error {
	t.w.disown(t)
	return t.seal(ctx)
}

// add appends a frame, in pieces when it is long; size is the message's part.
func (t *Txn) add(ctx context.Context, k frameKind, p []byte, size int) error {
	if len(p) <= maxWhole {
		if err := t.need(ctx, frameHeader+len(p)); err != nil {
			return t.fail(err)
		}
		t.buf = append(appendFrameHeader(t.buf, k, len(p)), p...)
	} else if err := t.addBig(ctx, k, p); err != nil {
		return t.fail(err)
	}
	t.rows++
	t.bytes += int64(size)
	return nil
}

func (t *Txn) addBig(ctx context.Context, k frameKind, p []byte) error {
	if err := t.need(ctx, bigLen+relLen); err != nil {
		return err
	}
	n := min(len(p), blockRoom-len(t.buf)-bigLen)
	t.buf = append(appendFrameHeader(t.buf, frameBig, 5+n), byte(k))
	t.buf = binary.BigEndian.AppendUint32(t.buf, uint32(len(p)))
	t.buf = append(t.buf, p[:n]...)
	for p = p[n:]; len(p) > 0; p = p[n:] {
		if err := t.nextBlock(ctx); err != nil {
			return err
		}
		if t.w.s.space.blocked.Load() {
			if err := t.w.waitFull(ctx); err != nil {
				return err
			}
		}
		n = min(len(p), blockRoom-len(t.buf)-frameHeader)
		t.buf = append(appendFrameHeader(t.buf, frameMore, n), p[:n]...)
	}
	return nil
}

// AbortSub leaves out the rows that subtransaction xid has spooled: they are
// skipped when the part is read. It keeps 4 bytes for each.
func (t *Txn) AbortSub(xid dtx.XID) { t.aborted = append(t.aborted, xid) }

// Prepare ends the transaction's rows, until Commit or Drop. A prepared
// transaction is not kept across a restart: the source sends it again.
func (t *Txn) Prepare(ctx context.Context) error {
	return t.finish(ctx, "spool prepared transaction", txnPrepared, func(*pebble.Batch) error { return nil })
}

// Commit completes p with the transaction's place, row and byte counts, and the
// barrier flag when it truncates, and makes its rows readable. p.Spool is 0
// when there are none. In mode Spooled the part is durable after the next Sync.
func (t *Txn) Commit(ctx context.Context, p dtx.Part) (dtx.Part, error) {
	c := t.w.lane.content
	p.Content, p.Rows, p.Bytes = c, t.rows, t.bytes
	p.Barrier = p.Barrier || t.barrier
	p.Spool = 0
	if t.rows > 0 {
		p.Spool = t.id
	}
	t.aborted = sortXIDs(t.aborted)
	if p.Spool == 0 && t.w.s.opts.Mode == Spooled && t.state != txnEnded {
		t.w.lane.mu.Lock()
		t.w.lane.empties.add(p.EndLSN)
		t.w.lane.mu.Unlock()
	}
	err := t.finish(ctx, "spool part", txnEnded, func(b *pebble.Batch) error {
		if p.Spool == 0 {
			return b.Set(appendEmptyKey(nil, c, p.EndLSN), encodePart(p, t.stored()), nil)
		}
		return b.Set(appendTxnKey(nil, prefixPart, c, t.id), encodePart(p, t.stored()), nil)
	})
	return p, err
}

// finish completes the rows when they are not yet, writes what record adds (mode
// Spooled, in one batch with the last block) and moves to state to.
func (t *Txn) finish(ctx context.Context, op string, to txnState, record func(*pebble.Batch) error) error {
	s, c := t.w.s, t.w.lane.content
	if t.err != nil {
		return t.err
	}
	err := s.err()
	if t.state == txnEnded || t.state == to {
		err = errTxnEnded
	}
	if err != nil {
		return s.fault(op, c, err)
	}
	if err := t.store(ctx, record); err != nil {
		t.err = s.fault(op, c, err)
		return t.err
	}
	first := t.state == txnOpen
	t.settle(to)
	t.state = to
	if !first {
		return nil
	}
	if err := t.leave(ctx); err != nil {
		return s.fault(op, c, err)
	}
	return nil
}

// store puts the last block, ended by an end frame, where the others are.
func (t *Txn) store(ctx context.Context, record func(*pebble.Batch) error) error {
	w, s := t.w, t.w.s
	last := t.state == txnOpen && t.rows > 0
	if last {
		if t != w.inLog { // its buffer may have gone to another transaction
			if err := w.claim(ctx, t); err != nil {
				return err
			}
		}
		t.buf = appendFrameHeader(t.buf, frameEnd, 0)
	}
	if s.opts.Mode == Spooled {
		return t.write(ctx, last, record)
	}
	if t.shared() {
		s.count(w.lane, t.chain, len(t.buf)-t.counted)
	} else if last {
		return t.seal(ctx)
	}
	return nil
}

// write writes the record and, when last, the block under construction.
func (t *Txn) write(ctx context.Context, last bool, record func(*pebble.Batch) error) error {
	w, s := t.w, t.w.s
	err := s.db.update(ctx, false, func(b *pebble.Batch) error {
		if last {
			if err := b.Set(appendDataKey(nil, w.lane.content, t.chain.num, t.blockOff), t.buf, nil); err != nil {
				return err
			}
		}
		return record(b)
	})
	if err != nil {
		return err
	}
	if last {
		t.written += int64(len(t.buf))
		s.count(w.lane, t.chain, len(t.buf)-t.counted)
		s.onDisk(w.lane, t.chain, len(t.buf))
	}
	return nil
}

// shared says that the block under construction is the log's, which other
// transactions have begun and may go on.
func (t *Txn) shared() bool {
	return t.state == txnOpen && t == t.w.inLog && !t.sealed && t.w.s.opts.Mode == Applied
}

// settle moves the transaction to its next state in the lane.
func (t *Txn) settle(to txnState) {
	s, l, c := t.w.s, t.w.lane, t.chain
	l.mu.Lock()
	if t.shared() {
		c.tail = memBlock{off: 0, buf: t.buf}
	}
	if c.num.class() == classOwn {
		c.growing = false
	}
	parts := 0
	if to == txnEnded {
		l.open--
		i, _ := c.find(t.off)
		if t.rows > 0 {
			c.txns[i] |= txnReadable
			c.aborted = append(c.aborted, t.aborted...)
			parts = 1
			l.parts++
		} else {
			c.txns[i] |= txnReleased
			c.live--
		}
	}
	freed := s.reap(l, c)
	l.mu.Unlock()
	s.space.add(-freed, parts)
}

// leave gives the writer back what the transaction had of it.
func (t *Txn) leave(ctx context.Context) error {
	w := t.w
	end := int(t.blockOff) + len(t.buf)
	if t == w.inLog && !t.sealed && w.s.opts.Mode == Applied {
		w.buf = t.buf
	} else if t.buf != nil {
		w.s.tier.recycle(t.buf)
	}
	t.buf = nil
	if t != w.inLog {
		delete(w.apart, t)
		w.disown(t)
		return nil
	}
	w.inLog = nil
	w.logOff = end
	if t.sealed || end > blockRoom-logSpare {
		return w.endLog(ctx)
	}
	return nil
}

// Drop gives the transaction up: its rows are gone.
func (t *Txn) Drop() error {
	s, c := t.w.s, t.w.lane.content
	if t.state == txnEnded {
		return nil
	}
	first := t.state == txnOpen
	if t.shared() { // its bytes stay between those of its neighbours
		s.count(t.w.lane, t.chain, len(t.buf)-t.counted)
	}
	t.rows = 0
	t.settle(txnEnded)
	t.state = txnEnded
	if !first {
		return nil
	}
	if err := t.leave(context.Background()); err != nil {
		return s.fault("drop spooled transaction", c, err)
	}
	return nil
}

// stored is what mode Spooled has to know about the transaction after a restart.
func (t *Txn) stored() stored {
	size := t.written
	if t.state == txnOpen {
		size += int64(len(t.buf))
	}
	return stored{flags: t.flags, size: size, aborted: t.aborted}
}

// sortXIDs sorts and drops repetitions.
func sortXIDs(x []dtx.XID) []dtx.XID {
	slices.Sort(x)
	return slices.Compact(x)
}
