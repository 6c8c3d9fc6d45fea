package assemble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/pgoutput/pgotest"
	"cbrepl/source/stream/carrier"
	"cbrepl/source/stream/feed"
	"cbrepl/source/stream/feed/feedtest"
)

// coordinatorRig is the coordinator's assembler, fed by hand.
type coordinatorRig struct {
	*feedtest.Rig
	a *Assembler
}

func newCoordinatorRig(t testing.TB, start dtx.LSN) *coordinatorRig {
	a := New(Options{Content: dtx.Coordinator})
	return &coordinatorRig{feedtest.New(t, dtx.Coordinator, start, a), a}
}

func (r *coordinatorRig) expect(want string) {
	r.T.Helper()
	var b strings.Builder
	for _, ev := range r.Events {
		fmt.Fprintf(&b, "%s@%s", ev.Kind, ev.LSN)
		switch ev.Kind {
		case dtx.EventRecord:
			fmt.Fprintf(&b, " gxid=%d %s %v", ev.Record.GXID, ev.Record.Kind, ev.Record.Participants)
			if ev.Record.EndLSN != ev.LSN {
				b.WriteString(" at another LSN")
			}
		case dtx.EventPart:
			fmt.Fprintf(&b, " gxid=%d %s content %d", ev.Part.GXID, ev.Part.Kind, ev.Part.Content)
			if ev.Part.EndLSN != ev.LSN {
				b.WriteString(" at another LSN")
			}
		}
		if ev.Hold != 0 {
			fmt.Fprintf(&b, " hold %d", ev.Hold)
		}
		if ev.More {
			b.WriteString(" more")
		}
		b.WriteString("\n")
	}
	r.Events = nil
	if d := cmp.Diff(strings.TrimLeft(want, "\n"), b.String()); d != "" {
		r.T.Error(d)
	}
}

func record(xid dtx.XID, transactional bool, lsn dtx.LSN, gxid dtx.GXID, kind dtx.Kind, cs ...dtx.Content) []byte {
	return pgotest.Message(xid, transactional, lsn, carrier.DefaultCommitPrefix,
		carrier.AppendCommitRecord(nil, dtx.CommitRecord{GXID: gxid, Kind: kind, Participants: cs}))
}

func part(xid dtx.XID, gxid dtx.GXID) []byte { return feedtest.Part(xid, gxid, 'T') }

func TestRecords(t *testing.T) {
	r := newCoordinatorRig(t, 0x10)
	r.Must(record(0, false, 0x18, 1, 'T', 1, 0))
	r.Must(pgotest.Begin(0x20, 1, 7), record(0, true, 0x1c, 2, 'O', 2), pgotest.Commit(0x20, 0x28, 1))
	// Several records of one transaction, and the coordinator's own part, stand at
	// one LSN; only the last of them completes it.
	r.Must(pgotest.Begin(0x30, 1, 8), record(0, true, 0x2a, 3, 'T', 0, 1), record(0, true, 0x2c, 4, 'O', 1), part(0, 3), pgotest.Commit(0x30, 0x38, 1))
	r.Must(pgotest.Begin(0x40, 1, 9), pgotest.Message(0, true, 1, "other", nil), pgotest.Commit(0x40, 0x48, 1))
	r.Must(pgotest.Message(0, false, 0x49, "other", nil))
	r.Must(pgotest.Begin(0x50, 1, 10), part(0, 5), part(0, 5), pgotest.Commit(0x50, 0x58, 1))
	r.expect(`
record@0/18 gxid=1 two-phase [0 1]
record@0/28 gxid=2 one-phase [2]
part@0/38 gxid=3 two-phase content -1 more
record@0/38 gxid=3 two-phase [0 1] more
record@0/38 gxid=4 one-phase [1]
position@0/48
part@0/58 gxid=5 two-phase content -1
`)
	if r.Out.Reported() != 0x58 || r.a.n.records.Load() != 4 || r.a.n.parts.Load() != 2 {
		t.Errorf("reported %s, %d records, %d parts", r.Out.Reported(), r.a.n.records.Load(), r.a.n.parts.Load())
	}
}

