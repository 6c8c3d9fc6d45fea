package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"cbrepl/dtx"
	"cbrepl/internal/soak"
	"cbrepl/pgoutput"
	"cbrepl/pgoutput/pgotest"
)

// The model: what a spool should hold, kept in plain slices.

// wantRow is a change as it must be read back.
type wantRow struct {
	typ   byte
	xid   dtx.XID
	id    int      // the value's number
	size  int      // the value's length
	width []int    // columns of the relation versions in force
	names []string // and their names
}

func value(id, size int) string {
	s := fmt.Sprintf("%d:", id)
	return s + strings.Repeat(string(rune('a'+id%26)), max(0, size-len(s)))
}

// check compares a change with what was written.
func (w wantRow) check(c *pgoutput.Change) error {
	if c.Type != w.typ || c.XID != w.xid {
		return fmt.Errorf("read %q of xid %d, want %q of %d", c.Type, c.XID, w.typ, w.xid)
	}
	rels := c.Relations
	if c.Relation != nil {
		rels = append(rels, c.Relation)
	}
	if len(rels) != len(w.names) {
		return fmt.Errorf("%d relations, want %d", len(rels), len(w.names))
	}
	for i, r := range rels {
		if r.Name != w.names[i] || len(r.Columns) != w.width[i] {
			return fmt.Errorf("relation %s of %d columns, want %s of %d", r, len(r.Columns), w.names[i], w.width[i])
		}
	}
	if w.typ == pgoutput.TypeTruncate {
		return nil
	}
	tuple := c.New
	if w.typ == pgoutput.TypeDelete {
		tuple = c.Old
	}
	vs := tuple.Append(nil)
	if len(vs) != w.width[0] {
		return fmt.Errorf("%d values, want %d", len(vs), w.width[0])
	}
	if want := value(w.id, w.size); string(vs[0].Data) != want {
		return fmt.Errorf("value %.20q of %d bytes, want %.20q of %d", vs[0].Data, len(vs[0].Data), want, len(want))
	}
	return nil
}

type modelTxn struct {
	tx       *Txn
	content  dtx.Content
	streamed bool
	top      dtx.XID
	rows     []wantRow
	aborted  map[dtx.XID]bool
	subs     []dtx.XID
	barrier  bool

	part dtx.Part
	seq  int // order of acknowledgement
}

// want lists the rows that must be read.
func (m *modelTxn) want() []wantRow {
	return slices.DeleteFunc(slices.Clone(m.rows), func(r wantRow) bool { return m.streamed && m.aborted[r.xid] })
}

type modelRel struct {
	id      uint32
	name    string
	columns int
	v       RelVersion
}

type model struct {
	t    *rapid.T
	ctx  context.Context
	opts Options
	mem  *vfs.MemFS
	s    *Spool

	contents []dtx.Content
	writers  map[dtx.Content]*Writer
	rels     map[dtx.Content][]modelRel
	open     []*modelTxn
	prepared []*modelTxn
	parts    []*modelTxn             // committed, unreleased, in order of commit
	gone     []*modelTxn             // released
	resent   map[dtx.LSN][]*modelTxn // parts given up at a restart and spooled again
	records  []dtx.CommitRecord
	recSeq   []int
	recLow   dtx.LSN // released up to here

	seq, durable int // writes acknowledged, and those of them that were synced
	nextID       int
	nextXID      dtx.XID
	nextLSN      dtx.LSN
	lastID       dtx.SpoolID
}

func newModel(t *rapid.T, o Options) *model {
	m := &model{t: t, ctx: context.Background(), opts: o, contents: []dtx.Content{-1, 0, 7}[:rapid.IntRange(1, 3).Draw(t, "contents")], nextXID: 10}
	m.mem, m.resent = vfs.NewCrashableMem(), map[dtx.LSN][]*modelTxn{}
	m.opts.Dir, m.opts.Subscription, m.opts.FS = "spool", "model", m.mem
	m.start()
	return m
}

