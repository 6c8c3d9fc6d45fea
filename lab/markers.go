package lab

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"cbrepl/dtx"
)

// marker is the commit record of a one-phase transaction, still to be written.
type marker struct {
	record dtx.CommitRecord
	due    uint64 // written when this many commits have happened
}

// markerQueue delays markers. It is guarded by Source.commits.
type markerQueue struct {
	hold     bool
	min, max int
	commits  uint64
	queue    []marker
	lost     []marker // of transactions that crashed after their commit
}

// LateMarkers makes the marker of every one-phase transaction wait for a number
// of later commits drawn from min to max. 0, 0 is the start: it is written at
// once. A marker that waits when the load ends needs ReleaseMarkers.
func (s *Source) LateMarkers(minCommits, maxCommits int) {
	s.commits.Lock()
	defer s.commits.Unlock()
	s.markers.min, s.markers.max = minCommits, max(minCommits, maxCommits)
}

// HoldMarkers keeps markers back until ReleaseMarkers.
func (s *Source) HoldMarkers() {
	s.commits.Lock()
	defer s.commits.Unlock()
	s.markers.hold = true
}

// HeldMarkers is the number of markers that wait.
func (s *Source) HeldMarkers() int {
	s.commits.Lock()
	defer s.commits.Unlock()
	return len(s.markers.queue)
}

// ReleaseMarkers writes every marker that waits, oldest first, and ends
// HoldMarkers.
func (s *Source) ReleaseMarkers(ctx context.Context) error {
	s.commits.Lock()
	s.markers.hold = false
	due := s.markers.queue
	s.markers.queue = nil
	s.commits.Unlock()
	return s.writeMarkers(ctx, due)
}

// committed counts a commit, takes its marker if it has one, and writes the
// markers that are due.
func (s *Source) committed(ctx context.Context, m *marker) error {
	s.commits.Lock()
	q := &s.markers
	q.commits++
	if m != nil {
		m.due = q.commits + uint64(q.min)
		if q.max > q.min {
			m.due += uint64(s.intN(q.max - q.min + 1))
		}
		q.queue = append(q.queue, *m)
	}
	var due []marker
	if !q.hold {
		var wait []marker
		for _, w := range q.queue {
			if w.due <= q.commits {
				due = append(due, w)
			} else {
				wait = append(wait, w)
			}
		}
		q.queue = wait
	}
	s.commits.Unlock()
	return s.writeMarkers(ctx, due)
}

// writeMarkers writes records; those that could not be written wait on.
func (s *Source) writeMarkers(ctx context.Context, ms []marker) error {
	for i, m := range ms {
		if _, err := s.EmitRecord(ctx, m.record); err != nil {
			s.commits.Lock()
			s.markers.queue = append(ms[i:len(ms):len(ms)], s.markers.queue...)
			s.commits.Unlock()
			return err
		}
	}
	return nil
}

// Ends returns where the log of every node ends now. A reader of a slot passes
// these positions.
func (s *Source) Ends(ctx context.Context) (map[dtx.Content]dtx.LSN, error) {
	out := map[dtx.Content]dtx.LSN{}
	for _, c := range s.Contents() {
		// A message is decoded, so a stream's position passes it; it is flushed with
		// the transaction that writes it.
		lsn, err := s.EmitMessage(ctx, c, false, "lab.end", []byte{})
		if err != nil {
			return nil, err
		}
		out[c] = lsn
	}
	return out, nil
}

// Recovery is what Recover did.
type Recovery struct {
	Committed, RolledBack int // prepared transactions, one per participant
	Markers               int // markers written
}

// Recover finishes what crashed dispatchers left: prepared transactions whose
// commit record exists are committed, the others rolled back, and markers that
// a crash prevented are written. Transactions of this dispatcher that are still
// running are left alone.
func (s *Source) Recover(ctx context.Context) (Recovery, error) {
	var r Recovery
	var errs []error
	for _, c := range s.Contents() {
		gids, err := query(ctx, s.nodes, c, pgx.RowTo[string], "select gid from pg_prepared_xacts where database = current_database() order by prepared")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, gid := range gids {
			g, ok := gxidOf(gid)
			if !ok || s.runs(g) {
				continue
			}
			if err := s.settle(ctx, c, gid, g, &r); err != nil {
				errs = append(errs, err)
			}
		}
	}
	s.commits.Lock()
	lost := s.markers.lost
	s.markers.lost = nil
	s.commits.Unlock()
	if err := s.writeMarkers(ctx, lost); err != nil {
		errs = append(errs, err)
	} else {
		r.Markers = len(lost)
	}
	return r, errors.Join(errs...)
}

// runs reports whether a transaction of this dispatcher is open.
func (s *Source) runs(g dtx.GXID) bool {
	s.commits.Lock()
	defer s.commits.Unlock()
	_, ok := s.inFlight[g]
	return ok
}

// settle ends one prepared transaction as the coordinator decided.
func (s *Source) settle(ctx context.Context, c dtx.Content, gid string, g dtx.GXID, r *Recovery) error {
	decided, err := s.decided(ctx, g)
	if err != nil {
		return err
	}
	verb, count := "rollback", &r.RolledBack
	if decided {
		verb, count = "commit", &r.Committed
	}
	if err := s.Exec(ctx, c, verb+" prepared "+quote(gid)); err != nil && !notPrepared(err) {
		return err
	}
	*count++
	return nil
}
