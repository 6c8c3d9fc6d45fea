package pgside

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/dtx"
)

// Session is a server of a target and this daemon's connection to it. It is used
// by one goroutine at a time.
type Session struct {
	// Name is what errors call the server: "coordinator database" or "shard 1".
	Name string
	// Conn is nil while there is no connection.
	Conn   *pgconn.PgConn
	cfg    *pgconn.Config
	faults *Faults
}

// NewSession reads the connection string of the server called name. It makes no
// connection. params are sent when one is made; faults says what the server's
// errors mean.
func NewSession(name, dsn string, params map[string]string, faults *Faults) (*Session, error) {
	cfg, err := Config(name, dsn)
	if err != nil {
		return nil, err
	}
	for k, v := range params {
		cfg.RuntimeParams[k] = v
	}
	return &Session{Name: name, cfg: cfg, faults: faults}, nil
}

// String names the server with its address, for messages.
func (s *Session) String() string { return Place(s.Name, s.cfg) }

// Connect opens the connection.
func (s *Session) Connect(ctx context.Context, appName string) error {
	cfg := s.cfg.Copy()
	cfg.RuntimeParams["application_name"] = appName
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return s.faults.Connect("connect to target", s.String(), err)
	}
	s.Conn = conn
	return nil
}

// Query runs one statement with text parameters and returns its rows as text.
func (s *Session) Query(ctx context.Context, sql string, args ...string) ([][][]byte, error) {
	return Query(ctx, s.Conn, sql, args...)
}

// Exec runs statements without parameters.
func (s *Session) Exec(ctx context.Context, sql string) error {
	return s.Conn.Exec(ctx, sql).Close()
}

// Transaction runs f in a transaction.
func (s *Session) Transaction(ctx context.Context, op string, f func() error) error {
	return s.transaction(ctx, op, "BEGIN", f)
}

// Snapshot runs f, which only reads, in a transaction that sees one state of the
// server.
func (s *Session) Snapshot(ctx context.Context, op string, f func() error) error {
	return s.transaction(ctx, op, "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY", f)
}

func (s *Session) transaction(ctx context.Context, op, begin string, f func() error) error {
	if err := s.Exec(ctx, begin); err != nil {
		return s.Fail(op, err)
	}
	err := f()
	if err == nil {
		err = s.Exec(ctx, "COMMIT")
	} else if s.Conn != nil && !s.Conn.IsClosed() {
		_ = s.Exec(ctx, "ROLLBACK") // a lost connection rolls back as well
	}
	return s.Fail(op, err)
}

// SetLockTimeout bounds the wait for one lock from now on.
func (s *Session) SetLockTimeout(ctx context.Context, op string, ms int64) error {
	_, err := s.Query(ctx, `SELECT set_config('lock_timeout', $1, false)`, strconv.FormatInt(ms, 10))
	return s.Fail(op, err)
}

// Fail wraps an error met on this server as a *dtx.Error. An error that is one
// already keeps its place and class.
func (s *Session) Fail(op string, err error) error { return s.faults.Wrap(op, s.String(), err) }

// FailRows is Fail for a statement that carried rows, or ended a transaction that
// did.
func (s *Session) FailRows(op string, err error) error {
	return s.faults.WrapRows(op, s.String(), err)
}

// Close ends the session. Whatever transaction is open is rolled back by the
// server; the call does not wait for a network that is gone.
func (s *Session) Close() {
	Close(s.Conn)
	s.Conn = nil
}

// Stop builds an error that a person must act on.
func Stop(op, hint, format string, args ...any) error {
	return &dtx.Error{Op: op, Msg: fmt.Sprintf(format, args...), Hint: hint, Class: dtx.ClassStop}
}

// Retry builds an error that passes by itself.
func Retry(op, hint, format string, args ...any) error {
	return &dtx.Error{Op: op, Msg: fmt.Sprintf(format, args...), Hint: hint, Class: dtx.ClassRetry}
}
