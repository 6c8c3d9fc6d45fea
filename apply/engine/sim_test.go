package engine

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/router"
)

var errEOF = io.EOF

// simRow is a row of the simulated source.
type simRow struct {
	vals    []mval // by source column
	content int
	extra   string // the target-only column's value
}

// simTable is a table of the simulated source with its target.
type simTable struct {
	src    catalog.PublishedTable
	rel    *pgoutput.Relation
	tgt    *catalog.Table
	rows   []*simRow
	key    []int // the identity's source columns; nil: the whole row
	unique [][]int
	dist   []int // of the source's hash policy
	toast  []bool
	extra  bool
	nulls  bool
	full   bool
	random bool // source policy
	repl   bool
	// crossesContents: a row that leaves one content and enters another with the same values
	// may count as unchanged, its target-only column included.
	crossesContents bool
}

// sim is a source of n contents: it changes rows and writes what the contents'
// streams would hold.
type sim struct {
	t        *rapid.T
	contents int
	tables   []*simTable
	parts    [][]*pgoutput.Change // of the open dtx, by content
	gxid     dtx.GXID
	lsn      dtx.LSN
	rows     memRows
	spool    dtx.SpoolID
	log      strings.Builder
}

func (s *sim) draw(label string, n int) int { return rapid.IntRange(0, n-1).Draw(s.t, label) }
func (s *sim) coin(label string) bool       { return rapid.Bool().Draw(s.t, label) }

var textType, _ = router.BuiltinType(25)

