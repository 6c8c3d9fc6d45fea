package assemble

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/pgoutput/pgotest"
	"cbrepl/source/stream/carrier"
	"cbrepl/source/stream/feed/feedtest"
	"cbrepl/store"
)

// rig is a segment's assembler on a real spool, fed by hand.
type rig struct {
	*feedtest.Rig
	spool *store.Spool
	a     *Assembler
	logs  strings.Builder
}

const content dtx.Content = 2

func newRig(t testing.TB, local LocalChanges, start dtx.LSN) *rig {
	t.Helper()
	r := &rig{Rig: &feedtest.Rig{T: t}, spool: feedtest.OpenSpool(t)}
	r.restart(local, start)
	return r
}

// restart is a new daemon on the same spool.
func (r *rig) restart(local LocalChanges, start dtx.LSN) {
	r.T.Helper()
	log := slog.New(slog.NewTextHandler(&r.logs, nil))
	r.a = New(Options{Content: content, Spool: r.spool.Writer(content), LocalChanges: local, Logger: log})
	r.Restart(content, start, r.a)
}

// take returns the events since the last call, one a line.
func (r *rig) take() string {
	r.T.Helper()
	var b strings.Builder
	for _, ev := range r.Events {
		fmt.Fprintf(&b, "%s@%s", ev.Kind, ev.LSN)
		if ev.Kind == dtx.EventPart {
			p := ev.Part
			fmt.Fprintf(&b, " gxid=%d %s rows=%d barrier=%v %s", p.GXID, p.Kind, p.Rows, p.Barrier, strings.Join(feedtest.RowsOf(r.T, r.spool, p), " "))
		}
		if ev.Hold != 0 {
			b.WriteString(" held")
		}
		b.WriteString("\n")
	}
	r.Events = nil
	return b.String()
}

func (r *rig) expect(want string) {
	r.T.Helper()
	if d := cmp.Diff(strings.TrimLeft(want, "\n"), r.take()); d != "" {
		r.T.Error(d)
	}
}

func rel(id uint32, name, cols string) *pgoutput.Relation {
	out := &pgoutput.Relation{ID: id, Schema: "public", Name: name, Identity: 'd'}
	for _, c := range cols {
		out.Columns = append(out.Columns, pgoutput.Column{Name: string(c), TypeOID: 25, TypeMod: -1})
	}
	return out
}

func ins(xid dtx.XID, id uint32, vals ...string) []byte {
	var vs []pgoutput.Value
	for _, v := range vals {
		vs = append(vs, pgotest.Text(v))
	}
	return pgotest.Insert(xid, id, vs...)
}

func TestWholeTransactions(t *testing.T) {
	r := newRig(t, Stop, 0x10)
	r.Must(pgotest.Begin(0x20, 1, 7), pgotest.Relation(0, rel(1, "a", "xy")), feedtest.Part(0, 100, 'T'), ins(0, 1, "1", "2"), ins(0, 1, "3", "4"), pgotest.Commit(0x20, 0x28, 77))
	if p := r.Events[0].Part; p.CommitTime != 77 || p.Content != content || p.EndLSN != 0x28 || r.Events[0].Content != content {
		t.Errorf("part %+v", p)
	}
	r.expect("part@0/28 gxid=100 two-phase rows=2 barrier=false a(xy)I:1:2 a(xy)I:3:4\n")
	// A part without rows is still a part; without a name, it is a position.
	r.Must(pgotest.Begin(0x30, 1, 8), feedtest.Part(0, 101, 'O'), pgotest.Commit(0x30, 0x38, 1))
	r.Must(pgotest.Begin(0x40, 1, 9), pgotest.Commit(0x40, 0x48, 1))
	// The name may come anywhere in the transaction, and more than once.
	r.Must(pgotest.Begin(0x50, 1, 10), ins(0, 1, "5", "6"), feedtest.Part(0, 102, 'T'), feedtest.Part(0, 102, 'T'), pgotest.Commit(0x50, 0x58, 1))
	// TRUNCATE is a barrier. Origins, types and foreign messages mean nothing.
	r.Must(pgotest.Begin(0x60, 1, 11), []byte("O\x00\x00\x00\x00\x00\x00\x00\x00o\x00"), []byte("Y\x00\x00\x00\x01s\x00t\x00"), pgotest.Relation(0, rel(2, "b", "z")), feedtest.Part(0, 103, 'T'),
		pgotest.Truncate(0, 0, 1, 2), pgotest.Message(0, true, 5, "other", []byte("x")), ins(0, 2, "9"), pgotest.Commit(0x60, 0x68, 1))
	r.Must(pgotest.Message(0, false, 0x69, "other", nil))
	r.expect(`
part@0/38 gxid=101 one-phase rows=0 barrier=false 
position@0/48
part@0/58 gxid=102 two-phase rows=1 barrier=false a(xy)I:5:6
part@0/68 gxid=103 two-phase rows=2 barrier=true a(xy)b(z)T b(z)I:9
`)
	if r.Out.Reported() != 0x68 || !r.a.Quiet() {
		t.Errorf("reported %s, quiet %v", r.Out.Reported(), r.a.Quiet())
	}
	if n := r.a.n.rows.Load(); n != 5 {
		t.Errorf("%d rows counted", n)
	}
}

