package subscription

import (
	"reflect"
	"testing"

	"cbrepl/dtx"
)

// TestAppliedBefore: early dtxs are applied up to the end of the coordinator's log and
// the cut of the segments that took part, each once.
func TestAppliedBefore(t *testing.T) {
	early := []dtx.CommitRecord{
		{GXID: 7, Kind: dtx.TwoPhase, EndLSN: 0x10, Participants: []dtx.Content{2, 0}},
		{GXID: 8, Kind: dtx.TwoPhase, EndLSN: 0x20, Participants: []dtx.Content{-1, 1}},
		{GXID: 7, Kind: dtx.TwoPhase, EndLSN: 0x30, Participants: []dtx.Content{2, 0}},
	}
	cut := []dtx.Position{{Content: 0, LSN: 0x100}, {Content: 1, LSN: 0x200}, {Content: 2, LSN: 0x300}}
	want := []dtx.DedupEntry{
		{GXID: 7, Pending: []dtx.Position{{Content: -1, LSN: 0x90}, {Content: 0, LSN: 0x100}, {Content: 2, LSN: 0x300}}},
		{GXID: 8, Pending: []dtx.Position{{Content: -1, LSN: 0x90}, {Content: 1, LSN: 0x200}}},
	}
	if got := appliedBefore(early, 0x90, cut); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
