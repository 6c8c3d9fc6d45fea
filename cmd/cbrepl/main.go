// Command cbrepl replicates one MPP PostgreSQL cluster into another of a
// different segment count. This package is the command line: flags, output and
// exit codes; the work is done by the packages it calls.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"cbrepl/faultinject"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal a second one ends the process at once.
	context.AfterFunc(ctx, stop)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes one command line and returns the exit code. An error is one
// paragraph on stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if err := faultinject.Arm(os.Getenv(faultinject.EnvVar)); err != nil {
		_, _ = fmt.Fprintf(stderr, "cbrepl: %s: %v\n", faultinject.EnvVar, err)
		return exitUsage
	}
	started := false
	root := newRootCmd()
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	var coded *codedError
	if err != nil && (!errors.As(err, &coded) || coded.err != nil) {
		// Errors of connections come with line breaks and tabs in them.
		_, _ = fmt.Fprintf(stderr, "cbrepl: %s\n", strings.NewReplacer("\n\t", " ", "\t", " ").Replace(err.Error()))
	}
	if err != nil && !started {
		return exitUsage
	}
	return exitCode(err)
}

func newRootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:           "cbrepl",
		Short:         "Replicate an MPP PostgreSQL cluster into one of another segment count",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(
		newInitCmd(), newRunCmd(), newCheckCmd(), newVerifyCmd(), newStatusCmd(), newConfigCmd(), newTargetCmd(), newSlotsCmd(), newSourceCmd(), newSubscriptionCmd(), newTableCmd(),
		newDemoCmd(), newLabCmd(), newRouteCmd(), newVersionCmd(),
	)
	return root
}
