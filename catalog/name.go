// Package catalog describes tables as servers' catalogues give them: those that
// a source publishes and those of a target. It reads no catalogue itself; packages
// source, apply/shards and apply/cloudberry do.
package catalog

import (
	"cmp"
	"strings"
)

// Name is a table's schema and name, as the catalogue spells them.
type Name struct {
	Schema, Table string
}

// String prints schema.table.
func (n Name) String() string { return n.Schema + "." + n.Table }

// Compare orders names by schema, then by table.
func (n Name) Compare(o Name) int {
	return cmp.Or(strings.Compare(n.Schema, o.Schema), strings.Compare(n.Table, o.Table))
}
