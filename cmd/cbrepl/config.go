package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cbrepl/subscription/config"
)

// configFlags adds -c and returns a loader. With overrides, every key that is
// neither in a list nor a connection string also gets a flag of its own name:
// arguments are visible to other users of the machine, so passwords have no flag.
func configFlags(cmd *cobra.Command, overrides bool) func() (*config.Config, error) {
	file := cmd.Flags().StringP("config", "c", "", "subscription `file`")
	flags := map[string]*pflag.Flag{}
	if overrides {
		for _, key := range config.Keys() {
			if strings.Contains(key, "[]") || strings.HasSuffix(key, "dsn") || key == "subscription" {
				continue
			}
			cmd.Flags().String(key, "", "override "+key+" of the file")
			flags[key] = cmd.Flags().Lookup(key)
		}
	}
	return func() (*config.Config, error) {
		c, err := config.Load(config.Sources{File: *file, Env: os.Environ(), Flags: flags})
		if err != nil {
			return nil, &usageError{err}
		}
		return c, nil
	}
}

func newConfigCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print an example configuration, or check a file",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	example := &cobra.Command{
		Use:   "example",
		Short: "Print a commented subscription file",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), config.Example)
			return err
		},
	}
	check := &cobra.Command{
		Use:   "check -c FILE",
		Short: "Report everything that is wrong with a subscription file, without connecting anywhere",
		Args:  cobra.NoArgs,
	}
	load := configFlags(check, true)
	check.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		to := "a target of kind " + c.Target.Kind
		if c.Target.Kind == config.Shards {
			to = fmt.Sprintf("%s with %d shards", to, len(c.Target.Shards))
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "subscription %s: from a coordinator and %s to %s; the configuration is valid\n",
			c.Subscription, segmentCount(c), to)
		return err
	}
	cmd.AddCommand(example, check)
	return cmd
}

// segmentCount says how many segments the file lists.
func segmentCount(c *config.Config) string {
	if n := len(c.Source.Segments); n > 0 {
		return fmt.Sprintf("%d segments", n)
	}
	return "the segments that it names"
}
