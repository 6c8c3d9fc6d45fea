package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/check"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
	"cbrepl/source/stream/repl"
)

// listed is a publication of a Greenplum 6: a list of tables in publicationTable.
type listed struct {
	entries []entry
	viaRoot bool
	heap    []listedTable // what is streamed: leaves, or roots
	other   []listedTable // relations that the server does not decode
}

// entry is one row of the list.
type entry struct {
	schema, name string
	oid          uint32
	// nowSchema and nowName are what the table of that OID is called; empty when
	// there is none.
	nowSchema, nowName string
	// sameName is the OID of the table with the listed name, 0 when there is none.
	sameName uint32
}

func (e *entry) String() string { return e.schema + "." + e.name }

// listedTable is a table of the publication or, of a partitioned one, a leaf.
type listedTable struct {
	nodeTable
	relkind, relstorage string
}

// publicationTable holds the publications. Its rows are distributed as any
// table's are: it is read in ordinary sessions.
const publicationTable = "cbrepl.publication_table"

const listedSQL = `SELECT schema_name, table_name, relid, via_root FROM ` + publicationTable + ` WHERE publication = $1 ORDER BY 1, 2`

// entriesSQL says of listed tables what the catalogue has now.
const entriesSQL = `SELECT coalesce(n.nspname, ''), coalesce(c.relname, ''), coalesce(to_regclass($2)::oid, 0)
 FROM (SELECT $1::oid AS oid) l LEFT JOIN pg_class c ON c.oid = l.oid AND c.relkind = 'r' LEFT JOIN pg_namespace n ON n.oid = c.relnamespace`

// partsSQL lists a table or, of a partitioned one, its leaves. A partition's key
// columns are found as the server does it: from its own index.
const partsSQL = `SELECT c.oid, n.nspname, c.relname, c.relkind::text, CASE c.relpersistence WHEN 'u' THEN 'u' ELSE c.relstorage::text END, c.relreplident::text,
 CASE WHEN c.oid = $1::oid THEN '' ELSE rn.nspname || '.' || r.relname END,
 EXISTS (SELECT 1 FROM pg_constraint x WHERE x.condeferrable AND x.contype IN ('p', 'u', 'x') AND x.conrelid = c.oid),
 coalesce(pk.indkey::text, ''), coalesce(k.indkey::text, ''),
 (SELECT coalesce(json_agg(json_build_object('num', a.attnum, 'name', a.attname, 'oid', a.atttypid::bigint,
     'type', format_type(a.atttypid, a.atttypmod)) ORDER BY a.attnum), '[]')
   FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)::text,
 (SELECT coalesce(json_agg(ARRAY(SELECT a.attname::text FROM unnest(u.indkey::int2[]) k(n)
     JOIN pg_attribute a ON a.attrelid = u.indrelid AND a.attnum = k.n)), '[]')
   FROM pg_index u WHERE u.indrelid = c.oid AND u.indisunique AND u.indisvalid AND u.indpred IS NULL AND u.indexprs IS NULL)::text
 FROM (SELECT $1::oid AS oid WHERE $2 OR NOT EXISTS (SELECT 1 FROM pg_partition WHERE parrelid = $1::oid)
   UNION ALL SELECT pr.parchildrelid FROM pg_partition pp JOIN pg_partition_rule pr ON pr.paroid = pp.oid
   WHERE pp.parrelid = $1::oid AND NOT pp.paristemplate AND NOT $2
     AND NOT EXISTS (SELECT 1 FROM pg_inherits WHERE inhparent = pr.parchildrelid)) l
 JOIN pg_class c ON c.oid = l.oid JOIN pg_namespace n ON n.oid = c.relnamespace
 JOIN pg_class r ON r.oid = $1::oid JOIN pg_namespace rn ON rn.oid = r.relnamespace
 LEFT JOIN pg_index pk ON pk.indrelid = c.oid AND pk.indisprimary
 LEFT JOIN pg_index k ON k.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN k.indisprimary WHEN 'i' THEN k.indisreplident ELSE false END
 ORDER BY 2, 3`

