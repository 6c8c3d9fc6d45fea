package lab

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"cbrepl/dtx"
	"cbrepl/router"
)

// rowExpr is a row of the named columns as one text value.
func rowExpr(columns []string) string {
	quoted := make([]string, len(columns))
	for i, c := range columns {
		quoted[i] = "t." + pgx.Identifier{c}.Sanitize()
	}
	return "row(" + strings.Join(quoted, ", ") + ")::text"
}

// columns lists a table's column names.
func (t *tableInfo) columns() []string {
	out := make([]string, len(t.cols))
	for i, c := range t.cols {
		out[i] = c.name
	}
	return out
}

// copies lists the segments to read for one logical copy of a table.
func (c *nodes) copies(t *tableInfo) []dtx.Content {
	if t.policy.Kind == router.Replicated {
		return []dtx.Content{0}
	}
	return c.segmentContents()
}

// RowsOf reads all rows of a table as sorted text; of a replicated table, one
// copy. Columns are in table order unless given. Each segment is read in one
// snapshot.
func (c *nodes) RowsOf(ctx context.Context, table string, columns ...string) ([]string, error) {
	t, err := c.table(ctx, table)
	if err != nil {
		return nil, err
	}
	if len(columns) == 0 {
		columns = t.columns()
	}
	var out []string
	for _, seg := range c.copies(t) {
		rows, err := query(ctx, c, seg, pgx.RowTo[string], "select "+rowExpr(columns)+" from "+t.sql()+" t")
		if err != nil {
			return nil, err
		}
		out = append(out, rows...)
	}
	slices.Sort(out)
	return out, nil
}

// Total sums a numeric column over all rows of a table; of a replicated table,
// over one copy.
func (c *nodes) Total(ctx context.Context, table, column string) (int64, error) {
	t, err := c.table(ctx, table)
	if err != nil {
		return 0, err
	}
	var total int64
	for _, seg := range c.copies(t) {
		n, err := query(ctx, c, seg, pgx.RowTo[int64],
			"select coalesce(sum("+pgx.Identifier{column}.Sanitize()+"), 0)::int8 from "+t.sql())
		if err != nil {
			return 0, err
		}
		total += n[0]
	}
	return total, nil
}

// Count counts the rows of a table; of a replicated table, of one copy.
func (c *nodes) Count(ctx context.Context, table string) (int64, error) {
	t, err := c.table(ctx, table)
	if err != nil {
		return 0, err
	}
	d, err := c.digest(ctx, t, nil, c.copies(t))
	return d.rows, err
}

// digest is a multiset of rows as its size and two sums of 64-bit hashes.
type digest struct {
	rows int64
	a, b string // sums in decimal
}

