package pgside

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/dtx"
)

// ServerError prints what a server reported without what may hold row values:
// neither detail nor context, and no quoted text in messages about data.
type ServerError struct {
	PG *pgconn.PgError
}

// Error prints message and SQLSTATE, with the names of constraint and column.
func (e *ServerError) Error() string {
	msg := e.PG.Message
	switch {
	case strings.HasPrefix(e.PG.Code, "22"):
		msg = dropQuoted(msg)
	case strings.HasPrefix(e.PG.Code, "P0"):
		msg = "raised by a function on the target; its text can hold row values and is only in that server's log"
	}
	var b strings.Builder
	b.WriteString(msg)
	if c := e.PG.ColumnName; c != "" && !strings.Contains(msg, c) {
		fmt.Fprintf(&b, ", column %s", c)
	}
	if c := e.PG.ConstraintName; c != "" && !strings.Contains(msg, c) {
		fmt.Fprintf(&b, ", constraint %s", c)
	}
	fmt.Fprintf(&b, " (SQLSTATE %s)", e.PG.Code)
	return b.String()
}

// Unwrap returns the server's own error, for its code. It may hold row values.
func (e *ServerError) Unwrap() error { return e.PG }

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

// SQLState returns the SQLSTATE in err's chain, or "".
func SQLState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// Clean makes an error of a server or connection fit for people.
func Clean(err error) error {
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg):
		return &ServerError{pg}
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer in time: %w", err)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("stopped: %w", err)
	}
	return fmt.Errorf("the connection was lost: %w", err)
}

// Together makes one error of several, of the class that dtx.ClassOf gives them
// together.
func Together(op string, errs []error) error {
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
