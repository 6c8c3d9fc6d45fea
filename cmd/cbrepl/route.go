package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"cbrepl/dtx"
	"cbrepl/router"
	"cbrepl/source"
)

// envRouteDSN names the connection string for --table: arguments are visible to
// other users of the machine.
const envRouteDSN = "CBREPL_ROUTE_DSN"

const routeLong = `Show on which segment a row lives, and how its hash comes about.

The distribution key is described by one --type per column, in key order, or read
from a server's catalogue by --table. Values are given by one --key per column, as
text in the form the server prints it (DateStyle ISO); times without an offset are
UTC, and \N is NULL. More values than columns make more rows.

Type names are those of SQL or of pg_type; the bare word char is the one-byte type
"char" of pg_type, char(n) and character are the blank-padded type. --opclass takes
default, cdbhash (the legacy class of the type) or the name of an operator class.

--vectors checks a file of placements (one JSON object a line: types, opclass, key,
segment, hash) against the router. It prints every mismatch and every line that it
cannot check, and ends with exit code 1 if there are any.`

const routeExample = `  cbrepl route --type int8 --key 42 --segments 2,3
  cbrepl route --type text --opclass cdbhash --type int4 --opclass cdbhash --key abc --key 7 --segments 1-8
  CBREPL_ROUTE_DSN='host=cdw dbname=sales' cbrepl route --table public.orders --key 42
  cbrepl route --vectors placements.jsonl`

// routeFlags are the options of cbrepl route.
type routeFlags struct {
	types, opclasses, keys []string
	segments, null         string
	table, dsn, vectors    string
}

func newRouteCmd() *cobra.Command {
	var f routeFlags
	cmd := &cobra.Command{
		Use:     "route (--type TYPE... | --table NAME) --key VALUE... | --vectors FILE",
		Short:   "Show on which segment a row lives and why",
		Long:    routeLong,
		Example: routeExample,
		Args:    cobra.NoArgs,
	}
	fl := cmd.Flags()
	fl.StringArrayVar(&f.types, "type", nil, "SQL `type` of a key column, in key order")
	fl.StringArrayVar(&f.opclasses, "opclass", nil, "hash operator `class` of each column; without any: default")
	fl.StringArrayVar(&f.keys, "key", nil, "`value` of a key column, in key order")
	fl.StringVar(&f.null, "null", `\N`, "`text` of --key that stands for NULL")
	fl.StringVar(&f.segments, "segments", "", "numbers of segments to route for, such as 2,3 or 1-8; default with --table: the table's own")
	fl.StringVar(&f.table, "table", "", "read the policy of `schema.table` from a server")
	fl.StringVar(&f.dsn, "dsn", "", "connection `string` of the server for --table, without password; default $"+envRouteDSN)
	fl.StringVar(&f.vectors, "vectors", "", "check the placements in `FILE`, - for standard input")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.vectors != "" {
			if f.table != "" || len(f.types)+len(f.keys)+len(f.opclasses) > 0 {
				return usagef("--vectors stands alone: the file holds types, classes and keys")
			}
			return f.checkVectors(cmd.InOrStdin(), cmd.OutOrStdout())
		}
		return f.explain(cmd.Context(), cmd.OutOrStdout())
	}
	return cmd
}

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// policy is the policy on the command line, or the table's.
func (f *routeFlags) policy(ctx context.Context) (router.Policy, error) {
	switch {
	case f.table != "" && len(f.types) > 0:
		return router.Policy{}, usagef("give either --table or --type")
	case f.table != "" && len(f.opclasses) > 0:
		return router.Policy{}, usagef("--opclass goes with --type: the classes of a table are read from the server")
	case f.table != "":
		return f.tablePolicy(ctx)
	case f.dsn != "":
		return router.Policy{}, usagef("--dsn goes with --table")
	case len(f.types) == 0:
		return router.Policy{}, usagef("give the key's types by --type, a table by --table, or a file by --vectors")
	case len(f.opclasses) > 0 && len(f.opclasses) != len(f.types):
		return router.Policy{}, usagef("%d operator classes for %d types: give one per type, or none", len(f.opclasses), len(f.types))
	}
	p := router.Policy{Kind: router.Hash, NumSegments: 1}
	for i, name := range f.types {
		t, err := router.ParseType(name)
		if err != nil {
			return p, &usageError{err}
		}
		word := "default"
		if len(f.opclasses) > 0 {
			word = f.opclasses[i]
		}
		opclass, err := router.NamedOpclass(t, word)
		if err != nil {
			return p, &usageError{err}
		}
		p.Columns = append(p.Columns, router.Column{Name: strconv.Itoa(i + 1), Type: t, Opclass: opclass})
	}
	return p, nil
}

