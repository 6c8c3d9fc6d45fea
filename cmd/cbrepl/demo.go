package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"cbrepl/demo"
	"cbrepl/subscription/config"
)

func newDemoCmd() *cobra.Command {
	o := demo.Options{}
	var seconds int
	var verbose bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Start two clusters on this machine, replicate live transactions, verify, clean up",
		Long: "Start a source and a target cluster on local PostgreSQL servers, replicate live\n" +
			"distributed transactions from one to the other, verify every row and its shard, and\n" +
			"clean up. The exit code is 0 only when the result is proved.",
		Args: cobra.NoArgs,
	}
	cmd.Flags().IntVar(&o.SourceSegments, "source-segments", 3, "segments of the source, 1 to 16")
	cmd.Flags().IntVar(&o.TargetSegments, "target-segments", 2, "shards of the target, 1 to 16")
	cmd.Flags().IntVar(&seconds, "seconds", 20, "how long the load runs")
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "leave everything running after the verdict, until Ctrl-C")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show the daemon's log")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.Duration = time.Duration(seconds) * time.Second
		if o.SourceSegments == 0 || o.TargetSegments == 0 || seconds == 0 {
			return &usageError{fmt.Errorf("segments and seconds must be at least 1")}
		}
		if err := o.Validate(); err != nil {
			return &usageError{err}
		}
		o.Out, o.Version = cmd.OutOrStdout(), version()
		if f, ok := o.Out.(*os.File); ok {
			st, err := f.Stat()
			o.Terminal = err == nil && st.Mode()&os.ModeCharDevice != 0
		}
		if verbose {
			o.Log = newLogger(config.Log{Level: "info", Format: "text"}, cmd.ErrOrStderr())
		}
		return demo.Run(cmd.Context(), o)
	}
	return cmd
}
