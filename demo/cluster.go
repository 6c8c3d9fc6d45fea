package demo

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/router"
	"cbrepl/source"
)

// cluster is a Cloudberry or Greenplum cluster that the caller has: the demo
// works in a schema of its own there, and removes it.
type cluster struct {
	dsn    string // never printed
	schema string
	// name is the subscription's: another demo may run on the same cluster.
	name string
	n    int // segments
	// hadState says that other subscriptions' state was there before.
	hadState, made bool
}

// openCluster looks at a cluster. It changes nothing.
func openCluster(ctx context.Context, dsn string) (*cluster, error) {
	id := make([]byte, 4)
	if _, err := rand.Read(id); err != nil {
		return nil, err
	}
	c := &cluster{dsn: dsn, schema: "cbrepl_demo_" + hex.EncodeToString(id), name: "demo_" + hex.EncodeToString(id)}
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var is bool
	if err := conn.QueryRow(ctx, "SELECT to_regclass('pg_catalog.gp_segment_configuration') IS NOT NULL").Scan(&is); err != nil {
		return nil, c.fault("look at the target", err)
	}
	if is {
		err = conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM gp_segment_configuration WHERE role = 'p' AND content >= 0),
			EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = 'cbrepl')`).Scan(&c.n, &c.hadState)
		if err != nil {
			return nil, c.fault("look at the target", err)
		}
	}
	if c.n == 0 {
		return nil, &dtx.Error{
			Op: "look at the target", Class: dtx.ClassStop, Msg: "the server is not the coordinator of a Cloudberry or Greenplum cluster",
			Hint: "Give the coordinator's connection string, or leave it out: the demo then starts a target of its own",
		}
	}
	return c, nil
}

// connect opens a session whose rows print as the lab's do. Settings are made by
// statement: the processes on the segments, where rows become text, do not get
// those of the connection string.
func (c *cluster) connect(ctx context.Context) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(c.dsn)
	if err != nil {
		return nil, &dtx.Error{
			Op: "read target's connection string", Class: dtx.ClassStop, Msg: "it cannot be read",
			Hint: "Write it as postgres://user@host:port/database",
		} // pgx would print it
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	cfg.RuntimeParams["application_name"] = "cbrepl demo"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, &dtx.Error{
			Op: "connect to the target", Class: dtx.ClassStop, Err: err,
			Hint: "Give the connection string of the cluster's coordinator, with a role that may create a schema",
		}
	}
	for _, set := range []string{"SET timezone = 'UTC'", "SET datestyle = 'ISO, MDY'", "SET client_min_messages = error"} {
		if _, err := conn.Exec(ctx, set); err != nil {
			return nil, errors.Join(c.fault("connect to the target", err), conn.Close(context.WithoutCancel(ctx)))
		}
	}
	return conn, nil
}

func (c *cluster) fault(op string, err error) error {
	return &dtx.Error{Op: op, Class: dtx.ClassStop, Err: err}
}

// with runs f in a session.
func (c *cluster) with(ctx context.Context, op string, f func(*pgx.Conn) error) error {
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := f(conn); err != nil {
		return c.fault(op, err)
	}
	return nil
}

// table is the name there of a table of the source.
func (c *cluster) table(source string) string {
	_, name, _ := strings.Cut(source, ".")
	return c.schema + "." + name
}

// create makes schema and tables. The random table has no key there, because
// these servers allow none.
func (c *cluster) create(ctx context.Context) error {
	c.made = true
	return c.with(ctx, "create tables on the target", func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "CREATE SCHEMA "+c.schema); err != nil {
			return err
		}
		for _, t := range lab.WorkloadTables() {
			name, columns, index := c.table(t.Name), t.Columns, ""
			distributed := "BY (" + strings.Join(t.Key, ", ") + ")"
			switch t.Kind {
			case router.Replicated:
				distributed = "REPLICATED"
			case router.Random:
				distributed = "RANDOMLY"
				columns = strings.Replace(columns, " primary key", " not null", 1)
				index = "CREATE INDEX ON " + name + " (id)"
			}
			if _, err := conn.Exec(ctx, "CREATE TABLE "+name+" ("+columns+") DISTRIBUTED "+distributed); err != nil {
				return err
			}
			if index == "" {
				continue
			}
			if _, err := conn.Exec(ctx, index); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *cluster) segments() int { return c.n }

func (*cluster) word() string { return "segments" }

func (c *cluster) describe(s *lab.Subscription) {
	s.Target = []string{c.dsn}
	s.Set("target.kind", "cloudberry")
	s.Set("tables.rename", []map[string]string{{"from": "public", "to": c.schema}})
}

func (c *cluster) places() []string {
	return []string{fmt.Sprintf("target  schema %s of the cluster that you gave", c.schema)}
}

func (c *cluster) total(ctx context.Context) (total int64, err error) {
	return total, c.with(ctx, "add up balances on the target", func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT coalesce(sum(balance), 0)::int8 FROM "+c.table(lab.Accounts)).Scan(&total)
	})
}

// compare reads both sides' rows as text. Placement is the live cluster's: the
// policies in its catalogue, and gp_segment_id of every row.
func (c *cluster) compare(ctx context.Context, src *lab.Source) (lab.Report, error) {
	var rep lab.Report
	err := c.with(ctx, "read the target's rows", func(conn *pgx.Conn) error {
		for _, t := range lab.WorkloadTables() {
			r := lab.TableReport{Table: t.Name}
			want, err := src.RowsOf(ctx, t.Name)
			if err != nil {
				return err
			}
			have, err := texts(ctx, conn, "SELECT t::text FROM "+c.table(t.Name)+" t")
			if err != nil {
				return err
			}
			r.SourceRows, r.TargetRows = int64(len(want)), int64(len(have))
			r.Missing, r.Extra = differ(want, have)
			if r.Misplaced, err = c.misplaced(ctx, conn, t, want); err != nil {
				return err
			}
			rep.Tables = append(rep.Tables, r)
		}
		return nil
	})
	return rep, err
}

// misplaced counts rows that are not where the table's policy puts them; of a
// replicated table, rows that a segment lacks or has too many.
func (c *cluster) misplaced(ctx context.Context, conn *pgx.Conn, t lab.Table, want []string) (n int64, err error) {
	policy, err := source.ReadPolicy(ctx, c.dsn, c.table(t.Name))
	if err != nil {
		return 0, err
	}
	if policy.Kind == router.Replicated {
		return c.copies(ctx, conn, t, want, policy.NumSegments)
	}
	var hash *router.Router
	key := ""
	if policy.Kind == router.Hash {
		if hash, err = router.New(policy); err != nil {
			return 0, err
		}
		for _, k := range policy.Columns {
			key += ", " + pgx.Identifier{k.Name}.Sanitize()
		}
	}
	// Values as the server prints them, which a cast to text would not always give.
	rr := conn.PgConn().ExecParams(ctx, "SELECT gp_segment_id"+key+" FROM "+c.table(t.Name), nil, nil, nil, nil)
	for rr.NextRow() {
		v := rr.Values()
		var at dtx.Content
		if _, err = fmt.Sscan(string(v[0]), &at); err != nil {
			break
		}
		wrong := at < 0 || int(at) >= policy.NumSegments
		if hash != nil {
			var to dtx.Content
			if to, err = hash.Segment(v[1:]); err != nil {
				break
			}
			wrong = at != to
		}
		if wrong {
			n++
		}
	}
	_, cerr := rr.Close()
	return n, errors.Join(err, cerr)
}

// copies compares every segment's copy of a replicated table with the source's.
func (c *cluster) copies(ctx context.Context, conn *pgx.Conn, t lab.Table, want []string, segments int) (n int64, err error) {
	rows, err := conn.Query(ctx, fmt.Sprintf("SELECT gp_execution_segment(), t::text FROM gp_dist_random('%s') t", c.table(t.Name)))
	if err != nil {
		return 0, err
	}
	copies := make([][]string, segments)
	var seg int
	var text string
	_, err = pgx.ForEachRow(rows, []any{&seg, &text}, func() error {
		if seg < 0 || seg >= segments {
			n++
			return nil
		}
		copies[seg] = append(copies[seg], text)
		return nil
	})
	for _, have := range copies {
		slices.Sort(have)
		missing, extra := differ(want, have)
		n += missing + extra
	}
	return n, err
}

// texts reads one column, sorted.
func texts(ctx context.Context, conn *pgx.Conn, sql string) ([]string, error) {
	rows, err := conn.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	slices.Sort(out)
	return out, err
}

// differ counts what stands in one of two sorted lists only.
func differ(want, have []string) (missing, extra int64) {
	for len(want) > 0 && len(have) > 0 {
		switch d := strings.Compare(want[0], have[0]); {
		case d == 0:
			want, have = want[1:], have[1:]
		case d < 0:
			missing++
			want = want[1:]
		default:
			extra++
			have = have[1:]
		}
	}
	return missing + int64(len(want)), extra + int64(len(have))
}

// remove drops the demo's schema and the state of its subscription; schema
// cbrepl, too, when the demo made it and nobody else uses it by now.
func (c *cluster) remove(ctx context.Context) (string, error) {
	if !c.made {
		return "", nil
	}
	err := c.with(ctx, "remove the demo's traces from the target", func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+c.schema+" CASCADE"); err != nil {
			return err
		}
		var state bool
		if err := conn.QueryRow(ctx, "SELECT to_regclass('cbrepl.subscription') IS NOT NULL").Scan(&state); err != nil || !state {
			return err
		}
		for _, sql := range []string{
			"DELETE FROM cbrepl.dedup WHERE subscription = $1", "DELETE FROM cbrepl.stream WHERE subscription = $1", "DELETE FROM cbrepl.replicated WHERE subscription = $1",
			"DELETE FROM cbrepl.subscription WHERE name = $1",
		} {
			if _, err := conn.Exec(ctx, sql, c.name); err != nil {
				return err
			}
		}
		if c.hadState {
			return nil
		}
		return dropUnused(ctx, conn)
	})
	var de *dtx.Error
	if errors.As(err, &de) {
		de.Hint = fmt.Sprintf("Remove them by hand: DROP SCHEMA IF EXISTS %s CASCADE, and the rows of %s in schema cbrepl", c.schema, c.name)
	}
	return "removed schema " + c.schema + " and the subscription's state from your cluster", err
}

// dropUnused drops schema cbrepl unless a subscription is prepared in it, which
// the lock keeps from happening meanwhile.
func dropUnused(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "LOCK TABLE cbrepl.subscription IN ACCESS EXCLUSIVE MODE"); err != nil {
		return err
	}
	var used bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM cbrepl.subscription)").Scan(&used); err != nil {
		return err
	}
	if !used {
		if _, err := conn.Exec(ctx, "DROP SCHEMA cbrepl CASCADE"); err != nil {
			return err
		}
	}
	_, err := conn.Exec(ctx, "COMMIT")
	return err
}
