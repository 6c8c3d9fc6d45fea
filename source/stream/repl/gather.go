package repl

import (
	"net"
	"time"
)

// gatherer reads a connection. A walsender sends every row by itself, and a
// reader that takes each at once costs both sides a system call and a wake-up
// per row. While rows come close upon each other, the gatherer lets them pile up
// in the socket for a moment and asks the kernel not to wake it for each.
//
// It delays data by at most gatherFor, and only data that follows a burst.
type gatherer struct {
	conn net.Conn
	// sock is the connection's socket; nil where there is none to ask (TLS, Unix
	// sockets, other systems): then rows are gathered by waiting alone.
	sock socket
	// wakesAt is how many bytes the kernel waits for before it wakes a reader.
	wakesAt int
	// small counts reads close upon each other that brought little; from
	// gatherAfter on, rows are gathered. thin counts gathered reads in a row that
	// were hardly worth it.
	small, thin int
	// plenty is set when the last read brought so much that the sender was likely
	// waiting for room: the next is not put off.
	plenty bool
	last   time.Time // of the last read
}

// socket is what the gatherer asks of a kernel's socket.
type socket interface {
	// tryRead reads what is there, without waiting: 0 when that is nothing.
	tryRead(p []byte) (int, error)
	// wakeAt sets how many bytes have to be there before a waiting reader is woken.
	wakeAt(bytes int)
}

const (
	gatherFor   = 2 * time.Millisecond
	gatherAfter = 16                    // small reads
	smallRead   = 16 << 10              // bytes
	closeReads  = 10 * time.Millisecond // reads farther apart are no burst
	thinRead    = 4 << 10               // bytes of a gathered read
	thinMost    = 4                     // thin reads in a row that end the gathering
	plentyRead  = 16 << 10              // bytes; no more than half of what a near connection's buffer takes
	quietBytes  = 128 << 10             // while rows are gathered, nobody is woken for less
)

func newGatherer(conn net.Conn) *gatherer {
	return &gatherer{conn: conn, sock: socketOf(conn), wakesAt: 1}
}

// Read implements io.Reader.
func (g *gatherer) Read(p []byte) (int, error) {
	if g.small >= gatherAfter {
		g.wakeAt(quietBytes)
		if !g.plenty {
			time.Sleep(gatherFor)
		}
		if g.sock != nil {
			if n, err := g.sock.tryRead(p); n > 0 || err != nil {
				g.note(n)
				return n, err
			}
		}
	}
	g.wakeAt(1)
	n, err := g.conn.Read(p)
	g.note(n)
	return n, err
}

// note follows whether rows come close upon each other.
func (g *gatherer) note(n int) {
	now := time.Now()
	if now.Sub(g.last) >= closeReads {
		g.small = 0
	}
	g.last, g.plenty = now, n >= plentyRead && g.small >= gatherAfter
	switch {
	case g.small < gatherAfter:
		if n <= smallRead {
			g.small++
		}
		g.thin = 0
	case n >= thinRead:
		g.thin = 0
	default:
		if g.thin++; g.thin >= thinMost {
			g.small = 0
		}
	}
}

// wakeAt has a waiting reader woken when that many bytes are there.
func (g *gatherer) wakeAt(bytes int) {
	if g.sock != nil && g.wakesAt != bytes {
		g.wakesAt = bytes
		g.sock.wakeAt(bytes)
	}
}
