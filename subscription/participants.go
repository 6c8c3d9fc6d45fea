package subscription

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"cbrepl/dtx"
	"cbrepl/source/stream/resolver"
	"cbrepl/subscription/status"
)

// sampler asks a segment how far its log is on disk.
type sampler interface {
	// Open connects, so that the first question is answered at once. The next one
	// connects, too.
	Open(ctx context.Context) error
	FlushLSN(ctx context.Context) (dtx.LSN, error)
	Close()
}

// participants completes the commit records of a source that does not name
// participants: it is the layer around all streams that a resolver.Resolver
// needs. Events of segments go through it in the goroutine of their stream. Those
// of the coordinator are held back; one goroutine of its own, in the
// coordinator's Run, passes them on. Beside each segment's stream a goroutine
// samples that segment while a record waits.
//
// # Bounds
//
// The coordinator's stream is not read while maxHeld of its events are held. The
// first record waits for segments only, whose streams the loop keeps reading
// (needed), and for samples, so it is always passed on in the end.
type participants struct {
	now func() time.Time

	mu    sync.Mutex
	r     *resolver.Resolver
	ready []dtx.Event // of the coordinator, to be passed on
	// changed is closed and replaced when ready or the room changes.
	changed chan struct{}
	waiting chan struct{} // closed while a record waits
	waits   bool
	asked   map[dtx.Content]time.Duration // how long the latest sample took
}

const (
	// maxHeld bounds the coordinator's events held back, some 200 bytes each.
	maxHeld = 50_000
	// sampleEvery is the least time between two samples of a segment.
	sampleEvery = 50 * time.Millisecond
	// sampleTimeout bounds one sample.
	sampleTimeout = 10 * time.Second
	// samplePauseMax bounds the pause after a sample that failed: records wait for
	// the first one after the segment is back.
	samplePauseMax = 500 * time.Millisecond
)

// participantsLayer makes the layer. open connects to a segment.
func participantsLayer(o resolver.Options, now func() time.Time, open func(dtx.Content) sampler) streamLayer {
	return func(in []ContentStream) ([]ContentStream, error) {
		r, err := resolver.New(o)
		if err != nil {
			return nil, err
		}
		p := &participants{now: now, r: r, changed: make(chan struct{}), waiting: make(chan struct{}), asked: map[dtx.Content]time.Duration{}}
		out := make([]ContentStream, len(in))
		for i, s := range in {
			out[i].Content = s.Content
			if s.Content == dtx.Coordinator {
				out[i].Stream = &resolvedRecords{s.Stream, p}
			} else {
				out[i].Stream = &sampledSegment{s.Stream, p, s.Content, open}
			}
		}
		return out, nil
	}
}

// take gives an event to the resolver and returns those of the same segment that
// come out.
func (p *participants) take(ev dtx.Event) ([]dtx.Event, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out, err := p.r.Add(ev, p.now(), nil)
	return p.sort(out), err
}

// sort keeps the coordinator's events and returns the others. The lock is held.
func (p *participants) sort(out []dtx.Event) []dtx.Event {
	n := len(p.ready)
	own := out[:0]
	for _, ev := range out {
		if ev.Content == dtx.Coordinator {
			p.ready = append(p.ready, ev)
		} else {
			own = append(own, ev)
		}
	}
	if len(p.ready) > n {
		p.signal()
	}
	switch waits := p.r.Pending() > 0; {
	case waits && !p.waits:
		close(p.waiting)
		p.waits = true
	case !waits && p.waits:
		p.waiting = make(chan struct{})
		p.waits = false
	}
	return own
}

