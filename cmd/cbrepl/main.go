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
	"cbrepl/subscription/config"
)

// Exit codes.
const (
	exitOK    = 0
	exitFault = 1 // the work failed, or its result is bad
	exitUsage = 2 // the command line or the configuration is wrong; nothing was done
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
	if err == nil {
		return exitOK
	}
	var silent *silentError
	if errors.As(err, &silent) {
		return silent.code
	}
	// Errors of connections come with line breaks and tabs in them.
	_, _ = fmt.Fprintf(stderr, "cbrepl: %s\n", strings.NewReplacer("\n\t", " ", "\t", " ").Replace(err.Error()))
	var p *config.Problems
	var u *usageError
	if !started || errors.As(err, &p) || errors.As(err, &u) {
		return exitUsage
	}
	return exitFault
}

// usageError marks an error of the command line or the configuration.
type usageError struct{ err error }

func (u *usageError) Error() string { return u.err.Error() }
func (u *usageError) Unwrap() error { return u.err }

// silentError ends the process with a code when everything has been said.
type silentError struct{ code int }

func (s *silentError) Error() string { return fmt.Sprintf("exit code %d", s.code) }

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
		newRunCmd(), newStatusCmd(), newConfigCmd(), newTargetCmd(), newSlotsCmd(), newDemoCmd(), newLabCmd(), newRouteCmd(), newVersionCmd(),
	)
	return root
}
