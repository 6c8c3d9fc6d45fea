package shards

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/router"
)

const opCatalogue = "check target tables"

// catalogue is what one shard says of the tables asked for.
type catalogue struct {
	tables   map[catalog.Name]*foundTable
	versions *pgside.Versions
}

// foundTable is a table on one shard, with what is not in apply.Table.
type foundTable struct {
	*catalog.Table
	oid uint32
	// types are the relations of the composite types of its columns.
	types []uint32
	// missing lists the privileges that the role lacks.
	missing []string
	// hazards are triggers, rules and storage that would harm rows; nil for none.
	hazards *pgside.Hazards
	// rowSecurity is set when policies would hide rows from the role.
	rowSecurity bool
}

// nameArrays prints names as two array literals.
func nameArrays(names []catalog.Name) (schemas, tables string) {
	s, t := make([]string, len(names)), make([]string, len(names))
	for i, n := range names {
		s[i], t[i] = n.Schema, n.Table
	}
	return pgside.TextArray(s), pgside.TextArray(t)
}

// readTables reads the tables of the given names that a shard has, in one snapshot.
// Nothing is locked beyond the catalogue.
func readTables(ctx context.Context, n *node, names []catalog.Name) (cat *catalogue, err error) {
	err = n.Snapshot(ctx, opCatalogue, func() error {
		cat, err = readTablesNow(ctx, n, names)
		return err
	})
	return cat, err
}

func readTablesNow(ctx context.Context, n *node, names []catalog.Name) (*catalogue, error) {
	names = slices.Clone(names)
	slices.SortFunc(names, catalog.Name.Compare)
	schemas, tables := nameArrays(slices.Compact(names)) // leaves share their root
	rows, err := n.Query(ctx, `
		SELECT s.nspname, c.relname, c.oid, c.relkind, row_security_active(c.oid),
		       array_to_string(ARRAY(SELECT p FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) p
		                             WHERE NOT has_table_privilege(c.oid, p)), ','),
		       has_schema_privilege(s.oid, 'USAGE')
		FROM unnest($1::text[], $2::text[]) u(s, t)
		JOIN pg_namespace s ON s.nspname = u.s
		JOIN pg_class c ON c.relnamespace = s.oid AND c.relname = u.t
		WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')`, schemas, tables)
	if err != nil {
		return nil, n.Fail(opCatalogue, err)
	}
	cat := &catalogue{tables: map[catalog.Name]*foundTable{}}
	byOID := map[uint32]*foundTable{}
	var oids []string
	for _, r := range rows {
		t := &foundTable{
			Table:       &catalog.Table{Schema: string(r[0]), Name: string(r[1]), Kind: tableKind(r[3])},
			oid:         pgside.OID(r[2]),
			rowSecurity: string(r[4]) == "t",
		}
		if len(r[5]) > 0 {
			t.missing = strings.Split(string(r[5]), ",")
		}
		if string(r[6]) != "t" {
			t.missing = append(t.missing, pgside.SchemaUsage(t.Schema))
		}
		cat.tables[t.QualifiedName()] = t
		byOID[t.oid] = t
		oids = append(oids, string(r[2]))
	}
	list := "{" + strings.Join(oids, ",") + "}"
	attrs, err := readColumns(ctx, n, list, byOID)
	if err != nil {
		return nil, err
	}
	if err := readUniques(ctx, n, list, byOID, attrs); err != nil {
		return nil, err
	}
	query := func(sql, oids string) ([][][]byte, error) {
		rows, err := n.Query(ctx, sql, oids)
		return rows, n.Fail(opCatalogue, err)
	}
	generated, err := pgside.ReadGenerated(list, query)
	if err != nil {
		return nil, err
	}
	keys, err := pgside.ReadPartitionKeys(list, query)
	if err != nil {
		return nil, err
	}
	hazards, err := pgside.ReadHazards(pgside.HazardFacts{IsPartition: pgside.DeclarativePartition, ForeignKeys: true}, list, query)
	if err != nil {
		return nil, err
	}
	relations := map[catalog.Name][]uint32{}
	for oid, t := range byOID {
		relations[t.QualifiedName()] = append([]uint32{oid}, t.types...)
		t.hazards = hazards[oid]
		pgside.CompleteReads(t.Table, pgside.UniqueFacts{Generated: generated[oid], PartitionKey: keys[oid]})
	}
	cat.versions, err = pgside.ReadVersions(relations, query)
	return cat, err
}

func tableKind(relkind []byte) catalog.TableKind {
	switch string(relkind) {
	case "r":
		return catalog.Heap
	case "p":
		return catalog.PartitionRoot
	}
	return catalog.OtherKind
}

// attrKey finds a column by table and attribute number.
type attrKey struct {
	table  uint32
	number int
}

