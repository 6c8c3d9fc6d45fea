package subscription

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/merge"
)

// machine is everything the loop decides, without goroutines, clocks or I/O:
// when to take a batch, what to do when the target fails, what may be confirmed
// and freed. Events and outcomes go in with the time; jobs and effects come out.
//
// A batch in hand goes through these phases:
//
//	idle ──take──► running(apply) ──ok──► idle (effects)
//	                    │ error
//	                    ▼
//	               pausing ──► running(open) ──► the target has the batch: idle (effects)
//	                    ▲            │ error           it has not, fault may pass: running(apply) again
//	                    └────────────┘                 it has not, a person must act: narrow, or stopped
//
// Narrowing finds the transaction that cannot be applied: the batch is given
// back to the merge engine and taken again in halves, so that everything before
// the culprit is applied and the error names it. No event is taken meanwhile.
type machine struct {
	eng *merge.Engine
	o   limits
	rec recorded

	phase   phase
	batch   dtx.Batch // in hand unless idle
	attempt int       // of the batch in hand, from 1
	cause   error     // why it failed last
	resume  time.Time // end of the pause
	again   jobKind   // what runs at resume

	narrowTo int // batch limit while narrowing, else 0
	suspects int // dtxs among which the culprit is

	idleAt  time.Time // positions alone may be recorded from here on
	readyAt time.Time // when a batch became available, zero when none is
	// grewAt is when the rows ready were seen to be another number than ready.
	grewAt time.Time
	ready  int64
	growth growth
	err    error // why the machine stopped
}

// limits are the machine's settings.
type limits struct {
	batch merge.Limits
	// maxDelay lets a batch grow while the target is idle.
	maxDelay time.Duration
	// idleEvery is the pace of batches that hold positions only.
	idleEvery time.Duration
	// backoffMin doubles with each attempt up to backoffMax.
	backoffMin, backoffMax time.Duration
	// jitter returns a factor for a pause, about 1.
	jitter func() float64
	// maxPending bounds parts and records that wait in memory.
	maxPending int
}

type phase uint8

const (
	phaseIdle phase = iota
	phaseRunning
	phasePausing
	phaseStopped
)

type jobKind uint8

const (
	jobApply jobKind = iota + 1
	jobOpen
)

// job is one call of the target.
type job struct {
	kind  jobKind
	batch *dtx.Batch
}

// outcome is what a job came to.
type outcome struct {
	job    job
	result apply.Result
	state  apply.State
	err    error
	// fatal ends the loop as it stands: a fault point, or AfterBatch.
	fatal error
}

// effects follow a batch that the target has committed.
type effects struct {
	batch  dtx.Batch
	result apply.Result
	// confirm holds the positions the sources may forget.
	confirm []dtx.Position
	// release holds the parts whose spool space is free.
	release []dtx.Part
}

func newMachine(eng *merge.Engine, st apply.State, o limits, now time.Time) *machine {
	return &machine{eng: eng, o: o, rec: recordedOf(st), idleAt: now.Add(o.idleEvery)}
}

// add takes one event.
func (m *machine) add(ev dtx.Event) error { return m.eng.Add(ev) }

// takesEvents is false while narrowing.
func (m *machine) takesEvents() bool { return m.narrowTo == 0 && m.phase != phaseStopped }

// full reports that only needed streams may deliver more.
func (m *machine) full() bool {
	n := m.eng.Pending()
	return n.Parts+n.Records >= m.o.maxPending
}

// poll returns the next job to run, or when to ask again at the latest.
func (m *machine) poll(now time.Time) (j job, ok bool, wake time.Time) {
	switch m.phase {
	case phasePausing:
		if now.Before(m.resume) {
			return job{}, false, m.resume
		}
		m.phase = phaseRunning
		return job{m.again, &m.batch}, true, time.Time{}
	case phaseIdle:
		b, ok, wake := m.take(now)
		if !ok {
			return job{}, false, wake
		}
		m.batch = b
		m.batch.Seq = m.rec.batch + 1
		m.phase, m.attempt, m.cause = phaseRunning, 1, nil
		return job{jobApply, &m.batch}, true, time.Time{}
	}
	return job{}, false, time.Time{}
}

