package catalog

import (
	"slices"

	"cbrepl/dtx"
)

// ReplicatedTable is a table of the source as one node publishes it. The target
// records those whose rows are taken; what a source publishes later is compared with
// the record.
type ReplicatedTable struct {
	Content dtx.Content
	Name    Name
	// OID is the table's on that node: one that was dropped and made again under its
	// name has another.
	OID uint32
	Published
	// Forgotten is set once a person has let go of the table: its rows that are still
	// in the stream are passed over.
	Forgotten bool
}

// Published is what is published of a table.
type Published struct {
	// Columns are published; Hidden exist and are not: left out by a column list, or
	// generated.
	Columns   []string `json:"columns"`
	Hidden    []string `json:"hidden,omitempty"`
	RowFilter string   `json:"row_filter,omitempty"`
	// Types are what the types of columns that are not built in are made of, by column.
	Types map[string]string `json:"types,omitempty"`
}

// IsTaken reports whether the record names a table of that name that was not let go
// of.
func IsTaken(recorded []ReplicatedTable, name Name) bool {
	return slices.ContainsFunc(recorded, func(t ReplicatedTable) bool { return t.Name == name && !t.Forgotten })
}
