package ledger

import (
	"strings"
	"testing"

	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
)

func TestCheckBatch(t *testing.T) {
	for _, c := range []struct {
		b    dtx.Batch
		init bool
		want string
	}{
		{dtx.Batch{Seq: 8, Positions: []dtx.Position{{Content: 0, LSN: 100}}}, true, ""},
		{dtx.Batch{Seq: 8}, false, "without first positions"},
		{dtx.Batch{Seq: 7}, true, "batch 7 does not follow batch 7"},
		{dtx.Batch{Seq: 8, Positions: []dtx.Position{{Content: 1, LSN: 100}}}, true, "content 1"},
		{dtx.Batch{Seq: 8, Positions: []dtx.Position{{Content: 0, LSN: 99}}}, true, "moves content 0 back from 0/64 to 0/63"},
	} {
		row := Row{Initialized: c.init, Decided: BatchID{Batch: 7}, Positions: []dtx.Position{{Content: 0, LSN: 100}}}
		err := row.check(&c.b)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || dtx.ClassOf(err) != dtx.ClassStop) {
			t.Errorf("batch %d: %v, want %q", c.b.Seq, err, c.want)
		}
	}
}

// A daemon goes on only from what it has seen or may itself have recorded.
func TestCheckRival(t *testing.T) {
	l := &Ledger{opts: &Options{Subscription: "s"}}
	row := Row{Token: "a", Decided: BatchID{3, 7}}
	if err := l.CheckRival(row); err != nil {
		t.Errorf("a daemon that knows nothing: %v", err)
	}
	l.Opened(row)
	l.tried = BatchID{3, 8}
	for _, ok := range []BatchID{{3, 7}, {3, 8}} {
		if err := l.CheckRival(Row{Token: "a", Decided: ok}); err != nil {
			t.Errorf("%v: %v", ok, err)
		}
	}
	dtxtest.WantError(t, l.CheckRival(Row{Token: "a", Decided: BatchID{4, 8}}), dtx.ClassStop,
		"another daemon has applied", "known here is 7 of epoch 3", "records 8 of epoch 4")
	dtxtest.WantError(t, l.CheckRival(Row{Token: "b", Decided: BatchID{3, 7}}), dtx.ClassStop, "dropped and prepared again")
}
