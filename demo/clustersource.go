package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/router"
	"cbrepl/source"
	"cbrepl/subscription"
	"cbrepl/subscription/config"
)

// clusterSource is a Greenplum 6 of the caller's as the source.
type clusterSource struct {
	*cluster
	kinds map[string]router.PolicyKind // of the workload's tables
	idle  chan *pgx.Conn               // sessions of the workload

	// madeExtension and hadList say what was there before.
	madeExtension, hadList, published bool
}

func openSource(ctx context.Context, dsn, name string) (*clusterSource, error) {
	c, err := openCluster(ctx, "source", dsn, name)
	if err != nil {
		return nil, err
	}
	s := &clusterSource{cluster: c, kinds: map[string]router.PolicyKind{}, idle: make(chan *pgx.Conn, 64)}
	for _, t := range lab.WorkloadTables() {
		s.kinds[t.Name] = t.Kind
	}
	return s, nil
}

func (s *clusterSource) DSNs() []string { return []string{s.dsn} }

// Publication implements lab.Published: one of the demo's own.
func (s *clusterSource) Publication() string { return s.name }

func (s *clusterSource) schemaName() string { return s.schema }

func (s *clusterSource) places() []string {
	return []string{fmt.Sprintf("source  schema %s of the cluster that you gave", s.schema)}
}

func (s *clusterSource) create(ctx context.Context) error {
	err := s.with(ctx, "create extension cbrepl_source on the source", func(conn *pgx.Conn) error {
		var there bool
		err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM pg_extension WHERE extname = 'cbrepl_source'), to_regclass('cbrepl.publication_table') IS NOT NULL").Scan(&there, &s.hadList)
		if err != nil || there {
			return err
		}
		_, err = conn.Exec(ctx, "CREATE EXTENSION cbrepl_source")
		s.madeExtension = err == nil
		return err
	})
	if err != nil {
		var de *dtx.Error
		if errors.As(err, &de) && de.Hint == "" {
			de.Hint = "A source needs plugin cbrepl_source on every node: see docs/source-greenplum6.md"
		}
		return err
	}
	if err := s.cluster.create(ctx); err != nil {
		return err
	}
	var names []string
	for _, t := range lab.WorkloadTables() {
		names = append(names, s.table(t.Name))
	}
	s.published = true
	return source.Publish(ctx, s.dsn, s.Publication(), names, false)
}

// Count implements lab.Database.
func (s *clusterSource) Count(ctx context.Context, table string) (n int64, err error) {
	return n, s.with(ctx, "count rows on the source", func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT count(*) FROM "+s.table(table)).Scan(&n)
	})
}

// Transact implements lab.Database.
func (s *clusterSource) Transact(ctx context.Context, f func(lab.Statements) error) error {
	return lab.Retry(ctx, func() error { return s.once(ctx, f) })
}

// once runs one transaction in a session that is idle, or a new one.
func (s *clusterSource) once(ctx context.Context, f func(lab.Statements) error) (err error) {
	var conn *pgx.Conn
	select {
	case conn = <-s.idle:
	default:
		if conn, err = s.connect(ctx); err != nil {
			return err
		}
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		return f(&clusterTx{s: s, tx: tx, parts: map[dtx.Content]struct{}{}})
	})
	if !conn.IsClosed() {
		select {
		case s.idle <- conn:
			return err
		default:
		}
	}
	_ = conn.Close(context.WithoutCancel(ctx))
	return err
}

// clusterTx is a transaction of the workload on the cluster, in plain SQL.
type clusterTx struct {
	s     *clusterSource
	tx    pgx.Tx
	parts map[dtx.Content]struct{}
}

func (t *clusterTx) Participants() []dtx.Content { return slices.Sorted(maps.Keys(t.parts)) }

func (t *clusterTx) Insert(ctx context.Context, table string, rows ...lab.Row) error {
	var values []string
	var c clause
	for _, r := range rows {
		var places []string
		for _, v := range r {
			places = append(places, c.place(v))
		}
		values = append(values, "("+strings.Join(places, ", ")+")")
	}
	_, err := t.run(ctx, table, "INSERT INTO "+t.s.table(table)+" VALUES "+strings.Join(values, ", "), c.args)
	return err
}

func (t *clusterTx) Update(ctx context.Context, table string, set, key lab.Values) (int64, error) {
	var c clause
	return t.run(ctx, table, "UPDATE "+t.s.table(table)+" SET "+c.list(set, ", ")+" WHERE "+c.list(key, " AND "), c.args)
}

func (t *clusterTx) Delete(ctx context.Context, table string, key lab.Values) (int64, error) {
	var c clause
	return t.run(ctx, table, "DELETE FROM "+t.s.table(table)+" WHERE "+c.list(key, " AND "), c.args)
}

