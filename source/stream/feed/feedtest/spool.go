package feedtest

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/store"
)

// OpenSpool opens a spool that lives as long as the test.
func OpenSpool(t testing.TB) *store.Spool {
	t.Helper()
	sp, err := store.Open(context.Background(), store.Options{Dir: t.TempDir() + "/spool", Subscription: "t", MemBytes: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sp.Close(); err != nil {
			t.Error(err)
		}
	})
	return sp
}

// RowsOf reads a part back: table(columns of its schema)op:values.
func RowsOf(t testing.TB, sp *store.Spool, p dtx.Part) []string {
	t.Helper()
	rd, err := sp.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rd.Close() }()
	var out []string
	for {
		c, err := rd.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		rels := c.Relations
		if c.Relation != nil {
			rels = []*pgoutput.Relation{c.Relation}
		}
		var s strings.Builder
		for _, rel := range rels {
			s.WriteString(rel.Name + "(")
			for _, col := range rel.Columns {
				s.WriteString(col.Name)
			}
			s.WriteString(")")
		}
		s.WriteByte(c.Type)
		for _, tup := range []pgoutput.Tuple{c.Old, c.New} {
			for _, v := range tup.Append(nil) {
				s.WriteString(":" + string(v.Data))
			}
		}
		out = append(out, s.String())
	}
}
