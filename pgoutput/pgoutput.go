// Package pgoutput decodes the messages of PostgreSQL's logical replication
// protocol (plugin pgoutput, protocol versions 1 to 4): cheap framing for the
// readers that only spool, and zero-copy tuples for the apply side. It does no
// I/O and holds no policy. Decoders return errors on malformed input and never
// panic; returned slices alias the message.
//
// Format: PostgreSQL documentation, "Logical Replication Message Formats".
package pgoutput

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"cbrepl/dtx"
)

// Message type bytes.
const (
	TypeBegin          = 'B'
	TypeCommit         = 'C'
	TypeOrigin         = 'O'
	TypeRelation       = 'R'
	TypeType           = 'Y'
	TypeInsert         = 'I'
	TypeUpdate         = 'U'
	TypeDelete         = 'D'
	TypeTruncate       = 'T'
	TypeMessage        = 'M'
	TypeStreamStart    = 'S'
	TypeStreamStop     = 'E'
	TypeStreamCommit   = 'c'
	TypeStreamAbort    = 'A'
	TypeBeginPrepare   = 'b'
	TypePrepare        = 'P'
	TypeCommitPrepared = 'K'
	TypeRollbackPrep   = 'r'
	TypeStreamPrepare  = 'p'
)

// ErrMalformed is wrapped by every decoding error.
var ErrMalformed = errors.New("malformed pgoutput message")

// IsRow reports whether the type is one of insert, update, delete, truncate.
func IsRow(t byte) bool {
	return t == TypeInsert || t == TypeUpdate || t == TypeDelete || t == TypeTruncate
}

// Split takes a message apart: its type, the (sub)transaction id that messages
// inside a streamed block carry (0 elsewhere), and the body behind both.
// inStream says whether the message stands between Stream Start and Stream Stop.
func Split(msg []byte, inStream bool) (typ byte, xid dtx.XID, body []byte, err error) {
	if len(msg) == 0 {
		return 0, 0, nil, fmt.Errorf("%w: empty", ErrMalformed)
	}
	typ, body = msg[0], msg[1:]
	if !inStream {
		return typ, 0, body, nil
	}
	switch typ {
	case TypeRelation, TypeType, TypeInsert, TypeUpdate, TypeDelete, TypeTruncate, TypeMessage:
		if len(body) < 4 {
			return 0, 0, nil, fmt.Errorf("%w: %q without transaction id", ErrMalformed, typ)
		}
		return typ, dtx.XID(binary.BigEndian.Uint32(body)), body[4:], nil
	}
	return typ, 0, body, nil
}

// RelationID returns the relation a row or relation message is about: the
// first 4 bytes of the body of R, I, U and D.
func RelationID(body []byte) (uint32, error) {
	if len(body) < 4 {
		return 0, fmt.Errorf("%w: no relation id", ErrMalformed)
	}
	return binary.BigEndian.Uint32(body), nil
}

// cursor reads fields; the first short read sticks.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) take(n int) []byte {
	if c.bad || n < 0 || len(c.b) < n {
		c.bad = true
		return nil
	}
	v := c.b[:n]
	c.b = c.b[n:]
	return v
}