// TestMoreIsNotReported: between two events of one LSN a new connection would
// still start before it.
func TestMoreIsNotReported(t *testing.T) {
	r := newCoordinatorRig(t, 0x10)
	stop := fmt.Errorf("stop")
	n := 0
	r.Out = feed.NewOut(dtx.Coordinator, 0x10, -1, func(context.Context, dtx.Event) error {
		if n++; n == 2 {
			return stop
		}
		return nil
	})
	err := r.Feed(pgotest.Begin(0x30, 1, 8), record(0, true, 1, 3, 'T', 0, 1), record(0, true, 2, 4, 'O', 1), pgotest.Commit(0x30, 0x38, 1))
	if !errors.Is(err, stop) || r.Out.Reported() != 0x10 {
		t.Errorf("%v, reported %s", err, r.Out.Reported())
	}
}

func TestCoordinatorStreamed(t *testing.T) {
	r := newCoordinatorRig(t, 0)
	r.Must(pgotest.StreamStart(7, true), record(7, true, 0x12, 1, 'T', 0, 1), pgotest.StreamStop())
	r.Must(pgotest.StreamStart(8, true), record(8, true, 0x13, 9, 'T', 0, 1), pgotest.StreamStop())
	r.Must(pgotest.StreamAbort(99, 99), record(0, false, 0x18, 2, 'O', 1), pgotest.StreamAbort(8, 8))
	r.Must(pgotest.StreamStart(7, false), part(7, 1), pgotest.StreamStop(), pgotest.StreamCommit(7, 0x20, 0x28, 1))
	r.expect(`
record@0/18 gxid=2 one-phase [1]
part@0/28 gxid=1 two-phase content -1 more
record@0/28 gxid=1 two-phase [0 1]
`)
	// A new connection sends what was in progress again.
	r.Must(pgotest.StreamStart(9, true), record(9, true, 0x30, 3, 'T', 0, 1), pgotest.StreamStop())
	r.Reset()
	r.Must(pgotest.StreamStart(9, true), record(9, true, 0x30, 3, 'T', 0, 1), pgotest.StreamStop(), pgotest.StreamCommit(9, 0x40, 0x48, 1))
	r.expect("record@0/48 gxid=3 two-phase [0 1]\n")
}

func TestCoordinatorPrepared(t *testing.T) {
	r := newCoordinatorRig(t, 0)
	prep := func(typ byte, lsn dtx.LSN, gid string) []byte { return pgotest.Prepare(typ, lsn, lsn+8, 1, 7, gid) }
	r.Must(prep('b', 0x20, "50"), record(0, true, 1, 49, 'T', 0, 1), prep('P', 0x20, "50"))
	r.Must(prep('b', 0x30, "mine"), record(0, true, 1, 51, 'T', 0, 1), prep('P', 0x30, "mine"))
	r.Must(prep('b', 0x40, "60"), prep('P', 0x40, "60"))
	r.Must(pgotest.StreamStart(7, true), part(7, 70), pgotest.StreamStop(), prep('p', 0x50, "other"))
	if r.Out.Reported() != 0x58 {
		t.Errorf("reported %s", r.Out.Reported())
	}
	r.Reset()
	r.Must(pgotest.CommitPrepared(0x60, 0x68, 1, 7, "50"), pgotest.CommitPrepared(0x70, 0x78, 1, 7, "mine"),
		pgotest.RollbackPrepared(0x48, 0x88, 1, 2, 7, "60"), pgotest.CommitPrepared(0x90, 0x98, 1, 7, "other"),
		pgotest.CommitPrepared(0xa0, 0xa8, 1, 7, "from before"), pgotest.RollbackPrepared(1, 0xb8, 1, 2, 7, "from before"))
	r.expect(`
hold@0/20 hold 1
hold@0/30 hold 2
hold@0/40 hold 3
hold@0/50 hold 4
part@0/68 gxid=50 two-phase content -1 hold 1 more
record@0/68 gxid=49 two-phase [0 1]
unhold@0/78 hold 2 more
record@0/78 gxid=51 two-phase [0 1]
unhold@0/88 hold 3
part@0/98 gxid=70 two-phase content -1 hold 4
position@0/A8
position@0/B8
`)
	if r.a.n.open.Load() != 0 {
		t.Errorf("%d open", r.a.n.open.Load())
	}
}

func table(id uint32, schema, name string) []byte {
	return pgotest.Relation(0, &pgoutput.Relation{ID: id, Schema: schema, Name: name, Identity: 'd'})
}

