// Package source finds and checks the nodes of a source cluster: discovery,
// slots (all or nothing), preflight facts, published tables and their policies.
// It never streams.
package source

import (
	"cbrepl/pgoutput"
	"cbrepl/router"
)

// Table is a published table as the source's coordinator knows it.
type Table struct {
	Schema, Name string
	Identity     pgoutput.ReplicaIdentity
	// Columns are the published columns, in table order.
	Columns []Column
	Policy  router.Policy
	// Root is "schema.name" of the partition root when Table is a leaf published
	// under its own name, else empty.
	Root string
	// Deferrable tells that a unique or exclusion constraint of the table is
	// deferrable: inside a transaction rows may share its values for a while.
	Deferrable bool
	// ColumnList and RowFilter tell that the publication restricts the table.
	ColumnList, RowFilter bool
}

// String prints schema.name.
func (t *Table) String() string { return t.Schema + "." + t.Name }

// Column is a published column.
type Column struct {
	Name     string
	TypeOID  uint32
	TypeName string // as format_type prints it
	// Key marks a column of the replica identity, PrimaryKey one of the primary key.
	Key, PrimaryKey bool
	// Generated marks a generated column: it is not replicated.
	Generated bool
}
