package repl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"cbrepl/dtx"
)

// Kind says what Next returned.
type Kind uint8

const (
	// Data is a message of the output plugin.
	Data Kind = iota + 1
	// Keepalive tells how far the server has decoded: everything that commits at
	// or before WALEnd has been sent before it.
	Keepalive
	// Idle: the deadline given to Next passed without a message.
	Idle
)

// Message is one message of the stream.
type Message struct {
	Kind Kind
	// LSN is the position of a change (Data), or the server's decoded position
	// (Keepalive).
	LSN dtx.LSN
	// Payload is the plugin's message; it is valid until the next call of Next.
	Payload []byte
}

// Stream is a running replication stream. Next is called by one goroutine;
// Confirm and the observers by any.
type Stream struct {
	cfg    Config
	server Server
	slot   Slot
	start  dtx.LSN
	conn   net.Conn
	in     *frames
	gather *gatherer // what in reads

	ctx    context.Context
	cancel context.CancelFunc
	unhook func() // after it, nobody but the caller sets deadlines
	wg     sync.WaitGroup

	// Owned by the reading goroutine.
	received  dtx.LSN
	waitStart time.Time // since when Next has waited without a message

	// Shared with the writing goroutine.
	receivedPub atomic.Uint64 // received, as of the last read from the socket
	confirmed   atomic.Uint64
	heard       atomic.Int64 // unix nanoseconds of the last bytes read
	reading     atomic.Bool  // the reader waits for the socket
	serverEnd   atomic.Uint64
	serverAt    atomic.Int64
	bytes       atomic.Int64
	replies     atomic.Int64
	replyWanted atomic.Bool
	poke        chan struct{}

	failOnce sync.Once
	failure  atomic.Pointer[error]
	closed   sync.Once
}

func newStream(ctx context.Context, cfg Config, server Server, slot Slot, conn net.Conn, in *frames, from dtx.LSN) *Stream {
	s := &Stream{
		cfg: cfg, server: server, slot: slot, start: from, conn: conn, in: in,
		gather: newGatherer(conn), received: from, poke: make(chan struct{}, 1),
	}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.receivedPub.Store(uint64(from))
	s.confirmed.Store(uint64(slot.Confirmed))
	now := time.Now().UnixNano()
	s.heard.Store(now)
	_ = conn.SetDeadline(time.Time{}) // the handshake's
	in.r = s.gather
	bufferAtSender(conn)
	// Cancellation ends a Read at once. Next checks the context after setting its
	// own deadline, so this one cannot be overwritten unnoticed.
	hooked := make(chan struct{})
	stop := context.AfterFunc(s.ctx, func() {
		defer close(hooked)
		_ = conn.SetReadDeadline(time.Unix(1, 0))
	})
	s.unhook = func() {
		if !stop() {
			<-hooked
		}
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		s.writeStatus()
	}()
	return s
}

// Server returns what the node said of itself at connect.
func (s *Stream) Server() Server { return s.server }

// Slot returns the slot as it was before the stream started.
func (s *Stream) Slot() Slot { return s.slot }

// Start returns where the stream started.
func (s *Stream) Start() dtx.LSN { return s.start }

// Received returns the highest position received, as of the last read.
func (s *Stream) Received() dtx.LSN { return dtx.LSN(s.receivedPub.Load()) }

// ServerEnd returns how far the server had decoded its WAL, by its last
// keepalive, and when that was heard; zero before the first.
func (s *Stream) ServerEnd() (dtx.LSN, time.Time) {
	at := s.serverAt.Load()
	if at == 0 {
		return 0, time.Time{}
	}
	return dtx.LSN(s.serverEnd.Load()), time.Unix(0, at)
}

// Bytes counts the bytes read from the server.
func (s *Stream) Bytes() int64 { return s.bytes.Load() }

// Heard returns when the server last sent anything.
func (s *Stream) Heard() time.Time { return time.Unix(0, s.heard.Load()) }

// StatusUpdates counts the status updates sent.
func (s *Stream) StatusUpdates() int64 { return s.replies.Load() }

// Err returns the fault that ended the stream, nil while it runs.
func (s *Stream) Err() error {
	if p := s.failure.Load(); p != nil {
		return *p
	}
	return nil
}

// fail records the first fault and wakes reader and writer.
func (s *Stream) fail(err error) error {
	s.failOnce.Do(func() {
		if cause := s.ctx.Err(); cause != nil {
			err = cause // whatever the socket said is our own doing
		} else {
			err = s.cfg.fault("read stream", err)
		}
		s.failure.Store(&err)
		s.cancel()
	})
	return *s.failure.Load()
}

