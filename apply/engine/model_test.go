package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/router"
)

// model is a Backend in memory: per segment a list of rows. It checks unique
// constraints row by row, at once, as a server does for constraints that are not
// deferrable, and finds rows by text equality.
type model struct {
	segs []dtx.Content
	mu   sync.Mutex
	rows map[*catalog.Table]map[dtx.Content][]*mrow
	// statements counts operations.
	statements int
	// failAt makes operation number failAt fail.
	failAt int
}

// mrow is one row by target column. seq numbers physical rows.
type mrow struct {
	vals []mval
}

type mval struct {
	null bool
	text string
}

func (v mval) String() string {
	if v.null {
		return "NULL"
	}
	return v.text
}

func newModel(n int, tables ...*catalog.Table) *model {
	m := &model{rows: map[*catalog.Table]map[dtx.Content][]*mrow{}}
	if n == 0 {
		m.segs = []dtx.Content{apply.ServerPlaced}
	}
	for i := range n {
		m.segs = append(m.segs, dtx.Content(i))
	}
	for _, t := range tables {
		m.rows[t] = map[dtx.Content][]*mrow{}
	}
	return m
}

func (m *model) Segments() []dtx.Content { return m.segs }

var errDuplicate = errors.New("duplicate key")

func (m *model) begin() error {
	m.statements++
	if m.statements == m.failAt {
		return errors.New("injected")
	}
	return nil
}

// conflicts reports whether r, a row of the segment or not, violates a unique
// constraint against the others.
func (m *model) conflicts(t *catalog.Table, seg dtx.Content, r *mrow) bool {
	for _, u := range t.Uniques {
		for _, o := range m.rows[t][seg] {
			if o == r {
				continue
			}
			equal := true
			for _, c := range u.Columns {
				equal = equal && !r.vals[c].null && r.vals[c] == o.vals[c]
			}
			if equal {
				return true
			}
		}
	}
	return false
}

func (m *model) Copy(_ context.Context, seg dtx.Content, op *apply.CopyOp) (done apply.Inserted, err error) {
	done.Skipped = -1
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.begin(); err != nil {
		return done, err
	}
	if op.Binary && op.SkipDuplicates {
		return done, fmt.Errorf("COPY in binary format that skips duplicates")
	}
	rows, err := copyBody(op)
	if err != nil {
		return done, err
	}
	for i, fields := range rows {
		r := &mrow{vals: make([]mval, len(op.Table.Columns))}
		for c := range op.Table.Columns {
			r.vals[c] = mval{text: "default", null: !op.Table.Columns[c].HasDefault}
		}
		for j, c := range op.Cols {
			r.vals[c] = fields[j]
		}
		if m.conflicts(op.Table, seg, r) {
			if op.SkipDuplicates {
				done.Skipped = i
				continue
			}
			return done, &apply.DataError{Row: i, Duplicate: true, Err: errDuplicate}
		}
		m.rows[op.Table][seg] = append(m.rows[op.Table][seg], r)
		done.Rows++
	}
	return done, nil
}

// copyBody reads the rows of a COPY of text columns.
func copyBody(op *apply.CopyOp) ([][]mval, error) {
	var out [][]mval
	if op.Binary {
		b, ok := bytes.CutPrefix(op.Data, []byte(binaryHeader))
		for ok && len(b) > 2 {
			var row []mval
			ok = int(binary.BigEndian.Uint16(b)) == len(op.Cols)
			b = b[2:]
			for range op.Cols {
				n := binary.BigEndian.Uint32(b)
				b = b[4:]
				if n == nullLength {
					row = append(row, mval{null: true})
					continue
				}
				row = append(row, mval{text: string(b[:n])})
				b = b[n:]
			}
			out = append(out, row)
		}
		if !ok || string(b) != binaryTrailer {
			return nil, fmt.Errorf("COPY with a malformed binary body")
		}
	} else {
		for line := range strings.Lines(string(op.Data)) {
			fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
			if len(fields) != len(op.Cols) {
				return nil, fmt.Errorf("COPY line with %d fields, want %d", len(fields), len(op.Cols))
			}
			row := make([]mval, len(fields))
			for j, f := range fields {
				if row[j].null = f == `\N`; !row[j].null {
					row[j].text = copyUnescaper.Replace(f)
				}
			}
			out = append(out, row)
		}
	}
	if int64(len(out)) != op.Rows {
		return nil, fmt.Errorf("COPY of %d rows, announced %d", len(out), op.Rows)
	}
	return out, nil
}

func setValues(s apply.Set, n int) [][]mval {
	out := make([][]mval, n)
	for i := range out {
		out[i] = make([]mval, len(s.Cols))
	}
	for c, v := range s.Vals {
		if v.Len() != n {
			panic(fmt.Sprintf("vector of %d values for %d rows", v.Len(), n))
		}
		v.All(func(i int, b []byte) { out[i][c] = mval{b == nil, string(b)} })
	}
	return out
}

func (r *mrow) matches(cols []int, vals []mval) bool {
	for i, c := range cols {
		if r.vals[c] != vals[i] {
			return false
		}
	}
	return true
}

func (r *mrow) fetch(cols []int) []pgoutput.Value {
	var out []pgoutput.Value
	for _, c := range cols {
		if r.vals[c].null {
			out = append(out, pgoutput.Value{Kind: pgoutput.ValueNull})
		} else {
			out = append(out, pgoutput.Value{Kind: pgoutput.ValueText, Data: []byte(r.vals[c].text)})
		}
	}
	return out
}

