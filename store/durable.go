package store

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"cbrepl/dtx"
)

// Prepared is a prepared transaction whose outcome is not known.
type Prepared struct {
	Content dtx.Content
	ID      dtx.SpoolID
	GID     string
	// LSN is what Prepare was given.
	LSN         dtx.LSN
	Rows, Bytes int64
	Barrier     bool

	st stored
}

// Recovered is what a spool in mode Spooled held when it was opened.
type Recovered struct {
	// Parts lists the unreleased parts by content, each in stream order.
	Parts map[dtx.Content][]dtx.Part
	// Records lists the commit records in stream order.
	Records []dtx.CommitRecord
	// Prepared lists prepared transactions by content and LSN; Resume takes them up.
	Prepared []Prepared
	// Positions lists what SavePosition saved, by content.
	Positions []dtx.Position
}

// AppendRecord keeps a commit record (mode Spooled; nothing in mode Applied).
// Like every write but Commit and Prepare it is durable after the next Sync or
// synced Commit or Prepare: writes reach the disk in the order they were made.
func (s *Spool) AppendRecord(ctx context.Context, r dtx.CommitRecord) error {
	s.recordMu.Lock()
	s.recordsKept++
	s.recordMu.Unlock()
	return s.small(ctx, "spool commit record", func(b *pebble.Batch) error {
		return b.Set(appendRecordKey(nil, r.EndLSN), encodeRecord(r), nil)
	})
}

// ReleaseRecords forgets the commit records up to an LSN, inclusive. They leave
// the disk many at a time, so Recover may list some of them once more.
func (s *Spool) ReleaseRecords(ctx context.Context, upTo dtx.LSN) error {
	s.recordMu.Lock()
	defer s.recordMu.Unlock()
	s.recordsDone = max(s.recordsDone, upTo)
	if s.recordsKept < s.opts.deleteCount {
		return nil
	}
	return s.deleteRecords(ctx)
}

// deleteRecords requires recordMu.
func (s *Spool) deleteRecords(ctx context.Context) error {
	if s.recordsDone == s.recordsLow {
		return nil
	}
	err := s.small(ctx, "release commit records", func(b *pebble.Batch) error {
		return b.DeleteRange(appendRecordKey(nil, s.recordsLow), append(appendRecordKey(nil, s.recordsDone), 0), nil)
	})
	if err == nil {
		s.recordsLow, s.recordsKept = s.recordsDone, 0
	}
	return err
}

// SavePosition keeps the position up to which a content's stream is in the spool.
// Not synced; see AppendRecord.
func (s *Spool) SavePosition(ctx context.Context, c dtx.Content, lsn dtx.LSN) error {
	return s.small(ctx, "spool position", func(b *pebble.Batch) error {
		return b.Set(appendPositionKey(nil, c), binary.BigEndian.AppendUint64(nil, uint64(lsn)), nil)
	})
}

func (s *Spool) small(ctx context.Context, op string, f func(*pebble.Batch) error) error {
	if s.opts.Mode == Applied {
		return nil
	}
	err := s.db.failed()
	if err == nil {
		b := s.db.NewBatch()
		defer b.Close()
		if err = f(b); err == nil {
			err = s.db.apply(ctx, b, false)
		}
	}
	if err != nil {
		return &dtx.Error{Op: op, Class: classOf(err), Err: err}
	}
	return nil
}

// Sync makes everything durable that was written before it was called. A stream
// confirms a position to its source only after it (mode Spooled). In mode
// Applied it only reports whether the spool works.
func (s *Spool) Sync(ctx context.Context) error {
	err := s.err()
	if err == nil && s.opts.Mode == Spooled {
		err = s.db.sync(ctx)
	}
	if err != nil {
		return &dtx.Error{Op: "sync spool", Class: classOf(err), Err: err}
	}
	return nil
}

// Recover returns what the spool held when it was opened; nothing in mode
// Applied. The spool does not keep it: a second call returns nothing.
func (s *Spool) Recover(context.Context) (Recovered, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.recovered
	s.recovered = nil
	if r == nil {
		return Recovered{}, nil
	}
	return *r, nil
}

// Resume takes up a prepared transaction found by Recover, to commit or drop it.
func (w *Writer) Resume(p Prepared) (*Txn, error) {
	n, off := splitID(p.ID)
	l := w.lane
	l.mu.Lock()
	c := l.chains[n]
	if c != nil {
		if i, ok := c.find(off); !ok || c.txns[i]&(txnReadable|txnReleased) != 0 {
			c = nil
		}
	}
	l.mu.Unlock()
	if c == nil || p.Content != l.content {
		return nil, w.s.fault("resume prepared transaction", l.content, errNotSpooled)
	}
	return &Txn{w: w, chain: c, off: off, id: p.ID, flags: p.st.flags, state: txnPrepared, written: p.st.size,
		rows: p.Rows, bytes: p.Bytes, barrier: p.Barrier, aborted: p.st.aborted}, nil
}