// Next returns the next message, waiting no longer than until (zero: without
// limit). After an error the stream is over; its cause is a *dtx.Error with a
// class, or the context's error.
func (s *Stream) Next(until time.Time) (Message, error) {
	for {
		typ, body, ok, err := s.in.ready()
		if err != nil {
			return Message{}, s.fail(&dtx.Error{
				Op: "read stream", Content: dtx.AtContent(s.cfg.Content), Msg: "protocol violation",
				Err: err, Class: dtx.ClassRetry,
			})
		}
		if !ok {
			idle, err := s.read(until)
			if err != nil {
				return Message{}, s.fail(err)
			}
			if idle {
				return Message{Kind: Idle}, nil
			}
			continue
		}
		if typ != 'd' {
			if err := s.other(typ, body); err != nil {
				return Message{}, s.fail(err)
			}
			continue
		}
		m, err := s.copyData(body)
		if err != nil {
			return Message{}, s.fail(err)
		}
		if m.Kind != 0 {
			return m, nil
		}
	}
}

func (s *Stream) copyData(body []byte) (Message, error) {
	if len(body) >= 25 && body[0] == 'w' {
		lsn := dtx.LSN(binary.BigEndian.Uint64(body[1:]))
		// The second field repeats the first in logical streams.
		s.received = max(s.received, lsn)
		return Message{Kind: Data, LSN: lsn, Payload: body[25:]}, nil
	}
	if len(body) == 18 && body[0] == 'k' {
		lsn := dtx.LSN(binary.BigEndian.Uint64(body[1:]))
		s.received = max(s.received, lsn)
		s.receivedPub.Store(uint64(s.received))
		s.serverEnd.Store(uint64(max(lsn, dtx.LSN(s.serverEnd.Load()))))
		s.serverAt.Store(s.heard.Load())
		if body[17] != 0 {
			s.replyWanted.Store(true)
			s.wake()
		}
		return Message{Kind: Keepalive, LSN: lsn}, nil
	}
	kind := byte(0)
	if len(body) > 0 {
		kind = body[0]
	}
	return Message{}, &dtx.Error{
		Op: "read stream", Content: dtx.AtContent(s.cfg.Content), LSN: s.received, Class: dtx.ClassStop,
		Msg: fmt.Sprintf("protocol violation: replication message %q of %d bytes", kind, len(body)),
	}
}

// other handles what is not CopyData.
func (s *Stream) other(typ byte, body []byte) error {
	switch typ {
	case 'N', 'S', 'A': // notice, parameter status, notification
		return nil
	case 'E':
		var er pgproto3.ErrorResponse
		if err := er.Decode(body); err != nil {
			return fmt.Errorf("error response: %w", err)
		}
		return pgconn.ErrorResponseToPgError(&er)
	case 'c', 'C', 'Z':
		return errors.New("the server ended the stream")
	}
	return fmt.Errorf("unexpected message %q", typ)
}

// read waits for bytes. It reports idle when until passes first.
func (s *Stream) read(until time.Time) (idle bool, err error) {
	now := time.Now()
	if s.waitStart.IsZero() {
		s.waitStart = now
	}
	dead := s.waitStart.Add(s.cfg.Timeout)
	deadline := dead
	if !until.IsZero() && until.Before(dead) {
		deadline = until
	}
	if err := s.conn.SetReadDeadline(deadline); err != nil {
		return false, err
	}
	if err := s.ctx.Err(); err != nil {
		return false, err
	}
	s.receivedPub.Store(uint64(s.received))
	s.reading.Store(true)
	err = s.in.fill()
	s.reading.Store(false)
	if err == nil {
		s.bytes.Store(s.in.total)
		s.waitStart = time.Time{}
		s.heard.Store(time.Now().UnixNano())
		return false, nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) && s.ctx.Err() == nil {
		if deadline.Before(dead) {
			return true, nil
		}
		return false, fmt.Errorf("the server has said nothing for %s", s.cfg.Timeout)
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return false, err
}

// Confirm sets the position to report as flushed and applied. It never goes
// back. Transactions that end at or before it are not sent again.
func (s *Stream) Confirm(lsn dtx.LSN) {
	for {
		old := s.confirmed.Load()
		if uint64(lsn) <= old {
			return
		}
		if s.confirmed.CompareAndSwap(old, uint64(lsn)) {
			s.wake()
			return
		}
	}
}

func (s *Stream) wake() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// closeWait bounds the wait for the server's end of a closed stream.
const closeWait = 500 * time.Millisecond

// Close reports the last confirmed position, ends the stream and waits for its
// goroutine. It is idempotent. It must not run beside Next.
func (s *Stream) Close() {
	s.closed.Do(func() {
		healthy := s.Err() == nil || errors.Is(s.Err(), context.Canceled)
		s.cancel()
		s.wg.Wait()
		s.unhook()
		if healthy {
			_ = s.conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
			if s.sendStatus(false) == nil {
				// CopyDone, Terminate: the server frees the slot at once. Its end is waited
				// for, because closing on unread data resets the connection, and a reset may
				// overtake the status update.
				_, _ = s.conn.Write([]byte{'c', 0, 0, 0, 4, 'X', 0, 0, 0, 4})
				s.gather.wakeAt(1)
				_ = s.conn.SetReadDeadline(time.Now().Add(closeWait))
				_, _ = io.Copy(io.Discard, s.conn)
			}
		}
		_ = s.conn.Close()
	})
}
