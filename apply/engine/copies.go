package engine

import (
	"fmt"
	"hash/maphash"

	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

// A table that the source replicates arrives from every participant of a dtx, and the
// copy of the lowest content is applied. The others are compared with it, unread: a
// table that is distributed otherwise since the daemon started sends different rows
// from each content, and passing over them would lose them.

// sentCopies is what the contents sent of replicated tables in a batch.
type sentCopies struct {
	sent  map[copyOf]copySum
	order []copyOf
}

// copyOf is a table's changes in one dtx as one content sent them.
type copyOf struct {
	gxid    dtx.GXID
	table   *table
	content dtx.Content
}

// copySum is how many changes there are, and a sum over them that does not depend on
// their order: segments may find the rows of a statement in different ones.
type copySum struct {
	part   int32
	lowest bool
	layout uint64
	rows   int64
	sum    uint64
}

// addCopyOf counts a change of the part being read.
func (r *run) addCopyOf(rel *relation, c *pgoutput.Change) {
	k, p := &r.copies, &r.parts[r.part]
	if k.sent == nil {
		k.sent = map[copyOf]copySum{}
	}
	id := copyOf{p.GXID, rel.table, p.Content}
	s, ok := k.sent[id]
	if !ok {
		s.part, s.lowest = r.part, p.Lowest
		k.order = append(k.order, id)
	}
	s.rows++
	s.layout = rel.layout
	s.sum += maphash.Bytes(r.e.seed, c.New.Raw()) + 31*maphash.Bytes(r.e.seed, c.Old.Raw()) + uint64(c.Type)
	k.sent[id] = s
}

// layoutSum tells relations apart whose tuples cannot be compared byte by byte.
func layoutSum(seed maphash.Seed, rel *pgoutput.Relation) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for i := range rel.Columns {
		_, _ = h.WriteString(rel.Columns[i].Name)
		_ = h.WriteByte(0)
	}
	return h.Sum64()
}

// checkCopies compares the copies of a batch that has been read whole.
func (r *run) checkCopies() error {
	lowest := map[copyOf]copySum{}
	for id, s := range r.copies.sent {
		if s.lowest {
			lowest[copyOf{gxid: id.gxid, table: id.table}] = s
		}
	}
	for _, id := range r.copies.order {
		s := r.copies.sent[id]
		first := lowest[copyOf{gxid: id.gxid, table: id.table}]
		if s.lowest || s.rows == first.rows && (s.layout != first.layout || s.sum == first.sum) {
			continue
		}
		return r.at(s.part, &dtx.Error{
			Op: "apply rows", Relation: id.table.String(), Class: dtx.ClassStop,
			Msg:  fmt.Sprintf("content %d sent other changes of this table, which the source replicates, than the lowest content of the transaction", id.content),
			Hint: "Either the table was distributed otherwise on the source since the daemon started, or its copies there differ. Repair the copies, or copy the table anew; its distribution is read when the daemon starts",
		})
	}
	return nil
}
