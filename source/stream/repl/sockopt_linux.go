package repl

import (
	"crypto/tls"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// controlUserTimeout makes the kernel give up a connection whose sent data
// stays unacknowledged for d.
func controlUserTimeout(d time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(network, _ string, c syscall.RawConn) error {
		if !strings.HasPrefix(network, "tcp") {
			return nil
		}
		// Best effort: without it the read timeout still ends a dead stream.
		return c.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
		})
	}
}

// nearRTT is up to what round trip a small receive buffer costs no speed: at
// half a millisecond, 64 KiB in flight still make 100 MB/s.
const nearRTT = 500 // microseconds

// nearBuffer is the receive buffer of a near connection in bytes. The kernel
// doubles it for its own needs.
const nearBuffer = 32 << 10

// bufferAtSender keeps the receive buffer of a near connection small. A
// walsender sends every row by itself, and each costs the sender a whole pass
// through the network stack while the receiver has room. When it has none, rows
// wait in the sender's own buffer, and go in large pieces.
func bufferAtSender(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	t, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return
	}
	// Best effort: without it the source spends more processor time.
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil && info.Min_rtt > 0 && info.Min_rtt <= nearRTT {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, nearBuffer)
		}
	})
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
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, bytes)
	})
}
