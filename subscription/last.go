package subscription

import (
	"context"

	"cbrepl/merge"
)

// recordLast records how far the streams have come when nothing is left to
// apply. It runs at the end of an orderly stop, after the last event.
//
// With spool.ack spooled, positions of idle streams are confirmed before the
// target records them; the spool tells that they may be. Without this step a
// drained spool could never be given up: the slots would seem to have been moved
// by somebody else.
//
// A failure is no more than that: the next start reads what the target has.
func (l *loop) recordLast(ctx context.Context) {
	if l.busy || l.m.phase != phaseIdle || l.m.narrowTo != 0 {
		return
	}
	for len(l.events) > 0 { // the streams have ended: nobody adds to it
		if l.drain() != nil {
			return
		}
	}
	if n := l.m.eng.Pending(); n.Dtxs+n.Parts+n.Records > 0 {
		return
	}
	b, ok := l.m.eng.Next(merge.Limits{PositionsOnly: true})
	if !ok {
		return
	}
	b.Seq = l.m.rec.batch + 1
	ctx, cancel := context.WithTimeout(ctx, l.o.Grace)
	defer cancel()
	if _, err := l.o.Target.Apply(ctx, &b, l.o.Spool); err != nil {
		l.o.Log.Warn("the last positions are not recorded on the target", LogBatch, b.Seq, LogError, err)
		return
	}
	l.m.rec.apply(&b)
	l.m.eng.Applied()
}
