package source

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"cbrepl/dtx"
)

// Problem is one finding that keeps a subscription from running.
type Problem struct {
	// Content is the node, Relation the table, where the problem has one.
	Content  dtx.OptionalContent
	Relation string
	// Found says what was found and what was expected.
	Found string
	// Remedy says what to do, SQL the statements that do it on that node, in
	// order; Restart that the server must be restarted after them.
	Remedy  string
	SQL     []string
	Restart bool
	// passing is set for a fault that may pass by itself: a server that is down.
	passing bool
}

// String prints one paragraph.
func (p Problem) String() string {
	var b strings.Builder
	if c, ok := p.Content.Get(); ok {
		fmt.Fprintf(&b, "content %d", c)
		if c == dtx.Coordinator {
			b.WriteString(" (coordinator)")
		}
		b.WriteString(": ")
	}
	if p.Relation != "" {
		b.WriteString("table " + p.Relation + ": ")
	}
	b.WriteString(p.Found)
	if p.Remedy != "" {
		b.WriteString(". " + p.Remedy)
	}
	if len(p.SQL) > 0 {
		b.WriteString(": " + strings.Join(p.SQL, "; "))
		if p.Restart {
			b.WriteString("; then restart the server")
		}
	}
	return b.String()
}

// Problems is everything that was found at once.
type Problems []Problem

// Error prints one problem a line.
func (ps Problems) Error() string {
	if len(ps) == 1 {
		return ps[0].String()
	}
	lines := make([]string, 0, len(ps)+1)
	lines = append(lines, fmt.Sprintf("%d problems:", len(ps)))
	for _, p := range ps {
		lines = append(lines, "  - "+p.String())
	}
	return strings.Join(lines, "\n")
}

// err returns the problems as one fault, or nil.
func (ps Problems) err(op string) error {
	if len(ps) == 0 {
		return nil
	}
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(a.Content.Compare(b.Content), cmp.Compare(a.Relation, b.Relation))
	})
	class := dtx.ClassRetry // when nothing else is wrong
	if slices.ContainsFunc(ps, func(p Problem) bool { return !p.passing }) {
		class = dtx.ClassStop
	}
	return &dtx.Error{Op: op, Class: class, Err: ps}
}

// problemOf turns an error of a connection into a problem of its node.
func problemOf(c dtx.Content, err error) Problem {
	p := Problem{Content: dtx.AtContent(c), passing: dtx.ClassOf(err) == dtx.ClassRetry}
	var de *dtx.Error
	if !errors.As(err, &de) {
		p.Found = err.Error()
		return p
	}
	e := *de
	p.Remedy, e.Hint, e.Content = e.Hint, "", dtx.OptionalContent{}
	p.Found = e.Error()
	return p
}
