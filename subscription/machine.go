package subscription

import (
	"time"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/merge"
)

// machine is everything the loop decides, without goroutines, clocks or I/O:
// when to take a batch, what to do when the target fails, what may be confirmed
// and freed. Events and outcomes go in with the time; jobs and verdicts come out.
// The loop calls its methods and reads none of its fields.
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
	// grewAt is when ready last changed.
	grewAt time.Time
	ready  int64
	growth growth
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
	// maxPending bounds the parts, records and dedup entries in memory.
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
	batch *dtx.Batch // in hand: to apply, or to look for after a failure
	// attempt counts the tries of this batch from 1; cause is why the last one
	// failed.
	attempt int
	cause   error
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

// verdict is what a job's outcome means. Of applied and retry at most one is
// set; with neither, a job follows at once.
type verdict struct {
	// applied is set when the batch in hand is known to be committed.
	applied *effects
	// retry is set when the job failed and the target is tried again.
	retry *retry
	// narrowed is the new batch limit when the transaction that cannot be applied
	// is being looked for, else 0.
	narrowed int
}

// retry says which job failed.
type retry struct {
	batch   uint64
	attempt int
	err     error
}

// effects follow a batch that the target has committed.
type effects struct {
	batch  dtx.Batch
	result apply.Result
	// attempt is the one that the commit was learned in.
	attempt int
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
func (m *machine) full() bool { return m.eng.Kept() >= m.o.maxPending }

// needed lists the contents that the next release waits for.
func (m *machine) needed() []dtx.Content { return m.eng.NeededContents() }

// start is the position that a stream begins at.
func (m *machine) start(c dtx.Content) dtx.LSN { return m.eng.Safe(c) }

// pending sums up what is received and not applied.
func (m *machine) pending() merge.Counts { return m.eng.Pending() }

// drops returns parts that an earlier life applied: their spool space is free.
func (m *machine) drops() []dtx.Part { return m.eng.Drops() }

// oldestCommit is the commit time of the oldest dtx that is known and not applied,
// or zero.
func (m *machine) oldestCommit() time.Time {
	at, ok := m.eng.OldestCommit()
	if !ok {
		return time.Time{}
	}
	return at.Time()
}

// waits describes up to n waiting dtxs, the oldest first.
func (m *machine) waits(n int) []merge.Wait { return m.eng.Waits(n) }

// lastBatch is the number of the last batch that the target is known to record.
func (m *machine) lastBatch() uint64 { return m.rec.batch }

// last returns the job that records how far the streams have come when nothing
// is left to apply. It is asked for once, after the last event.
func (m *machine) last() (j job, ok bool) {
	if n := m.eng.Pending(); m.phase != phaseIdle || m.narrowTo != 0 || n.Dtxs+n.Parts+n.Records > 0 {
		return job{}, false
	}
	b, ok := m.eng.Next(merge.Limits{PositionsOnly: true})
	if !ok {
		return job{}, false
	}
	return m.begin(b), true
}

// begin makes b the batch in hand and returns the job that applies it.
func (m *machine) begin(b dtx.Batch) job {
	m.batch = b
	m.batch.Seq = m.rec.batch + 1
	m.attempt, m.cause = 1, nil
	return m.job(jobApply)
}

func (m *machine) job(k jobKind) job {
	m.phase = phaseRunning
	return job{kind: k, batch: &m.batch, attempt: m.attempt, cause: m.cause}
}

// poll returns the next job to run, or when to ask again at the latest.
func (m *machine) poll(now time.Time) (j job, ok bool, wake time.Time) {
	switch m.phase {
	case phasePausing:
		if now.Before(m.resume) {
			return job{}, false, m.resume
		}
		return m.job(m.again), true, time.Time{}
	case phaseIdle:
		b, ok, wake := m.take(now)
		if !ok {
			return job{}, false, wake
		}
		return m.begin(b), true, time.Time{}
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

// done takes a job's outcome. An error means that a person must act.
func (m *machine) done(now time.Time, out outcome) (verdict, error) {
	if m.phase != phaseRunning {
		panic("subscription: an outcome without a job")
	}
	failed := &retry{batch: m.batch.Seq, attempt: m.attempt, err: out.err}
	switch {
	case out.job.kind == jobApply && out.err == nil:
		return verdict{applied: m.applied(now, out.result)}, nil
	case out.job.kind == jobApply:
		m.cause = out.err
		m.pause(now, jobOpen, dtx.ClassOf(out.err) == dtx.ClassStop)
		return verdict{retry: failed}, nil
	case out.err != nil && dtx.ClassOf(out.err) == dtx.ClassStop:
		return verdict{}, m.stop(out.err)
	case out.err != nil:
		if m.cause == nil || dtx.ClassOf(m.cause) != dtx.ClassStop {
			m.cause = out.err
		}
		m.attempt++
		m.pause(now, jobOpen, false)
		return verdict{retry: failed}, nil
	}
	has, err := m.rec.includes(out.state, &m.batch)
	switch {
	case err != nil:
		return verdict{}, m.stop(err)
	case has:
		return verdict{applied: m.applied(now, apply.Result{Rows: m.batch.Rows})}, nil
	case dtx.ClassOf(m.cause) != dtx.ClassStop:
		m.attempt++
		m.pause(now, jobApply, true)
		return verdict{}, nil
	}
	if err := m.narrow(); err != nil {
		return verdict{}, err
	}
	return verdict{narrowed: m.narrowTo}, nil
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
	e := &effects{batch: b, result: r, attempt: m.attempt, confirm: b.Positions, release: m.eng.Applied()}
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
	m.phase = phaseStopped
	return err
}
