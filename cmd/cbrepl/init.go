package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"cbrepl/snapshot"
	"cbrepl/subscription"
	"cbrepl/subscription/status"
)

func newInitCmd() *cobra.Command {
	var o subscription.InitOptions
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "init -c FILE",
		Short: "Copy the tables for the first time, while the source's writers go on",
		Long: "Make the first copy of the published tables: make the slots where they are missing, take a\n" +
			"snapshot of every segment, and copy the rows to their places on the target. Writers of the\n" +
			"source are not held up. `cbrepl run` then applies what they have changed meanwhile, and\n" +
			"refuses to start before the copy is finished.\n\n" +
			"Everything that can be refused is refused before the first change. After a failure run it\n" +
			"again: tables that are copied are kept, the others are emptied and copied anew. Once all\n" +
			"are copied it does nothing.\n\n" +
			"The exit code is 0 when all tables are copied, 2 when the command line or the file is wrong,\n" +
			"3 when a person must act, and 75 after a fault that can pass, or an interrupt.",
		Args: cobra.NoArgs,
	}
	load := configFlags(cmd, false)
	cmd.Flags().IntVar(&o.Workers, "workers", 4, "pieces of tables that are copied at once, 1 to 256")
	cmd.Flags().StringSliceVar(&o.Tables, "tables", nil, "only these tables of the source, as `schema.table,...`")
	cmd.Flags().BoolVar(&o.Truncate, "truncate", false, "delete the rows that target tables hold")
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "check everything, say what would be done and change nothing")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", time.Minute, "how long to wait for transactions that are open on the source")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON, and no progress")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.Workers < 1 || o.Workers > 256 {
			return &usageError{fmt.Errorf("--workers is %d: want 1 to 256", o.Workers)}
		}
		if o.Timeout <= 0 {
			return &usageError{fmt.Errorf("--timeout is %s: want above 0", o.Timeout)}
		}
		c, err := load()
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		terminal := isTerminal(out)
		level := logLevel(c.Log)
		if terminal && !asJSON {
			level = max(level, levelQuiet) // lines of the log would tear the bars apart
		}
		s, err := subscription.New(subscription.Options{Config: c, Version: version(), Log: newLogger(c.Log, level, cmd.ErrOrStderr())})
		if err != nil {
			return err
		}
		stop := func() {}
		if !asJSON {
			o.Begin = func(progress func() []snapshot.Progress) { stop = showCopies(out, terminal, progress) }
		}
		res, err := s.Init(cmd.Context(), o)
		stop()
		var werr error
		if asJSON {
			e := json.NewEncoder(out)
			e.SetIndent("", "  ")
			werr = e.Encode(res)
		} else {
			werr = writeInit(out, &res, err == nil)
		}
		if err != nil {
			return daemonError(err)
		}
		return werr
	}
	return cmd
}

// isTerminal reports whether out is one.
func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

// writeInit prints what was done, or would be.
func writeInit(out io.Writer, res *subscription.InitResult, done bool) error {
	if len(res.Tables) == 0 {
		return nil
	}
	made := "made the slots; "
	if res.DryRun {
		made = "would make the slots; "
	}
	if !res.SlotsMade {
		made = ""
	}
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	var rows, bytes, kept, copied int64
	_, _ = fmt.Fprintln(tw, "TABLE\tTARGET\tSTATE\tROWS\tSIZE\tTIME") // Flush has the error
	for _, t := range res.Tables {
		state := string(t.State)
		switch {
		case t.Kept:
			state = "copied before"
			kept++
		case res.DryRun && t.Truncate:
			state = "would be emptied and copied"
		case res.DryRun:
			state = "would be copied"
		case t.State == "copied":
			copied++
			rows, bytes = rows+t.Rows, bytes+t.Bytes
		}
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%s\t%.1f s\n", t.Table, t.Target, state, t.Rows, status.Size(t.Bytes), t.Seconds)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	left := int64(len(res.Tables)) - kept - copied
	var err error
	switch {
	case res.DryRun:
		_, err = fmt.Fprintf(out, "%s%d tables to copy, %d copied before; nothing was changed\n", made, left, kept)
	case done:
		_, err = fmt.Fprintf(out, "%scopied %d tables, %d rows, %s; %d were copied before. Start `cbrepl run`\n", made, copied, rows, status.Size(bytes), kept)
	default:
		_, err = fmt.Fprintf(out, "%scopied %d tables, %d were copied before, %d are left: run the command again\n", made, copied, kept, left)
	}
	return err
}
