package repl

import (
	"encoding/binary"
	"fmt"
	"io"
)

// frames cuts a server's byte stream into protocol messages (type byte, 4-byte
// length that counts itself, body) inside one buffer. During the handshake pgx
// reads through it too (Read), never beyond the message it is at, so that
// nothing of the stream is left in another buffer.
type frames struct {
	r      io.Reader
	buf    []byte
	rd, wr int // unread bytes are buf[rd:wr]
	size   int // buffer size to return to
	max    int // largest body accepted
	left   int // bytes of the current message that Read has still to hand out
	total  int64
}

func newFrames(r io.Reader, size, most int) *frames {
	return &frames{r: r, buf: make([]byte, size), size: size, max: most}
}

const frameHeader = 5

// ready returns the next message if it is in the buffer as a whole. The body
// is valid until the next call of ready or fill.
func (f *frames) ready() (typ byte, body []byte, ok bool, err error) {
	have := f.wr - f.rd
	if have < frameHeader {
		return 0, nil, false, nil
	}
	h := f.buf[f.rd:]
	n := int(binary.BigEndian.Uint32(h[1:5]))
	if n < 4 || n-4 > f.max {
		return 0, nil, false, fmt.Errorf("message %q with a length of %d bytes (limit %d)", h[0], n, f.max)
	}
	if have < n+1 {
		return 0, nil, false, nil
	}
	f.rd += n + 1
	return h[0], h[frameHeader : n+1 : n+1], true, nil
}

// fill reads at least one byte behind what is unread, making room for the
// message at hand.
func (f *frames) fill() error {
	have := f.wr - f.rd
	need := frameHeader
	if have >= frameHeader {
		need = 1 + int(binary.BigEndian.Uint32(f.buf[f.rd+1:])) // checked by ready
	}
	switch {
	case len(f.buf) > f.size && have <= f.size/2 && need <= f.size: // a large message has passed
		f.move(make([]byte, f.size))
	case have == 0:
		f.rd, f.wr = 0, 0
	case f.rd > 0 && f.rd+need > len(f.buf):
		f.move(f.buf)
	case f.wr == len(f.buf):
		// Double, so that a message that trickles in is copied few times and a wrong
		// length costs no memory that the server has not sent.
		f.move(make([]byte, min(need, 2*len(f.buf))))
	}
	n, err := f.r.Read(f.buf[f.wr:])
	f.wr += n
	f.total += int64(n)
	if n > 0 {
		return nil // an error will come again
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// move puts the unread bytes at the start of to.
func (f *frames) move(to []byte) {
	f.wr = copy(to, f.buf[f.rd:f.wr])
	f.rd, f.buf = 0, to
}

// Read implements io.Reader for the handshake.
func (f *frames) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if f.left == 0 {
		for f.wr-f.rd < frameHeader {
			if err := f.fill(); err != nil {
				return 0, err
			}
		}
		n := int(binary.BigEndian.Uint32(f.buf[f.rd+1:]))
		if n < 4 || n > f.max {
			return 0, fmt.Errorf("message %q with a length of %d bytes", f.buf[f.rd], n)
		}
		f.left = n + 1
	}
	if f.rd == f.wr {
		// Not fill: it would take the middle of a message for a header.
		f.rd, f.wr = 0, 0
		n, err := f.r.Read(f.buf)
		f.wr = n
		f.total += int64(n)
		if n == 0 {
			if err == nil {
				err = io.ErrNoProgress
			}
			return 0, err
		}
	}
	n := copy(p, f.buf[f.rd:min(f.wr, f.rd+f.left)])
	f.rd += n
	f.left -= n
	return n, nil
}