// newTable draws a table's shape.
func (s *sim) newTable(i, segments int) *simTable {
	st := &simTable{}
	n := 2 + s.draw("columns", 4)
	name := fmt.Sprintf("t%d", i)
	st.src = catalog.PublishedTable{Schema: "public", Name: name}
	st.rel = &pgoutput.Relation{ID: uint32(100 + i), Schema: "public", Name: name}
	names := []string{"a", "b", "c", "d", "e"}[:n]
	st.toast = make([]bool, n)
	for j := range st.toast {
		st.toast[j] = s.draw("toast", 3) == 0
	}
	st.nulls = s.coin("nulls")
	st.extra = s.coin("extra column")
	var target []int
	perm := rapid.Permutation([]int{0, 1, 2, 3, 4}[:n]).Draw(s.t, "target order")
	st.tgt = &catalog.Table{Schema: "public", Name: name, Kind: catalog.Heap}
	for _, j := range perm {
		st.tgt.Columns = append(st.tgt.Columns, textColumn(names[j]))
	}
	if st.extra {
		at := s.draw("extra place", n+1)
		c := textColumn("x")
		c.HasDefault = true
		st.tgt.Columns = slices.Insert(st.tgt.Columns, at, c)
	}
	toTarget := func(cols []int) []int {
		out := make([]int, len(cols))
		for k, j := range cols {
			out[k] = st.tgt.Column(names[j])
		}
		return out
	}
	addUnique := func(cols []int, primary bool) {
		st.unique = append(st.unique, cols)
		tc := toTarget(cols)
		reads := slices.Clone(tc)
		slices.Sort(reads)
		st.tgt.Uniques = append(st.tgt.Uniques, catalog.Unique{Name: "u", Columns: tc, Reads: reads, Plain: true, Primary: primary})
	}

	switch s.draw("source policy", 4) {
	case 0:
		st.repl = true
	case 1:
		st.random = true
	default:
		st.dist = []int{0}
		if s.coin("two dist columns") {
			st.dist = append(st.dist, 1)
		}
	}
	identity := s.draw("identity", 4) // default, index, full with key, full without
	st.key = []int{0}
	if len(st.dist) == 2 || s.coin("two key columns") {
		st.key = []int{0, 1}
	}
	// The row of an identity goes from one content to another.
	crossesContents := identity < 3 && st.random && s.contents > 1
	if identity < 3 && len(st.dist) == 1 && s.coin("key without the distribution key") {
		crossesContents, st.dist, st.key = true, []int{1}, []int{0}
	}
	st.src.Identity, st.full = pgoutput.IdentityDefault, identity >= 2
	switch identity {
	case 1:
		st.src.Identity = pgoutput.IdentityIndex
		addUnique(st.key, false)
	case 3:
		st.key = nil
	default:
		addUnique(st.key, true)
	}
	if st.full {
		st.src.Identity = pgoutput.IdentityFull
	}
	st.crossesContents = crossesContents
	// A secondary unique constraint holds the distribution key, too.
	if st.key != nil && n > 2 && !crossesContents && s.coin("second unique") {
		cols := append(slices.Clone(st.dist), n-1)
		addUnique(cols, false)
	}
	for _, j := range st.key {
		st.tgt.Columns[st.tgt.Column(names[j])].NotNull = true
	}
	for j, nm := range names {
		isKey := slices.Contains(st.key, j)
		st.src.Columns = append(st.src.Columns, catalog.PublishedColumn{
			Name: nm, TypeOID: 25, TypeName: "text",
			Key: isKey || st.full, PrimaryKey: isKey && identity != 1 && s.coin("source knows its key"),
		})
		st.rel.Columns = append(st.rel.Columns, pgoutput.Column{Name: nm, TypeOID: 25, Key: isKey || st.full})
	}
	if st.full && st.key != nil { // all of the key or none of it
		all := s.coin("source primary key")
		for _, j := range st.key {
			st.src.Columns[j].PrimaryKey = all
		}
	}
	st.rel.Identity = st.src.Identity
	st.src.Deferrable = st.key != nil && st.full && s.coin("deferrable")
	switch {
	case st.repl:
		st.src.Policy = router.Policy{Kind: router.Replicated, NumSegments: s.contents}
	case st.random:
		st.src.Policy = router.Policy{Kind: router.Random, NumSegments: s.contents}
	default:
		st.src.Policy = router.Policy{Kind: router.Hash, NumSegments: s.contents}
		for _, d := range st.dist {
			st.src.Policy.Columns = append(st.src.Policy.Columns, router.Column{Name: names[d], Type: textType})
		}
	}
	p := router.Policy{NumSegments: segments}
	switch s.draw("target policy", 4) {
	case 0:
		p.Kind = router.Replicated
	case 1:
		p.Kind = router.Random
	default:
		p.Kind = router.Hash
		target = rapid.SliceOfNDistinct(rapid.IntRange(0, n-1), 1, 2, rapid.ID).Draw(s.t, "target key")
		for _, j := range target {
			p.Columns = append(p.Columns, router.Column{Name: names[j], Type: textType})
		}
	}
	st.tgt.Policy = p
	return st
}

func (st *simTable) contentOf(s *sim, r *simRow) int {
	switch {
	case st.repl:
		return 0
	case st.random:
		return r.content
	}
	h := 0
	for _, d := range st.dist {
		for _, c := range []byte(r.vals[d].String()) {
			h = h*31 + int(c)
		}
	}
	return h % s.contents
}

// value draws a column's value; large ones are long enough to be TOASTed.
func (s *sim) value(st *simTable, j int) mval {
	if st.nulls && !slices.Contains(st.key, j) && !slices.Contains(st.dist, j) && s.draw("null", 5) == 0 {
		return mval{null: true}
	}
	v := fmt.Sprint(s.draw("value", 6))
	if st.toast[j] && s.coin("large") {
		v = "L" + v
	}
	return mval{text: v}
}

func large(v mval) bool { return strings.HasPrefix(v.text, "L") }

func (st *simTable) allowed(except *simRow, vals []mval) bool {
	for _, u := range st.unique {
		for _, o := range st.rows {
			if o == except {
				continue
			}
			equal := true
			for _, j := range u {
				equal = equal && !vals[j].null && vals[j] == o.vals[j]
			}
			if equal {
				return false
			}
		}
	}
	return true
}