// TestSubtransactionRollback (field case 10): rolling a savepoint back drops its
// rows only, nested ones by their own aborts.
func TestSubtransactionRollback(t *testing.T) {
	r := newRig(t, Stop, 0)
	r.Must(pgotest.StreamStart(7, true), pgotest.Relation(7, rel(1, "a", "x")), ins(7, 1, "1"), ins(8, 1, "2"), ins(9, 1, "3"), pgotest.StreamStop())
	// Another transaction in between, streamed as well, and one sent whole.
	r.Must(pgotest.StreamStart(20, true), pgotest.Relation(20, rel(1, "a", "x")), ins(20, 1, "other"), pgotest.StreamStop())
	r.Must(pgotest.Begin(0x20, 1, 30), pgotest.Relation(0, rel(1, "a", "x")), feedtest.Part(0, 99, 'O'), ins(0, 1, "whole"), pgotest.Commit(0x20, 0x28, 1))
	r.Must(pgotest.StreamAbort(7, 9), pgotest.StreamStart(7, false), ins(10, 1, "4"), ins(7, 1, "5"), feedtest.Part(7, 100, 'T'), pgotest.StreamStop())
	r.Must(pgotest.StreamAbort(7, 8), pgotest.StreamAbort(20, 20), pgotest.StreamCommit(7, 0x30, 0x38, 1))
	r.expect(`
part@0/28 gxid=99 one-phase rows=1 barrier=false a(x)I:whole
part@0/38 gxid=100 two-phase rows=5 barrier=false a(x)I:1 a(x)I:4 a(x)I:5
`)
	if u := r.spool.Usage(); u.OpenTxns != 0 {
		t.Errorf("%d transactions stay open in the spool", u.OpenTxns)
	}
	// All rows rolled back, no name: nothing was changed.
	r.Must(pgotest.StreamStart(40, true), pgotest.Relation(40, rel(1, "a", "x")), ins(41, 1, "1"), ins(42, 1, "2"), ins(41, 1, "3"), pgotest.StreamStop(),
		pgotest.StreamAbort(40, 42), pgotest.StreamAbort(40, 41), pgotest.StreamCommit(40, 0x40, 0x48, 1))
	r.expect("position@0/48\n")
}

// TestUnaskedAborts (field case 11): aborts of transactions that were never
// streamed change nothing, between and inside others.
func TestUnaskedAborts(t *testing.T) {
	r := newRig(t, Stop, 0)
	r.Must(pgotest.StreamAbort(7, 7), pgotest.StreamAbort(7, 8), pgotest.Begin(0x20, 1, 7), pgotest.StreamAbort(9, 9), feedtest.Part(0, 1, 'O'), pgotest.Commit(0x20, 0x28, 1), pgotest.StreamAbort(7, 7))
	r.expect("part@0/28 gxid=1 one-phase rows=0 barrier=false \n")
}

