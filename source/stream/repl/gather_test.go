package repl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"cbrepl/internal/soak"
)

// pipe returns both ends of a TCP connection.
func pipe(t *testing.T) (reader, writer *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	w, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	_ = r.SetDeadline(time.Now().Add(30 * time.Second))
	_ = w.SetDeadline(time.Now().Add(30 * time.Second))
	return r.(*net.TCPConn), w.(*net.TCPConn)
}

// plainConn hides what a connection is.
type plainConn struct{ net.Conn }

// waitConn is read only with the kernel told to wake the reader by any byte:
// else what ends a burst would lie there until more comes.
type waitConn struct {
	net.Conn
	t *testing.T
	g *gatherer
}

func (c waitConn) Read(p []byte) (int, error) {
	if sock, ok := c.g.sock.(*spySocket); ok && sock.low > 1 {
		c.t.Errorf("a read waits for %d bytes", sock.low)
	}
	return c.Conn.Read(p)
}

type spySocket struct {
	socket
	low int
}

func (s *spySocket) wakeAt(n int) {
	s.low = n
	s.socket.wakeAt(n)
}

// Whatever the sizes and pauses, every byte comes in order, and a burst costs
// far fewer reads than it has rows. What follows a burst is not left lying: the
// reader asks for each echo before the next row is sent.
func TestGatherer(t *testing.T) {
	for name, wrap := range map[string]func(net.Conn) net.Conn{
		"socket":     func(c net.Conn) net.Conn { return c },
		"no options": func(c net.Conn) net.Conn { return plainConn{c} },
	} {
		t.Run(name, func(t *testing.T) {
			r, w := pipe(t)
			g := newGatherer(wrap(r))
			if g.sock != nil {
				g.sock = &spySocket{socket: g.sock}
			}
			g.conn = waitConn{g.conn, t, g}
			const bursts, rows, echoes = 5, 20_000, 50
			rng := rand.New(rand.NewPCG(soak.Seed(t, 1), 0))
			next := uint64(0)
			failed := make(chan error, 1)
			send := func(n int) {
				b := binary.BigEndian.AppendUint64(make([]byte, 0, 8+n), next)
				next++
				if _, err := w.Write(append(b, make([]byte, n)...)); err != nil {
					failed <- err
				}
			}
			buf := make([]byte, 256<<10)
			reads := 0
			var have []byte
			want := uint64(0)
			receive := func(upTo uint64, size int) {
				for want < upTo {
					for len(have) < 8+size {
						n, err := g.Read(buf)
						if err != nil {
							t.Fatal(err)
						}
						reads++
						have = append(have, buf[:n]...)
					}
					if got := binary.BigEndian.Uint64(have); got != want {
						t.Fatalf("row %d comes where %d is due", got, want)
					}
					have = have[8+size:]
					want++
				}
			}
			for range bursts {
				size := 50 + rng.IntN(300)
				upTo := want + rows
				done := make(chan struct{})
				go func() {
					defer close(done)
					for range rows {
						send(size)
					}
				}()
				before := reads
				receive(upTo, size)
				<-done
				if n := reads - before; n > rows/4 {
					t.Errorf("%d reads for a burst of %d rows", n, rows)
				}
				for range echoes {
					send(size)
					receive(want+1, size)
				}
			}
			select {
			case err := <-failed:
				t.Fatal(err)
			default:
			}
			if len(have) > 0 {
				t.Errorf("%d bytes too many", len(have))
			}
		})
	}
}

// A burst changes nothing about ends, deadlines and resets.
func TestGathererEnds(t *testing.T) {
	burst := func(t *testing.T) (*gatherer, *net.TCPConn, *net.TCPConn) {
		r, w := pipe(t)
		g := newGatherer(r)
		row := make([]byte, 100)
		for n := 0; g.wakesAt == 1; n++ {
			if n == 1000 {
				t.Fatal("a burst is not noticed")
			}
			if _, err := w.Write(row); err != nil {
				t.Fatal(err)
			}
			if _, err := g.Read(row); err != nil {
				t.Fatal(err)
			}
			if g.sock == nil {
				t.Skip("sockets have no options here")
			}
		}
		return g, r, w
	}
	t.Run("end", func(t *testing.T) {
		g, _, w := burst(t)
		_, err := w.Write([]byte("last"))
		if err != nil || w.Close() != nil {
			t.Fatal(err)
		}
		var got []byte
		got, err = io.ReadAll(g)
		if err != nil || !bytes.Equal(got, []byte("last")) {
			t.Errorf("read %q, %v", got, err)
		}
	})
	t.Run("deadline passed", func(t *testing.T) {
		g, r, _ := burst(t)
		_ = r.SetReadDeadline(time.Unix(1, 0))
		if _, err := g.Read(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read gives %v", err)
		}
	})
	t.Run("deadline passes", func(t *testing.T) {
		g, r, _ := burst(t)
		_ = r.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := g.Read(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read gives %v", err)
		}
	})
	t.Run("reset", func(t *testing.T) {
		g, _, w := burst(t)
		_ = w.SetLinger(0)
		_ = w.Close()
		if _, err := g.Read(make([]byte, 10)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read gives %v", err)
		}
	})
}
