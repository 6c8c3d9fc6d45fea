package store

import (
	"encoding/binary"
	"fmt"

	"cbrepl/dtx"
)

// Values of the small records. All are fixed fields, big-endian, and a list:
//
//	part:     gxid:8 kind:1 endlsn:8 time:8 rows:8 bytes:8 barrier:1 flags:1 size:8 n:4 xid:4...
//	record:   gxid:8 kind:1 time:8 n:4 content:2...
//
// size is what the transaction takes in its chain.

type enc []byte

func (e *enc) u8(v byte)    { *e = append(*e, v) }
func (e *enc) u16(v uint16) { *e = binary.BigEndian.AppendUint16(*e, v) }
func (e *enc) u32(v uint32) { *e = binary.BigEndian.AppendUint32(*e, v) }
func (e *enc) u64(v uint64) { *e = binary.BigEndian.AppendUint64(*e, v) }
func (e *enc) flag(v bool) {
	if v {
		e.u8(1)
	} else {
		e.u8(0)
	}
}

func (e *enc) xids(xs []dtx.XID) {
	e.u32(uint32(len(xs)))
	for _, x := range xs {
		e.u32(uint32(x))
	}
}

// dec reads what enc wrote; the first short read sticks.
type dec struct {
	b   []byte
	bad bool
}

func (d *dec) take(n int) []byte {
	if d.bad || len(d.b) < n {
		d.bad = true
		return make([]byte, n)
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *dec) u8() byte    { return d.take(1)[0] }
func (d *dec) u16() uint16 { return binary.BigEndian.Uint16(d.take(2)) }
func (d *dec) u32() uint32 { return binary.BigEndian.Uint32(d.take(4)) }
func (d *dec) u64() uint64 { return binary.BigEndian.Uint64(d.take(8)) }

func (d *dec) xids() []dtx.XID {
	n := int(d.u32())
	if n == 0 || n > len(d.b)/4 {
		d.bad = d.bad || n != 0
		return nil
	}
	xs := make([]dtx.XID, n)
	for i := range xs {
		xs[i] = dtx.XID(d.u32())
	}
	return xs
}

func (d *dec) done(what string) error {
	if d.bad {
		return fmt.Errorf("%w: %s is cut short", errCorrupt, what)
	}
	return nil
}

// stored is what a part record says about a transaction.
type stored struct {
	flags   byte
	size    int64
	aborted []dtx.XID
}

func encodePart(p dtx.Part, st stored) []byte {
	e := make(enc, 0, 64+4*len(st.aborted))
	e.u64(uint64(p.GXID))
	e.u8(byte(p.Kind))
	e.u64(uint64(p.EndLSN))
	e.u64(uint64(p.CommitTime))
	e.u64(uint64(p.Rows))
	e.u64(uint64(p.Bytes))
	e.flag(p.Barrier)
	e.u8(st.flags)
	e.u64(uint64(st.size))
	e.xids(st.aborted)
	return e
}

func decodePart(b []byte) (dtx.Part, stored, error) {
	d := dec{b: b}
	p := dtx.Part{
		GXID: dtx.GXID(d.u64()), Kind: dtx.Kind(d.u8()), EndLSN: dtx.LSN(d.u64()), CommitTime: dtx.PGTime(d.u64()),
		Rows: int64(d.u64()), Bytes: int64(d.u64()), Barrier: d.u8() != 0,
	}
	st := stored{flags: d.u8(), size: int64(d.u64()), aborted: d.xids()}
	return p, st, d.done("part record")
}

func encodeRecord(r dtx.CommitRecord) []byte {
	e := make(enc, 0, 32+2*len(r.Participants))
	e.u64(uint64(r.GXID))
	e.u8(byte(r.Kind))
	e.u64(uint64(r.CommitTime))
	e.u32(uint32(len(r.Participants)))
	for _, c := range r.Participants {
		e.u16(uint16(c))
	}
	return e
}

func decodeRecord(b []byte) (dtx.CommitRecord, error) {
	d := dec{b: b}
	r := dtx.CommitRecord{GXID: dtx.GXID(d.u64()), Kind: dtx.Kind(d.u8()), CommitTime: dtx.PGTime(d.u64())}
	n := int(d.u32())
	if n > len(d.b)/2 {
		d.bad = true
		n = 0
	}
	for range n {
		r.Participants = append(r.Participants, dtx.Content(d.u16()))
	}
	return r, d.done("commit record")
}
