// Package check is the vocabulary of findings: what keeps a subscription from
// running, or may come to, and what to do about it. Those who own the facts make
// findings (packages source, apply/shards, apply/cloudberry, store); a start refuses
// on the same ones that `cbrepl check` prints. The package does no I/O.
package check

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"cbrepl/dtx"
)

// Level says how grave a finding is. The zero value is Error.
type Level uint8

const (
	// Error keeps the subscription from running.
	Error Level = iota
	// Warning does not, but can come to, or makes what it shows wrong.
	Warning
	// OK says that something was looked at and is as it should be.
	OK
)

var levelNames = [...]string{Error: "error", Warning: "warning", OK: "ok"}

// String is the level's name.
func (l Level) String() string { return levelNames[l] }

// MarshalText is String.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads a level's name.
func (l *Level) UnmarshalText(text []byte) error {
	i := slices.Index(levelNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("unknown level %q", text)
	}
	*l = Level(i)
	return nil
}

// Side is the part of a subscription that a finding is about.
type Side string

// Sides. A finding without one is about the source.
const (
	Source Side = "source"
	Target Side = "target"
	// Here is the machine that cbrepl runs on.
	Here Side = "here"
)

// Finding is one thing that was found.
type Finding struct {
	Level Level
	Side  Side
	// Content is the server: a node of the source, or a shard or the coordinator of
	// the target. Relation is the table. Both as far as the finding has one.
	Content  dtx.OptionalContent
	Relation string
	// Found says what was found and what was expected.
	Found string
	// Remedy says what to do. SQL are the statements that do it, in order, on that
	// server, or with Everywhere on every server of that side that holds rows, the
	// source's coordinator included. Restart says that the server must be restarted
	// after them. Commands do it on this machine.
	Remedy     string
	SQL        []string
	Everywhere bool
	Restart    bool
	Commands   []string
	// Passing marks a fault that may pass by itself: a server that is down.
	Passing bool
}

// Place names where the finding is: side, server and table.
func (f *Finding) Place() string {
	var words []string
	if f.Side != "" {
		words = append(words, string(f.Side))
	}
	if c, ok := f.Content.Get(); ok {
		words = append(words, serverName(f.Side, c))
	}
	place := strings.Join(words, " ")
	if f.Relation == "" {
		return place
	}
	if place != "" {
		place += ", "
	}
	return place + "table " + f.Relation
}

// serverName names a server of a side.
func serverName(s Side, c dtx.Content) string {
	switch {
	case c == dtx.Coordinator:
		return "coordinator"
	case s == Target:
		return fmt.Sprintf("shard %d", c)
	}
	return fmt.Sprintf("content %d", c)
}

// String prints one paragraph.
func (f Finding) String() string {
	var b strings.Builder
	if c, ok := f.Content.Get(); ok {
		switch {
		case f.Side == Target:
			b.WriteString(serverName(f.Side, c))
		case c == dtx.Coordinator:
			fmt.Fprintf(&b, "content %d (coordinator)", c)
		default:
			fmt.Fprintf(&b, "content %d", c)
		}
		b.WriteString(": ")
	}
	if f.Relation != "" {
		b.WriteString("table " + f.Relation + ": ")
	}
	b.WriteString(f.Found)
	if f.Remedy != "" {
		b.WriteString(". " + f.Remedy)
	}
	if len(f.SQL) > 0 {
		if f.Everywhere {
			b.WriteString(" (on every server)")
		}
		b.WriteString(": " + strings.Join(f.SQL, "; "))
		if f.Restart {
			b.WriteString("; then restart the server")
		}
	}
	if len(f.Commands) > 0 {
		b.WriteString(": `" + strings.Join(f.Commands, "`, `") + "`")
	}
	return b.String()
}

// Findings is everything that was found at once.
type Findings []Finding

// Error prints one finding a line.
func (fs Findings) Error() string {
	if len(fs) == 1 {
		return fs[0].String()
	}
	lines := make([]string, 0, len(fs)+1)
	lines = append(lines, fmt.Sprintf("%d problems:", len(fs)))
	for _, f := range fs {
		lines = append(lines, "  - "+f.String())
	}
	return strings.Join(lines, "\n")
}

// Sort orders findings: the gravest first, then by side, server and table.
func (fs Findings) Sort() {
	sides := []Side{Source, Target, Here}
	slices.SortStableFunc(fs, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(slices.Index(sides, a.Side), slices.Index(sides, b.Side)),
			a.Content.Compare(b.Content), cmp.Compare(a.Relation, b.Relation))
	})
}

// Errors are those that keep a subscription from running.
func (fs Findings) Errors() Findings {
	var out Findings
	for _, f := range fs {
		if f.Level == Error {
			out = append(out, f)
		}
	}
	return out
}

// Err returns the errors among the findings as one fault of step op, or nil. It
// may be tried again when each of them may pass by itself.
func (fs Findings) Err(op string) error {
	bad := fs.Errors()
	if len(bad) == 0 {
		return nil
	}
	bad.Sort()
	class := dtx.ClassRetry
	if slices.ContainsFunc(bad, func(f Finding) bool { return !f.Passing }) {
		class = dtx.ClassStop
	}
	return &dtx.Error{Op: op, Class: class, Err: bad}
}

// Of takes an error apart into findings of a side: joined errors one by one, and
// findings as they are.
func Of(side Side, err error) Findings {
	if err == nil {
		return nil
	}
	switch e := err.(type) { //nolint:errorlint // taken apart by hand: a join has several
	case Findings:
		out := slices.Clone(e)
		for i := range out {
			if out[i].Side == "" {
				out[i].Side = side
			}
		}
		return out
	case interface{ Unwrap() []error }:
		var out Findings
		for _, one := range e.Unwrap() {
			out = append(out, Of(side, one)...)
		}
		return out
	case interface{ Unwrap() error }:
		var fs Findings
		var joined interface{ Unwrap() []error }
		if errors.As(e.Unwrap(), &fs) || errors.As(e.Unwrap(), &joined) {
			return Of(side, e.Unwrap())
		}
	}
	f := Finding{Side: side, Passing: dtx.ClassOf(err) == dtx.ClassRetry, Found: err.Error()}
	var de *dtx.Error
	if errors.As(err, &de) {
		e := *de
		f.Content, f.Relation, f.Remedy = e.Content, e.Relation, e.Hint
		e.Content, e.Relation, e.Hint = dtx.OptionalContent{}, "", ""
		f.Found = e.Error()
	}
	for _, c := range command.FindAllStringSubmatch(f.Remedy, -1) {
		f.Commands = append(f.Commands, c[1])
	}
	return Findings{f}
}

// command finds a command in a remedy.
var command = regexp.MustCompile("`(cbrepl [^`]*-c FILE)`")
