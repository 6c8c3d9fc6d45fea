package source

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"cbrepl/catalog"
	"cbrepl/check"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/router"
)

// policySchema holds cbrepl's own tables on a source.
const policySchema = "cbrepl"

// publishedTable is a table as one node publishes it.
type nodeTable struct {
	catalog.PublishedTable
	oid uint32
	// primaryKey is the key in key order.
	primaryKey []string
	// hidden are columns that are not replicated: left out by the publication's
	// column list, or generated.
	hidden      []string
	rowFilter   string
	partitioned bool // published by its root
	// noIdentity names, as SQL does, the table or those of its partitions whose rows
	// no replica identity names.
	noIdentity []string
}

// publishedSQL reads what the publication holds, columns as JSON. attnames and
// rowfilter came with version 15.
const publishedSQL = `SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relreplident::text,
 CASE WHEN c.relispartition THEN (SELECT rn.nspname || '.' || r.relname
   FROM pg_class r JOIN pg_namespace rn ON rn.oid = r.relnamespace WHERE r.oid = pg_partition_root(c.oid)) ELSE '' END,
 coalesce(to_jsonb(pt)->'attnames', 'null')::text, coalesce(to_jsonb(pt)->>'rowfilter', ''),
 EXISTS (SELECT FROM pg_constraint x WHERE x.condeferrable AND x.contype IN ('p', 'u', 'x')
   AND (x.conrelid = c.oid OR x.conrelid IN (SELECT relid FROM pg_partition_tree(c.oid)))),
 (SELECT coalesce(jsonb_agg(jsonb_build_object('name', a.attname, 'oid', a.atttypid::bigint,
     'type', format_type(a.atttypid, a.atttypmod), 'generated', a.attgenerated <> '',
     'key', coalesce(a.attnum = ANY (k.indkey::int2[]), c.relreplident = 'f'),
     'pk', coalesce(array_position(pk.indkey::int2[], a.attnum), -1)) ORDER BY a.attnum), '[]')
   FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)::text,
 (SELECT coalesce(json_agg(ARRAY(SELECT a.attname::text FROM unnest((u.indkey::int2[])[0:u.indnkeyatts - 1]) k(n)
     JOIN pg_attribute a ON a.attrelid = u.indrelid AND a.attnum = k.n)), '[]')
   FROM pg_index u WHERE u.indrelid = c.oid AND u.indisunique AND u.indisvalid AND u.indpred IS NULL AND u.indexprs IS NULL)::text
 FROM pg_publication_tables pt
 JOIN pg_namespace n ON n.nspname = pt.schemaname
 JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = pt.tablename
 LEFT JOIN pg_index pk ON pk.indrelid = c.oid AND pk.indisprimary
 LEFT JOIN pg_index k ON k.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN k.indisprimary WHEN 'i' THEN k.indisreplident ELSE false END
 WHERE pt.pubname = $1 ORDER BY n.nspname, c.relname`

// publishedLeavesSQL lists published tables, of partitioned ones their
// partitions.
const publishedLeavesSQL = `SELECT l.leaf AS oid FROM pg_publication_tables pt
 JOIN pg_namespace pn ON pn.nspname = pt.schemaname
 JOIN pg_class p ON p.relnamespace = pn.oid AND p.relname = pt.tablename
 CROSS JOIN LATERAL (SELECT p.oid AS leaf WHERE p.relkind <> 'p'
   UNION SELECT relid FROM pg_partition_tree(p.oid) WHERE isleaf AND p.relkind = 'p') l
 WHERE pt.pubname = $1`