// readColumns fills the live columns of every table, in attribute order, and
// returns their indexes.
func readColumns(ctx context.Context, n *node, oids string, byOID map[uint32]*foundTable) (map[attrKey]int, error) {
	rows, err := n.Query(ctx, `
		SELECT a.attrelid, a.attnum, a.attname, a.atttypid, a.attnotnull, a.atthasdef, a.attidentity, a.attgenerated,
		       format_type(a.atttypid, a.atttypmod),
		       coalesce(NOT l.collisdeterministic, false),
		       a.attidentity <> '' OR a.attgenerated = '' AND coalesce(
		           e.tree ~ '\{(SQLVALUEFUNCTION|NEXTVALUEEXPR) ' OR EXISTS (
		               SELECT FROM regexp_matches(e.tree, ':(?:funcid|opfuncid) ([0-9]+)', 'g') f JOIN pg_proc p ON p.oid = f[1]::oid
		               WHERE p.provolatile <> 'i'), false)
		FROM pg_attribute a
		JOIN pg_type y ON y.oid = a.atttypid
		LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		CROSS JOIN LATERAL (SELECT coalesce(d.adbin, y.typdefaultbin)::text AS tree) e
		LEFT JOIN pg_collation l ON l.oid = a.attcollation
		WHERE a.attrelid = ANY ($1::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
		ORDER BY a.attrelid, a.attnum`, oids)
	if err != nil {
		return nil, n.Fail(opCatalogue, err)
	}
	list := make([]uint32, len(rows))
	for i, r := range rows {
		list[i] = pgside.OID(r[3])
	}
	types, err := pgside.ReadTypes(opCatalogue, n.String(), list, true, func(sql, arg string) ([][][]byte, error) {
		rows, err := n.Query(ctx, sql, arg)
		return rows, n.Fail(opCatalogue, err)
	})
	if err != nil {
		return nil, err
	}
	attrs := map[attrKey]int{}
	for _, r := range rows {
		t := byOID[pgside.OID(r[0])]
		attrs[attrKey{t.oid, int(pgside.Atoi(r[1]))}] = len(t.Columns)
		c := pgside.ColumnOf(r, types)
		c.Volatile = string(r[10]) == "t"
		t.Columns = append(t.Columns, c)
		t.types = append(t.types, types[pgside.OID(r[3])].Relations...)
	}
	return attrs, nil
}

// readUniques fills the unique indexes and exclusion constraints of every table,
// those of partitions under their root.
func readUniques(ctx context.Context, n *node, oids string, byOID map[uint32]*foundTable, attrs map[attrKey]int) error {
	// parts finds every partition below a root. An index that belongs to one of
	// the root's is the same constraint and is left out.
	rows, err := n.Query(ctx, `
		WITH RECURSIVE parts(root, rel) AS (
			SELECT o, o FROM unnest($1::oid[]) o
			UNION ALL
			SELECT p.root, h.inhrelid FROM parts p
			JOIN pg_inherits h ON h.inhparent = p.rel
			JOIN pg_class c ON c.oid = p.rel AND c.relkind = 'p')
		SELECT p.root, p.rel, x.relname, i.indisprimary, i.indisexclusion,
		       NOT i.indimmediate OR coalesce(k.condeferrable, false),
		       i.indexprs IS NULL AND i.indpred IS NULL,
		       array_to_string((i.indkey::int2[])[0:i.indnkeyatts - 1], ','),
		       array_to_string(ARRAY(
		           SELECT DISTINCT d.refobjsubid FROM pg_depend d
		           WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
		             AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid AND d.refobjsubid > 0), ','),
		       i.indisvalid, k.oid IS NOT NULL
		FROM parts p
		JOIN pg_index i ON i.indrelid = p.rel
		JOIN pg_class x ON x.oid = i.indexrelid
		LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x')
		WHERE (i.indisunique OR i.indisexclusion) AND i.indisready
		  AND (p.root = p.rel OR NOT EXISTS (SELECT FROM pg_inherits h WHERE h.inhrelid = i.indexrelid))
		ORDER BY p.root, i.indisprimary DESC, p.rel <> p.root, x.relname`, oids)
	if err != nil {
		return n.Fail(opCatalogue, err)
	}
	partAttrs, err := readPartitionColumns(ctx, n, rows)
	if err != nil {
		return err
	}
	for _, r := range rows {
		t := byOID[pgside.OID(r[0])]
		rel := pgside.OID(r[1])
		column := func(number string) (int, bool) {
			num := int(pgside.Atoi([]byte(number)))
			if rel == t.oid {
				i, ok := attrs[attrKey{rel, num}]
				return i, ok
			}
			i := t.Column(partAttrs[attrKey{rel, num}])
			return i, i >= 0
		}
		columnsOnly := string(r[6]) == "t"
		u := catalog.Unique{
			Name: string(r[2]), Primary: string(r[3]) == "t" && rel == t.oid,
			Exclusion: string(r[4]) == "t", Deferrable: string(r[5]) == "t", Constraint: string(r[10]) == "t",
			// An index of one partition does not make a row of the root unique, nor does
			// one that is not valid: it is enforced, but may lack older rows.
			Plain: columnsOnly && rel == t.oid && string(r[9]) == "t", OnePartition: rel != t.oid,
		}
		reads := map[int]bool{}
		for _, f := range pgside.SplitList(r[7]) {
			if i, ok := column(f); ok { // 0 stands for an expression
				u.Columns = append(u.Columns, i)
				reads[i] = true
			}
		}
		if !columnsOnly {
			// Expressions and predicate: what the index depends on, INCLUDE columns too.
			for _, f := range pgside.SplitList(r[8]) {
				if i, ok := column(f); ok {
					reads[i] = true
				}
			}
		}
		for i := range reads {
			u.Reads = append(u.Reads, i)
		}
		slices.Sort(u.Reads)
		t.Uniques = append(t.Uniques, u)
	}
	return nil
}

