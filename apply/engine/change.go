package engine

import (
	"bytes"
	"fmt"

	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

// window is what a table has pending.
type window struct {
	mode  mode
	shape *shape
	// bufs are inserts in COPY format per segment; the last is for rows that go
	// everywhere.
	bufs []copyBuf
	// long is set once inserts have filled a chunk.
	long bool
	fold *fold
	// held is set when the fold begins with inserts held back, of heldBytes, which
	// do not count in bytes and rows.
	held      bool
	heldBytes int64
	// bytes and rows are this table's share of the run's.
	bytes int64
	rows  int
}

type mode uint8

const (
	modeIdle mode = iota
	// modePass: inserts only so far; they go to bufs as they come.
	modePass
	// modeFold: the table has updates or deletes; changes are folded.
	modeFold
)

// decode reads a tuple of the current relation into dst, in target column order.
func (r *run) decode(t *table, dst []pgoutput.Value, tup pgoutput.Tuple) ([]pgoutput.Value, error) {
	if n := len(r.rel.rel.Columns); tup.Len() != n {
		return dst, r.rowError(t, fmt.Sprintf("a row has %d columns, its relation %d", tup.Len(), n),
			"This is a protocol violation of the source server")
	}
	if r.rel.order == nil {
		dst = tup.Append(dst[:0])
	} else {
		r.tuple = tup.Append(r.tuple[:0])
		dst = dst[:0]
		for _, i := range r.rel.order {
			dst = append(dst, r.tuple[i])
		}
	}
	for i := range dst {
		if dst[i].Kind == pgoutput.ValueBinary {
			return dst, r.rowError(t, "a value was sent in binary format, which was not asked for",
				"This is a protocol violation of the source server")
		}
	}
	return dst, nil
}

// columnName names a source column for a message.
func (t *table) columnName(s int) string { return t.Columns[t.shape.cols[s]].Name }

// insert handles a new row.
func (r *run) insert(t *table, c *pgoutput.Change) error {
	var err error
	if r.vals, err = r.decode(t, r.vals, c.New); err != nil {
		return err
	}
	if t.holds() && t.mode == modeIdle && len(t.shape.key) > 0 {
		if err := r.startFold(t, "an insert"); err != nil {
			return err
		}
	}
	if t.mode == modeFold {
		return r.foldInsert(t)
	}
	r.begin(t, modePass)
	seg, err := r.segment(t, r.vals)
	if err != nil {
		return r.placed(err)
	}
	if seg == somewhere {
		return r.missingValue(t, r.vals, r.part)
	}
	return r.addCopy(t, seg, &t.shape.row, r.vals, r.part)
}

// missingValue reports an insert without a value for a column: a row filter
// made it of an update, and the server left out an unchanged TOAST value.
func (r *run) missingValue(t *table, vals []pgoutput.Value, part int32) error {
	for i := range vals {
		if vals[i].Kind == pgoutput.ValueUnchanged {
			return r.at(part, &dtx.Error{
				Op: "apply rows", Relation: t.String(), Class: dtx.ClassStop,
				Msg: fmt.Sprintf("an insert came without a value for column %s", t.columnName(i)),
				Hint: "A row filter turns updates into inserts, and the server then leaves out large values that the update did not change. " +
					"Set REPLICA IDENTITY FULL on the source table, or drop the row filter",
			})
		}
	}
	return nil
}

// buf returns the pending inserts of a place.
func (t *table) buf(seg int) *copyBuf {
	if seg == everywhere {
		seg = len(t.segs)
	}
	return &t.bufs[seg]
}

// startFold switches a table to folding; what was passed on stays before it.
func (r *run) startFold(t *table, what string) error {
	if len(t.shape.cols) == 0 {
		return r.rowError(t, "the source sent "+what+" of a row of a table without columns, which nothing tells from the others",
			"Give the source table a column and a replica identity, or take it out of the publication")
	}
	if len(t.shape.key) == 0 {
		return r.rowError(t, "the source sent "+what+" of a row without an identity",
			"Give the source table a primary key or a replica identity")
	}
	if t.mode == modeFold {
		return nil
	}
	if t.mode == modePass {
		if err := r.sendCopies(t, &t.shape.row); err != nil {
			return err
		}
	}
	r.begin(t, modeFold)
	t.fold = r.e.takeFold()
	return nil
}

// keyOf encodes the identity in vals into r.keyBuf.
func (r *run) keyOf(t *table, vals []pgoutput.Value) error {
	sh := t.shape
	if sh.images {
		img, partial := appendImage(r.keyBuf[:0], vals)
		r.keyBuf = img
		if partial {
			return r.missingIdentity(t, vals)
		}
		return nil
	}
	for _, k := range sh.key {
		if vals[k].Kind != pgoutput.ValueText {
			return r.missingIdentity(t, vals)
		}
	}
	r.keyBuf = appendKey(r.keyBuf[:0], vals, sh.key)
	return nil
}

func (r *run) missingIdentity(t *table, vals []pgoutput.Value) error {
	for _, k := range t.shape.key {
		switch vals[k].Kind {
		case pgoutput.ValueUnchanged:
			return r.rowError(t, fmt.Sprintf("column %s belongs to the row's identity and came without its value (an unchanged TOAST value)", t.columnName(k)),
				"Servers before PostgreSQL 14.2 leave it out. Take the column out of the replica identity, or set REPLICA IDENTITY FULL")
		case pgoutput.ValueNull:
			if !t.shape.images {
				return r.rowError(t, fmt.Sprintf("column %s belongs to the row's identity and is NULL", t.columnName(k)),
					"The target's key does not allow that. Drop that key on the target, or choose another replica identity on the source")
			}
		}
	}
	return nil
}

func (r *run) foldInsert(t *table) error {
	if err := r.keyOf(t, r.vals); err != nil {
		return err
	}
	f := t.fold
	before := f.size
	s := f.slotOf(r.keyBuf)
	if t.shape.unique() && r.liveHere(t, &f.slots[s]) != none {
		return r.conflict(t, conflictDuplicate, r.part, r.keyBuf)
	}
	n := f.add(s, none, r.part)
	if err := r.setImage(t, n); err != nil {
		return err
	}
	if f.records[n].partial {
		return r.missingValue(t, r.vals, r.part)
	}
	r.account(t, before, 1)
	return nil
}

// unique reports whether identities are unique at every moment on the source.
// Under REPLICA IDENTITY FULL the key may be deferrable there.
func (s *shape) unique() bool { return !s.full && !s.images }

// setImage stores r.vals as record n's image; the record's slot is current.
func (r *run) setImage(t *table, n int32) error {
	f := t.fold
	rec := &f.records[n]
	if t.shape.images {
		rec.img = f.slots[rec.cur].key
		return nil
	}
	var partial bool
	r.img, partial = appendImage(r.img[:0], r.vals)
	rec.partial = partial
	f.store(n, r.img)
	return nil
}

// account adds what the fold has grown since it had the given size.
func (r *run) account(t *table, before int64, records int) {
	r.hold(t, t.fold.size-before+int64(records)*recordCost, records)
}

func (r *run) hold(t *table, bytes int64, rows int) {
	t.bytes += bytes
	t.rows += rows
	r.bytes += bytes
	r.rows += rows
}

// begin opens a window of t.
func (r *run) begin(t *table, m mode) {
	if t.mode == modeIdle {
		r.dirty = append(r.dirty, t)
	}
	t.mode = m
}

// readOld decodes the old tuple and fills from it what the new one leaves out.
// It returns the values that hold the old identity.
func (r *run) readOld(t *table, c *pgoutput.Change) ([]pgoutput.Value, error) {
	if c.OldKind == 0 {
		if t.shape.full {
			return nil, r.rowError(t, "a change under REPLICA IDENTITY FULL came without its old row",
				"This is a protocol violation of the source server")
		}
		return r.vals, nil
	}
	var err error
	if r.old, err = r.decode(t, r.old, c.Old); err != nil {
		return nil, err
	}
	if t.shape.full && c.OldKind != 'O' {
		return nil, r.rowError(t, "a change under REPLICA IDENTITY FULL came with the key of the old row only",
			"This is a protocol violation of the source server")
	}
	if c.Type == pgoutput.TypeDelete {
		return r.old, nil
	}
	// Only the columns of the identity are values in an old tuple of kind 'K'; its
	// other columns read as NULL.
	if c.OldKind == 'O' {
		for i := range r.vals {
			if r.vals[i].Kind == pgoutput.ValueUnchanged {
				r.vals[i] = r.old[i]
			}
		}
	} else {
		for _, k := range t.shape.key {
			if r.vals[k].Kind == pgoutput.ValueUnchanged {
				r.vals[k] = r.old[k]
			}
		}
	}
	return r.old, nil
}

// liveHere returns the live record of a unique identity; where rows cross contents, that of
// the content being read: another content's is a row of its own.
func (r *run) liveHere(t *table, sl *slot) int32 {
	n := sl.head
	for t.crossesContents && n != none && r.parts[t.fold.records[n].part].Content != r.parts[r.part].Content {
		n = t.fold.records[n].next
	}
	return n
}

// find returns the live record that a change of the row with the old identity
// in slot s is about; none when the copies have diverged.
func (r *run) find(t *table, s int32, old []pgoutput.Value) (int32, error) {
	f := t.fold
	sl := &f.slots[s]
	if t.shape.images {
		// Equal rows are interchangeable: take one of this window if there is one.
		if sl.head != none {
			return sl.head, nil
		}
		return f.original(s, r.part), nil
	}
	if t.shape.unique() {
		if n := r.liveHere(t, sl); n != none {
			return n, nil
		}
		if sl.orig != none || sl.used && !t.crossesContents {
			return none, nil
		}
		return f.original(s, r.part), nil
	}
	// Several rows may share the key for a moment: the old image tells which.
	if sl.head != none {
		r.img, _ = appendImage(r.img[:0], old)
		for n := sl.head; n != none; n = f.records[n].next {
			img, _, err := r.image(f, &f.records[n])
			if err != nil {
				return none, err
			}
			if bytes.Equal(img, r.img) {
				return n, nil
			}
		}
	}
	if sl.orig != none {
		return sl.head, nil
	}
	n := f.original(s, r.part)
	if t.place == placeHash && !t.shape.keyed {
		seg, err := r.segment(t, old)
		if err != nil {
			return none, r.placed(err)
		}
		f.records[n].seg = int32(seg)
	}
	return n, nil
}

// oldRow is where a change finds the row that it is about.
type oldRow struct {
	slot, record int32
	// size and records are the fold's before the row was looked up.
	size    int64
	records int
}

// known reports whether an image of this window was found.
func (o *oldRow) known(f *fold) bool { return len(f.records) == o.records }

// findOld reads the old row of a change and finds its record, as find does.
func (r *run) findOld(t *table, c *pgoutput.Change) (o oldRow, err error) {
	old, err := r.readOld(t, c)
	if err != nil {
		return o, err
	}
	if err := r.keyOf(t, old); err != nil {
		return o, err
	}
	f := t.fold
	o.size, o.records = f.size, len(f.records)
	o.slot = f.slotOf(r.keyBuf)
	o.record, err = r.find(t, o.slot, old)
	return o, err
}

func (r *run) update(t *table, c *pgoutput.Change) error {
	r.result.Updates++
	if err := r.startFold(t, "an update"); err != nil {
		return err
	}
	var err error
	if r.vals, err = r.decode(t, r.vals, c.New); err != nil {
		return err
	}
	o, err := r.findOld(t, c)
	if err != nil {
		return err
	}
	f, s, n := t.fold, o.slot, o.record
	if n == none {
		return r.conflict(t, conflictMissingUpdate, r.part, r.keyBuf)
	}
	if o.known(f) {
		r.result.Folded++
		if err := r.fill(f, n); err != nil {
			return err
		}
	}
	to := s
	if c.OldKind != 0 {
		if err := r.keyOf(t, r.vals); err != nil {
			return err
		}
		to = f.slotOf(r.keyBuf)
	}
	if to != s {
		if t.shape.unique() && r.liveHere(t, &f.slots[to]) != none {
			return r.conflict(t, conflictDuplicate, r.part, r.keyBuf)
		}
		f.leave(n)
		f.enter(n, to)
	}
	f.records[n].part = r.part
	if err := r.setImage(t, n); err != nil {
		return err
	}
	r.account(t, o.size, len(f.records)-o.records)
	return nil
}

// image returns a record's image and its extra columns, wherever they are.
func (r *run) image(f *fold, rec *record) (img, ext []byte, err error) {
	if rec.disk == 0 {
		return f.get(rec.img), f.get(rec.ext), nil
	}
	b, err := r.spill.get(rec.disk-1, int(rec.img.n)+int(rec.ext.n))
	if err != nil {
		return nil, nil, err
	}
	return b[:rec.img.n], b[rec.img.n:], nil
}

// fill completes r.vals from record n's image.
func (r *run) fill(f *fold, n int32) error {
	rec := &f.records[n]
	img, ext, err := r.image(f, rec)
	if err != nil {
		return err
	}
	if rec.disk != 0 { // back into memory: it is about to change
		rec.img, rec.ext, rec.disk = f.put(img), f.put(ext), 0
		img = f.get(rec.img)
	}
	if len(img) == 0 {
		return nil
	}
	filled := false
	for i := range r.vals {
		if r.vals[i].Kind != pgoutput.ValueUnchanged {
			continue
		}
		if !filled {
			r.old = appendValues(r.old[:0], img)
			filled = true
		}
		r.vals[i] = r.old[i]
	}
	return nil
}

func (r *run) delete(t *table, c *pgoutput.Change) error {
	if err := r.startFold(t, "a delete"); err != nil {
		return err
	}
	o, err := r.findOld(t, c)
	if err != nil {
		return err
	}
	f, n := t.fold, o.record
	if n == none {
		return r.conflict(t, conflictMissingDelete, r.part, r.keyBuf)
	}
	if o.known(f) {
		r.result.Folded++
	}
	f.leave(n)
	f.records[n].part = r.part
	r.account(t, o.size, len(f.records)-o.records)
	return nil
}
