package pgoutput_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/pgoutput/pgotest"
)

type captured struct {
	msg      []byte
	inStream bool
}

// loadCaptured reads testdata/captured.txt: what a real server sent.
func loadCaptured(t testing.TB) []captured {
	t.Helper()
	f, err := os.Open("testdata/captured.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []captured
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := sc.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		h, in := strings.CutPrefix(line, "stream ")
		b, err := hex.DecodeString(h)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, captured{b, in})
	}
	if err := sc.Err(); err != nil || len(out) < 100 {
		t.Fatalf("captured messages: %d, %v", len(out), err)
	}
	return out
}

// decode runs the decoder of the message's type and returns what it read.
func decode(msg []byte, inStream bool) (any, error) {
	typ, xid, body, err := pgoutput.Split(msg, inStream)
	if err != nil {
		return nil, err
	}
	switch typ {
	case pgoutput.TypeBegin:
		return pgoutput.ParseBegin(body)
	case pgoutput.TypeCommit:
		return pgoutput.ParseCommit(body)
	case pgoutput.TypeRelation:
		return pgoutput.ParseRelation(body)
	case pgoutput.TypeInsert, pgoutput.TypeUpdate, pgoutput.TypeDelete, pgoutput.TypeTruncate:
		return pgoutput.ParseRow(typ, body)
	case pgoutput.TypeMessage:
		return pgoutput.ParseMessage(body)
	case pgoutput.TypeStreamStart:
		return pgoutput.ParseStreamStart(body)
	case pgoutput.TypeStreamCommit:
		return pgoutput.ParseStreamCommit(body)
	case pgoutput.TypeStreamAbort:
		return pgoutput.ParseStreamAbort(body)
	case pgoutput.TypeBeginPrepare:
		return pgoutput.ParseBeginPrepare(body)
	case pgoutput.TypePrepare, pgoutput.TypeStreamPrepare:
		return pgoutput.ParsePrepare(body)
	case pgoutput.TypeCommitPrepared:
		return pgoutput.ParseCommitPrepared(body)
	case pgoutput.TypeRollbackPrep:
		return pgoutput.ParseRollbackPrepared(body)
	}
	return xid, nil
}

// encode is the inverse of decode for the types whose fields are all kept.
func encode(v any, typ byte, xid dtx.XID) []byte {
	switch m := v.(type) {
	case pgoutput.Begin:
		return pgotest.Begin(m.FinalLSN, m.CommitTime, m.XID)
	case pgoutput.Commit:
		return pgotest.Commit(m.CommitLSN, m.EndLSN, m.CommitTime)
	case *pgoutput.Relation:
		return pgotest.Relation(xid, m)
	case pgoutput.Row:
		switch typ {
		case pgoutput.TypeInsert:
			return pgotest.Insert(xid, m.RelationID, m.New.Append(nil)...)
		case pgoutput.TypeUpdate:
			return pgotest.Update(xid, m.RelationID, m.OldKind, m.Old.Append(nil), m.New.Append(nil))
		case pgoutput.TypeDelete:
			return pgotest.Delete(xid, m.RelationID, m.OldKind, m.Old.Append(nil)...)
		}
		var opts byte
		if m.Cascade {
			opts |= 1
		}
		if m.RestartIdentity {
			opts |= 2
		}
		return pgotest.Truncate(xid, opts, m.Truncated...)
	case pgoutput.Message:
		return pgotest.Message(xid, m.Transactional, m.LSN, m.Prefix, m.Content)
	case pgoutput.StreamStart:
		return pgotest.StreamStart(m.XID, m.First)
	case pgoutput.StreamCommit:
		return pgotest.StreamCommit(m.XID, m.CommitLSN, m.EndLSN, m.CommitTime)
	case pgoutput.StreamAbort:
		return pgotest.StreamAbort(m.XID, m.SubXID)
	case pgoutput.Prepare:
		return pgotest.Prepare(typ, m.PrepareLSN, m.EndLSN, m.Time, m.XID, m.GID)
	case pgoutput.CommitPrepared:
		return pgotest.CommitPrepared(m.CommitLSN, m.EndLSN, m.CommitTime, m.XID, m.GID)
	case pgoutput.RollbackPrepared:
		return pgotest.RollbackPrepared(m.PrepareEndLSN, m.EndLSN, m.PrepareTime, m.RollbackTime, m.XID, m.GID)
	}
	return nil
}

