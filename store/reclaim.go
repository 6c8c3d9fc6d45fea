package store

import (
	"context"
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"cbrepl/dtx"
	"cbrepl/faultinject"
)

// FaultReclaimed is the fault point between the records of freed parts, which are
// gone, and their blocks, which are not.
const FaultReclaimed = "store.reclaimed_records"

// runReclaim gives the disk space of dead chains back when enough has gathered.
// It runs beside the readers and the apply loop, which must not wait for a
// flush.
func (s *Spool) runReclaim() {
	for {
		select {
		case <-s.reclaimC:
			// What could not be reclaimed is not known any more.
			if err := s.reclaim(context.Background(), s.exciseMin()); err != nil && s.db.failed() == nil {
				select {
				case <-s.db.stop: // closing interrupts a wait
				default:
					s.db.fs.fail(err)
				}
			}
		case <-s.db.stop:
			return
		}
	}
}

// exciseMin is the least run that is worth an excise now: small against what is
// dead, whatever number of lanes shares it.
func (s *Spool) exciseMin() int64 {
	lists := max(1, len(s.allLanes())*classes)
	return min(s.opts.deleteBytes/16, s.deadDisk.Load()/int64(4*lists))
}

// laneRun is a run of one content.
type laneRun struct {
	content dtx.Content
	deadRun
}

// takeDead takes the dead runs of all lanes.
func (s *Spool) takeDead(least int64) (runs []laneRun) {
	for _, l := range s.allLanes() {
		l.mu.Lock()
		for k := range l.order {
			for _, r := range l.order[k].takeDead(least) {
				s.deadDisk.Add(-r.bytes)
				runs = append(runs, laneRun{l.content, r})
			}
		}
		l.mu.Unlock()
	}
	return runs
}

// deleteEmpties deletes the records of released parts without rows. A part of
// the same LSN may be spooled again, so the lane is locked until they are gone:
// Commit notes the part there before it writes the record.
func (s *Spool) deleteEmpties() error {
	for _, l := range s.allLanes() {
		if err := s.deleteEmptiesOf(l); err != nil {
			return err
		}
	}
	return nil
}

func (s *Spool) deleteEmptiesOf(l *lane) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.empties.dead == 0 {
		return nil
	}
	b := s.db.NewBatch()
	var err error
	for _, e := range l.empties.takeDead() {
		err = errors.Join(err, b.DeleteRange(appendEmptyKey(nil, l.content, e[0]), appendEmptyKey(nil, l.content, e[1]+1), nil))
	}
	if err == nil {
		err = s.db.applyNow(b, false)
	}
	return errors.Join(err, b.Close())
}

// reclaim deletes dead runs of at least so many bytes by excising their range:
// Pebble drops the tables in it without reading them, and no tombstone is left.
// Smaller runs, between live chains, wait for their neighbours; when they hold
// too much of the disk, tombstones delete them.
func (s *Spool) reclaim(ctx context.Context, least int64) error {
	s.reclaimMu.Lock()
	defer s.reclaimMu.Unlock()
	if err := s.deleteEmpties(); err != nil {
		return err
	}
	runs := s.takeDead(least)
	var small []laneRun
	if s.deadDisk.Load() >= 4*s.opts.deleteBytes {
		small = s.takeDead(0)
	}
	err := s.db.update(ctx, false, func(b *pebble.Batch) error {
		return errors.Join(s.deleteRuns(b, runs, prefixPart), s.deleteRuns(b, small, prefixPart, prefixData))
	})
	if err != nil {
		return err
	}
	return s.excise(ctx, runs)
}

// deleteRuns puts range tombstones for runs into b. Part records exist in mode
// Spooled only.
func (s *Spool) deleteRuns(b *pebble.Batch, runs []laneRun, prefixes ...byte) error {
	for _, p := range prefixes {
		if p == prefixPart && s.opts.Mode == Applied {
			continue
		}
		for _, r := range runs {
			start, end := r.bounds(p)
			if err := b.DeleteRange(start, end, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r laneRun) bounds(prefix byte) (start, end []byte) {
	return rangeBound(prefix, r.content, r.class, r.start), rangeBound(prefix, r.content, r.class, r.end)
}

// excise removes the blocks of runs from the tables. Memtables are flushed
// first: an excise that overlaps one would start another memtable each, and a
// part's record, deleted before, must not outlive its blocks.
func (s *Spool) excise(ctx context.Context, runs []laneRun) error {
	if len(runs) == 0 {
		return nil
	}
	if err := s.db.flush(ctx); err != nil {
		return err
	}
	if err := faultinject.Point(FaultReclaimed); err != nil {
		return err
	}
	for _, r := range runs {
		start, end := r.bounds(prefixData)
		if err := s.db.excise(ctx, start, end); err != nil {
			return err
		}
	}
	return nil
}

// forget deletes what is dead with tombstones, at the end of a spool that will
// be opened again, and the records of released parts in live chains, so that
// exactly the unreleased ones are listed then.
func (s *Spool) forget(ctx context.Context) error {
	s.reclaimMu.Lock()
	defer s.reclaimMu.Unlock()
	s.recordMu.Lock()
	err := s.deleteRecords(ctx)
	s.recordMu.Unlock()
	if err == nil {
		err = s.deleteEmpties()
	}
	if err != nil {
		return err
	}
	runs := s.takeDead(0)
	return s.db.update(ctx, false, func(b *pebble.Batch) error {
		err := s.deleteRuns(b, runs, prefixPart, prefixData)
		for _, l := range s.allLanes() {
			for n, c := range l.chains {
				for _, t := range c.txns {
					if t&txnReleased != 0 && t&txnReadable != 0 {
						err = errors.Join(err, b.Delete(appendTxnKey(nil, prefixPart, l.content, spoolID(n, int(t&txnOffset))), nil))
					}
				}
			}
		}
		return err
	})
}
