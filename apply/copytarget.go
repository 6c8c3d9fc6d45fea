package apply

import (
	"context"
	"io"

	"cbrepl/catalog"
	"cbrepl/dtx"
)

// CopyTarget is a target that takes first copies of tables, beside batches. Its
// methods are called between Open and Close, like those of Target.
type CopyTarget interface {
	Target
	// CopyPlan says where the rows of a source table go.
	CopyPlan(src catalog.Name) (CopyPlan, error)
	// RecordCopies replaces the records of the given tables.
	RecordCopies(ctx context.Context, copies []TableCopy) error
	// NewLoader returns a loader. It connects to nothing.
	NewLoader() Loader
}

// Loader writes rows outside batches, on sessions of its own. What it commits can be
// relied on only by a record that is made afterwards. Once another daemon has opened
// the target it commits nothing. Calls for different segments may be concurrent.
type Loader interface {
	// Load inserts the lines of COPY text that r reads, in one transaction, and returns
	// how many.
	Load(ctx context.Context, seg dtx.Content, t *catalog.Table, cols []int, r io.Reader) (int64, error)
	// HoldsRows reports whether a table has any row on a segment.
	HoldsRows(ctx context.Context, seg dtx.Content, t *catalog.Table) (bool, error)
	// Empty deletes all rows of a table on a segment.
	Empty(ctx context.Context, seg dtx.Content, t *catalog.Table) error
	// Analyze collects a table's statistics on a segment.
	Analyze(ctx context.Context, seg dtx.Content, t *catalog.Table) error
	// SetSequence sets the sequence that a column owns on a segment, if it owns one.
	SetSequence(ctx context.Context, seg dtx.Content, t *catalog.Table, column string, last int64, called bool) error
	// Close ends the sessions. What is not committed is undone.
	Close()
}

// Everywhere is the place of rows that every segment of a CopyPlan holds.
const Everywhere = -1

// CopyPlan says where the rows of a source table go, and how they are laid out.
type CopyPlan struct {
	Table *catalog.Table
	// Cols are the columns of the rows, as indexes into Table.Columns, and Columns
	// their names, which are the same on the source. The values that decide a row's
	// place come first: Key of them.
	Cols    []int
	Columns []string
	Key     int
	// Segments are those that hold rows of the table.
	Segments []dtx.Content
	// Fixed is the place of all rows when Key is 0: an index into Segments, or
	// Everywhere. Else Place finds it by the key's values, nil for NULL. Place may be
	// called by several goroutines.
	Fixed int
	Place func(key [][]byte) (int, error)
}