// TestCapturedRoundTrip decodes every message of a real server, builds it again
// from what was decoded and compares byte for byte: nothing is misread.
func TestCapturedRoundTrip(t *testing.T) {
	seen := map[byte]int{}
	for i, c := range loadCaptured(t) {
		v, err := decode(c.msg, c.inStream)
		if err != nil {
			t.Fatalf("message %d (%q): %v", i, c.msg[0], err)
		}
		seen[c.msg[0]]++
		_, xid, _, _ := pgoutput.Split(c.msg, c.inStream)
		switch c.msg[0] {
		case pgoutput.TypeOrigin, pgoutput.TypeType, pgoutput.TypeStreamStop:
			continue
		}
		if got := encode(v, c.msg[0], xid); !bytes.Equal(got, c.msg) {
			t.Errorf("message %d (%q):\n got %x\nwant %x", i, c.msg[0], got, c.msg)
		}
	}
	for _, typ := range []byte("BCORYIUDTMSEcAbPKrp") {
		if seen[typ] == 0 {
			t.Errorf("no captured message of type %q", typ)
		}
	}
}

// TestCutShort feeds every prefix of every captured message: an error each time,
// and never a panic.
func TestCutShort(t *testing.T) {
	for i, c := range loadCaptured(t) {
		switch c.msg[0] {
		case pgoutput.TypeOrigin, pgoutput.TypeType, pgoutput.TypeStreamStop:
			continue
		}
		step := 1 + len(c.msg)/400
		for n := 0; n < len(c.msg); n += step {
			if _, err := decode(c.msg[:n:n], c.inStream); !errors.Is(err, pgoutput.ErrMalformed) {
				t.Fatalf("message %d (%q) cut to %d of %d bytes: error %v", i, c.msg[0], n, len(c.msg), err)
			}
		}
	}
}

// TestTrailingBytes: a row or relation with bytes behind it was framed wrongly.
// A row of a streamed block read as if it stood outside must not pass either.
func TestTrailingBytes(t *testing.T) {
	for _, c := range loadCaptured(t) {
		typ := c.msg[0]
		if !pgoutput.IsRow(typ) && typ != pgoutput.TypeRelation {
			continue
		}
		if _, err := decode(append(bytes.Clone(c.msg), 0), c.inStream); !errors.Is(err, pgoutput.ErrMalformed) {
			t.Errorf("%q with a byte behind: error %v", typ, err)
		}
		if _, err := decode(c.msg, !c.inStream); err == nil && typ != pgoutput.TypeRelation {
			t.Errorf("%q framed with inStream=%v passes", typ, !c.inStream)
		}
	}
}

func TestValues(t *testing.T) {
	rel := &pgoutput.Relation{
		ID: 7, Schema: "public", Name: "t", Identity: pgoutput.IdentityDefault,
		Columns: []pgoutput.Column{{Key: true, Name: "id", TypeOID: 23, TypeMod: -1}, {Name: "b", TypeOID: 25, TypeMod: -1}},
	}
	got, err := pgoutput.ParseRelation(pgotest.Relation(0, rel)[1:])
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(rel, got); d != "" {
		t.Error(d)
	}
	if got.String() != "public.t" {
		t.Errorf("String() = %q", got)
	}
	catalog := pgotest.Relation(0, &pgoutput.Relation{ID: 1, Name: "pg_x", Identity: 'n'})
	if got, err = pgoutput.ParseRelation(catalog[1:]); err != nil || got.Schema != "pg_catalog" {
		t.Errorf("abbreviated schema: %v, %v", got, err)
	}

	msg := pgotest.Update(9, 7, 'K', []pgoutput.Value{pgotest.Text("1"), pgotest.Null()},
		[]pgoutput.Value{pgotest.Text("2"), pgotest.Unchanged()})
	typ, xid, body, err := pgoutput.Split(msg, true)
	if err != nil || typ != 'U' || xid != 9 {
		t.Fatalf("Split: %q %d %v", typ, xid, err)
	}
	row, err := pgoutput.ParseRow(typ, body)
	if err != nil {
		t.Fatal(err)
	}
	if row.OldKind != 'K' || row.Old.Len() != 2 || row.New.Len() != 2 {
		t.Fatalf("row %+v", row)
	}
	want := []pgoutput.Value{{Kind: 't', Data: []byte("2")}, {Kind: 'u'}}
	if vs := row.New.Append(nil); !reflect.DeepEqual(vs, want) {
		t.Errorf("new tuple %v, want %v", vs, want)
	}
	// An empty text is a value, not an absent one.
	ins, err := pgoutput.ParseRow('I', pgotest.Insert(0, 7, pgotest.Text(""), pgotest.Null())[1:])
	if err != nil {
		t.Fatal(err)
	}
	if vs := ins.New.Append(nil); vs[0].Data == nil || vs[1].Data != nil {
		t.Errorf("empty text %v, null %v", vs[0], vs[1])
	}
	// Appending to a value must not run into the next one.
	two, err := pgoutput.ParseRow('I', pgotest.Insert(0, 7, pgotest.Text("ab"), pgotest.Text("cd"))[1:])
	if err != nil {
		t.Fatal(err)
	}
	vs := two.New.Append(nil)
	_ = append(vs[0].Data, "xxxxxx"...)
	if string(vs[1].Data) != "cd" {
		t.Errorf("append to one value changed its neighbour to %q", vs[1].Data)
	}
}

