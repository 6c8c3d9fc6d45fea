package shards

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/dtx"
)

// SQLSTATEs that are told apart.
const (
	stateUndefinedObject  = "42704"
	stateDuplicateObject  = "42710"
	stateUndefinedTable   = "42P01"
	stateInsufficientPriv = "42501"
	stateLockNotAvailable = "55P03"
	stateObjectNotInState = "55000"
	stateOutOfMemory      = "53200"
	stateDiskFull         = "53100"
	stateQueryCanceled    = "57014"
)

// serverError prints what a server reported without what may hold row values:
// neither detail nor context, and no quoted text in messages about data.
type serverError struct {
	pg *pgconn.PgError
}

// Error prints message and SQLSTATE, with the names of constraint and column.
func (e *serverError) Error() string {
	msg := e.pg.Message
	switch {
	case strings.HasPrefix(e.pg.Code, "22"):
		msg = dropQuoted(msg)
	case strings.HasPrefix(e.pg.Code, "P0"):
		msg = "raised by a function on the target; its text can hold row values and is only in that server's log"
	}
	var b strings.Builder
	b.WriteString(msg)
	if c := e.pg.ColumnName; c != "" && !strings.Contains(msg, c) {
		fmt.Fprintf(&b, ", column %s", c)
	}
	if c := e.pg.ConstraintName; c != "" && !strings.Contains(msg, c) {
		fmt.Fprintf(&b, ", constraint %s", c)
	}
	fmt.Fprintf(&b, " (SQLSTATE %s)", e.pg.Code)
	return b.String()
}

// Unwrap returns the server's own error, for its code. It may hold row values.
func (e *serverError) Unwrap() error { return e.pg }

// dropQuoted replaces every "quoted" part of a message.
func dropQuoted(msg string) string {
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(msg, `"`)
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		b.WriteString("(value not shown)")
		// A quoted value may hold quotes itself: the last one closes.
		i := strings.LastIndexByte(rest, '"')
		if i < 0 {
			return b.String()
		}
		msg = rest[i+1:]
	}
}

// sqlState returns the SQLSTATE in err's chain, or "".
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// classify says whether an error of a server or connection passes by itself.
// Without a SQLSTATE the connection was lost or never made: retry.
func classify(err error) dtx.Class {
	code := sqlState(err)
	if code == "" {
		return dtx.ClassOf(err)
	}
	switch code {
	case stateDiskFull:
		return dtx.ClassStop
	case "28P01", "28000", "3D000": // wrong password, role or database
		return dtx.ClassStop
	case stateLockNotAvailable, stateQueryCanceled, stateObjectNotInState,
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

// hintFor returns a remedy for a SQLSTATE, or "".
func hintFor(code string) string {
	switch code {
	case stateDiskFull:
		return "Free disk space on that server, then resume the subscription"
	case stateInsufficientPriv:
		return "Grant the role what docs/target-shards.md lists"
	case stateUndefinedTable, "3F000", "42703":
		return "Create what is missing on every shard, or run `cbrepl target prepare -c FILE` when it is in schema cbrepl"
	case "53300":
		return "Raise max_connections on that server, or close idle sessions"
	}
	return ""
}

// fail wraps an error met on one server as a *dtx.Error. An error that is one
// already, the engine's or this package's, keeps its place and class.
func fail(op, where string, err error) error {
	if err == nil {
		return nil
	}
	var de *dtx.Error
	if errors.As(err, &de) {
		return err
	}
	e := &dtx.Error{Op: op, Msg: where, Class: classify(err), Err: clean(err), Hint: hintFor(sqlState(err))}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.TableName != "" {
		e.Relation = pg.SchemaName + "." + pg.TableName
	}
	return e
}

// clean makes an error of a server or connection fit for people.
func clean(err error) error {
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg):
		return &serverError{pg}
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer in time: %w", err)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("stopped: %w", err)
	}
	return fmt.Errorf("the connection was lost: %w", err)
}

// stop builds an error that a person must act on.
func stop(op, hint, format string, args ...any) error {
	return &dtx.Error{Op: op, Msg: fmt.Sprintf(format, args...), Hint: hint, Class: dtx.ClassStop}
}

// retry builds an error that passes by itself.
func retry(op, hint, format string, args ...any) error {
	return &dtx.Error{Op: op, Msg: fmt.Sprintf(format, args...), Hint: hint, Class: dtx.ClassRetry}
}
