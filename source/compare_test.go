package source

import (
	"testing"

	"cbrepl/catalog"
)

// TestCompareWithNodeThatWentDown: a server that dies while it is looked at says
// nothing about what the others publish; a start is tried again then.
func TestCompareWithNodeThatWentDown(t *testing.T) {
	published := []nodeTable{{PublishedTable: catalog.PublishedTable{Schema: "public", Name: "t"}}}
	for _, down := range []int{0, 1} {
		f := &Facts{Nodes: []NodeFacts{
			{Content: -1, read: true, publication: true, tables: published},
			{Content: 0, read: true, publication: true, tables: published},
		}}
		f.Nodes[down].tables, f.Nodes[down].read = nil, false
		if fs := compareTables(&Config{Publication: "p"}, f); len(fs) > 0 {
			t.Errorf("node %d is down: %v", down, fs)
		}
		f.Nodes[down].read = true
		if fs := compareTables(&Config{Publication: "p"}, f); len(fs) == 0 {
			t.Errorf("node %d publishes nothing, and nobody says so", down)
		}
	}
}