// tablePolicy reads a table's policy from a server.
func (f *routeFlags) tablePolicy(ctx context.Context) (router.Policy, error) {
	dsn := f.dsn
	if dsn == "" {
		dsn = os.Getenv(envRouteDSN)
	} else if c, err := pgx.ParseConfig(dsn); err == nil && c.Password != "" && os.Getenv("PGPASSWORD") == "" && strings.Contains(dsn, c.Password) {
		return router.Policy{}, usagef("--dsn holds a password, which other users of this machine can see: set $%s, $PGPASSWORD or a password file instead", envRouteDSN)
	}
	if dsn == "" {
		return router.Policy{}, usagef("--table needs a server: give --dsn or set $%s", envRouteDSN)
	}
	return source.ReadPolicy(ctx, dsn, f.table)
}

// explain prints how the rows on the command line are routed.
func (f *routeFlags) explain(ctx context.Context, out io.Writer) error {
	p, err := f.policy(ctx)
	if err != nil {
		return err
	}
	sizes := []int{p.NumSegments}
	if f.segments != "" {
		if sizes, err = parseSegments(f.segments); err != nil {
			return &usageError{err}
		}
	} else if f.table == "" {
		return usagef("give the numbers of segments by --segments")
	}
	p.AssumeUTC = true
	r, err := router.New(p)
	if err != nil {
		return f.atTable(err)
	}
	if f.table != "" {
		if _, err := fmt.Fprintf(out, "table %s: %s\n", f.table, p); err != nil {
			return err
		}
	}
	switch p.Kind {
	case router.Replicated:
		_, err := fmt.Fprintln(out, "every segment has every row")
		return err
	case router.Random:
		return f.explainRandom(p, sizes, out)
	}
	rows, err := f.rows(len(p.Columns))
	if err != nil {
		return err
	}
	var es []*router.Explanation
	for _, row := range rows {
		e, err := r.Explain(row)
		if err != nil {
			return f.atTable(err)
		}
		es = append(es, e)
	}
	return printExplanations(out, es, sizes)
}

// atTable names the table of --table in an error.
func (f *routeFlags) atTable(err error) error {
	if f.table == "" {
		return err
	}
	return dtx.AtRelation(err, f.table)
}

// explainRandom places one row by its identity: on a random-policy table all
// values make one identity.
func (f *routeFlags) explainRandom(p router.Policy, sizes []int, out io.Writer) error {
	rows, err := f.rows(len(f.keys))
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "any segment will do; cbrepl takes the one that the row's identity names")
	fmt.Fprintln(w, "segments\tsegment")
	for _, n := range sizes {
		p.NumSegments = n
		r, err := router.New(p)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%d\t%d\n", n, r.SegmentOfIdentity(rows[0]))
	}
	return w.Flush()
}

// rows cuts the values of --key into rows of n columns.
func (f *routeFlags) rows(n int) ([][][]byte, error) {
	if len(f.keys) == 0 || len(f.keys)%max(n, 1) != 0 {
		return nil, usagef("the key has %d columns and %d values were given by --key", n, len(f.keys))
	}
	var rows [][][]byte
	for i, k := range f.keys {
		if i%n == 0 {
			rows = append(rows, nil)
		}
		var v []byte
		if k != f.null {
			v = []byte(k)
			if len(f.types) > 0 {
				var err error
				if v, err = router.StoredText(f.types[i%n], k); err != nil {
					return nil, &usageError{err}
				}
			}
		}
		last := &rows[len(rows)-1]
		*last = append(*last, v)
	}
	return rows, nil
}

