package status

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"cbrepl/dtx"
)

// Line says in one line what a transaction waits for.
func (w Wait) Line() string {
	lasts := time.Duration(w.Seconds * float64(time.Second)).Round(time.Second)
	if !w.RecordSeen && len(w.Prepared) > 0 {
		return fmt.Sprintf("gxid %d is prepared on content %s and has no outcome since %s (%s); the log behind it is kept there",
			w.GXID, contents(w.Prepared), stamp(w.Since), lasts)
	}
	if !w.RecordSeen {
		return fmt.Sprintf("gxid %d waits for its commit record since %s (%s); parts arrived from content %s",
			w.GXID, stamp(w.Since), lasts, contents(w.Parts))
	}
	return fmt.Sprintf("gxid %d waits for the part of content %s since %s (%s)", w.GXID, contents(w.Missing), stamp(w.Since), lasts)
}

func contents(cs []dtx.Content) string {
	if len(cs) == 0 {
		return "none"
	}
	words := make([]string, len(cs))
	for i, c := range cs {
		words[i] = c.String()
	}
	return strings.Join(words, ", ")
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// Size prints a number of bytes with a unit.
func Size(n int64) string {
	f, u := float64(n), 0
	names := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for f >= 1024 && u < len(names)-1 {
		f /= 1024
		u++
	}
	if u == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", f, names[u])
}

// WriteText prints the report for a person.
func (r *Report) WriteText(out io.Writer) error {
	w := &bytes.Buffer{}
	health := "healthy"
	if !r.Healthy {
		health = "NOT HEALTHY"
	}
	fmt.Fprintf(w, "subscription %s: %s since %s, %s (pid %d, cbrepl %s)\n", r.Subscription, r.State, stamp(r.StateSince), health, r.PID, r.Version)
	for _, u := range r.Unhealthy {
		fmt.Fprintf(w, "  %s\n", u)
	}
	fmt.Fprintf(w, "\n")

	if r.State == Copying {
		return r.writeCopies(w, out)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(format string, args ...any) { _, _ = fmt.Fprintf(tw, format+"\n", args...) } // into memory
	row("CONTENT\tSTATE\tSERVER\tRECEIVED\tSAFE\tLAG\tLAG TIME\tSPOOL")
	for _, s := range r.Streams {
		state := "connected"
		switch {
		case !s.Connected:
			state = "DISCONNECTED"
		case s.Paused:
			state = "paused"
		}
		row("%d\t%s\t%s\t%s\t%s\t%s\t%.1f s\t%s", s.Content, state, s.ServerLSN, s.ReceivedLSN, s.SafeLSN, Size(s.LagBytes), s.LagSeconds, Size(s.SpoolBytes))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, s := range r.Streams {
		if !s.Connected && s.LastError != "" {
			fmt.Fprintf(w, "  content %d: %s\n", s.Content, s.LastError)
		}
	}

	full := ""
	if r.Spool.Full {
		full = " (FULL)"
	}
	a := r.Applied
	fmt.Fprintf(w, "\nspool    %s of %s%s\n", Size(r.Spool.Bytes), Size(r.Spool.MaxBytes), full)
	fmt.Fprintf(w, "pending  %d transactions, %d parts, %d rows, %s\n", r.Pending.Dtxs, r.Pending.Parts, r.Pending.Rows, Size(r.Pending.Bytes))
	if p := r.Participants; p != nil {
		fmt.Fprintf(w, "records  %d wait for their participants; the latest took %.0f ms (median), %.0f ms (most); the slowest segment (content %d) answered in %.0f ms\n",
			p.Waiting, 1000*p.MedianSeconds, 1000*p.MaxSeconds, p.SampleContent, 1000*p.SampleSeconds)
		if p.GXID != 0 {
			fmt.Fprintf(w, "  gxid %d for %.1f s, for word of content %v\n", p.GXID, p.WaitSeconds, p.Contents)
		}
	}
	if len(r.CopyOnly) > 0 {
		fmt.Fprintf(w, "copies only, changes are NOT replicated: %s\n", strings.Join(r.CopyOnly, ", "))
	}
	fmt.Fprintf(w, "applied  %d transactions, %d rows in %d batches (last batch %d at %s); now %.1f transactions/s, %.1f rows/s\n",
		a.Dtxs, a.Rows, a.Batches, a.LastBatch, stamp(a.LastAt), a.DtxsPerSecond, a.RowsPerSecond)
	fmt.Fprintf(w, "target   %s since %s", r.Target.Activity, stamp(r.Target.Since))
	if t := r.Target; t.Batch != 0 {
		fmt.Fprintf(w, ", batch %d, %d of %d rows taken", t.Batch, t.RowsTaken, t.Rows)
	}
	if r.Target.Attempt > 1 {
		fmt.Fprintf(w, ", attempt %d", r.Target.Attempt)
	}
	if r.Target.Error != "" {
		fmt.Fprintf(w, ": %s", r.Target.Error)
	}
	fmt.Fprintln(w)
	for _, wt := range r.Waits {
		fmt.Fprintf(w, "waiting  %s\n", wt.Line())
	}
	tables := make([]string, 0, len(r.Conflicts))
	for t := range r.Conflicts {
		tables = append(tables, t)
	}
	slices.Sort(tables)
	for _, t := range tables {
		fmt.Fprintf(w, "conflicts  %s: %d rows skipped\n", t, r.Conflicts[t])
	}
	if f := r.LastError; f != nil {
		fmt.Fprintf(w, "last error  %s: %s\n", stamp(f.At), f.Message)
	}
	_, err := w.WriteTo(out)
	return err
}

// writeCopies ends the report of a first copy: nothing else is known then.
func (r *Report) writeCopies(w *bytes.Buffer, out io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "TABLE\tSTATE\tROWS\tOF ABOUT\tSIZE\tTIME") // into memory
	for _, c := range r.Copies {
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%s\t%.1f s\n", c.Table, c.State, c.Rows, c.Expected, Size(c.Bytes), c.Seconds)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := w.WriteTo(out)
	return err
}
