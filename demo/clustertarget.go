package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/router"
	"cbrepl/source"
)

// clusterTarget is a cluster of the caller's as the target.
type clusterTarget struct{ *cluster }

func (clusterTarget) word() string { return "segments" }

func (c clusterTarget) describe(s *lab.Subscription, from string) {
	s.Target = []string{c.dsn}
	s.Set("target.kind", "cloudberry")
	s.Set("tables.rename", []map[string]string{{"from": from, "to": c.schema}})
}

func (c clusterTarget) places() []string {
	return []string{fmt.Sprintf("target  schema %s of the cluster that you gave", c.schema)}
}

// misplaced counts rows that are not where the table's policy puts them; of a
// replicated table, rows that a segment lacks or has too many. Placement is the
// live cluster's: the policies in its catalogue, and gp_segment_id of every row.
func (c clusterTarget) misplaced(ctx context.Context, table string, want []string) (n int64, err error) {
	return n, c.with(ctx, "look where the target's rows are", func(conn *pgx.Conn) (err error) {
		policy, err := source.ReadPolicy(ctx, c.dsn, c.table(table))
		if err != nil {
			return err
		}
		if policy.Kind == router.Replicated {
			n, err = c.copies(ctx, conn, table, want, policy.NumSegments)
		} else {
			n, err = c.strangers(ctx, conn, table, policy)
		}
		return err
	})
}

// strangers counts rows on another segment than the policy's.
func (c clusterTarget) strangers(ctx context.Context, conn *pgx.Conn, table string, policy router.Policy) (n int64, err error) {
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
	rr := conn.PgConn().ExecParams(ctx, "SELECT gp_segment_id"+key+" FROM "+c.table(table), nil, nil, nil, nil)
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
func (c clusterTarget) copies(ctx context.Context, conn *pgx.Conn, table string, want []string, segments int) (n int64, err error) {
	rows, err := conn.Query(ctx, fmt.Sprintf("SELECT gp_execution_segment(), t::text FROM gp_dist_random('%s') t", c.table(table)))
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

// remove drops the demo's schema and the state of its subscription; schema
// cbrepl, too, when the demo made it and nobody else uses it by now.
func (c clusterTarget) remove(ctx context.Context) (string, error) {
	if !c.made {
		return "", nil
	}
	err := c.with(ctx, "remove the demo's traces from the target", func(conn *pgx.Conn) error {
		if err := c.dropSchema(ctx, conn); err != nil {
			return err
		}
		var there bool
		for _, t := range []struct{ table, column string }{{"dedup", "subscription"}, {"stream", "subscription"}, {"replicated", "subscription"}, {"subscription", "name"}} {
			// They are not there when preparing the target has failed.
			if err := conn.QueryRow(ctx, "SELECT to_regclass('cbrepl."+t.table+"') IS NOT NULL").Scan(&there); err != nil {
				return err
			}
			if !there {
				continue
			}
			if _, err := conn.Exec(ctx, "DELETE FROM cbrepl."+t.table+" WHERE "+t.column+" = $1", c.name); err != nil {
				return err
			}
		}
		if c.hadState || !there {
			return nil
		}
		return dropUnused(ctx, conn)
	})
	var de *dtx.Error
	if errors.As(err, &de) {
		de.Hint = fmt.Sprintf("Remove them by hand: DROP SCHEMA IF EXISTS %s CASCADE, and the rows of %s in schema cbrepl", c.schema, c.name)
	}
	return "removed schema " + c.schema + " and the subscription's state from your target cluster", err
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
