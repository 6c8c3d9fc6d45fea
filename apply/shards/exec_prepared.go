package shards

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply/internal/pgside"
)

// Statements over few rows spend more time being parsed and planned than being
// run, and come again with every batch: they are prepared, once per connection.
const (
	// preparedRows is up to how many rows a statement is prepared. Beyond it a
	// plan for the very parameters pays.
	preparedRows = 200
	// preparedMax bounds the statements of a connection; then they start over.
	preparedMax = 500
)

// statements are the prepared statements of one shard's connection. That shard's
// goroutine uses them.
type statements struct {
	conn  *pgconn.PgConn
	names map[string]string // by text
	made  int
	// tx is the transaction whose planner settings are known: scans and hashed differ
	// from those of the session.
	tx            uint64
	scans, hashed bool
}

// use starts over on another connection.
func (p *statements) use(conn *pgconn.PgConn) {
	if p.conn != conn {
		*p = statements{conn: conn, names: map[string]string{}}
	}
}

// plan makes the planner's settings for q, which go back when the transaction ends.
// The session's own are for rows that are found by an index: no table is read whole
// for them, whatever its statistics say, or their absence. For other rows it is.
func (p *statements) plan(ctx context.Context, conn *pgconn.PgConn, tx uint64, q *query) error {
	p.use(conn)
	if p.tx != tx {
		p.tx, p.scans, p.hashed = tx, false, false
	}
	scans := !q.keyed && !q.listed
	if scans == p.scans && q.hashed == p.hashed {
		return nil
	}
	p.scans, p.hashed = scans, q.hashed
	return conn.Exec(ctx, "SET LOCAL enable_seqscan = "+pgside.OnOff(p.scans)+"; SET LOCAL enable_nestloop = "+pgside.OnOff(!p.hashed)).Close()
}

// run executes q, as a prepared statement where that pays.
func (p *statements) run(ctx context.Context, conn *pgconn.PgConn, q *query, rows int) *pgconn.Result {
	if !q.keyed || rows > preparedRows {
		return q.run(ctx, conn)
	}
	p.use(conn)
	text := q.String()
	name, ok := p.names[text]
	if !ok {
		if len(p.names) >= preparedMax {
			var all strings.Builder
			for _, name := range p.names { // the session has others
				all.WriteString("DEALLOCATE " + name + ";")
			}
			if err := conn.Exec(ctx, all.String()).Close(); err != nil {
				return &pgconn.Result{Err: err}
			}
			clear(p.names)
		}
		p.made++
		name = fmt.Sprintf("cbrepl_%d", p.made)
		if _, err := conn.Prepare(ctx, name, text, q.oids); err != nil {
			return &pgconn.Result{Err: err}
		}
		p.names[text] = name
	}
	return conn.ExecPrepared(ctx, name, q.params, q.formats, nil).Read()
}