func (m *model) Delete(_ context.Context, seg dtx.Content, op *apply.DeleteOp) (apply.Found, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.begin(); err != nil {
		return apply.Found{}, err
	}
	keys, differ := setValues(op.Keys, op.N), setValues(op.Differ, op.N)
	var found apply.Found
	for i := range keys {
		hit := false
		m.rows[op.Table][seg] = slices.DeleteFunc(m.rows[op.Table][seg], func(r *mrow) bool {
			if !r.matches(op.Keys.Cols, keys[i]) {
				return false
			}
			if len(op.Differ.Cols) > 0 && r.matches(op.Differ.Cols, differ[i]) {
				return false
			}
			hit = true
			found.Rows++
			if op.Ordinals || len(op.Fetch) > 0 {
				found.Ordinals = append(found.Ordinals, i)
				found.Values = append(found.Values, r.fetch(op.Fetch)...)
			}
			return true
		})
		if !hit && !op.Partial {
			found.Missing = append(found.Missing, i)
			found.MissingRows++
		}
	}
	return found, nil
}

func (m *model) Update(_ context.Context, seg dtx.Content, op *apply.UpdateOp) (apply.Found, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.begin(); err != nil {
		return apply.Found{}, err
	}
	keys, set, same := setValues(op.Keys, op.N), setValues(op.Set, op.N), setValues(op.Same, op.N)
	var found apply.Found
	for i := range keys {
		hit := false
		for _, r := range m.rows[op.Table][seg] {
			if !r.matches(op.Keys.Cols, keys[i]) || !r.matches(op.Same.Cols, same[i]) {
				continue
			}
			hit = true
			found.Rows++
			for j, c := range op.Set.Cols {
				r.vals[c] = set[i][j]
			}
			if m.conflicts(op.Table, seg, r) {
				return found, &apply.DataError{Row: -1, Duplicate: true, Err: errDuplicate}
			}
		}
		if !hit && !op.Partial {
			found.Missing = append(found.Missing, i)
			found.MissingRows++
		}
	}
	return found, nil
}

func (m *model) DeleteImages(_ context.Context, seg dtx.Content, op *apply.ImageOp) (apply.Found, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.begin(); err != nil {
		return apply.Found{}, err
	}
	images := setValues(op.Image, op.N)
	var found apply.Found
	for i := range images {
		left := op.Count[i]
		m.rows[op.Table][seg] = slices.DeleteFunc(m.rows[op.Table][seg], func(r *mrow) bool {
			if left == 0 || !r.matches(op.Image.Cols, images[i]) {
				return false
			}
			left--
			found.Rows++
			if op.Ordinals || len(op.Fetch) > 0 {
				found.Ordinals = append(found.Ordinals, i)
				found.Values = append(found.Values, r.fetch(op.Fetch)...)
			}
			return true
		})
		if left > 0 && !op.Partial {
			found.Missing = append(found.Missing, i)
			found.MissingRows += left
		}
	}
	return found, nil
}

func (m *model) KeepAlive(context.Context, dtx.Content) error { return nil }

func (m *model) Truncate(_ context.Context, seg dtx.Content, tables []*catalog.Table, _ bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.begin(); err != nil {
		return err
	}
	for _, t := range tables {
		delete(m.rows[t], seg)
	}
	return nil
}

// lines prints a table's rows, sorted: "segment: values"; without segments for a
// multiset of all.
func (m *model) lines(t *catalog.Table, segments bool) []string {
	var out []string
	for seg, rows := range m.rows[t] {
		for _, r := range rows {
			line := fmt.Sprint(r.vals)
			if segments {
				line = fmt.Sprintf("%d: %s", seg, line)
			}
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return out
}

// memRows serves parts from memory.
type memRows map[dtx.SpoolID][]*pgoutput.Change

func (m memRows) Open(p dtx.Part) (apply.RowIter, error) { return &memIter{m[p.Spool]}, nil }

type memIter struct{ left []*pgoutput.Change }

func (it *memIter) Next() (*pgoutput.Change, error) {
	if len(it.left) == 0 {
		return nil, errEOF
	}
	c := it.left[0]
	it.left = it.left[1:]
	return c, nil
}

func (it *memIter) Close() error { return nil }

// textColumn is a column of type text.
func textColumn(name string) catalog.Column {
	typ, _ := router.BuiltinType(25)
	return catalog.Column{Name: name, Type: typ, CastType: `"pg_catalog"."text"`}
}

// rowMessage builds a change from values as a server would send it.
func rowMessage(rel *pgoutput.Relation, typ byte, oldKind byte, old, now []pgoutput.Value) *pgoutput.Change {
	var b bytes.Buffer
	be32 := func(n int) { b.Write([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}) }
	tuple := func(vals []pgoutput.Value) {
		b.Write([]byte{byte(len(vals) >> 8), byte(len(vals))})
		for _, v := range vals {
			b.WriteByte(v.Kind)
			if v.Kind == pgoutput.ValueText {
				be32(len(v.Data))
				b.Write(v.Data)
			}
		}
	}
	be32(int(rel.ID))
	if oldKind != 0 {
		b.WriteByte(oldKind)
		tuple(old)
	}
	if typ != pgoutput.TypeDelete {
		b.WriteByte('N')
		tuple(now)
	}
	row, err := pgoutput.ParseRow(typ, b.Bytes())
	if err != nil {
		panic(err)
	}
	return &pgoutput.Change{Row: row, Relation: rel}
}
