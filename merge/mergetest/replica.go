package mergetest

import (
	"fmt"
	"maps"
	"slices"

	"cbrepl/dtx"
)

// Replica is what a target keeps of a history. It checks every batch: rows and
// their versions, the order of releases, positions and the dedup set.
type Replica struct {
	h         *History
	val, ver  []int
	Applied   map[dtx.GXID]bool
	Positions map[dtx.Content]dtx.LSN
	Dedup     map[dtx.GXID]dtx.DedupEntry
}

// NewReplica is a copy of the source as it was before the history.
func NewReplica(h *History) *Replica {
	r := &Replica{
		h: h, val: make([]int, len(h.rows)), ver: make([]int, len(h.rows)),
		Applied: map[dtx.GXID]bool{}, Positions: map[dtx.Content]dtx.LSN{}, Dedup: map[dtx.GXID]dtx.DedupEntry{},
	}
	for i := range r.val {
		r.val[i] = startAmount
	}
	return r
}

// Clone is a backup of the target.
func (r *Replica) Clone() *Replica {
	return &Replica{
		h: r.h, val: slices.Clone(r.val), ver: slices.Clone(r.ver),
		Applied: maps.Clone(r.Applied), Positions: maps.Clone(r.Positions), Dedup: maps.Clone(r.Dedup),
	}
}

// PositionList lists the recorded positions by content.
func (r *Replica) PositionList() []dtx.Position {
	var out []dtx.Position
	for _, c := range r.h.Contents() {
		if l, ok := r.Positions[c]; ok {
			out = append(out, dtx.Position{Content: c, LSN: l})
		}
	}
	return out
}

// DedupList lists the dedup set.
func (r *Replica) DedupList() []dtx.DedupEntry {
	var out []dtx.DedupEntry
	for _, g := range slices.Sorted(maps.Keys(r.Dedup)) {
		out = append(out, r.Dedup[g])
	}
	return out
}

// Apply applies a batch and says which rule it breaks.
func (r *Replica) Apply(b *dtx.Batch) error {
	seen := map[dtx.GXID]int{}
	for _, st := range b.Steps {
		if err := r.applyStep(&st, seen); err != nil {
			return err
		}
	}
	for _, g := range b.GXIDs {
		if r.Applied[g] {
			return fmt.Errorf("gxid %d is released twice", g)
		}
		r.Applied[g] = true
		if seen[g] != r.h.want[g] || seen[g] == 0 {
			return fmt.Errorf("gxid %d is released with %d of %d parts", g, seen[g], r.h.want[g])
		}
		delete(seen, g)
	}
	if len(seen) > 0 {
		return fmt.Errorf("steps hold parts of dtxs that the batch does not list: %v", slices.Sorted(maps.Keys(seen)))
	}
	if err := r.record(b); err != nil {
		return err
	}
	if sum := r.sum(); r.h.total != 0 && sum != r.h.total {
		return fmt.Errorf("after batch %d (gxids %v) the total is %d, at every commit of the source it was %d", b.Seq, b.GXIDs, sum, r.h.total)
	}
	if err := r.checkOrder(); err != nil {
		return err
	}
	return r.checkPositions()
}

func (r *Replica) sum() (sum int) {
	for _, v := range r.val {
		sum += v
	}
	return sum
}

func (r *Replica) applyStep(st *dtx.Step, seen map[dtx.GXID]int) error {
	for i, p := range st.Parts {
		seen[p.GXID]++
		if i > 0 {
			if q := st.Parts[i-1]; q.Content > p.Content || q.Content == p.Content && q.EndLSN >= p.EndLSN {
				return fmt.Errorf("a step is not in content and stream order")
			}
		}
		sp, ok := r.h.parts[place{p.GXID, p.Content}]
		if !ok {
			return fmt.Errorf("gxid %d has no part on content %d", p.GXID, p.Content)
		}
		if sp.truncate != st.Barrier || st.Barrier && p.GXID != st.Parts[0].GXID {
			return fmt.Errorf("gxid %d: a barrier's step is mixed with others", p.GXID)
		}
		for _, w := range sp.writes {
			if r.ver[w.row] != w.old {
				return fmt.Errorf("gxid %d writes row %d over version %d, expected %d", p.GXID, w.row, r.ver[w.row], w.old)
			}
			r.val[w.row], r.ver[w.row] = w.amount, w.new
		}
	}
	return nil
}

