package feed

import (
	"context"
	"errors"
	"testing"
	"time"

	"cbrepl/dtx"
)

func events() (*[]dtx.Event, Emit) {
	var evs []dtx.Event
	return &evs, func(_ context.Context, ev dtx.Event) error {
		evs = append(evs, ev)
		return nil
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestPositionsAreThinned: of many positions the first goes out, the last one
// goes out when the time has come, and none once an event says more.
func TestPositionsAreThinned(t *testing.T) {
	ctx := t.Context()
	evs, emit := events()
	o := NewOut(3, 10, 50*time.Millisecond, emit)
	for lsn := dtx.LSN(5); lsn <= 100; lsn++ {
		check(t, o.Position(ctx, lsn))
	}
	if len(*evs) != 1 || (*evs)[0].LSN != 11 || (*evs)[0].Content != 3 || o.Reported() != 11 {
		t.Fatalf("events %+v, reported %s", *evs, o.Reported())
	}
	due := o.due()
	if due.IsZero() || time.Until(due) > 50*time.Millisecond {
		t.Fatalf("due %s", due)
	}
	<-time.After(time.Until(due) + time.Millisecond)
	check(t, o.flush(ctx))
	if len(*evs) != 2 || (*evs)[1].LSN != 100 || !o.due().IsZero() {
		t.Fatalf("events %+v, due %s", *evs, o.due())
	}
	check(t, o.Position(ctx, 110))
	check(t, o.Event(ctx, dtx.Event{Kind: dtx.EventPart, LSN: 120}))
	if !o.due().IsZero() {
		t.Error("a position older than the last event is still to come")
	}
	check(t, o.flush(ctx))
	check(t, o.Position(ctx, 120)) // no news
	check(t, o.flush(ctx))
	if len(*evs) != 3 || o.Reported() != 120 {
		t.Errorf("events %+v, reported %s", *evs, o.Reported())
	}
}

// TestNothingGoesBack: events rise; a hold stands where it stands, and moves
// nothing by itself.
func TestNothingGoesBack(t *testing.T) {
	ctx := t.Context()
	_, emit := events()
	o := NewOut(0, 10, -1, emit)
	check(t, o.Event(ctx, dtx.Event{Kind: dtx.EventPart, LSN: 30}))
	check(t, o.Event(ctx, dtx.Event{Kind: dtx.EventHold, LSN: 20}))
	if o.Reported() != 30 {
		t.Errorf("reported %s after a hold", o.Reported())
	}
	check(t, o.Advance(40))
	for _, lsn := range []dtx.LSN{0, 39} {
		if err := o.Event(ctx, dtx.Event{Kind: dtx.EventPart, LSN: lsn}); dtx.ClassOf(err) != dtx.ClassStop || err == nil {
			t.Errorf("part at %s behind 0/28: %v", lsn, err)
		}
	}
	if err := o.Advance(39); err == nil {
		t.Error("advance went back")
	}
	// An event that was not taken is not reported.
	boom := errors.New("boom")
	o = NewOut(0, 10, -1, func(context.Context, dtx.Event) error { return boom })
	if err := o.Event(ctx, dtx.Event{Kind: dtx.EventPart, LSN: 30}); !errors.Is(err, boom) || o.Reported() != 10 {
		t.Errorf("%v, reported %s", err, o.Reported())
	}
	if err := o.Position(ctx, 50); !errors.Is(err, boom) || o.Reported() != 10 {
		t.Errorf("%v, reported %s", err, o.Reported())
	}
}
