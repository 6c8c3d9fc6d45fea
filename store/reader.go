package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

// PartReader walks one part's changes in stream order, rows of rolled back
// subtransactions left out.
type PartReader interface {
	// Next returns the next change, or io.EOF. The change and all it refers to,
	// except Relation values, are valid until the next call.
	Next() (*pgoutput.Change, error)
	// Close releases the reader. It must be called before the part is released.
	Close() error
}

var errNotSpooled = errors.New("part is not in the spool")

// Open opens the rows of a committed part that is not released yet. Several
// readers may be open, also on one part; each belongs to one goroutine.
func (s *Spool) Open(p dtx.Part) (PartReader, error) {
	if p.Spool == 0 {
		return noRows{}, nil
	}
	n, off := splitID(p.Spool)
	l := s.lookup(p.Content)
	if l == nil {
		return nil, s.partFault(p, errNotSpooled)
	}
	l.mu.Lock()
	c := l.chains[n]
	var aborted []dtx.XID
	if c != nil {
		if i, ok := c.find(off); !ok || c.txns[i]&txnReadable == 0 || c.txns[i]&txnReleased != 0 {
			c = nil
		} else {
			c.pins++
			aborted = c.aborted
		}
	}
	l.mu.Unlock()
	if c == nil {
		return nil, s.partFault(p, errNotSpooled)
	}
	r := &reader{s: s, l: l, c: c, part: p, aborted: aborted, next: uint64(off)}
	skip := 0
	if s.opts.Mode == Applied && n.class() == classLog {
		r.next, skip = 0, off
	}
	if err := r.block(); err != nil {
		_ = r.Close()
		return nil, s.partFault(p, err)
	}
	if skip > len(r.b) {
		_ = r.Close()
		return nil, s.partFault(p, fmt.Errorf("%w: block ends before the transaction begins", errCorrupt))
	}
	r.b = r.b[skip:]
	return r, nil
}

// noRows reads a part without rows.
type noRows struct{}

func (noRows) Next() (*pgoutput.Change, error) { return nil, io.EOF }
func (noRows) Close() error                    { return nil }

// reader reads a transaction block by block; one block is held at a time.
type reader struct {
	s    *Spool
	l    *lane
	c    *chain
	part dtx.Part

	b      []byte     // what is left of the block
	held   *heldBlock // the block, when Pebble lent it
	next   uint64     // offset of the next block
	closed bool
	done   bool

	streamed bool
	rel      *pgoutput.Relation
	// aborted lists subtransactions to leave out, ascending. lastXID was looked
	// up last: rows of one subtransaction come in runs.
	aborted  []dtx.XID
	lastXID  dtx.XID
	lastGone bool

	big    []byte // a message put together from pieces
	key    []byte
	change pgoutput.Change
}

// heldBlock is a block that Pebble lends until the last reference is gone.
type heldBlock struct {
	b    []byte
	c    io.Closer
	refs atomic.Int32
}

func (h *heldBlock) unref() {
	if h != nil && h.refs.Add(-1) == 0 {
		_ = h.c.Close()
	}
}

// block moves to the next block.
func (r *reader) block() error {
	r.unhold()
	l := r.l
	l.mu.Lock()
	b, ok := r.c.block(r.next)
	// Many transactions share a log's first block, and their parts are mostly
	// read one after the other.
	common := r.next == 0 && r.c.num.class() == classLog
	if !ok && common && l.held != nil && l.heldOf == r.c.num {
		r.held = l.held
		r.held.refs.Add(1)
		b, ok = r.held.b, true
	}
	l.mu.Unlock()
	if !ok {
		r.key = appendDataKey(r.key[:0], l.content, r.c.num, r.next)
		v, closer, err := r.s.db.get(r.key)
		if errors.Is(err, pebble.ErrNotFound) {
			return fmt.Errorf("%w: block at offset %d of chain %d is missing", errCorrupt, r.next, r.c.num)
		}
		if err != nil {
			return err
		}
		b, r.held = v, &heldBlock{b: v, c: closer}
		r.held.refs.Store(1)
		if common {
			r.held.refs.Add(1)
			l.mu.Lock()
			old := l.held
			l.held, l.heldOf = r.held, r.c.num
			l.mu.Unlock()
			old.unref()
		}
	}
	r.next += uint64(len(b))
	r.b = b
	r.rel = nil // every block names its own
	return nil
}

func (r *reader) unhold() {
	r.held.unref()
	r.held, r.b = nil, nil
}

// Next implements PartReader.
func (r *reader) Next() (*pgoutput.Change, error) {
	ch, err := r.read()
	if err != nil && !errors.Is(err, io.EOF) {
		err = r.s.partFault(r.part, err)
	}
	return ch, err
}

func (r *reader) read() (*pgoutput.Change, error) {
	if r.done {
		return nil, io.EOF
	}
	if r.closed {
		return nil, errors.New("reader is closed")
	}
	for {
		if len(r.b) == 0 {
			if err := r.block(); err != nil {
				return nil, err
			}
		}
		k, p, rest, err := nextFrame(r.b)
		if err != nil {
			return nil, err
		}
		r.b = rest
		switch k {
		case frameBegin:
			if len(p) != 1 {
				return nil, fmt.Errorf("%w: begin frame of %d bytes", errCorrupt, len(p))
			}
			r.streamed = p[0]&flagStreamed != 0
			continue
		case frameRel:
			if r.rel, err = r.relation(p); err != nil {
				return nil, err
			}
			continue
		case frameBig:
			if k, p, err = r.join(p); err != nil {
				return nil, err
			}
		case frameEnd:
			r.done = true
			r.unhold()
			return nil, io.EOF
		}
		ok := false
		switch k {
		case frameRow:
			ok, err = r.row(p)
		case frameTrunc:
			ok, err = r.truncate(p)
		default:
			err = fmt.Errorf("%w: frame of kind %d", errCorrupt, k)
		}
		if err != nil {
			return nil, err
		}
		if ok {
			return &r.change, nil
		}
	}
}

