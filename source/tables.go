package source

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"cbrepl/pgoutput"
)

// policySchema holds cbrepl's own tables on a source.
const policySchema = "cbrepl"

// publishedTable is a table as one node publishes it.
type publishedTable struct {
	Table
	oid uint32
	// digest covers column names, types and identity: it is equal on all nodes.
	digest string
	// primaryKey is the key in key order.
	primaryKey []string
}

// publishedSQL reads what the publication holds, columns as JSON. attnames and
// rowfilter came with version 15.
const publishedSQL = `SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relreplident::text,
 CASE WHEN c.relispartition THEN (SELECT rn.nspname || '.' || r.relname
   FROM pg_class r JOIN pg_namespace rn ON rn.oid = r.relnamespace WHERE r.oid = pg_partition_root(c.oid)) ELSE '' END,
 coalesce(to_jsonb(pt)->'attnames', 'null')::text, coalesce(to_jsonb(pt)->>'rowfilter', '') <> '',
 (SELECT coalesce(jsonb_agg(jsonb_build_object('name', a.attname, 'oid', a.atttypid::bigint,
     'type', format_type(a.atttypid, a.atttypmod), 'generated', a.attgenerated <> '',
     'key', coalesce(a.attnum = ANY (k.indkey::int2[]), c.relreplident = 'f'),
     'pk', coalesce(array_position(pk.indkey::int2[], a.attnum), -1)) ORDER BY a.attnum), '[]')
   FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)::text
 FROM pg_publication_tables pt
 JOIN pg_namespace n ON n.nspname = pt.schemaname
 JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = pt.tablename
 LEFT JOIN pg_index pk ON pk.indrelid = c.oid AND pk.indisprimary
 LEFT JOIN pg_index k ON k.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN k.indisprimary WHEN 'i' THEN k.indisreplident ELSE false END
 WHERE pt.pubname = $1 ORDER BY n.nspname, c.relname`

// storageSQL finds published tables, and partitions of published ones, that the
// server does not decode: anything but heap tables.
const storageSQL = `SELECT DISTINCT n.nspname || '.' || c.relname, c.relkind::text, coalesce(am.amname, '')
 FROM pg_publication_tables pt
 JOIN pg_namespace pn ON pn.nspname = pt.schemaname
 JOIN pg_class p ON p.relnamespace = pn.oid AND p.relname = pt.tablename
 CROSS JOIN LATERAL (SELECT p.oid AS leaf WHERE p.relkind <> 'p'
   UNION SELECT relid FROM pg_partition_tree(p.oid) WHERE isleaf AND p.relkind = 'p') l
 JOIN pg_class c ON c.oid = l.leaf
 JOIN pg_namespace n ON n.oid = c.relnamespace
 LEFT JOIN pg_am am ON am.oid = c.relam
 WHERE pt.pubname = $1 AND (c.relkind NOT IN ('r', 'p') OR coalesce(am.amname, '') <> 'heap' AND c.relkind = 'r')
 ORDER BY 1`

type columnJSON struct {
	Name      string `json:"name"`
	OID       uint32 `json:"oid"`
	Type      string `json:"type"`
	Generated bool   `json:"generated"`
	Key       bool   `json:"key"`
	PK        int    `json:"pk"`
}

// published reads the node's published tables.
func (p *probe) published(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, publishedSQL, p.cfg.Publication)
	if err != nil {
		return err
	}
	p.facts.tables, err = pgx.CollectRows(rows, scanTable)
	if err != nil {
		return err
	}
	p.facts.tables = slices.DeleteFunc(p.facts.tables, func(t publishedTable) bool { return t.Schema == policySchema })
	return p.storage(ctx, conn)
}

