package catalog

import (
	"cbrepl/pgoutput"
	"cbrepl/router"
)

// PublishedTable is a published table as the source's coordinator knows it.
type PublishedTable struct {
	Schema, Name string
	Identity     pgoutput.ReplicaIdentity
	// Columns are the published columns, in table order.
	Columns []PublishedColumn
	Policy  router.Policy
	// Root is "schema.name" of the partition root when the table is a leaf
	// published under its own name, else empty.
	Root string
	// Deferrable reports that a unique or exclusion constraint of the table is
	// deferrable: inside a transaction rows may share its values for a while.
	Deferrable bool
	// Uniques are the sets of columns that the primary key or a unique index holds
	// unique among all rows.
	Uniques [][]string
	// ColumnList and RowFilter report that the publication restricts the table.
	ColumnList, RowFilter bool
	// Filter is the row filter as SQL, where it is known; "" without one.
	Filter string
}

// String prints schema.name.
func (t *PublishedTable) String() string { return t.Schema + "." + t.Name }

// QualifiedName returns the table's name with its schema.
func (t *PublishedTable) QualifiedName() Name { return Name{t.Schema, t.Name} }

// HasColumn reports whether the table publishes a plain column of that name.
func (t *PublishedTable) HasColumn(name string) bool {
	for _, c := range t.Columns {
		if c.Name == name && !c.Generated {
			return true
		}
	}
	return false
}

// PublishedColumn is a published column.
type PublishedColumn struct {
	Name     string
	TypeOID  uint32
	TypeName string // as format_type prints it
	// Type describes a type that is not built in; else it is nil.
	Type *router.Type
	// Key marks a column of the replica identity, PrimaryKey one of the primary key.
	Key, PrimaryKey bool
	// Generated marks a generated column: it is not replicated.
	Generated bool
}
