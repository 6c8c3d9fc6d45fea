package merge

import (
	"cmp"
	"slices"

	"cbrepl/dtx"
)

// steps lays the batch's parts out for the target. Without barrier it is one
// step. Every barrier dtx is a step of its own; the other parts of a stream
// stand behind the barriers that precede them in that stream or, where a
// barrier has no part there, in record order, and never before an earlier
// part of their stream.
func (e *Engine) steps(members []*txn) []dtx.Step {
	perStream := make([][]*partAt, len(e.streams))
	var barriers []*txn
	for _, d := range members {
		if d.barrier {
			barriers = append(barriers, d)
		}
		lowest := -1
		for i := range d.parts {
			p := &d.parts[i]
			p.part.Lowest = false
			if p.part.Content >= 0 && (lowest < 0 || p.part.Content < d.parts[lowest].part.Content) {
				lowest = i
			}
			perStream[p.s.pos] = append(perStream[p.s.pos], p)
		}
		if lowest >= 0 {
			d.parts[lowest].part.Lowest = true
		}
	}
	for _, ps := range perStream {
		slices.SortFunc(ps, func(a, b *partAt) int { return cmp.Compare(a.idx, b.idx) })
	}
	orderBarriers(barriers, perStream)

	rank := make(map[*txn]int, len(barriers))
	for i, d := range barriers {
		rank[d] = i
	}
	// Step 2r holds what stands before barrier r, step 2r+1 the barrier itself.
	steps := make([]dtx.Step, 2*len(barriers)+1)
	for s, ps := range perStream {
		level := 0
		for _, p := range ps {
			d := p.s.at(p.idx).d
			if r, ok := rank[d]; ok {
				steps[2*r+1].Parts = append(steps[2*r+1].Parts, p.part)
				level = max(level, r+1)
				continue
			}
			if d.kind == dtx.TwoPhase {
				for r := level; r < len(barriers); r++ {
					b := barriers[r]
					if b.kind == dtx.TwoPhase && b.order < d.order && !b.part(e.streams[s].content) {
						level = r + 1
					}
				}
			}
			steps[2*level].Parts = append(steps[2*level].Parts, p.part)
		}
	}
	for r := range barriers {
		steps[2*r+1].Barrier = true
	}
	return slices.DeleteFunc(steps, func(s dtx.Step) bool { return len(s.Parts) == 0 })
}

// orderBarriers sorts two-phase barriers by record order, and a one-phase
// barrier behind the last two-phase barrier that precedes it in its stream.
// Barriers whose order could matter hold exclusive locks until they commit, so
// their record order and their order in every stream agree.
func orderBarriers(barriers []*txn, perStream [][]*partAt) {
	if len(barriers) < 2 {
		return
	}
	key := make(map[*txn]int, len(barriers))
	idx := make(map[*txn][2]int, len(barriers))
	for s, ps := range perStream {
		last := -1
		for _, p := range ps {
			d := p.s.at(p.idx).d
			if !d.barrier {
				continue
			}
			if d.kind == dtx.TwoPhase {
				last = max(last, d.order)
				key[d] = d.order
			} else {
				key[d] = last
				idx[d] = [2]int{s, p.idx}
			}
		}
	}
	slices.SortStableFunc(barriers, func(a, b *txn) int {
		if c := cmp.Compare(key[a], key[b]); c != 0 {
			return c
		}
		if a.kind != b.kind { // equal keys: the two-phase one gave the key
			if a.kind == dtx.TwoPhase {
				return -1
			}
			return 1
		}
		return slices.Compare(sliceOf(idx[a]), sliceOf(idx[b]))
	})
}

func sliceOf(a [2]int) []int { return a[:] }