func TestBadInput(t *testing.T) {
	for _, c := range []struct {
		name string
		msg  []byte
		in   bool
	}{
		{"empty", nil, false},
		{"row type without id", []byte{'I'}, false},
		{"no xid in stream", []byte{'I', 0, 0}, true},
		{"unknown value kind", append(pgotest.Insert(0, 1)[:6], 0, 1, 'q'), false},
		{"value longer than message", append(pgotest.Insert(0, 1)[:6], 0, 1, 't', 0xff, 0xff, 0xff, 0xff), false},
		{"insert without N", []byte{'I', 0, 0, 0, 1, 'K', 0, 0}, false},
		{"update without N", []byte{'U', 0, 0, 0, 1, 'Q', 0, 0}, false},
		{"delete with N", []byte{'D', 0, 0, 0, 1, 'N', 0, 0}, false},
		{"truncate of 2^31 tables", []byte{'T', 0x80, 0, 0, 0, 0}, false},
		{"relation with unknown identity", []byte{'R', 0, 0, 0, 1, 's', 0, 't', 0, 'q', 0, 0}, false},
		{"relation of 65535 columns", []byte{'R', 0, 0, 0, 1, 's', 0, 't', 0, 'd', 0xff, 0xff}, false},
		{"message longer than it is", append(pgotest.Message(0, true, 1, "p", nil)[:12], 0xff, 0xff, 0xff, 0xff), false},
		{"gid without end", append(pgotest.Begin(1, 2, 3)[1:1], append([]byte{'b'}, bytes.Repeat([]byte{'1'}, 40)...)...), false},
	} {
		if v, err := decode(c.msg, c.in); !errors.Is(err, pgoutput.ErrMalformed) {
			t.Errorf("%s: %v, error %v", c.name, v, err)
		}
	}
	if _, err := pgoutput.RelationID([]byte{1, 2, 3}); !errors.Is(err, pgoutput.ErrMalformed) {
		t.Errorf("RelationID: %v", err)
	}
	if _, err := pgoutput.ParseRow('R', nil); !errors.Is(err, pgoutput.ErrMalformed) {
		t.Errorf("ParseRow('R'): %v", err)
	}
}

// FuzzDecode: any bytes give a value or an error. A row that was accepted
// encodes back to the same bytes, so tuples never reach outside their message.
func FuzzDecode(f *testing.F) {
	for _, c := range loadCaptured(f) {
		if len(c.msg) < 2000 {
			f.Add(c.msg, c.inStream)
		}
	}
	f.Fuzz(func(t *testing.T, msg []byte, inStream bool) {
		v, err := decode(msg, inStream)
		if err != nil {
			if !errors.Is(err, pgoutput.ErrMalformed) {
				t.Fatalf("error is not ErrMalformed: %v", err)
			}
			return
		}
		row, ok := v.(pgoutput.Row)
		if !ok {
			return
		}
		_, xid, _, _ := pgoutput.Split(msg, inStream)
		if inStream && xid == 0 {
			return // the encoder writes no transaction id 0
		}
		got := encode(row, msg[0], xid)
		want := msg
		if row.Type == pgoutput.TypeTruncate { // unknown option bits are not kept
			want = bytes.Clone(msg)
			want[len(got)-4*len(row.Truncated)-1] &= 3
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("got %x\nwant %x", got, want)
		}
	})
}

func benchRow() []byte {
	return pgotest.Insert(0, 7, pgotest.Text("123456"), pgotest.Text("some text of a usual length"),
		pgotest.Null(), pgotest.Text("2024-02-03 04:05:06+00"), pgotest.Text("12.50"))
}

// BenchmarkFrame is what a stream reader does with a row.
func BenchmarkFrame(b *testing.B) {
	msg := benchRow()
	b.ReportAllocs()
	for b.Loop() {
		typ, _, body, err := pgoutput.Split(msg, false)
		if err != nil || !pgoutput.IsRow(typ) {
			b.Fatal(err)
		}
		if _, err := pgoutput.RelationID(body); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDecode is what apply does with a row.
func BenchmarkDecode(b *testing.B) {
	msg := benchRow()
	var vs []pgoutput.Value
	b.ReportAllocs()
	for b.Loop() {
		row, err := pgoutput.ParseRow('I', msg[1:])
		if err != nil {
			b.Fatal(err)
		}
		vs = row.New.Append(vs[:0])
	}
	if len(vs) != 5 {
		b.Fatal(vs)
	}
}
