package demo

import (
	"fmt"
	"io"
	"strings"
	"time"

	"cbrepl/subscription/status"
)

// plainEvery is the pace of progress lines where they cannot be rewritten.
const plainEvery = 2 * time.Second

// line writes messages, and one line that shows how things stand.
type line struct {
	out      io.Writer
	terminal bool
	width    int // of the line on display
	last     time.Time
}

// print writes; progress that cannot be shown is no reason to fail.
func (l *line) print(text string) { _, _ = io.WriteString(l.out, text) }

// say writes a message of its own.
func (l *line) say(format string, args ...any) {
	l.clear()
	l.print(fmt.Sprintf(format+"\n", args...))
}

// show replaces the line.
func (l *line) show(text string) {
	if !l.terminal {
		if now := time.Now(); now.Sub(l.last) >= plainEvery {
			l.last = now
			l.print(text + "\n")
		}
		return
	}
	l.print("\r" + text + strings.Repeat(" ", max(0, l.width-len(text))))
	l.width = len(text)
}

// clear removes the line from the display.
func (l *line) clear() {
	if l.terminal && l.width > 0 {
		l.print("\r" + strings.Repeat(" ", l.width) + "\r")
	}
	l.width = 0
}

// end keeps the line and begins a new one.
func (l *line) end() {
	if l.terminal && l.width > 0 {
		l.print("\n")
	}
	l.width = 0
}

// progress shows both sides.
func (r *run) progress(what string) {
	rep := r.sub.Report()
	dtxs, _, _ := r.load.Counts()
	r.lagMax = max(r.lagMax, rep.LagSeconds)
	r.line.show(fmt.Sprintf("%-7s source %6d dtx | target %6d dtx  %5.0f dtx/s  %6.0f rows/s | lag %4.1f s  %8s | spool %8s",
		what, dtxs, rep.Applied.Dtxs, rep.Applied.DtxsPerSecond, rep.Applied.RowsPerSecond, rep.LagSeconds, status.Size(rep.LagBytes), status.Size(rep.Spool.Bytes)))
}
