package store

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/pgoutput/pgotest"
)

// TestFormat pins every key and value of format version 1. When it fails, either
// the change was an accident, or formatVersion has to rise.
func TestFormat(t *testing.T) {
	ctx := context.Background()
	for _, mode := range []Mode{Applied, Spooled} {
		t.Run(mode.String(), func(t *testing.T) {
			s := openTest(t, Options{Mode: mode, tierBytes: -1, Subscription: "sub"})
			w := s.Writer(2)
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			r1, err := w.PutRelation(testRelation(7, "t", 1))
			must(err)
			r2, err := w.PutRelation(testRelation(7, "t", 2))
			must(err)

			a := w.Begin(false)
			must(a.Append(ctx, r1, pgotest.Insert(0, 7, pgotest.Text("a"))))
			must(a.Append(ctx, r2, pgotest.Delete(0, 7, 'K', pgotest.Text("a"), pgotest.Null())))
			must(a.AppendTruncate(ctx, []RelVersion{r2, r1}, pgotest.Truncate(0, 1, 7, 7)))
			_, err = a.Commit(ctx, dtx.Part{GXID: 99, Kind: dtx.TwoPhase, EndLSN: 0x1234, CommitTime: 5})
			must(err)
			b := w.Begin(true)
			must(b.Append(ctx, r1, pgotest.Insert(500, 7, pgotest.Text("b"))))
			b.AbortSub(501)
			b.AbortSub(500)
			must(b.Prepare(ctx))
			c := w.Begin(false)
			must(c.Append(ctx, r1, pgotest.Insert(0, 7, pgotest.Text("c"))))
			_, err = c.Commit(ctx, dtx.Part{GXID: 100, Kind: dtx.OnePhase, EndLSN: 0x1235})
			must(err)
			_, err = w.Begin(false).Commit(ctx, dtx.Part{GXID: 101, Kind: dtx.TwoPhase, EndLSN: 0x1236})
			must(err)
			d := w.Begin(true)
			must(d.Append(ctx, r1, pgotest.Insert(700, 7, pgotest.Text("d"))))
			d.AbortSub(701)
			_, err = d.Commit(ctx, dtx.Part{GXID: 102, Kind: dtx.TwoPhase, EndLSN: 0x1237})
			must(err)
			must(s.AppendRecord(ctx, dtx.CommitRecord{GXID: 99, Kind: dtx.TwoPhase, Participants: []dtx.Content{-1, 2}, CommitTime: 6, EndLSN: 0x77}))
			must(s.SavePosition(ctx, -1, 0x78))
			must(w.Close())

			var out strings.Builder
			marker, err := os.ReadFile(filepath.Join(s.opts.Dir, markerName))
			must(err)
			fmt.Fprintf(&out, "%s\n", marker)
			it, err := s.db.NewIter(&pebble.IterOptions{})
			must(err)
			for ok := it.First(); ok; ok = it.Next() {
				k, v := it.Key(), it.Value()
				fmt.Fprintf(&out, "%c %s\n%s", k[0], hex.EncodeToString(k[1:]), hex.Dump(v))
			}
			must(it.Close())
			golden(t, filepath.Join("testdata", "format_"+mode.String()), out.String())
		})
	}
}

// golden compares with a file; CBREPL_REWRITE=1 writes it.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if os.Getenv("CBREPL_REWRITE") != "" {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("%s differs; got:\n%s", path, got)
	}
}

// TestScripts runs the scripts in testdata/scripts; see the commands in run.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, filepath.Join("testdata", "scripts"), func(t *testing.T, path string) {
		sc := &script{t: t, ctx: context.Background(), disk: vfs.NewCrashableMem(), txns: map[string]*Txn{}, parts: map[string]dtx.Part{}}
		defer func() {
			if sc.s != nil {
				_ = sc.s.Close()
			}
		}()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			sc.t = t
			return sc.run(d)
		})
	})
}

// script drives a spool by commands.
type script struct {
	t     *testing.T
	ctx   context.Context
	disk  *vfs.MemFS
	o     Options
	s     *Spool
	w     map[dtx.Content]*Writer
	rels  map[string]RelVersion
	txns  map[string]*Txn
	parts map[string]dtx.Part
	next  dtx.LSN
}

