package demo

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// verdict compares the clusters and prints the summary.
func (r *run) verdict(ctx context.Context, began time.Time) error {
	rep := r.sub.Report()
	where := strings.TrimSuffix(r.dst.word(), "s")
	r.line.say("verifying: every table row by row, every target row's %s against cdbhash over %d segments", where, r.dst.segments())
	cmp, err := compare(ctx, r.src, r.dst)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	row := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) } // into memory
	row("\nTABLE\tSOURCE ROWS\tTARGET ROWS\tMISSING\tEXTRA\tMISPLACED\tRESULT")
	for _, t := range cmp.Tables {
		result := "same"
		if !t.OK() {
			result = "DIFFERENT"
		}
		row("%s\t%d\t%d\t%d\t%d\t%d\t%s", t.Table, t.SourceRows, t.TargetRows, t.Missing, t.Extra, t.Misplaced, result)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	total, err := r.dst.total(ctx)
	if err != nil {
		return err
	}
	dtxs, multi, _ := r.load.Counts()
	a := rep.Applied
	fmt.Fprintf(&out, "\nsource   %d segments: %d distributed transactions committed, %d of them on several segments\n",
		r.src.segments(), dtxs, multi)
	fmt.Fprintf(&out, "target   %d %s: %d transactions applied in %d batches, %d row changes received (replicated rows once per segment)\n",
		r.dst.segments(), r.dst.word(), a.Dtxs, a.Batches, a.Rows)
	fmt.Fprintf(&out, "balance  %d on the target, %d at every commit of the source\n", total, r.load.Total())
	fmt.Fprintf(&out, "lag      at most %.1f s during the load\n", r.lagMax)
	fmt.Fprintf(&out, "time     %.0f s in all\n", time.Since(began).Seconds())
	if total != r.load.Total() || a.Dtxs != dtxs || !cmp.OK() {
		r.line.say("%s\nRESULT: DIFFERENT", out.String())
		return ErrDifferent
	}
	r.line.say("%s\nRESULT: both clusters hold the same rows, each on the right %s", out.String(), where)
	if r.o.Keep {
		return r.stay(ctx)
	}
	return nil
}

// stay keeps everything running until ctx ends.
func (r *run) stay(ctx context.Context) error {
	r.line.say("\nkept running until you press Ctrl-C (the daemon goes on replicating):")
	for _, p := range append(r.src.places(), r.dst.places()...) {
		r.line.say("  %s", p)
	}
	r.line.say("  configuration  %s\n  status         cbrepl status --addr %s", r.file, r.cfg.HTTP.Listen)
	select {
	case <-ctx.Done():
		return nil
	case <-r.ended:
		return r.ranOut()
	}
}
