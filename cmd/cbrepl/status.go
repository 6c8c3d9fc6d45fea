package main

import (
	"errors"

	"github.com/spf13/cobra"

	"cbrepl/subscription/config"
	"cbrepl/subscription/status"
)

func newStatusCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [-c FILE | --addr HOST:PORT]",
		Short: "Show how a running subscription is doing",
		Long: "Show how a running subscription is doing, read from the daemon's HTTP endpoint.\n" +
			"The address is http.listen of the subscription file, or --addr, or 127.0.0.1:7432.",
		Args: cobra.NoArgs,
	}
	load := configFlags(cmd, false)
	addr := cmd.Flags().String("addr", "", "address of the daemon's HTTP endpoint")
	asJSON := cmd.Flags().Bool("json", false, "print the daemon's JSON as it is")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		at := *addr
		switch {
		case at != "" && cmd.Flags().Changed("config"):
			return &usageError{errors.New("give either -c or --addr")}
		case at == "" && cmd.Flags().Changed("config"):
			c, err := load()
			if err != nil {
				return err
			}
			if at = c.HTTP.Listen; at == config.Off {
				return &usageError{errors.New("http.listen is off in this file: the daemon serves no status")}
			}
		case at == "":
			at = config.DefaultListen
		}
		report, raw, err := status.Fetch(cmd.Context(), at)
		if err != nil {
			return err
		}
		if *asJSON {
			_, err = cmd.OutOrStdout().Write(raw)
			return err
		}
		return report.WriteText(cmd.OutOrStdout())
	}
	return cmd
}
