package carrier

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"cbrepl/dtx"
)

// The gxid is timestamp 0x11223344 and number 5.
const wireGXID = dtx.GXID(0x1122334400000005)

func bytesOf(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGreenplum6Messages(t *testing.T) {
	c := Greenplum6{}
	r, ours, err := c.CommitRecord(recordPrefix, bytesOf(t, "01 01 1122334400000005 0000000000000007"))
	if err != nil || !ours || r.GXID != wireGXID || r.Kind != dtx.TwoPhase || r.CommitTime != 7 || !slices.Equal(r.Participants, []dtx.Content{dtx.Coordinator}) {
		t.Errorf("commit record with a part of the coordinator: %+v, %t, %v", r, ours, err)
	}
	if r, _, err = c.CommitRecord(recordPrefix, bytesOf(t, "01 00 1122334400000005 0000000000000007")); err != nil || r.Participants != nil {
		t.Errorf("commit record: %+v, %v", r, err)
	}
	if id, ours, err := c.Part(DefaultPartPrefix, bytesOf(t, "01 54 1122334400000005")); err != nil || !ours || id != (Identity{wireGXID, dtx.TwoPhase}) {
		t.Errorf("part: %+v, %t, %v", id, ours, err)
	}
	for prefix, want := range map[string]dtx.Event{
		preparePrefix:  {Kind: dtx.EventPrepared, LSN: 9, GXID: wireGXID},
		rollbackPrefix: {Kind: dtx.EventRolledBack, LSN: 9, GXID: wireGXID},
		settledPrefix:  {Kind: dtx.EventSettled, LSN: 9, GXID: wireGXID},
		progressPrefix: {Kind: dtx.EventPosition, LSN: dtx.LSN(wireGXID)},
	} {
		ev, ours, err := c.Observe(prefix, bytesOf(t, "01 1122334400000005"), 9)
		if err != nil || !ours || ev.Kind != want.Kind || ev.LSN != want.LSN || ev.GXID != want.GXID {
			t.Errorf("%s: %+v, %t, %v", prefix, ev, ours, err)
		}
	}
}

func TestGreenplum6BadMessages(t *testing.T) {
	c := Greenplum6{}
	for _, b := range []string{
		"", "02 00 1122334400000005 0000000000000007", "01 02 1122334400000005 0000000000000007",
		"01 00 1122334400000005", "01 00 0000000000000000 0000000000000007", "01 00 1122334400000005 0000000000000007 00",
	} {
		if _, ours, err := c.CommitRecord(recordPrefix, bytesOf(t, b)); !ours || err == nil {
			t.Errorf("commit record %q: %t, %v", b, ours, err)
		}
	}
	for _, b := range []string{"", "02 1122334400000005", "01 11223344", "01 0000000000000000", "01 1122334400000005 00"} {
		if _, ours, err := c.Observe(preparePrefix, bytesOf(t, b), 9); !ours || err == nil {
			t.Errorf("prepare %q: %t, %v", b, ours, err)
		}
	}
	for _, b := range []string{"", "02 41 00 42 00 43 00", "01", "01 41 00 42 00", "01 41 00 42 00 43", "01 41 00 00 43 00", "01 41 00 42 00 43 00 44 00"} {
		if _, ours, err := c.Unsent(unsentPrefix, bytesOf(t, b)); !ours || err == nil {
			t.Errorf("unsent %q: %t, %v", b, ours, err)
		}
	}
	for _, prefix := range []string{"", "cbrepl.commit", "cbrepl.part", "cbrepl.statement", "pg_ddl_table"} {
		_, record, err1 := c.CommitRecord(prefix, nil)
		_, seen, err2 := c.Observe(prefix, nil, 9)
		if _, unsent, err := c.Unsent(prefix, nil); unsent || err != nil {
			t.Errorf("prefix %q: %t, %v", prefix, unsent, err)
		}
		if record || seen || err1 != nil || err2 != nil {
			t.Errorf("prefix %q is nobody's: %t %t %v %v", prefix, record, seen, err1, err2)
		}
	}
}
