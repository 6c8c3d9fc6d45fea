package source

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"cbrepl/catalog"
	"cbrepl/check"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/router"
)

// describeTables says of every published table what identifies its rows and how it
// is distributed, and which changes of it cannot be replicated.
func describeTables(f *Facts) check.Findings {
	var fs check.Findings
	policies := map[string]router.Policy{}
	for i := range f.Tables {
		policies[f.Tables[i].String()] = f.Tables[i].Policy
	}
	for i := range f.Nodes[0].tables {
		t := &f.Nodes[0].tables[i]
		add := func(l check.Level, format string, args ...any) *check.Finding {
			fs = append(fs, check.Finding{Level: l, Relation: t.String(), Found: fmt.Sprintf(format, args...)})
			return &fs[len(fs)-1]
		}
		if len(t.noIdentity) > 0 {
			n := add(check.Warning, "an UPDATE or DELETE of it fails, or stops the subscription: %s", noIdentityText(t))
			n.Remedy, n.Everywhere = "Give it a primary key, or let the whole row identify it", !f.Nodes[0].cluster
			if f.Nodes[0].cluster {
				n.Content = dtx.AtContent(dtx.Coordinator)
			}
			for _, part := range t.noIdentity {
				n.SQL = append(n.SQL, "ALTER TABLE "+part+" REPLICA IDENTITY FULL")
			}
		}
		if p, ok := policies[t.String()]; ok {
			add(check.OK, "%s; %s", identityText(t), policyText(&p))
		}
	}
	return fs
}

func noIdentityText(t *nodeTable) string {
	if len(t.noIdentity) == 1 && t.noIdentity[0] == t.sqlName() {
		return "it has no replica identity"
	}
	return "its partitions " + strings.Join(t.noIdentity, ", ") + " have no replica identity"
}

func identityText(t *nodeTable) string {
	switch key := t.keyColumns(); {
	case t.Identity == pgoutput.IdentityFull:
		return "the whole row identifies it"
	case len(key) == 0:
		return "nothing identifies its rows"
	case t.Identity == pgoutput.IdentityIndex:
		return "a unique index identifies its rows (" + strings.Join(key, ", ") + ")"
	default:
		return "its primary key identifies its rows (" + strings.Join(key, ", ") + ")"
	}
}

func policyText(p *router.Policy) string {
	switch p.Kind {
	case router.Replicated:
		return fmt.Sprintf("replicated to %d segments", p.NumSegments)
	case router.Random:
		return fmt.Sprintf("distributed randomly over %d segments", p.NumSegments)
	}
	names := make([]string, len(p.Columns))
	for i, c := range p.Columns {
		names[i] = pgx.Identifier{c.Name}.Sanitize()
	}
	return fmt.Sprintf("distributed by (%s) over %d segments", strings.Join(names, ", "), p.NumSegments)
}

// sqlName is the table's name in SQL.
func (t *nodeTable) sqlName() string { return pgx.Identifier{t.Schema, t.Name}.Sanitize() }

// keyColumns are the columns of the replica identity, quoted.
func (t *nodeTable) keyColumns() []string {
	var out []string
	for _, c := range t.Columns {
		if c.Key {
			out = append(out, pgx.Identifier{c.Name}.Sanitize())
		}
	}
	return out
}

// noIdentitySQL lists a partitioned table's partitions whose rows no replica identity
// names.
const noIdentitySQL = `SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid IN (SELECT relid FROM pg_partition_tree($1::oid::regclass) WHERE isleaf)
 AND NOT CASE c.relreplident WHEN 'f' THEN true
   WHEN 'd' THEN EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
   WHEN 'i' THEN EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident) ELSE false END
 ORDER BY 1`

// readNoIdentity finds tables whose rows nothing identifies.
func (p *probe) readNoIdentity(ctx context.Context, conn *pgx.Conn) error {
	for i := range p.facts.tables {
		t := &p.facts.tables[i]
		if !t.partitioned {
			if !t.identified() {
				t.noIdentity = []string{t.sqlName()}
			}
			continue
		}
		rows, err := conn.Query(ctx, noIdentitySQL, t.oid)
		if err != nil {
			return err
		}
		if t.noIdentity, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			return err
		}
	}
	return nil
}

// leftOutTablesSQL lists ordinary tables that a publication FOR ALL TABLES leaves out.
const leftOutTablesSQL = `SELECT n.nspname, c.relname, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE (c.relkind = 'r' AND c.relpersistence = 'u' OR c.relkind = 'f') AND c.oid >= 16384 AND n.nspname <> $1 ORDER BY 1, 2`

// leftOutTables warns of tables that FOR ALL TABLES does not mean.
func (p *probe) leftOutTables(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, leftOutTablesSQL, policySchema)
	if err != nil {
		return err
	}
	var name catalog.Name
	var kind string
	_, err = pgx.ForEachRow(rows, []any{&name.Schema, &name.Table, &kind}, func() error {
		f := check.Finding{
			Level: check.Warning, Relation: name.String(),
			Found:  "it is a foreign table, which a publication FOR ALL TABLES leaves out: it is not replicated",
			Remedy: "Create it on the target, too, if it is needed there",
		}
		if kind == "r" {
			f.Found = "it is unlogged, so a publication FOR ALL TABLES leaves it out: it is not replicated"
			f.Remedy, f.Everywhere = "If it is to be replicated", !p.facts.cluster
			f.SQL = []string{"ALTER TABLE " + pgx.Identifier{name.Schema, name.Table}.Sanitize() + " SET LOGGED"}
		}
		p.add(f)
		return nil
	})
	return err
}
