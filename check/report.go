package check

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"cbrepl/dtx"
)

// Report is what was looked at and what was found.
type Report struct {
	Servers  []Server
	Findings Findings
}

// Add appends what another report holds.
func (r *Report) Add(o Report) {
	r.Servers = append(r.Servers, o.Servers...)
	r.Findings = append(r.Findings, o.Findings...)
}

// Err is Findings.Err.
func (r *Report) Err(op string) error { return r.Findings.Err(op) }

// Count counts the findings of a level.
func (r *Report) Count(l Level) int {
	n := 0
	for _, f := range r.Findings {
		if f.Level == l {
			n++
		}
	}
	return n
}

// file stands for the subscription's file in commands.
const file = "-c FILE"

// WithFile puts the subscription's file into the remedies' commands.
func (r *Report) WithFile(name string) {
	for i := range r.Findings {
		for j, c := range r.Findings[i].Commands {
			r.Findings[i].Commands[j] = strings.Replace(c, file, "-c "+QuoteShell(name), 1)
		}
	}
}

// QuoteShell makes a word of a shell command.
func QuoteShell(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:@%,"
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// findingJSON is a finding for scripts.
type findingJSON struct {
	Level      Level        `json:"level"`
	Side       Side         `json:"side"`
	Content    *dtx.Content `json:"content,omitempty"`
	Table      string       `json:"table,omitempty"`
	Found      string       `json:"found"`
	Remedy     string       `json:"remedy,omitempty"`
	SQL        []string     `json:"sql,omitempty"`
	Everywhere bool         `json:"everywhere,omitempty"`
	Restart    bool         `json:"restart,omitempty"`
	Commands   []string     `json:"commands,omitempty"`
}

// WriteJSON prints the report for scripts.
func (r *Report) WriteJSON(w io.Writer) error {
	out := struct {
		Errors   int           `json:"errors"`
		Warnings int           `json:"warnings"`
		Servers  []Server      `json:"servers"`
		Findings []findingJSON `json:"findings"`
	}{r.Count(Error), r.Count(Warning), r.Servers, []findingJSON{}}
	for _, f := range r.Findings {
		j := findingJSON{f.Level, f.Side, nil, f.Relation, f.Found, f.Remedy, f.SQL, f.Everywhere, f.Restart, f.Commands}
		if c, ok := f.Content.Get(); ok {
			j.Content = &c
		}
		out.Findings = append(out.Findings, j)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(out)
}

// WriteText prints the report for a person; quiet leaves out what is well.
func (r *Report) WriteText(out io.Writer, quiet bool) error {
	var b strings.Builder
	if len(r.Servers) > 0 && !quiet {
		tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		row := func(format string, args ...any) { _, _ = fmt.Fprintf(tw, format+"\n", args...) } // into memory
		row("SERVER\tVERSION\tDATABASE\tROLE\tENCODING\tTIME ZONE\tCLOCK\tSLOTS\tSENDERS\tPREPARED")
		for _, s := range r.Servers {
			row("%s %s\t%s\t%s\t%s\t%s\t%s\t%+.3f s\t%s\t%s\t%s", s.Side, serverName(s.Side, s.Content), s.Version, s.Database, s.Role,
				s.Encoding, s.TimeZone, time.Duration(s.Clock).Seconds(), s.Slots, s.Senders, s.Prepared)
		}
		if err := tw.Flush(); err != nil {
			return err
		}
		b.WriteString("\n")
	}
	for i := range r.Findings {
		if !quiet || r.Findings[i].Level != OK {
			r.Findings[i].writeText(&b)
		}
	}
	verdict := "the subscription can run"
	if r.Count(Error) > 0 {
		verdict = "`cbrepl run` would refuse to start"
	}
	fmt.Fprintf(&b, "%s, %s, %d ok: %s\n", plural(r.Count(Error), "error"), plural(r.Count(Warning), "warning"), r.Count(OK), verdict)
	_, err := io.WriteString(out, b.String())
	return err
}

// String prints used/max.
func (u Use) String() string { return fmt.Sprintf("%d/%d", u.Used, u.Max) }

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

func (f *Finding) writeText(b *strings.Builder) {
	place := f.Place()
	if place != "" {
		place += ": "
	}
	fmt.Fprintf(b, "%-7s  %s%s\n", f.Level, place, f.Found)
	if f.Remedy == "" && len(f.SQL)+len(f.Commands) == 0 {
		return
	}
	remedy := f.Remedy
	if f.Everywhere && len(f.SQL) > 0 {
		remedy += fmt.Sprintf(" (on every server of the %s)", f.Side)
	}
	fmt.Fprintf(b, "         remedy: %s\n", strings.TrimSpace(remedy))
	for _, s := range f.SQL {
		fmt.Fprintf(b, "           %s;\n", s)
	}
	if f.Restart {
		b.WriteString("           then restart the server\n")
	}
	for _, c := range f.Commands {
		fmt.Fprintf(b, "           %s\n", c)
	}
}
