package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"cbrepl/subscription"
)

// resyncSteps are the way to begin again with a new copy, step by step.
const resyncSteps = `To begin again with a new copy of the tables:
  1. stop the daemon
  2. cbrepl slots drop -c %[1]s
  3. cbrepl slots create -c %[1]s
  4. empty the tables on the target and copy them from the source; nothing may
     write on the source from step 3 to the end of the copy
  5. cbrepl subscription reset -c %[1]s
  6. cbrepl run -c %[1]s
`

func newSubscriptionCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "subscription",
		Short: "Make a subscription new",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	reset := &cobra.Command{
		Use:   "reset -c FILE",
		Short: "Forget how far a subscription has come, after its target was filled again",
		Long: "Forget how far a subscription has come: remove what the target records of it, on every\n" +
			"server, and the spool, and record that it begins at the slots' positions. No row of a\n" +
			"replicated table is touched. It refuses while a daemon runs, and may be repeated.\n\n" +
			fmt.Sprintf(resyncSteps, "FILE"),
		Args: cobra.NoArgs,
	}
	load := configFlags(reset, false)
	dryRun := reset.Flags().Bool("dry-run", false, "say what would be removed and change nothing")
	reset.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		if err := subscription.Reset(cmd.Context(), c, *dryRun, out); err != nil {
			return err
		}
		if *dryRun {
			_, err = fmt.Fprintln(out, "nothing was changed")
			return err
		}
		_, err = fmt.Fprintf(out, "subscription %s is new: it begins at the slots' positions\n\n%s",
			c.Subscription, fmt.Sprintf(resyncSteps, cmd.Flag("config").Value))
		return err
	}
	cmd.AddCommand(reset)
	return cmd
}
