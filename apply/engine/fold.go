package engine

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"

	"cbrepl/pgoutput"
)

// fold holds the changes of one table inside a window as net effects.
//
// Two things are kept apart: a slot stands for an identity, a record for one
// physical row. A record was either in the table before the window (orig is the
// slot it then had) or inserted in it (orig is none); now it lives in slot cur
// or is dead. So a row whose identity changes twice is one record with the orig
// of the first and the cur of the last change, and delete-then-insert of an
// identity is two records, as it is two rows.
//
// Invariant: a live record is in exactly one slot's list, that of cur. Where
// identities are unique at every moment a list holds at most one record; where
// they are not (deferrable keys under REPLICA IDENTITY FULL, whole rows as
// identities) several.
type fold struct {
	arena
	seed    maphash.Seed
	index   []uint32 // open addressing, a power of two; slot number + 1
	slots   []slot
	records []record
}

const none = int32(-1)

type slot struct {
	hash uint32
	key  ref
	head int32 // first live record here
	// orig is the record that was here before the window, once a change has
	// shown that there was one.
	orig int32
	// used is set once a row came to live here that was not here before. With no
	// original, it tells that the identity was free when the window began, where
	// identities are unique at every moment.
	used bool
}

type record struct {
	img ref
	// ext holds the fetched values of the table's extra columns.
	ext ref
	// disk is set when image and ext, one behind the other, are in the run's spill
	// at disk-1; img and ext then tell their sizes only.
	disk      int64
	orig, cur int32
	next      int32 // next live record of the same slot
	part      int32 // the part that changed it last
	seg       int32 // where it was before the window, when known from its old image
	// partial is set when the image has unchanged columns that are not known.
	partial bool
	// fetched is set when ext is.
	fetched bool
	// skip is set when the record's net effect is not applied (a conflict).
	skip bool
	// move is set when the row is deleted and inserted.
	move bool
	// hit is set when an awaited delete has found the row.
	hit bool
}

// untouched reports whether the record has no image yet: the one change of it
// was a conflict.
func (rec *record) untouched() bool { return rec.img.n == 0 }

// recordCost is what a record and its slot take besides key and image, in bytes.
const recordCost = 80

func newFold() *fold { return &fold{seed: maphash.MakeSeed()} }

func (f *fold) reset() {
	clear(f.index)
	f.slots, f.records = f.slots[:0], f.records[:0]
	f.arena.reset()
}

// footprint is the memory held, in bytes.
func (f *fold) footprint() int64 {
	return f.arena.footprint() + int64(cap(f.index))*4 + int64(cap(f.slots)+cap(f.records))*recordCost/2
}

// slotOf finds or makes the slot of a key, which is copied.
func (f *fold) slotOf(key []byte) int32 {
	if 2*len(f.slots) >= len(f.index) {
		f.rehash()
	}
	h := uint32(maphash.Bytes(f.seed, key))
	mask := uint32(len(f.index) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		n := f.index[i]
		if n == 0 {
			f.slots = append(f.slots, slot{hash: h, key: f.put(key), head: none, orig: none})
			f.index[i] = uint32(len(f.slots))
			return int32(len(f.slots) - 1)
		}
		if s := &f.slots[n-1]; s.hash == h && bytes.Equal(f.get(s.key), key) {
			return int32(n - 1)
		}
	}
}

func (f *fold) rehash() {
	n := max(1024, 2*len(f.index))
	f.index = make([]uint32, n)
	mask := uint32(n - 1)
	for s := range f.slots {
		i := f.slots[s].hash & mask
		for f.index[i] != 0 {
			i = (i + 1) & mask
		}
		f.index[i] = uint32(s + 1)
	}
}

// add makes a record that lives in slot s.
func (f *fold) add(s, orig int32, part int32) int32 {
	f.records = append(f.records, record{orig: orig, cur: s, next: f.slots[s].head, part: part, seg: none})
	n := int32(len(f.records) - 1)
	f.slots[s].head = n
	f.slots[s].used = f.slots[s].used || orig == none
	return n
}

// original makes the record of the row that was in slot s before the window.
func (f *fold) original(s, part int32) int32 {
	n := f.add(s, s, part)
	f.slots[s].orig = n
	return n
}

