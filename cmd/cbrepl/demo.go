package main

import (
	"fmt"
	"log/slog"
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
			"clean up. The exit code is 0 only when the result is proved.\n\n" +
			"With --target-dsn the target is a Cloudberry or Greenplum cluster that you have, with\n" +
			"--source-dsn the source is a Greenplum 6 that has plugin cbrepl_source: the demo works in\n" +
			"a schema of its own there, with slots of its own, and removes them. Arguments are visible to other\n" +
			"users of this machine: leave a password to PGPASSWORD or ~/.pgpass.",
		Args: cobra.NoArgs,
	}
	cmd.Flags().IntVar(&o.SourceSegments, "source-segments", 3, "segments of the source, 1 to 16")
	cmd.Flags().IntVar(&o.TargetSegments, "target-segments", 2, "shards of the target, 1 to 16")
	cmd.Flags().StringVar(&o.SourceDSN, "source-dsn", "", "connection `string` of the coordinator of a Greenplum 6 cluster to replicate from")
	cmd.Flags().StringVar(&o.TargetDSN, "target-dsn", "", "connection `string` of the coordinator of a cluster to replicate into")
	cmd.Flags().IntVar(&seconds, "seconds", 20, "how long the load runs")
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "leave everything running after the verdict, until Ctrl-C")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show the daemon's log")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.Duration = time.Duration(seconds) * time.Second
		if o.SourceSegments == 0 || o.TargetSegments == 0 || seconds == 0 {
			return &usageError{fmt.Errorf("segments and seconds must be at least 1")}
		}
		for flag, dsn := range map[string]string{"source": o.SourceDSN, "target": o.TargetDSN} {
			given := cmd.Flags().Changed
			switch {
			case !given(flag + "-dsn"):
			case dsn == "":
				return &usageError{fmt.Errorf("--%s-dsn is empty", flag)}
			case given(flag + "-segments"):
				return &usageError{fmt.Errorf("--%s-segments does not go with --%[1]s-dsn: the cluster has the segments that it has", flag)}
			}
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
			o.Log = newLogger(config.Log{Format: config.Text}, slog.LevelInfo, cmd.ErrOrStderr())
		}
		return demo.Run(cmd.Context(), o)
	}
	return cmd
}