// TestSchemas: a row is read with the schema it was sent under, whatever was
// sent to other transactions.
func TestSchemas(t *testing.T) {
	r := newRig(t, Stop, 0)
	r.Must(pgotest.Begin(0x10, 1, 1), pgotest.Relation(0, rel(1, "a", "x")), feedtest.Part(0, 1, 'O'), ins(0, 1, "1"), pgotest.Commit(0x10, 0x18, 1))
	// A streamed transaction adds a column to the table, and is not committed yet.
	r.Must(pgotest.StreamStart(7, true), pgotest.Relation(7, rel(1, "a", "x")), ins(7, 1, "2"), pgotest.Relation(7, rel(1, "a", "xy")), ins(7, 1, "3", "4"), pgotest.StreamStop())
	// Outside it, the old schema holds.
	r.Must(pgotest.Begin(0x20, 1, 2), feedtest.Part(0, 2, 'O'), ins(0, 1, "5"), pgotest.Commit(0x20, 0x28, 1))
	// Once it has committed, its schema holds without being sent again.
	r.Must(pgotest.StreamStart(7, false), ins(7, 1, "6", "7"), feedtest.Part(7, 3, 'O'), pgotest.StreamStop(), pgotest.StreamCommit(7, 0x30, 0x38, 1))
	r.Must(pgotest.Begin(0x40, 1, 3), feedtest.Part(0, 4, 'O'), ins(0, 1, "8", "9"), pgotest.Commit(0x40, 0x48, 1))
	r.expect(`
part@0/18 gxid=1 one-phase rows=1 barrier=false a(x)I:1
part@0/28 gxid=2 one-phase rows=1 barrier=false a(x)I:5
part@0/38 gxid=3 one-phase rows=3 barrier=false a(x)I:2 a(xy)I:3:4 a(xy)I:6:7
part@0/48 gxid=4 one-phase rows=1 barrier=false a(xy)I:8:9
`)
	// A schema sent outside after the streamed transaction got its own is newer:
	// the commit does not bring the older one back. That of a rolled back one is
	// never in force.
	r.Must(pgotest.StreamStart(8, true), pgotest.Relation(8, rel(1, "a", "xy")), ins(8, 1, "1", "2"), pgotest.StreamStop())
	r.Must(pgotest.StreamStart(9, true), pgotest.Relation(9, rel(1, "a", "q")), ins(9, 1, "1"), pgotest.StreamStop())
	r.Must(pgotest.Begin(0x50, 1, 4), pgotest.Relation(0, rel(1, "a", "xyz")), feedtest.Part(0, 5, 'O'), ins(0, 1, "1", "2", "3"), pgotest.Commit(0x50, 0x58, 1))
	r.Must(pgotest.StreamStart(8, false), feedtest.Part(8, 6, 'O'), pgotest.StreamStop(), pgotest.StreamCommit(8, 0x60, 0x68, 1), pgotest.StreamAbort(9, 9))
	r.Must(pgotest.Begin(0x70, 1, 5), feedtest.Part(0, 7, 'O'), ins(0, 1, "4", "5", "6"), pgotest.Commit(0x70, 0x78, 1))
	r.expect(`
part@0/58 gxid=5 one-phase rows=1 barrier=false a(xyz)I:1:2:3
part@0/68 gxid=6 one-phase rows=1 barrier=false a(xy)I:1:2
part@0/78 gxid=7 one-phase rows=1 barrier=false a(xyz)I:4:5:6
`)
	// A new session sends schemas anew; the old ones are void.
	r.Reset()
	err := r.Feed(pgotest.Begin(0x80, 1, 5), feedtest.Part(0, 8, 'O'), ins(0, 1, "4", "5", "6"))
	if err == nil || !strings.Contains(err.Error(), "schema was not sent") {
		t.Errorf("row without schema: %v", err)
	}
}

func prep(typ byte, lsn, end dtx.LSN, xid dtx.XID, gid string) []byte {
	return pgotest.Prepare(typ, lsn, end, 1, xid, gid)
}