// leave takes a live record out of its slot's list.
func (f *fold) leave(n int32) {
	r := &f.records[n]
	p := &f.slots[r.cur].head
	for *p != n {
		p = &f.records[*p].next
	}
	*p = r.next
	r.cur, r.next = none, none
}

// enter puts a record that has left into slot s.
func (f *fold) enter(n, s int32) {
	r := &f.records[n]
	r.cur, r.next = s, f.slots[s].head
	f.slots[s].head, f.slots[s].used = n, true
}

// store keeps an image for record n, in the old one's place where it fits.
func (f *fold) store(n int32, img []byte) {
	r := &f.records[n]
	r.img = f.replace(r.img, img)
}

// ref is a place in an arena.
type ref struct{ block, off, n uint32 }

// arena is memory that is freed all at once.
type arena struct {
	blocks [][]byte
	used   int // blocks in use
	size   int64
}

const arenaBlock = 128 << 10

func (a *arena) reset() {
	keep := a.blocks[:0]
	for _, b := range a.blocks {
		if cap(b) == arenaBlock {
			keep = append(keep, b[:0])
		}
	}
	clear(a.blocks[len(keep):])
	a.blocks, a.used, a.size = keep, 0, 0
}

func (a *arena) footprint() int64 {
	var n int64
	for _, b := range a.blocks {
		n += int64(cap(b))
	}
	return n
}

func (a *arena) put(b []byte) ref {
	if a.used == 0 || len(a.blocks[a.used-1])+len(b) > cap(a.blocks[a.used-1]) {
		a.next(len(b))
	}
	blk := a.blocks[a.used-1]
	r := ref{uint32(a.used - 1), uint32(len(blk)), uint32(len(b))}
	a.blocks[a.used-1] = append(blk, b...)
	a.size += int64(len(b))
	return r
}

// next makes a block current that takes n bytes.
func (a *arena) next(n int) {
	a.used++
	switch {
	case a.used > len(a.blocks):
		a.blocks = append(a.blocks, make([]byte, 0, max(arenaBlock, n)))
	case cap(a.blocks[a.used-1]) < n:
		a.blocks[a.used-1] = make([]byte, 0, n)
	}
}

func (a *arena) get(r ref) []byte {
	if r.n == 0 {
		return nil
	}
	return a.blocks[r.block][r.off : r.off+r.n : r.off+r.n]
}

// replace overwrites the bytes at r when b is not longer, else puts b anew.
func (a *arena) replace(r ref, b []byte) ref {
	if len(b) == 0 {
		return ref{}
	}
	if uint32(len(b)) > r.n {
		return a.put(b)
	}
	copy(a.blocks[r.block][r.off:], b)
	return ref{r.block, r.off, uint32(len(b))}
}

// appendImage encodes values as a tuple's raw bytes (pgoutput.Tuple.Raw) and
// says whether one of them is an unchanged value.
func appendImage(dst []byte, vals []pgoutput.Value) (img []byte, partial bool) {
	for _, v := range vals {
		partial = partial || v.Kind == pgoutput.ValueUnchanged
		dst = appendValue(dst, v)
	}
	return dst, partial
}

func appendValue(dst []byte, v pgoutput.Value) []byte {
	dst = append(dst, v.Kind)
	if v.Kind == pgoutput.ValueText {
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(v.Data)))
		dst = append(dst, v.Data...)
	}
	return dst
}

// appendValues decodes an image.
func appendValues(dst []pgoutput.Value, img []byte) []pgoutput.Value {
	for len(img) > 0 {
		k := img[0]
		img = img[1:]
		if k != pgoutput.ValueText {
			dst = append(dst, pgoutput.Value{Kind: k})
			continue
		}
		n := binary.BigEndian.Uint32(img)
		img = img[4:]
		dst = append(dst, pgoutput.Value{Kind: k, Data: img[:n:n]})
		img = img[n:]
	}
	return dst
}

// appendKey encodes identity values: their lengths and bytes.
func appendKey(dst []byte, vals []pgoutput.Value, key []int) []byte {
	for _, k := range key {
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(vals[k].Data)))
		dst = append(dst, vals[k].Data...)
	}
	return dst
}

// appendKeyValues decodes what appendKey encoded.
func appendKeyValues(dst [][]byte, key []byte) [][]byte {
	for len(key) > 0 {
		n := binary.BigEndian.Uint32(key)
		key = key[4:]
		dst = append(dst, key[:n:n])
		key = key[n:]
	}
	return dst
}
