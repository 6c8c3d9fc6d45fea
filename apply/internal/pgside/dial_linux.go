package pgside

import "syscall"

// tcpUserTimeout is TCP_USER_TIMEOUT of <linux/tcp.h>.
const tcpUserTimeout = 0x12

// limitUnacknowledged bounds how long sent data may stay unacknowledged: without
// it a write to a host that is gone hangs for a quarter of an hour.
func limitUnacknowledged(network, _ string, c syscall.RawConn) error {
	if network == "unix" {
		return nil
	}
	// A kernel that refuses leaves its own, longer limit.
	return c.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, 30_000)
	})
}
