package pgside

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/dtx"
)

const (
	// connectTimeout bounds making one connection.
	connectTimeout = 10 * time.Second
	// closeTimeout bounds the farewell to a server; its session ends anyway.
	closeTimeout = 2 * time.Second
)

// Config parses the connection string of the server called name. A host that is
// gone is noticed: when connecting, while the session is silent, and when what was
// sent stays unacknowledged.
func Config(name, dsn string) (*pgconn.Config, error) {
	cfg, err := pgconn.ParseConfig(dsn)
	if err != nil {
		// The cause is left out: it can hold pieces of a password.
		return nil, &dtx.Error{
			Op: "read configuration", Class: dtx.ClassStop, Msg: fmt.Sprintf("the connection string of the %s cannot be parsed", name),
			Hint: "Want postgres://user@host:port/database or host=... port=... dbname=... user=...; in a URL, characters such as / @ : % of a password are percent-encoded",
		}
	}
	dialer := &net.Dialer{
		Timeout:         connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 4},
		Control:         limitUnacknowledged,
	}
	cfg.DialFunc = dialer.DialContext
	cfg.ConnectTimeout = connectTimeout
	return cfg, nil
}

// Place names a server with its address, for messages.
func Place(name string, cfg *pgconn.Config) string {
	if strings.HasPrefix(cfg.Host, "/") {
		return fmt.Sprintf("%s (socket %s, port %d, database %s)", name, cfg.Host, cfg.Port, cfg.Database)
	}
	return fmt.Sprintf("%s (%s, database %s)", name, net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))), cfg.Database)
}

// Query runs one statement with text parameters and returns its rows as text.
// Nothing is prepared under a name, so no statement outlives a change of a table.
func Query(ctx context.Context, conn *pgconn.PgConn, sql string, args ...string) ([][][]byte, error) {
	params := make([][]byte, len(args))
	for i, a := range args {
		params[i] = []byte(a)
	}
	res := conn.ExecParams(ctx, sql, params, nil, nil, nil).Read()
	return res.Rows, res.Err
}

// Close ends a session, if there is one. Whatever transaction is open is rolled
// back by the server; the call does not wait for a network that is gone.
func Close(conn *pgconn.PgConn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}
