package cloudberry

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/dtx"
	"cbrepl/target"
	"cbrepl/target/internal/pgside"
)

// SQLSTATEs that are told apart.
const (
	stateFenced           = "CBF01" // raised by the fence
	stateUniqueViolation  = "23505"
	stateExclusion        = "23P01"
	stateUndefinedObject  = "42704"
	stateUndefinedTable   = "42P01"
	stateInsufficientPriv = "42501"
	stateLockNotAvailable = "55P03"
	stateQueryCanceled    = "57014"
	stateDiskFull         = "53100"
	stateInternal         = "XX000"
)

// maxInternal is how many internal errors in a row are taken for a segment's
// trouble; a lost gang and a failed PREPARE broadcast are reported that way.
const maxInternal = 5

// classify says whether an error of the server or connection passes by itself.
// Without a SQLSTATE the connection was lost or never made: retry. The message
// does not count: errors of a segment end in its name and address.
func classify(err error) dtx.Class {
	code := pgside.SQLState(err)
	if len(code) != 5 {
		return dtx.ClassOf(err)
	}
	switch code {
	case stateDiskFull:
		return dtx.ClassStop
	case "28P01", "28000", "3D000": // wrong password, role or database
		return dtx.ClassStop
	case stateLockNotAvailable, stateQueryCanceled, stateFenced,
		stateInternal, // bounded by Target.bounded
		"55000",       // object not in the state needed: a gang being made
		"55006",       // object in use
		"25P03",       // idle_in_transaction_session_timeout: a paused daemon
		"25006":       // read-only: a standby that is about to be promoted
		return dtx.ClassRetry
	}
	switch code[:2] {
	case "08", "40", "53", "57", "58":
		return dtx.ClassRetry
	}
	// Data (22, 23), syntax and privileges (42), features (0A) and everything
	// unknown: a person must look.
	return dtx.ClassStop
}

// hintFor returns a remedy for a SQLSTATE, or "".
func hintFor(code string) string {
	switch code {
	case stateDiskFull:
		return "Free disk space on that host, then resume the subscription"
	case stateInsufficientPriv:
		return "Grant the role what docs/target-cloudberry.md lists"
	case stateUndefinedTable, "3F000", "42703":
		return "Create what is missing on the target, or run `cbrepl target prepare -c FILE` when it is in schema cbrepl"
	case "53300":
		return "Raise max_connections on the coordinator, or close idle sessions"
	case "53400", "53200":
		return "Give the role more memory (statement_mem, its resource queue or group), or lower apply.window_bytes"
	case "58M01":
		return "A segment is down; see gp_segment_configuration on the target. It is tried again"
	}
	return ""
}

// fail wraps an error met on the server as a *dtx.Error. An error that is one
// already, the engine's or this package's, keeps its place and class.
func fail(op, where string, err error) error {
	if err == nil {
		return nil
	}
	var de *dtx.Error
	if errors.As(err, &de) {
		return err
	}
	e := &dtx.Error{Op: op, Msg: where, Class: classify(err), Err: pgside.Clean(err), Hint: hintFor(pgside.SQLState(err))}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.TableName != "" {
		e.Relation = pg.SchemaName + "." + pg.TableName
	}
	return e
}

// opRows names the step in errors.
const opRows = "apply rows"

// dataFault wraps an error of a statement about rows. Faults of the data are
// pinned to a row where the server said which line of a COPY it was at.
func dataFault(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || len(pg.Code) != 5 {
		return fail(opRows, "", err)
	}
	switch pg.Code[:2] {
	case "22", "23", "P0":
		return &target.DataError{
			Row:        pgside.CopyLine(pg.Where) - 1,
			Duplicate:  pg.Code == stateUniqueViolation || pg.Code == stateExclusion,
			Constraint: pg.ConstraintName,
			Err:        fail(opRows, "", err),
		}
	}
	return fail(opRows, "", err)
}

// stop builds an error that a person must act on.
func stop(op, hint, format string, args ...any) error {
	return &dtx.Error{Op: op, Msg: fmt.Sprintf(format, args...), Hint: hint, Class: dtx.ClassStop}
}

// retry builds an error that passes by itself.
func retry(op, hint, format string, args ...any) error {
	return &dtx.Error{Op: op, Msg: fmt.Sprintf(format, args...), Hint: hint, Class: dtx.ClassRetry}
}

// bounded counts internal errors: they are retried, for a lost segment process is
// reported that way, but not forever, for so is a fault of the server itself.
func (t *Target) bounded(err error) error {
	if pgside.SQLState(err) != stateInternal {
		return err
	}
	if t.internal++; t.internal <= maxInternal {
		return err
	}
	var de *dtx.Error
	if !errors.As(err, &de) {
		return err
	}
	c := *de
	c.Class = dtx.ClassStop
	c.Hint = fmt.Sprintf("The server has reported an internal error %d times in a row; see its log, then resume", t.internal)
	return &c
}
