package apply

import (
	"fmt"

	"cbrepl/dtx"
)

// Record is what is kept outside the target of the state that the target has
// reported: whoever is the only one to hold rows writes it down before it releases
// any. A target that is restored to an older state is found by it, for what was
// released since then is nowhere any more.
type Record struct {
	// Token is State.Token, empty when nothing was recorded yet.
	Token string
	Batch uint64
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
			Hint: "Bring the target back to its newest state; if that is lost, a new initial copy is needed (`cbrepl subscription reset --help` lists the steps). Nothing is changed",
		}
	}
	switch {
	case !s.Initialized:
		return refuse("this subscription has run up to batch %d, and the target has no positions for it: it was restored to a state before the first start, or its record was deleted", r.Batch)
	case s.Token != r.Token:
		return refuse("the target's record of this subscription is not the one that was written up to batch %d: it was deleted and prepared again, or this is another target", r.Batch)
	case s.Batch < r.Batch:
		return refuse("the target is at batch %d, and %s has seen it commit batch %d and keeps no rows that were applied: it was restored to an older state, or failed over with loss", s.Batch, where, r.Batch)
	}
	return nil
}
