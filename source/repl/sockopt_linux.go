package repl

import (
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// tcpUserTimeout is TCP_USER_TIMEOUT of linux/tcp.h.
const tcpUserTimeout = 0x12

// controlUserTimeout makes the kernel give up a connection whose sent data
// stays unacknowledged for d.
func controlUserTimeout(d time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(network, _ string, c syscall.RawConn) error {
		if !strings.HasPrefix(network, "tcp") {
			return nil
		}
		// Best effort: without it the read timeout still ends a dead stream.
		return c.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(d.Milliseconds()))
		})
	}
}

// tcpSocket is a TCP connection's socket.
type tcpSocket struct{ raw syscall.RawConn }

func socketOf(c net.Conn) socket {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return nil
	}
	return &tcpSocket{raw}
}

func (s *tcpSocket) tryRead(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	cerr := s.raw.Read(func(fd uintptr) bool {
		for {
			n, err = syscall.Read(int(fd), p)
			if err != syscall.EINTR {
				return true
			}
		}
	})
	switch {
	case cerr != nil:
		return 0, cerr
	case err == syscall.EAGAIN:
		return 0, nil
	case err != nil:
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", err)}
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func (s *tcpSocket) wakeAt(bytes int) {
	// Best effort: without it the reader is woken more often than it needs.
	_ = s.raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, bytes)
	})
}
