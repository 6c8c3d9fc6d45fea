package conformance

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/pgoutput/pgotest"
)

// Values is a row's published columns in table order; nil is NULL.
type Values []*string

// V makes values of strings; the string "\N" is NULL.
func V(vals ...string) Values {
	out := make(Values, len(vals))
	for i, v := range vals {
		if v != `\N` {
			out[i] = &v
		}
	}
	return out
}

// Source is a plain model of a source cluster: rows of every table, and what the
// contents' streams hold of the changes made. It never compares a row by anything
// but its values' text.
type Source struct {
	contents int
	tables   []*tableState
	gxid     dtx.GXID
	lsn      dtx.LSN
	batch    uint64

	open    map[int]*part // of the open dtx
	barrier bool
	steps   []dtx.Step
	gxids   []dtx.GXID
	moved   map[dtx.Content]dtx.LSN
	spooled map[dtx.SpoolID][][]byte
	// OnRow, when set, is called before each row that a target reads.
	OnRow func()
}

type tableState struct {
	t    *Table
	rel  *pgoutput.Relation
	rows []*modelRow
}

type modelRow struct {
	vals    Values
	content int
}

type part struct {
	msgs [][]byte
	rels map[uint32]bool
	rows int64
}

// NewSource returns a source of n contents with empty tables.
func NewSource(contents int, tables ...*Table) *Source {
	s := &Source{
		contents: contents, gxid: 100, lsn: 0x1000, open: map[int]*part{}, moved: map[dtx.Content]dtx.LSN{},
		spooled: map[dtx.SpoolID][][]byte{},
	}
	for i, t := range tables {
		s.tables = append(s.tables, &tableState{t: t, rel: t.relation(uint32(5000 + i))})
	}
	return s
}

// First are the streams and positions of a new subscription.
func (s *Source) First() ([]apply.StreamIdentity, []dtx.Position) {
	var streams []apply.StreamIdentity
	var positions []dtx.Position
	for c := -1; c < s.contents; c++ {
		streams = append(streams, apply.StreamIdentity{Content: dtx.Content(c), SystemID: "7300000000000000001", Slot: "cb_slot", Timeline: 2})
		positions = append(positions, dtx.Position{Content: dtx.Content(c), LSN: 0x1000})
	}
	return streams, positions
}

func (s *Source) state(t *Table) *tableState {
	i := slices.IndexFunc(s.tables, func(ts *tableState) bool { return ts.t == t })
	return s.tables[i]
}

// Rows are the table's rows.
func (s *Source) Rows(t *Table) []Values {
	var out []Values
	for _, r := range s.state(t).rows {
		out = append(out, r.vals)
	}
	return out
}

// content places a row by the first column of its key, or its first column at
// all, as a distribution key would: changes of one identity come from one content.
func (s *Source) content(t *Table, v Values) int {
	at := 0
	if len(t.Key) > 0 {
		at = slices.IndexFunc(t.Published(), func(c Column) bool { return c.Name == t.Key[0] })
	}
	if v[at] == nil || t.SourceReplicated {
		return 0
	}
	h := uint32(2166136261)
	for _, c := range []byte(*v[at]) {
		h = (h ^ uint32(c)) * 16777619
	}
	return int(h) % s.contents
}

// send adds a message to a content's part, its relation first.
func (s *Source) send(ts *tableState, content int, msg []byte) {
	contents := []int{content}
	if ts.t.SourceReplicated {
		contents = contents[:0]
		for c := range s.contents {
			contents = append(contents, c)
		}
	}
	for _, c := range contents {
		p := s.part(c)
		if !p.rels[ts.rel.ID] {
			p.rels[ts.rel.ID] = true
			p.msgs = append(p.msgs, pgotest.Relation(0, ts.rel))
		}
		p.msgs = append(p.msgs, msg)
		p.rows++
	}
}

func (s *Source) part(c int) *part {
	if s.open[c] == nil {
		s.open[c] = &part{rels: map[uint32]bool{}}
	}
	return s.open[c]
}

func wire(v Values) []pgoutput.Value {
	out := make([]pgoutput.Value, len(v))
	for i, x := range v {
		if x == nil {
			out[i] = pgotest.Null()
		} else {
			out[i] = pgotest.Text(*x)
		}
	}
	return out
}

