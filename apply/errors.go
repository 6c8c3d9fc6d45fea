package apply

import "errors"

// ErrDiverged is wrapped by every error that says that source and target do not
// hold the same rows.
var ErrDiverged = errors.New("source and target differ")

// DataError is a server's refusal of data, pinned down as far as the backend
// can. Its text never holds row values.
type DataError struct {
	// Row is the 0-based row of the operation, -1 when not known.
	Row int
	// Duplicate is set for the violation of a unique or exclusion constraint.
	Duplicate  bool
	Constraint string
	Err        error
}

// Error prints the cause.
func (e *DataError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *DataError) Unwrap() error { return e.Err }
