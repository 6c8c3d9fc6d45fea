//go:build !linux

package repl

import (
	"net"
	"syscall"
	"time"
)

// controlUserTimeout: the option is Linux's; elsewhere the read timeout and TCP
// keepalive end a dead stream.
func controlUserTimeout(time.Duration) func(network, address string, c syscall.RawConn) error {
	return nil
}

func socketOf(net.Conn) socket { return nil }

func bufferAtSender(net.Conn) {}
