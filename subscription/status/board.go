package status

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"cbrepl/dtx"
	"cbrepl/snapshot"
)

// Thresholds after which a condition is called unhealthy.
const (
	stuckLoop   = 15 * time.Second
	stuckTarget = 30 * time.Second
	stuckApply  = time.Minute
	stuckStream = 15 * time.Second
	stuckWait   = 60 * time.Second
	// A prepared transaction keeps the source's log and holds up nothing else.
	stuckPrepared = 10 * time.Minute
	rateWindow    = 10 * time.Second
	maxLagPoints  = 512
	// idleSlack: an idle server's position moves a little ahead of the stream's.
	idleSlack = 3 * time.Second
	// settled is how long a stream runs after a restart that is over.
	settled = 2 * time.Minute
)

// Source is what the board asks of a stream when a report is read.
type Source struct {
	Content dtx.Content
	// Facts returns connection facts. LagBytes, LagSeconds and SafeLSN are the
	// board's to compute.
	Facts func() Stream
}

// Board holds the facts behind a report. Its methods are safe for concurrent
// use; the subscription's loop writes, HTTP handlers read.
type Board struct {
	mu      sync.Mutex
	base    Report
	sources []Source
	spool   func() Spool
	// participants reports how working out participants is doing; nil: the source
	// names them.
	participants func() Participants
	copies       func() []snapshot.Progress // nil unless tables are copied
	beat         time.Time
	streams      map[dtx.Content]*streamFacts
	rates        []ratePoint // one per second at most, rising in time
	waits        []Wait

	// drainedAt is when everything known was last applied; caughtUp is set once that
	// was so since the last start.
	drainedAt time.Time
	caughtUp  bool
	// restart is why the subscription starts again, until it has caught up or
	// streamed for settled; restarts counts how often.
	restart  string
	restarts int
}

type ratePoint struct {
	at         time.Time
	dtxs, rows int64
}

// streamFacts answers "since when is the stream not up to date".
type streamFacts struct {
	safe     dtx.LSN
	reported dtx.LSN // position of the newest event
	backlog  dtx.LSN // where the server was when it was first heard of in this life, 0 before
	// points are (server position, time first seen), rising in both.
	points []lagPoint
}

type lagPoint struct {
	lsn dtx.LSN
	at  time.Time
}

// NewBoard returns a board in state starting.
func NewBoard(subscription, version string, pid int, now time.Time) *Board {
	return &Board{
		base: Report{
			Subscription: subscription, State: Starting, StateSince: now, StartedAt: now, PID: pid, Version: version,
			Target: Target{Activity: Idle, Since: now}, Conflicts: map[string]int64{},
		},
		beat:    now,
		streams: map[dtx.Content]*streamFacts{},
	}
}

// Attach sets where stream and spool facts come from.
func (b *Board) Attach(sources []Source, spool func() Spool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sources, b.spool = slices.Clone(sources), spool
	slices.SortFunc(b.sources, func(x, y Source) int { return int(x.Content) - int(y.Content) })
	for _, s := range b.sources {
		if b.streams[s.Content] == nil {
			b.streams[s.Content] = &streamFacts{}
		}
	}
}

// AttachParticipants sets where the facts about participants come from.
func (b *Board) AttachParticipants(facts func() Participants) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.participants = facts
}

// AttachCopies sets where the progress of first copies comes from.
func (b *Board) AttachCopies(progress func() []snapshot.Progress) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.copies = progress
}

// CopyOnly sets the tables whose changes are not in the stream.
func (b *Board) CopyOnly(tables []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.base.CopyOnly = tables
}

// SetState changes the state. Stopped is final.
func (b *Board) SetState(s State, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.base.State != s && b.base.State != Stopped {
		b.base.State, b.base.StateSince = s, now
	}
}