func (m *model) check(err error) {
	if err != nil {
		m.t.Fatalf("%v", err)
	}
}

func (m *model) start() {
	s, err := Open(m.ctx, m.opts)
	m.check(err)
	m.s = s
	m.writers = map[dtx.Content]*Writer{}
	m.rels = map[dtx.Content][]modelRel{}
	for _, c := range m.contents {
		m.writers[c] = s.Writer(c)
		for i := range 3 {
			m.rels[c] = append(m.rels[c], modelRel{id: uint32(100 + i), name: fmt.Sprintf("t%d", i)})
			m.alter(c, i, 1+i)
		}
	}
}

// alter announces relation i of c with a number of columns.
func (m *model) alter(c dtx.Content, i, columns int) {
	r := &m.rels[c][i]
	r.columns = columns
	rel := &pgoutput.Relation{ID: r.id, Schema: "public", Name: r.name, Identity: 'd'}
	for j := range columns {
		rel.Columns = append(rel.Columns, pgoutput.Column{Key: j == 0, Name: fmt.Sprintf("c%d", j), TypeOID: 25, TypeMod: -1})
	}
	v, err := m.writers[c].PutRelation(pgotest.Relation(0, rel)[1:])
	m.check(err)
	r.v = v
}

func (m *model) anyContent() dtx.Content { return rapid.SampledFrom(m.contents).Draw(m.t, "content") }

func (m *model) begin(*rapid.T) {
	if len(m.open) >= 12 {
		m.t.Skip()
	}
	c := m.anyContent()
	x := &modelTxn{content: c, aborted: map[dtx.XID]bool{}, streamed: rapid.Bool().Draw(m.t, "streamed")}
	x.tx = m.writers[c].Begin(x.streamed)
	if x.tx.ID() == 0 || x.tx.ID() == m.lastID {
		m.t.Fatalf("id %d given twice", x.tx.ID())
	}
	m.lastID = x.tx.ID()
	if x.streamed {
		x.top = m.nextXID
		m.nextXID++
	}
	m.open = append(m.open, x)
}

func pick[T any](m *model, label string, xs []T) (T, int) {
	if len(xs) == 0 {
		m.t.Skip()
	}
	i := rapid.IntRange(0, len(xs)-1).Draw(m.t, label)
	return xs[i], i
}

func (m *model) rows(*rapid.T) {
	x, _ := pick(m, "txn", m.open)
	n := rapid.IntRange(1, 60).Draw(m.t, "rows")
	size := rapid.SampledFrom([]int{1, 30, 100, 1000, maxWhole - 30, maxWhole, maxWhole + 1, blockSize - 40, blockSize + 1, 3 * blockSize}).Draw(m.t, "size")
	if size > 1000 {
		n = n%3 + 1
	}
	xid := x.top
	if x.streamed && rapid.Bool().Draw(m.t, "sub") {
		xid = m.nextXID
		m.nextXID++
		x.subs = append(x.subs, xid)
	}
	m.insert(x, xid, n, size)
}

// insert appends n rows of several relations to x.
func (m *model) insert(x *modelTxn, xid dtx.XID, n, size int) {
	rels := m.rels[x.content]
	for i := range n {
		r := rels[(m.nextID+i/7)%len(rels)]
		w := wantRow{xid: xid, id: m.nextID, size: size, names: []string{r.name}, width: []int{r.columns}}
		m.nextID++
		row := []pgoutput.Value{pgotest.Text(value(w.id, w.size))}
		for len(row) < r.columns {
			row = append(row, pgotest.Null())
		}
		var msg []byte
		switch w.id % 3 {
		case 0:
			w.typ, msg = pgoutput.TypeInsert, pgotest.Insert(xid, r.id, row...)
		case 1:
			w.typ, msg = pgoutput.TypeUpdate, pgotest.Update(xid, r.id, 'K', row, row)
		case 2:
			w.typ, msg = pgoutput.TypeDelete, pgotest.Delete(xid, r.id, 'K', row...)
		}
		m.check(x.tx.Append(m.ctx, r.v, msg))
		x.rows = append(x.rows, w)
	}
}

