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
			"The address is http.listen of the subscription file, or --addr, or 127.0.0.1:7432.\n\n" +
			"The exit code is 0 when the subscription is healthy, 4 when it is not (the first lines say\n" +
			"why), and 5 when no daemon answers.",
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
			return &codedError{exitNoDaemon, err}
		}
		if *asJSON {
			_, err = cmd.OutOrStdout().Write(raw)
		} else {
			err = report.WriteText(cmd.OutOrStdout())
		}
		if err == nil && !report.Healthy {
			err = &codedError{code: exitUnhealthy}
		}
		return err
	}
	return cmd
}