// TestCoordinatorFaults stop the stream when their transaction commits, and only then.
func TestCoordinatorFaults(t *testing.T) {
	row := pgotest.Insert(0, 1, pgotest.Text("secret-value"))
	bad := func(body string) []byte {
		return pgotest.Message(0, true, 0x12, carrier.DefaultCommitPrefix, []byte(body))
	}
	for _, c := range []struct {
		name, want string
		msgs       [][]byte
	}{
		{"row", "table public.t", [][]byte{table(1, "public", "t"), row}},
		{"ddl", "pg_ddl_table", [][]byte{pgotest.Message(0, true, 0x12, "pg_ddl_table", []byte("secret-value"))}},
		{"record", "version 2", [][]byte{bad("\x02")}},
		{"part", "want 10 bytes", [][]byte{pgotest.Message(0, true, 0x12, carrier.DefaultPartPrefix, []byte("\x01T12345678 "))}},
		{"two parts", "gxid 1 (two-phase) and gxid 2", [][]byte{part(0, 1), part(0, 2)}},
	} {
		msgs := append(append([][]byte{pgotest.Begin(0x20, 1, 7)}, c.msgs...), pgotest.Commit(0x20, 0x28, 1))
		err := newCoordinatorRig(t, 0).Feed(msgs...)
		if err == nil || dtx.ClassOf(err) != dtx.ClassStop || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "content -1") {
			t.Errorf("%s: %v", c.name, err)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: row value in %q", c.name, err)
		}
	}
	// Rolled back in whole or in the subtransaction that did it: no fault.
	r := newCoordinatorRig(t, 0)
	streamedTable := func(xid dtx.XID) []byte {
		return pgotest.Relation(xid, &pgoutput.Relation{ID: 1, Schema: "public", Name: "t", Identity: 'd'})
	}
	r.Must(pgotest.StreamStart(7, true), streamedTable(7),
		pgotest.Insert(8, 1, pgotest.Text("x")), pgotest.Insert(9, 1, pgotest.Text("x")), pgotest.StreamStop())
	r.Must(pgotest.StreamStart(17, true), streamedTable(17), pgotest.Insert(17, 1, pgotest.Text("x")), pgotest.StreamStop())
	r.Must(pgotest.StreamAbort(7, 9), pgotest.StreamAbort(7, 8), pgotest.StreamAbort(17, 17), pgotest.StreamCommit(7, 0x20, 0x28, 1))
	r.expect("position@0/28\n")
	r.Must(pgotest.StreamStart(7, true), streamedTable(7), pgotest.Insert(8, 1, pgotest.Text("x")), pgotest.Insert(9, 1, pgotest.Text("x")), pgotest.StreamStop(), pgotest.StreamAbort(7, 8))
	if err := r.Feed(pgotest.StreamCommit(7, 0x30, 0x38, 1)); err == nil || !strings.Contains(err.Error(), "public.t") {
		t.Errorf("row of a subtransaction that is left: %v", err)
	}
	// The policies are cbrepl's own.
	r = newCoordinatorRig(t, 0)
	r.Must(pgotest.Begin(0x20, 1, 7), table(1, "cbrepl", "distribution_policy"), row, pgotest.Commit(0x20, 0x28, 1))
	r.expect("position@0/28\n")
	// A cluster's coordinator truncates its own, empty relation, too.
	r = newCoordinatorRig(t, 0)
	r.Must(pgotest.Begin(0x20, 1, 7), table(1, "public", "t"), table(2, "public", "u"), part(0, 3), pgotest.Truncate(0, 0, 2, 1), pgotest.Commit(0x20, 0x28, 1))
	r.Must(pgotest.Begin(0x30, 1, 7), pgotest.Truncate(0, 0, 2, 1), pgotest.Commit(0x30, 0x38, 1))
	r.expect("part@0/28 gxid=3 two-phase content -1\nposition@0/38\n")
	// Rows there are ignored when that is asked for.
	var logs strings.Builder
	r.a = New(Options{Content: dtx.Coordinator, LocalChanges: Ignore, Logger: slog.New(slog.NewTextHandler(&logs, nil))})
	r.Restart(dtx.Coordinator, 0, r.a)
	r.Must(pgotest.Begin(0x20, 1, 7), table(1, "public", "t"), row, part(0, 3), pgotest.Commit(0x20, 0x28, 1))
	r.Must(pgotest.Begin(0x30, 1, 7), row, pgotest.Commit(0x30, 0x38, 1))
	r.expect("part@0/28 gxid=3 two-phase content -1\nposition@0/38\n")
	if n := r.a.Counts().Ignored; n != 2 || !strings.Contains(logs.String(), "public.t") || strings.Contains(logs.String(), "secret") {
		t.Errorf("%d ignored, logged %s", n, logs.String())
	}
	// Outside transactions there is nothing to wait for.
	for _, m := range [][]byte{
		pgotest.Message(0, false, 0x20, carrier.DefaultCommitPrefix, []byte("\x02")),
		pgotest.Message(0, false, 0x20, carrier.DefaultPartPrefix, carrier.AppendPart(nil, carrier.Identity{GXID: 1, Kind: 'T'})),
		pgotest.Message(0, false, 0x20, "pg_ddl_x", nil),
	} {
		if err := newCoordinatorRig(t, 0).Feed(m); err == nil || dtx.ClassOf(err) != dtx.ClassStop {
			t.Errorf("%q: %v", m, err)
		}
	}
}