// rangeBound is appendChainKey for a number that only bounds a range of class k.
func rangeBound(prefix byte, c dtx.Content, k class, n chainNum) []byte {
	b := append(appendContent([]byte{prefix}, c), byte(k))
	return binary.BigEndian.AppendUint64(b, uint64(n))
}

// recover reads what the disk holds and removes what belongs to nothing: blocks
// of transactions that were open when the spool was cut off.
func (s *Spool) recover(ctx context.Context) error {
	r := &Recovered{Parts: map[dtx.Content][]dtx.Part{}}
	for _, step := range []struct {
		prefix byte
		f      func(k, v []byte) error
	}{
		{prefixMeta, s.loadMeta},
		{prefixPart, func(k, v []byte) error { return s.loadPart(r, k, v) }},
		{prefixPrepared, func(k, v []byte) error { return s.loadPrepared(r, k, v) }},
		{prefixEmpty, func(k, v []byte) error { return s.loadEmpty(r, k, v) }},
		{prefixRecord, func(k, v []byte) error {
			rec, err := decodeRecord(v)
			if err != nil || len(k) != 9 {
				return errors2(err, "commit record")
			}
			rec.EndLSN = dtx.LSN(binary.BigEndian.Uint64(k[1:]))
			r.Records = append(r.Records, rec)
			return nil
		}},
		{prefixPosition, func(k, v []byte) error {
			if len(k) != 3 || len(v) != 8 {
				return errors2(nil, "position")
			}
			r.Positions = append(r.Positions, dtx.Position{Content: contentAt(k[1:]), LSN: dtx.LSN(binary.BigEndian.Uint64(v))})
			return nil
		}},
	} {
		if err := s.scan(ctx, step.prefix, step.f); err != nil {
			return err
		}
	}
	if err := s.recoverRelations(ctx, len(r.Prepared) == 0 && s.space.committed == 0); err != nil {
		return err
	}
	slices.SortFunc(r.Prepared, func(a, b Prepared) int {
		return cmp.Or(cmp.Compare(a.Content, b.Content), cmp.Compare(a.LSN, b.LSN))
	})
	s.adopt()
	if err := s.dropRepeats(ctx, r); err != nil {
		return err
	}
	if err := s.dropOrphans(ctx); err != nil {
		return err
	}
	if err := s.reserveChains(ctx); err != nil {
		return err
	}
	s.recovered = r
	return nil
}

func errors2(err error, what string) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: key of a %s", errCorrupt, what)
}

// scan calls f for every key with the prefix, in order.
func (s *Spool) scan(ctx context.Context, prefix byte, f func(k, v []byte) error) error {
	it, err := s.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: []byte{prefix}, UpperBound: []byte{prefix + 1}})
	if err != nil {
		return err
	}
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err == nil {
			err = f(it.Key(), v)
		}
		if err != nil {
			_ = it.Close()
			return err
		}
	}
	return it.Close()
}

func (s *Spool) loadMeta(k, v []byte) error {
	if string(k[1:]) != metaChains {
		return nil
	}
	if len(v) != 8 {
		return errors2(nil, "number")
	}
	s.chains = binary.BigEndian.Uint64(v)
	return nil
}

// recoverRelations loads the relation versions, or drops them when no row needs
// one.
func (s *Spool) recoverRelations(ctx context.Context, unused bool) error {
	if !unused {
		return s.scan(ctx, prefixRelation, s.loadRelation)
	}
	b := s.db.NewBatch()
	defer b.Close()
	if err := b.DeleteRange([]byte{prefixRelation}, []byte{prefixRelation + 1}, nil); err != nil {
		return err
	}
	return s.db.apply(ctx, b, false)
}

func (s *Spool) loadRelation(k, v []byte) error {
	if len(k) != 5 {
		return errors2(nil, "relation version")
	}
	return s.rels.load(RelVersion(binary.BigEndian.Uint32(k[1:])), slices.Clone(v))
}

