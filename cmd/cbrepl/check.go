package main

import (
	"github.com/spf13/cobra"

	"cbrepl/check"
	"cbrepl/subscription"
)

func newCheckCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check -c FILE",
		Short: "Look at both clusters, every published table and this machine, and say what is wrong",
		Long: "Look at both clusters, every published table and this machine, and print everything that\n" +
			"was found, each time with a remedy: statements for the server that is named, or commands.\n" +
			"Nothing is changed. It may run beside the daemon.\n\n" +
			"The exit code is 0 when `cbrepl run` would start (there may be warnings), 1 when it would\n" +
			"refuse, and 2 when the command line or the file is wrong.",
		Args: cobra.NoArgs,
	}
	load := configFlags(cmd, false)
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	quiet := cmd.Flags().BoolP("quiet", "q", false, "leave out what is well")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		r := subscription.Check(cmd.Context(), c, newLogger(c.Log, logLevel(c.Log), cmd.ErrOrStderr()))
		r.WithFile(cmd.Flag("config").Value.String())
		if *asJSON {
			err = r.WriteJSON(cmd.OutOrStdout())
		} else {
			err = r.WriteText(cmd.OutOrStdout(), *quiet)
		}
		if err == nil && r.Count(check.Error) > 0 {
			err = &codedError{code: exitFault}
		}
		return err
	}
	return cmd
}