func TestPrepared(t *testing.T) {
	r := newRig(t, Stop, 0)
	r.Must(prep('b', 0x20, 0x28, 7, "100"), pgotest.Relation(0, rel(1, "a", "x")), ins(0, 1, "1"), prep('P', 0x20, 0x28, 7, "100"))
	r.expect("hold@0/20 held\n")
	if r.Out.Reported() != 0x28 {
		t.Errorf("a new connection would start at %s: the server would send the prepared rows twice, or not go on behind them", r.Out.Reported())
	}
	// Streamed, then prepared; named by a message, which wins over the gid.
	r.Must(pgotest.StreamStart(8, true), pgotest.Relation(8, rel(2, "b", "y")), ins(8, 2, "2"), ins(9, 2, "3"), feedtest.Part(8, 55, 'T'), pgotest.StreamStop(),
		pgotest.StreamAbort(8, 9), prep('p', 0x30, 0x38, 8, "not a gxid"))
	r.Must(prep('b', 0x40, 0x48, 10, "1700-102"), prep('P', 0x40, 0x48, 10, "1700-102"))
	// A new connection: prepared ones stay, and come as outcomes only.
	r.Reset()
	r.Must(pgotest.RollbackPrepared(0x28, 0x58, 1, 2, 7, "100"), pgotest.CommitPrepared(0x60, 0x68, 1, 8, "not a gxid"))
	r.Must(pgotest.CommitPrepared(0x70, 0x78, 1, 10, "1700-102"))
	r.Must(pgotest.RollbackPrepared(0x8, 0x88, 1, 2, 7, "prepared long ago"))
	r.expect(`
hold@0/30 held
hold@0/40 held
unhold@0/58 held
part@0/68 gxid=55 two-phase rows=2 barrier=false b(y)I:2 held
part@0/78 gxid=7301444403302 two-phase rows=0 barrier=false  held
position@0/88
`)
	if n := r.a.n.open.Load(); n != 0 || r.spool.Usage().OpenTxns != 0 {
		t.Errorf("%d open, %d in the spool", n, r.spool.Usage().OpenTxns)
	}
}

// TestTableMadeAnew: a table that has taken the name of one that is replicated stops
// the stream at its first row, over connections; one whose transaction is rolled
// back, or whose rows are, does not.
func TestTableMadeAnew(t *testing.T) {
	row := func(xid dtx.XID, oid uint32) [][]byte {
		return [][]byte{pgotest.Relation(xid, rel(oid, "a", "x")), ins(xid, oid, "secret")}
	}
	whole := func(at dtx.LSN, gxid dtx.GXID, oid uint32) [][]byte {
		return append(append([][]byte{pgotest.Begin(at, 1, 7), feedtest.Part(0, gxid, 'O')}, row(0, oid)...), pgotest.Commit(at, at+8, 1))
	}
	stops := func(err error) {
		t.Helper()
		if err == nil || dtx.ClassOf(err) != dtx.ClassStop || strings.Contains(err.Error(), "secret") {
			t.Fatalf("%v", err)
		}
		for _, want := range []string{"table public.a", "gxid 9", "content 2", "OID was 1 and is 2"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q lacks %q", err, want)
			}
		}
	}
	r := newRig(t, Stop, 0)
	r.Must(whole(0x20, 8, 1)...)
	r.Must(pgotest.StreamStart(11, true), feedtest.Part(11, 10, 'T'))
	r.Must(row(11, 2)...)
	r.Must(pgotest.StreamStop(), pgotest.StreamAbort(11, 11))
	r.Reset()
	r.Must(whole(0x30, 8, 1)...)
	stops(r.Feed(whole(0x40, 9, 2)...))
	// A table that was never committed is not known.
	r = newRig(t, Stop, 0)
	r.Must(pgotest.StreamStart(11, true), feedtest.Part(11, 10, 'T'))
	r.Must(row(11, 2)...)
	r.Must(pgotest.StreamStop(), pgotest.StreamAbort(11, 11))
	r.Must(whole(0x20, 8, 1)...)
	// The subtransaction that did it was rolled back, or one of two was.
	r.Must(pgotest.StreamStart(12, true), feedtest.Part(12, 9, 'T'), pgotest.Relation(12, rel(2, "a", "x")), ins(13, 2, "secret"), ins(14, 2, "secret"),
		pgotest.StreamStop(), pgotest.StreamAbort(12, 13))
	stops(r.Feed(pgotest.StreamCommit(12, 0x30, 0x38, 1)))
	// Known from before.
	r = newRig(t, Stop, 0)
	r.a = New(Options{Content: content, Spool: r.spool.Writer(content), Tables: map[string]uint32{"public.a": 1}})
	r.Restart(content, 0, r.a)
	stops(r.Feed(whole(0x40, 9, 2)...))
	// A person let go of it, and took the new one.
	r = newRig(t, Stop, 0)
	r.a = New(Options{Content: content, Spool: r.spool.Writer(content), Tables: map[string]uint32{"public.a": 1}, Forgotten: map[uint32]bool{5: true}})
	r.Restart(content, 0, r.a)
	r.Must(whole(0x20, 7, 5)...)
	r.Must(whole(0x30, 8, 1)...)
	stops(r.Feed(whole(0x40, 9, 2)...))
}

