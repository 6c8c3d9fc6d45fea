package main

import (
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"cbrepl/subscription"
	"cbrepl/subscription/config"
)

func newRunCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run -c FILE",
		Short: "Run a subscription until it is told to stop",
		Long: "Run a subscription in the foreground, until SIGINT or SIGTERM. Every key of the file\n" +
			"that is neither in a list nor a connection string has a flag of its own name.",
		Args: cobra.NoArgs,
	}
	load := configFlags(cmd, true)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		s, err := subscription.New(subscription.Options{
			Config: c, Version: version(), Log: newLogger(c.Log, cmd.ErrOrStderr()),
		})
		if err != nil {
			return err
		}
		return s.Run(cmd.Context())
	}
	return cmd
}

func newLogger(l config.Log, w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	}[l.Level]}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
