package subscription

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/logkey"
	"cbrepl/merge"
	"cbrepl/subscription/status"
)

// reporter turns what the loop sees into status and log lines. It decides
// nothing; only the loop calls it.
type reporter struct {
	board *status.Board
	log   *slog.Logger

	reported map[dtx.Content]dtx.LSN // the newest event of each stream
	since    map[dtx.GXID]time.Time  // when a waiting dtx was first noticed

	conflicts      map[string]int64 // not logged yet
	skipped        []apply.Skipped  // the first of them
	conflictLogged time.Time
	minConflictLog time.Duration
}

const (
	trackedWait = 64 // waiting dtxs whose age is kept
	shownWaits  = 8
)

func newReporter(b *status.Board, log *slog.Logger, minConflictLog time.Duration) reporter {
	return reporter{
		board: b, log: log, minConflictLog: minConflictLog,
		reported: map[dtx.Content]dtx.LSN{}, since: map[dtx.GXID]time.Time{}, conflicts: map[string]int64{},
	}
}

// read notes the position of a stream's event.
func (r *reporter) read(c dtx.Content, lsn dtx.LSN) {
	r.reported[c] = max(r.reported[c], lsn)
}

// jobBegins shows what the target is asked to do.
func (r *reporter) jobBegins(j job, now time.Time) {
	t := status.Target{Activity: status.Applying, Attempt: j.attempt}
	if j.attempt > 1 || j.kind == jobOpen {
		t.Activity = status.Retrying
	}
	if j.cause != nil {
		t.Error = j.cause.Error()
	}
	if j.kind == jobApply {
		t.Batch, t.Rows = j.batch.Seq, j.batch.Rows
	}
	r.board.Target(t, now)
}

// batchApplied counts and logs a committed batch.
func (r *reporter) batchApplied(e *effects, now time.Time) {
	r.board.BatchApplied(&e.batch, e.result.Rows, e.result.Conflicts, now)
	r.board.Target(status.Target{Activity: status.Idle}, now)
	r.countConflicts(&e.result, now)
	if e.attempt > 1 {
		r.log.Info("target is back", logkey.Batch, e.batch.Seq, logkey.Attempt, e.attempt)
	}
	if r.log.Enabled(context.Background(), slog.LevelDebug) {
		r.log.Debug("batch applied", logkey.Batch, e.batch.Seq, logkey.Dtxs, len(e.batch.GXIDs), logkey.Rows, e.result.Rows)
	}
}

// jobFailed reports a job after which the batch is not applied.
func (r *reporter) jobFailed(v verdict, now time.Time) {
	if v.narrowed > 0 {
		r.log.Warn("looking for the transaction that cannot be applied", logkey.Limit, v.narrowed)
	}
	f := v.retry
	if f == nil {
		return
	}
	r.board.Target(status.Target{Activity: status.Retrying, Attempt: f.attempt, Error: f.err.Error()}, now)
	r.board.Fail(f.err, now)
	if dtx.ClassOf(f.err) == dtx.ClassStop {
		return // narrowing follows, and its end is reported
	}
	r.log.Warn("target failed, trying again", logkey.Batch, f.batch, logkey.Attempt, f.attempt, logkey.Error, f.err)
}

// tick refreshes what is pending and waited for.
func (r *reporter) tick(n merge.Counts, oldest time.Time, waits []merge.Wait, now time.Time) {
	since := make(map[dtx.GXID]time.Time, len(waits))
	shown := make([]status.Wait, 0, min(len(waits), shownWaits))
	for _, w := range waits {
		at, ok := r.since[w.GXID]
		if !ok {
			at = now
		}
		since[w.GXID] = at
		if len(shown) < shownWaits {
			shown = append(shown, status.Wait{
				GXID: uint64(w.GXID), Kind: w.Kind.String(), Missing: w.Missing, Parts: w.Parts, Prepared: w.Prepared,
				RecordSeen: w.RecordSeen, Blocking: w.Blocking, Since: at,
			})
		}
	}
	r.since = since
	reported := make([]dtx.Position, 0, len(r.reported))
	for c, lsn := range r.reported {
		reported = append(reported, dtx.Position{Content: c, LSN: lsn})
	}
	r.board.Tick(status.Pending{Dtxs: n.Dtxs, Parts: n.Parts, Records: n.Records, Rows: n.Rows, Bytes: n.Bytes, OldestCommit: oldest}, shown, reported, now)
	r.countConflicts(&apply.Result{}, now)
}

// shownSkipped bounds the rows that are logged one by one at a time.
const shownSkipped = 20

// countConflicts logs skipped rows, some one by one and all by table, at most once in
// minConflictLog.
func (r *reporter) countConflicts(res *apply.Result, now time.Time) {
	for t, n := range res.Conflicts {
		r.conflicts[t] += n
	}
	r.skipped = append(r.skipped, res.Skipped[:min(len(res.Skipped), shownSkipped-len(r.skipped))]...)
	if len(r.conflicts) > 0 && now.Sub(r.conflictLogged) >= r.minConflictLog {
		r.flushConflicts(now)
	}
}

// flushConflicts logs the skipped rows that are not logged yet.
func (r *reporter) flushConflicts(now time.Time) {
	tables := make([]string, 0, len(r.conflicts))
	for t := range r.conflicts {
		tables = append(tables, t)
	}
	slices.Sort(tables)
	for i := range r.skipped {
		r.logSkipped(&r.skipped[i])
	}
	for _, t := range tables {
		r.log.Warn("rows skipped: the copies have diverged", logkey.Relation, t, logkey.Rows, r.conflicts[t])
	}
	clear(r.conflicts)
	r.skipped = r.skipped[:0]
	r.conflictLogged = now
}

// logSkipped names a row that was skipped by where its change came from and by a
// digest of its identity, never by its values.
func (r *reporter) logSkipped(s *apply.Skipped) {
	args := []any{logkey.Relation, s.Table, logkey.Reason, s.Reason, logkey.Rows, s.Rows}
	if s.GXID != 0 {
		args = append(args, logkey.GXID, s.GXID, logkey.Content, s.Content, logkey.LSN, s.LSN)
	}
	if s.Digest != "" {
		args = append(args, logkey.Identity, s.Identity, logkey.Digest, s.Digest)
	}
	if s.Segment >= 0 {
		args = append(args, logkey.Segment, s.Segment)
	}
	r.log.Warn("row skipped", args...)
}
