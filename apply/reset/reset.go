// Package reset removes what a target records of one subscription, on every
// server of the target, whatever the layout of schema cbrepl there. It owns
// nothing of that layout but one rule: a row belongs to the subscription that its
// column subscription names, or, in table subscription, its column name.
package reset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/dtx"
)

const (
	op = "reset subscription"
	// lockClass is the first half of the key of the lock that a running daemon
	// holds on the coordinator database; the second is the subscription's id.
	lockClass = 1667396208 // "cbrp"
	// gidPrefix begins the prepared transactions of shards.
	gidPrefix = "cbrepl:"
	lockWait  = 10 * time.Second
)

// Server is one server of the target.
type Server struct {
	Name string // as in messages: "coordinator", "shard 0"
	DSN  string
}

// Found is what one server records of a subscription.
type Found struct {
	Server string
	// Rows counts the subscription's rows by table of schema cbrepl.
	Rows map[string]int64
	// Prepared are its prepared transactions.
	Prepared []string
}

// Empty reports whether nothing is recorded.
func (f *Found) Empty() bool { return len(f.Rows) == 0 && len(f.Prepared) == 0 }

// String says what was found.
func (f *Found) String() string {
	var words []string
	for t, n := range f.Rows {
		words = append(words, fmt.Sprintf("cbrepl.%s: %d rows", t, n))
	}
	slices.Sort(words)
	for _, gid := range f.Prepared {
		words = append(words, "prepared transaction "+gid)
	}
	if len(words) == 0 {
		words = []string{"nothing"}
	}
	return f.Server + ": " + strings.Join(words, ", ")
}

// Run removes what the servers record of the subscription; the first one is the
// coordinator. With dryRun it only says what there is. It refuses while a daemon
// holds the subscription's lock, which it holds itself meanwhile. It may be
// repeated, also after it was cut off.
func Run(ctx context.Context, subscription string, servers []Server, dryRun bool) ([]Found, error) {
	conns := make([]*pgx.Conn, len(servers))
	defer func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close(context.WithoutCancel(ctx))
			}
		}
	}()
	found := make([]Found, len(servers))
	for i, s := range servers { // all are reached and looked at before the first is changed
		fail := func(err error) error { return fault(s, err) }
		var err error
		if conns[i], err = connect(ctx, s); err != nil {
			return nil, fail(err)
		}
		if i == 0 {
			if err := lock(ctx, conns[0], subscription); err != nil {
				return nil, fail(err)
			}
		}
		if found[i], err = look(ctx, conns[i], s, subscription); err != nil {
			return nil, fail(err)
		}
	}
	if dryRun {
		return found, nil
	}
	// Shards first: the row that the lock hangs on goes last.
	for i := range slices.Backward(servers) {
		if err := remove(ctx, conns[i], subscription, &found[i]); err != nil {
			return nil, fault(servers[i], err)
		}
	}
	return found, nil
}

func connect(ctx context.Context, s Server) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(s.DSN)
	if err != nil {
		return nil, err
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	cfg.RuntimeParams["application_name"] = "cbrepl reset"
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	_, err = c.Exec(ctx, fmt.Sprintf("SET lock_timeout = %d", lockWait.Milliseconds()))
	return c, errors.Join(err, ctx.Err())
}

// lock takes the lock that a daemon would hold.
func lock(ctx context.Context, c *pgx.Conn, subscription string) error {
	there, err := hasTable(ctx, c, "subscription")
	if err != nil || !there {
		return err
	}
	var id int32
	err = c.QueryRow(ctx, "SELECT id FROM cbrepl.subscription WHERE name = $1", subscription).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	var ok bool
	if err := c.QueryRow(ctx, "SELECT pg_try_advisory_lock($1::int, $2::int)", lockClass, id).Scan(&ok); err != nil || ok {
		return err
	}
	return &dtx.Error{
		Op: op, Class: dtx.ClassStop,
		Msg:  fmt.Sprintf("a daemon runs subscription %s: it holds the subscription's lock on the target", subscription),
		Hint: "Stop the daemon first",
	}
}

func hasTable(ctx context.Context, c *pgx.Conn, table string) (bool, error) {
	var n int
	err := c.QueryRow(ctx, `SELECT count(*)::int FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = 'cbrepl' AND c.relkind = 'r' AND c.relname = $1`, table).Scan(&n)
	return n > 0, err
}

// owned lists the tables that have rows of subscriptions, with the column that
// says whose a row is.
func owned(ctx context.Context, c *pgx.Conn) (map[string]string, error) {
	rows, err := c.Query(ctx, `SELECT c.relname::text, a.attname::text
		FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = 'cbrepl' AND c.relkind = 'r' AND NOT a.attisdropped
		  AND (a.attname = 'subscription' OR c.relname = 'subscription' AND a.attname = 'name')`)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	var table, column string
	_, err = pgx.ForEachRow(rows, []any{&table, &column}, func() error { out[table] = column; return nil })
	return out, err
}

func look(ctx context.Context, c *pgx.Conn, s Server, subscription string) (Found, error) {
	f := Found{Server: s.Name, Rows: map[string]int64{}}
	tables, err := owned(ctx, c)
	if err != nil {
		return f, err
	}
	for t, column := range tables {
		var n int64
		sql := fmt.Sprintf("SELECT count(*) FROM cbrepl.%s WHERE %s = $1", pgx.Identifier{t}.Sanitize(), pgx.Identifier{column}.Sanitize())
		if err := c.QueryRow(ctx, sql, subscription).Scan(&n); err != nil {
			return f, err
		}
		if n > 0 {
			f.Rows[t] = n
		}
	}
	rows, err := c.Query(ctx, `SELECT gid::text FROM pg_prepared_xacts
		WHERE database = current_database() AND substr(gid, 1, length($1)) = $1 ORDER BY 1`, gidPrefix+subscription+":")
	if err != nil {
		return f, err
	}
	f.Prepared, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return f, err
}

// remove rolls back what is prepared, which holds locks on the rows, and deletes
// the rows in one transaction.
func remove(ctx context.Context, c *pgx.Conn, subscription string, f *Found) error {
	for _, gid := range f.Prepared {
		if _, err := c.Exec(ctx, "ROLLBACK PREPARED '"+strings.ReplaceAll(gid, "'", "''")+"'"); err != nil {
			return err
		}
	}
	tables, err := owned(ctx, c)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		for t, column := range tables {
			sql := fmt.Sprintf("DELETE FROM cbrepl.%s WHERE %s = $1", pgx.Identifier{t}.Sanitize(), pgx.Identifier{column}.Sanitize())
			if _, err := tx.Exec(ctx, sql, subscription); err != nil {
				return err
			}
		}
		return nil
	})
}

// fault says on which server it was. Rows of schema cbrepl hold no user's values.
func fault(s Server, err error) error {
	var e *dtx.Error
	if errors.As(err, &e) {
		return err
	}
	out := &dtx.Error{Op: op, Msg: s.Name, Class: dtx.ClassRetry, Err: err, Hint: "It may be repeated: nothing that is gone is needed again"}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "55P03" {
		out.Hint = "A session of an older daemon holds a lock there; end it with pg_terminate_backend, then repeat the command"
	}
	return out
}