func (c *cursor) u8() byte {
	if v := c.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (c *cursor) u16() uint16 {
	if v := c.take(2); v != nil {
		return binary.BigEndian.Uint16(v)
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if v := c.take(4); v != nil {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if v := c.take(8); v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func (c *cursor) cstr() string {
	if c.bad {
		return ""
	}
	i := bytes.IndexByte(c.b, 0)
	if i < 0 {
		c.bad = true
		return ""
	}
	s := string(c.b[:i])
	c.b = c.b[i+1:]
	return s
}

func (c *cursor) done(what string) error {
	if c.bad {
		return fmt.Errorf("%w: %s is cut short", ErrMalformed, what)
	}
	return nil
}

// end is done for messages that no protocol version has extended.
func (c *cursor) end(what string) error {
	if err := c.done(what); err != nil {
		return err
	}
	if len(c.b) > 0 {
		return fmt.Errorf("%w: %d bytes behind %s", ErrMalformed, len(c.b), what)
	}
	return nil
}

// Begin opens a transaction that is sent whole, at its commit.
type Begin struct {
	FinalLSN   dtx.LSN // start of the commit record
	CommitTime dtx.PGTime
	XID        dtx.XID
}

// ParseBegin decodes the body of 'B'.
func ParseBegin(body []byte) (Begin, error) {
	c := cursor{b: body}
	m := Begin{dtx.LSN(c.u64()), dtx.PGTime(c.u64()), dtx.XID(c.u32())}
	return m, c.done("Begin")
}

// Commit closes what Begin opened. EndLSN is the position to confirm.
type Commit struct {
	CommitLSN, EndLSN dtx.LSN
	CommitTime        dtx.PGTime
}

// ParseCommit decodes the body of 'C'.
func ParseCommit(body []byte) (Commit, error) {
	c := cursor{b: body}
	c.u8() // flags, unused
	m := Commit{dtx.LSN(c.u64()), dtx.LSN(c.u64()), dtx.PGTime(c.u64())}
	return m, c.done("Commit")
}

// StreamStart opens a block of an in-progress transaction.
type StreamStart struct {
	XID   dtx.XID
	First bool // first block of this transaction since the connection started
}

// ParseStreamStart decodes the body of 'S'.
func ParseStreamStart(body []byte) (StreamStart, error) {
	c := cursor{b: body}
	m := StreamStart{dtx.XID(c.u32()), c.u8() == 1}
	return m, c.done("Stream Start")
}

// StreamCommit commits a streamed transaction.
type StreamCommit struct {
	XID dtx.XID
	Commit
}

// ParseStreamCommit decodes the body of 'c'.
func ParseStreamCommit(body []byte) (StreamCommit, error) {
	c := cursor{b: body}
	m := StreamCommit{XID: dtx.XID(c.u32())}
	c.u8() // flags, unused
	m.Commit = Commit{dtx.LSN(c.u64()), dtx.LSN(c.u64()), dtx.PGTime(c.u64())}
	return m, c.done("Stream Commit")
}

// StreamAbort rolls back a subtransaction, or the whole when SubXID == XID.
type StreamAbort struct {
	XID, SubXID dtx.XID
}

// ParseStreamAbort decodes the body of 'A'. Protocol 4 adds fields behind; they
// are not needed.
func ParseStreamAbort(body []byte) (StreamAbort, error) {
	c := cursor{b: body}
	m := StreamAbort{dtx.XID(c.u32()), dtx.XID(c.u32())}
	return m, c.done("Stream Abort")
}

// Prepare is Begin Prepare, Prepare or Stream Prepare: they share their fields.
type Prepare struct {
	PrepareLSN, EndLSN dtx.LSN
	Time               dtx.PGTime
	XID                dtx.XID
	GID                string
}

// ParseBeginPrepare decodes the body of 'b'.
func ParseBeginPrepare(body []byte) (Prepare, error) {
	c := cursor{b: body}
	m := Prepare{dtx.LSN(c.u64()), dtx.LSN(c.u64()), dtx.PGTime(c.u64()), dtx.XID(c.u32()), c.cstr()}
	return m, c.done("Begin Prepare")
}

// ParsePrepare decodes the body of 'P' and 'p'.
func ParsePrepare(body []byte) (Prepare, error) {
	c := cursor{b: body}
	c.u8() // flags, unused
	m := Prepare{dtx.LSN(c.u64()), dtx.LSN(c.u64()), dtx.PGTime(c.u64()), dtx.XID(c.u32()), c.cstr()}
	return m, c.done("Prepare")
}

// CommitPrepared commits a prepared transaction.
type CommitPrepared struct {
	CommitLSN, EndLSN dtx.LSN
	CommitTime        dtx.PGTime
	XID               dtx.XID
	GID               string
}

// ParseCommitPrepared decodes the body of 'K'.
func ParseCommitPrepared(body []byte) (CommitPrepared, error) {
	c := cursor{b: body}
	c.u8() // flags, unused
	m := CommitPrepared{dtx.LSN(c.u64()), dtx.LSN(c.u64()), dtx.PGTime(c.u64()), dtx.XID(c.u32()), c.cstr()}
	return m, c.done("Commit Prepared")
}

// RollbackPrepared rolls a prepared transaction back.
type RollbackPrepared struct {
	PrepareEndLSN, EndLSN     dtx.LSN
	PrepareTime, RollbackTime dtx.PGTime
	XID                       dtx.XID
	GID                       string
}

// ParseRollbackPrepared decodes the body of 'r'.
func ParseRollbackPrepared(body []byte) (RollbackPrepared, error) {
	c := cursor{b: body}
	c.u8() // flags, unused
	m := RollbackPrepared{dtx.LSN(c.u64()), dtx.LSN(c.u64()), dtx.PGTime(c.u64()), dtx.PGTime(c.u64()), dtx.XID(c.u32()), c.cstr()}
	return m, c.done("Rollback Prepared")
}

// Message is a logical decoding message (pg_logical_emit_message). Inside a
// streamed block the server gives it the top-level transaction's id even when a
// subtransaction wrote it, so a later rollback of that subtransaction cannot be
// told from the stream.
type Message struct {
	Transactional bool
	// LSN is the position behind the message's WAL record.
	LSN     dtx.LSN
	Prefix  string
	Content []byte
}

// ParseMessage decodes the body of 'M' (without the transaction id of streams).
func ParseMessage(body []byte) (Message, error) {
	c := cursor{b: body}
	m := Message{Transactional: c.u8()&1 != 0, LSN: dtx.LSN(c.u64()), Prefix: c.cstr()}
	m.Content = c.take(int(c.u32()))
	return m, c.done("Message")
}
