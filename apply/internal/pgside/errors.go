package pgside

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/dtx"
)

// ServerError prints what a server reported without what may hold row values:
// neither detail nor context, and of a statement that carries rows not even the
// message. A message is in the server's language, a function may have raised it
// under any SQLSTATE, and nothing in it tells text from values; the fields that
// name things are exact.
type ServerError struct {
	PG *pgconn.PgError
	// Rows is set when the statement carried rows.
	Rows bool
}

// Error prints the SQLSTATE with what it says: the server's message, or for a
// statement with rows the condition's name and the names that the server gave.
func (e *ServerError) Error() string {
	if !e.Rows || aboutText(e.PG) {
		return fmt.Sprintf("%s (SQLSTATE %s)", e.PG.Message, e.PG.Code)
	}
	var b strings.Builder
	b.WriteString(condition(e.PG.Code))
	column := e.PG.ColumnName
	if column == "" {
		column = CopyColumn(e.PG.Where)
	}
	for _, f := range [][2]string{{"column", column}, {"constraint", e.PG.ConstraintName}, {"type", e.PG.DataTypeName}} {
		if f[1] != "" {
			fmt.Fprintf(&b, ", %s %q", f[0], f[1])
		}
	}
	if m := segment.FindStringSubmatch(e.PG.Message); m != nil {
		b.WriteString(", on " + m[1])
	}
	fmt.Fprintf(&b, " (SQLSTATE %s)", e.PG.Code)
	return b.String()
}

// aboutText reports whether an error is about a statement's text, which names tables
// and columns and never holds row values: those are parameters, or the body of a COPY. The
// server points into the text, or misses a column that COPY lists; what a function,
// or the text that one makes, brings about has a context.
func aboutText(pg *pgconn.PgError) bool {
	return strings.HasPrefix(pg.Code, "42") && pg.Where == "" && pg.InternalQuery == "" && (pg.Position > 0 || pg.Code == "42703")
}

// Unwrap returns the server's own error, for its code. It may hold row values.
func (e *ServerError) Unwrap() error { return e.PG }

// segment is how a cluster ends the message of an error on a segment.
var segment = regexp.MustCompile(`\((seg-?\d{1,5})(?: slice\d+)? \S+ pid=\d+\)$`)

// conditions are SQLSTATEs that statements with rows meet.
var conditions = map[string]string{
	"21000":               "several rows where one was expected",
	"22001":               "a value is too long for its type",
	"22003":               "a number is out of range",
	"22007":               "a date or time cannot be read",
	"22008":               "a date or time is out of range",
	"22021":               "a character does not exist in the server's encoding",
	"22023":               "a value is not allowed there",
	"22026":               "a bit string has the wrong length",
	"22P02":               "a value cannot be read as its type",
	"22P03":               "a value's binary form cannot be read",
	"22P04":               "the form of the COPY data",
	"23001":               "a foreign key restricts the change",
	"23502":               "NULL in a NOT NULL column",
	"23503":               "a foreign key is violated",
	StateUniqueViolation:  "a unique constraint is violated",
	"23514":               "a check constraint is violated",
	StateExclusion:        "an exclusion constraint is violated",
	"25006":               "the server is read-only",
	"40001":               "could not serialize",
	"40P01":               "deadlock",
	StateInsufficientPriv: "privileges are missing",
	"42703":               "a column does not exist",
	"42804":               "a column has another type than expected",
	"42883":               "a function or operator does not exist",
	"428C9":               "a generated column or identity was written",
	StateUndefinedTable:   "a table does not exist",
	StateDiskFull:         "the disk is full",
	StateOutOfMemory:      "out of memory",
	"54000":               "a limit of the server is exceeded",
	StateLockNotAvailable: "a lock was not to be had in time",
	StateQueryCanceled:    "the statement was canceled or took too long",
	"57P01":               "the session was ended by an administrator or a shutdown",
	"P0001":               "a function on the target raised an error",
	StateInternal:         "internal error of the server",
}

// condition says what a SQLSTATE means.
func condition(code string) string {
	if s, ok := conditions[code]; ok {
		return s
	}
	if len(code) == 5 {
		switch code[:2] {
		case "22":
			return "a value was refused"
		case "23":
			return "a constraint is violated"
		}
	}
	return "the server refused the statement; its message can hold row values and is only in its log"
}

// SQLState returns the SQLSTATE in err's chain, or "".
func SQLState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// Clean makes an error of a server or connection fit for people. rows is set for a
// statement that carried rows.
func Clean(err error, rows bool) error {
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg):
		return &ServerError{pg, rows}
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer in time: %w", err)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("stopped: %w", err)
	case isLost(err):
		return fmt.Errorf("the connection was lost: %w", err)
	}
	return err
}

// isLost reports whether err is what a connection returns that has broken.
func isLost(err error) bool {
	var op *net.OpError
	var errno syscall.Errno
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.As(err, &op) || errors.As(err, &errno) || strings.Contains(err.Error(), "conn closed")
}

// JoinErrors makes one error of several, of the class that dtx.ClassOf gives them
// together.
func JoinErrors(op string, errs []error) error {
	var list Problems
	for _, err := range errs {
		if err == nil {
			continue
		}
		list = append(list, err)
	}
	switch len(list) {
	case 0:
		return nil
	case 1:
		var de *dtx.Error
		if errors.As(list[0], &de) {
			return list[0]
		}
	}
	return &dtx.Error{Op: op, Class: dtx.ClassOf(list), Err: list}
}

// Problems is a list of errors that prints as one paragraph.
type Problems []error

// Error numbers the problems when there are several.
func (p Problems) Error() string {
	if len(p) == 1 {
		return p[0].Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d problems", len(p))
	for i, err := range p {
		fmt.Fprintf(&b, "; (%d) %s", i+1, err)
	}
	return b.String()
}

// Unwrap returns the list.
func (p Problems) Unwrap() []error { return p }

// Flatten takes joined errors apart, down to those with a place of their own.
func Flatten(err error) []error {
	if _, ok := err.(*dtx.Error); ok { //nolint:errorlint // only the outermost counts
		return []error{err}
	}
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		return []error{err}
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, Flatten(e)...)
	}
	return out
}