func (m *machine) take(now time.Time) (b dtx.Batch, ok bool, wake time.Time) {
	l := m.o.batch
	if m.narrowTo > 0 {
		l.MaxDtxs = m.narrowTo
	} else if delay := max(m.o.maxDelay, m.growth.wait); delay > 0 {
		if len(m.eng.NeededContents()) > 0 {
			m.readyAt = time.Time{} // nothing to take
		} else if m.readyAt.IsZero() {
			m.readyAt = now
		}
		n := m.eng.Pending()
		if !m.readyAt.IsZero() && n.Rows < l.MaxRows && n.Bytes < l.MaxBytes && n.Dtxs < l.MaxDtxs {
			if at := m.waitEnd(now, delay, n.Rows); now.Before(at) {
				return dtx.Batch{}, false, at
			}
		}
	}
	if !now.Before(m.idleAt) {
		l.PositionsOnly = true
		m.idleAt = now.Add(m.o.idleEvery)
	}
	b, ok = m.eng.Next(l)
	return b, ok, m.idleAt
}

// waitEnd says until when the batch that is ready, of so many rows, waits to grow.
func (m *machine) waitEnd(now time.Time, delay time.Duration, rows int64) time.Time {
	at := m.readyAt.Add(delay)
	if delay == m.o.maxDelay {
		return at
	}
	if rows != m.ready {
		m.ready, m.grewAt = rows, now
	}
	if end := m.grewAt.Add(growPause); end.Before(at) { // it would wait in vain
		at = end
	}
	if least := m.readyAt.Add(m.o.maxDelay); at.Before(least) {
		at = least
	}
	return at
}

// done takes a job's outcome. The effects are nil unless the batch in hand is
// known to be committed.
func (m *machine) done(now time.Time, out outcome) (*effects, error) {
	if m.phase != phaseRunning {
		panic("subscription: an outcome without a job")
	}
	switch {
	case out.job.kind == jobApply && out.err == nil:
		return m.applied(now, out.result), nil
	case out.job.kind == jobApply:
		m.cause = out.err
		m.pause(now, jobOpen, dtx.ClassOf(out.err) == dtx.ClassStop)
		return nil, nil
	case out.err != nil && dtx.ClassOf(out.err) == dtx.ClassStop:
		return nil, m.stop(out.err)
	case out.err != nil:
		if m.cause == nil || dtx.ClassOf(m.cause) != dtx.ClassStop {
			m.cause = out.err
		}
		m.attempt++
		m.pause(now, jobOpen, false)
		return nil, nil
	}
	has, err := m.rec.has(out.state, &m.batch)
	switch {
	case err != nil:
		return nil, m.stop(err)
	case has:
		return m.applied(now, apply.Result{Rows: m.batch.Rows}), nil
	case dtx.ClassOf(m.cause) != dtx.ClassStop:
		m.attempt++
		m.pause(now, jobApply, true)
		return nil, nil
	}
	return nil, m.narrow()
}

// pause schedules the next job, at once or after the backoff of this attempt.
func (m *machine) pause(now time.Time, next jobKind, atOnce bool) {
	m.phase, m.again, m.resume = phasePausing, next, now
	if atOnce {
		return
	}
	d := m.o.backoffMin << min(m.attempt-1, 20)
	if d > m.o.backoffMax || d <= 0 {
		d = m.o.backoffMax
	}
	if m.o.jitter != nil {
		d = time.Duration(float64(d) * m.o.jitter())
	}
	m.resume = now.Add(d)
}

func (m *machine) applied(now time.Time, r apply.Result) *effects {
	b := m.batch
	m.rec.apply(&b)
	e := &effects{batch: b, result: r, confirm: b.Positions, release: m.eng.Applied()}
	if m.narrowTo > 0 {
		if m.suspects -= len(b.GXIDs); m.suspects > 0 {
			m.narrowTo = max(1, m.suspects/2)
		} else {
			m.narrowTo = 0 // the fault has passed
		}
	}
	m.phase, m.batch, m.attempt, m.cause, m.readyAt = phaseIdle, dtx.Batch{}, 0, nil, time.Time{}
	if len(b.GXIDs) > 0 {
		m.ready = 0
		m.growth.applied(&b, now, r)
	}
	if len(b.Positions) > 0 {
		m.idleAt = now.Add(m.o.idleEvery)
	}
	return e
}