func tupleOf(vals []mval) []pgoutput.Value {
	out := make([]pgoutput.Value, len(vals))
	for i, v := range vals {
		out[i] = pgoutput.Value{Kind: pgoutput.ValueNull}
		if !v.null {
			out[i] = pgoutput.Value{Kind: pgoutput.ValueText, Data: []byte(v.text)}
		}
	}
	return out
}

// emit writes a change to the streams of the contents that have the row.
func (s *sim) emit(st *simTable, content int, c *pgoutput.Change) {
	fmt.Fprintf(&s.log, "  gxid %s content %d: %s %c %q %q\n", s.gxid, content, st.src.Name, c.Type, c.Old.Raw(), c.New.Raw())
	for i := range s.parts {
		if st.repl || i == content {
			s.parts[i] = append(s.parts[i], c)
		}
	}
}

func (s *sim) emitInsert(st *simTable, r *simRow) {
	s.emit(st, r.content, rowMessage(st.rel, pgoutput.TypeInsert, 0, nil, tupleOf(r.vals)))
}

// oldTuple is what the server logs of the old row.
func (st *simTable) oldTuple(vals []mval) (byte, []pgoutput.Value) {
	if st.full {
		return 'O', tupleOf(vals)
	}
	old := tupleOf(vals)
	for j := range old {
		if !slices.Contains(st.key, j) {
			old[j] = pgoutput.Value{Kind: pgoutput.ValueNull}
		}
	}
	return 'K', old
}

func (s *sim) emitDelete(st *simTable, content int, vals []mval) {
	kind, old := st.oldTuple(vals)
	s.emit(st, content, rowMessage(st.rel, pgoutput.TypeDelete, kind, old, nil))
}

func (s *sim) emitUpdate(st *simTable, content int, was, is []mval) {
	kind, old := st.oldTuple(was)
	now := tupleOf(is)
	keyLogged := st.full
	for j := range now {
		if st.toast[j] && large(is[j]) && is[j] == was[j] {
			now[j] = pgoutput.Value{Kind: pgoutput.ValueUnchanged}
			keyLogged = keyLogged || slices.Contains(st.key, j)
		}
		keyLogged = keyLogged || slices.Contains(st.key, j) && is[j] != was[j]
	}
	if !keyLogged {
		kind, old = 0, nil
	}
	s.emit(st, content, rowMessage(st.rel, pgoutput.TypeUpdate, kind, old, now))
}

func (s *sim) insert(st *simTable) {
	r := &simRow{vals: make([]mval, len(st.rel.Columns)), extra: "default"}
	for j := range r.vals {
		r.vals[j] = s.value(st, j)
	}
	if !st.allowed(nil, r.vals) {
		return
	}
	if st.random {
		r.content = s.draw("content", s.contents)
	}
	r.content = st.contentOf(s, r)
	st.rows = append(st.rows, r)
	s.emitInsert(st, r)
}

func (s *sim) pick(st *simTable) (int, *simRow) {
	if len(st.rows) == 0 {
		return 0, nil
	}
	i := s.draw("row", len(st.rows))
	return i, st.rows[i]
}

func (s *sim) delete(st *simTable) {
	i, r := s.pick(st)
	if r == nil {
		return
	}
	st.rows = slices.Delete(st.rows, i, i+1)
	s.emitDelete(st, r.content, r.vals)
}

// set changes a row; a change of content is a delete there and an insert here.
func (s *sim) set(st *simTable, r *simRow, vals []mval) {
	was := r.vals
	r.vals = vals
	content := r.content
	r.content = st.contentOf(s, r)
	if r.content != content {
		s.emitDelete(st, content, was)
		r.extra = "default"
		s.emitInsert(st, r)
		return
	}
	s.emitUpdate(st, content, was, vals)
}

