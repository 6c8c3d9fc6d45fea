package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"cbrepl/subscription"
)

func newSlotsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "slots",
		Short: "Create or drop the logical slots on every source node",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	create := &cobra.Command{
		Use:   "create -c FILE",
		Short: "Create the slot on every source node, or on none",
		Long: "Create the slot on every source node, or on none, and record on the target, which must be\n" +
			"prepared, that the subscription begins there, with the tables that are published.",
		Args: cobra.NoArgs,
	}
	loadCreate := configFlags(create, false)
	timeout := create.Flags().Duration("timeout", time.Minute, "how long to wait for transactions that are open on the source")
	create.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := loadCreate()
		if err != nil {
			return err
		}
		recorded, err := subscription.CreateSlots(cmd.Context(), c, *timeout, newLogger(c.Log, logLevel(c.Log), cmd.ErrOrStderr()))
		if err != nil {
			return err
		}
		note := "the subscription begins there"
		if !recorded {
			note = "the target records the positions of earlier slots until `cbrepl subscription reset`"
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "slot %s created on the coordinator and %s; %s\n", c.Source.Slot, segmentCount(c), note)
		return err
	}
	drop := &cobra.Command{
		Use:   "drop -c FILE",
		Short: "Drop the slot on every source node; the subscription cannot be resumed afterwards",
		Args:  cobra.NoArgs,
	}
	loadDrop := configFlags(drop, false)
	drop.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := loadDrop()
		if err != nil {
			return err
		}
		if err := subscription.DropSlots(cmd.Context(), c); err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "slot %s dropped wherever it was\n", c.Source.Slot)
		return err
	}
	cmd.AddCommand(create, drop)
	return cmd
}