func (sc *script) run(d *datadriven.TestData) string {
	arg := func(name string, def int) int {
		v := def
		d.MaybeScanArgs(sc.t, name, &v)
		return v
	}
	str := func(name, def string) string {
		v := def
		d.MaybeScanArgs(sc.t, name, &v)
		return v
	}
	name := ""
	if len(d.CmdArgs) > 0 && len(d.CmdArgs[0].Vals) == 0 {
		name = d.CmdArgs[0].Key
	}
	var err error
	out := ""
	switch d.Cmd {
	case "open": // open mode=applied|spooled max-bytes= tier=
		sc.o = Options{
			Dir: "spool", Subscription: str("subscription", "s"), MemBytes: minMemBytes, FS: sc.disk,
			MaxBytes: int64(arg("max-bytes", 1<<20)), MaxParts: arg("max-parts", 1000), tierBytes: int64(arg("tier", 0)),
		}
		if str("mode", "applied") == "spooled" {
			sc.o.Mode = Spooled
		}
		out, err = sc.open()
	case "close":
		err = sc.s.Close()
	case "crash": // the power goes; nothing that was not synced is left
		sc.disk = sc.disk.CrashClone(vfs.CrashCloneCfg{})
		_ = sc.s.Close()
		sc.o.FS = sc.disk
		out, err = sc.open()
	case "relation": // relation NAME content= id= columns=
		var v RelVersion
		v, err = sc.writer(arg("content", 0)).PutRelation(testRelation(uint32(arg("id", 7)), str("table", "t"), arg("columns", 1)))
		sc.rels[name] = v
		out = fmt.Sprintf("version %d\n", v)
	case "begin": // begin NAME content= streamed=
		sc.txns[name] = sc.writer(arg("content", 0)).Begin(str("streamed", "false") == "true")
		n, off := splitID(sc.txns[name].ID())
		out = fmt.Sprintf("chain %d offset %d\n", n, off)
	case "insert": // insert NAME rel= id= xid= rows= size=
		n, size, first := arg("rows", 1), arg("size", 4), arg("first", 0)
		columns := arg("columns", 1)
		for i := range n {
			row := pgotest.Insert(dtx.XID(arg("xid", 0)), uint32(arg("id", 7)), texts(value(first+i, size), columns)...)
			if err = sc.txns[name].Append(sc.ctx, sc.rels[str("rel", "r")], row); err != nil {
				break
			}
		}
	case "truncate": // truncate NAME rel= id=
		err = sc.txns[name].AppendTruncate(sc.ctx, []RelVersion{sc.rels[str("rel", "r")]}, pgotest.Truncate(dtx.XID(arg("xid", 0)), 0, uint32(arg("id", 7))))
	case "abort": // abort NAME xid=
		sc.txns[name].AbortSub(dtx.XID(arg("xid", 0)))
	case "commit", "commit-nosync": // commit NAME gxid=; commit syncs
		sc.next++
		p := dtx.Part{GXID: dtx.GXID(arg("gxid", 1)), Kind: dtx.TwoPhase, EndLSN: sc.next}
		if p, err = sc.txns[name].Commit(sc.ctx, p); err == nil && d.Cmd == "commit" {
			err = sc.s.Sync(sc.ctx)
		}
		if err == nil {
			sc.parts[name] = p
			out = fmt.Sprintf("rows %d bytes %d barrier %v spooled %v\n", p.Rows, p.Bytes, p.Barrier, p.Spool != 0)
		}
	case "prepare": // prepare NAME
		err = sc.txns[name].Prepare(sc.ctx)
	case "drop":
		err = sc.txns[name].Drop()
	case "sync":
		err = sc.s.Sync(sc.ctx)
	case "read": // read NAME
		out, err = sc.read(sc.parts[name])
	case "release": // release NAME...
		var ps []dtx.Part
		for _, a := range d.CmdArgs {
			ps = append(ps, sc.parts[a.Key])
		}
		err = sc.s.Release(ps)
	case "exempt": // exempt CONTENT...
		var cs []dtx.Content
		for _, a := range d.CmdArgs {
			var c int
			_, _ = fmt.Sscan(a.Key, &c)
			cs = append(cs, dtx.Content(c))
		}
		sc.s.SetExempt(cs)
	case "wait": // wait content=: whether its writer may go on
		ctx, cancel := context.WithCancel(sc.ctx)
		cancel()
		out = "goes on\n"
		if sc.writer(arg("content", 0)).Wait(ctx) != nil {
			out = "waits\n"
		}
	case "record": // record gxid= lsn=
		err = sc.s.AppendRecord(sc.ctx, dtx.CommitRecord{GXID: dtx.GXID(arg("gxid", 1)), Kind: dtx.TwoPhase, EndLSN: dtx.LSN(arg("lsn", 1)), Participants: []dtx.Content{0}})
	case "release-records": // release-records lsn=
		err = sc.s.ReleaseRecords(sc.ctx, dtx.LSN(arg("lsn", 1)))
	case "position": // position content= lsn=
		err = sc.s.SavePosition(sc.ctx, dtx.Content(arg("content", 0)), dtx.LSN(arg("lsn", 1)))
	case "usage":
		u := sc.s.Usage()
		out = fmt.Sprintf("bytes %d parts %d open %d full %v\n", u.Bytes, u.Parts, u.OpenTxns, !u.FullSince.IsZero())
		for _, c := range u.Contents {
			out += fmt.Sprintf("  content %d: bytes %d parts %d open %d exempt %v\n", c.Content, c.Bytes, c.Parts, c.OpenTxns, c.Exempt)
		}
	default:
		sc.t.Fatalf("unknown command %s", d.Cmd)
	}
	if err != nil {
		out += "error: " + err.Error() + "\n"
	}
	if out == "" {
		return "ok\n"
	}
	return out
}

