// Package repl is one logical replication connection: connect, look at the
// slot, START_REPLICATION, framing of the stream, keepalive answers and status
// updates. It owns the connection and what is sent on it; it never interprets
// pgoutput messages and never reconnects.
//
// # Goroutines
//
// The caller's goroutine reads (Stream.Next). A second one, owned by the
// Stream and joined by Close, is the only writer: it answers keepalives and
// reports positions at intervals, so these go on while the reader is blocked
// elsewhere (a full spool, a slow consumer).
//
// # Session settings
//
// Rows arrive as text. Their form is pinned for every server: UTF8, ISO dates,
// UTC, "postgres" intervals, hex bytea, shortest exact floats, plain money.
package repl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/dtx"
)

// Config describes a replication connection.
type Config struct {
	// Content is the node's content id, for errors.
	Content dtx.Content
	// DSN is a connection string with the database whose changes are read. It is
	// never printed.
	DSN string
	// Slot and Publication exist on the server.
	Slot, Publication string
	// Plugin is the slot's output plugin. Default pgoutput.
	Plugin Plugin
	// Options are the options of START_REPLICATION that plugin cbrepl_source takes
	// beside those of pgoutput.
	Options []Option
	// Streaming asks for in-progress transactions, where the server has them.
	Streaming bool
	// Timeout is how long the server may say nothing, or take nothing, before it
	// counts as dead. A live one answers within half of it. Default 60 s.
	Timeout time.Duration
	// ConnectTimeout bounds connecting and the handshake. Default 15 s.
	ConnectTimeout time.Duration
	// StatusInterval is the longest time between status updates; a third of the
	// server's wal_sender_timeout when that is shorter. Default 10 s.
	StatusInterval time.Duration
	// StatusFloor is the shortest time between status updates that nobody asked
	// for. Default 200 ms.
	StatusFloor time.Duration
	// ReadBuffer is the size of the read buffer in bytes. Default 256 KiB. It
	// grows for a message that is larger, up to MaxMessage, and shrinks after it.
	ReadBuffer int
	// MaxMessage bounds one message of the stream. Default 1 GiB and 64 KiB: a
	// row's text cannot be larger on the server.
	MaxMessage int
}

// Plugin is an output plugin.
type Plugin string

// Plugins whose stream is pgoutput's.
const (
	PgOutput     Plugin = "pgoutput"
	CbreplSource Plugin = "cbrepl_source"
)

// Option is an option of an output plugin.
type Option struct {
	Name, Value string
}

// EnsureDefaults fills unset fields.
func (c *Config) EnsureDefaults() {
	if c.Plugin == "" {
		c.Plugin = PgOutput
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Timeout, time.Minute)
	def(&c.ConnectTimeout, 15*time.Second)
	def(&c.StatusInterval, 10*time.Second)
	def(&c.StatusFloor, 200*time.Millisecond)
	if c.ReadBuffer == 0 {
		c.ReadBuffer = 256 << 10
	}
	if c.MaxMessage == 0 {
		c.MaxMessage = 1<<30 + 64<<10
	}
}

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// CheckSlotName refuses what no server takes as a slot's name.
func CheckSlotName(name string) error {
	if !slotName.MatchString(name) {
		return fmt.Errorf("slot name %q: want 1 to 63 of a-z, 0-9 and _", name)
	}
	return nil
}

// Validate reports every problem.
func (c *Config) Validate() error {
	var errs []error
	if c.DSN == "" {
		errs = append(errs, fmt.Errorf("no connection string for content %d", c.Content))
	}
	if err := CheckSlotName(c.Slot); err != nil {
		errs = append(errs, err)
	}
	if c.Publication == "" {
		errs = append(errs, errors.New("no publication"))
	}
	if c.Plugin != PgOutput && c.Plugin != CbreplSource {
		errs = append(errs, fmt.Errorf("output plugin %q is not known", c.Plugin))
	}
	if len(c.Options) > 0 && c.Plugin == PgOutput {
		errs = append(errs, errors.New("options for plugin pgoutput"))
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{{"timeout", c.Timeout}, {"connect timeout", c.ConnectTimeout}, {"status interval", c.StatusInterval}, {"status floor", c.StatusFloor}} {
		if d.v <= 0 {
			errs = append(errs, fmt.Errorf("%s is %s, want above 0", d.name, d.v))
		}
	}
	if c.ReadBuffer < 4<<10 || c.MaxMessage < c.ReadBuffer {
		errs = append(errs, fmt.Errorf("read buffer of %d bytes, largest message of %d: want at least 4096 and not below the buffer",
			c.ReadBuffer, c.MaxMessage))
	}
	return errors.Join(errs...)
}

// sessionSettings pins the text form of values and switches off limits that
// would end a long stream.
var sessionSettings = map[string]string{
	"client_encoding":    "UTF8",
	"datestyle":          "ISO",
	"timezone":           "UTC",
	"intervalstyle":      "postgres",
	"extra_float_digits": "3",
	"bytea_output":       "hex",
	"lc_monetary":        "C",
	"statement_timeout":  "0",
	"lock_timeout":       "0",
}

// ParseDSN reads a connection string. Its errors never repeat it, because a
// string that cannot be parsed cannot be masked either.
func ParseDSN(content dtx.Content, dsn string) (*pgconn.Config, error) {
	pc, err := pgconn.ParseConfig(dsn)
	var file *fs.PathError
	if errors.As(err, &file) {
		return nil, &dtx.Error{
			Op: "read connection string", Content: dtx.AtContent(content), Class: dtx.ClassStop, Err: file,
			Msg:  "a file that it names cannot be read",
			Hint: "Correct sslrootcert, sslcert, sslkey or passfile, or the file's permissions",
		}
	}
	if err != nil {
		return nil, &dtx.Error{
			Op: "read connection string", Content: dtx.AtContent(content), Class: dtx.ClassStop,
			Msg:  "it is neither a URL nor a list of keyword=value pairs, or a value in it is not valid (it is not printed, because it may hold a password)",
			Hint: "Write it as postgres://user@host:port/database or host=... port=... user=... dbname=..., and quote values with spaces",
		}
	}
	if pc.RuntimeParams["application_name"] == "" {
		pc.RuntimeParams["application_name"] = "cbrepl"
	}
	return pc, nil
}

// pgConfig adds what a replication session needs.
func (c *Config) pgConfig() (*pgconn.Config, error) {
	pc, err := ParseDSN(c.Content, c.DSN)
	if err != nil {
		return nil, err
	}
	for k, v := range sessionSettings {
		pc.RuntimeParams[k] = v
	}
	pc.RuntimeParams["replication"] = "database"
	pc.ConnectTimeout = 0 // the context bounds it
	dialer := &net.Dialer{
		// An idle peer that vanished is noticed by keepalive, a busy one by the user
		// timeout; both within Timeout.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: c.Timeout / 2, Interval: c.Timeout / 8, Count: 4},
		Control:         controlUserTimeout(c.Timeout),
	}
	pc.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, addr)
	}
	return pc, nil
}
