package assemble

import (
	"context"
	"testing"

	"cbrepl/dtx"
	"cbrepl/pgoutput/pgotest"
	"cbrepl/source/stream/feed/feedtest"
)

// BenchmarkRows: from a plugin message to the spool, in transactions of 100
// rows of usual size; freed at once.
func BenchmarkRows(b *testing.B) {
	r := newRig(b, Stop, 0)
	r.Must(pgotest.Begin(0x10, 1, 1), pgotest.Relation(0, rel(1, "a", "abcde")), pgotest.Commit(0x10, 0x18, 1))
	row := ins(0, 1, "123456", "some text of a usual length, some text of a usual length", "2024-02-03 04:05:06+00", "12.50", "x")
	id := feedtest.Part(0, 7, 'O')
	ctx := context.Background()
	feed := func(m []byte) {
		if err := r.a.Message(ctx, r.Out, 1, m); err != nil {
			b.Fatal(err)
		}
	}
	end := dtx.LSN(0x20)
	rows := 0
	b.ReportAllocs()
	for b.Loop() {
		if rows%100 == 0 {
			if rows > 0 {
				end += 0x20
				feed(id)
				feed(pgotest.Commit(end-8, end, 1))
				if len(r.Events) > 200 {
					var ps []dtx.Part
					for _, ev := range r.Events {
						if ev.Kind == dtx.EventPart {
							ps = append(ps, ev.Part)
						}
					}
					if err := r.spool.Release(ps); err != nil {
						b.Fatal(err)
					}
					r.Events = r.Events[:0]
				}
			}
			feed(pgotest.Begin(end, 1, 1))
		}
		feed(row)
		rows++
	}
	feed(id)
	feed(pgotest.Commit(end+0x20, end+0x28, 1))
}