// TestPreparedAlone: newer servers send PREPARE without a beginning when the
// transaction changed nothing.
func TestPreparedAlone(t *testing.T) {
	r := newRig(t, Stop, 0)
	r.Must(prep('P', 0x20, 0x28, 7, "100"), prep('P', 0x30, 0x38, 8, "somebody's"), prep('P', 0x40, 0x48, 9, "101"))
	r.Must(pgotest.CommitPrepared(0x50, 0x58, 1, 7, "100"), pgotest.CommitPrepared(0x60, 0x68, 1, 8, "somebody's"),
		pgotest.RollbackPrepared(0x48, 0x78, 1, 2, 9, "101"))
	r.expect(`
hold@0/20 held
position@0/38
hold@0/40 held
part@0/58 gxid=100 two-phase rows=0 barrier=false  held
position@0/68
unhold@0/78 held
`)
}

// TestPreparedBeforeTheSlot: a transaction that was prepared while the slot was
// made comes as a whole when it commits, with its PREPARE before the position
// that the stream began at. No position waits for it.
func TestPreparedBeforeTheSlot(t *testing.T) {
	r := newRig(t, Stop, 0x100)
	schema := pgotest.Relation(0, rel(1, "a", "x"))
	r.Must(prep('b', 0x20, 0x28, 7, "100"), schema, ins(0, 1, "1"), prep('P', 0x20, 0x28, 7, "100"), pgotest.CommitPrepared(0x150, 0x158, 1, 7, "100"))
	r.Must(prep('b', 0x30, 0x38, 8, "somebody's"), prep('P', 0x30, 0x38, 8, "somebody's"), pgotest.CommitPrepared(0x160, 0x168, 1, 8, "somebody's"))
	r.Must(prep('b', 0x40, 0x48, 9, "101"), ins(0, 1, "2"), prep('P', 0x40, 0x48, 9, "101"), pgotest.RollbackPrepared(0x48, 0x178, 1, 2, 9, "101"))
	r.expect(`
part@0/158 gxid=100 two-phase rows=1 barrier=false a(x)I:1
position@0/168
position@0/178
`)
	if u := r.spool.Usage(); u.OpenTxns != 0 {
		t.Errorf("%d open in the spool", u.OpenTxns)
	}
}

