package subscription

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"cbrepl/dtx"
	"cbrepl/source/stream/resolver"
)

// handStream is a stream that a test feeds.
type handStream struct {
	Stream
	events chan dtx.Event
}

func (s *handStream) Run(ctx context.Context, _ dtx.LSN, emit func(context.Context, dtx.Event) error) error {
	for {
		select {
		case ev := <-s.events:
			if err := emit(ctx, ev); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// handSampler answers what a test says.
type handSampler struct {
	answers chan dtx.LSN
	opened  chan struct{}
}

func (s handSampler) Open(context.Context) error {
	s.opened <- struct{}{}
	return nil
}

func (s handSampler) FlushLSN(ctx context.Context) (dtx.LSN, error) {
	select {
	case l := <-s.answers:
		return l, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (handSampler) Close() {}

// TestParticipantsLayer: the coordinator's events come out complete and in order
// once a silent segment's stream has passed its sample, and meanwhile the layer
// says what it needs.
func TestParticipantsLayer(t *testing.T) {
	streams := map[dtx.Content]*handStream{}
	var in []ContentStream
	for _, c := range []dtx.Content{dtx.Coordinator, 0, 1} {
		streams[c] = &handStream{events: make(chan dtx.Event)}
		in = append(in, ContentStream{c, streams[c]})
	}
	answers, opened := make(chan dtx.LSN), make(chan struct{}, 2)
	layer := participantsLayer(resolver.Options{Contents: []dtx.Content{0, 1}}, time.Now, func(dtx.Content) sampler { return handSampler{answers, opened} })
	out, err := layer(in)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	got := make(chan string, 100)
	done := make(chan error, len(out))
	for _, s := range out {
		go func() {
			done <- s.Run(ctx, 0, func(_ context.Context, ev dtx.Event) error {
				if ev.Content == dtx.Coordinator {
					got <- fmt.Sprintf("%s %s %v", ev.Kind, ev.LSN, ev.Record.Participants)
				}
				return nil
			})
		}()
	}
	feed := func(ev dtx.Event) {
		t.Helper()
		select {
		case streams[ev.Content].events <- ev:
		case <-ctx.Done():
			t.Fatalf("%s of content %d is not taken", ev.Kind, ev.Content)
		}
	}
	for range 2 { // before a record waits, so that none waits for a connection
		select {
		case <-opened:
		case <-ctx.Done():
			t.Fatal("the samplers do not connect at the start")
		}
	}
	feed(dtx.Event{Kind: dtx.EventPrepared, Content: 0, LSN: 10, GXID: 7})
	feed(dtx.Event{Kind: dtx.EventPosition, Content: 0, LSN: 11}) // taken when the PREPARE is
	feed(dtx.Event{Kind: dtx.EventRecord, Content: dtx.Coordinator, LSN: 5, Record: dtx.CommitRecord{GXID: 7, Kind: dtx.TwoPhase, EndLSN: 5}})
	feed(dtx.Event{Kind: dtx.EventPosition, Content: dtx.Coordinator, LSN: 6})
	answers <- 20 // content 1 is asked; content 0 has spoken
	records := out[0].Stream.(*resolvedRecords)
	if n := records.Needed(); len(n) != 1 || n[0] != 1 {
		t.Errorf("needed are %v, want content 1", n)
	}
	if p := records.Participants(); p.Waiting != 1 || p.GXID != 7 {
		t.Errorf("status is %+v", p)
	}
	select {
	case g := <-got:
		t.Errorf("%q was passed on before content 1 was read up to its sample", g)
	default:
	}
	feed(dtx.Event{Kind: dtx.EventPosition, Content: 1, LSN: 20})
	for _, want := range []string{"record 0/5 [0]", "position 0/6 []"} {
		select {
		case g := <-got:
			if g != want {
				t.Errorf("got %q, want %q", g, want)
			}
		case <-ctx.Done():
			t.Fatalf("%q did not come", want)
		}
	}
	if n := records.Needed(); len(n) != 0 {
		t.Errorf("nothing waits, but needed are %v", n)
	}
	cancel()
	for range out {
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}
