package main

import (
	"errors"
	"fmt"

	"cbrepl/dtx"
	"cbrepl/subscription/config"
)

// Exit codes of every command. docs/operating.md says what to do with each.
const (
	exitOK    = 0
	exitFault = 1 // the work failed, or its result is bad
	exitUsage = 2 // the command line or the configuration is wrong; nothing was done
	// exitStopped: the subscription cannot continue before a person has acted; a
	// restart changes nothing.
	exitStopped = 3
	// exitUnhealthy: `cbrepl status` was answered, and the subscription is not
	// healthy: starting, stopped, or stuck.
	exitUnhealthy = 4
	// exitNoDaemon: `cbrepl status` was not answered by a daemon.
	exitNoDaemon = 5
	// exitTemporary: a fault that can pass ended the daemon: start it again. It is
	// EX_TEMPFAIL of sysexits.h.
	exitTemporary = 75
)

// exitCode is the code for what a command returned.
func exitCode(err error) int {
	var c *codedError
	var p *config.Problems
	var u *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &c):
		return c.code
	case errors.As(err, &p), errors.As(err, &u):
		return exitUsage
	}
	return exitFault
}

// usageError marks an error of the command line or the configuration.
type usageError struct{ err error }

func (u *usageError) Error() string { return u.err.Error() }
func (u *usageError) Unwrap() error { return u.err }

// codedError ends the process with a code. Without an error everything has been
// said.
type codedError struct {
	code int
	err  error
}

func (c *codedError) Error() string {
	if c.err == nil {
		return fmt.Sprintf("exit code %d", c.code)
	}
	return c.err.Error()
}

func (c *codedError) Unwrap() error { return c.err }

// daemonError says how a subscription ended.
func daemonError(err error) error {
	switch {
	case err == nil:
		return nil
	case dtx.ClassOf(err) == dtx.ClassStop:
		return &codedError{exitStopped, err}
	}
	return &codedError{exitTemporary, err}
}
