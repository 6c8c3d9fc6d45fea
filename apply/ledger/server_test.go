package ledger

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
	"cbrepl/lab"
)

// daemon is one that opens the ledger on a session of its own.
type daemon struct {
	*Ledger
	t testing.TB
	s *pgside.Session
}

func newDaemon(t testing.TB, dsn string) *daemon {
	t.Helper()
	s, err := pgside.NewSession("coordinator database", dsn, nil, new(pgside.Faults))
	if err != nil {
		t.Fatal(err)
	}
	o := &Options{Subscription: "test", LockWait: 200 * time.Millisecond}
	o.EnsureDefaults()
	d := &daemon{New(s, o, func(string) error { return nil }), t, s}
	d.connect()
	t.Cleanup(s.Close)
	return d
}

func (d *daemon) connect() {
	d.t.Helper()
	d.s.Close()
	if err := d.s.Connect(d.ctx(), "test"); err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) ctx() context.Context { return d.t.Context() }

// take opens the ledger as a target's Open does.
func (d *daemon) take() (apply.State, error) {
	row, err := d.ReadRow(d.ctx(), OpOpen)
	if err != nil {
		return apply.State{}, err
	}
	if err := d.Lock(d.ctx(), row); err != nil {
		return apply.State{}, err
	}
	if row, err = d.RaiseEpoch(d.ctx(), row); err != nil {
		return apply.State{}, err
	}
	if err := d.CheckRival(row); err != nil {
		return apply.State{}, err
	}
	st, err := d.ReadState(d.ctx(), row)
	if err == nil {
		d.Opened(row)
	}
	return st, err
}

func (d *daemon) mustTake() apply.State {
	d.t.Helper()
	st, err := d.take()
	if err != nil {
		d.t.Fatal(err)
	}
	return st
}

