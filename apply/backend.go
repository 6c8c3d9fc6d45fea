package apply

import (
	"context"

	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

// Backend runs operations inside one open target transaction. The engine calls
// it for one segment from one goroutine at a time, in order; calls for different
// segments are concurrent. Values arrive as the source's pgoutput printed them.
// After an error the transaction is lost, unless the method says otherwise.
//
// An operation's buffers belong to the engine again when the call returns.
type Backend interface {
	// Segments lists the target's segments, ascending: 0..M-1, or ServerPlaced
	// alone when a server places the rows. It is the same for every batch.
	Segments() []dtx.Content
	// Copy inserts rows: all, or with SkipDuplicates those that violate no unique or
	// exclusion constraint.
	Copy(ctx context.Context, seg dtx.Content, op *CopyOp) (Inserted, error)
	// Delete deletes the rows with the given keys.
	Delete(ctx context.Context, seg dtx.Content, op *DeleteOp) (Found, error)
	// Update updates the rows with the given keys in place. Without columns to
	// set it only looks for the rows.
	Update(ctx context.Context, seg dtx.Content, op *UpdateOp) (Found, error)
	// DeleteImages deletes, per image, exactly as many rows that equal it in
	// every given column (NULL equals NULL, values equal when they print alike).
	DeleteImages(ctx context.Context, seg dtx.Content, op *ImageOp) (Found, error)
	// Truncate empties tables in one statement, without cascading to others.
	Truncate(ctx context.Context, seg dtx.Content, tables []*catalog.Table, restartIdentity bool) error
	// KeepAlive shows the segment's server that the transaction is not abandoned.
	KeepAlive(ctx context.Context, seg dtx.Content) error
}

// CopyOp inserts rows.
type CopyOp struct {
	Table *catalog.Table
	// Cols are the columns of the rows, as indexes into Table.Columns, in the
	// order of the fields. Other columns take their defaults.
	Cols []int
	// Data is the body of a COPY in text format: Rows lines, tabs, \N for NULL.
	Data []byte
	// Binary tells that Data is in binary format (Options.BinaryCopy). It is never
	// set together with SkipDuplicates, nor for tables with deferrable constraints.
	Binary bool
	Rows   int64
	// SkipDuplicates leaves rows out that violate a unique or exclusion
	// constraint, earlier rows of the same operation included.
	SkipDuplicates bool
}

// Inserted tells what a CopyOp did.
type Inserted struct {
	// Rows counts the rows inserted.
	Rows int64
	// Skipped is the 0-based row of one that was left out, when Rows are not all. -1
	// when none is known.
	Skipped int
}

// Set is N rows of values by column: Vals[i] holds N values of column Cols[i].
type Set struct {
	Cols []int
	Vals []*Vec
}

// DeleteOp deletes rows by key.
type DeleteOp struct {
	Table *catalog.Table
	N     int
	// Keys are not NULL and distinct.
	Keys Set
	// Differ, when it has columns, restricts the operation to rows that differ
	// from the given values in at least one of them. NULL and NULL do not differ;
	// values differ when they print differently.
	Differ Set
	// Fetch lists columns to return of every deleted row.
	Fetch []int
	// Ordinals asks for Found.Ordinals even without columns to fetch.
	Ordinals bool
	// Partial tells that some keys are expected to match nothing, so that
	// Found.Missing need not be filled.
	Partial bool
}

// UpdateOp updates rows by key.
type UpdateOp struct {
	Table *catalog.Table
	N     int
	Keys  Set
	// Set are the new values.
	Set Set
	// Same, when it has columns, restricts the operation to rows that do not
	// differ from the given values in any of them (see DeleteOp.Differ).
	Same    Set
	Partial bool
}

// ImageOp deletes rows by their whole contents.
type ImageOp struct {
	Table *catalog.Table
	N     int
	// Image holds N distinct images.
	Image Set
	// Count says how many rows to delete per image, at least 1.
	Count []int64
	// Fetch lists columns to return of every deleted row.
	Fetch []int
	// Ordinals asks for Found.Ordinals even without columns to fetch.
	Ordinals bool
	Partial  bool
}

// Found tells what an operation met.
type Found struct {
	// Rows counts the rows affected.
	Rows int64
	// Missing lists ordinals (0-based) of keys without a row, or of images with
	// too few rows, ascending: at most MaxMissing of them. MissingRows counts all
	// rows that were expected and not found. Not filled under Partial.
	Missing     []int
	MissingRows int64
	// Ordinals and Values are the fetched rows: row r belongs to key or image
	// Ordinals[r], and its columns are Values[r*len(Fetch):][:len(Fetch)].
	Ordinals []int
	Values   []pgoutput.Value
}

// MaxMissing bounds Found.Missing.
const MaxMissing = 100

// ServerPlaced is the only segment of a target whose server places the rows.
const ServerPlaced = dtx.Coordinator