// TestGIDOfNobody (field case 16): an empty gid is an error with server version and
// content. One that names no dtx is somebody's own prepared transaction: with rows
// it is a local change once it commits, without rows it is nothing.
func TestGIDOfNobody(t *testing.T) {
	schema := pgotest.Relation(0, rel(1, "a", "x"))
	for _, local := range []LocalChanges{Stop, Ignore} {
		err := newRig(t, local, 0).Feed(prep('b', 0x20, 0x28, 7, ""), schema, ins(0, 1, "secret"), feedtest.Part(0, 9, 'T'), prep('P', 0x20, 0x28, 7, ""))
		if err == nil || dtx.ClassOf(err) != dtx.ClassStop || !strings.Contains(err.Error(), "15.99") || !strings.Contains(err.Error(), "content 2") {
			t.Errorf("empty gid: %v", err)
		}
	}
	for _, gid := range []string{"their own", "0", "1-", "0x12"} {
		prepared := [][]byte{prep('b', 0x20, 0x28, 7, gid), schema, ins(0, 1, "secret"), prep('P', 0x20, 0x28, 7, gid)}
		r := newRig(t, Stop, 0)
		r.Must(prepared...)
		err := r.Feed(pgotest.CommitPrepared(0x30, 0x38, 1, 7, gid))
		if err == nil || dtx.ClassOf(err) != dtx.ClassStop || strings.Contains(err.Error(), "secret") {
			t.Errorf("gid %q with rows commits: %v", gid, err)
			continue
		}
		for _, want := range []string{gid, "15.99", "content 2", "LSN 0/38", "public.a"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("gid %q: error %q lacks %q", gid, err, want)
			}
		}
		r = newRig(t, Stop, 0)
		r.Must(append(prepared, pgotest.RollbackPrepared(0x28, 0x38, 1, 2, 7, gid))...)
		r.expect("hold@0/20 held\nunhold@0/38 held\n")
		r = newRig(t, Ignore, 0)
		r.Must(append(prepared, pgotest.CommitPrepared(0x30, 0x38, 1, 7, gid))...)
		r.expect("hold@0/20 held\nunhold@0/38 held\n")
		if r.a.n.ignored.Load() != 1 {
			t.Error("not counted")
		}
		r = newRig(t, Stop, 0)
		r.Must(prep('b', 0x20, 0x28, 7, gid), prep('P', 0x20, 0x28, 7, gid), pgotest.CommitPrepared(0x30, 0x38, 1, 7, gid))
		r.expect("position@0/28\nposition@0/38\n")
	}
	r := newRig(t, Stop, 0)
	r.Must(prep('b', 0x20, 0x28, 7, "their own"), schema, ins(0, 1, "1"), feedtest.Part(0, 9, 'T'), prep('P', 0x20, 0x28, 7, "their own"),
		pgotest.CommitPrepared(0x30, 0x38, 1, 7, "their own"))
	r.expect("hold@0/20 held\npart@0/38 gxid=9 two-phase rows=1 barrier=false a(x)I:1 held\n")
}

func TestLocalChanges(t *testing.T) {
	local := func(n dtx.LSN) [][]byte {
		return [][]byte{pgotest.Begin(n, 1, 7), ins(0, 1, "secret-value"), ins(0, 2, "secret-value"), pgotest.Commit(n, n+8, 1)}
	}
	schemas := [][]byte{pgotest.Begin(0x10, 1, 1), pgotest.Relation(0, rel(1, "a", "x")), pgotest.Relation(0, rel(2, "b", "x")), pgotest.Commit(0x10, 0x18, 1)}
	r := newRig(t, Stop, 0)
	r.Must(schemas...)
	err := r.Feed(local(0x20)...)
	if err == nil || dtx.ClassOf(err) != dtx.ClassStop {
		t.Fatalf("local change: %v", err)
	}
	for _, want := range []string{"2 rows", "public.a, public.b", "LSN 0/28", "content 2", "local_changes: ignore"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("row value in %q", err)
	}
	r = newRig(t, Ignore, 0)
	r.Must(schemas...)
	for i := range dtx.LSN(50) {
		r.Must(local(0x20 + 0x10*i)...)
	}
	if got := r.take(); strings.Count(got, "position") != 51 || strings.Contains(got, "part") {
		t.Errorf("events %s", got)
	}
	if n := strings.Count(r.logs.String(), "\n"); n != 1 || r.a.n.ignored.Load() != 50 || strings.Contains(r.logs.String(), "secret") {
		t.Errorf("%d log lines, %d ignored: %s", n, r.a.n.ignored.Load(), r.logs.String())
	}
	if u := r.spool.Usage(); u.Parts != 0 || u.OpenTxns != 0 {
		t.Errorf("dropped rows stay in the spool: %+v", u)
	}
}

