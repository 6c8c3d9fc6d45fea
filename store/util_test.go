package store

import (
	"context"
	"fmt"
	"testing"

	"cbrepl/pgoutput"
	"cbrepl/pgoutput/pgotest"
)

// testRelation returns the body of a relation message.
func testRelation(id uint32, name string, columns int) []byte {
	r := &pgoutput.Relation{ID: id, Schema: "public", Name: name, Identity: 'd'}
	for i := range columns {
		r.Columns = append(r.Columns, pgoutput.Column{Key: i == 0, Name: fmt.Sprintf("c%d", i), TypeOID: 25, TypeMod: -1})
	}
	return pgotest.Relation(0, r)[1:]
}

// openTest opens a spool that the test closes.
func openTest(t testing.TB, o Options) *Spool {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// writeRows commits n inserts of the given size as x.
func writeRows(t testing.TB, w *Writer, x *modelTxn, n, size int) {
	t.Helper()
	ctx := context.Background()
	rel, err := w.PutRelation(testRelation(7, "t", 1))
	if err != nil {
		t.Fatal(err)
	}
	x.content = w.lane.content
	x.tx = w.Begin(x.streamed)
	if x.streamed {
		x.top = 77
	}
	for i := range n {
		r := wantRow{typ: pgoutput.TypeInsert, xid: x.top, id: i, size: size, names: []string{"t"}, width: []int{1}}
		if err := x.tx.Append(ctx, rel, pgotest.Insert(x.top, 7, pgotest.Text(value(r.id, r.size)))); err != nil {
			t.Fatal(err)
		}
		x.rows = append(x.rows, r)
	}
	x.part.EndLSN++
	if x.part, err = x.tx.Commit(ctx, x.part); err != nil {
		t.Fatal(err)
	}
}