// Fail records an error.
func (b *Board) Fail(err error, now time.Time) {
	f := &Failure{At: now, Message: err.Error(), Stops: dtx.ClassOf(err) == dtx.ClassStop}
	var e *dtx.Error
	if errors.As(err, &e) {
		f.GXID, f.Relation = uint64(e.GXID), e.Relation
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.base.LastError = f
}

// Restart records why the subscription starts again from the target's record.
func (b *Board) Restart(err error, now time.Time) {
	b.Fail(err, now)
	b.SetState(Starting, now)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.restart = err.Error()
	b.restarts++
}

// Target records what the apply worker begins to do; times are the board's.
func (b *Board) Target(t Target, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := &b.base.Target
	t.Since, t.MovedAt = old.Since, now
	if old.Activity != t.Activity && (old.Activity == Idle || t.Activity == Idle) {
		// Retrying keeps the time of the batch's first try.
		t.Since = now
	}
	*old = t
}

// Progress records how many rows of the batch in hand the target has taken.
func (b *Board) Progress(rows int64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t := &b.base.Target; t.Activity != Idle && t.RowsTaken != rows {
		t.RowsTaken, t.MovedAt = rows, now
	}
}

// BatchApplied counts a committed batch.
func (b *Board) BatchApplied(batch *dtx.Batch, rows int64, conflicts map[string]int64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := &b.base.Applied
	if len(batch.GXIDs) > 0 {
		a.Batches++
		a.Dtxs += int64(len(batch.GXIDs))
		a.Rows += rows
		a.LastAt = now
		if batch.LastCommitTime != 0 {
			a.LastCommitTime = batch.LastCommitTime.Time()
		}
	}
	a.LastBatch = batch.Seq
	for t, n := range conflicts {
		b.base.Conflicts[t] += n
	}
	for _, p := range batch.Positions {
		b.stream(p.Content).safe = p.LSN
	}
}

// Positions sets the recorded positions at start.
func (b *Board) Positions(batch uint64, ps []dtx.Position) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.base.Applied.LastBatch = batch
	b.caughtUp = false
	for _, f := range b.streams {
		f.backlog = 0
	}
	for _, p := range ps {
		f := b.stream(p.Content)
		f.safe, f.reported = p.LSN, p.LSN
	}
}

// Tick is the loop's sign of life: what is pending, what is waited for and the
// newest event position of each stream.
func (b *Board) Tick(pending Pending, waits []Wait, reported []dtx.Position, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.beat = now
	b.base.Pending, b.waits = pending, waits
	for _, p := range reported {
		f := b.stream(p.Content)
		f.reported = max(f.reported, p.LSN)
	}
	passed := len(b.sources) > 0
	for _, s := range b.sources {
		facts := s.Facts()
		b.sample(facts, now)
		passed = b.passedBacklog(b.stream(facts.Content)) && passed
	}
	b.caughtUp = b.caughtUp || passed
	if b.drained(pending) {
		b.drainedAt, b.caughtUp = now, true
		b.restart, b.restarts = "", 0
	} else if b.restart != "" && b.base.State == Streaming && now.Sub(b.base.StateSince) > settled {
		b.restart, b.restarts = "", 0
	}
	a := b.base.Applied
	if n := len(b.rates); n == 0 || now.Sub(b.rates[n-1].at) >= time.Second {
		b.rates = append(b.rates, ratePoint{now, a.Dtxs, a.Rows})
		if i := len(b.rates) - int(rateWindow/time.Second) - 2; i > 0 {
			b.rates = slices.Delete(b.rates, 0, i)
		}
	}
}

// drained reports whether everything that the servers are known to have is
// applied. A server that has not been heard of may have anything.
func (b *Board) drained(p Pending) bool {
	if p.Parts > 0 || p.Records > 0 || len(b.sources) == 0 {
		return false
	}
	for _, src := range b.sources {
		s := src.Facts()
		f := b.stream(s.Content)
		if !s.Connected || s.ServerLSN == 0 || dtx.LSN(s.ServerLSN) > max(f.safe, f.reported) {
			return false
		}
	}
	return true
}

func (b *Board) stream(c dtx.Content) *streamFacts {
	f := b.streams[c]
	if f == nil {
		f = &streamFacts{}
		b.streams[c] = f
	}
	return f
}

// done is the position up to which nothing of the stream is left to apply. With
// nothing pending it is the newest event's: recording a position of an idle
// stream lags on purpose.
func (b *Board) done(f *streamFacts) dtx.LSN {
	if b.base.Pending.Parts == 0 && b.base.Pending.Records == 0 {
		return max(f.safe, f.reported)
	}
	return f.safe
}

// passedBacklog reports whether everything is applied that the stream's server had
// when it was first heard of. Under a steady load nothing is ever drained.
func (b *Board) passedBacklog(f *streamFacts) bool {
	return f.backlog != 0 && b.done(f) >= f.backlog
}

// sample remembers when the server was first seen at its position and forgets
// points that are passed.
func (b *Board) sample(s Stream, now time.Time) {
	f := b.stream(s.Content)
	if n := len(f.points); n == 0 || f.points[n-1].lsn < dtx.LSN(s.ServerLSN) {
		f.points = append(f.points, lagPoint{dtx.LSN(s.ServerLSN), now})
	}
	if f.backlog == 0 {
		f.backlog = dtx.LSN(s.ServerLSN)
	}
	done := b.done(f)
	i := 0
	for i < len(f.points) && f.points[i].lsn <= done {
		i++
	}
	f.points = slices.Delete(f.points, 0, i)
	if len(f.points) > maxLagPoints {
		// Thin out, oldest kept: it is the one that the lag is computed from.
		kept := f.points[:1]
		for j := 2; j < len(f.points); j += 2 {
			kept = append(kept, f.points[j])
		}
		f.points = kept
	}
}

