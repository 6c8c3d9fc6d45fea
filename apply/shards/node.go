package shards

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply/internal/pgside"
	"cbrepl/check"
	"cbrepl/dtx"
)

// node is one server of the target and this daemon's connection to it. It is
// used by one goroutine at a time.
type node struct {
	*pgside.Session
	// index is the shard's number, -1 for the coordinator database.
	index int
	facts facts
	// versions are those of the tables when the target was opened.
	versions *pgside.Versions
	// server is set by Check.
	server *check.Server

	// What the current batch has done here.
	phase phase
	gid   string
	// begun counts the batches begun here.
	begun uint64
	// reply is the answer still to be read of a message that was sent ahead.
	reply *pgconn.MultiResultReader
}

// content is the shard's content id, or the coordinator's.
func (n *node) content() dtx.Content { return dtx.Content(n.index) }

// facts are what a server said of itself after connecting.
type facts struct {
	database    uint32 // OID
	version     int    // server_version_num
	maxPrepared int
	// replicaRole is false when the role may not set session_replication_role.
	replicaRole bool
	role        string
}

// sessionParams are sent when a connection is made.
var sessionParams = map[string]string{
	"client_encoding": "UTF8",
	// Statements over many rows look expensive and would be compiled each time.
	"jit": "off",
	// Rows are found by an index; see statements.plan.
	"enable_seqscan": "off",
}

func newNode(name string, index int, dsn string) (*node, error) {
	s, err := pgside.NewSession(name, dsn, sessionParams, &faults)
	if err != nil {
		return nil, err
	}
	return &node{Session: s, index: index}, nil
}

// connect opens the connection. Settings that not every server or role knows
// are made one by one afterwards.
func (n *node) connect(ctx context.Context, appName string) error {
	n.phase, n.gid, n.reply = idle, "", nil
	return n.Connect(ctx, appName)
}

// settings bound how long a session can stand in the way.
type settings struct {
	statement, lock, idle time.Duration
}

// prepareSession makes the session's settings and reads the server's facts.
func (n *node) prepareSession(ctx context.Context, s settings) error {
	if err := pgside.PinValues(ctx, n.Conn); err != nil {
		return n.Fail("connect to target", err)
	}
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	_, err := n.Query(ctx, `
		SELECT set_config('statement_timeout', $1, false), set_config('lock_timeout', $2, false),
		       set_config('idle_in_transaction_session_timeout', $3, false),
		       set_config('idle_session_timeout', '0', false),
		       set_config('row_security', 'off', false),
		       set_config('default_transaction_isolation', 'read committed', false),
		       set_config('default_transaction_read_only', 'off', false),
		       set_config('client_min_messages', 'error', false),
		       set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),
		       set_config('tcp_keepalives_count', '4', false), set_config('tcp_user_timeout', '30000', false)`,
		ms(s.statement), ms(s.lock), ms(s.idle))
	if err != nil {
		return n.Fail("connect to target", err)
	}
	rows, err := n.Query(ctx, `
		SELECT d.oid, current_setting('server_version_num'), current_setting('max_prepared_transactions'),
		       current_setting('server_encoding'), pg_is_in_recovery(), current_user,
		       current_setting('synchronous_commit')
		FROM pg_database d WHERE d.datname = current_database()`)
	if err != nil {
		return n.Fail("connect to target", err)
	}
	r := rows[0]
	n.facts = facts{
		database:    pgside.OID(r[0]),
		version:     int(pgside.Atoi(r[1])),
		maxPrepared: int(pgside.Atoi(r[2])),
		role:        string(r[5]),
	}
	if n.facts.version < minVersion {
		return pgside.Stop("connect to target", "Use PostgreSQL 14 or newer", "%s runs version %d", n, n.facts.version/10000)
	}
	if enc := string(r[3]); enc != "UTF8" {
		return pgside.Stop("connect to target", "Create the database with ENCODING 'UTF8'",
			"%s has encoding %s; rows are written as UTF8 and would be converted, with loss or errors", n, enc)
	}
	if string(r[4]) == "t" {
		return pgside.Retry("connect to target", "Name the primary in the connection string, or promote this server",
			"%s is a standby", n)
	}
	return n.optionalSettings(ctx, string(r[6]))
}

// optionalSettings are those that not every server, platform or role has.
func (n *node) optionalSettings(ctx context.Context, synchronousCommit string) error {
	try := func(name, value string) (done bool, err error) {
		_, err = n.Query(ctx, `SELECT set_config(name, $2, false) FROM pg_settings WHERE name = $1`, name, value)
		if err != nil && pgside.SQLState(err) == "" {
			return false, n.Fail("connect to target", err)
		}
		return err == nil, nil
	}
	// A session notices within seconds that its client is gone, also while it waits.
	if _, err := try("client_connection_check_interval", "5s"); err != nil {
		return err
	}
	if _, err := try("transaction_timeout", "0"); err != nil {
		return err
	}
	if n.index >= 0 {
		// Triggers, rules and foreign keys do not fire for replicated rows.
		ok, err := try("session_replication_role", "replica")
		if err != nil {
			return err
		}
		n.facts.replicaRole = ok
	}
	// The decision must be on disk before anything is committed by it. PREPARE
	// and COMMIT PREPARED always are.
	if synchronousCommit == "off" {
		if _, err := n.Query(ctx, `SELECT set_config('synchronous_commit', 'local', false)`); err != nil {
			return n.Fail("connect to target", err)
		}
	}
	return nil
}

// close ends the session.
func (n *node) close() {
	n.Close()
	n.phase, n.gid, n.reply = idle, "", nil
}
