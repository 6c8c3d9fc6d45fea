package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"cbrepl/logkey"
	"cbrepl/subscription"
	"cbrepl/subscription/config"
)

func newRunCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run -c FILE",
		Short: "Run a subscription until it is told to stop",
		Long: "Run a subscription in the foreground, until SIGINT or SIGTERM. SIGHUP reads log.level again.\n" +
			"Every key of the file that is neither in a list nor a connection string has a flag of its\n" +
			"own name.\n\n" +
			"The exit code is 0 after a signal, 2 when the command line or the file is wrong, 3 when the\n" +
			"subscription has stopped and a person must act, and 75 when a fault that can pass ended it.",
		Args: cobra.NoArgs,
	}
	load := configFlags(cmd, true)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		level := &slog.LevelVar{}
		level.Set(logLevel(c.Log))
		log := newLogger(c.Log, level, cmd.ErrOrStderr())
		s, err := subscription.New(subscription.Options{Config: c, Version: version(), Log: log})
		if err != nil {
			return err
		}
		stopReloading := reloadOnHangup(log, level, load)
		err = daemonError(s.Run(cmd.Context()))
		stopReloading()
		if err != nil && c.Log.Format == config.JSON {
			// Every line is JSON, the last one too.
			log.Error("the subscription has stopped", logkey.Subscription, c.Subscription, logkey.Error, err, logkey.ExitCode, exitCode(err))
			return &codedError{code: exitCode(err)}
		}
		return err
	}
	return cmd
}

// reloadOnHangup reads the configuration again at each SIGHUP, takes log.level
// from it, and logs what it did. It leaves the signal alone where it is ignored,
// as under nohup.
func reloadOnHangup(log *slog.Logger, level *slog.LevelVar, load func() (*config.Config, error)) (stop func()) {
	if signal.Ignored(syscall.SIGHUP) {
		return func() {}
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hup:
			}
			c, err := load()
			if err != nil {
				log.Error("SIGHUP: the configuration is not valid, nothing is changed", logkey.Error, err)
				continue
			}
			level.Set(logLevel(c.Log))
			log.Log(ctx, max(slog.LevelInfo, level.Level()), "SIGHUP: log.level read again; other keys take a restart", logkey.Level, c.Log.Level)
		}
	})
	return func() {
		signal.Stop(hup)
		cancel()
		wg.Wait()
	}
}

func logLevel(l config.Log) slog.Level {
	return map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	}[l.Level]
}

func newLogger(l config.Log, level slog.Leveler, w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if l.Format == config.JSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
