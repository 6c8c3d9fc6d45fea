package dtx

import (
	"cmp"
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

// OptionalContent is a content, or none. The zero value is none; content 0 is a
// segment.
type OptionalContent struct {
	id    Content
	named bool
}

// AtContent names a content in an Error.
func AtContent(c Content) OptionalContent { return OptionalContent{c, true} }

// Get returns the content; ok is false when there is none.
func (o OptionalContent) Get() (c Content, ok bool) { return o.id, o.named }

// Compare orders by content; none comes first.
func (o OptionalContent) Compare(p OptionalContent) int {
	switch {
	case o.named == p.named:
		return cmp.Compare(o.id, p.id)
	case p.named:
		return -1
	}
	return 1
}

// ReportBug is the remedy for what only a fault in cbrepl can bring about.
const ReportBug = "This is a bug in cbrepl; please report it"

// Error says what failed and where. Zero-valued fields are not printed.
type Error struct {
	// Op names the step that failed, as a short verb phrase ("apply batch").
	Op string
	// Place of the failure, as far as known. Content is set by AtContent.
	GXID     GXID
	Content  OptionalContent
	LSN      LSN
	Relation string
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
	if c, ok := e.Content.Get(); ok {
		at = append(at, fmt.Sprintf("content %d", c))
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

// ClassOf returns what err asks for: the class of the outermost *Error in its
// chain. Of joined errors, any that asks for a person decides.
//
// This is the one rule for errors that carry no class: they are retried. Go's
// errors of connections and disks carry none, and another try changes nothing
// that the failed one could not have changed; a fault that does not pass shows
// as unhealthy meanwhile. What must not be tried again says so with ClassStop.
func ClassOf(err error) Class {
	switch e := err.(type) { //nolint:errorlint // the chain is walked by hand: a join has several
	case *Error:
		return e.Class
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			if ClassOf(one) == ClassStop {
				return ClassStop
			}
		}
	case interface{ Unwrap() error }:
		return ClassOf(e.Unwrap())
	}
	return ClassRetry
}

// AtRelation adds a table to an Error in err that names none.
func AtRelation(err error, relation string) error {
	var e *Error
	if !errors.As(err, &e) || e.Relation != "" {
		return err
	}
	c := *e
	c.Relation = relation
	return &c
}
