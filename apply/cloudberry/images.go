package cloudberry

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/dtx"
	"cbrepl/router"
)

// DeleteImages deletes, per image, as many rows that equal it as are asked for.
// The rows are found first, under a lock on the table, and then deleted by their
// address: neither the number nor the contents of deleted rows can be had from
// one statement on every storage. A row's address is its segment, its relation
// (partitions) and its ctid; ctid alone names a row on each segment.
//
// A replicated table has no addresses. There all rows that equal an image are
// deleted, and what was too many is inserted again.
func (b *backend) DeleteImages(ctx context.Context, _ dtx.Content, op *apply.ImageOp) (apply.Found, error) {
	f := b.facts(op.Table, true)
	b.lock(f)
	im := &images{backend: b, f: f, op: op, left: slices.Clone(op.Count)}
	err := im.run(ctx)
	if err == nil && !op.Partial {
		for i, n := range im.left {
			if n <= 0 {
				continue
			}
			im.found.MissingRows += n
			if len(im.found.Missing) < apply.MaxMissing {
				im.found.Missing = append(im.found.Missing, i)
			}
		}
	}
	return im.found, faultOrNil(err)
}

// images is one DeleteImages.
type images struct {
	*backend
	f     *tableFacts
	op    *apply.ImageOp
	left  []int64 // per image, rows still to be deleted
	found apply.Found
}

// imageGroup is the images that are NULL in the same columns among those that can
// serve a join.
type imageGroup struct {
	anchors []int // indexes into Image.Cols: not NULL in any image, joined by =
	nulls   []int // indexes into Image.Cols: NULL in every image
	rows    []int // ordinals of the images
}

