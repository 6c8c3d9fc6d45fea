package pgside

import (
	"errors"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply"
	"cbrepl/dtx"
)

// SQLSTATEs that are told apart.
const (
	StateUniqueViolation  = "23505"
	StateExclusion        = "23P01"
	StateInsufficientPriv = "42501"
	StateUndefinedObject  = "42704"
	StateDuplicateObject  = "42710"
	StateUndefinedTable   = "42P01"
	StateDiskFull         = "53100"
	StateOutOfMemory      = "53200"
	StateObjectNotInState = "55000"
	StateLockNotAvailable = "55P03"
	StateQueryCanceled    = "57014"
	StateInternal         = "XX000"
)

// Faults says what the errors of one kind of target mean, beyond what they mean
// on every PostgreSQL server.
type Faults struct {
	// Passing are SQLSTATEs that pass by themselves there.
	Passing []string
	// Hints are remedies by SQLSTATE.
	Hints map[string]string
	// Unreachable is the remedy for a server that cannot be connected to.
	Unreachable string
}

// Class says whether an error of a server or connection passes by itself.
// Without a SQLSTATE the connection was lost or never made: retry. The message
// does not count: errors of a cluster's segment end in its name and address.
func (f *Faults) Class(err error) dtx.Class {
	code := SQLState(err)
	if len(code) != 5 {
		return dtx.ClassOf(err)
	}
	if slices.Contains(f.Passing, code) {
		return dtx.ClassRetry
	}
	switch code {
	case StateDiskFull:
		return dtx.ClassStop
	case "28P01", "28000", "3D000": // wrong password, role or database
		return dtx.ClassStop
	case StateLockNotAvailable, StateQueryCanceled, StateObjectNotInState,
		"55006", // object in use
		"25P03", // idle_in_transaction_session_timeout: a paused daemon
		"25006": // read-only: a standby that is about to be promoted, or the old primary
		return dtx.ClassRetry
	}
	switch code[:2] {
	case "08", "40", "53", "57", "58":
		return dtx.ClassRetry
	}
	// Data (22, 23), syntax and privileges (42), features (0A), internal errors
	// (XX) and everything unknown: a person must look.
	return dtx.ClassStop
}

// Wrap makes a *dtx.Error of an error met on the server called where, by a
// statement that carried no rows. An error that is one already, the engine's or
// the target's, keeps its place and class.
func (f *Faults) Wrap(op, where string, err error) error { return f.wrap(op, where, err, false) }

// WrapRows is Wrap for a statement that carried rows.
func (f *Faults) WrapRows(op, where string, err error) error { return f.wrap(op, where, err, true) }

func (f *Faults) wrap(op, where string, err error, rows bool) error {
	if err == nil {
		return nil
	}
	var de *dtx.Error
	if errors.As(err, &de) {
		return err
	}
	code := SQLState(err)
	hint := f.Hints[code]
	if hint == "" && rows {
		hint = rowHints[code]
	}
	e := &dtx.Error{Op: op, Msg: where, Class: f.Class(err), Err: Clean(err, rows), Hint: hint}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.TableName != "" {
		e.Relation = pg.SchemaName + "." + pg.TableName
	}
	return e
}

// rowHints are the remedies for rows that a server refuses.
var rowHints = map[string]string{
	"23502": "Drop NOT NULL from that column on the target, or set it on the source, too; then start the daemon again with `cbrepl run`",
	"23503": "Drop the foreign key on the target, or make its trigger fire by default only; then start the daemon again with `cbrepl run`",
	"23514": "Drop that check constraint on the target, or make it hold on the source, too; then start the daemon again with `cbrepl run`",
	"22001": "Widen that column on the target; then start the daemon again with `cbrepl run`",
	"22003": "Widen that column on the target; then start the daemon again with `cbrepl run`",
	"P0001": "Find the function in the target server's log: a trigger that is enabled ALWAYS, a check constraint or a default calls it",
}

// Connect makes a *dtx.Error of what pgconn.ConnectConfig returned.
func (f *Faults) Connect(op, where string, err error) error {
	e := &dtx.Error{Op: op, Msg: where, Class: f.Class(err), Err: err, Hint: f.Unreachable}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		e.Err, e.Hint = &ServerError{PG: pg}, f.Hints[pg.Code]
	}
	return e
}

// Data wraps an error of a statement about rows. Faults of the data are pinned to
// a row where the server said which line of a COPY it was at.
func (f *Faults) Data(op string, err error) error {
	code := SQLState(err)
	if len(code) != 5 {
		return f.WrapRows(op, "", err)
	}
	switch code[:2] {
	case "22", "23", "P0":
		var pg *pgconn.PgError
		errors.As(err, &pg)
		return &apply.DataError{
			Row:        CopyLine(pg.Where) - 1,
			Duplicate:  code == StateUniqueViolation || code == StateExclusion,
			Constraint: pg.ConstraintName,
			Err:        f.WrapRows(op, "", err),
		}
	}
	return f.WrapRows(op, "", err)
}
