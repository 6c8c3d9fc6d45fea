package demo

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/router"
)

// cluster is a Cloudberry or Greenplum cluster that the caller has: the demo
// works in a schema of its own there, and removes it.
type cluster struct {
	dsn    string // never printed
	side   string // source or target
	schema string
	// name is the subscription's: another demo may run on the same cluster.
	name string
	n    int // segments
	// hadState says that other subscriptions' state was there before.
	hadState, made bool
}

// newName draws a name for a subscription on somebody's cluster.
func newName() (string, error) {
	id := make([]byte, 4)
	if _, err := rand.Read(id); err != nil {
		return "", err
	}
	return "demo_" + hex.EncodeToString(id), nil
}

// openCluster looks at a cluster. It changes nothing.
func openCluster(ctx context.Context, side, dsn, name string) (*cluster, error) {
	c := &cluster{dsn: dsn, side: side, schema: "cbrepl_" + name, name: name}
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var is bool
	if err := conn.QueryRow(ctx, "SELECT to_regclass('pg_catalog.gp_segment_configuration') IS NOT NULL").Scan(&is); err != nil {
		return nil, c.fault("look at the "+side, err)
	}
	if is {
		err = conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM gp_segment_configuration WHERE role = 'p' AND content >= 0),
			EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = 'cbrepl')`).Scan(&c.n, &c.hadState)
		if err != nil {
			return nil, c.fault("look at the "+side, err)
		}
	}
	if c.n == 0 {
		return nil, &dtx.Error{
			Op: "look at the " + side, Class: dtx.ClassStop, Msg: "the server is not the coordinator of a Cloudberry or Greenplum cluster",
			Hint: "Give the coordinator's connection string, or leave it out: the demo then starts a " + side + " of its own",
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
			Op: "read the " + c.side + "'s connection string", Class: dtx.ClassStop, Msg: "it cannot be read",
			Hint: "Write it as postgres://user@host:port/database",
		} // pgx would print it
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	cfg.RuntimeParams["application_name"] = "cbrepl demo"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, &dtx.Error{
			Op: "connect to the " + c.side, Class: dtx.ClassStop, Err: err,
			Hint: "Give the connection string of the cluster's coordinator, with a role that may create a schema",
		}
	}
	for _, set := range []string{"SET timezone = 'UTC'", "SET datestyle = 'ISO, MDY'", "SET client_min_messages = error"} {
		if _, err := conn.Exec(ctx, set); err != nil {
			return nil, errors.Join(c.fault("connect to the "+c.side, err), conn.Close(context.WithoutCancel(ctx)))
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
// these servers allow none: a source sends the whole old row of a deleted one.
func (c *cluster) create(ctx context.Context) error {
	c.made = true
	return c.with(ctx, "create tables on the "+c.side, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "CREATE SCHEMA "+c.schema); err != nil {
			return err
		}
		for _, t := range lab.WorkloadTables() {
			name, columns, after := c.table(t.Name), t.Columns, ""
			distributed := "BY (" + strings.Join(t.Key, ", ") + ")"
			switch t.Kind {
			case router.Replicated:
				distributed = "REPLICATED"
			case router.Random:
				distributed = "RANDOMLY"
				columns = strings.Replace(columns, " primary key", " not null", 1)
				after = "CREATE INDEX ON " + name + " (id); ALTER TABLE " + name + " REPLICA IDENTITY FULL"
			}
			if _, err := conn.Exec(ctx, "CREATE TABLE "+name+" ("+columns+") DISTRIBUTED "+distributed+"; "+after, pgx.QueryExecModeSimpleProtocol); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *cluster) segments() int { return c.n }

// total sums the balances of the accounts.
func (c *cluster) total(ctx context.Context) (total int64, err error) {
	return total, c.with(ctx, "add up balances on the "+c.side, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT coalesce(sum(balance), 0)::int8 FROM "+c.table(lab.Accounts)).Scan(&total)
	})
}

// rows reads a table's rows as sorted text.
func (c *cluster) rows(ctx context.Context, table string) (out []string, err error) {
	return out, c.with(ctx, "read the "+c.side+"'s rows", func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT t::text FROM "+c.table(table)+" t")
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, pgx.RowTo[string])
		slices.Sort(out)
		return err
	})
}

// dropSchema drops the demo's schema.
func (c *cluster) dropSchema(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+c.schema+" CASCADE")
	return err
}