func (m *model) truncate(*rapid.T) {
	x, _ := pick(m, "txn", m.open)
	w := wantRow{typ: pgoutput.TypeTruncate, xid: x.top}
	var vs []RelVersion
	var ids []uint32
	for _, r := range m.rels[x.content][:rapid.IntRange(1, 3).Draw(m.t, "relations")] {
		w.names, w.width = append(w.names, r.name), append(w.width, r.columns)
		vs, ids = append(vs, r.v), append(ids, r.id)
	}
	m.check(x.tx.AppendTruncate(m.ctx, vs, pgotest.Truncate(x.top, 0, ids...)))
	x.rows, x.barrier = append(x.rows, w), true
}

func (m *model) abortSub(*rapid.T) {
	x, _ := pick(m, "txn", m.open)
	if len(x.subs) == 0 {
		m.t.Skip()
	}
	xid, i := pick(m, "sub", x.subs)
	x.subs = slices.Delete(x.subs, i, i+1)
	x.tx.AbortSub(xid)
	x.aborted[xid] = true
}

func (m *model) change(*rapid.T) {
	m.alter(m.anyContent(), rapid.IntRange(0, 2).Draw(m.t, "relation"), rapid.IntRange(1, 4).Draw(m.t, "columns"))
}

// acked numbers a write; a synced one makes all before it durable.
func (m *model) acked(synced bool) int {
	m.seq++
	if synced {
		m.durable = m.seq
	}
	return m.seq
}

func (m *model) commitTxn(x *modelTxn) {
	m.nextLSN++
	m.commitAt(x, m.nextLSN)
}

func (m *model) commitAt(x *modelTxn, lsn dtx.LSN) {
	p := dtx.Part{GXID: dtx.GXID(lsn), Kind: dtx.TwoPhase, EndLSN: lsn, CommitTime: dtx.PGTime(lsn)}
	synced := rapid.Bool().Draw(m.t, "synced")
	p, err := x.tx.Commit(m.ctx, p)
	if synced && err == nil {
		err = m.s.Sync(m.ctx)
	}
	m.check(err)
	if p.Rows != int64(len(x.rows)) || (p.Spool == 0) != (len(x.rows) == 0) || p.Barrier != x.barrier || p.Content != x.content {
		m.t.Fatalf("part %+v of %d rows", p, len(x.rows))
	}
	x.part, x.seq = p, m.acked(synced)
	m.parts = append(m.parts, x)
}

func (m *model) commit(*rapid.T) {
	x, i := pick(m, "txn", m.open)
	m.open = slices.Delete(m.open, i, i+1)
	m.commitTxn(x)
}

func (m *model) prepare(*rapid.T) {
	x, i := pick(m, "txn", m.open)
	m.open = slices.Delete(m.open, i, i+1)
	m.check(x.tx.Prepare(m.ctx))
	m.prepared = append(m.prepared, x)
}

func (m *model) commitPrepared(*rapid.T) {
	x, i := pick(m, "prepared", m.prepared)
	m.prepared = slices.Delete(m.prepared, i, i+1)
	m.commitTxn(x)
}

func (m *model) drop(*rapid.T) {
	x, i := pick(m, "txn", m.open)
	m.open = slices.Delete(m.open, i, i+1)
	m.check(x.tx.Drop())
}

func (m *model) dropPrepared(*rapid.T) {
	x, i := pick(m, "prepared", m.prepared)
	m.prepared = slices.Delete(m.prepared, i, i+1)
	m.check(x.tx.Drop())
}