// digest sums over the segments; columns nil counts only.
func (c *nodes) digest(ctx context.Context, t *tableInfo, columns []string, segs []dtx.Content) (digest, error) {
	sql := "select count(*), '0', '0' from " + t.sql()
	if columns != nil {
		sql = `select count(*), coalesce(sum(hashtextextended(r, 0)::numeric), 0)::text, coalesce(sum(hashtextextended(r, 1)::numeric), 0)::text
		         from (select ` + rowExpr(columns) + " as r from " + t.sql() + " t) x"
	}
	var g errgroup.Group
	g.SetLimit(2)
	parts := make([]digest, len(segs))
	for i, seg := range segs {
		g.Go(func() error {
			out, err := query(ctx, c, seg, func(r pgx.CollectableRow) (d digest, err error) {
				return d, r.Scan(&d.rows, &d.a, &d.b)
			}, sql)
			if err == nil {
				parts[i] = out[0]
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return digest{}, err
	}
	var total digest
	a, b, n := new(big.Int), new(big.Int), new(big.Int)
	for _, p := range parts {
		total.rows += p.rows
		if v, ok := n.SetString(p.a, 10); ok {
			a.Add(a, v)
		}
		if v, ok := n.SetString(p.b, 10); ok {
			b.Add(b, v)
		}
	}
	total.a, total.b = a.String(), b.String()
	return total, nil
}

// VerifyPlacement counts the rows that stand where the table's policy does not
// put them: on another segment than their key's, on a segment beyond the
// policy's, or on the coordinator. Of a replicated table it counts the copies
// that differ from the first.
func (c *nodes) VerifyPlacement(ctx context.Context, table string) (misplaced int64, err error) {
	t, err := c.table(ctx, table)
	if err != nil {
		return 0, err
	}
	onCoordinator, err := c.digest(ctx, t, nil, []dtx.Content{dtx.Coordinator})
	if err != nil {
		return 0, err
	}
	misplaced = onCoordinator.rows
	var first digest
	for _, seg := range c.segmentContents() {
		var n int64
		switch {
		case int(seg) >= t.policy.NumSegments:
			d, derr := c.digest(ctx, t, nil, []dtx.Content{seg})
			n, err = d.rows, derr
		case t.policy.Kind == router.Hash:
			n, err = c.strangers(ctx, t, seg)
		case t.policy.Kind == router.Replicated:
			var d digest
			if d, err = c.digest(ctx, t, t.columns(), []dtx.Content{seg}); seg == 0 {
				first = d
			} else if d != first {
				n = 1
			}
		}
		if err != nil {
			return 0, err
		}
		misplaced += n
	}
	return misplaced, nil
}

// strangers counts the rows on a segment whose key belongs to another.
func (c *nodes) strangers(ctx context.Context, t *tableInfo, seg dtx.Content) (int64, error) {
	s, err := c.session(ctx, seg)
	if err != nil {
		return 0, err
	}
	defer s.release()
	// Values as the server prints them, which a cast to text would not always give.
	rr := s.PgConn().ExecParams(ctx, "select "+columnList(t, t.key)+" from "+t.sql(), nil, nil, nil, nil)
	var n int64
	for rr.NextRow() {
		at, rerr := t.router.Segment(rr.Values())
		if rerr != nil {
			_, _ = rr.Close()
			return 0, rerr
		}
		if at != seg {
			n++
		}
	}
	_, err = rr.Close()
	return n, nodeErr("verify placement", seg, err)
}

// Report compares two clusters table by table.
type Report struct {
	Tables []TableReport
}

// TableReport compares one table of a source with the target's.
type TableReport struct {
	Table                  string
	SourceRows, TargetRows int64
	// Missing rows stand on the source only, Extra rows on the target only.
	Missing, Extra int64
	// Misplaced is VerifyPlacement of the target.
	Misplaced int64
	// Examples show up to five missing (-) and extra (+) rows. They hold row
	// values: they are for tests, not for logs.
	Examples []string
}

// OK reports whether the tables hold the same rows in the right places.
func (r TableReport) OK() bool { return r.Missing == 0 && r.Extra == 0 && r.Misplaced == 0 }

// OK reports whether all tables do.
func (r Report) OK() bool {
	return !slices.ContainsFunc(r.Tables, func(t TableReport) bool { return !t.OK() })
}

// String prints one line per table, without row values.
func (r Report) String() string {
	var b strings.Builder
	for _, t := range r.Tables {
		verdict := "same rows, right places"
		if !t.OK() {
			verdict = fmt.Sprintf("DIFFERENT: %d missing, %d extra, %d misplaced", t.Missing, t.Extra, t.Misplaced)
		}
		fmt.Fprintf(&b, "%-24s %10d source rows %10d target rows  %s\n", t.Table, t.SourceRows, t.TargetRows, verdict)
	}
	return b.String()
}

// Compare compares tables of the source with those of the same name on the
// target, by the source's columns, and verifies the target's placement. Without
// tables it takes every table with a policy on the source. Nothing may write
// meanwhile.
func Compare(ctx context.Context, src *Source, dst *TargetCluster, tables ...string) (Report, error) {
	var rep Report
	if len(tables) == 0 {
		var err error
		if tables, err = src.Tables(ctx); err != nil {
			return rep, err
		}
		if len(tables) == 0 {
			return rep, opErr("compare", errors.New("the source has no table with a distribution policy"))
		}
	}
	for _, name := range tables {
		r, err := compareTable(ctx, src.nodes, dst.nodes, name)
		if err != nil {
			return rep, err
		}
		rep.Tables = append(rep.Tables, r)
	}
	return rep, nil
}

func compareTable(ctx context.Context, src, dst *nodes, name string) (TableReport, error) {
	r := TableReport{Table: name}
	st, err := src.table(ctx, name)
	if err != nil {
		return r, err
	}
	dt, err := dst.table(ctx, name)
	if err != nil {
		return r, err
	}
	columns := st.columns()
	sd, err := src.digest(ctx, st, columns, src.copies(st))
	if err != nil {
		return r, err
	}
	dd, err := dst.digest(ctx, dt, columns, dst.copies(dt))
	if err != nil {
		return r, err
	}
	r.SourceRows, r.TargetRows = sd.rows, dd.rows
	if r.Misplaced, err = dst.VerifyPlacement(ctx, name); err != nil {
		return r, err
	}
	if sd == dd {
		return r, nil
	}
	a, err := src.RowsOf(ctx, name, columns...)
	if err != nil {
		return r, err
	}
	b, err := dst.RowsOf(ctx, name, columns...)
	if err != nil {
		return r, err
	}
	r.diff(a, b)
	return r, nil
}

// diff compares two sorted multisets.
func (r *TableReport) diff(a, b []string) {
	example := func(sign, row string) {
		if len(r.Examples) < 5 {
			r.Examples = append(r.Examples, sign+row)
		}
	}
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0] < b[0]:
			r.Missing++
			example("-", a[0])
			a = a[1:]
		case len(a) == 0 || b[0] < a[0]:
			r.Extra++
			example("+", b[0])
			b = b[1:]
		default:
			a, b = a[1:], b[1:]
		}
	}
}
