package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"cbrepl/subscription"
	"cbrepl/subscription/config"
)

func newTableCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "table",
		Short: "Take published tables into a subscription, or let go of them",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	take := &cobra.Command{
		Use:   "take -c FILE SCHEMA.TABLE ...",
		Short: "Replicate tables from now on that were published, made anew or changed since",
		Long: "Replicate tables from now on, as the source publishes them now. The target must have a\n" +
			"table for each, with all rows that are not in the stream: cbrepl copies none. So either\n" +
			"nothing was in the table when it was published, or:\n" +
			"  1. let the daemon apply everything, and stop it\n" +
			"  2. copy the table while nothing writes to it\n" +
			"  3. cbrepl table take -c FILE SCHEMA.TABLE\n" +
			"  4. cbrepl run -c FILE, then let writers go on\n" +
			"Rows of an earlier table of the same name that are still in the stream are passed over.\n" +
			"It refuses while a daemon runs.",
	}
	forget := &cobra.Command{
		Use:   "forget -c FILE SCHEMA.TABLE ...",
		Short: "Let go of tables that were dropped or taken out of the publication on purpose",
		Long: "Let go of tables: rows of theirs that are still in the stream are passed over, and nothing\n" +
			"that happens to them on the source stops the subscription any more. Their rows on the\n" +
			"target stay as they are. Take them out of the publication as well, on every node, or their\n" +
			"rows are read for nothing. It refuses while a daemon runs.",
	}
	for _, v := range []struct {
		cmd *cobra.Command
		do  func(context.Context, *config.Config, []string, io.Writer) error
	}{{take, subscription.TakeTables}, {forget, subscription.ForgetTables}} {
		v.cmd.Args = cobra.MinimumNArgs(1)
		load := configFlags(v.cmd, false)
		v.cmd.RunE = func(cmd *cobra.Command, names []string) error {
			c, err := load()
			if err != nil {
				return err
			}
			return v.do(cmd.Context(), c, names, cmd.OutOrStdout())
		}
		cmd.AddCommand(v.cmd)
	}
	return cmd
}