func (m *model) record(*rapid.T) {
	m.nextLSN++
	r := dtx.CommitRecord{GXID: dtx.GXID(m.nextLSN), Kind: dtx.OnePhase, EndLSN: m.nextLSN, CommitTime: 5, Participants: []dtx.Content{-1, 3}}
	m.check(m.s.AppendRecord(m.ctx, r))
	m.records, m.recSeq = append(m.records, r), append(m.recSeq, m.acked(false))
}

func (m *model) releaseRecords(*rapid.T) {
	_, i := pick(m, "record", m.records)
	m.recLow = m.records[i].EndLSN
	m.check(m.s.ReleaseRecords(m.ctx, m.recLow))
	m.records, m.recSeq = m.records[i+1:], m.recSeq[i+1:]
}

func (m *model) sync(*rapid.T) {
	m.check(m.s.Sync(m.ctx))
	m.durable = m.seq
}

// readPart compares what a part reads as with what was written.
func readPart(s *Spool, x *modelTxn) error {
	r, err := s.Open(x.part)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	for i, w := range x.want() {
		c, err := r.Next()
		if err == nil {
			err = w.check(c)
		}
		if err != nil {
			return fmt.Errorf("part %+v row %d: %w", x.part, i, err)
		}
	}
	if c, err := r.Next(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("part %+v: read %v, %w behind its end", x.part, c, err)
	}
	return r.Close()
}

func (m *model) read(*rapid.T) {
	x, _ := pick(m, "part", m.parts)
	m.check(readPart(m.s, x))
}

// readTwo reads two parts in turns.
func (m *model) readTwo(*rapid.T) {
	a, _ := pick(m, "part", m.parts)
	b, _ := pick(m, "other", m.parts)
	var rs [2]PartReader
	ws := [2][]wantRow{a.want(), b.want()}
	for i, x := range []*modelTxn{a, b} {
		r, err := m.s.Open(x.part)
		m.check(err)
		rs[i] = r
	}
	for n := 0; n < max(len(ws[0]), len(ws[1])); n++ {
		for i := range rs {
			if n < len(ws[i]) {
				c, err := rs[i].Next()
				m.check(err)
				m.check(ws[i][n].check(c))
			}
		}
	}
	m.check(errors.Join(rs[0].Close(), rs[1].Close()))
}

func (m *model) release(*rapid.T) {
	n := rapid.IntRange(1, 6).Draw(m.t, "n")
	var ps []dtx.Part
	for range n {
		if len(m.parts) == 0 {
			break
		}
		x, i := pick(m, "part", m.parts)
		m.parts = slices.Delete(m.parts, i, i+1)
		m.gone = append(m.gone, x)
		ps = append(ps, x.part)
		if rapid.IntRange(0, 3).Draw(m.t, "twice") == 0 {
			ps = append(ps, x.part)
		}
	}
	m.check(m.s.Release(ps))
}

func (m *model) releaseOldest(*rapid.T) {
	n := len(m.parts) / 2
	var ps []dtx.Part
	for _, x := range m.parts[:n] {
		ps = append(ps, x.part)
	}
	m.gone = append(m.gone, m.parts[:n]...)
	m.parts = slices.Delete(m.parts, 0, n)
	m.check(m.s.Release(ps))
}

// usage checks the accounts against the model.
func (m *model) usage(*rapid.T) {
	u := m.s.Usage()
	parts, bytes := 0, int64(0)
	for _, x := range m.parts {
		if len(x.rows) > 0 {
			parts++
			bytes += x.part.Bytes
		}
	}
	if u.Parts != parts || u.OpenTxns != len(m.open)+len(m.prepared) || u.Bytes < bytes {
		m.t.Fatalf("usage %+v; want %d parts, %d open, at least %d bytes", u, parts, len(m.open)+len(m.prepared), bytes)
	}
	sum := int64(0)
	for _, c := range u.Contents {
		sum += c.Bytes
	}
	if sum != u.Bytes {
		m.t.Fatalf("contents hold %d bytes of %d", sum, u.Bytes)
	}
}