// Report reads the board.
func (b *Board) Report(now time.Time) Report {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.base
	r.Now = now
	r.Conflicts = maps.Clone(r.Conflicts)
	if b.spool != nil {
		r.Spool = b.spool()
	}
	if b.participants != nil {
		p := b.participants()
		r.Participants = &p
	}
	if b.copies != nil {
		r.Copies = b.copies()
	}
	r.Streams = make([]Stream, 0, len(b.sources))
	for _, src := range b.sources {
		s := src.Facts()
		b.sample(s, now)
		f := b.stream(s.Content)
		s.SafeLSN = LSN(f.safe)
		share := r.Spool.Contents[s.Content]
		s.SpoolBytes, s.Paused = share.Bytes, s.Paused || share.Waiting
		done := b.done(f)
		if server := dtx.LSN(s.ServerLSN); server > done {
			s.LagBytes = int64(server - done)
		}
		if len(f.points) > 0 {
			s.LagSeconds = now.Sub(f.points[0].at).Seconds()
		}
		if silent := now.Sub(s.LastHeard); !s.Connected && !s.LastHeard.IsZero() {
			// Nothing is known of the server since then. A connected one that is idle
			// has nothing to say.
			s.LagSeconds = max(s.LagSeconds, silent.Seconds())
		}
		r.LagBytes = max(r.LagBytes, s.LagBytes)
		if s.LagSeconds > idleSlack.Seconds() {
			r.LagSeconds = max(r.LagSeconds, s.LagSeconds)
		}
		r.Streams = append(r.Streams, s)
	}
	if oldest := b.base.Pending.OldestCommit; !oldest.IsZero() {
		r.LagSeconds = max(r.LagSeconds, now.Sub(oldest).Seconds())
	}
	if !b.caughtUp && b.base.Pending.OldestCommit.IsZero() {
		since := b.base.StartedAt
		if b.drainedAt.After(since) {
			since = b.drainedAt
		}
		r.LagSeconds = max(r.LagSeconds, now.Sub(since).Seconds())
	}
	r.Waits = slices.Clone(b.waits)
	for i := range r.Waits {
		r.Waits[i].Seconds = now.Sub(r.Waits[i].Since).Seconds()
	}
	r.Applied.DtxsPerSecond, r.Applied.RowsPerSecond = b.rate(now)
	r.Unhealthy = b.unhealthy(&r, now)
	r.Healthy = len(r.Unhealthy) == 0
	return r
}

// rate is the mean over the last rateWindow, by the reader's clock: without
// ticks it falls to zero.
func (b *Board) rate(now time.Time) (dtxs, rows float64) {
	a := b.base.Applied
	from := ratePoint{at: b.base.StartedAt}
	for i, p := range b.rates {
		if i > 0 && now.Sub(p.at) < rateWindow {
			break
		}
		from = p
	}
	d := max(now.Sub(from.at).Seconds(), 1)
	return float64(a.Dtxs-from.dtxs) / d, float64(a.Rows-from.rows) / d
}

func (b *Board) unhealthy(r *Report, now time.Time) []string {
	var out []string
	if b.restart != "" {
		out = append(out, fmt.Sprintf("started again %d times, and not caught up since: %s", b.restarts, b.restart))
	}
	if r.State == Copying {
		return out
	}
	if r.State != Streaming {
		return append(out, fmt.Sprintf("the subscription is %s", r.State))
	}
	if d := now.Sub(b.beat); d > stuckLoop {
		out = append(out, fmt.Sprintf("the main loop has not moved for %s", d.Round(time.Second)))
	}
	if r.Target.Activity == Retrying {
		if d := now.Sub(r.Target.Since); d > stuckTarget {
			out = append(out, fmt.Sprintf("the target has failed for %s (attempt %d)", d.Round(time.Second), r.Target.Attempt))
		}
	}
	if r.Target.Activity == Applying {
		if d := now.Sub(r.Target.MovedAt); d > stuckApply {
			out = append(out, fmt.Sprintf("batch %d has not moved for %s (the target took %d of %d rows): is a lock held there, or does a server not answer?",
				r.Target.Batch, d.Round(time.Second), r.Target.RowsTaken, r.Target.Rows))
		}
	}
	for _, s := range r.Streams {
		since := s.Since
		if since.IsZero() { // it never was
			since = r.StateSince
		}
		if d := now.Sub(since); !s.Connected && d > stuckStream {
			out = append(out, fmt.Sprintf("content %d is not connected for %s", s.Content, d.Round(time.Second)))
		}
	}
	for _, w := range r.Waits {
		if w.Blocking && w.Seconds > stuckWait.Seconds() || len(w.Prepared) > 0 && w.Seconds > stuckPrepared.Seconds() {
			out = append(out, "stuck: "+w.Line())
		}
	}
	return out
}
