package demo

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"cbrepl/lab"
)

// verdict compares the clusters and prints the summary.
func (r *run) verdict(ctx context.Context, began time.Time) error {
	rep := r.sub.Report()
	r.line.say("verifying: every table row by row, every target row's shard against cdbhash over %d segments", r.o.TargetSegments)
	cmp, err := lab.Compare(ctx, r.src, r.dst, Tables...)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(r.o.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nTABLE\tSOURCE ROWS\tTARGET ROWS\tMISSING\tEXTRA\tMISPLACED\tRESULT")
	for _, t := range cmp.Tables {
		result := "same"
		if !t.OK() {
			result = "DIFFERENT"
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%s\n", t.Table, t.SourceRows, t.TargetRows, t.Missing, t.Extra, t.Misplaced, result)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	total, err := r.dst.Total(ctx, Accounts, "balance")
	if err != nil {
		return err
	}
	dtxs, multi, rows := r.load.Counts()
	a := rep.Applied
	fmt.Fprintf(r.o.Out, "\nsource   %d segments: %d distributed transactions committed, %d of them on several segments, %d row changes\n",
		r.o.SourceSegments, dtxs, multi, rows)
	fmt.Fprintf(r.o.Out, "target   %d shards: %d transactions applied in %d batches, %d row changes received (replicated rows once per segment)\n",
		r.o.TargetSegments, a.Dtxs, a.Batches, a.Rows)
	fmt.Fprintf(r.o.Out, "balance  %d on the target, %d at every commit of the source\n", total, r.load.Total())
	fmt.Fprintf(r.o.Out, "lag      at most %.1f s during the load\n", r.lagMax)
	fmt.Fprintf(r.o.Out, "time     %.0f s in all\n", time.Since(began).Seconds())
	if total != r.load.Total() || a.Dtxs != dtxs || !cmp.OK() {
		fmt.Fprintln(r.o.Out, "\nRESULT: DIFFERENT")
		return ErrDifferent
	}
	fmt.Fprintln(r.o.Out, "\nRESULT: both clusters hold the same rows, each on the right shard")
	if r.o.Keep {
		return r.stay(ctx)
	}
	return nil
}

// stay keeps everything running until ctx ends.
func (r *run) stay(ctx context.Context) error {
	r.line.say("\nkept running until you press Ctrl-C (the daemon goes on replicating):")
	for _, c := range []struct {
		name string
		dsns []string
	}{
		{"source", append([]string{r.src.DSN()}, r.src.SegmentDSNs()...)},
		{"target", append([]string{r.dst.DSN()}, r.dst.SegmentDSNs()...)},
	} {
		for i, d := range c.dsns {
			r.line.say("  %s content %2d  %s", c.name, i-1, d)
		}
	}
	r.line.say("  configuration  %s\n  status         cbrepl status --addr %s", r.file, r.cfg.HTTP.Listen)
	select {
	case <-ctx.Done():
		return nil
	case <-r.ended:
		return r.ranOut()
	}
}
