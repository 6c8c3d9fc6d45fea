// Package probe asks one PostgreSQL server, of either side, what it says of itself
// for a report. It judges nothing.
package probe

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/check"
	"cbrepl/dtx"
)

const clockSQL = "SELECT extract(epoch FROM pg_catalog.clock_timestamp())::float8"

// serverSQL reads what every generation has, Greenplum 6 included. reset_val is what
// sessions begin with, whatever this one has set.
const serverSQL = `SELECT current_setting('server_version'), quote_ident(current_database()), quote_ident(current_user),
 current_setting('server_encoding'), (SELECT reset_val FROM pg_catalog.pg_settings WHERE name = 'TimeZone'),
 (SELECT count(*) FROM pg_catalog.pg_replication_slots), current_setting('max_replication_slots'),
 (SELECT count(*) FROM pg_catalog.pg_stat_replication), current_setting('max_wal_senders'),
 (SELECT count(*) FROM pg_catalog.pg_prepared_xacts), current_setting('max_prepared_transactions')`

// Server asks the server at the other end of a connection.
func Server(ctx context.Context, c *pgconn.PgConn, side check.Side, content dtx.Content) (check.Server, error) {
	s := check.Server{Side: side, Content: content}
	row, err := one(ctx, c, serverSQL, 11)
	if err != nil {
		return s, err
	}
	for i, to := range []*string{&s.Version, &s.Database, &s.Role, &s.Encoding, &s.TimeZone} {
		*to = row[i]
	}
	for i, to := range []*int{&s.Slots.Used, &s.Slots.Max, &s.Senders.Used, &s.Senders.Max, &s.Prepared.Used, &s.Prepared.Max} {
		if *to, err = strconv.Atoi(row[5+i]); err != nil {
			return s, fmt.Errorf("the server's answer is no number: %w", err)
		}
	}
	// The second question has nothing to warm up.
	began := time.Now()
	if row, err = one(ctx, c, clockSQL, 1); err != nil {
		return s, err
	}
	took := time.Since(began)
	epoch, err := strconv.ParseFloat(row[0], 64)
	if err != nil {
		return s, fmt.Errorf("the server's clock: %w", err)
	}
	there := time.UnixMicro(int64(epoch * 1e6))
	s.Clock, s.ClockError = check.Duration(there.Sub(began.Add(took/2))), check.Duration(took/2)
	return s, nil
}

// one runs a statement that has one row of n columns.
func one(ctx context.Context, c *pgconn.PgConn, sql string, n int) ([]string, error) {
	results, err := c.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != n {
		return nil, fmt.Errorf("want one row of %d columns", n)
	}
	out := make([]string, n)
	for i, v := range results[0].Rows[0] {
		out[i] = string(v)
	}
	return out, nil
}
