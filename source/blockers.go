package source

import (
	"context"
	"fmt"
	"strings"
	"time"

	"cbrepl/logkey"

	"github.com/jackc/pgx/v5"
)

// blockersSQL lists whose transactions a session waits for to end: sessions, and
// prepared transactions, with their age in seconds.
const blockersSQL = `SELECT coalesce(a.pid, 0), coalesce(p.gid, ''),
 extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared, clock_timestamp()))::int
 FROM pg_locks w JOIN pg_locks h ON h.locktype = w.locktype AND h.granted
   AND (h.transactionid = w.transactionid OR h.virtualxid = w.virtualxid)
 LEFT JOIN pg_stat_activity a ON a.pid = h.pid
 LEFT JOIN pg_prepared_xacts p ON p.transaction = h.transactionid
 WHERE w.pid = $1 AND NOT w.granted ORDER BY 3 DESC`

// blockersEvery is how often is looked for whom a slot waits.
const blockersEvery = time.Second

// watchBlockers looks for whom session pid waits, on a connection of its own, and
// logs it once. The function returned ends that and returns what was seen last.
func watchBlockers(ctx context.Context, cfg *Config, n Node, pid uint32) func() string {
	ctx, cancel := context.WithCancel(ctx)
	seen := make(chan string, 1)
	go func() {
		last := ""
		defer func() { seen <- last }()
		var conn *pgx.Conn
		for {
			select {
			case <-ctx.Done():
				if conn != nil {
					closeConn(conn)
				}
				return
			case <-time.After(blockersEvery):
			}
			if conn == nil {
				var err error
				if conn, err = connect(ctx, n); err != nil {
					return // only the explanation is missing
				}
			}
			text, err := blockers(ctx, conn, pid)
			if err != nil || text == "" {
				continue
			}
			if last == "" {
				cfg.Logger.Info("making the slot waits for transactions to end", logkey.Content, int(n.Content), logkey.WaitsFor, text)
			}
			last = text
		}
	}()
	return func() string {
		cancel()
		return <-seen
	}
}

func blockers(ctx context.Context, conn *pgx.Conn, pid uint32) (string, error) {
	rows, err := conn.Query(ctx, blockersSQL, pid)
	if err != nil {
		return "", err
	}
	var holder, age int
	var gid string
	var all []string
	_, err = pgx.ForEachRow(rows, []any{&holder, &gid, &age}, func() error {
		since := time.Duration(age) * time.Second
		if gid != "" {
			all = append(all, fmt.Sprintf("prepared transaction %q (since %s)", gid, since))
		} else {
			all = append(all, fmt.Sprintf("the transaction of the session with pid %d (open for %s)", holder, since))
		}
		return nil
	})
	return strings.Join(all, ", "), err
}
