package engine

import (
	"context"
	"fmt"
	"strconv"
	"syscall"
	"testing"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/router"
)

// discard is a Backend that takes everything and finds every row.
type discard struct{ segs []dtx.Content }

func (d *discard) Segments() []dtx.Content { return d.segs }

func (d *discard) KeepAlive(context.Context, dtx.Content) error { return nil }

func (d *discard) Copy(_ context.Context, _ dtx.Content, op *apply.CopyOp) (apply.Inserted, error) {
	return apply.Inserted{Rows: op.Rows}, nil
}

func (d *discard) Delete(_ context.Context, _ dtx.Content, op *apply.DeleteOp) (apply.Found, error) {
	return apply.Found{Rows: int64(op.N)}, nil
}

func (d *discard) Update(_ context.Context, _ dtx.Content, op *apply.UpdateOp) (apply.Found, error) {
	return apply.Found{Rows: int64(op.N)}, nil
}

func (d *discard) DeleteImages(_ context.Context, _ dtx.Content, op *apply.ImageOp) (apply.Found, error) {
	return apply.Found{Rows: int64(op.N)}, nil
}

func (d *discard) Truncate(context.Context, dtx.Content, []*catalog.Table, bool) error { return nil }

// rawRows decodes messages as a spool does: one Change, reused.
type rawRows struct {
	rel  *pgoutput.Relation
	msgs [][]byte
	typ  []byte
}

func (r *rawRows) Open(dtx.Part) (apply.RowIter, error) { return &rawIter{r: r}, nil }

type rawIter struct {
	r *rawRows
	n int
	c pgoutput.Change
}

func (it *rawIter) Next() (*pgoutput.Change, error) {
	if it.n == len(it.r.msgs) {
		return nil, errEOF
	}
	row, err := pgoutput.ParseRow(it.r.typ[it.n], it.r.msgs[it.n])
	if err != nil {
		return nil, err
	}
	it.n++
	it.c.Row, it.c.Relation = row, it.r.rel
	return &it.c, nil
}

func (it *rawIter) Close() error { return nil }

// benchEngine makes an engine for the table of the benchmark in the notes: id, a, b (100 bytes), ts.
func benchEngine(tb testing.TB, segments int) (*Engine, *pgoutput.Relation, *discard) {
	typ := func(oid uint32) *router.Type { t, _ := router.BuiltinType(oid); return t }
	cols := []struct {
		name string
		oid  uint32
	}{{"id", 20}, {"a", 23}, {"b", 25}, {"ts", 1184}}
	src := catalog.PublishedTable{Schema: "public", Name: "t", Identity: 'd', Policy: router.Policy{Kind: router.Hash, NumSegments: 3}}
	rel := &pgoutput.Relation{ID: 1, Schema: "public", Name: "t", Identity: 'd'}
	tgt := &catalog.Table{Schema: "public", Name: "t", Kind: catalog.Heap, Uniques: []catalog.Unique{{Name: "pk", Columns: []int{0}, Reads: []int{0}, Plain: true, Primary: true}}}
	for i, c := range cols {
		src.Columns = append(src.Columns, catalog.PublishedColumn{Name: c.name, TypeOID: c.oid, Key: i == 0, PrimaryKey: i == 0})
		rel.Columns = append(rel.Columns, pgoutput.Column{Name: c.name, TypeOID: c.oid, Key: i == 0})
		tgt.Columns = append(tgt.Columns, catalog.Column{Name: c.name, Type: typ(c.oid), NotNull: i == 0})
	}
	tgt.Policy = router.Policy{Kind: router.Hash, NumSegments: segments, Columns: []router.Column{{Name: "id", Type: typ(20)}}}
	d := &discard{}
	for i := range segments {
		d.segs = append(d.segs, dtx.Content(i))
	}
	e, err := New(apply.Options{}, apply.NameMap{}, []catalog.PublishedTable{src}, []*catalog.Table{tgt}, d.segs, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return e, rel, d
}

func benchMessages(rel *pgoutput.Relation, rows int, update func(i int) bool) *rawRows {
	r := &rawRows{rel: rel}
	text := func(s string) pgoutput.Value { return pgoutput.Value{Kind: 't', Data: []byte(s)} }
	b := text(fmt.Sprintf("%0100d", 7))
	for i := range rows {
		typ := byte('I')
		if update(i) {
			typ = 'U'
		}
		vals := []pgoutput.Value{text(strconv.Itoa(1_000_000 + i*7919%rows)), text(strconv.Itoa(i)), b, text("2024-02-29 12:34:56.789012+00")}
		var msg []byte
		msg = append(msg, 0, 0, 0, 1, 'N', 0, 4)
		for _, v := range vals {
			msg = append(msg, 't', 0, 0, byte(len(v.Data)>>8), byte(len(v.Data)))
			msg = append(msg, v.Data...)
		}
		r.msgs, r.typ = append(r.msgs, msg), append(r.typ, typ)
	}
	return r
}

func benchApply(b *testing.B, update func(i int) bool) {
	const rows = 100_000
	e, rel, d := benchEngine(b, 2)
	r := benchMessages(rel, rows, update)
	batch := &dtx.Batch{Steps: []dtx.Step{{Parts: []dtx.Part{{GXID: 1, Spool: 1}}}}}
	b.ReportAllocs()
	b.ResetTimer()
	cpu := cpuTime()
	for b.Loop() {
		if _, err := e.Apply(context.Background(), batch, r, d); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N)/rows, "cpu-ns/row")
}

// cpuTime is the process's CPU time in nanoseconds: on a busy machine it tells
// more than the clock.
func cpuTime() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkInserts is the pass-through path: decode, route, encode for COPY.
func BenchmarkInserts(b *testing.B) { benchApply(b, func(int) bool { return false }) }

// BenchmarkUpdates folds updates of 100,000 rows, one each.
func BenchmarkUpdates(b *testing.B) { benchApply(b, func(int) bool { return true }) }

// BenchmarkMixed inserts and updates.
func BenchmarkMixed(b *testing.B) { benchApply(b, func(i int) bool { return i%2 == 0 }) }

// The pass-through path allocates per chunk, not per row.
func TestInsertAllocations(t *testing.T) {
	const rows = 20_000
	e, rel, d := benchEngine(t, 2)
	r := benchMessages(rel, rows, func(int) bool { return false })
	batch := &dtx.Batch{Steps: []dtx.Step{{Parts: []dtx.Part{{GXID: 1, Spool: 1}}}}}
	per := testing.AllocsPerRun(5, func() {
		if _, err := e.Apply(context.Background(), batch, r, d); err != nil {
			t.Fatal(err)
		}
	}) / rows
	if per > 0.02 {
		t.Errorf("%.3f allocations per row", per)
	}
}