func (p *participants) signal() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// wait blocks until ready says so; ready is called with the lock held.
func (p *participants) wait(ctx context.Context, ready func() bool) error {
	for {
		p.mu.Lock()
		ok, changed := ready(), p.changed
		p.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// resolvedRecords is the coordinator's stream with complete records.
type resolvedRecords struct {
	Stream
	p *participants
}

// Run implements Stream.
func (s *resolvedRecords) Run(ctx context.Context, start dtx.LSN, emit func(context.Context, dtx.Event) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.passOn(ctx, emit) })
	g.Go(func() error {
		return s.Stream.Run(ctx, start, func(ctx context.Context, ev dtx.Event) error {
			if err := s.p.wait(ctx, func() bool { return s.p.r.Pending()+len(s.p.ready) < maxHeld }); err != nil {
				return err
			}
			_, err := s.p.take(ev)
			return err
		})
	})
	return g.Wait()
}

// passOn emits the coordinator's events in their order.
func (s *resolvedRecords) passOn(ctx context.Context, emit func(context.Context, dtx.Event) error) error {
	p := s.p
	for {
		var evs []dtx.Event
		if err := p.wait(ctx, func() bool {
			evs, p.ready = p.ready, nil
			return len(evs) > 0
		}); err != nil {
			return err
		}
		p.mu.Lock()
		p.signal() // there is room
		p.mu.Unlock()
		for _, ev := range evs {
			if err := emit(ctx, ev); err != nil {
				return err
			}
		}
	}
}

// Needed implements needer.
func (s *resolvedRecords) Needed() []dtx.Content {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return s.p.r.Needed()
}

// Participants implements participantsReporter.
func (s *resolvedRecords) Participants() status.Participants {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	st := s.p.r.Stats(s.p.now())
	out := status.Participants{
		Waiting: st.Waiting, GXID: uint64(st.GXID), Contents: st.Needed, WaitSeconds: st.Age.Seconds(),
		MedianSeconds: st.Median.Seconds(), MaxSeconds: st.Max.Seconds(),
	}
	for _, c := range slices.Sorted(maps.Keys(s.p.asked)) {
		if d := s.p.asked[c].Seconds(); d > out.SampleSeconds {
			out.SampleSeconds, out.SampleContent = d, c
		}
	}
	return out
}

// sampledSegment is a segment's stream with its samples.
type sampledSegment struct {
	Stream
	p       *participants
	content dtx.Content
	open    func(dtx.Content) sampler
}

// Run implements Stream.
func (s *sampledSegment) Run(ctx context.Context, start dtx.LSN, emit func(context.Context, dtx.Event) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.sample(ctx) })
	g.Go(func() error {
		return s.Stream.Run(ctx, start, func(ctx context.Context, ev dtx.Event) error {
			evs, err := s.p.take(ev)
			if err != nil {
				return err
			}
			for _, ev := range evs {
				if err := emit(ctx, ev); err != nil {
					return err
				}
			}
			return nil
		})
	})
	return g.Wait()
}

// sample asks for the flush position in turns, while a record waits for it.
func (s *sampledSegment) sample(ctx context.Context) error {
	at := s.open(s.content)
	defer at.Close()
	pause := sampleEvery
	_ = at.Open(ctx) // a fault comes again at the first sample
	for {
		s.p.mu.Lock()
		waiting := s.p.waiting
		token, cs := s.p.r.Wanted()
		s.p.mu.Unlock()
		if slices.Contains(cs, s.content) {
			began := s.p.now()
			lsn, err := s.ask(ctx, at)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case dtx.ClassOf(err) == dtx.ClassStop && err != nil:
				return err
			case err != nil: // the stream says what is wrong with the segment
				pause = min(2*pause, samplePauseMax)
			default:
				pause = sampleEvery
				s.p.mu.Lock()
				s.p.asked[s.content] = s.p.now().Sub(began)
				s.p.sort(s.p.r.Sampled(s.content, token, lsn, s.p.now(), nil))
				s.p.mu.Unlock()
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause + time.Duration(rand.Int64N(int64(pause)/4))):
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-waiting:
		}
	}
}

func (s *sampledSegment) ask(ctx context.Context, at sampler) (dtx.LSN, error) {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	return at.FlushLSN(ctx)
}