func (r *reader) relation(p []byte) (*pgoutput.Relation, error) {
	if len(p) != 4 {
		return nil, fmt.Errorf("%w: relation frame of %d bytes", errCorrupt, len(p))
	}
	v := RelVersion(binary.BigEndian.Uint32(p))
	rel := r.s.rels.get(v)
	if rel == nil {
		return nil, fmt.Errorf("%w: relation version %d is unknown", errCorrupt, v)
	}
	return rel, nil
}

// decode reads a message's row into r.change; false when it was rolled back.
func (r *reader) decode(msg []byte) (typ byte, ok bool, err error) {
	typ, xid, body, err := pgoutput.Split(msg, r.streamed)
	if err != nil || r.gone(xid) {
		return typ, false, err
	}
	r.change.XID = xid
	r.change.Row, err = pgoutput.ParseRow(typ, body)
	return typ, err == nil, err
}

// row takes a row's message; false when it was rolled back.
func (r *reader) row(msg []byte) (bool, error) {
	typ, ok, err := r.decode(msg)
	if !ok {
		return false, err
	}
	c := &r.change
	c.Relation, c.Relations = r.rel, nil
	if typ == pgoutput.TypeTruncate || r.rel == nil || c.RelationID != r.rel.ID {
		return false, fmt.Errorf("%w: %q of relation %d under another relation's version", errCorrupt, typ, c.RelationID)
	}
	return true, nil
}

// truncate takes a TRUNCATE's message behind the versions of its relations; false
// when it was rolled back.
func (r *reader) truncate(p []byte) (bool, error) {
	if len(p) < 4 || uint64(len(p)-4) < 4*uint64(binary.BigEndian.Uint32(p)) {
		return false, fmt.Errorf("%w: truncate frame of %d bytes", errCorrupt, len(p))
	}
	n := int(binary.BigEndian.Uint32(p))
	vs, msg := p[4:4+4*n], p[4+4*n:]
	typ, ok, err := r.decode(msg)
	if !ok {
		return false, err
	}
	c := &r.change
	if typ != pgoutput.TypeTruncate || len(c.Truncated) != n {
		return false, fmt.Errorf("%w: %q with %d relation versions", errCorrupt, typ, n)
	}
	rels := make([]*pgoutput.Relation, n)
	for i := range rels {
		if rels[i], err = r.relation(vs[4*i : 4*i+4]); err != nil {
			return false, err
		}
	}
	c.Relation, c.Relations = nil, rels
	return true, nil
}

// gone reports whether xid was rolled back.
func (r *reader) gone(xid dtx.XID) bool {
	if len(r.aborted) == 0 {
		return false
	}
	if xid != r.lastXID {
		_, r.lastGone = slices.BinarySearch(r.aborted, xid)
		r.lastXID = xid
	}
	return r.lastGone
}

// maxMessage is above what a server can send: 1 GiB, and a TRUNCATE's versions.
const maxMessage = 1<<30 + 1<<24

// maxKept bounds what a reader keeps of a long message's buffer.
const maxKept = 1 << 20

// join puts the pieces of a long message together.
func (r *reader) join(p []byte) (frameKind, []byte, error) {
	if len(p) < 5 {
		return 0, nil, fmt.Errorf("%w: first piece of %d bytes", errCorrupt, len(p))
	}
	k, total := frameKind(p[0]), int(binary.BigEndian.Uint32(p[1:]))
	p = p[5:]
	if total > maxMessage {
		return 0, nil, fmt.Errorf("%w: a message of %d bytes", errCorrupt, total)
	}
	if cap(r.big) < total || cap(r.big) > maxKept {
		r.big = make([]byte, 0, total)
	}
	r.big = append(r.big[:0], p...)
	for len(r.big) < total {
		if len(r.b) == 0 {
			if err := r.block(); err != nil {
				return 0, nil, err
			}
		}
		kind, q, rest, err := nextFrame(r.b)
		if err != nil {
			return 0, nil, err
		}
		r.b = rest
		switch kind {
		case frameRel:
			if r.rel, err = r.relation(q); err != nil {
				return 0, nil, err
			}
		case frameMore:
			r.big = append(r.big, q...)
		default:
			return 0, nil, fmt.Errorf("%w: frame of kind %d inside a long message", errCorrupt, kind)
		}
	}
	if len(r.big) != total {
		return 0, nil, fmt.Errorf("%w: long message of %d bytes where %d were announced", errCorrupt, len(r.big), total)
	}
	return k, r.big, nil
}

// Close implements PartReader. It is idempotent.
func (r *reader) Close() error {
	if r.closed {
		return nil
	}
	r.closed, r.done = true, true
	r.unhold()
	r.s.unpin(r.l, r.c)
	return nil
}

func (s *Spool) unpin(l *lane, c *chain) {
	l.mu.Lock()
	c.pins--
	freed := s.reap(l, c)
	l.mu.Unlock()
	if freed > 0 {
		s.space.add(-freed, 0)
	}
}
