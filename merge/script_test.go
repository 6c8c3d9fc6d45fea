package merge

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"cbrepl/dtx"
)

// TestScripts runs testdata/*: one engine per file, reset by "new". Input lines
// are events; every command prints what changed.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var e *Engine
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var b strings.Builder
			switch d.Cmd {
			case "new":
				var n int
				d.ScanArgs(t, "segments", &n)
				o := Options{}
				if d.HasArg("began") {
					var s int
					d.ScanArgs(t, "began", &s)
					o.MarkersFrom = seconds(int64(s))
				}
				for c := range n {
					o.Contents = append(o.Contents, dtx.Content(c))
				}
				for line := range strings.Lines(d.Input) {
					f := fields(line)
					switch f["op"] {
					case "at":
						o.Positions = append(o.Positions, dtx.Position{Content: dtx.Content(num(f["c"])), LSN: dtx.LSN(num(f["lsn"]))})
					case "dedup":
						o.Dedup = append(o.Dedup, dtx.DedupEntry{GXID: dtx.GXID(num(f["g"])), Pending: []dtx.Position{{Content: dtx.Content(num(f["c"])), LSN: lsn(f["lsn"])}}})
					}
				}
				var err error
				if e, err = New(o); err != nil {
					return err.Error() + "\n"
				}
			case "add":
				for line := range strings.Lines(d.Input) {
					if err := e.Add(event(fields(line))); err != nil {
						fmt.Fprintf(&b, "%v\n", err)
					}
				}
				for _, p := range e.Drops() {
					fmt.Fprintf(&b, "dropped part of gxid %d, content %d\n", p.GXID, p.Content)
				}
			case "next":
				l := Limits{PositionsOnly: d.HasArg("positions")}
				if d.HasArg("dtxs") {
					d.ScanArgs(t, "dtxs", &l.MaxDtxs)
				}
				if d.HasArg("rows") {
					var n int
					d.ScanArgs(t, "rows", &n)
					l.MaxRows = int64(n)
				}
				batch, ok := e.Next(l)
				if !ok {
					return "none\n"
				}
				printBatch(&b, &batch)
			case "applied":
				fmt.Fprintf(&b, "%d parts to release\n", len(e.Applied()))
			case "abandon":
				e.Abandon()
			case "waits":
				for _, w := range e.Waits(10) {
					fmt.Fprintf(&b, "gxid %d %s record=%t missing=%v parts=%v blocking=%t\n", w.GXID, w.Kind, w.RecordSeen, w.Missing, w.Parts, w.Blocking)
					if len(w.Prepared) > 0 {
						fmt.Fprintf(&b, "  prepared=%v\n", w.Prepared)
					}
				}
				if at, ok := e.OldestCommit(); ok {
					fmt.Fprintf(&b, "oldest commit at %d\n", at/1_000_000)
				}
				fmt.Fprintf(&b, "needed %v, pending %+v, dedup %d\n", e.NeededContents(), e.Pending(), e.DedupSize())
			default:
				t.Fatalf("unknown command %s", d.Cmd)
			}
			return b.String()
		})
	})
}

func printBatch(b *strings.Builder, batch *dtx.Batch) {
	fmt.Fprintf(b, "gxids %v\n", batch.GXIDs)
	for _, s := range batch.Steps {
		fmt.Fprintf(b, "step")
		if s.Barrier {
			fmt.Fprintf(b, " (barrier)")
		}
		for _, p := range s.Parts {
			low := ""
			if p.Lowest {
				low = "*"
			}
			fmt.Fprintf(b, " %d@%d%s", p.GXID, p.Content, low)
		}
		b.WriteString("\n")
	}
	for _, p := range batch.Positions {
		fmt.Fprintf(b, "%s\n", p)
	}
	for _, g := range batch.DedupDrop {
		fmt.Fprintf(b, "forget %d\n", g)
	}
	for _, d := range batch.DedupAdd {
		fmt.Fprintf(b, "remember %d until %v\n", d.GXID, d.Pending)
	}
}

func fields(line string) map[string]string {
	f := map[string]string{}
	for i, w := range strings.Fields(line) {
		k, v, _ := strings.Cut(w, "=")
		if i == 0 {
			f["op"] = k
		} else {
			f[k] = v
		}
	}
	return f
}

func num(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func seconds(n int64) dtx.PGTime { return dtx.PGTime(n) * 1_000_000 }

func lsn(s string) dtx.LSN {
	if s == "max" {
		return dtx.MaxLSN
	}
	return dtx.LSN(num(s))
}

func event(f map[string]string) dtx.Event {
	ev := dtx.Event{LSN: lsn(f["lsn"])}
	if c, ok := f["c"]; ok {
		ev.Content = dtx.Content(num(c))
	}
	_, ev.More = f["more"]
	if h, ok := f["hold"]; ok {
		ev.Hold = dtx.SpoolID(num(h))
	}
	var at dtx.PGTime
	if s, ok := f["at"]; ok {
		at = seconds(num(s))
	}
	kind := dtx.TwoPhase
	if f["k"] == "O" {
		kind = dtx.OnePhase
	}
	switch f["op"] {
	case "part":
		ev.Kind = dtx.EventPart
		_, barrier := f["barrier"]
		ev.Part = dtx.Part{GXID: dtx.GXID(num(f["g"])), Kind: kind, Content: ev.Content, EndLSN: ev.LSN, CommitTime: at, Barrier: barrier, Rows: 1, Bytes: 10}
	case "record":
		ev.Kind, ev.Content = dtx.EventRecord, dtx.Coordinator
		ev.Record = dtx.CommitRecord{GXID: dtx.GXID(num(f["g"])), Kind: kind, CommitTime: at, EndLSN: ev.LSN}
		for p := range strings.SplitSeq(f["p"], ",") {
			ev.Record.Participants = append(ev.Record.Participants, dtx.Content(num(p)))
		}
	case "position":
		ev.Kind = dtx.EventPosition
	case "hold":
		ev.Kind = dtx.EventHold
	case "unhold":
		ev.Kind = dtx.EventUnhold
	default:
		panic("unknown event " + f["op"])
	}
	return ev
}
