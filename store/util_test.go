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