// storageSQL says of the relations of a query how the server stores them; it
// leaves out heap tables. Greenplum 6 says it in relstorage, later servers in
// the access method.
func storageSQL(relations string) string {
	return `SELECT DISTINCT n.nspname || '.' || c.relname, c.relkind::text, coalesce(row_to_json(c)->>'relstorage', ''), coalesce(am.amname, '')
 FROM (` + relations + `) l JOIN pg_class c ON c.oid = l.oid
 JOIN pg_namespace n ON n.oid = c.relnamespace
 LEFT JOIN pg_am am ON am.oid = c.relam
 WHERE c.relkind NOT IN ('r', 'p') OR c.relkind = 'r' AND coalesce(row_to_json(c)->>'relstorage', am.amname, '') NOT IN ('h', 'heap')
 ORDER BY 1`
}

// notDecoded names a storage that the server does not decode.
func notDecoded(relkind, relstorage, am string) string {
	switch {
	case relkind == "f" || relstorage == "f":
		return "a foreign or external table"
	case relstorage == "x":
		return "an external table"
	case relstorage == "u":
		return "unlogged"
	case relstorage == "a" || am == "ao_row":
		return "append-optimized (ao_row)"
	case relstorage == "c" || am == "ao_column":
		return "append-optimized (ao_column)"
	case relkind != "r" && relkind != "p":
		return fmt.Sprintf("a relation of kind %q", relkind)
	}
	return "storage " + am + relstorage
}

type columnJSON struct {
	Num       int    `json:"num"`
	Name      string `json:"name"`
	OID       uint32 `json:"oid"`
	Type      string `json:"type"`
	Generated bool   `json:"generated"`
	Key       bool   `json:"key"`
	PK        int    `json:"pk"`
}

// leftOutSQL lists the kinds of changes that a publication leaves out; no row when
// it does not exist.
const leftOutSQL = `SELECT array_remove(ARRAY[CASE WHEN NOT pubinsert THEN 'insert' END, CASE WHEN NOT pubupdate THEN 'update' END,
 CASE WHEN NOT pubdelete THEN 'delete' END, CASE WHEN NOT pubtruncate THEN 'truncate' END], NULL), puballtables
 FROM pg_publication WHERE pubname = $1`

// readPublication reads the node's published tables and what the publication
// leaves out.
func (p *probe) readPublication(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, leftOutSQL, p.cfg.Publication)
	if err != nil {
		return err
	}
	var kinds []string
	_, err = pgx.ForEachRow(rows, []any{&kinds, &p.facts.allTables}, func() error {
		p.facts.publication = true
		p.facts.leftOut = append(p.facts.leftOut, kinds...)
		return nil
	})
	if err != nil {
		return err
	}
	rows, err = conn.Query(ctx, publishedSQL, p.cfg.Publication)
	if err != nil {
		return err
	}
	p.facts.tables, err = pgx.CollectRows(rows, scanTable)
	if err != nil {
		return err
	}
	p.facts.tables = slices.DeleteFunc(p.facts.tables, func(t nodeTable) bool { return t.Schema == policySchema })
	list := make([]*nodeTable, len(p.facts.tables))
	for i := range p.facts.tables {
		list[i] = &p.facts.tables[i]
	}
	return describeTypes(ctx, conn, list)
}

// describeTypes reads what the columns' types that are not built in are made of.
func describeTypes(ctx context.Context, conn *pgx.Conn, tables []*nodeTable) error {
	var oids []uint32
	for _, t := range tables {
		for _, c := range t.Columns {
			if _, builtin := router.BuiltinType(c.TypeOID); !builtin {
				oids = append(oids, c.TypeOID)
			}
		}
	}
	types, err := readTypes(ctx, conn, oids)
	if err != nil {
		return err
	}
	for _, t := range tables {
		for i := range t.Columns {
			c := &t.Columns[i]
			if _, builtin := router.BuiltinType(c.TypeOID); !builtin {
				c.Type = types[c.TypeOID]
			}
		}
	}
	return nil
}

// description covers column names, types and identity: it is equal on all nodes.
func (t *nodeTable) description() string {
	list := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		list[i] = c.Name + " " + c.TypeName + catalog.Definition(c.Type)
	}
	slices.Sort(list) // columns may be in another order on another node
	return strings.Join(list, ", ") + "; replica identity " + identityName(t.Identity)
}

