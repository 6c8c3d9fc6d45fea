package source

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"cbrepl/catalog"
	"cbrepl/check"
	"cbrepl/dtx"
	"cbrepl/source/stream/repl"
)

// Sequence is a sequence that a column of a published table owns, by serial types or
// GENERATED AS IDENTITY.
type Sequence struct {
	Table  catalog.Name
	Column string
	// Last is the value it stands at, of all nodes that which is farthest; Called
	// reports that it was given out.
	Last   int64
	Called bool

	increment int64
}

// sequencesSQL lists owned sequences of all tables.
const sequencesSQL = `SELECT n.nspname, c.relname, a.attname, sn.nspname, s.relname, q.seqincrement
 FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
 JOIN pg_namespace sn ON sn.oid = s.relnamespace JOIN pg_sequence q ON q.seqrelid = s.oid
 JOIN pg_class c ON c.oid = d.refobjid JOIN pg_namespace n ON n.oid = c.relnamespace
 JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.refobjsubid
 WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
 ORDER BY 1, 2, 3`

// ReadSequences reads the sequences that published columns of the tables own.
// Nodes have sequences of their own, of which some are never used.
func ReadSequences(ctx context.Context, cfg Config, tables []catalog.PublishedTable) ([]Sequence, error) {
	cfg.EnsureDefaults()
	published := map[catalog.Name]*catalog.PublishedTable{}
	for i := range tables {
		published[tables[i].QualifiedName()] = &tables[i]
	}
	var out []Sequence
	for _, n := range cfg.Nodes {
		found, err := readSequences(ctx, n, published)
		if err != nil {
			return nil, repl.Fault("read sequences", n.Content, "", "", err)
		}
		for _, s := range found {
			i := slices.IndexFunc(out, func(o Sequence) bool { return o.Table == s.Table && o.Column == s.Column })
			switch {
			case i < 0:
				out = append(out, s)
			case s.Called && (!out[i].Called || (s.Last > out[i].Last) == (s.increment > 0)):
				out[i] = s
			}
		}
	}
	return out, nil
}

func readSequences(ctx context.Context, n Node, published map[catalog.Name]*catalog.PublishedTable) ([]Sequence, error) {
	conn, err := connect(ctx, n)
	if err != nil {
		return nil, err
	}
	defer closeConn(conn)
	rows, err := conn.Query(ctx, sequencesSQL)
	if err != nil {
		return nil, err
	}
	var out []Sequence
	var names []catalog.Name
	var s Sequence
	var name catalog.Name
	_, err = pgx.ForEachRow(rows, []any{&s.Table.Schema, &s.Table.Table, &s.Column, &name.Schema, &name.Table, &s.increment}, func() error {
		if t := published[s.Table]; t != nil && t.HasColumn(s.Column) {
			out, names = append(out, s), append(names, name)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		err := conn.QueryRow(ctx, "SELECT last_value, is_called FROM "+pgx.Identifier{name.Schema, name.Table}.Sanitize()).Scan(&out[i].Last, &out[i].Called)
		if err != nil {
			return nil, fmt.Errorf("sequence %s: %w", name, err)
		}
	}
	return out, nil
}

// MissingSlots lists the nodes without the slot.
func MissingSlots(ctx context.Context, cfg Config) ([]dtx.Content, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	var out []dtx.Content
	var ps check.Findings
	for _, n := range cfg.Nodes {
		c, err := repl.Connect(ctx, cfg.repl(n))
		if err != nil {
			ps = append(ps, findingOf(n.Content, err))
			continue
		}
		_, ok, err := c.Slot(ctx, cfg.Slot)
		c.Close()
		switch {
		case err != nil:
			ps = append(ps, findingOf(n.Content, err))
		case !ok:
			out = append(out, n.Content)
		}
	}
	return out, ps.Err("check source")
}