// end checks that the accounts come to nothing when nothing is left.
func (m *model) end() {
	for _, x := range m.parts {
		m.check(readPart(m.s, x))
		m.check(m.s.Release([]dtx.Part{x.part}))
	}
	for _, x := range m.gone {
		if x.part.Spool != 0 {
			if _, err := m.s.Open(x.part); !errors.Is(err, errNotSpooled) {
				m.t.Fatalf("released part opens: %v", err)
			}
		}
	}
	for _, x := range m.prepared {
		m.check(x.tx.Drop())
	}
	for _, w := range m.writers {
		m.check(w.Close())
	}
	u := m.s.Usage()
	if u.Bytes != 0 || u.MemBytes != 0 || u.Parts != 0 || u.OpenTxns != 0 {
		m.t.Fatalf("usage of nothing: %+v", u)
	}
	m.check(m.s.reclaim(m.ctx, 0))
	for _, l := range m.s.allLanes() {
		for k := range l.order {
			if n := len(l.order[k].list); n != 0 {
				m.t.Fatalf("%d dead chains are remembered", n)
			}
		}
	}
	if d := m.s.deadDisk.Load(); d != 0 {
		m.t.Fatalf("%d dead bytes are left", d)
	}
	for _, p := range []byte{prefixData, prefixPart, prefixEmpty} {
		m.check(m.s.scan(m.ctx, p, func(k, _ []byte) error { return fmt.Errorf("key %q is left", k) }))
	}
	m.check(m.s.Close())
}

func (m *model) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"begin": m.begin, "rows": m.rows, "more rows": m.rows, "truncate": m.truncate, "abort": m.abortSub,
		"abort more": m.abortSub, "begin more": m.begin,
		"change": m.change, "commit": m.commit, "prepare": m.prepare, "commit prepared": m.commitPrepared,
		"drop": m.drop, "drop prepared": m.dropPrepared, "record": m.record, "release records": m.releaseRecords, "sync": m.sync, "read": m.read,
		"read two": m.readTwo, "release": m.release, "release oldest": m.releaseOldest, "": m.usage,
	}
}

func modelOptions(t *rapid.T, mode Mode) Options {
	return Options{
		Mode:          mode,
		MemBytes:      minMemBytes,
		tierBytes:     rapid.SampledFrom([]int64{-1, 3 * blockSize, 4 << 20}).Draw(t, "tier"),
		memtableBytes: rapid.SampledFrom([]int64{256 << 10, 1 << 20}).Draw(t, "memtable"),
		deleteCount:   rapid.SampledFrom([]int{1, 4, 1000}).Draw(t, "count"),
		deleteBytes:   rapid.SampledFrom([]int64{1, 100 << 10, 10 << 20}).Draw(t, "delete"),
	}
}

// TestModelApplied compares the spool as a cache with the model.
func TestModelApplied(t *testing.T) {
	soak.Check(t, 100, 5000, func(t *rapid.T) {
		m := newModel(t, modelOptions(t, Applied))
		t.Repeat(m.actions())
		m.end()
	})
}

// TestModelSpooled adds restarts: clean ones, which keep all that was
// acknowledged, and power cuts, which keep all that was synced and nothing half.
func TestModelSpooled(t *testing.T) {
	soak.Check(t, 100, 5000, func(t *rapid.T) {
		m := newModel(t, modelOptions(t, Spooled))
		a := m.actions()
		a["restart"] = func(*rapid.T) {
			m.sync(nil)
			for _, w := range m.writers {
				m.check(w.Close())
			}
			m.check(m.s.Close())
			m.restart()
		}
		a["power cut"] = func(t *rapid.T) {
			seed := rapid.Uint64().Draw(t, "seed")
			clone := m.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: int(seed % 101), RNG: rand.New(rand.NewPCG(seed, 1))})
			_ = m.s.Close() // on the disk that is gone
			m.mem, m.opts.FS = clone, clone
			m.restart()
			if len(m.parts) > 0 && rapid.Bool().Draw(t, "resend") {
				m.resend(rapid.IntRange(0, len(m.parts)-1).Draw(t, "from"))
			}
		}
		t.Repeat(a)
		m.end()
	})
}

