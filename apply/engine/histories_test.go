package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/internal/soak"
	"cbrepl/router"
)

// meddle changes the target-only column of some rows on the target, as its own
// users would.
func (s *sim) meddle(m *model, st *simTable) {
	if !st.extra || st.key == nil || st.crossesContents {
		return
	}
	for n, r := range st.rows {
		if s.draw("meddle", 3) > 0 {
			continue
		}
		r.extra = fmt.Sprintf("x%d.%d", s.gxid, n)
		for _, rows := range m.rows[st.tgt] {
			for _, tr := range rows {
				same := true
				for _, k := range st.key {
					same = same && tr.vals[st.tgt.Column(st.rel.Columns[k].Name)] == r.vals[k]
				}
				if same {
					tr.vals[st.tgt.Column("x")] = mval{text: r.extra}
				}
			}
		}
	}
}

// scatter moves rows of a random table, as another loader might have placed
// them.
func (s *sim) scatter(m *model, st *simTable) {
	if st.tgt.Policy.Kind != router.Random || len(m.segs) < 2 || !s.coin("scatter") {
		return
	}
	for _, seg := range m.segs {
		rows := m.rows[st.tgt][seg]
		if len(rows) == 0 {
			continue
		}
		to := m.segs[s.draw("to", len(m.segs))]
		if to != seg {
			m.rows[st.tgt][to] = append(m.rows[st.tgt][to], rows[0])
			m.rows[st.tgt][seg] = rows[1:]
		}
	}
}

// want prints what the target should hold.
func (st *simTable) want(e *Engine) []string {
	var out []string
	tbl := e.tables[catalog.Name{Schema: "public", Table: st.tgt.Name}]
	for _, r := range st.rows {
		vals := make([]mval, len(st.tgt.Columns))
		for c := range st.tgt.Columns {
			vals[c] = mval{text: r.extra}
		}
		for j := range r.vals {
			vals[st.tgt.Column(st.rel.Columns[j].Name)] = r.vals[j]
		}
		line := fmt.Sprint(vals)
		switch tbl.place {
		case placeServer:
			out = append(out, "-1: "+line)
		case placeRandom:
			out = append(out, line)
		case placeReplicated:
			for _, seg := range tbl.segs {
				out = append(out, fmt.Sprintf("%d: %s", seg, line))
			}
		case placeHash:
			var key [][]byte
			for _, c := range st.tgt.Policy.Columns {
				v := vals[st.tgt.Column(c.Name)]
				if v.null {
					key = append(key, nil)
				} else {
					key = append(key, []byte(v.text))
				}
			}
			seg, err := tbl.router.Segment(key)
			if err != nil {
				panic(err)
			}
			out = append(out, fmt.Sprintf("%d: %s", seg, line))
		}
	}
	slices.Sort(out)
	return out
}

// describe prints tables and history.
func (s *sim) describe() string {
	var b strings.Builder
	for _, st := range s.tables {
		fmt.Fprintf(&b, "table %s: identity %c, key %v, unique %v, toast %v, source policy %d %v; target %v by %s\n", st.src.Name,
			st.rel.Identity, st.key, st.unique, st.toast, st.src.Policy.Kind, st.dist, st.tgt.ColumnNames([]int{0, 1, 2, 3, 4, 5}[:len(st.tgt.Columns)]), st.tgt.Policy)
	}
	return b.String() + s.log.String()
}

// TestRandomHistories applies random histories on random table shapes, in
// random batches under random limits, and compares with the source.
func TestRandomHistories(t *testing.T) {
	soak.Check(t, 100, 5000, func(rt *rapid.T) {
		s := &sim{t: rt, rows: memRows{}}
		s.contents = 1 + s.draw("contents", 3)
		segments := s.draw("segments", 4) // 0: the server places rows
		opt := apply.Options{
			WindowBytes: int64(rapid.SampledFrom([]int{1, 300, 1000, 1 << 20}).Draw(rt, "window bytes")),
			WindowRows:  rapid.SampledFrom([]int{1, 2, 5, 1000}).Draw(rt, "window rows"),
			ChunkBytes:  rapid.SampledFrom([]int{1, 50, 1 << 20}).Draw(rt, "chunk bytes"),
			ChunkRows:   rapid.SampledFrom([]int{1, 3, 1000}).Draw(rt, "chunk rows"),
			TurnRows:    rapid.SampledFrom([]int{1, 3, 1000}).Draw(rt, "turn rows"),
			BinaryCopy:  s.coin("binary copy"),
			HoldBytes:   1 << 20,
			FetchBytes:  int64(rapid.SampledFrom([]int{1, 2000, 1 << 20}).Draw(rt, "fetch bytes")),
			QueueBytes:  int64(rapid.SampledFrom([]int{1, 100, 1 << 20}).Draw(rt, "queue bytes")),
		}
		if s.coin("log") {
			opt.OnConflict = apply.ConflictLog
		}
		var sources []catalog.PublishedTable
		var targets []*catalog.Table
		for i := range 1 + s.draw("tables", 3) {
			st := s.newTable(i, max(segments, 1))
			s.tables = append(s.tables, st)
			sources = append(sources, st.src)
			targets = append(targets, st.tgt)
		}
		if slices.ContainsFunc(s.tables, func(st *simTable) bool { return st.crossesContents && s.contents > 1 }) {
			opt.OnConflict = apply.ConflictStop // which such tables need
		}
		m := newModel(segments, targets...)
		e, err := New(opt, apply.NameMap{}, sources, targets, m.Segments(), nil)
		if err != nil {
			rt.Fatal(err)
		}
		for range 1 + s.draw("batches", 5) {
			for _, st := range s.tables {
				s.meddle(m, st)
				s.scatter(m, st)
			}
			b := s.batch()
			s.log.WriteString("  apply\n")
			res, err := e.Apply(context.Background(), b, s.rows, m)
			if err != nil {
				rt.Fatalf("%v\n%s", err, s.describe())
			}
			if len(res.Conflicts) > 0 {
				rt.Fatalf("conflicts: %v\n%s", res.Conflicts, s.describe())
			}
			for _, st := range s.tables {
				got := m.lines(st.tgt, st.tgt.Policy.Kind != router.Random || segments == 0)
				want := st.want(e)
				if !slices.Equal(got, want) {
					rt.Fatalf("table %s\n got %s\nwant %s\n%s", st.src.Name,
						strings.Join(got, "\n     "), strings.Join(want, "\n     "), s.describe())
				}
			}
		}
	})
}