// run runs a statement and notes which segments it changed rows on. A replicated
// table has them on all.
func (t *clusterTx) run(ctx context.Context, table, sql string, args []any) (int64, error) {
	args = append([]any{pgx.QueryExecModeSimpleProtocol}, args...)
	if t.s.kinds[table] == router.Replicated {
		for c := range t.s.n {
			t.parts[dtx.Content(c)] = struct{}{}
		}
		tag, err := t.tx.Exec(ctx, sql, args...)
		return tag.RowsAffected(), err
	}
	rows, err := t.tx.Query(ctx, sql+" RETURNING gp_segment_id", args...)
	if err != nil {
		return 0, err
	}
	var c dtx.Content
	tag, err := pgx.ForEachRow(rows, []any{&c}, func() error {
		t.parts[c] = struct{}{}
		return nil
	})
	return tag.RowsAffected(), err
}

// clause collects a statement's arguments.
type clause struct{ args []any }

// place is how a value is written in the statement.
func (c *clause) place(v any) string {
	if e, ok := v.(lab.Expr); ok {
		return string(e)
	}
	c.args = append(c.args, v)
	return fmt.Sprintf("$%d", len(c.args))
}

// list writes "column = value" pieces.
func (c *clause) list(v lab.Values, sep string) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(v)) {
		out = append(out, name+" = "+c.place(v[name]))
	}
	return strings.Join(out, sep)
}

// ends asks every node how far its log is on disk: everything that was committed
// is before that.
func (s *clusterSource) ends(ctx context.Context) (map[dtx.Content]dtx.LSN, error) {
	cl, err := source.Discover(ctx, source.ClusterConfig{Coordinator: s.dsn})
	if err != nil {
		return nil, err
	}
	out := map[dtx.Content]dtx.LSN{}
	for _, n := range cl.Nodes() {
		r := cl.FlushReader(n.Content)
		out[n.Content], err = r.FlushLSN(ctx)
		r.Close()
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// remove drops the slots, the publication and the demo's schema; the list of
// publications and the extension, too, when the demo made them and nobody else
// uses them by now.
func (s *clusterSource) remove(ctx context.Context, cfg *config.Config) (string, error) {
	for len(s.idle) > 0 {
		_ = (<-s.idle).Close(ctx)
	}
	if !s.made && !s.madeExtension {
		return "", nil
	}
	var errs []error
	if cfg != nil {
		errs = append(errs, dropSlots(ctx, cfg))
	}
	errs = append(errs, s.with(ctx, "remove the demo's traces from the source", func(conn *pgx.Conn) error {
		return errors.Join(s.dropSchema(ctx, conn), s.dropPublication(ctx, conn), s.dropExtension(ctx, conn))
	}))
	err := errors.Join(errs...)
	if err != nil {
		err = &dtx.Error{
			Op: "clean up the source", Class: dtx.ClassStop, Err: err,
			Hint: fmt.Sprintf("Remove by hand: slot cbrepl_%s on every node (pg_drop_replication_slot), DROP SCHEMA IF EXISTS %s CASCADE, and the rows of publication %[1]s in cbrepl.publication_table", s.name, s.schema),
		}
	}
	return "removed slots, publication and schema " + s.schema + " from your source cluster", err
}

// dropSlots drops the demo's slots once the servers have noticed that the daemon
// has ended.
func dropSlots(ctx context.Context, cfg *config.Config) error {
	for {
		err := subscription.DropSlots(ctx, cfg)
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (s *clusterSource) dropPublication(ctx context.Context, conn *pgx.Conn) error {
	var there bool
	if err := conn.QueryRow(ctx, "SELECT to_regclass('cbrepl.publication_table') IS NOT NULL").Scan(&there); err != nil || !there || !s.published {
		return err
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "DELETE FROM cbrepl.publication_table WHERE publication = $1", s.Publication()); err != nil || s.hadList {
			return err
		}
		if _, err := tx.Exec(ctx, "LOCK TABLE cbrepl.publication_table IN ACCESS EXCLUSIVE MODE"); err != nil {
			return err
		}
		var used bool
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM cbrepl.publication_table)").Scan(&used); err != nil || used {
			return err
		}
		if _, err := tx.Exec(ctx, "DROP TABLE cbrepl.publication_table"); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'cbrepl'))").Scan(&used)
		if err != nil || used || s.hadState {
			return err
		}
		_, err = tx.Exec(ctx, "DROP SCHEMA cbrepl")
		return err
	})
}

// dropExtension drops the extension that the demo made, unless a slot of somebody
// else's needs it by now.
func (s *clusterSource) dropExtension(ctx context.Context, conn *pgx.Conn) error {
	if !s.madeExtension {
		return nil
	}
	var used bool
	err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM pg_replication_slots WHERE plugin = 'cbrepl_source' AND database = current_database())").Scan(&used)
	if err != nil || used {
		return err
	}
	if _, err = conn.Exec(ctx, "DROP EXTENSION cbrepl_source"); err == nil {
		_, err = conn.Exec(ctx, "DROP SCHEMA cbrepl_source") // which is not the extension's member
	}
	return err
}
