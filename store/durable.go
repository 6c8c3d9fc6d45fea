package store

import (
	"context"
	"encoding/binary"

	"github.com/cockroachdb/pebble/v2"

	"cbrepl/dtx"
)

// Recovered is what a spool in mode Spooled held when it was opened.
type Recovered struct {
	// Parts lists the unreleased parts by content, each in stream order.
	Parts map[dtx.Content][]dtx.Part
	// Records lists the commit records in stream order.
	Records []dtx.CommitRecord
	// Positions lists what SavePosition saved, by content.
	Positions []dtx.Position
	// Batch is the last that SaveBatch saved, and Token whose it is: parts of batches
	// up to it may be gone.
	Token string
	Batch uint64
}

// AppendRecord keeps a commit record (mode Spooled; nothing in mode Applied).
// Like every write it is durable after the next Sync; writes reach the disk in
// the order they were made.
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

// SaveBatch keeps the number of a batch that the target has, and the token of the
// record that numbers it, before the batch's parts are released. Not synced: writes
// reach the disk in the order they were made, so parts are gone only where the
// number is known.
func (s *Spool) SaveBatch(ctx context.Context, token string, batch uint64) error {
	return s.small(ctx, "spool batch number", func(b *pebble.Batch) error {
		return b.Set(metaKey(metaBatch), append(binary.BigEndian.AppendUint64(nil, batch), token...), nil)
	})
}

func (s *Spool) small(ctx context.Context, op string, f func(*pebble.Batch) error) error {
	if s.opts.Mode == Applied {
		return nil
	}
	err := s.db.failed()
	if err == nil {
		err = s.db.update(ctx, false, f)
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
