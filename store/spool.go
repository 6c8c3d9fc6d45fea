package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"cbrepl/dtx"
)

// Spool is an open spool. Its methods may be called from any goroutine; writers
// and transactions belong to one each.
type Spool struct {
	opts  Options
	lock  io.Closer
	db    *database
	rels  *relations
	tier  *tier
	space *space

	closed    atomic.Bool
	reclaimC  chan struct{} // asks the reclaimer to run
	reclaimer sync.WaitGroup
	reclaimMu sync.Mutex

	mu    sync.RWMutex
	lanes map[dtx.Content]*lane

	// chains is the last chain number given out, without its class bit;
	// chainLimit what is reserved on disk (Spooled).
	chainMu    sync.Mutex
	chains     uint64
	chainLimit uint64

	// deadDisk counts the bytes of dead chains that are not yet deleted on disk.
	deadDisk atomic.Int64

	// recordsKept counts commit records added since the last bulk delete, which
	// went up to recordsLow; those up to recordsDone are released.
	recordMu                sync.Mutex
	recordsKept             int
	recordsLow, recordsDone dtx.LSN

	recovered *Recovered
}

var errClosed = errors.New("spool is closed")

// err returns why the spool does not work any more.
func (s *Spool) err() error {
	if s.closed.Load() {
		return errClosed
	}
	return s.db.failed()
}

// fault wraps an error of one content.
func (s *Spool) fault(op string, c dtx.Content, err error) error {
	var e *dtx.Error
	if errors.As(err, &e) {
		return err
	}
	return &dtx.Error{Op: op, Content: dtx.AtContent(c), Class: classOf(err), Err: err}
}

// classOf: what asks for a person are misuse and damage; a full or failing disk
// may pass.
func classOf(err error) dtx.Class {
	for _, stop := range []error{errCorrupt, errNotSpooled, errNoRelation, errNotOpen, errTxnEnded} {
		if errors.Is(err, stop) {
			return dtx.ClassStop
		}
	}
	return dtx.ClassRetry
}

func (s *Spool) partFault(p dtx.Part, err error) error {
	var e *dtx.Error
	if errors.As(err, &e) {
		return err
	}
	return &dtx.Error{
		Op: "read spooled part", GXID: p.GXID, Content: dtx.AtContent(p.Content), LSN: p.EndLSN,
		Class: classOf(err), Err: err,
	}
}

