package engine

import (
	"bytes"

	"cbrepl/apply"
	"cbrepl/pgoutput"
)

// flush queues what table t has pending and ends its window. midway tells that
// the part being read goes on: then the inserts of a table that holds them are held
// back, as far as HoldBytes has room, because rows that still have their unique
// values may give them up later: in the same transaction where constraints are
// deferrable on the source, in another content's part where rows cross contents.
func (r *run) flush(t *table, midway bool) error {
	r.heldBytes -= t.heldBytes
	t.heldBytes = 0
	if t.mode == modeFold {
		fl := flusher{run: r, t: t, f: t.fold, sh: t.shape}
		if err := fl.changes(); err != nil {
			return err
		}
		if midway && t.holds() {
			held := fl.holdInserts()
			size := held.size + int64(len(held.records))*recordCost
			if r.heldBytes+size <= r.e.opt.HoldBytes {
				r.hold(t, -t.bytes, -t.rows)
				t.fold, t.held, t.heldBytes = held, true, size
				r.heldBytes += size
				r.e.putFold(fl.f)
				return nil
			}
			r.e.putFold(held)
		}
		if err := fl.inserts(); err != nil {
			return err
		}
	} else if err := r.sendCopies(t, &t.shape.row); err != nil {
		return err
	}
	r.hold(t, -t.bytes, -t.rows)
	r.e.endWindow(t)
	return nil
}

// holdInserts copies the records to insert into a fold of their own.
func (fl *flusher) holdInserts() *fold {
	f := fl.f
	held := fl.e.takeFold()
	for n := range f.records {
		rec := &f.records[n]
		if !rec.inserts() {
			continue
		}
		s := held.slotOf(f.get(f.slots[rec.cur].key))
		h := &held.records[held.add(s, none, rec.part)]
		h.fetched = rec.fetched
		if rec.disk != 0 {
			h.img, h.ext, h.disk = rec.img, rec.ext, rec.disk
			fl.heldOnDisk = true
			continue
		}
		h.img, h.ext = held.put(f.get(rec.img)), held.put(f.get(rec.ext))
		if fl.sh.images {
			h.img = held.slots[s].key
		}
	}
	return held
}

// inserts reports whether the record ends as a row to insert.
func (rec *record) inserts() bool {
	return rec.cur != none && !rec.skip && (rec.orig == none || rec.move)
}

// flusher sends one table's net effects: deletes, updates in place, inserts.
//
// No statement fails on a unique constraint that the changes satisfy one by
// one. Deletes only free values. An update in place leaves every unique column
// but the identity as it is, since it passes over rows that differ there
// (guards), and those are deleted afterwards. Inserts come last, when all rows
// that kept their unique values are in place, and no others.
type flusher struct {
	*run
	t      *table
	f      *fold
	sh     *shape
	groups []*group
	whole  *group  // of updates that lack nothing
	full   []*work // statements that take no more rows
	// lists are the rows to fetch when they are deleted.
	lists []*fetchList
	kv    [][]byte
	dist  [][]byte
	v     []pgoutput.Value
	mask  []byte
	ext   []byte
}

// group is the records that lack the same columns.
type group struct {
	mask       []byte
	fetch      bool
	unresolved []int   // source columns without a value
	works      []*work // open, one per place
}

// work is one statement being collected, and what came of it.
type work struct {
	g     *group
	place int
	n     int
	size  int64
	keys  []*apply.Vec
	// setCols and sameCols are source columns; set and same their values.
	setCols, sameCols []int
	set, same         []*apply.Vec
	count             []int64 // of images
	recs              []int32
	parts             []int32
	// found is what each segment answered, per operation sent.
	found [][]apply.Found
}

// changes sends the deletes and updates in place.
func (fl *flusher) changes() error {
	if fl.sh.images {
		return fl.deleteImages()
	}
	if err := fl.deletes(); err != nil {
		return err
	}
	return fl.updates()
}

// uncertain reports whether a row's present segment is only guessed or not
// known, so that counts have to be awaited and other segments searched.
func (fl *flusher) uncertain() bool {
	switch fl.t.place {
	case placeRandom:
		return len(fl.t.segs) > 1
	case placeHash:
		return !fl.sh.keyed && !fl.sh.full && len(fl.t.segs) > 1
	}
	return false
}

// oldPlace says where record rec was before the window.
func (fl *flusher) oldPlace(rec *record) (int, error) {
	t, sh := fl.t, fl.sh
	if place, ok := t.fixed(); ok {
		return place, nil
	}
	key := fl.f.get(fl.f.slots[rec.orig].key)
	if sh.images {
		fl.v = appendValues(fl.v[:0], key)
		return fl.segment(t, fl.v)
	}
	fl.kv = appendKeyValues(fl.kv[:0], key)
	switch {
	case t.place == placeRandom:
		return t.route(fl.kv)
	case sh.keyed:
		dist := fl.dist[:0]
		for _, k := range sh.distInKey {
			dist = append(dist, fl.kv[k])
		}
		fl.dist = dist
		return t.route(dist)
	case sh.full:
		return int(rec.seg), nil
	}
	return somewhere, nil
}