func scanTable(row pgx.CollectableRow) (publishedTable, error) {
	var t publishedTable
	var kind, ident, list, cols string
	if err := row.Scan(&t.oid, &t.Schema, &t.Name, &kind, &ident, &t.Root, &list, &t.RowFilter, &cols); err != nil {
		return t, err
	}
	t.Identity = pgoutput.ReplicaIdentity(ident[0])
	var all []columnJSON
	if err := json.Unmarshal([]byte(cols), &all); err != nil {
		return t, fmt.Errorf("columns of %s: %w", t.String(), err)
	}
	var names []string // published, nil: all
	if err := json.Unmarshal([]byte(list), &names); err != nil {
		return t, fmt.Errorf("column list of %s: %w", t.String(), err)
	}
	var digest []string
	pk := map[int]string{}
	for _, c := range all {
		if c.PK >= 0 {
			pk[c.PK] = c.Name
		}
		if names != nil && !c.Generated && !slices.Contains(names, c.Name) {
			t.ColumnList = true
			continue
		}
		t.Columns = append(t.Columns, Column{
			Name: c.Name, TypeOID: c.OID, TypeName: c.Type, Key: c.Key, PrimaryKey: c.PK >= 0, Generated: c.Generated,
		})
		digest = append(digest, c.Name+" "+c.Type)
	}
	for _, i := range slices.Sorted(maps.Keys(pk)) {
		t.primaryKey = append(t.primaryKey, pk[i])
	}
	slices.Sort(digest) // columns may stand in another order on another node
	t.digest = strings.Join(digest, ", ") + "; replica identity " + identityName(t.Identity)
	return t, nil
}

func identityName(i pgoutput.ReplicaIdentity) string {
	switch i {
	case pgoutput.IdentityDefault:
		return "default"
	case pgoutput.IdentityNothing:
		return "nothing"
	case pgoutput.IdentityFull:
		return "full"
	case pgoutput.IdentityIndex:
		return "index"
	}
	return string(byte(i))
}

// storage refuses tables whose changes the server leaves out of the stream.
func (p *probe) storage(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, storageSQL, p.cfg.Publication)
	if err != nil {
		return err
	}
	var name, kind, am string
	pub := pgx.Identifier{p.cfg.Publication}.Sanitize()
	_, err = pgx.ForEachRow(rows, []any{&name, &kind, &am}, func() error {
		what := "storage " + am
		switch {
		case kind == "f":
			what = "a foreign or external table"
		case strings.HasPrefix(am, "ao_"):
			what = "append-optimized (" + am + ")"
		}
		p.add(Problem{
			Relation: name,
			Found:    fmt.Sprintf("it is %s, which the server does not decode: its changes would be missing on the target, not late", what),
			Remedy:   fmt.Sprintf("Take it (or the partitioned table it belongs to) out of publication %s on every node, or store it as heap", pub),
		})
		return nil
	})
	return err
}

// compareTables: every node publishes the same tables with the same columns.
// The coordinator's are the measure.
func compareTables(f *Facts) Problems {
	var ps Problems
	want := map[string]*publishedTable{}
	coordinator := &f.Nodes[0]
	for i := range coordinator.tables {
		t := &coordinator.tables[i]
		want[t.String()] = t
	}
	for _, n := range f.Nodes[1:] {
		add := func(table, found, remedy string) {
			ps = append(ps, Problem{Content: n.Content, HasContent: true, Relation: table, Found: found, Remedy: remedy})
		}
		have := map[string]bool{}
		for _, t := range n.tables {
			have[t.String()] = true
			switch w := want[t.String()]; {
			case w == nil:
				add(t.String(), "it is published here, but not on the coordinator",
					"Publish the same tables on every node")
			case w.digest != t.digest:
				add(t.String(), fmt.Sprintf("it differs from the coordinator's: here (%s), there (%s)", t.digest, w.digest),
					"Give the table the same published columns and replica identity on every node")
			}
		}
		for _, t := range coordinator.tables {
			if !have[t.String()] {
				add(t.String(), "it is published on the coordinator, but not here",
					"Publish the same tables on every node")
			}
		}
	}
	return ps
}