// lane returns a content's lane, made when it is new.
func (s *Spool) lane(c dtx.Content) *lane {
	if l := s.lookup(c); l != nil {
		return l
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[c]
	if l == nil {
		l = &lane{content: c, chains: map[chainNum]*chain{}}
		s.lanes[c] = l
	}
	return l
}

func (s *Spool) lookup(c dtx.Content) *lane {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.lanes[c]
}

// allLanes returns the lanes by content.
func (s *Spool) allLanes() []*lane {
	s.mu.RLock()
	defer s.mu.RUnlock()
	ls := make([]*lane, 0, len(s.lanes))
	for _, l := range s.lanes {
		ls = append(ls, l)
	}
	slices.SortFunc(ls, func(a, b *lane) int { return int(a.content) - int(b.content) })
	return ls
}

// chainStep is how many chain numbers are reserved on disk at a time.
const chainStep = 1 << 20

// nextChain numbers a new chain. Numbers are never given out twice in the life
// of a spool, restarts included.
func (s *Spool) nextChain(k class) chainNum {
	s.chainMu.Lock()
	defer s.chainMu.Unlock()
	s.chains++
	if s.opts.Mode == Spooled && s.chains > s.chainLimit {
		// A failure stops the spool before the number is used on disk.
		_ = s.reserveChains(context.Background())
	}
	return chainNum(s.chains<<1 | uint64(k))
}

// reserveChains reserves the numbers that follow on disk. It requires chainMu.
func (s *Spool) reserveChains(ctx context.Context) error {
	s.chainLimit = s.chains + chainStep
	return s.db.update(ctx, true, func(b *pebble.Batch) error {
		return b.Set(metaKey(metaChains), binary.BigEndian.AppendUint64(nil, s.chainLimit), nil)
	})
}

// SetExempt names the contents that may write while the spool is full: those the
// oldest unreleased dtx waits for. It replaces the former set.
func (s *Spool) SetExempt(cs []dtx.Content) { s.space.setExempt(cs) }

// Release frees parts that have been applied or are not wanted. Releasing a part
// twice does nothing. In mode Spooled a release is not synced: a part released
// shortly before a crash is listed again by Recover.
func (s *Spool) Release(parts []dtx.Part) error {
	if err := s.err(); err != nil {
		return &dtx.Error{Op: "release spooled parts", Err: err}
	}
	var l *lane
	var freed int64
	released, reclaim := 0, false
	for i := range parts {
		p := &parts[i]
		if l == nil || l.content != p.Content {
			if l != nil {
				l.mu.Unlock()
			}
			if l = s.lookup(p.Content); l == nil {
				continue
			}
			l.mu.Lock()
		}
		if p.Spool == 0 {
			l.empties.release(p.EndLSN)
			reclaim = reclaim || l.empties.dead >= s.opts.deleteCount
			continue
		}
		n, off := splitID(p.Spool)
		c := l.chains[n]
		if c == nil {
			continue
		}
		j, ok := c.find(off)
		if !ok || c.txns[j]&txnReadable == 0 || c.txns[j]&txnReleased != 0 {
			continue
		}
		c.txns[j] |= txnReleased
		c.live--
		l.parts--
		released++
		freed += s.reap(l, c)
	}
	if l != nil {
		l.mu.Unlock()
	}
	s.space.add(-freed, -released)
	if reclaim || s.deadDisk.Load() >= s.opts.deleteBytes {
		select {
		case s.reclaimC <- struct{}{}:
		default: // it is asked for already
		}
	}
	return nil
}

// Usage is a snapshot of what the spool holds.
type Usage struct {
	// Bytes counts spooled bytes whose chain is not free yet, out of MaxBytes.
	Bytes, MaxBytes int64
	// MemBytes is what recent blocks take in memory, DiskBytes the size of
	// Pebble's files.
	MemBytes, DiskBytes int64
	// Parts counts committed parts with rows that are not released, out of
	// MaxParts, OpenTxns transactions begun or prepared.
	Parts, MaxParts, OpenTxns int
	// FullSince is zero while the spool is not full.
	FullSince time.Time
	Contents  []ContentUsage
}

// ContentUsage is one content's share.
type ContentUsage struct {
	Content         dtx.Content
	Bytes           int64
	Parts, OpenTxns int
	// Exempt: the content may write while the spool is full. Waiting: its writer
	// is held back now.
	Exempt, Waiting bool
}

// Usage returns what the spool holds, by content.
func (s *Spool) Usage() Usage {
	var u Usage
	for _, l := range s.allLanes() {
		exempt := s.space.isExempt(l.content)
		l.mu.Lock()
		c := ContentUsage{Content: l.content, Bytes: l.bytes, Parts: l.parts, OpenTxns: l.open, Exempt: exempt, Waiting: l.blocked > 0}
		l.mu.Unlock()
		u.Parts += c.Parts
		u.OpenTxns += c.OpenTxns
		u.Contents = append(u.Contents, c)
	}
	s.space.mu.Lock()
	u.Bytes, u.MaxBytes, u.MaxParts, u.FullSince = s.space.used, s.space.max, s.space.maxParts, s.space.fullSince
	s.space.mu.Unlock()
	s.tier.mu.Lock()
	u.MemBytes = s.tier.used
	s.tier.mu.Unlock()
	if s.err() == nil {
		u.DiskBytes = int64(s.db.Metrics().DiskSpaceUsage())
	}
	return u
}

// Close ends the spool: whoever waits in it gets an error. It must not run
// concurrently with other calls except those that wait; readers must be closed.
// In mode Spooled everything acknowledged is on disk. It is idempotent.
func (s *Spool) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.db.halt()
	s.reclaimer.Wait()
	var errs []error
	if ctx := context.Background(); s.opts.Mode == Spooled && s.db.failed() == nil {
		s.db.closing.Store(true)
		errs = append(errs, s.forget(ctx), s.db.sync(ctx))
	}
	for _, l := range s.allLanes() {
		l.held.unref()
		l.held = nil
	}
	failed := s.db.failed()
	err := s.db.close() // whatever came before
	if failed == nil {
		errs = append(errs, err)
	} // else Pebble's complaints are consequences of what was reported before
	errs = append(errs, s.lock.Close())
	if err := errors.Join(errs...); err != nil {
		return &dtx.Error{Op: "close spool", Class: classOf(err), Err: fmt.Errorf("%s: %w", s.opts.Dir, err)}
	}
	return nil
}
