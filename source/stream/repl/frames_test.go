package repl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"
)

func frame(typ byte, body []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{typ}, uint32(len(body)+4))
	return append(b, body...)
}

// randomReader hands out random amounts.
type randomReader struct {
	r   io.Reader
	rng *rand.Rand
}

func (r *randomReader) Read(p []byte) (int, error) {
	n := 1 + r.rng.IntN(len(p))
	if r.rng.IntN(2) == 0 {
		n = min(n, 1+r.rng.IntN(20))
	}
	return r.r.Read(p[:n])
}

// next is the loop of Stream.Next without a socket.
func (f *frames) next() (byte, []byte, error) {
	for {
		typ, body, ok, err := f.ready()
		if ok || err != nil {
			return typ, body, err
		}
		if err := f.fill(); err != nil {
			return 0, nil, err
		}
	}
}

// TestFrames: whatever the sizes of messages and reads, the same messages come
// out, and the buffer goes back to its size after a large one.
func TestFrames(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var wire []byte
		var want [][]byte
		for range rng.IntN(200) {
			n := rng.IntN(40)
			switch rng.IntN(20) {
			case 0:
				n = rng.IntN(5000)
			case 1:
				n = 4096 - 10 + rng.IntN(20)
			case 2:
				n = rng.IntN(60000)
			}
			body := make([]byte, n)
			for i := range body {
				body[i] = byte(rng.Uint32())
			}
			want = append(want, body)
			wire = append(wire, frame('d', body)...)
		}
		f := newFrames(&randomReader{bytes.NewReader(wire), rng}, 4096, 1<<20)
		for i, w := range want {
			typ, body, err := f.next()
			if err != nil || typ != 'd' || !bytes.Equal(body, w) {
				t.Fatalf("seed %d: message %d of %d: type %q, %d bytes, want %d: %v", seed, i, len(want), typ, len(body), len(w), err)
			}
		}
		if _, _, err := f.next(); !errors.Is(err, io.EOF) {
			t.Fatalf("seed %d: at the end: %v", seed, err)
		}
		if f.total != int64(len(wire)) {
			t.Fatalf("seed %d: counted %d of %d bytes", seed, f.total, len(wire))
		}
	}
}

func TestFramesShrink(t *testing.T) {
	wire := append(frame('d', make([]byte, 100_000)), bytes.Repeat(frame('d', make([]byte, 1000)), 20)...)
	f := newFrames(iotest.HalfReader(bytes.NewReader(wire)), 4096, 1<<20)
	for range 21 {
		if _, _, err := f.next(); err != nil {
			t.Fatal(err)
		}
	}
	if len(f.buf) != 4096 {
		t.Errorf("buffer stays at %d bytes", len(f.buf))
	}
}

// TestFramesHandshake: pgx reads the handshake through Read and must not take a
// byte of what follows it, whatever arrives together.
func TestFramesHandshake(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var hand []byte
		for range 1 + rng.IntN(10) {
			hand = append(hand, frame('X', make([]byte, rng.IntN(9000)))...)
		}
		wire := append(bytes.Clone(hand), frame('d', []byte("stream"))...)
		f := newFrames(&randomReader{bytes.NewReader(wire), rng}, 4096, 1<<20)
		// The way pgx's chunk reader reads: at least what it needs, at most its buffer.
		got := make([]byte, 0, len(hand))
		for len(got) < len(hand) {
			buf := make([]byte, 8192)
			n, err := f.Read(buf)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			got = append(got, buf[:n]...)
		}
		if !bytes.Equal(got, hand) {
			t.Fatalf("seed %d: handshake of %d bytes read as %d", seed, len(hand), len(got))
		}
		if _, body, err := f.next(); err != nil || string(body) != "stream" {
			t.Fatalf("seed %d: first message of the stream: %q, %v", seed, body, err)
		}
	}
}

func TestFramesBadLength(t *testing.T) {
	for _, n := range []uint32{0, 3, 1<<20 + 5, 1 << 31, 1<<32 - 1} {
		wire := binary.BigEndian.AppendUint32([]byte{'d'}, n)
		f := newFrames(bytes.NewReader(append(wire, 1, 2, 3)), 4096, 1<<20)
		if _, _, err := f.next(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("length %d: %v", n, err)
		}
		if len(f.buf) != 4096 {
			t.Errorf("length %d made a buffer of %d bytes", n, len(f.buf))
		}
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(append(frame('d', []byte("abc")), frame('E', nil)...))
	f.Fuzz(func(t *testing.T, wire []byte) {
		fr := newFrames(iotest.OneByteReader(bytes.NewReader(wire)), 16, 1<<16)
		var back []byte
		for {
			typ, body, err := fr.next()
			if err != nil {
				break
			}
			back = append(back, frame(typ, body)...)
		}
		if !bytes.HasPrefix(wire, back) {
			t.Fatal("messages differ from the bytes")
		}
	})
}

// repeat serves the same bytes for ever.
type repeat struct {
	b   []byte
	pos int
}

func (r *repeat) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		k := copy(p[n:], r.b[r.pos:])
		n += k
		r.pos = (r.pos + k) % len(r.b)
	}
	return n, nil
}

// BenchmarkFrames: cost of framing a row of usual size, without the socket.
func BenchmarkFrames(b *testing.B) {
	f := newFrames(&repeat{b: bytes.Repeat(frame('d', make([]byte, 150)), 100)}, 256<<10, 1<<30)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := f.next(); err != nil {
			b.Fatal(err)
		}
	}
}

func TestStatusUpdate(t *testing.T) {
	// A zero flush position stays zero: it must not become the write position.
	got := StatusUpdate{Write: 0x1122, At: 7, ReplyRequested: true}.AppendTo(nil)
	want := []byte{
		'd', 0, 0, 0, 38, 'r',
		0, 0, 0, 0, 0, 0, 0x11, 0x22, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 1,
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
}
