package merge

import (
	"fmt"
	"testing"

	"cbrepl/dtx"
)

// backlog builds an engine with many streams and many dtxs that wait for one
// segment (field case 18).
func backlog(tb testing.TB, segments, open int) *Engine {
	o := Options{}
	for c := range segments {
		o.Contents = append(o.Contents, dtx.Content(c))
	}
	e, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	for g := range open {
		c := dtx.Content(1 + g%(segments-1))
		l := dtx.LSN(g + 1)
		feed(tb, e, dtx.Event{Kind: dtx.EventRecord, Content: -1, LSN: l, Record: dtx.CommitRecord{
			GXID: dtx.GXID(g + 1), Kind: dtx.TwoPhase, Participants: []dtx.Content{0, c}, EndLSN: l,
		}})
		feed(tb, e, dtx.Event{Kind: dtx.EventPart, Content: c, LSN: l, Part: dtx.Part{
			GXID: dtx.GXID(g + 1), Kind: dtx.TwoPhase, Content: c, EndLSN: l, Rows: 1, Bytes: 1,
		}})
	}
	return e
}

func feed(tb testing.TB, e *Engine, ev dtx.Event) {
	if err := e.Add(ev); err != nil {
		tb.Fatal(err)
	}
}

// BenchmarkBacklog measures one event plus one attempt to release, with 1,000
// and with 10,000 dtxs waiting on 1,000 streams: the cost must not follow the
// backlog.
func BenchmarkBacklog(b *testing.B) {
	for _, open := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("open=%d", open), func(b *testing.B) {
			e := backlog(b, 1000, open)
			l := dtx.LSN(open)
			b.ResetTimer()
			for i := range b.N {
				l++
				c := dtx.Content(1 + i%999)
				feed(b, e, dtx.Event{Kind: dtx.EventPart, Content: c, LSN: l, Part: dtx.Part{
					GXID: dtx.GXID(l), Kind: dtx.OnePhase, Content: c, EndLSN: l, Rows: 1,
				}})
				if _, ok := e.Next(Limits{}); ok {
					b.Fatal("released behind an incomplete dtx")
				}
			}
		})
	}
}

// TestBacklogReleases checks that a backlog behind one stalled segment is
// released whole and in order once it speaks.
func TestBacklogReleases(t *testing.T) {
	const open = 10000
	e := backlog(t, 1000, open)
	if _, ok := e.Next(Limits{}); ok {
		t.Fatal("released before segment 0 delivered")
	}
	next := dtx.GXID(1)
	for g := range open {
		l := dtx.LSN(g + 1)
		feed(t, e, dtx.Event{Kind: dtx.EventPart, Content: 0, LSN: l, Part: dtx.Part{
			GXID: dtx.GXID(g + 1), Kind: dtx.TwoPhase, Content: 0, EndLSN: l, Rows: 1, Bytes: 1,
		}})
		if g%1000 != 999 {
			continue
		}
		for {
			b, ok := e.Next(Limits{MaxDtxs: 300})
			if !ok {
				break
			}
			for _, id := range b.GXIDs {
				if id != next {
					t.Fatalf("gxid %d released, want %d", id, next)
				}
				next++
			}
			e.Applied()
		}
	}
	if next != open+1 || e.Pending() != (Counts{}) || e.DedupSize() != 0 {
		t.Fatalf("released up to %d; pending %+v, dedup %d", next-1, e.Pending(), e.DedupSize())
	}
}
