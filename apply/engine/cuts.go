package engine

import (
	"fmt"
	"slices"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
)

// A first copy is taken while the source's streams are held at earlier positions, so
// the streams deliver once more what the copy holds. Of a part that the copy of a
// table holds (apply.Cut), the rows of that table are left out; everything else of
// the part, and of its dtx, is applied. So a dtx whose parts stand on both sides of
// the cut needs no care of its own.

// cuts are the cuts that the streams have not passed, by source table.
type cuts map[catalog.Name]*cut

// cut is one of them; its contents that have been passed are taken out of it.
type cut struct{ apply.Cut }

// SetCopies makes the engines that are made from then on leave out what the first
// copies of tables hold. recorded are the positions that the streams resume at.
func (s *Stream) SetCopies(copies []apply.TableCopy, recorded []dtx.Position) {
	s.cuts = nil
	for i := range copies {
		left := copies[i].Cut.Passed(recorded)
		if copies[i].State != apply.Copied || len(left.Positions) == 0 {
			continue
		}
		if s.cuts == nil {
			s.cuts = cuts{}
		}
		s.cuts[copies[i].Table] = &cut{left}
	}
}

// Recorded forgets the cuts that the streams have passed. The positions are those
// recorded now.
func (s *Stream) Recorded(positions []dtx.Position) {
	for name, c := range s.cuts {
		if c.Cut = c.Passed(positions); len(c.Positions) == 0 {
			delete(s.cuts, name)
		}
	}
}

// copyHasTruncate reports whether the first copy of rel's table holds the TRUNCATE
// that parts, those of one dtx, have. A copy holds it whole or not at all: the table
// is locked while a TRUNCATE ends, and its file is another one afterwards, by which
// the copier notices one that came between (package snapshot).
func (r *run) copyHasTruncate(rel *relation, parts []dtx.Part) (bool, error) {
	if rel.cut == nil {
		return false, nil
	}
	var has, lacks *dtx.Part
	for i := range parts {
		p := &parts[i]
		switch {
		case p.Spool == 0 || !slices.ContainsFunc(rel.cut.Positions, func(at dtx.Position) bool { return at.Content == p.Content }):
		case rel.cut.Has(p):
			has = p
		default:
			lacks = p
		}
	}
	if has != nil && lacks != nil {
		return false, r.rowError(rel.table, fmt.Sprintf("the first copy of %s holds this TRUNCATE as content %d ran it, and not as content %d did", rel.rel, has.Content, lacks.Content),
			"This is a bug in cbrepl; please report it. Nothing is applied")
	}
	return has != nil, nil
}
