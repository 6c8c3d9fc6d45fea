package apply

import (
	"fmt"
	"strings"

	"cbrepl/dtx"
)

// Record is what is kept outside the target of the state that the target has
// reported: whoever releases spooled rows, or confirms a position to the source,
// writes it down durably before. A target that is restored to an older state is
// found by it, for what was released since then is nowhere any more.
type Record struct {
	// Token is State.Token, empty when nothing was recorded yet.
	Token string
	Batch uint64
	// Positions are the recorded ones.
	Positions []dtx.Position
}

// Record returns what is to be kept of s.
func (s *State) Record() Record {
	return Record{Token: s.Token, Batch: s.Batch, Positions: s.Positions}
}

// CheckRecord refuses a state that is behind what was recorded of it: the target was
// restored to an older state or failed over with loss, or its row of the
// subscription was lost or made anew. where names the keeper of the record.
func (s *State) CheckRecord(r Record, where string) error {
	if r.Token == "" {
		return nil
	}
	refuse := func(format string, args ...any) error {
		return &dtx.Error{
			Op: "compare target with " + where, Class: dtx.ClassStop, Msg: fmt.Sprintf(format, args...),
			Hint: "Bring the target back to its newest state; if that is lost, make a new copy of the tables under a new subscription. Nothing is changed",
		}
	}
	if !s.Initialized {
		return refuse("this subscription has run up to batch %d (%s), and the target has no positions for it: the target was restored to a state before the first start, or its record was deleted",
			r.Batch, printPositions(r.Positions))
	}
	if s.Token != r.Token {
		return refuse("the target's record of this subscription is not the one that was written up to batch %d (%s): it was deleted and prepared again, or this is another target",
			r.Batch, printPositions(r.Positions))
	}
	at := make(map[dtx.Content]dtx.LSN, len(s.Positions))
	for _, p := range s.Positions {
		at[p.Content] = p.LSN
	}
	for _, p := range r.Positions {
		if at[p.Content] < p.LSN {
			return refuse("the target has applied content %s up to %s (batch %d), %s knows that it had applied up to %s (batch %d): it was restored to an older state, or failed over with loss, and the rows between are released",
				p.Content, at[p.Content], s.Batch, where, p.LSN, r.Batch)
		}
	}
	if s.Batch < r.Batch {
		return refuse("the target is at batch %d, %s knows of batch %d: it was restored to an older state, or failed over with loss", s.Batch, where, r.Batch)
	}
	return nil
}

func printPositions(ps []dtx.Position) string {
	out := make([]string, len(ps))
	for i, p := range ps {
		out[i] = fmt.Sprintf("content %s at %s", p.Content, p.LSN)
	}
	return strings.Join(out, ", ")
}