// narrow gives the batch back and asks for half of it, or stops when it cannot
// be divided.
func (m *machine) narrow() error {
	n := len(m.batch.GXIDs)
	if n <= 1 || m.narrowTo == 1 {
		return m.stop(nameCulprit(m.cause, m.batch.GXIDs))
	}
	m.eng.Abandon()
	if m.narrowTo == 0 || n < m.narrowTo {
		m.narrowTo = n
	}
	m.narrowTo = max(1, m.narrowTo/2)
	m.suspects = n
	m.phase, m.batch, m.attempt = phaseIdle, dtx.Batch{}, 0
	return nil
}

func (m *machine) stop(err error) error {
	m.phase, m.err = phaseStopped, err
	return err
}

// nameCulprit puts the batch's only transaction into an error that names none.
func nameCulprit(err error, gxids []dtx.GXID) error {
	out := dtx.Error{Op: "apply batch", Class: dtx.ClassStop, Err: err}
	var e *dtx.Error
	if errors.As(err, &e) {
		if e.GXID != 0 || len(gxids) == 0 {
			return err
		}
		out = *e
	}
	switch {
	case len(gxids) == 1:
		out.GXID = gxids[0]
	case len(gxids) > 1:
		words := make([]string, 0, 8)
		for _, g := range gxids[:min(len(gxids), 8)] {
			words = append(words, g.String())
		}
		if len(gxids) > 8 {
			words = append(words, fmt.Sprintf("%d more", len(gxids)-8))
		}
		out.Msg = strings.TrimPrefix(out.Msg+"; one of the transactions that can only be applied together: gxid "+strings.Join(words, ", "), "; ")
	}
	return &out
}

// recorded mirrors what the target records, to recognise its answer after a
// failure.
type recorded struct {
	batch     uint64
	positions map[dtx.Content]dtx.LSN
	dedup     map[dtx.GXID]bool
}

func recordedOf(st apply.State) recorded {
	r := recorded{batch: st.Batch, positions: map[dtx.Content]dtx.LSN{}, dedup: map[dtx.GXID]bool{}}
	for _, p := range st.Positions {
		r.positions[p.Content] = p.LSN
	}
	for _, d := range st.Dedup {
		r.dedup[d.GXID] = true
	}
	return r
}

func (r *recorded) apply(b *dtx.Batch) {
	r.batch = b.Seq
	for _, p := range b.Positions {
		r.positions[p.Content] = p.LSN
	}
	for _, g := range b.DedupDrop {
		delete(r.dedup, g)
	}
	for _, d := range b.DedupAdd {
		r.dedup[d.GXID] = true
	}
}

// has reports whether the target's state is the one after b (true) or before it
// (false). Any other state was written by somebody else.
func (r *recorded) has(st apply.State, b *dtx.Batch) (bool, error) {
	switch st.Batch {
	case r.batch:
		if r.equal(st, nil) {
			return false, nil
		}
	case b.Seq:
		if r.equal(st, b) {
			return true, nil
		}
	}
	return false, &dtx.Error{
		Op: "reopen target", Class: dtx.ClassStop,
		Msg: fmt.Sprintf("the target records batch %d with positions that are not this daemon's (it had recorded batch %d and was applying %d)",
			st.Batch, r.batch, b.Seq),
		Hint: "Another daemon has worked on this subscription meanwhile; make sure that only one runs, then start it again: it resumes from the target's record",
	}
}

// equal compares a state with the record, or with the record after b.
func (r *recorded) equal(st apply.State, b *dtx.Batch) bool {
	want := *r
	if b != nil {
		want = recorded{positions: map[dtx.Content]dtx.LSN{}, dedup: map[dtx.GXID]bool{}}
		for c, l := range r.positions {
			want.positions[c] = l
		}
		for g := range r.dedup {
			want.dedup[g] = true
		}
		want.apply(b)
	}
	if len(st.Positions) != len(want.positions) || len(st.Dedup) != len(want.dedup) {
		return false
	}
	for _, p := range st.Positions {
		if l, ok := want.positions[p.Content]; !ok || l != p.LSN {
			return false
		}
	}
	for _, d := range st.Dedup {
		if !want.dedup[d.GXID] {
			return false
		}
	}
	return true
}