// record takes positions and dedup set.
func (r *Replica) record(b *dtx.Batch) error {
	for _, p := range b.Positions {
		if p.LSN <= r.Positions[p.Content] {
			return fmt.Errorf("%s does not move", p)
		}
		r.Positions[p.Content] = p.LSN
	}
	for _, g := range b.DedupDrop {
		if _, ok := r.Dedup[g]; !ok {
			return fmt.Errorf("gxid %d is dropped from the dedup set without being there", g)
		}
		delete(r.Dedup, g)
	}
	for _, d := range b.DedupAdd {
		if _, ok := r.Dedup[d.GXID]; ok {
			return fmt.Errorf("gxid %d is added to the dedup set twice", d.GXID)
		}
		r.Dedup[d.GXID] = d
	}
	return nil
}

// checkOrder is rule O2: two-phase dtxs are a prefix of the record order.
func (r *Replica) checkOrder() error {
	var open dtx.GXID
	for _, l := range r.h.Logs[dtx.Coordinator] {
		if l.Kind != dtx.EventRecord || l.Record.Kind != dtx.TwoPhase {
			continue
		}
		switch g := l.Record.GXID; {
		case !r.Applied[g]:
			open = g
		case open != 0:
			return fmt.Errorf("gxid %d is released before gxid %d, whose record is earlier", g, open)
		}
	}
	return nil
}

// Covered is up to where everything of a stream is applied by the record.
func (r *Replica) Covered(c dtx.Content) dtx.LSN {
	lsn := r.Positions[c]
	for _, p := range r.Dedup[dtx.AllGXIDs].Pending {
		if p.Content == c {
			lsn = max(lsn, p.LSN)
		}
	}
	return lsn
}

// checkPositions: what is covered is applied; what is applied and not covered is in
// the dedup set; no stream resumes between PREPARE and COMMIT PREPARED. This is
// what exactly once after a restart needs.
func (r *Replica) checkPositions() error {
	for _, c := range r.h.Contents() {
		at, covered := r.Positions[c], r.Covered(c)
		for _, l := range r.h.Logs[c] {
			var g dtx.GXID
			switch {
			case l.Kind == dtx.EventPart:
				g = l.Part.GXID
			case l.Kind == dtx.EventRecord && l.Record.Kind == dtx.TwoPhase:
				g = l.Record.GXID
			default:
				continue
			}
			_, remembered := r.Dedup[g]
			switch {
			case l.LSN <= covered && !r.Applied[g]:
				return fmt.Errorf("content %d is recorded up to %s, beyond gxid %d (at %s), which is not applied", c, covered, g, l.LSN)
			case l.LSN > covered && r.Applied[g] && !remembered:
				return fmt.Errorf("gxid %d is applied, content %d will deliver it again at %s (recorded up to %s), and it is not in the dedup set", g, c, l.LSN, covered)
			case l.Prepare != 0 && l.Prepare <= at && at < l.LSN:
				return fmt.Errorf("content %d is recorded at %s, between PREPARE (%s) and COMMIT PREPARED (%s) of gxid %d", c, at, l.Prepare, l.LSN, g)
			}
		}
	}
	return nil
}

// Compare says how the replica differs from the source at its end.
func (r *Replica) Compare() error {
	if len(r.Applied) != len(r.h.GXIDs) {
		return fmt.Errorf("%d of %d dtxs are applied", len(r.Applied), len(r.h.GXIDs))
	}
	if !slices.Equal(r.val, r.h.final) {
		return fmt.Errorf("rows are %v on the target and %v on the source", r.val, r.h.final)
	}
	return nil
}

// Oldest is the commit time of the oldest dtx of the source that was committed by
// the given time and is not applied.
func (r *Replica) Oldest(by dtx.PGTime) (oldest dtx.PGTime, ok bool) {
	for g, at := range r.h.Commits {
		if at <= by && !r.Applied[g] && (!ok || at < oldest) {
			oldest, ok = at, true
		}
	}
	return oldest, ok
}
