package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cbrepl/apply/verify"
	"cbrepl/subscription"
)

func newVerifyCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify -c FILE",
		Short: "Prove that both clusters hold the same rows, while the daemon replicates",
		Long: "Prove that both clusters hold the same rows, while writers write and the daemon replicates.\n" +
			"The servers compute checksums; where they differ, rows are compared by hashes, until each\n" +
			"is the same or differs for certain. Rows of tables distributed by hash are checked to be\n" +
			"on the segment where the server looks for them. Nothing is changed.\n\n" +
			"The exit code is 0 when all rows are the same, 1 when they are not or could not be compared,\n" +
			"and 2 when the command line or the file is wrong.",
		Args: cobra.NoArgs,
	}
	load := configFlags(cmd, false)
	var o subscription.VerifyOptions
	cmd.Flags().StringSliceVar(&o.Tables, "tables", nil, "the source's tables to verify, as schema.table; default all")
	cmd.Flags().DurationVar(&o.Limits.Wait, "wait", time.Minute, "how long the target may take to catch up, each time")
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		o.Limits.Progress = func(format string, args ...any) {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...)
		}
		results, err := subscription.Verify(cmd.Context(), c, o, newLogger(c.Log, logLevel(c.Log), cmd.ErrOrStderr()))
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		if *asJSON {
			e := json.NewEncoder(out)
			e.SetEscapeHTML(false)
			e.SetIndent("", "  ")
			err = e.Encode(results)
		} else {
			_, err = fmt.Fprint(out, verifyText(results))
		}
		if err == nil && !verify.Same(results) {
			err = &codedError{code: exitFault}
		}
		return err
	}
	return cmd
}

// verifyText prints results for a person.
func verifyText(results []verify.Result) string {
	var b strings.Builder
	for _, r := range results {
		switch {
		case r.Count == 0 && r.Unsettled == 0:
			fmt.Fprintf(&b, "%s: the same, %d rows\n", r.Table, r.Rows)
			continue
		case r.Count == 0:
			fmt.Fprintf(&b, "%s: the same as far as compared, %d rows; %d keys were written all the time\n", r.Table, r.Rows, r.Unsettled)
			continue
		}
		fmt.Fprintf(&b, "%s: DIFFERENT, %d rows: %d differences, %d keys not settled\n", r.Table, r.Rows, r.Count, r.Unsettled)
		for _, d := range r.Differences {
			at := "target"
			if d.Content != nil {
				at = fmt.Sprintf("content %s of the target", d.Content)
			}
			fmt.Fprintf(&b, "  %s on the %s", d.Kind, at)
			if d.SQL != "" {
				fmt.Fprintf(&b, ": %s", d.SQL)
			}
			b.WriteString("\n")
		}
		if left := r.Count - len(r.Differences); left > 0 {
			fmt.Fprintf(&b, "  and %d more\n", left)
		}
	}
	if verify.Same(results) {
		b.WriteString("all tables hold the same rows\n")
	}
	return b.String()
}