// readPartitionColumns returns the column names of the partitions among rows of
// readUniques: their numbers can differ from the root's.
func readPartitionColumns(ctx context.Context, n *node, rows [][][]byte) (map[attrKey]string, error) {
	var parts []string
	for _, r := range rows {
		if string(r[0]) != string(r[1]) {
			parts = append(parts, string(r[1]))
		}
	}
	out := map[attrKey]string{}
	if len(parts) == 0 {
		return out, nil
	}
	found, err := n.Query(ctx, `SELECT attrelid, attnum, attname FROM pg_attribute
		WHERE attrelid = ANY ($1::oid[]) AND attnum > 0 AND NOT attisdropped`, "{"+strings.Join(parts, ",")+"}")
	if err != nil {
		return nil, n.Fail(opCatalogue, err)
	}
	for _, r := range found {
		out[attrKey{pgside.OID(r[0]), int(pgside.Atoi(r[1]))}] = string(r[2])
	}
	return out, nil
}

// policyRow is a row of cbrepl.distribution_policy.
type policyRow struct {
	kind               string
	columns, opclasses []string
	numSegments        int
}

// readPolicies reads the placement of the given tables from the coordinator
// database.
func (t *Target) readPolicies(ctx context.Context, names []catalog.Name) (map[catalog.Name]policyRow, error) {
	schemas, tables := nameArrays(names)
	rows, err := t.co.Query(ctx, `
		SELECT p.schema_name, p.table_name, p.kind, p.numsegments, coalesce(cardinality(p.columns), 0), coalesce(cardinality(p.opclasses), 0)
		FROM cbrepl.distribution_policy p JOIN unnest($1::text[], $2::text[]) u(s, t) ON p.schema_name = u.s AND p.table_name = u.t`, schemas, tables)
	if err != nil {
		return nil, t.co.Fail(opCatalogue, err)
	}
	out := map[catalog.Name]policyRow{}
	for _, r := range rows {
		p := policyRow{kind: string(r[2]), numSegments: int(pgside.Atoi(r[3]))}
		p.columns, p.opclasses = make([]string, pgside.Atoi(r[4])), make([]string, pgside.Atoi(r[5]))
		out[catalog.Name{Schema: string(r[0]), Table: string(r[1])}] = p
	}
	rows, err = t.co.Query(ctx, `
		SELECT p.schema_name, p.table_name, x.n, x.c, x.o
		FROM cbrepl.distribution_policy p JOIN unnest($1::text[], $2::text[]) u(s, t) ON p.schema_name = u.s AND p.table_name = u.t,
		     unnest(p.columns, p.opclasses) WITH ORDINALITY x(c, o, n)`, schemas, tables)
	if err != nil {
		return nil, t.co.Fail(opCatalogue, err)
	}
	for _, r := range rows {
		p := out[catalog.Name{Schema: string(r[0]), Table: string(r[1])}]
		i := int(pgside.Atoi(r[2])) - 1
		if i >= 0 && i < len(p.columns) {
			p.columns[i] = string(r[3])
		}
		if i >= 0 && i < len(p.opclasses) {
			p.opclasses[i] = string(r[4])
		}
	}
	return out, nil
}

// policy turns a row into the placement of table f.
func (p policyRow) policy(f *foundTable) (router.Policy, error) {
	out := router.Policy{NumSegments: p.numSegments}
	switch p.kind {
	case "replicated":
		out.Kind = router.Replicated
		return out, nil
	case "random":
		out.Kind = router.Random
		return out, nil
	case "hash":
		out.Kind = router.Hash
	default:
		return out, fmt.Errorf("its kind %s is none of hash, random, replicated", strconv.Quote(p.kind))
	}
	if len(p.columns) == 0 {
		return out, fmt.Errorf("it is of kind hash and names no columns")
	}
	if len(p.opclasses) > 0 && len(p.opclasses) != len(p.columns) {
		return out, fmt.Errorf("it names %d columns and %d operator classes", len(p.columns), len(p.opclasses))
	}
	for i, name := range p.columns {
		c := f.Column(name)
		if c < 0 {
			return out, fmt.Errorf("it names column %s, which the table does not have", strconv.Quote(name))
		}
		col := router.Column{Name: name, Type: f.Columns[c].Type, Nondeterministic: f.Columns[c].Nondeterministic}
		if len(p.opclasses) > 0 {
			col.Opclass = p.opclasses[i]
		}
		out.Columns = append(out.Columns, col)
	}
	return out, nil
}
