package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"testing"

	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

func relBody(id uint32, name string) []byte {
	b := binary.BigEndian.AppendUint32(nil, id)
	b = append(b, "public\x00"+name+"\x00d"...)
	b = binary.BigEndian.AppendUint16(b, 1)
	b = append(b, 1)
	b = append(b, "id\x00"...)
	b = binary.BigEndian.AppendUint32(b, 25)
	return binary.BigEndian.AppendUint32(b, 0xffffffff)
}

func insertMsg(id uint32, xid dtx.XID, val string) []byte {
	b := []byte{'I'}
	if xid != 0 {
		b = binary.BigEndian.AppendUint32(b, uint32(xid))
	}
	b = binary.BigEndian.AppendUint32(b, id)
	b = append(b, 'N', 0, 1, 't')
	b = binary.BigEndian.AppendUint32(b, uint32(len(val)))
	return append(b, val...)
}

func TestSmoke(t *testing.T) {
	for _, mode := range []Mode{Applied, Spooled} {
		for _, tier := range []int64{0, -1} {
			t.Run(fmt.Sprint(mode, tier), func(t *testing.T) {
				ctx := context.Background()
				o := Options{Dir: t.TempDir(), Mode: mode, Subscription: "s", tierBytes: tier}
				s, err := Open(ctx, o)
				if err != nil {
					t.Fatal(err)
				}
				w := s.Writer(0)
				rel, err := w.PutRelation(relBody(7, "t"))
				if err != nil {
					t.Fatal(err)
				}
				var parts []dtx.Part
				for i := range 300 {
					tx := w.Begin(i%5 == 0)
					xid := dtx.XID(0)
					if i%5 == 0 {
						xid = dtx.XID(i + 1)
					}
					for j := range i * 2 {
						if err := tx.Append(ctx, rel, insertMsg(7, xid, fmt.Sprintf("%d-%d-%0*d", i, j, i%50*j%9000, 0))); err != nil {
							t.Fatal(err)
						}
					}
					p, err := tx.CommitNoSync(ctx, dtx.Part{GXID: dtx.GXID(i + 1), EndLSN: dtx.LSN(i + 1)})
					if err != nil {
						t.Fatal(err)
					}
					parts = append(parts, p)
				}
				for i, p := range parts {
					r, err := s.Open(p)
					if err != nil {
						t.Fatal(i, err)
					}
					n := 0
					for {
						c, err := r.Next()
						if err == io.EOF {
							break
						}
						if err != nil {
							t.Fatal(i, n, err)
						}
						vs := c.New.Append(nil)
						if want := fmt.Sprintf("%d-%d-%0*d", i, n, i%50*n%9000, 0); string(vs[0].Data) != want {
							t.Fatalf("%s != %s", vs[0].Data, want)
						}
						if c.Relation.Name != "t" || c.Type != pgoutput.TypeInsert {
							t.Fatal(c)
						}
						n++
					}
					if n != i*2 {
						t.Fatal(i, n)
					}
					r.Close()
				}
				t.Logf("%+v", s.Usage())
				if err := s.Release(parts); err != nil {
					t.Fatal(err)
				}
				w.Close()
				t.Logf("%+v", s.Usage())
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}