// run handles the images group by group: a row that is NULL in a column cannot be
// joined by it.
func (im *images) run(ctx context.Context) error {
	for _, g := range im.groups() {
		set := im.op.Image
		if len(g.rows) < im.op.N {
			keep := make([]bool, im.op.N)
			for _, r := range g.rows {
				keep[r] = true
			}
			set = subset(set, keep)
		}
		var err error
		if im.f.Policy.Kind == router.Replicated {
			err = im.deleteReplicated(ctx, g, set)
		} else {
			err = im.deleteByAddress(ctx, g, set)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// maxAnchors bounds the columns that images are joined by, and with them the
// number of groups. The distribution key and indexed columns come first.
const maxAnchors = 4

func (im *images) groups() []*imageGroup {
	t, cols := im.f.Table, im.op.Image.Cols
	var anchors []int
	for _, good := range []func(c int) bool{
		func(c int) bool { return im.f.leads(c) },
		func(c int) bool { return slices.Contains(im.f.Pinned, c) },
		func(c int) bool {
			return slices.ContainsFunc(t.Policy.Columns, func(p router.Column) bool { return p.Name == t.Columns[c].Name })
		},
		func(int) bool { return true },
	} {
		for i, c := range cols {
			if len(anchors) < maxAnchors && good(c) && pgside.Hashed(&t.Columns[c]) && !slices.Contains(anchors, i) {
				anchors = append(anchors, i)
			}
		}
	}
	pattern := make([]byte, im.op.N)
	for bit, i := range anchors {
		if v := im.op.Image.Vals[i]; v.HasNull() {
			v.All(func(r int, b []byte) {
				if b == nil {
					pattern[r] |= 1 << bit
				}
			})
		}
	}
	byPattern := map[byte]*imageGroup{}
	var out []*imageGroup
	for r, p := range pattern {
		g := byPattern[p]
		if g == nil {
			g = &imageGroup{}
			for bit, i := range anchors {
				if p&(1<<bit) != 0 {
					g.nulls = append(g.nulls, i)
				} else {
					g.anchors = append(g.anchors, i)
				}
			}
			byPattern[p] = g
			out = append(out, g)
		}
		g.rows = append(g.rows, r)
	}
	return out
}

// pruneImages leaves out partitions by the anchors that choose one.
func (im *images) pruneImages(ctx context.Context, q *query, g *imageGroup, set apply.Set) error {
	var cols []int
	var vals []*apply.Vec
	for _, i := range g.anchors {
		cols, vals = append(cols, set.Cols[i]), append(vals, set.Vals[i])
	}
	return im.prune(ctx, q, im.f, len(g.rows), cols, vals)
}

// match writes the condition that a row t equals an image v, and sets the planner
// for it. Every column but the NULL ones is compared as it prints; anchors in
// addition by =, which is implied and can be hashed or looked up in an index.
func (im *images) match(q *query, g *imageGroup, set apply.Set, r *rowset) {
	t := im.f.Table
	q.WriteString(" WHERE true")
	for _, i := range g.nulls {
		q.WriteString(" AND t." + pgside.Column(t, set.Cols[i]) + " IS NULL")
	}
	for _, i := range g.anchors {
		c := set.Cols[i]
		q.WriteString(" AND " + pgside.Operand(t, c, "t") + " " + pgside.Equals(&t.Columns[c]) + " " + r.cast(t, c, "k", i))
	}
	if len(g.anchors) == 0 && r.from != "" {
		// Nothing to hash by: one text of all columns, each marked and with its
		// length, stands for the row.
		var row, val []string
		for i, c := range set.Cols {
			if !slices.Contains(g.nulls, i) {
				row = append(row, pgside.Marked(&t.Columns[c], "t."+pgside.Column(t, c)))
				val = append(val, pgside.Marked(&t.Columns[c], pgside.Stored(t, c, r.cast(t, c, "k", i))))
			}
		}
		if len(row) > 0 {
			q.WriteString(" AND " + strings.Join(row, " || ") + " = " + strings.Join(val, " || "))
		}
		return
	}
	for i, c := range set.Cols {
		if slices.Contains(g.nulls, i) || slices.Contains(g.anchors, i) && pgside.Exact(&t.Columns[c]) {
			continue
		}
		q.WriteString(" AND " + pgside.Same(t, c, "t", r.cast(t, c, "k", i)))
	}
}

// planImages sets the planner for a group. With an index on an anchor the planner
// weighs it by its statistics; on append-optimized storage a hash join behind the
// index is better than nested loops, without an index a scan is what there is.
func (im *images) planImages(g *imageGroup, set apply.Set) {
	indexed := slices.ContainsFunc(g.anchors, func(i int) bool { return im.f.leads(set.Cols[i]) })
	im.planFor(planMode{hashed: im.f.appendOnly || !indexed, free: true})
}

// narrowImages lets an index serve a hash join on append-optimized storage.
func (im *images) narrowImages(q *query, g *imageGroup, set apply.Set) {
	if !im.f.appendOnly {
		return
	}
	for _, i := range g.anchors {
		if c := set.Cols[i]; im.f.leads(c) && im.f.anyable([]int{c}) {
			q.WriteString(" AND " + q.anyOf(im.f.Table, c, set.Vals[i]))
			return
		}
	}
}

// deleteByAddress finds at most as many rows per image as are to be deleted, and
// deletes them.
func (im *images) deleteByAddress(ctx context.Context, g *imageGroup, set apply.Set) error {
	q := new(query)
	im.planImages(g, set)
	var counts apply.Vec
	for _, r := range g.rows {
		counts.Append(strconv.AppendInt(nil, im.left[r], 10))
	}
	r := q.unnest(namedSet{"k", set}, namedSet{"n", apply.Set{Vals: []*apply.Vec{&counts}}})
	q.WriteString("SELECT x.o, x.seg, x.rel, x.tid")
	for i := range im.op.Fetch {
		q.WriteString(", x.f" + strconv.Itoa(i))
	}
	q.WriteString(" FROM (SELECT v.o, v.n0::bigint AS n, t.gp_segment_id AS seg, t.tableoid AS rel, t.ctid AS tid, row_number() OVER (PARTITION BY v.o) AS r")
	for i, c := range im.op.Fetch {
		q.WriteString(", t." + pgside.Column(im.f.Table, c) + " AS f" + strconv.Itoa(i))
	}
	q.WriteString(" FROM " + pgside.Only(im.f.Table) + " AS t, " + r.from)
	im.match(q, g, set, r)
	im.narrowImages(q, g, set)
	if err := im.pruneImages(ctx, q, g, set); err != nil {
		return err
	}
	q.WriteString(") x WHERE x.r <= x.n")
	res, err := im.one(ctx, q)
	if err != nil {
		return err
	}
	wanted := im.op.Ordinals || len(im.op.Fetch) > 0
	byRel := map[string]addresses{}
	for _, row := range res.Rows {
		ord := g.rows[int(pgside.Atoi(row[0]))-1]
		im.left[ord]--
		if wanted {
			im.found.Ordinals = append(im.found.Ordinals, ord)
			im.found.Values = values(im.found.Values, row[4:])
		}
		rel := string(row[2])
		if byRel[rel] == nil {
			byRel[rel] = addresses{}
		}
		byRel[rel][string(row[1])] = append(byRel[rel][string(row[1])], string(row[3]))
	}
	im.found.Rows += int64(len(res.Rows))
	for rel, a := range byRel {
		if err := im.deleteAddresses(ctx, rel, a); err != nil {
			return err
		}
	}
	return nil
}

// addresses are ctids by segment.
type addresses map[string][]string

// deleteAddresses deletes rows of one relation by address: a heap's by reading
// their pages, those of other storage by a join.
func (im *images) deleteAddresses(ctx context.Context, rel string, a addresses) error {
	leaf := im.f.leaf(rel)
	if leaf == nil {
		return pgside.Retry(opRows, "It is tried again", "table %s has got a new partition meanwhile", im.f.Table)
	}
	q := new(query)
	segs := make([]string, 0, len(a))
	n := 0
	for seg, tids := range a {
		segs = append(segs, seg)
		n += len(tids)
	}
	slices.Sort(segs)
	if leaf.appendOnly {
		var seg, tid apply.Vec
		for _, s := range segs {
			for _, v := range a[s] {
				seg.Append([]byte(s))
				tid.Append([]byte(v))
			}
		}
		im.planFor(planMode{hashed: true})
		q.WriteString("DELETE FROM " + leaf.name + " AS t USING (SELECT u.seg::integer AS seg, u.tid::tid AS tid FROM unnest(" +
			q.vec(&seg) + ", " + q.vec(&tid) + ") u(seg, tid)) x WHERE t.gp_segment_id = x.seg AND t.ctid = x.tid")
	} else {
		im.planFor(planMode{})
		q.WriteString("DELETE FROM ONLY " + leaf.name + " AS t WHERE ")
		for i, s := range segs {
			var tid apply.Vec
			for _, v := range a[s] {
				tid.Append([]byte(v))
			}
			if i > 0 {
				q.WriteString(" OR ")
			}
			q.WriteString("(t.gp_segment_id = " + s + " AND t.ctid = ANY (" + q.vec(&tid) + "::tid[]))")
		}
	}
	res, err := im.one(ctx, q)
	if err != nil {
		return err
	}
	if got := res.CommandTag.RowsAffected(); got != int64(n) {
		return pgside.Stop(opRows, "Another session writes to the table", "%d rows were found and %d deleted in table %s", n, got, im.f.Table)
	}
	return nil
}

// deleteReplicated deletes every row that equals an image and inserts again those
// beyond the number asked for.
func (im *images) deleteReplicated(ctx context.Context, g *imageGroup, set apply.Set) error {
	t := im.f.Table
	all := make([]int, 0, len(t.Columns))
	for c := range t.Columns {
		if !t.Columns[c].Generated {
			all = append(all, c)
		}
	}
	q := new(query)
	im.planImages(g, set)
	r := q.unnest(namedSet{"k", set})
	q.WriteString("SELECT v.o")
	q.columns(t, im.op.Fetch)
	q.columns(t, all)
	q.WriteString(" FROM " + pgside.Only(t) + " AS t, " + r.from)
	im.match(q, g, set, r)
	im.narrowImages(q, g, set)
	found, err := im.one(ctx, q)
	if err != nil {
		return err
	}
	q = new(query)
	r = q.unnest(namedSet{"k", set})
	q.WriteString("DELETE FROM " + pgside.Only(t) + " AS t USING " + r.from)
	im.match(q, g, set, r)
	im.narrowImages(q, g, set)
	res, err := im.one(ctx, q)
	if err != nil {
		return err
	}
	if got := res.CommandTag.RowsAffected(); got != int64(len(found.Rows)) {
		return pgside.Stop(opRows, "Another session writes to the table", "%d rows were found and %d deleted in table %s", len(found.Rows), got, t)
	}
	wanted := im.op.Ordinals || len(im.op.Fetch) > 0
	var again []byte
	var rows int64
	for _, row := range found.Rows {
		ord := g.rows[int(pgside.Atoi(row[0]))-1]
		if im.left[ord] > 0 {
			im.left[ord]--
			im.found.Rows++
			if wanted {
				im.found.Ordinals = append(im.found.Ordinals, ord)
				im.found.Values = values(im.found.Values, row[1:1+len(im.op.Fetch)])
			}
			continue
		}
		for _, v := range row[1+len(im.op.Fetch):] {
			again = append(pgside.AppendField(again, v), '\t')
		}
		again[len(again)-1] = '\n'
		rows++
	}
	if rows == 0 {
		return nil
	}
	_, err = im.insert(ctx, &apply.CopyOp{Table: t, Cols: all, Data: again, Rows: rows})
	return err
}