// readListed reads a publication: the list in an ordinary session, the catalogue
// in conn.
func readListed(ctx context.Context, coordinator string, conn *pgx.Conn, publication string) (*listed, error) {
	l := &listed{}
	plain, err := connect(ctx, Node{Content: dtx.Coordinator, DSN: coordinator})
	if err != nil {
		return nil, err
	}
	defer closeConn(plain)
	rows, err := plain.Query(ctx, listedSQL, publication)
	if err == nil {
		var e entry
		_, err = pgx.ForEachRow(rows, []any{&e.schema, &e.name, &e.oid, &l.viaRoot}, func() error {
			l.entries = append(l.entries, e)
			return nil
		})
	}
	var pe *pgconn.PgError
	if err != nil && (!errors.As(err, &pe) || pe.Code != "42P01" && pe.Code != "3F000") { // no such table, no such schema
		return nil, err
	}
	for i := range l.entries {
		e := &l.entries[i]
		name := pgx.Identifier{e.schema, e.name}.Sanitize()
		if err := conn.QueryRow(ctx, entriesSQL, e.oid, name).Scan(&e.nowSchema, &e.nowName, &e.sameName); err != nil {
			return nil, err
		}
		if e.fault() != nil {
			continue
		}
		if err := l.readParts(ctx, conn, e.oid); err != nil {
			return nil, err
		}
	}
	tables := make([]*nodeTable, len(l.heap))
	for i := range l.heap {
		tables[i] = &l.heap[i].nodeTable
	}
	return l, describeTypes(ctx, conn, tables)
}

// readParts reads a table or its leaves.
func (l *listed) readParts(ctx context.Context, conn *pgx.Conn, oid uint32) error {
	for _, viaRoot := range []bool{l.viaRoot, false} {
		rows, err := conn.Query(ctx, partsSQL, oid, viaRoot)
		if err != nil {
			return err
		}
		tables, err := pgx.CollectRows(rows, scanListed)
		if err != nil {
			return err
		}
		for _, t := range tables {
			switch {
			case t.relkind != "r" || t.relstorage != "h":
				if !viaRoot { // a root's own storage says nothing of its leaves
					l.other = append(l.other, t)
				}
			case viaRoot || !l.viaRoot:
				l.heap = append(l.heap, t)
			}
		}
		if !l.viaRoot {
			return nil
		}
	}
	return nil
}

func scanListed(row pgx.CollectableRow) (listedTable, error) {
	var t listedTable
	var ident, pk, key, cols, uniques string
	if err := row.Scan(&t.oid, &t.Schema, &t.Name, &t.relkind, &t.relstorage, &ident, &t.Root, &t.Deferrable, &pk, &key, &cols, &uniques); err != nil {
		return t, err
	}
	t.Identity = pgoutput.ReplicaIdentity(ident[0])
	var all []columnJSON
	if err := json.Unmarshal([]byte(cols), &all); err != nil {
		return t, fmt.Errorf("columns of %s: %w", t.String(), err)
	}
	if err := json.Unmarshal([]byte(uniques), &t.Uniques); err != nil {
		return t, fmt.Errorf("unique indexes of %s: %w", t.String(), err)
	}
	pks, keys := strings.Fields(pk), strings.Fields(key)
	for i := range all {
		num := strconv.Itoa(all[i].Num)
		all[i].PK = slices.Index(pks, num)
		all[i].Key = t.Identity == pgoutput.IdentityFull || slices.Contains(keys, num)
	}
	t.setColumns(all, nil)
	return t, nil
}