func texts(first string, columns int) (row []pgoutput.Value) {
	row = append(row, pgotest.Text(first))
	for len(row) < columns {
		row = append(row, pgotest.Null())
	}
	return row
}

func (sc *script) writer(c int) *Writer {
	w := sc.w[dtx.Content(c)]
	if w == nil {
		w = sc.s.Writer(dtx.Content(c))
		sc.w[dtx.Content(c)] = w
	}
	return w
}

// open opens the spool and prints what it held.
func (sc *script) open() (string, error) {
	sc.w, sc.rels = map[dtx.Content]*Writer{}, map[string]RelVersion{}
	s, err := Open(sc.ctx, sc.o)
	if err != nil {
		return "", err
	}
	sc.s = s
	r, err := s.Recover(sc.ctx)
	out := ""
	for c := dtx.Content(-1); c < 10; c++ {
		for _, p := range r.Parts[c] {
			out += fmt.Sprintf("part content %d gxid %d LSN %s rows %d spooled %v\n", c, p.GXID, p.EndLSN, p.Rows, p.Spool != 0)
		}
	}
	for _, rec := range r.Records {
		out += fmt.Sprintf("record gxid %d LSN %s\n", rec.GXID, rec.EndLSN)
	}
	for _, p := range r.Positions {
		out += fmt.Sprintf("position %s\n", p)
	}
	return out, err
}

// read prints a part, runs of rows of one kind drawn together.
func (sc *script) read(p dtx.Part) (string, error) {
	r, err := sc.s.Open(p)
	if err != nil {
		return "", err
	}
	defer func() { _ = r.Close() }()
	var out, last string
	n, total := 0, 0
	flush := func() {
		if n > 0 {
			out += fmt.Sprintf("%d x %s\n", n, last)
		}
		n = 0
	}
	for {
		c, err := r.Next()
		if err != nil {
			flush()
			out += fmt.Sprintf("%d rows\n", total)
			if err.Error() == "EOF" {
				err = nil
			}
			return out, err
		}
		total++
		line := fmt.Sprintf("%c", c.Type)
		if c.Relation != nil {
			line += fmt.Sprintf(" %s of %d columns", c.Relation, len(c.Relation.Columns))
		}
		for _, rel := range c.Relations {
			line += fmt.Sprintf(" %s", rel)
		}
		if c.XID != 0 {
			line += fmt.Sprintf(" xid %d", c.XID)
		}
		if line != last {
			flush()
			last = line
		}
		n++
	}
}
