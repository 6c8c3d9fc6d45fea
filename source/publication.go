package source

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"cbrepl/catalog"
	"cbrepl/check"
	"cbrepl/dtx"
)

// NodePublication is what one node publishes: what must not change under a
// subscription without notice.
type NodePublication struct {
	Content dtx.Content
	// LeftOut are the kinds of changes that the publication leaves out.
	LeftOut []string
	Tables  []catalog.ReplicatedTable
}

// Published describes what every node publishes, in order of content. A Greenplum 6
// has one list, which is the coordinator's.
func (f *Facts) Published() []NodePublication {
	out := make([]NodePublication, len(f.Nodes))
	for i := range f.Nodes {
		out[i] = f.Nodes[i].published()
	}
	return out
}

func (n *NodeFacts) published() NodePublication {
	p := NodePublication{Content: n.Content, LeftOut: n.leftOut}
	for _, t := range n.tables {
		r := catalog.ReplicatedTable{
			Content: n.Content, Name: t.QualifiedName(), OID: t.oid,
			Published: catalog.Published{Hidden: t.hidden, RowFilter: t.rowFilter},
		}
		for _, c := range t.Columns {
			if !c.Generated {
				r.Columns = append(r.Columns, c.Name)
			}
			if d := catalog.Definition(c.Type); d != "" && !c.Generated {
				if r.Types == nil {
					r.Types = map[string]string{}
				}
				r.Types[c.Name] = c.TypeName + d
			}
		}
		p.Tables = append(p.Tables, r)
	}
	return p
}

// ComparePublished compares what is recorded as replicated with what is published
// now, and names every difference by which changes can have been missed. Tables that
// are new to a publication are none, as their rows are not taken; nor are columns
// that are new to their table.
func ComparePublished(recorded []catalog.ReplicatedTable, now []NodePublication) error {
	var ps check.Findings
	for i := range now {
		ps = append(ps, comparePublished(recorded, &now[i])...)
	}
	return ps.Err("compare publications")
}

const recopyTable = "Changes of it are missing on the target. Undo that, if nothing has been changed since; " +
	"or let go of the table (`cbrepl table forget`) and, to go on with it as it is now, copy it anew and take it (`cbrepl table take`)"

func comparePublished(recorded []catalog.ReplicatedTable, now *NodePublication) check.Findings {
	var ps check.Findings
	add := func(table, remedy, format string, args ...any) {
		ps = append(ps, check.Finding{Content: dtx.AtContent(now.Content), Relation: table, Found: fmt.Sprintf(format, args...), Remedy: remedy})
	}
	if len(now.LeftOut) > 0 {
		add("", "Undo that, if nothing has been changed since, or begin anew: "+resyncHint,
			"the publication leaves out %s now: such changes are missing on the target", strings.Join(now.LeftOut, ", "))
	}
	tables := make(map[catalog.Name]*catalog.ReplicatedTable, len(now.Tables))
	for i := range now.Tables {
		tables[now.Tables[i].Name] = &now.Tables[i]
	}
	for i := range recorded {
		w := &recorded[i]
		if w.Content != now.Content || w.Forgotten {
			continue
		}
		name := w.Name.String()
		n := tables[w.Name]
		switch {
		case n == nil:
			add(name, recopyTable, "it was replicated and is not published here any more: it was dropped, renamed, set unlogged, or taken out of the publication")
			continue
		case n.OID != w.OID:
			add(name, recopyTable, "another table has its name now: it was dropped and made anew, or swapped (its OID was %d and is %d)", w.OID, n.OID)
			continue
		case n.RowFilter != w.RowFilter:
			add(name, recopyTable, "its row filter was (%s) and is (%s)", cmp.Or(w.RowFilter, "none"), cmp.Or(n.RowFilter, "none"))
		}
		for _, c := range w.Columns {
			if slices.Contains(n.Hidden, c) {
				add(name, recopyTable, "column %q was replicated and is not published here any more: the column list was narrowed, or the column is generated now", c)
			}
		}
		for _, c := range slices.Sorted(maps.Keys(w.Types)) {
			if is := n.Types[c]; is != "" && is != w.Types[c] {
				add(name, recopyTable, "the type of column %q was %s and is %s: rows are read as other values on the target, or refused", c, w.Types[c], is)
			}
		}
		for _, c := range w.Hidden {
			if slices.Contains(n.Columns, c) {
				add(name, recopyTable, "column %q is published now, but was not: the rows of before lack it on the target", c)
			}
		}
	}
	return ps
}

// readPublished asks one node what it publishes.
func readPublished(ctx context.Context, cfg *Config, n Node) (NodePublication, error) {
	conn, err := connect(ctx, n)
	if err != nil {
		return NodePublication{}, err
	}
	defer closeConn(conn)
	p := &probe{cfg: cfg, node: n, facts: NodeFacts{Content: n.Content}}
	if cfg.Kind == Greenplum6 {
		if p.facts.listed, err = readListed(ctx, cfg.Coordinator, conn, cfg.Publication); err != nil {
			return NodePublication{}, err
		}
		p.facts.tables = p.facts.listed.tables(p)
		return p.facts.published(), nil
	}
	if err := p.readPublication(ctx, conn); err != nil {
		return NodePublication{}, err
	}
	return p.facts.published(), nil
}

// lookShare bounds the time that looking at publications takes: one part in it.
const lookShare = 20

// WatchPublished looks at every node's publication at intervals until ctx ends,
// and returns an error when one differs from the record so that changes are missed. It is
// an error of class stop. Nodes that do not answer are left to those who read
// from them. dsn returns where a content is.
func WatchPublished(ctx context.Context, cfg Config, recorded []catalog.ReplicatedTable, every time.Duration, dsn func(context.Context, Node) (string, error)) error {
	cfg.EnsureDefaults()
	for pause := every; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		began := time.Now()
		now := make([]*NodePublication, len(cfg.Nodes))
		var g errgroup.Group
		g.SetLimit(parallel)
		for i, n := range cfg.Nodes {
			if cfg.Kind == Greenplum6 && n.Content != dtx.Coordinator {
				continue // the coordinator has the list
			}
			g.Go(func() error {
				ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
				defer cancel()
				var err error
				if n.DSN, err = dsn(ctx, n); err != nil {
					return nil
				}
				if p, err := readPublished(ctx, &cfg, n); err == nil {
					now[i] = &p
				}
				return nil
			})
		}
		_ = g.Wait() // who does not answer is skipped
		var seen []NodePublication
		for _, p := range now {
			if p != nil {
				seen = append(seen, *p)
			}
		}
		if err := ComparePublished(recorded, seen); err != nil {
			return err
		}
		pause = max(every, lookShare*time.Since(began))
	}
}