// fault is what keeps a listed table from being streamed, nil when nothing does.
func (e *entry) fault() *check.Finding {
	p := &check.Finding{Relation: e.String()}
	const publish = "cbrepl source unpublish and cbrepl source publish, after a new initial copy of the table"
	switch {
	case e.nowName == "" && e.sameName == 0:
		p.Found = fmt.Sprintf("it was published with OID %d and does not exist any more: it was dropped", e.oid)
		p.Remedy = "Take it out of the list: cbrepl source unpublish"
	case e.nowName == "":
		p.Found = fmt.Sprintf("it was published with OID %d, and the table of that name has OID %d now: it was dropped and made anew", e.oid, e.sameName)
		p.Remedy = "Run " + publish
	case e.nowSchema != e.schema || e.nowName != e.name:
		p.Found = fmt.Sprintf("it was published under this name (OID %d) and is called %s.%s now", e.oid, e.nowSchema, e.nowName)
		p.Remedy = "Rename it back, or rename the target's table and run cbrepl source unpublish and cbrepl source publish"
	default:
		return nil
	}
	return p
}

// faults are what keeps listed tables from being streamed.
func (l *listed) faults() check.Findings {
	var fs check.Findings
	for i := range l.entries {
		if f := l.entries[i].fault(); f != nil {
			fs = append(fs, *f)
		}
	}
	return fs
}

// tables returns what is streamed, and adds what is wrong to p.
func (l *listed) tables(p *probe) []nodeTable {
	pub := pgx.Identifier{p.cfg.Publication}.Sanitize()
	for _, f := range l.faults() {
		p.add(f)
	}
	if len(l.entries) == 0 {
		p.add(check.Finding{
			Found:  fmt.Sprintf("publication %s has no table", pub),
			Remedy: "Publish the tables that are to be replicated: cbrepl source publish -c FILE SCHEMA.TABLE ...",
		})
	}
	decoded := map[string]bool{}
	out := make([]nodeTable, len(l.heap))
	for i, t := range l.heap {
		out[i] = t.nodeTable
		if !t.identified() {
			out[i].noIdentity = []string{t.sqlName()}
		}
		decoded[t.String()] = true
	}
	for _, name := range p.cfg.CopyOnly {
		switch {
		case decoded[name]:
			p.add(check.Finding{Relation: name, Found: "source.copy_only names it, but it is a heap table: its changes are in the stream", Remedy: "Take it out of source.copy_only"})
		case !slices.ContainsFunc(l.other, func(t listedTable) bool { return t.named(name) }):
			p.add(check.Finding{
				Relation: name, Found: fmt.Sprintf("source.copy_only names it, but publication %s does not hold it", pub),
				Remedy: "Correct the name (schema.table), or publish it: cbrepl source publish",
			})
		}
	}
	for _, t := range l.other {
		if slices.ContainsFunc(p.cfg.CopyOnly, t.named) {
			continue
		}
		f := check.Finding{
			Relation: t.String(),
			Found:    fmt.Sprintf("it is %s, which the server does not decode: its changes would be missing on the target, not late", notDecoded(t.relkind, t.relstorage, "")),
			Remedy:   "Name it in source.copy_only (only copies take it, and status says so), store it as heap, or take it out of the list",
		}
		if t.Root == "" {
			f.Commands = []string{"cbrepl source unpublish -c FILE " + check.QuoteShell(t.String())}
		}
		p.add(f)
	}
	return out
}

// named reports whether the name is the table's or its root's.
func (t *listedTable) named(name string) bool { return name == t.String() || name == t.Root }

// copyOnly lists what no stream carries.
func (l *listed) copyOnly() []string {
	if l == nil {
		return nil
	}
	var out []string
	for _, t := range l.other {
		out = append(out, t.String())
	}
	return out
}

// streamOptions name the tables to the plugin. It expands partitioned ones.
func (l *listed) streamOptions() []repl.Option {
	if l == nil {
		return nil
	}
	var names, oids []string
	for _, e := range l.entries {
		names = append(names, pgx.Identifier{e.schema, e.name}.Sanitize())
		oids = append(oids, strconv.FormatUint(uint64(e.oid), 10))
	}
	return []repl.Option{
		{Name: "tables", Value: strings.Join(names, ",")},
		{Name: "relids", Value: strings.Join(oids, ",")},
		{Name: "publish_via_partition_root", Value: strconv.FormatBool(l.viaRoot)},
	}
}