// resend gives the parts from the i-th on up and spools parts of the same LSNs
// again, as a stream does whose saved position is before them.
func (m *model) resend(i int) {
	old := slices.Clone(m.parts[i:])
	m.parts = m.parts[:i]
	var ps []dtx.Part
	for _, x := range old {
		ps = append(ps, x.part)
		m.resent[x.part.EndLSN] = append(m.resent[x.part.EndLSN], x)
	}
	m.check(m.s.Release(ps))
	for _, x := range old {
		y := &modelTxn{content: x.content, aborted: map[dtx.XID]bool{}, tx: m.writers[x.content].Begin(false)}
		m.open = append(m.open, y)
		if len(x.rows) > 0 {
			m.insert(y, 0, 1+len(x.rows)%3, 50)
		}
		m.open = m.open[:len(m.open)-1]
		m.commitAt(y, x.part.EndLSN)
	}
}

// restart opens the spool again and compares what it lists with the model.
func (m *model) restart() {
	m.start()
	r, err := m.s.Recover(m.ctx)
	m.check(err)
	m.open, m.prepared = nil, nil

	known := map[dtx.LSN]*modelTxn{}
	for _, x := range slices.Concat(m.gone, m.parts) {
		known[x.part.EndLSN] = x
	}
	released := map[dtx.LSN]bool{}
	for _, x := range m.gone {
		released[x.part.EndLSN] = true
	}
	listed := map[dtx.LSN]bool{}
	newest := m.durable
	var parts []*modelTxn
	for c, ps := range r.Parts {
		for i, p := range ps {
			x := known[p.EndLSN]
			if x != nil && x.part != p && x.seq > m.durable {
				for _, o := range m.resent[p.EndLSN] { // it may be the former one
					if o.part == p {
						x = o
					}
				}
			}
			if x == nil || x.part != p || p.Content != c {
				m.t.Fatalf("recovered part %+v, want %+v", p, x)
			}
			if i > 0 && ps[i-1].EndLSN >= p.EndLSN {
				m.t.Fatalf("recovered parts of content %d out of order", c)
			}
			listed[p.EndLSN] = true
			newest = max(newest, x.seq)
			m.check(readPart(m.s, x))
			parts = append(parts, x)
		}
	}
	// Writes reach the disk in order: all before the newest one found are there.
	for _, x := range known {
		if !listed[x.part.EndLSN] && !released[x.part.EndLSN] && x.seq <= newest {
			m.t.Fatalf("part %+v (write %d of %d durable, %d found) is lost", x.part, x.seq, m.durable, newest)
		}
	}
	var gone []*modelTxn
	for _, x := range m.gone {
		if !listed[x.part.EndLSN] {
			gone = append(gone, x)
		}
	}
	m.parts, m.gone = parts, gone
	slices.SortFunc(m.parts, func(a, b *modelTxn) int { return int(a.part.EndLSN) - int(b.part.EndLSN) })

	r.Records = slices.DeleteFunc(r.Records, func(r dtx.CommitRecord) bool { return r.EndLSN <= m.recLow })
	for i, rec := range r.Records {
		if i >= len(m.records) || fmt.Sprint(rec) != fmt.Sprint(m.records[i]) {
			m.t.Fatalf("recovered record %d: %+v", i, rec)
		}
	}
	for i := len(r.Records); i < len(m.records); i++ {
		if m.recSeq[i] <= newest {
			m.t.Fatalf("record %+v is lost", m.records[i])
		}
	}
	m.records, m.recSeq = r.Records, m.recSeq[:len(r.Records)]
	// What has been found is durable: Pebble has flushed it.
	m.check(m.s.Sync(m.ctx))
	m.durable = m.seq
}