// printExplanations prints one row with every step, several as a table.
func printExplanations(out io.Writer, es []*router.Explanation, sizes []int) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	how := "jump consistent hash of the row hash"
	if es[0].Legacy {
		how = "remainder of the row hash"
	}
	if len(es) > 1 {
		fmt.Fprint(w, "row\thash")
		for _, n := range sizes {
			fmt.Fprintf(w, "\tof %d", n)
		}
		fmt.Fprintln(w)
		for i, e := range es {
			fmt.Fprintf(w, "%d\t%s", i+1, hashText(e.Folded))
			for _, n := range sizes {
				fmt.Fprintf(w, "\t%d", e.Segment(n))
			}
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w, "segment = "+how)
		return w.Flush()
	}
	e := es[0]
	fmt.Fprintln(w, "column\ttype\tfamily\thash\trow hash so far")
	for _, c := range e.Columns {
		family, hash := "default", hashText(c.Hash)
		if c.Legacy {
			family = "legacy"
		}
		if c.Null {
			hash = "NULL"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", c.Name, c.Type, family, hash, hashText(c.Folded))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "segments\tsegment\t(%s)\n", how)
	for _, n := range sizes {
		fmt.Fprintf(w, "%d\t%d\t\n", n, e.Segment(n))
	}
	return w.Flush()
}

func hashText(h uint32) string { return fmt.Sprintf("%d (0x%08x)", h, h) }

// parseSegments reads "2,3" and "1-8".
func parseSegments(list string) ([]int, error) {
	var out []int
	for part := range strings.SplitSeq(list, ",") {
		lo, hi, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			hi = lo
		}
		a, err1 := strconv.Atoi(lo)
		b, err2 := strconv.Atoi(hi)
		if errors.Join(err1, err2) != nil || a < 1 || b < a || b > router.MaxSegments {
			return nil, fmt.Errorf("--segments %q: want numbers from 1 to %d, such as 2,3 or 1-8", list, router.MaxSegments)
		}
		for n := a; n <= b; n++ {
			out = append(out, n)
		}
	}
	return out, nil
}

// maxVectorLine bounds a line of a vector file, in bytes.
const maxVectorLine = 64 << 20

// checkVectors checks a file of placements against the router.
func (f *routeFlags) checkVectors(in io.Reader, out io.Writer) error {
	if f.vectors != "-" {
		file, err := os.Open(f.vectors)
		if err != nil {
			return err
		}
		defer file.Close()
		in = file
	}
	w := bufio.NewWriter(out)
	sc := bufio.NewScanner(in)
	sc.Buffer(make([]byte, 64<<10), maxVectorLine)
	var total router.VectorResult
	line, vectors, mismatches, unchecked := 0, 0, 0, 0
	for sc.Scan() {
		line++
		if len(strings.TrimSpace(sc.Text())) == 0 {
			continue
		}
		vectors++
		v, err := router.ParseVector(sc.Bytes())
		var res router.VectorResult
		if err == nil {
			res, err = v.Check()
		}
		if err != nil {
			unchecked++
			fmt.Fprintf(w, "line %d: not checked: %v\n", line, err)
			continue
		}
		total.Placements += res.Placements
		total.Hashes += res.Hashes
		for _, m := range res.Mismatches {
			mismatches++
			what := "hash"
			if m.NumSegments > 0 {
				what = fmt.Sprintf("segment of %d", m.NumSegments)
			}
			fmt.Fprintf(w, "line %d: key %s: %s: expected %d, computed %d\n", line, keyText(v), what, m.Expected, m.Computed)
		}
	}
	if err := sc.Err(); err != nil {
		return fmt.Errorf("line %d: %w", line+1, err)
	}
	fmt.Fprintf(w, "%d vectors: %d placements and %d hashes compared, %d mismatches, %d lines not checked\n",
		vectors, total.Placements, total.Hashes, mismatches, unchecked)
	if err := w.Flush(); err != nil {
		return err
	}
	switch {
	case vectors == 0:
		return errors.New("the file holds no vector")
	case mismatches+unchecked > 0:
		return &codedError{code: exitFault}
	}
	return nil
}

// keyText prints a vector's key: (abc, NULL, 5).
func keyText(v *router.Vector) string {
	parts := make([]string, len(v.Key))
	for i, k := range v.Key {
		parts[i] = "NULL"
		if k != nil {
			parts[i] = strconv.Quote(*k)
		}
	}
	return "(" + strings.Join(parts, ", ") + ")"
}
