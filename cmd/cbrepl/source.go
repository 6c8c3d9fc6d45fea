package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"cbrepl/source"
)

func newSourceCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "source",
		Short: "Choose the tables of a Greenplum 6 source, which has no publications of its own",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPublishCmd(), newUnpublishCmd(), newPublishedCmd())
	return cmd
}

func newPublishCmd() *cobra.Command {
	var viaRoot bool
	cmd := &cobra.Command{
		Use:   "publish -c FILE SCHEMA.TABLE ...",
		Short: "Add tables to the publication; a running daemon takes them up at its next start",
		Args:  cobra.MinimumNArgs(1),
	}
	cmd.Flags().BoolVar(&viaRoot, "via-root", false, "send the changes of partitioned tables as those of their root")
	load := configFlags(cmd, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		if err := source.Publish(cmd.Context(), c.Source.Coordinator.DSN.Reveal(), c.Source.Publication, args, viaRoot); err != nil {
			return err
		}
		return printPublished(cmd, c.Source.Coordinator.DSN.Reveal(), c.Source.Publication)
	}
	return cmd
}

func newUnpublishCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "unpublish -c FILE SCHEMA.TABLE ...",
		Short: "Take tables out of the publication",
		Args:  cobra.MinimumNArgs(1),
	}
	load := configFlags(cmd, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		if err := source.Unpublish(cmd.Context(), c.Source.Coordinator.DSN.Reveal(), c.Source.Publication, args); err != nil {
			return err
		}
		return printPublished(cmd, c.Source.Coordinator.DSN.Reveal(), c.Source.Publication)
	}
	return cmd
}

func newPublishedCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list -c FILE",
		Short: "List the tables of the publication, with what keeps them from being replicated",
		Args:  cobra.NoArgs,
	}
	load := configFlags(cmd, false)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		return printPublished(cmd, c.Source.Coordinator.DSN.Reveal(), c.Source.Publication)
	}
	return cmd
}

func printPublished(cmd *cobra.Command, dsn, publication string) error {
	tables, err := source.ListPublished(cmd.Context(), dsn, publication)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if _, err := fmt.Fprintf(out, "publication %s: %d tables\n", publication, len(tables)); err != nil {
		return err
	}
	for _, t := range tables {
		how := ""
		if t.ViaRoot {
			how = ", partitions as their root"
		}
		if _, err := fmt.Fprintf(out, "  %s.%s (OID %d%s)\n", t.Schema, t.Name, t.OID, how); err != nil {
			return err
		}
		for _, n := range t.Notes {
			if _, err := fmt.Fprintf(out, "    %s\n", n); err != nil {
				return err
			}
		}
	}
	return nil
}
