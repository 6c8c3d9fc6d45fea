package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"cbrepl/subscription"
)

func newTargetCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "target",
		Short: "Prepare a target",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	prepare := &cobra.Command{
		Use:   "prepare -c FILE",
		Short: "Create schema cbrepl, where a target keeps positions, and register the subscription",
		Args:  cobra.NoArgs,
	}
	load := configFlags(prepare, false)
	prepare.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		if err := subscription.PrepareTarget(cmd.Context(), c); err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "the target is prepared for subscription %s\n", c.Subscription)
		return err
	}
	cmd.AddCommand(prepare)
	return cmd
}