// group finds the group of records that lack the same columns as img. fetch
// tells that its rows are fetched when they are deleted.
func (fl *flusher) group(img []byte, fetch bool) *group {
	mask := fl.mask[:0]
	if img != nil {
		fl.v = appendValues(fl.v[:0], img)
		for i, v := range fl.v {
			if v.Kind == pgoutput.ValueUnchanged {
				for len(mask) <= i/8 {
					mask = append(mask, 0)
				}
				mask[i/8] |= 1 << (i % 8)
			}
		}
		fl.mask = mask
	}
	for _, g := range fl.groups {
		if g.fetch == fetch && bytes.Equal(g.mask, mask) {
			return g
		}
	}
	g := &group{mask: bytes.Clone(mask), fetch: fetch}
	if len(mask) > 0 {
		for i, v := range fl.v {
			if v.Kind == pgoutput.ValueUnchanged {
				g.unresolved = append(g.unresolved, i)
			}
		}
	}
	fl.groups = append(fl.groups, g)
	return g
}

// fetchCols lists the target columns to fetch of a row that lacks the group's.
func (fl *flusher) fetchCols(g *group) []int {
	cols := make([]int, 0, len(g.unresolved)+len(fl.sh.extra))
	for _, s := range g.unresolved {
		cols = append(cols, fl.sh.cols[s])
	}
	return append(cols, fl.sh.extra...)
}

// statementBytes bounds the values of one update or delete, so that the buffers
// of a statement are worth keeping.
const statementBytes = 4 << 20

// workFor returns the group's open statement for a place.
func (fl *flusher) workFor(g *group, place int) *work {
	for i, w := range g.works {
		if w.place != place {
			continue
		}
		if w.n < fl.e.opt.ChunkRows && w.size < min(statementBytes, fl.e.opt.QueueBytes/4) {
			return w
		}
		fl.full = append(fl.full, w)
		g.works = append(g.works[:i], g.works[i+1:]...)
		break
	}
	w := &work{g: g, place: place, keys: fl.vecs(len(fl.sh.key))}
	g.works = append(g.works, w)
	return w
}

// takeWorks returns every statement collected, and starts over.
func (fl *flusher) takeWorks() []*work {
	out := fl.full
	for _, g := range fl.groups {
		out = append(out, g.works...)
	}
	fl.full, fl.groups = nil, nil
	return out
}

func (fl *flusher) vecs(n int) []*apply.Vec {
	out := make([]*apply.Vec, n)
	for i := range out {
		out[i] = fl.e.pool.vec()
	}
	return out
}

// addKey adds a record by the identity it had before the window.
func (fl *flusher) addKey(w *work, n int32, rec *record) {
	key := fl.f.get(fl.f.slots[rec.orig].key)
	if fl.sh.images {
		fl.v = appendValues(fl.v[:0], key)
		for i, k := range fl.sh.key {
			w.keys[i].AppendValue(fl.v[k])
		}
	} else {
		fl.kv = appendKeyValues(fl.kv[:0], key)
		for i, v := range fl.kv {
			w.keys[i].Append(v)
		}
	}
	w.n++
	w.size += int64(len(key)) + 16
	w.recs = append(w.recs, n)
	w.parts = append(w.parts, rec.part)
}

// targets translates source columns to target columns.
func (s *shape) targets(cols []int) []int {
	out := make([]int, len(cols))
	for i, c := range cols {
		out[i] = s.cols[c]
	}
	return out
}

// inserts sends new and moved rows: first those without, then those with
// fetched extra columns.
func (fl *flusher) inserts() error {
	more, err := fl.insertRows(false, &fl.sh.row)
	if err == nil && more {
		_, err = fl.insertRows(true, &fl.sh.fullRow)
	}
	return err
}

// insertRows sends the rows with or without extra columns, and tells whether
// there are others.
func (fl *flusher) insertRows(fetched bool, l *layout) (more bool, err error) {
	f, t := fl.f, fl.t
	for n := range f.records {
		rec := &f.records[n]
		if !rec.inserts() {
			continue
		}
		if rec.fetched != fetched {
			more = true
			continue
		}
		img, ext, err := fl.image(f, rec)
		if err != nil {
			return more, fl.at(rec.part, err)
		}
		fl.v = appendValues(fl.v[:0], img)
		place, err := fl.segmentOfNew(t, fl.v, rec.part)
		if err != nil {
			return more, err
		}
		fl.v = appendValues(fl.v, ext)
		if err := fl.addCopy(t, place, l, fl.v, rec.part); err != nil {
			return more, err
		}
	}
	return more, fl.sendCopies(t, l)
}
