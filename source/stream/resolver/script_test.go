package resolver_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"cbrepl/dtx"
	"cbrepl/source/stream/resolver"
)

// TestScripts runs testdata/*: one resolver per file, reset by "new". Every line
// of an "add" is an event; what is passed on is printed. The clock stands still
// until "tick".
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var r *resolver.Resolver
		now := time.Unix(0, 0)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var b strings.Builder
			show := func(out []dtx.Event) {
				for _, ev := range out {
					if ev.Kind == dtx.EventRecord {
						fmt.Fprintf(&b, "record %d %v\n", ev.Record.GXID, ev.Record.Participants)
					} else {
						fmt.Fprintf(&b, "%s c=%d %s\n", ev.Kind, ev.Content, ev.LSN)
					}
				}
			}
			switch d.Cmd {
			case "new":
				var n int
				d.ScanArgs(t, "segments", &n)
				o := resolver.Options{}
				for c := range n {
					o.Contents = append(o.Contents, dtx.Content(c))
				}
				for line := range strings.Lines(d.Input) {
					f := strings.Fields(line)
					switch f[0] {
					case "at":
						o.Positions = append(o.Positions, dtx.Position{Content: dtx.Content(number(f[1])), LSN: dtx.LSN(number(f[2]))})
					case "applied":
						o.Applied = append(o.Applied, dtx.GXID(number(f[1])))
					}
				}
				var err error
				if r, err = resolver.New(o); err != nil {
					return err.Error() + "\n"
				}
			case "add":
				for line := range strings.Lines(d.Input) {
					out, err := r.Add(scriptEvent(strings.Fields(line)), now, nil)
					show(out)
					if err != nil {
						fmt.Fprintf(&b, "%v\n", err)
					}
				}
			case "wanted":
				token, cs := r.Wanted()
				fmt.Fprintf(&b, "token %d of %v\n", token, cs)
			case "sampled":
				for line := range strings.Lines(d.Input) {
					f := strings.Fields(line)
					show(r.Sampled(dtx.Content(number(f[0])), resolver.Token(number(f[1])), dtx.LSN(number(f[2])), now, nil))
				}
			case "tick":
				var ms int
				d.ScanArgs(t, "ms", &ms)
				now = now.Add(time.Duration(ms) * time.Millisecond)
			case "stats":
				s := r.Stats(now)
				fmt.Fprintf(&b, "waiting %d, queued %d, remembered %d; gxid %d for %s, needs %v; median %s, max %s\n",
					s.Waiting, s.Queued, s.Remembered, s.GXID, s.Age, s.Needed, s.Median, s.Max)
			default:
				t.Fatalf("unknown command %s", d.Cmd)
			}
			return b.String()
		})
	})
}

func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// scriptEvent reads "WORD CONTENT LSN [GXID]"; "own" after a record says that the
// coordinator has a part.
func scriptEvent(f []string) dtx.Event {
	ev := dtx.Event{Content: dtx.Content(number(f[1])), LSN: dtx.LSN(number(f[2]))}
	var g dtx.GXID
	if len(f) > 3 {
		g = dtx.GXID(number(f[3]))
	}
	switch f[0] {
	case "prepare":
		ev.Kind, ev.GXID = dtx.EventPrepared, g
	case "rollback":
		ev.Kind, ev.GXID = dtx.EventRolledBack, g
	case "settled":
		ev.Kind, ev.GXID = dtx.EventSettled, g
	case "part", "onephase":
		ev.Kind = dtx.EventPart
		ev.Part = dtx.Part{GXID: g, Kind: dtx.TwoPhase, Content: ev.Content, EndLSN: ev.LSN}
		if f[0] == "onephase" {
			ev.Part.Kind = dtx.OnePhase
		}
	case "record":
		ev.Kind = dtx.EventRecord
		ev.Record = dtx.CommitRecord{GXID: g, Kind: dtx.TwoPhase, EndLSN: ev.LSN}
		if len(f) > 4 {
			ev.Record.Participants = []dtx.Content{dtx.Coordinator}
		}
	case "position":
		ev.Kind = dtx.EventPosition
	default:
		panic("unknown event " + f[0])
	}
	return ev
}