func (s *sim) update(st *simTable) {
	_, r := s.pick(st)
	if r == nil {
		return
	}
	vals := slices.Clone(r.vals)
	for k := s.draw("columns set", 3); k >= 0; k-- {
		j := s.draw("column", len(vals))
		vals[j] = s.value(st, j)
	}
	if st.allowed(r, vals) {
		s.set(st, r, vals)
	}
}

// rotate permutes the keys of some rows in one statement, as a deferrable key
// allows: in between, two rows share a key. Only FULL identities can be so.
func (s *sim) rotate(st *simTable) {
	// Two rows that print alike for a moment cannot be told apart, so their
	// target-only columns may change places.
	if !st.src.Deferrable || len(st.rows) < 2 || st.extra {
		return
	}
	_, first := s.pick(st)
	group := []*simRow{}
	for _, r := range st.rows { // all in one content, before and after
		same := true
		for _, d := range st.dist {
			same = same && r.vals[d] == first.vals[d]
		}
		if same || len(st.dist) == 0 {
			group = append(group, r)
		}
	}
	next := make([][]mval, len(group))
	for i, r := range group {
		next[i] = slices.Clone(r.vals)
		for _, k := range st.key {
			next[i][k] = group[(i+1)%len(group)].vals[k]
		}
	}
	was := make([][]mval, len(group))
	for i, r := range group {
		was[i], r.vals = r.vals, next[i]
	}
	for _, r := range group {
		if !st.allowed(r, r.vals) {
			for i, r := range group {
				r.vals = was[i]
			}
			return
		}
	}
	for i, r := range group {
		s.emitUpdate(st, r.content, was[i], next[i])
	}
}

// dtx makes one distributed transaction and returns its parts.
func (s *sim) dtx() dtx.Step {
	s.gxid++
	s.parts = make([][]*pgoutput.Change, s.contents)
	barrier := false
	for range 1 + s.draw("operations", 8) {
		st := s.tables[s.draw("table", len(s.tables))]
		switch k := s.draw("operation", 24); {
		case k < 8:
			s.insert(st)
		case k < 16:
			s.update(st)
		case k < 21:
			s.delete(st)
		case k < 23:
			s.rotate(st)
		case s.draw("truncate", 2) == 0:
			barrier = true
			c := &pgoutput.Change{Row: pgoutput.Row{Type: pgoutput.TypeTruncate}, Relations: []*pgoutput.Relation{st.rel}}
			st.rows = nil
			if s.coin("two tables") {
				other := s.tables[s.draw("other", len(s.tables))]
				if other != st {
					c.Relations = append(c.Relations, other.rel)
					other.rows = nil
				}
			}
			for i := range s.parts {
				s.parts[i] = append(s.parts[i], c)
			}
		}
	}
	step := dtx.Step{Barrier: barrier}
	lowest := true
	for c, changes := range s.parts {
		if len(changes) == 0 && s.draw("silent participant", 2) == 0 {
			continue
		}
		s.lsn++
		s.spool++
		s.rows[s.spool] = changes
		step.Parts = append(step.Parts, dtx.Part{GXID: s.gxid, Content: dtx.Content(c), EndLSN: s.lsn, Spool: s.spool, Lowest: lowest})
		lowest = false
	}
	return step
}

// batch groups dtxs as the merge engine does: per content in order, barriers
// apart.
func (s *sim) batch() *dtx.Batch {
	b := &dtx.Batch{}
	var open []dtx.Part
	closeStep := func() {
		if len(open) > 0 {
			slices.SortStableFunc(open, func(a, b dtx.Part) int { return int(a.Content) - int(b.Content) })
			b.Steps = append(b.Steps, dtx.Step{Parts: open})
			open = nil
		}
	}
	for range 1 + s.draw("dtxs", 5) {
		step := s.dtx()
		if step.Barrier {
			closeStep()
			b.Steps = append(b.Steps, step)
			continue
		}
		open = append(open, step.Parts...)
	}
	closeStep()
	return b
}
