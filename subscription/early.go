package subscription

import (
	"context"
	"fmt"

	"cbrepl/dtx"
	"cbrepl/source"
	"cbrepl/source/stream/feed"
)

// Slots are made on the coordinator first, and writers go on meanwhile. So the
// coordinator's stream begins with records of dtxs some of whose parts stand before
// the segments' slots and never come: early ones. They are worked out when the first
// positions are recorded. Once all slots are made the end of the coordinator's log is
// read; what has its record behind it is not early, for its parts were committed later
// still. Then a cut is taken, which waits on every segment for all that is prepared
// there: so everything with an earlier record was committed before the cut, and the
// first copies hold it. It is recorded as applied.

// maxEarly bounds the early dtxs, which are held in memory and recorded at once.
const maxEarly = 100_000

// readEarly reads the records of all dtxs that may be early, and the end of the
// coordinator's log behind them.
func (s *Subscription) readEarly(ctx context.Context, f *sourceFacts) ([]dtx.CommitRecord, dtx.LSN, error) {
	end, err := source.LogEnd(ctx, f.cluster.Nodes()[0])
	if err != nil {
		return nil, 0, err
	}
	var start dtx.LSN
	for _, p := range f.facts.Streams() {
		if p.Content == dtx.Coordinator {
			start = p.LSN
		}
	}
	car, local := decoding(s.cfg, f.cluster)
	r, err := newCoordinator(s.cfg, f, car, local, feed.Identity{}, s.log)
	if err != nil {
		return nil, 0, err
	}
	var early []dtx.CommitRecord
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reached := false
	err = r.Run(ctx, start, func(_ context.Context, ev dtx.Event) error {
		if ev.LSN > end || ev.LSN == end && !ev.More {
			reached = true
		}
		if ev.Kind == dtx.EventRecord && ev.LSN <= end && ev.Record.Kind == dtx.TwoPhase {
			early = append(early, ev.Record)
		}
		if len(early) > maxEarly {
			return &dtx.Error{
				Op: "record first positions", Content: dtx.AtContent(dtx.Coordinator), Class: dtx.ClassStop,
				Msg:  fmt.Sprintf("more than %d transactions were committed since the slots were made", maxEarly),
				Hint: "Drop the slots with `cbrepl slots drop` and run the command again: it makes them itself",
			}
		}
		if reached {
			cancel()
		}
		return nil
	})
	if reached {
		err = nil
	}
	return early, end, err
}

// appliedBefore are the dedup entries of early dtxs: nothing of them is delivered
// behind end on the coordinator and the cut on segments.
func appliedBefore(early []dtx.CommitRecord, end dtx.LSN, cut []dtx.Position) []dtx.DedupEntry {
	at := map[dtx.Content]dtx.LSN{}
	for _, p := range cut {
		at[p.Content] = p.LSN
	}
	out := make([]dtx.DedupEntry, 0, len(early))
	seen := map[dtx.GXID]bool{}
	for i := range early {
		r := &early[i]
		if seen[r.GXID] {
			continue
		}
		seen[r.GXID] = true
		e := dtx.DedupEntry{GXID: r.GXID, Pending: []dtx.Position{{Content: dtx.Coordinator, LSN: end}}}
		for _, c := range r.Participants {
			if lsn, ok := at[c]; ok {
				e.Pending = append(e.Pending, dtx.Position{Content: c, LSN: lsn})
			}
		}
		dtx.SortPositions(e.Pending)
		out = append(out, e)
	}
	return out
}
