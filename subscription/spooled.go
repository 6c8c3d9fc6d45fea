package subscription

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/faultinject"
	"cbrepl/store"
)

// Fault points of a spooled stream.
const (
	faultWritten = "subscription.spooled_written" // an event is in the spool, not synced
	faultSynced  = "subscription.spooled_synced"  // synced, not confirmed to the source
)

// spooledStream makes a stream durable on arrival (spool.ack: spooled). Every
// event is in the spool before the loop sees it; a position is confirmed to the
// source once the spool is synced up to it. After a restart the events up to
// the spool's position come from the spool, later ones from the source.
//
// What the spool holds beyond its saved position will be sent again and is
// dropped at start.
type spooledStream struct {
	Stream
	content dtx.Content
	sp      *store.Spool
	empties *store.Writer // parts without rows; used by the reading goroutine
	record  dtx.LSN       // of the last commit record
	events  []dtx.Event   // to replay
	saved   dtx.LSN
	every   time.Duration

	mu      sync.Mutex
	written dtx.LSN // everything up to it is in the spool
}

// recovered is what a spool held when it was opened, by content.
type recovered struct {
	parts     map[dtx.Content][]dtx.Part
	records   []dtx.CommitRecord
	positions map[dtx.Content]dtx.LSN
	applied   apply.Record
}

// recoverSpool reads it once. Prepared transactions are not kept across a
// restart: streams refuse them in this mode.
func recoverSpool(ctx context.Context, sp *store.Spool) (*recovered, error) {
	r, err := sp.Recover(ctx)
	if err != nil {
		return nil, err
	}
	out := &recovered{parts: r.Parts, records: r.Records, positions: map[dtx.Content]dtx.LSN{}, applied: apply.Record{Token: r.Token, Batch: r.Batch}}
	for _, p := range r.Positions {
		out.positions[p.Content] = p.LSN
	}
	return out, nil
}

// spooledLayer makes every stream durable on arrival.
func spooledLayer(sp *spool, every time.Duration) streamLayer {
	return func(in []ContentStream) ([]ContentStream, error) {
		out := make([]ContentStream, len(in))
		for i, s := range in {
			var err error
			if out[i], err = newSpooledStream(s, sp.Spool, sp.recovered, every); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
}

// newSpooledStream wraps a stream. Leftovers beyond the saved position are
// released.
func newSpooledStream(s ContentStream, sp *store.Spool, r *recovered, every time.Duration) (ContentStream, error) {
	d := &spooledStream{Stream: s.Stream, content: s.Content, sp: sp, empties: sp.Writer(s.Content), saved: r.positions[s.Content], every: every}
	var beyond []dtx.Part
	for _, p := range r.parts[s.Content] {
		if p.EndLSN > d.saved {
			beyond = append(beyond, p)
			continue
		}
		d.events = append(d.events, dtx.Event{Kind: dtx.EventPart, Content: s.Content, LSN: p.EndLSN, Part: p})
	}
	if s.Content == dtx.Coordinator {
		for _, rec := range r.records {
			if rec.EndLSN <= d.saved {
				d.events = append(d.events, dtx.Event{Kind: dtx.EventRecord, Content: s.Content, LSN: rec.EndLSN, Record: rec})
			}
		}
	}
	slices.SortStableFunc(d.events, func(a, b dtx.Event) int { return cmp.Compare(a.LSN, b.LSN) })
	for i := range d.events[:max(0, len(d.events)-1)] {
		d.events[i].More = d.events[i].LSN == d.events[i+1].LSN
	}
	return ContentStream{s.Content, d}, sp.Release(beyond)
}

// Run replays what the spool holds, then reads on.
func (d *spooledStream) Run(ctx context.Context, start dtx.LSN, emit func(context.Context, dtx.Event) error) error {
	for _, ev := range d.events {
		if err := emit(ctx, ev); err != nil {
			return err
		}
	}
	d.events = nil
	if d.saved > start {
		if err := emit(ctx, dtx.Event{Kind: dtx.EventPosition, Content: d.content, LSN: d.saved}); err != nil {
			return err
		}
		start = d.saved
	}
	d.Stream.Confirm(d.saved)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.syncLoop(ctx) })
	g.Go(func() error {
		return d.Stream.Run(ctx, start, func(ctx context.Context, ev dtx.Event) error {
			if err := d.write(ctx, &ev); err != nil {
				return err
			}
			return emit(ctx, ev)
		})
	})
	return g.Wait()
}

// write puts an event into the spool. Rows of parts are there already.
func (d *spooledStream) write(ctx context.Context, ev *dtx.Event) error {
	switch ev.Kind {
	case dtx.EventPart:
		if ev.Part.Spool == 0 {
			p, err := d.empties.Begin(false).Commit(ctx, ev.Part)
			if err != nil {
				return err
			}
			ev.Part = p
		}
	case dtx.EventRecord:
		if ev.LSN == d.record {
			return d.refuse(ev, "several commit records in one transaction of the coordinator")
		}
		if err := d.sp.AppendRecord(ctx, ev.Record); err != nil {
			return err
		}
		d.record = ev.LSN
	case dtx.EventHold, dtx.EventUnhold:
		return d.refuse(ev, "a transaction decoded at PREPARE")
	}
	if err := faultinject.Point(faultWritten); err != nil {
		return err
	}
	if !ev.More {
		d.mu.Lock()
		d.written = max(d.written, ev.LSN)
		d.mu.Unlock()
	}
	return nil
}

func (d *spooledStream) refuse(ev *dtx.Event, what string) error {
	return &dtx.Error{
		Op: "spool event", Content: dtx.AtContent(d.content), LSN: ev.LSN, Class: dtx.ClassStop,
		Msg: "spool.ack is spooled, and the source sent " + what + ", which such a spool does not keep", Hint: "Set spool.ack: applied",
	}
}

// syncLoop confirms what is durable, at intervals.
func (d *spooledStream) syncLoop(ctx context.Context) error {
	t := time.NewTicker(d.every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
		if err := d.sync(ctx); err != nil {
			return err
		}
	}
}

func (d *spooledStream) sync(ctx context.Context) error {
	d.mu.Lock()
	lsn := d.written
	d.mu.Unlock()
	if lsn <= d.saved {
		return nil
	}
	if err := d.sp.SavePosition(ctx, d.content, lsn); err != nil {
		return err
	}
	if err := d.sp.Sync(ctx); err != nil {
		return err
	}
	if err := faultinject.Point(faultSynced); err != nil {
		return err
	}
	d.saved = lsn
	d.Stream.Confirm(lsn)
	return nil
}

// Confirm says that everything up to lsn is applied. The source has been told
// earlier; records up to it are not needed any more.
func (d *spooledStream) Confirm(lsn dtx.LSN) {
	if d.content == dtx.Coordinator {
		// A failure here fails every later write, which stops the stream.
		_ = d.sp.ReleaseRecords(context.Background(), lsn)
	}
}
