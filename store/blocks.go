package store

import (
	"context"

	"github.com/cockroachdb/pebble/v2"

	"cbrepl/dtx"
)

// newChain adds a chain to l, whose mu the caller holds: numbers rise in the
// order of l's chains.
func (s *Spool) newChain(l *lane, k class) *chain {
	c := &chain{num: s.nextChain(k), growing: true}
	l.chains[c.num] = c
	o := &l.order[k]
	o.list = append(o.list, c)
	return c
}

// endChain marks that nothing more comes to c.
func (s *Spool) endChain(l *lane, c *chain) {
	l.mu.Lock()
	c.growing = false
	freed := s.reap(l, c)
	l.mu.Unlock()
	s.space.add(-freed, 0)
}

// reap frees c if nothing needs it any more and returns the bytes to take off
// the space count. It requires l.mu.
func (s *Spool) reap(l *lane, c *chain) int64 {
	if c.dead || c.growing || c.live > 0 || c.pins > 0 {
		return 0
	}
	c.dead = true
	delete(l.chains, c.num)
	for _, b := range c.mem {
		s.tier.release(b.reserved)
		s.tier.recycle(b.buf)
	}
	c.mem, c.tail, c.txns, c.aborted = nil, memBlock{}, nil, nil
	if l.heldOf == c.num {
		l.held.unref()
		l.held, l.heldOf = nil, 0
	}
	l.bytes -= c.bytes
	s.deadDisk.Add(c.disk)
	l.order[c.num.class()].died()
	return c.bytes
}

// count adds n bytes of c to the space accounts.
func (s *Spool) count(l *lane, c *chain, n int) {
	l.mu.Lock()
	c.bytes += int64(n)
	l.bytes += int64(n)
	l.mu.Unlock()
	s.space.add(int64(n), 0)
}

// onDisk notes that n bytes of c are in Pebble.
func (s *Spool) onDisk(l *lane, c *chain, n int) {
	l.mu.Lock()
	c.disk += int64(n)
	l.mu.Unlock()
}

// storeBlock takes buf, the complete block of c at off: into the tier when it
// has room (mode Applied), else into Pebble.
func (s *Spool) storeBlock(ctx context.Context, l *lane, c *chain, off uint64, buf []byte) error {
	if s.opts.Mode == Applied {
		b := buf
		if len(b) < blockSize/2 { // do not hold a whole buffer for a short block
			b = append(make([]byte, 0, len(buf)), buf...)
		}
		if s.tier.reserve(cap(b)) {
			l.mu.Lock()
			c.mem = append(c.mem, memBlock{off: off, buf: b, reserved: cap(b)})
			s.untail(c, off, buf, len(b) != 0 && &b[0] == &buf[0])
			l.mu.Unlock()
			return nil
		}
	}
	if err := s.putBlock(ctx, l.content, c.num, off, buf); err != nil {
		return err
	}
	l.mu.Lock()
	c.disk += int64(len(buf))
	s.untail(c, off, buf, false)
	l.mu.Unlock()
	return nil
}

// untail drops the readable part of the block at off, which is stored now, and
// takes its buffer back unless it was kept or a reader may have it. It requires
// the lane's mu.
func (s *Spool) untail(c *chain, off uint64, buf []byte, kept bool) {
	if c.tail.buf != nil && c.tail.off == off {
		c.tail = memBlock{}
		if c.pins > 0 {
			return
		}
	}
	if !kept {
		s.tier.recycle(buf)
	}
}

// putBlock writes a block to Pebble. It is not synced: in mode Spooled the
// commit that makes it part of something is.
func (s *Spool) putBlock(ctx context.Context, c dtx.Content, n chainNum, off uint64, buf []byte) error {
	return s.db.update(ctx, false, func(b *pebble.Batch) error {
		op := b.SetDeferred(dataKeyLen, len(buf))
		appendDataKey(op.Key[:0], c, n, off)
		copy(op.Value, buf)
		return op.Finish()
	})
}