// FuzzCoordinatorMessages: whatever a server sends, the assembler answers with events or an
// error.
func FuzzCoordinatorMessages(f *testing.F) {
	f.Add(feedtest.Join(pgotest.Begin(0x20, 1, 7), record(0, true, 1, 3, 'T', 0, 1), part(0, 3), pgotest.Commit(0x20, 0x28, 1)))
	f.Add(feedtest.Join(pgotest.StreamStart(7, true), record(7, true, 1, 3, 'T', 0, 1), pgotest.StreamStop(), pgotest.StreamCommit(7, 0x20, 0x28, 1)))
	f.Add(feedtest.Join(pgotest.Prepare('b', 1, 2, 3, 4, "5"), table(1, "a", "b"), pgotest.Truncate(0, 0, 1), pgotest.Prepare('P', 1, 2, 3, 4, "5"), pgotest.CommitPrepared(3, 4, 5, 4, "5")))
	f.Fuzz(func(t *testing.T, b []byte) {
		newCoordinatorRig(t, 0).FeedJoined(b)
	})
}

// TestCoordinatorRandomOrder: records of interleaved transactions arrive in commit order,
// those of one transaction in their own, each once over cut connections.
func TestCoordinatorRandomOrder(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		type tx struct {
			xid  dtx.XID
			recs []dtx.GXID
			end  dtx.LSN
		}
		var log []tx
		lsn, gxid := dtx.LSN(0x100), dtx.GXID(0)
		for i := range 1 + rng.IntN(30) {
			x := tx{xid: dtx.XID(100 + i)}
			for range rng.IntN(4) {
				gxid++
				x.recs = append(x.recs, gxid)
			}
			lsn += dtx.LSN(10 + rng.IntN(50))
			x.end = lsn
			log = append(log, x)
		}
		r := newCoordinatorRig(t, 0x10)
		for {
			budget := rng.IntN(120)
			start := r.Out.Reported()
			cut := false
			send := func(m []byte) {
				if budget--; budget < 0 || cut {
					cut = true
					return
				}
				r.Must(m)
			}
			seen := map[dtx.XID]bool{}
			for i, x := range log {
				// A few later transactions are streamed meanwhile.
				if j := i + rng.IntN(4); j < len(log) && j > i && log[j].end > start && !seen[log[j].xid] && rng.IntN(2) == 0 {
					seen[log[j].xid] = true
					send(pgotest.StreamStart(log[j].xid, true))
					for _, g := range log[j].recs {
						send(record(log[j].xid, true, 1, g, 'O', 1))
					}
					send(pgotest.StreamStop())
				}
				switch {
				case x.end <= start:
				case seen[x.xid]:
					send(pgotest.StreamCommit(x.xid, x.end-8, x.end, 1))
				default:
					send(pgotest.Begin(x.end-8, 1, x.xid))
					for _, g := range x.recs {
						send(record(0, true, 1, g, 'O', 1))
					}
					send(pgotest.Commit(x.end-8, x.end, 1))
				}
			}
			if !cut {
				break
			}
			r.Reset()
		}
		var want, got []dtx.GXID
		for _, x := range log {
			want = append(want, x.recs...)
		}
		for _, ev := range r.Events {
			if ev.Kind == dtx.EventRecord {
				got = append(got, ev.Record.GXID)
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
	}
}
