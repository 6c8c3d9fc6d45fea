package dtx

import (
	"errors"
	"fmt"
	"strings"
)

// Class says what a failure asks for.
type Class uint8

const (
	// ClassRetry: a passing fault (lost connection, server starting, lock
	// timeout, deadlock): try again with backoff.
	ClassRetry Class = iota
	// ClassStop: a person must act (configuration, privileges, data conflict,
	// unsupported feature, protocol violation): the subscription stops.
	ClassStop
)

// Error says what failed and where. Zero-valued fields are not printed.
type Error struct {
	// Op names the step that failed, as a short verb phrase ("apply batch").
	Op string
	// Place of the failure, as far as known. Content is printed when HasContent.
	GXID       GXID
	Content    Content
	HasContent bool
	LSN        LSN
	Relation   string
	// Msg says what was found and what was expected.
	Msg string
	// Hint says what the person can do.
	Hint  string
	Class Class
	Err   error
}

// Error prints one paragraph: operation, place, message, cause, hint.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	var at []string
	if e.Relation != "" {
		at = append(at, "table "+e.Relation)
	}
	if e.GXID != 0 {
		at = append(at, fmt.Sprintf("gxid %d", e.GXID))
	}
	if e.HasContent {
		at = append(at, fmt.Sprintf("content %d", e.Content))
	}
	if e.LSN != 0 {
		at = append(at, "LSN "+e.LSN.String())
	}
	if len(at) > 0 {
		b.WriteString(" (" + strings.Join(at, ", ") + ")")
	}
	if e.Msg != "" {
		b.WriteString(": " + e.Msg)
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	if e.Hint != "" {
		b.WriteString(". " + e.Hint)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ClassOf returns the class of the outermost *Error in err's chain, and
// ClassRetry for errors that carry none.
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return ClassRetry
}
