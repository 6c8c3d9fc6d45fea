package assemble

import (
	"encoding/binary"
	"strings"
	"testing"

	"cbrepl/dtx"
	"cbrepl/pgoutput/pgotest"
	"cbrepl/source/stream/carrier"
	"cbrepl/source/stream/feed/feedtest"
)

// body builds what plugin cbrepl_source sends: version, flags and numbers.
func body(head []byte, numbers ...uint64) []byte {
	b := append([]byte{1}, head...)
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return b
}

func observed(prefix string, lsn dtx.LSN, n uint64) []byte {
	return pgotest.Message(0, false, lsn, prefix, body(nil, n))
}

func recordMessage(lsn dtx.LSN, flags byte, gxid uint64) []byte {
	return pgotest.Message(0, false, lsn, "cbrepl.commit_record", body([]byte{flags}, gxid, 7))
}

// TestObservations: PREPAREs and their ends are passed on wherever they stand,
// positions come from messages only, and a new connection is reported.
func TestObservations(t *testing.T) {
	a := New(Options{Content: dtx.Coordinator, Carrier: carrier.Greenplum6{}})
	r := &coordinatorRig{feedtest.New(t, dtx.Coordinator, 100, a), a}
	if a.Quiet() {
		t.Error("a keepalive would be taken for a position")
	}
	if err := r.Feed(
		observed("cbrepl.prepare", 40, 1), observed("cbrepl.settled", 50, 1), observed("cbrepl.rollback", 60, 2),
		observed("cbrepl.progress", 60, 60), observed("cbrepl.progress", 120, 120), recordMessage(130, 0, 3),
		observed("cbrepl.prepare", 125, 4),
	); err != nil {
		t.Fatal(err)
	}
	r.expect(`
reconnect@0/0
prepared@0/28
settled@0/32
rolled back@0/3C
position@0/3C
position@0/78
record@0/82 gxid=3 two-phase []
prepared@0/7D
`)
	r.Reset()
	if err := r.Feed(observed("cbrepl.progress", 130, 130)); err != nil {
		t.Fatal(err)
	}
	r.expect(`
reconnect@0/0
position@0/82
`)
}

// TestUnsent: rows that were changed without a row change stop the stream when
// their transaction commits.
func TestUnsent(t *testing.T) {
	const statement = "ALTER TABLE ... DROP PARTITION"
	for _, c := range []struct {
		name, body string
		plain      bool
		want       []string
	}{
		{name: "stops", body: "\x01" + statement + "\x00public\x00orders\x00", want: []string{
			"content -1", "gxid 5", "table public.orders", statement + " changed rows of this table", "cbrepl subscription reset",
		}},
		{name: "outside a transaction", body: "\x01" + statement + "\x00public\x00orders\x00", plain: true, want: []string{"outside any transaction"}},
		{name: "malformed", body: "\x01DROP TABLE\x00public\x00", want: []string{"want three strings"}},
		{name: "another version", body: "\x02DROP TABLE\x00public\x00t\x00", want: []string{"version 2"}},
	} {
		a := New(Options{Content: dtx.Coordinator, Carrier: carrier.Greenplum6{}})
		r := &coordinatorRig{feedtest.New(t, dtx.Coordinator, 100, a), a}
		msg := pgotest.Message(0, !c.plain, 110, "cbrepl.unsent", []byte(c.body))
		if !c.plain {
			r.Must(recordMessage(120, 1, 5), pgotest.Begin(119, 7, 9),
				pgotest.Message(0, true, 110, "cbrepl.part", carrier.AppendPart(nil, carrier.Identity{GXID: 5, Kind: dtx.TwoPhase})), msg)
			msg = pgotest.Commit(119, 120, 7)
		}
		err := r.Feed(msg)
		if err == nil || dtx.ClassOf(err) != dtx.ClassStop {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, without %q", c.name, err, want)
			}
		}
	}
}

// TestOwnPart: a record with a part of the coordinator comes behind that part, at
// the same position.
func TestOwnPart(t *testing.T) {
	a := New(Options{Content: dtx.Coordinator, Carrier: carrier.Greenplum6{}})
	r := &coordinatorRig{feedtest.New(t, dtx.Coordinator, 100, a), a}
	part := func(g dtx.GXID) []byte {
		return pgotest.Message(0, true, 110, "cbrepl.part", carrier.AppendPart(nil, carrier.Identity{GXID: g, Kind: dtx.TwoPhase}))
	}
	if err := r.Feed(recordMessage(120, 1, 5), pgotest.Begin(119, 7, 9), part(5), pgotest.Commit(119, 120, 7)); err != nil {
		t.Fatal(err)
	}
	r.expect(`
reconnect@0/0
part@0/78 gxid=5 two-phase content -1 more
record@0/78 gxid=5 two-phase [-1]
`)
	for name, msgs := range map[string][][]byte{
		"another's part":   {recordMessage(130, 1, 6), pgotest.Begin(129, 7, 9), part(5), pgotest.Commit(129, 130, 7)},
		"no part":          {recordMessage(130, 1, 6), pgotest.Begin(129, 7, 9), pgotest.Commit(129, 130, 7)},
		"a position":       {recordMessage(130, 1, 6), observed("cbrepl.progress", 130, 130)},
		"a second record":  {recordMessage(130, 1, 6), recordMessage(140, 1, 7)},
		"inside":           {pgotest.Begin(129, 7, 9), pgotest.Message(0, true, 110, "cbrepl.prepare", body(nil, 3)), pgotest.Commit(129, 130, 7)},
		"a malformed body": {pgotest.Message(0, false, 130, "cbrepl.prepare", []byte{1, 2})},
	} {
		a := New(Options{Content: dtx.Coordinator, Carrier: carrier.Greenplum6{}})
		r := feedtest.New(t, dtx.Coordinator, 100, a)
		if err := r.Feed(msgs...); err == nil || dtx.ClassOf(err) != dtx.ClassStop || !strings.Contains(err.Error(), "content -1") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
