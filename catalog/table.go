package catalog

import (
	"cbrepl/router"
)

// TableKind is how a target table is stored.
type TableKind uint8

// Table kinds.
const (
	// Heap is a plain table. Its statements use ONLY: a source publishes each
	// table of an inheritance tree under its own name.
	Heap TableKind = iota + 1
	// PartitionRoot is a partitioned table: the server routes its rows.
	PartitionRoot
	// AppendOptimized is an append-optimized table (row or column) of a
	// Greenplum-family target.
	AppendOptimized
	// OtherKind is what rows cannot be applied to (view, foreign table, ...).
	OtherKind
)

// Table describes a target table as the target's catalogue does. The reader of
// the catalogue fills it; the engine never changes it.
type Table struct {
	Schema, Name string
	Kind         TableKind
	// Columns are the live columns in attribute order.
	Columns []Column
	// Uniques are the unique indexes and exclusion constraints that the server
	// enforces, the primary key first. Of a partition root, those of its partitions
	// alone count too, and so does an index that is not valid: new rows are checked.
	Uniques []Unique
	// Policy places rows; its columns name target columns. A coordinator-driven
	// target fills it for what SQL needs to know; the server places the rows.
	Policy router.Policy
	// Pinned lists columns (indexes into Columns) that UPDATE cannot change: a row
	// whose value there changes is deleted and inserted. Distribution columns and
	// GENERATED ALWAYS identities need not be listed.
	Pinned []int
}

// Column is one live column of a target table.
type Column struct {
	Name string
	Type *router.Type
	// TypeName is the type as format_type prints it, modifier included; BaseName the
	// same with domains looked through.
	TypeName, BaseName string
	// CastType is what text is cast to in SQL: schema-qualified and quoted
	// ("pg_catalog"."int4"), without modifier, and the base type of a domain. An
	// explicit cast to a type with modifier, or to a domain over one, would
	// truncate without a word.
	CastType string
	// CastVia is the string type through which text is cast to CastType, "" for
	// directly; PrintVia is the one that a value is printed through, "" for text. A
	// cast that somebody defined between text and the type is not its input or output
	// function: those serve between types that have no cast.
	CastVia, PrintVia string
	// CompareType is CastType with the column's modifier, where a value prints
	// otherwise once the column holds it (1 as 1.00 in a numeric(14,2)); else empty.
	CompareType string
	// TrailingBlanks is set for bpchar without a length: it keeps trailing blanks,
	// which its equality ignores.
	TrailingBlanks bool
	NotNull        bool
	// HasDefault tells that an INSERT may leave the column out although it is not
	// null: it has a default or is an identity.
	HasDefault bool
	// Volatile is set when what a column gets that an INSERT leaves out is not the
	// same on every server: its default calls functions that are not immutable, or it
	// is an identity. It is read where servers are written to one by one.
	Volatile bool
	// Generated columns are computed by the server and never written.
	Generated bool
	// IdentityAlways is set for GENERATED ALWAYS AS IDENTITY.
	IdentityAlways bool
	// Nondeterministic is set when the collation takes different texts for equal.
	Nondeterministic bool
}

// Unique is a unique index or an exclusion constraint.
type Unique struct {
	Name string
	// Columns are the key columns in key order, as indexes into Table.Columns;
	// expressions are left out. INCLUDE columns do not count.
	Columns []int
	// Reads lists every column that decides whether rows violate it, ascending: what
	// keys, expressions and predicate read, what generated columns among them are
	// computed from, and for an index of one partition the partition key.
	Reads []int
	// Plain is set when the keys are columns only, there is no predicate, and the
	// index covers all rows of the table (it is valid, and not one partition's).
	Plain      bool
	Primary    bool
	Exclusion  bool
	Deferrable bool
	// Constraint is set where a constraint owns the index.
	Constraint bool
	// OnePartition is set for an index of one partition of the table alone.
	OnePartition bool
}

// String prints schema.name.
func (t *Table) String() string { return t.Schema + "." + t.Name }

// QualifiedName returns the table's name with its schema.
func (t *Table) QualifiedName() Name { return Name{t.Schema, t.Name} }

// Column returns the index of the column of that name, or -1.
func (t *Table) Column(name string) int {
	for i := range t.Columns {
		if t.Columns[i].Name == name {
			return i
		}
	}
	return -1
}

// ColumnNames returns the names of the columns at the given indexes.
func (t *Table) ColumnNames(cols []int) []string {
	out := make([]string, len(cols))
	for i, c := range cols {
		out[i] = t.Columns[c].Name
	}
	return out
}
