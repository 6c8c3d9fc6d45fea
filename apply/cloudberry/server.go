package cloudberry

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"cbrepl/apply/internal/pgside"
	"cbrepl/logkey"
)

const (
	opConnect = "connect to target"
	// serverName is what errors call the server.
	serverName = "target coordinator"
)

// server is the target's coordinator and this daemon's session on it. It is used
// by one goroutine at a time.
type server struct {
	*pgside.Session
	facts facts
}

// facts are what a server said of itself after connecting.
type facts struct {
	database uint32 // OID
	role     string
	// segments counts the primaries.
	segments int
	// replicaRole is set when the session runs with session_replication_role =
	// replica.
	replicaRole bool
	// tableLocks tells that UPDATE and DELETE lock the whole table: there is no
	// global deadlock detector.
	tableLocks bool
	// temp tells that the role may make temporary tables.
	temp bool
	// columns holds "relation.column" of what the catalogue of this server has.
	columns map[string]bool
}

// has reports whether a relation of pg_catalog has the column.
func (f *facts) has(column string) bool { return f.columns[column] }

func newServer(dsn string) (*server, error) {
	s, err := pgside.NewSession(serverName, dsn, map[string]string{"client_encoding": "UTF8"}, &faults)
	if err != nil {
		return nil, err
	}
	return &server{Session: s}, nil
}

// connect opens the session, reads the server's facts and makes the settings.
func (s *server) connect(ctx context.Context, appName string, o *Options) error {
	s.Close()
	if err := s.Connect(ctx, appName); err != nil {
		return err
	}
	s.facts = facts{}
	if err := pgside.PinValues(ctx, s.Conn); err != nil {
		return s.Fail(opConnect, err)
	}
	if err := s.probe(ctx); err != nil {
		return err
	}
	return s.settings(ctx, o)
}

// probedRelations are those whose columns tell one generation of servers from
// another.
var probedRelations = []string{
	"pg_class", "pg_attribute", "pg_index", "pg_type", "pg_range", "pg_collation", "pg_am", "pg_partition",
	"pg_partitioned_table", "gp_distribution_policy", "gp_segment_configuration",
}

// probe finds out what kind of server this is.
func (s *server) probe(ctx context.Context) error {
	rows, err := s.Query(ctx, `
		SELECT c.relname || '.' || a.attname FROM pg_catalog.pg_class c
		JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
		WHERE n.nspname = 'pg_catalog' AND a.attnum > 0 AND NOT a.attisdropped
		  AND c.relname::text = ANY ($1::text[])`, pgside.TextArray(probedRelations))
	if err != nil {
		return s.Fail(opConnect, err)
	}
	s.facts.columns = make(map[string]bool, len(rows))
	for _, r := range rows {
		s.facts.columns[string(r[0])] = true
	}
	if !s.facts.has("gp_segment_configuration.content") {
		return pgside.Stop(opConnect, "Name the coordinator of a Cloudberry or Greenplum cluster; for PostgreSQL servers as shards set target.kind to shards",
			"the %s is not a Cloudberry or Greenplum server", s)
	}
	if !s.facts.has("gp_distribution_policy.numsegments") || !s.facts.has("gp_distribution_policy.distclass") {
		return pgside.Stop(opConnect, "Use Greenplum 6 or newer, or Cloudberry", "the %s runs a server older than Greenplum 6", s)
	}
	rows, err = s.Query(ctx, `
		SELECT d.oid, current_user, pg_encoding_to_char(d.encoding), pg_is_in_recovery(), current_setting('gp_role'),
		       (SELECT count(*) FROM pg_catalog.gp_segment_configuration WHERE content >= 0 AND role = 'p'),
		       has_database_privilege(d.oid, 'TEMPORARY')
		FROM pg_catalog.pg_database d WHERE d.datname = current_database()`)
	if err != nil {
		return s.Fail(opConnect, err)
	}
	r := rows[0]
	s.facts.database = pgside.OID(r[0])
	s.facts.role = string(r[1])
	s.facts.segments = int(pgside.Atoi(r[5]))
	s.facts.temp = string(r[6]) == "t"
	switch {
	case string(r[2]) != "UTF8":
		return pgside.Stop(opConnect, "Create the database with ENCODING 'UTF8'",
			"the %s has encoding %s; rows are written as UTF8 and would be converted, with loss or errors", s, r[2])
	case string(r[3]) == "t":
		return pgside.Retry(opConnect, "Name the active coordinator in the connection string, or activate this one",
			"the %s is a standby", s)
	case string(r[4]) != "dispatch":
		return pgside.Stop(opConnect, "Connect to the coordinator's port, without gp_role or gp_session_role in the connection string",
			"the %s gives a session in role %s: it is a segment, or a session in utility mode; rows written there would be on one node only", s, r[4])
	}
	return nil
}