// loadTxn adds a recovered transaction to its chain.
func (s *Spool) loadTxn(id dtx.SpoolID, c dtx.Content, st stored, state uint32) *lane {
	n, off := splitID(id)
	l := s.lane(c)
	ch := l.chains[n]
	if ch == nil {
		ch = &chain{num: n}
		l.chains[n] = ch
	}
	ch.txns = append(ch.txns, uint32(off)|state)
	ch.live++
	ch.bytes += st.size
	ch.disk += st.size
	l.bytes += st.size
	if n.class() == classOwn && state == txnReadable {
		ch.aborted = st.aborted
	}
	return l
}

func (s *Spool) loadPart(r *Recovered, k, v []byte) error {
	c, id, ok := parseTxnKey(k)
	p, st, err := decodePart(v)
	if err != nil || !ok {
		return errors2(err, "part record")
	}
	p.Content, p.Spool = c, id
	l := s.loadTxn(id, c, st, txnReadable)
	l.parts++
	s.space.add(st.size, 1)
	r.Parts[c] = append(r.Parts[c], p)
	return nil
}

func (s *Spool) loadPrepared(r *Recovered, k, v []byte) error {
	c, id, ok := parseTxnKey(k)
	p, st, err := decodePrepared(v)
	if err != nil || !ok {
		return errors2(err, "prepared record")
	}
	p.Content, p.ID, p.st = c, id, st
	l := s.loadTxn(id, c, st, 0)
	l.open++
	s.space.add(st.size, 0)
	r.Prepared = append(r.Prepared, p)
	return nil
}

func (s *Spool) loadEmpty(r *Recovered, k, v []byte) error {
	p, _, err := decodePart(v)
	if err != nil || len(k) != 11 {
		return errors2(err, "part record")
	}
	p.Content = contentAt(k[1:])
	s.lane(p.Content).empties.add(p.EndLSN)
	r.Parts[p.Content] = append(r.Parts[p.Content], p)
	return nil
}

// adopt puts the recovered chains in order.
func (s *Spool) adopt() {
	for _, l := range s.allLanes() {
		for _, c := range l.chains {
			slices.SortFunc(c.txns, func(a, b uint32) int { return cmp.Compare(a&txnOffset, b&txnOffset) })
			o := &l.order[c.num.class()]
			o.list = append(o.list, c)
		}
		for k := range l.order {
			slices.SortFunc(l.order[k].list, func(a, b *chain) int { return cmp.Compare(a.num, b.num) })
		}
	}
}

// dropRepeats sorts the parts, and keeps the last one of those with the same end
// LSN: a stream whose saved position is behind its parts sends them again.
func (s *Spool) dropRepeats(ctx context.Context, r *Recovered) error {
	b := s.db.NewBatch()
	defer b.Close()
	for c, ps := range r.Parts {
		slices.SortFunc(ps, func(a, b dtx.Part) int {
			return cmp.Or(cmp.Compare(a.EndLSN, b.EndLSN), cmp.Compare(a.Spool, b.Spool))
		})
		var repeats []dtx.Part
		keep := ps[:0]
		for i, p := range ps {
			if i+1 == len(ps) || ps[i+1].EndLSN != p.EndLSN {
				keep = append(keep, p)
				continue
			}
			repeats = append(repeats, p)
			key := appendTxnKey(nil, prefixPart, c, p.Spool)
			if p.Spool == 0 {
				key = appendEmptyKey(nil, c, p.EndLSN)
			}
			if err := b.Delete(key, nil); err != nil {
				return err
			}
		}
		r.Parts[c] = keep
		if err := s.Release(repeats); err != nil {
			return err
		}
	}
	if b.Empty() {
		return nil
	}
	return s.db.apply(ctx, b, false)
}

// dropOrphans deletes the blocks of chains that no part and no prepared
// transaction needs. It looks for them by seeking from live chain to live chain.
func (s *Spool) dropOrphans(ctx context.Context) error {
	it, err := s.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: []byte{prefixData}, UpperBound: []byte{prefixData + 1}})
	if err != nil {
		return err
	}
	b := s.db.NewBatch()
	defer b.Close()
	for ok := it.First(); ok; {
		k := it.Key()
		if len(k) != dataKeyLen {
			_ = it.Close()
			return errors2(nil, "block")
		}
		c, n := contentAt(k[1:]), chainNum(binary.BigEndian.Uint64(k[4:]))
		end := rangeBound(prefixData, c, n.class(), n+1)
		if l := s.lookup(c); l == nil || l.chains[n] == nil {
			if err := b.DeleteRange(slices.Clone(k), end, nil); err != nil {
				_ = it.Close()
				return err
			}
		}
		ok = it.SeekGE(end)
	}
	if err := it.Close(); err != nil {
		return err
	}
	if b.Empty() {
		return nil
	}
	return s.db.apply(ctx, b, false)
}
