package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
)

// barrier applies the parts of a dtx with TRUNCATE. The n-th TRUNCATE of each
// part is one statement: what stands before it in any part is applied first.
//
// Every part that wrote rows or a TRUNCATE must name the same ones in the same
// order: a TRUNCATE runs on every segment that has the table. Where one part has
// fewer, its rows cannot be put before or behind it, and guessing would lose
// rows.
func (r *run) barrier(base int, parts []dtx.Part, rows apply.Rows) (err error) {
	iters := make([]apply.RowIter, len(parts))
	defer func() {
		for _, it := range iters {
			if it != nil {
				err = errors.Join(err, it.Close())
			}
		}
	}()
	for i := range parts {
		if parts[i].Spool == 0 {
			continue
		}
		r.part = int32(base + i)
		if iters[i], err = rows.Open(parts[i]); err != nil {
			return err
		}
	}
	for phase := 1; ; phase++ {
		var cmd *truncate
		from, without := none, none
		before := make([]int64, len(iters))
		err := inTurns(len(iters), func(i int) (done bool, err error) {
			it := iters[i]
			if it == nil {
				return true, nil
			}
			r.part = int32(base + i)
			seen := r.result.Rows + r.skipped
			got, more, err := r.read(it)
			before[i] += r.result.Rows + r.skipped - seen
			switch {
			case err != nil:
				return false, err
			case got == nil && more:
				return false, nil
			case got == nil:
				if before[i] > 0 || phase > 1 {
					without = r.part
				}
				iters[i] = nil
				return true, it.Close()
			case cmd == nil:
				cmd, from = got, r.part
			case !cmd.equal(got):
				return false, r.partError(fmt.Sprintf("TRUNCATE number %d names other tables or options than on content %d",
					phase, r.parts[from].Content), "The source's segments disagree; check that the publication is the same on all of them")
			}
			return true, nil
		})
		if err != nil {
			return err
		}
		if err := r.flushAll(false); err != nil {
			return err
		}
		if cmd == nil {
			return nil
		}
		if without != none {
			r.part = without
			return r.partError(fmt.Sprintf("this part ends before TRUNCATE number %d, which content %d has",
				phase, r.parts[from].Content), "The source's segments disagree; check that the publication is the same on all of them")
		}
		r.part = from
		if err := r.truncate(cmd, parts); err != nil {
			return err
		}
	}
}

func (c *truncate) equal(o *truncate) bool {
	return c.restart == o.restart && slices.Equal(c.names(), o.names())
}

// names lists the tables, sorted: the order within a statement means nothing.
func (c *truncate) names() []string {
	out := make([]string, len(c.rels))
	for i, rel := range c.rels {
		out[i] = rel.String()
	}
	slices.Sort(out)
	return out
}

// truncate runs one TRUNCATE on every segment. It does not cascade: the source
// lists every published table that its own CASCADE reached.
// parts are those of its dtx.
func (r *run) truncate(c *truncate, parts []dtx.Part) error {
	emptied := make(map[*table][]catalog.Name)
	copied := make(map[*table]bool) // the first copies hold it
	for _, rel := range c.rels {
		m, err := r.e.resolve(r.parts[r.part].Content, rel)
		if err != nil {
			return r.placed(err)
		}
		if m == nil {
			continue
		}
		has, err := r.copyHasTruncate(m, parts)
		if err != nil {
			return err
		}
		// Source tables that share a target table are copied under one cut.
		copied[m.table] = has
		emptied[m.table] = append(emptied[m.table], catalog.Name{Schema: rel.Schema, Table: rel.Name})
	}
	var tables []*catalog.Table
	last := 0
	for _, t := range r.e.order {
		names, ok := emptied[t]
		if !ok {
			continue
		}
		for _, s := range t.sources {
			if !slices.Contains(names, s) {
				return r.rowError(t, fmt.Sprintf("the source truncated %s alone, and rows of %s are in the same target table", names[0], s),
					"Give each source table a target table of its own, and copy the tables anew: `cbrepl subscription reset` and then the steps that it prints")
			}
		}
		if copied[t] {
			continue
		}
		tables = append(tables, t.Table)
		last = max(last, len(t.segs))
		r.result.Rows++
	}
	if len(tables) == 0 {
		return nil
	}
	label := &table{Table: tables[0]}
	part := r.part
	for i := range last {
		seg := r.e.segments[i]
		on := tables
		if slices.ContainsFunc(tables, func(t *catalog.Table) bool { return len(r.e.tables[t.QualifiedName()].segs) <= i }) {
			on = slices.DeleteFunc(slices.Clone(tables), func(t *catalog.Table) bool {
				return len(r.e.tables[t.QualifiedName()].segs) <= i
			})
		}
		err := r.lanes.put(i, task{size: 1, done: func() {}, run: func(ctx context.Context) error {
			if err := r.be.Truncate(ctx, seg, on, c.restart); err != nil {
				return r.opError(label, seg, part, "truncate tables", err)
			}
			return nil
		}})
		if err != nil {
			return err
		}
	}
	return nil
}