func scanTable(row pgx.CollectableRow) (nodeTable, error) {
	var t nodeTable
	var kind, ident, list, cols, uniques string
	if err := row.Scan(&t.oid, &t.Schema, &t.Name, &kind, &ident, &t.Root, &list, &t.rowFilter, &t.Deferrable, &cols, &uniques); err != nil {
		return t, err
	}
	t.Identity, t.RowFilter, t.partitioned = pgoutput.ReplicaIdentity(ident[0]), t.rowFilter != "", kind == "p"
	t.Filter = t.rowFilter
	var all []columnJSON
	if err := json.Unmarshal([]byte(cols), &all); err != nil {
		return t, fmt.Errorf("columns of %s: %w", t.String(), err)
	}
	if err := json.Unmarshal([]byte(uniques), &t.Uniques); err != nil {
		return t, fmt.Errorf("unique indexes of %s: %w", t.String(), err)
	}
	var names []string // published, nil: all
	if err := json.Unmarshal([]byte(list), &names); err != nil {
		return t, fmt.Errorf("column list of %s: %w", t.String(), err)
	}
	t.setColumns(all, names)
	return t, nil
}

// setColumns fills in what of a table's columns is published; names nil is all.
func (t *nodeTable) setColumns(all []columnJSON, names []string) {
	pk := map[int]string{}
	for _, c := range all {
		if c.PK >= 0 {
			pk[c.PK] = c.Name
		}
		if names != nil && !c.Generated && !slices.Contains(names, c.Name) {
			t.ColumnList = true
			t.hidden = append(t.hidden, c.Name)
			continue
		}
		if c.Generated {
			t.hidden = append(t.hidden, c.Name)
		}
		t.Columns = append(t.Columns, catalog.PublishedColumn{
			Name: c.Name, TypeOID: c.OID, TypeName: c.Type, Key: c.Key, PrimaryKey: c.PK >= 0, Generated: c.Generated,
		})
	}
	for _, i := range slices.Sorted(maps.Keys(pk)) {
		t.primaryKey = append(t.primaryKey, pk[i])
	}
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

// publication checks what the node publishes.
func (p *probe) publication(ctx context.Context, conn *pgx.Conn) error {
	if err := p.readPublication(ctx, conn); err != nil {
		return err
	}
	pub := pgx.Identifier{p.cfg.Publication}.Sanitize()
	switch {
	case !p.facts.publication:
		return nil // said by missingPublications
	case len(p.facts.leftOut) > 0:
		p.add(check.Finding{
			Found:  fmt.Sprintf("publication %s leaves out %s: such changes would be missing on the target", pub, strings.Join(p.facts.leftOut, ", ")),
			Remedy: "Run there", SQL: []string{"ALTER PUBLICATION " + pub + " SET (publish = 'insert, update, delete, truncate')"},
		})
	case len(p.facts.tables) == 0 && p.node.Content == dtx.Coordinator && !p.create:
		p.add(check.Finding{
			Found:  fmt.Sprintf("publication %s holds no table: nothing would be replicated", pub),
			Remedy: "Add the tables that are to be replicated, on every node: ALTER PUBLICATION " + pub + " ADD TABLE ...",
		})
	}
	if p.node.Content == dtx.Coordinator {
		if err := p.readNoIdentity(ctx, conn); err != nil {
			return err
		}
		if p.facts.allTables {
			if err := p.leftOutTables(ctx, conn); err != nil {
				return err
			}
		}
	}
	return p.storage(ctx, conn)
}

// storage refuses tables whose changes the server leaves out of the stream.
func (p *probe) storage(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, storageSQL(publishedLeavesSQL), p.cfg.Publication)
	if err != nil {
		return err
	}
	pub := pgx.Identifier{p.cfg.Publication}.Sanitize()
	remedy := fmt.Sprintf("Take it (or the partitioned table it belongs to) out of publication %s on every node, or store it as heap", pub)
	if p.facts.allTables {
		remedy = fmt.Sprintf("Store it as heap; or, as publication %s is FOR ALL TABLES, drop the slots and make the publication, then the slots, anew with a list of tables", pub)
	}
	var name, kind, relstorage, am string
	_, err = pgx.ForEachRow(rows, []any{&name, &kind, &relstorage, &am}, func() error {
		p.add(check.Finding{
			Relation: name,
			Found: fmt.Sprintf("it is %s, which the server does not decode: its changes would be missing on the target, not late",
				notDecoded(kind, relstorage, am)),
			Remedy: remedy,
		})
		return nil
	})
	return err
}

