package subscription

import (
	"fmt"

	"cbrepl/apply"
	"cbrepl/dtx"
)

// recorded mirrors what the target records, to recognise its answer after a
// failure.
type recorded struct {
	batch     uint64
	positions map[dtx.Content]dtx.LSN
	dedup     map[dtx.GXID]bool
}

func recordedOf(st apply.State) recorded {
	r := recorded{batch: st.Batch, positions: map[dtx.Content]dtx.LSN{}, dedup: map[dtx.GXID]bool{}}
	for _, p := range st.Positions {
		r.positions[p.Content] = p.LSN
	}
	for _, d := range st.Dedup {
		r.dedup[d.GXID] = true
	}
	return r
}

func (r *recorded) apply(b *dtx.Batch) {
	r.batch = b.Seq
	for _, p := range b.Positions {
		r.positions[p.Content] = p.LSN
	}
	for _, g := range b.DedupDrop {
		delete(r.dedup, g)
	}
	for _, d := range b.DedupAdd {
		r.dedup[d.GXID] = true
	}
}

// includes reports whether the target's state is the one after b (true) or before it
// (false). Any other state was written by somebody else.
func (r *recorded) includes(st apply.State, b *dtx.Batch) (bool, error) {
	switch st.Batch {
	case r.batch:
		if r.equal(st, nil) {
			return false, nil
		}
	case b.Seq:
		if r.equal(st, b) {
			return true, nil
		}
	}
	return false, &dtx.Error{
		Op: "reopen target", Class: dtx.ClassStop,
		Msg: fmt.Sprintf("the target records batch %d with positions that are not this daemon's (it had recorded batch %d and was applying %d)",
			st.Batch, r.batch, b.Seq),
		Hint: "Another daemon has worked on this subscription meanwhile; make sure that only one runs, then start it again: it resumes from the target's record",
	}
}

// equal compares a state with the record, or with the record after b.
func (r *recorded) equal(st apply.State, b *dtx.Batch) bool {
	want := *r
	if b != nil {
		want = recorded{positions: map[dtx.Content]dtx.LSN{}, dedup: map[dtx.GXID]bool{}}
		for c, l := range r.positions {
			want.positions[c] = l
		}
		for g := range r.dedup {
			want.dedup[g] = true
		}
		want.apply(b)
	}
	if len(st.Positions) != len(want.positions) || len(st.Dedup) != len(want.dedup) {
		return false
	}
	for _, p := range st.Positions {
		if l, ok := want.positions[p.Content]; !ok || l != p.LSN {
			return false
		}
	}
	for _, d := range st.Dedup {
		if !want.dedup[d.GXID] {
			return false
		}
	}
	return true
}