// needed are the settings of every session that every server has, besides those that
// decide what text means (pgside.PinValues). They are set by a statement: a worker
// process on a segment gets those, not all of those that are sent at connection start.
var needed = [][2]string{
	{"default_transaction_isolation", "read committed"},
	{"default_transaction_read_only", "off"},
	{"client_min_messages", "error"},
	{"tcp_keepalives_idle", "10"},
	{"tcp_keepalives_interval", "5"},
	{"tcp_keepalives_count", "4"},
	// The planner, for statements that touch some rows of large tables: nested
	// loops over an index of the table. The server's own defaults (no nested loops,
	// random pages at 100) scan the whole table for ten rows. Statistics can be
	// missing or old, so scans are off where there is an index at all.
	{"enable_nestloop", "on"},
	{"random_page_cost", "1"},
	{"enable_seqscan", "off"},
	{"enable_hashjoin", "on"},
	{"enable_mergejoin", "off"},
	{"enable_indexscan", "on"},
	{"enable_bitmapscan", "on"},
}

// wanted are made where the server has them and the role may.
var wanted = [][2]string{
	{"optimizer", "off"},          // the planner whose plans are known
	{"gp_autostats_mode", "none"}, // no ANALYZE inside a batch
	// A list of values that narrows one side of a join is not to be tried on the
	// other, value by value.
	{"gp_enable_predicate_propagation", "off"},
	{"row_security", "off"},
	{"jit", "off"},
	{"max_parallel_workers_per_gather", "0"},
	{"enable_parallel", "off"},
	{"tcp_user_timeout", "30000"},
	{"idle_session_timeout", "0"},
	{"transaction_timeout", "0"},
	{"client_connection_check_interval", "5s"},
}

func (s *server) settings(ctx context.Context, o *Options) error {
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	set := slices.Concat(needed, [][2]string{
		{"statement_timeout", ms(o.StatementTimeout)}, {"lock_timeout", ms(o.LockTimeout)},
	})
	var sql strings.Builder
	var args []string
	for i, kv := range set {
		if i > 0 {
			sql.WriteString(", ")
		} else {
			sql.WriteString("SELECT ")
		}
		fmt.Fprintf(&sql, "set_config($%d, $%d, false)", 2*i+1, 2*i+2)
		args = append(args, kv[0], kv[1])
	}
	if _, err := s.Query(ctx, sql.String(), args...); err != nil {
		return s.Fail(opConnect, err)
	}
	known, err := s.known(ctx)
	if err != nil {
		return err
	}
	for _, kv := range slices.Concat(wanted, [][2]string{{"idle_in_transaction_session_timeout", ms(o.IdleTimeout)}}) {
		if _, ok := known[kv[0]]; !ok {
			continue
		}
		if ok, err := s.try(ctx, kv[0], kv[1]); err != nil {
			return err
		} else if !ok {
			o.Logger.Warn("a setting of the target's session cannot be made", slog.String(logkey.Setting, kv[0]), slog.String(logkey.Value, kv[1]))
		}
	}
	s.facts.tableLocks = known["gp_enable_global_deadlock_detector"] != "on"
	// A batch must be on disk when it is reported as applied.
	if known["synchronous_commit"] == "off" {
		if _, err := s.Query(ctx, `SELECT set_config('synchronous_commit', 'local', false)`); err != nil {
			return s.Fail(opConnect, err)
		}
	}
	// Triggers and rules do not fire for replicated rows. The setting is not
	// listed in pg_settings.
	s.facts.replicaRole, err = s.try(ctx, "session_replication_role", "replica")
	return err
}

// known lists the settings that differ between servers, with their values.
func (s *server) known(ctx context.Context) (map[string]string, error) {
	names := []string{"gp_enable_global_deadlock_detector", "synchronous_commit", "idle_in_transaction_session_timeout"}
	for _, kv := range wanted {
		names = append(names, kv[0])
	}
	rows, err := s.Query(ctx, `SELECT name, setting FROM pg_catalog.pg_settings WHERE name = ANY ($1::text[])`, pgside.TextArray(names))
	if err != nil {
		return nil, s.Fail(opConnect, err)
	}
	out := make(map[string]string, len(rows))
	for _, r := range rows {
		out[string(r[0])] = string(r[1])
	}
	return out, nil
}

// try makes a setting and reports whether the server took it.
func (s *server) try(ctx context.Context, name, value string) (bool, error) {
	_, err := s.Query(ctx, `SELECT set_config($1, $2, false)`, name, value)
	if err != nil && pgside.SQLState(err) == "" {
		return false, s.Fail(opConnect, err)
	}
	return err == nil, nil
}