// identity is the old tuple that the source sends of a row, and its kind.
func (ts *tableState) identity(v Values) (byte, []pgoutput.Value) {
	vals := wire(v)
	if ts.t.Identity == pgoutput.IdentityFull {
		return 'O', vals
	}
	for i := range vals {
		if !ts.rel.Columns[i].Key {
			vals[i] = pgotest.Null()
		}
	}
	return 'K', vals
}

// Insert adds a row.
func (s *Source) Insert(t *Table, v Values) {
	ts := s.state(t)
	r := &modelRow{vals: v, content: s.content(t, v)}
	ts.rows = append(ts.rows, r)
	s.send(ts, r.content, pgotest.Insert(0, ts.rel.ID, wire(v)...))
}

// Find returns the index of the first row whose first column has the text.
func (s *Source) Find(t *Table, first string) int {
	return slices.IndexFunc(s.state(t).rows, func(r *modelRow) bool { return r.vals[0] != nil && *r.vals[0] == first })
}

// Update gives row i new values. Columns in unchanged keep their value and are
// sent as unchanged TOAST. A row that belongs to another content then is deleted
// there and inserted here, as an MPP source does.
func (s *Source) Update(t *Table, i int, v Values, unchanged ...int) {
	ts := s.state(t)
	r := ts.rows[i]
	for _, c := range unchanged {
		v[c] = r.vals[c]
	}
	if to := s.content(t, v); to != r.content {
		kind, old := ts.identity(r.vals)
		s.send(ts, r.content, pgotest.Delete(0, ts.rel.ID, kind, old...))
		s.send(ts, to, pgotest.Insert(0, ts.rel.ID, wire(v)...))
		r.vals, r.content = v, to
		return
	}
	row := wire(v)
	for _, c := range unchanged {
		if row[c].Kind != pgoutput.ValueNull {
			row[c] = pgotest.Unchanged()
		}
	}
	kind, old := ts.identity(r.vals)
	if kind == 'K' {
		changed := false
		for c := range v {
			changed = changed || ts.rel.Columns[c].Key && *v[c] != *r.vals[c]
		}
		if !changed {
			kind, old = 0, nil
		}
	}
	s.send(ts, r.content, pgotest.Update(0, ts.rel.ID, kind, old, row))
	r.vals = v
}

// Delete removes row i.
func (s *Source) Delete(t *Table, i int) {
	ts := s.state(t)
	r := ts.rows[i]
	kind, old := ts.identity(r.vals)
	s.send(ts, r.content, pgotest.Delete(0, ts.rel.ID, kind, old...))
	ts.rows = slices.Delete(ts.rows, i, i+1)
}

// Truncate empties tables in one statement. opts are the message's option bits.
func (s *Source) Truncate(opts byte, tables ...*Table) {
	s.barrier = true
	for c := range s.contents {
		p := s.part(c)
		var ids []uint32
		for _, t := range tables {
			ts := s.state(t)
			if !p.rels[ts.rel.ID] {
				p.rels[ts.rel.ID] = true
				p.msgs = append(p.msgs, pgotest.Relation(0, ts.rel))
			}
			ids = append(ids, ts.rel.ID)
		}
		p.msgs = append(p.msgs, pgotest.Truncate(0, opts, ids...))
		p.rows++
	}
	for _, t := range tables {
		s.state(t).rows = nil
	}
}

// Raw adds a message as it stands, without changing the model: what a diverged
// source would send.
func (s *Source) Raw(t *Table, v Values, msg func(rel uint32) []byte) {
	ts := s.state(t)
	s.send(ts, s.content(t, v), msg(ts.rel.ID))
}

// Commit ends the open dtx.
func (s *Source) Commit() dtx.GXID {
	s.gxid++
	step := dtx.Step{Barrier: s.barrier}
	lowest := true
	for c := range s.contents {
		p := s.open[c]
		if p == nil {
			continue
		}
		s.lsn += 0x100
		id := dtx.SpoolID(len(s.spooled) + 1)
		s.spooled[id] = p.msgs
		step.Parts = append(step.Parts, dtx.Part{
			GXID: s.gxid, Kind: dtx.TwoPhase, Content: dtx.Content(c), EndLSN: s.lsn,
			Rows: p.rows, Barrier: s.barrier, Spool: id, Lowest: lowest,
		})
		s.moved[dtx.Content(c)] = s.lsn
		lowest = false
	}
	s.lsn += 0x100
	s.moved[dtx.Coordinator] = s.lsn
	s.gxids = append(s.gxids, s.gxid)
	if n := len(s.steps); !s.barrier && n > 0 && !s.steps[n-1].Barrier {
		last := &s.steps[n-1]
		last.Parts = append(last.Parts, step.Parts...)
		slices.SortStableFunc(last.Parts, func(a, b dtx.Part) int { return int(a.Content) - int(b.Content) })
	} else if len(step.Parts) > 0 {
		s.steps = append(s.steps, step)
	}
	s.open, s.barrier = map[int]*part{}, false
	return s.gxid
}