// missingPublications names the nodes without the publication.
func missingPublications(cfg *Config, f *Facts) check.Findings {
	const since = "It must exist on every node, and since before the slot was made. "
	pub := pgx.Identifier{cfg.Publication}.Sanitize()
	var names []string
	viaRoot := false
	for _, t := range f.Nodes[0].tables {
		names = append(names, pgx.Identifier{t.Schema, t.Name}.Sanitize())
		viaRoot = viaRoot || t.partitioned
	}
	var ps check.Findings
	for _, n := range f.Nodes {
		if n.publication || !n.read {
			continue
		}
		p := check.Finding{Content: dtx.AtContent(n.Content), Found: fmt.Sprintf("publication %s does not exist in this database", pub)}
		if len(names) == 0 {
			p.Remedy = since + "Name the tables that are to be replicated: CREATE PUBLICATION " + pub + " FOR TABLE ... " +
				"(FOR ALL TABLES makes the server refuse UPDATE and DELETE on every table that has no replica identity)"
		} else {
			p.Remedy = since + "Run there"
			sql := "CREATE PUBLICATION " + pub + " FOR TABLE " + strings.Join(names, ", ")
			if viaRoot {
				sql += " WITH (publish_via_partition_root)"
			}
			p.SQL = []string{sql}
		}
		ps = append(ps, p)
	}
	return ps
}

// compareTables: every node publishes the same tables with the same columns.
// The coordinator's are the measure. A node that could not be read to the end is
// none: it may have gone down in the middle.
func compareTables(cfg *Config, f *Facts) check.Findings {
	var fs check.Findings
	want := map[string]*nodeTable{}
	coordinator := &f.Nodes[0]
	for i := range coordinator.tables {
		t := &coordinator.tables[i]
		want[t.String()] = t
	}
	pub := pgx.Identifier{cfg.Publication}.Sanitize()
	for _, n := range f.Nodes[1:] {
		if !n.publication || !n.read || !coordinator.publication || !coordinator.read {
			continue
		}
		add := func(t *nodeTable, found, remedy, sql string) {
			f := check.Finding{Content: dtx.AtContent(n.Content), Relation: t.String(), Found: found, Remedy: remedy}
			if sql != "" && !n.allTables && !coordinator.allTables {
				f.SQL = []string{fmt.Sprintf("ALTER PUBLICATION %s %s TABLE %s", pub, sql, t.sqlName())}
			}
			fs = append(fs, f)
		}
		have := map[string]bool{}
		for i := range n.tables {
			t := &n.tables[i]
			have[t.String()] = true
			switch w := want[t.String()]; {
			case w == nil:
				add(t, "it is published here, but not on the coordinator",
					"Publish the same tables on every node: add it to the coordinator's publication, or take it out of this one", "DROP")
			case w.description() != t.description():
				add(t, fmt.Sprintf("it differs from the coordinator's: here (%s), there (%s)", t.description(), w.description()),
					"Give the table the same published columns and replica identity on every node", "")
			}
		}
		for i := range coordinator.tables {
			if t := &coordinator.tables[i]; !have[t.String()] {
				add(t, "it is published on the coordinator, but not here",
					"Publish the same tables on every node; run there", "ADD")
			}
		}
	}
	return fs
}
