package engine

import (
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

// forgotten are the tables that a person let go of. A table is known by its OID on
// the node that sends it: one of its name that was made later is another.
type forgotten struct {
	tables map[sourceTable]bool
	// contents have entries of their own; the others have the coordinator's, where
	// one list holds for the whole cluster.
	contents map[dtx.Content]bool
}

type sourceTable struct {
	content dtx.Content
	name    catalog.Name
	oid     uint32
}

// PassOver makes the engine pass over the rows of those recorded tables that were let
// go of.
func (e *Engine) PassOver(recorded []catalog.ReplicatedTable) {
	f := &forgotten{map[sourceTable]bool{}, map[dtx.Content]bool{}}
	for i := range recorded {
		t := &recorded[i]
		f.contents[t.Content] = true
		if t.Forgotten {
			f.tables[sourceTable{t.Content, t.Name, t.OID}] = true
		}
	}
	if len(f.tables) > 0 {
		e.forgotten = f
	}
}

func (f *forgotten) has(content dtx.Content, rel *pgoutput.Relation) bool {
	if !f.contents[content] {
		content = dtx.Coordinator
	}
	return f.tables[sourceTable{content, catalog.Name{Schema: rel.Schema, Table: rel.Name}, rel.ID}]
}