// TestFaultsWaitForTheCommit: a DDL message or a bad name stops the stream only if
// its transaction commits.
func TestFaultsWaitForTheCommit(t *testing.T) {
	ddl := pgotest.Message(7, true, 0x15, "pg_ddl_table", []byte("create table secret"))
	bad := pgotest.Message(7, true, 0x15, carrier.DefaultPartPrefix, []byte{9})
	for _, c := range []struct {
		name, want string
		msgs       [][]byte
	}{
		{"ddl", "pg_ddl_table", [][]byte{ddl, feedtest.Part(7, 8, 'T')}},
		{"bad name", "version 9", [][]byte{bad}},
		{"two names", "gxid 8 (two-phase) and gxid 9", [][]byte{feedtest.Part(7, 8, 'T'), feedtest.Part(7, 9, 'T')}},
	} {
		start := append(append([][]byte{pgotest.StreamStart(7, true)}, c.msgs...), pgotest.StreamStop())
		r := newRig(t, Stop, 0)
		r.Must(append(start, pgotest.StreamAbort(7, 7))...)
		r.Must(start...)
		err := r.Feed(pgotest.StreamCommit(7, 0x20, 0x28, 1))
		if err == nil || dtx.ClassOf(err) != dtx.ClassStop || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "content 2") ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for prefix, want := range map[string]string{"pg_ddl_x": "not supported", carrier.DefaultPartPrefix: "outside any transaction"} {
		body := carrier.AppendPart(nil, carrier.Identity{GXID: 1, Kind: 'T'})
		if err := newRig(t, Stop, 0).Feed(pgotest.Message(0, false, 0x20, prefix, body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s outside a transaction: %v", prefix, err)
		}
	}
}

// TestProtocolViolations (field case 12): messages out of place are errors that
// name content, LSN and kind; nothing panics.
func TestProtocolViolations(t *testing.T) {
	begin, open := pgotest.Begin(0x20, 1, 7), pgotest.StreamStart(7, true)
	r1 := pgotest.Relation(0, rel(1, "a", "x"))
	for name, msgs := range map[string][][]byte{
		"row outside":              {r1, ins(0, 1, "x")},
		"truncate outside":         {r1, pgotest.Truncate(0, 0, 1)},
		"row of unknown table":     {begin, ins(0, 1, "x")},
		"truncate of unknown":      {begin, r1, pgotest.Truncate(0, 0, 1, 2)},
		"streamed row, old schema": {begin, r1, pgotest.Commit(1, 2, 3), open, ins(7, 1, "x")},
		"begin in begin":           {begin, begin},
		"commit outside":           {pgotest.Commit(1, 2, 3)},
		"commit of prepared":       {prep('b', 1, 2, 7, "1"), pgotest.Commit(1, 2, 3)},
		"stream in begin":          {begin, open},
		"begin in stream":          {open, begin},
		"stream in stream":         {open, open},
		"first twice":              {open, pgotest.StreamStop(), open},
		"never first":              {pgotest.StreamStart(7, false)},
		"stop outside":             {pgotest.StreamStop()},
		"commit of no stream":      {pgotest.StreamCommit(7, 1, 2, 3)},
		"commit in stream":         {open, pgotest.StreamCommit(7, 1, 2, 3)},
		"prepare of another":       {prep('b', 1, 2, 7, "1"), prep('P', 1, 2, 7, "2")},
		"prepare in stream":        {open, prep('P', 1, 2, 7, "1")},
		"prepare of whole":         {begin, prep('P', 1, 2, 7, "1")},
		"stream prepare outside":   {prep('p', 1, 2, 7, "1")},
		"begin prepare in begin":   {begin, prep('b', 1, 2, 7, "1")},
		"prepared twice":           {prep('b', 1, 2, 7, "1"), prep('P', 1, 2, 7, "1"), prep('b', 3, 4, 7, "1"), prep('P', 3, 4, 7, "1")},
		"commit prepared in begin": {begin, pgotest.CommitPrepared(1, 2, 3, 7, "1")},
		"unknown kind":             {[]byte("Z123")},
		"empty":                    {{}},
		"malformed row":            {begin, []byte("I\x00")},
		"malformed relation":       {[]byte("R\x00")},
		"malformed begin":          {[]byte("B\x00")},
		"goes back":                {begin, feedtest.Part(0, 1, 'O'), pgotest.Commit(0x20, 0x28, 1), begin, feedtest.Part(0, 2, 'O'), pgotest.Commit(0x10, 0x18, 1)},
		"no position":              {begin, feedtest.Part(0, 1, 'O'), pgotest.Commit(0, 0, 1)},
	} {
		err := newRig(t, Stop, 0).Feed(msgs...)
		if err == nil || dtx.ClassOf(err) != dtx.ClassStop || !strings.Contains(err.Error(), "protocol violation") || !strings.Contains(err.Error(), "content 2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestManySubtransactions: what is kept of subtransactions is bounded.
func TestManySubtransactions(t *testing.T) {
	r := newRig(t, Stop, 0)
	r.Must(pgotest.StreamStart(1, true), pgotest.Relation(1, rel(1, "a", "x")))
	for i := range dtx.XID(maxSubs + 100) {
		r.Must(ins(100+i, 1, "v"))
	}
	tx := r.a.block
	r.Must(pgotest.StreamStop(), pgotest.StreamAbort(1, 100))
	if len(tx.subs) > maxSubs {
		t.Errorf("%d subtransactions are counted", len(tx.subs))
	}
	// Not known to be empty, so it counts as a change.
	if !tx.alive() {
		t.Error("taken for empty")
	}
}

// TestQuiet (field cases 1 and 3): a keepalive counts only between transactions
// that are sent whole. Those still being streamed commit later than it.
func TestQuiet(t *testing.T) {
	r := newRig(t, Stop, 0)
	for i, step := range []struct {
		msg   []byte
		quiet bool
	}{
		{pgotest.Begin(0x20, 1, 7), false},
		{feedtest.Part(0, 1, 'O'), false},
		{pgotest.Commit(0x20, 0x28, 1), true},
		{pgotest.StreamStart(8, true), false},
		{pgotest.StreamStop(), true},
		{prep('b', 0x30, 0x38, 9, "5"), false},
		{prep('P', 0x30, 0x38, 9, "5"), true},
	} {
		r.Must(step.msg)
		if r.a.Quiet() != step.quiet {
			t.Errorf("step %d: quiet is %v", i, r.a.Quiet())
		}
	}
}

// FuzzMessages: whatever a server sends, the assembler answers with events or an
// error, and leaves nothing open behind.
func FuzzMessages(f *testing.F) {
	f.Add(feedtest.Join(pgotest.Begin(0x20, 1, 7), pgotest.Relation(0, rel(1, "a", "x")), feedtest.Part(0, 3, 'T'), ins(0, 1, "v"), pgotest.Truncate(0, 0, 1), pgotest.Commit(0x20, 0x28, 1)))
	f.Add(feedtest.Join(pgotest.StreamStart(7, true), pgotest.Relation(7, rel(1, "a", "x")), ins(8, 1, "v"), pgotest.StreamStop(), pgotest.StreamAbort(7, 8), pgotest.StreamCommit(7, 0x20, 0x28, 1)))
	f.Add(feedtest.Join(prep('b', 1, 2, 4, "5"), pgotest.Relation(0, rel(1, "a", "x")), ins(0, 1, "v"), prep('P', 1, 2, 4, "5"), pgotest.CommitPrepared(3, 4, 5, 4, "5")))
	r := newRig(f, Ignore, 0)
	f.Fuzz(func(t *testing.T, b []byte) {
		r.T = t
		r.restart(Ignore, 0)
		r.Events = nil
		r.FeedJoined(b)
		for _, ev := range r.Events {
			if ev.Kind == dtx.EventPart {
				if err := r.spool.Release([]dtx.Part{ev.Part}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := r.a.Close(); err != nil {
			t.Fatal(err)
		}
		if u := r.spool.Usage(); u.OpenTxns != 0 || u.Parts != 0 {
			t.Fatalf("the spool keeps %+v", u)
		}
	})
}