func (d *daemon) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// The life of a ledger: prepared once, opened by one daemon at a time, and what is
// recorded comes back as it was.
func TestLedger(t *testing.T) {
	srv := lab.ServerForTest(t, lab.Options{})
	one, two := newDaemon(t, srv.DSN()), newDaemon(t, srv.DSN())
	dtxtest.WantError(t, CheckPrepared(t.Context(), one.s, OpOpen, Objects), dtx.ClassStop, "has not been prepared: no cbrepl.state_format, cbrepl.subscription", "cbrepl target prepare")
	var token string
	for range 2 { // the second time changes nothing
		one.must(one.s.Transaction(t.Context(), OpPrepare, func() error {
			if err := CreateObjects(t.Context(), one.s, func(o *Object) string { return fmt.Sprintf("WITH (fillfactor = %d)", o.FillFactor) }, Objects); err != nil {
				return err
			}
			row, err := one.CreateRow(t.Context(), 2)
			if token != "" && row.Token != token {
				t.Errorf("another token: %s, then %s", token, row.Token)
			}
			token = row.Token
			return err
		}))
	}
	one.must(CheckPrepared(t.Context(), one.s, OpOpen, Objects))
	st := one.mustTake()
	if st.Initialized || st.Epoch != 1 || st.Token != token || len(one.ShardBatches()) != 2 {
		t.Errorf("a new subscription is %+v", st)
	}
	_, err := two.take()
	dtxtest.WantError(t, err, dtx.ClassStop, "another daemon runs subscription test", fmt.Sprint("server process ", one.s.Conn.PID()))

	streams := []apply.StreamIdentity{{Content: -1, SystemID: "7", Slot: "s", Timeline: 1}, {Content: 0, SystemID: "8", Slot: "s", Timeline: 2}}
	positions := []dtx.Position{{Content: 0, LSN: 0x2_0000_0010}, {Content: -1, LSN: 0x10}}
	first := apply.Beginning{Streams: streams, Positions: positions, Tables: []catalog.ReplicatedTable{{OID: 16}}}
	one.must(one.Init(t.Context(), first))
	dtxtest.WantError(t, one.Init(t.Context(), first), dtx.ClassStop, "already has positions")
	tables := []catalog.ReplicatedTable{
		{Name: catalog.Name{Schema: "a", Table: `odd "name", {here}`}, Content: 0, OID: 1<<32 - 1, Published: catalog.Published{
			Columns: []string{`c"1\`, "c2"}, Hidden: []string{"h"}, RowFilter: "(x > 'a')",
		}},
		{Name: catalog.Name{Schema: "a", Table: "t"}, Content: 0, OID: 17, Forgotten: true},
		{Name: catalog.Name{Schema: "a", Table: "t"}, Content: 0, OID: 18},
	}
	for _, list := range [][]catalog.ReplicatedTable{tables[:1], nil, tables} {
		one.must(one.RecordTables(t.Context(), list))
	}

	began := time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)
	copies := []apply.TableCopy{
		{Table: catalog.Name{Schema: "a", Table: `odd "name", {here}`}, State: apply.Copied, Cut: apply.Cut{Positions: positions[:1]}, Rows: 7, Bytes: 1 << 40, StartedAt: began, FinishedAt: began.Add(time.Hour)},
		{Table: catalog.Name{Schema: "a", Table: "t"}, State: apply.CopyWaiting},
		{Table: catalog.Name{Schema: "b", Table: "t"}, State: apply.CopyWaiting},
	}
	one.must(one.RecordCopies(t.Context(), copies))
	copies[1].State, copies[1].Cut, copies[1].StartedAt = apply.Copying, copies[0].Cut, began
	one.must(one.RecordCopies(t.Context(), copies[1:2])) // others stay

	// The session ends; the next daemon reads it all.
	one.s.Close()
	st = two.mustTake()
	want := []dtx.Position{{Content: -1, LSN: 0x10}, {Content: 0, LSN: 0x2_0000_0010}}
	if !st.Initialized || st.Epoch != 2 || !reflect.DeepEqual(st.Positions, want) || !reflect.DeepEqual(st.Streams, streams) || !reflect.DeepEqual(st.Tables, tables) || !reflect.DeepEqual(st.Copies, copies) {
		t.Errorf("read back as %+v", st)
	}
	// The first daemon comes back, without the lock: it changes nothing.
	one.connect()
	dtxtest.WantError(t, one.RecordTables(t.Context(), nil), dtx.ClassRetry, "another daemon has taken over", "epoch 1")
	one.connect()
	one.Opened(one.row)
	dtxtest.WantError(t, one.RecordCopies(t.Context(), nil), dtx.ClassRetry, "another daemon has taken over", "epoch 1")
	if rows, err := two.s.Query(t.Context(), "SELECT count(*) FROM cbrepl.replicated"); err != nil || string(rows[0][0]) != "3" {
		t.Errorf("%s rows, %v", rows, err)
	}
	// What the other has recorded meanwhile ends it.
	two.must(two.s.Exec(t.Context(), two.Guarded("batch = 1, batch_epoch = 2", 0, "initialized")))
	two.s.Close()
	_, err = one.take()
	dtxtest.WantError(t, err, dtx.ClassStop, "another daemon has applied batches", "known here is 0", "records 1 of epoch 2")

	// Somebody else's layout, or hands.
	one.must(one.s.Exec(t.Context(), "UPDATE cbrepl.replicated SET published = 'x' WHERE table_name = 't'"))
	_, err = newDaemon(t, srv.DSN()).take()
	if err == nil {
		t.Error("a record that cannot be read is taken")
	}
	one.must(one.s.Exec(t.Context(), "DELETE FROM cbrepl.replicated; UPDATE cbrepl.copy SET state = 'copied', contents = '{}', lsns = '{}' WHERE schema_name = 'b'"))
	three := newDaemon(t, srv.DSN())
	one.s.Close()
	_, err = three.take()
	dtxtest.WantError(t, err, dtx.ClassStop, "the cut of table b.t cannot be read")
	one.connect()
	one.must(one.s.Exec(t.Context(), "UPDATE cbrepl.state_format SET version = 1"))
	dtxtest.WantError(t, CheckPrepared(t.Context(), one.s, OpOpen, Objects), dtx.ClassStop, "has version 1 of its layout, this cbrepl knows 3")
}
