package feed

import (
	"context"
	"fmt"
	"time"

	"cbrepl/dtx"
)

// Out takes a sink's events and passes them on.
type Out struct {
	content dtx.Content
	emit    Emit
	every   time.Duration
	st      *stats

	// last is the LSN of the newest event or of a longer reach (Advance): none may
	// come before it. reported is where a new connection may start: all of the
	// stream up to it has been passed on.
	last, reported dtx.LSN
	more           bool // the last event announced another one with its LSN

	pending   dtx.LSN // a position held back by the rate limit
	pendingAt time.Time
	posAt     time.Time
}

// NewOut makes an Out that is not a Feed's: for sinks that are fed otherwise.
// every is Options.PositionEvery.
func NewOut(content dtx.Content, start dtx.LSN, every time.Duration, emit Emit) *Out {
	return &Out{content: content, emit: emit, every: every, last: start, reported: start, st: &stats{}}
}

// Reported returns where a new connection may start.
func (o *Out) Reported() dtx.LSN { return o.reported }

// Last returns the newest event's place in the stream, or how far it was said to
// reach: nothing may come before it.
func (o *Out) Last() dtx.LSN { return o.last }

// Event passes on a part, record, hold or unhold.
func (o *Out) Event(ctx context.Context, ev dtx.Event) error {
	ev.Content = o.content
	if ev.Kind != dtx.EventHold {
		if err := o.advance(ev.LSN); err != nil {
			return err
		}
	}
	o.pending = 0 // the event's own LSN says more
	if err := o.emit(ctx, ev); err != nil {
		return err
	}
	o.more = ev.More
	if ev.Kind != dtx.EventHold && !ev.More {
		o.report()
	}
	return nil
}

// Observation passes on an event that has no place among the stream's positions:
// it may be delivered again.
func (o *Out) Observation(ctx context.Context, ev dtx.Event) error {
	ev.Content = o.content
	return o.emit(ctx, ev)
}

// Progress reports that nothing is outstanding up to lsn, at once. Of a stream
// that is read from before the position it starts at, older positions are
// reported, too: they say how far it has come.
func (o *Out) Progress(ctx context.Context, lsn dtx.LSN) error {
	ev := dtx.Event{Kind: dtx.EventPosition, LSN: lsn}
	if lsn <= o.last {
		return o.Observation(ctx, ev)
	}
	return o.Event(ctx, ev)
}

// Advance says that everything up to lsn has been received and needs no event:
// a new connection starts behind it.
func (o *Out) Advance(lsn dtx.LSN) error {
	if err := o.advance(lsn); err != nil {
		return err
	}
	o.report()
	return nil
}

// advance keeps positions rising. Equal ones are the events of one transaction,
// or follow a position that was reported of the same place.
func (o *Out) advance(lsn dtx.LSN) error {
	if lsn < o.last || lsn == 0 {
		return &dtx.Error{
			Op: "read stream", Content: dtx.AtContent(o.content), LSN: lsn, Class: dtx.ClassStop,
			Msg:  fmt.Sprintf("protocol violation: the stream went back from %s", o.last),
			Hint: "The server sent transactions out of order; if it was restored from a backup, this content needs a new initial copy",
		}
	}
	o.last = lsn
	return nil
}

func (o *Out) report() {
	o.reported = o.last
	o.st.reported.Store(uint64(o.reported))
}

// started sets where a stream began whose start was not known.
func (o *Out) started(lsn dtx.LSN) {
	o.last, o.reported = lsn, lsn
	o.st.reported.Store(uint64(lsn))
}

// Position reports that nothing is outstanding up to lsn; older positions than
// those reported are no news. It holds back what comes too often.
func (o *Out) Position(ctx context.Context, lsn dtx.LSN) error {
	if lsn <= o.last || lsn <= o.pending {
		return nil
	}
	now := time.Now()
	if o.every > 0 && now.Sub(o.posAt) < o.every {
		if o.pending == 0 {
			o.pendingAt = o.posAt.Add(o.every)
		}
		o.pending = lsn
		if now.Before(o.pendingAt) {
			return nil
		}
	} else {
		o.pending = lsn
	}
	return o.flushAt(ctx, now)
}

// due is when a position that was held back goes out; zero: none is.
func (o *Out) due() time.Time {
	if o.pending == 0 {
		return time.Time{}
	}
	return o.pendingAt
}

// flush passes on the position held back, if it is due.
func (o *Out) flush(ctx context.Context) error {
	now := time.Now()
	if o.pending == 0 || now.Before(o.pendingAt) {
		return nil
	}
	return o.flushAt(ctx, now)
}

func (o *Out) flushAt(ctx context.Context, now time.Time) error {
	lsn := o.pending
	o.pending, o.posAt = 0, now
	if lsn <= o.last {
		return nil
	}
	o.last = lsn
	if err := o.emit(ctx, dtx.Event{Kind: dtx.EventPosition, Content: o.content, LSN: lsn}); err != nil {
		return err
	}
	o.report()
	return nil
}