// Batch hands out everything committed since the last one.
func (s *Source) Batch() *dtx.Batch {
	s.batch++
	b := &dtx.Batch{Seq: s.batch, Steps: s.steps, GXIDs: s.gxids}
	for c, l := range s.moved {
		b.Positions = append(b.Positions, dtx.Position{Content: c, LSN: l})
	}
	dtx.SortPositions(b.Positions)
	for _, st := range b.Steps {
		for _, p := range st.Parts {
			b.Rows += p.Rows
		}
	}
	s.steps, s.gxids, s.moved = nil, nil, map[dtx.Content]dtx.LSN{}
	return b
}

// Open implements apply.Rows.
func (s *Source) Open(p dtx.Part) (apply.RowIter, error) {
	msgs, ok := s.spooled[p.Spool]
	if !ok {
		return nil, fmt.Errorf("no part %d", p.Spool)
	}
	return &iter{s: s, msgs: msgs, rels: map[uint32]*pgoutput.Relation{}}, nil
}

// iter decodes the messages of a part.
type iter struct {
	s    *Source
	msgs [][]byte
	rels map[uint32]*pgoutput.Relation
}

// Next implements apply.RowIter.
func (it *iter) Next() (*pgoutput.Change, error) {
	for len(it.msgs) > 0 {
		typ, _, body, err := pgoutput.Split(it.msgs[0], false)
		it.msgs = it.msgs[1:]
		if err != nil {
			return nil, err
		}
		if typ == pgoutput.TypeRelation {
			rel, err := pgoutput.ParseRelation(body)
			if err != nil {
				return nil, err
			}
			it.rels[rel.ID] = it.s.intern(rel)
			continue
		}
		if it.s.OnRow != nil {
			it.s.OnRow()
		}
		c := &pgoutput.Change{}
		if c.Row, err = pgoutput.ParseRow(typ, body); err != nil {
			return nil, err
		}
		for _, id := range c.Truncated {
			c.Relations = append(c.Relations, it.rels[id])
		}
		c.Relation = it.rels[c.RelationID]
		return c, nil
	}
	return nil, io.EOF
}

// intern gives equal relation messages one value, as a spool does.
func (s *Source) intern(rel *pgoutput.Relation) *pgoutput.Relation {
	for _, ts := range s.tables {
		if ts.rel.ID == rel.ID {
			return ts.rel
		}
	}
	return rel
}

// Close implements apply.RowIter.
func (it *iter) Close() error { return nil }

// lines prints rows, sorted.
func lines(rows []Values) []string {
	out := make([]string, 0, len(rows))
	for _, r := range rows {
		out = append(out, line(r))
	}
	slices.Sort(out)
	return out
}

func line(v []*string) string {
	var b strings.Builder
	for i, x := range v {
		if i > 0 {
			b.WriteByte('|')
		}
		switch {
		case x == nil:
			b.WriteString("NULL")
		case len(*x) > 200:
			fmt.Fprintf(&b, "%q...%d", (*x)[:40], len(*x))
		default:
			fmt.Fprintf(&b, "%q", *x)
		}
	}
	return b.String()
}

// UpdateMessage is an update of a row whose identity stays.
func UpdateMessage(rel uint32, v Values) []byte { return pgotest.Update(0, rel, 0, nil, wire(v)) }

// DeleteMessage is a delete by the identity in the columns key.
func DeleteMessage(rel uint32, v Values, key []int) []byte {
	old := wire(v)
	for i := range old {
		if !slices.Contains(key, i) {
			old[i] = pgotest.Null()
		}
	}
	return pgotest.Delete(0, rel, 'K', old...)
}
