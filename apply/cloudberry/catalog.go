package cloudberry

import (
	"context"
	"slices"
	"strings"

	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/router"
)

const opCatalogue = "check target tables"

// tables is what the catalogue says of the target's tables.
type tables struct {
	byName map[catalog.Name]*tableFacts
	byOID  map[uint32]*tableFacts
	// fires tells that some table has triggers or rules to be silenced.
	fires bool
	// versions are those of the tables when they were read.
	versions *pgside.Versions
}

// of finds the facts of a table that the engine was given.
func (ts *tables) of(t *catalog.Table) *tableFacts {
	return ts.byName[t.QualifiedName()]
}

// tableFacts is a table with what is not in apply.Table.
type tableFacts struct {
	*catalog.Table
	oid uint32
	// types are the relations of the composite types of its columns.
	types []uint32
	// problem says why rows cannot be written to the table, and what to do.
	problem, remedy string
	// appendOnly is set when the table, or a partition of it, is append-optimized
	// in rows, columns or PAX: no RETURNING, and updates are slow.
	appendOnly bool
	// leaves are the relations that hold the rows, by OID in decimal: the table
	// itself or its partitions.
	leaves map[string]*leaf
	// leading are the columns that some index begins with.
	leading []int
	// customClass is set when the distribution key uses an operator class from
	// outside pg_catalog.
	customClass bool
	// missing lists the privileges that the role lacks.
	missing []string
	// hazards are triggers, rules and storage that would harm rows; nil for none.
	hazards *pgside.Hazards
	// rowSecurity is set when policies would hide rows from the role.
	rowSecurity bool
	// changed is set once rows were updated or deleted.
	changed bool
}

// leaf is a relation that holds rows.
type leaf struct {
	name       string // qualified and quoted
	appendOnly bool
}

// leaf finds a relation by its OID in decimal.
func (f *tableFacts) leaf(oid string) *leaf { return f.leaves[oid] }

// leads reports whether an index begins with column c.
func (f *tableFacts) leads(c int) bool { return slices.Contains(f.leading, c) }

// plan says how rows are to be found by keys in the given columns: over an index
// of one of them, or by a scan that is hashed against all keys.
func (f *tableFacts) plan(keys []int) planMode {
	if slices.ContainsFunc(keys, f.leads) {
		return planMode{}
	}
	return planMode{hashed: true}
}

// anyable reports whether a single key column can be compared with an array of
// values: its type has an array type.
func (f *tableFacts) anyable(keys []int) bool {
	if len(keys) != 1 {
		return false
	}
	t := f.Columns[keys[0]].Type.Base()
	return t != nil && (t.Kind == router.BaseType || t.Kind == router.EnumType)
}

// storageKind is how a relation's rows are stored, in words that do not depend on
// the server: heap, append-optimized, or why rows cannot be written.
func (f *facts) storageExpr() string {
	switch {
	case f.has("pg_class.relstorage"):
		return `CASE WHEN c.relkind IN ('v', 'm') THEN 'view' WHEN c.relkind = 'f' THEN 'foreign'
			WHEN c.relstorage = 'h' THEN 'heap' WHEN c.relstorage IN ('a', 'c') THEN 'append'
			WHEN c.relstorage = 'x' THEN 'external' WHEN c.relstorage = 'f' THEN 'foreign' ELSE 'storage ' || c.relstorage::text END`
	default:
		return `CASE WHEN c.relkind IN ('v', 'm') THEN 'view' WHEN c.relkind = 'f' THEN 'foreign' WHEN c.relkind = 'p' THEN 'heap'
			ELSE coalesce((SELECT CASE WHEN m.amname = 'heap' THEN 'heap' WHEN m.amname IN ('ao_row', 'ao_column', 'pax') THEN 'append'
			                           ELSE 'access method ' || m.amname END FROM pg_am m WHERE m.oid = c.relam), 'none') END`
	}
}

// partitionedExpr tells whether c is the root of a partitioned table, or a
// partition that has partitions itself.
func (f *facts) partitionedExpr() string {
	if f.has("pg_partition.parrelid") {
		return `CASE WHEN EXISTS (SELECT 1 FROM pg_partition p WHERE p.parrelid = c.oid AND p.parlevel = 0 AND NOT p.paristemplate) THEN 'root'
			WHEN EXISTS (SELECT 1 FROM pg_partition_rule r WHERE r.parchildrelid = c.oid)
			     AND EXISTS (SELECT 1 FROM pg_inherits h WHERE h.inhparent = c.oid) THEN 'middle' ELSE '' END`
	}
	return `CASE WHEN c.relkind = 'p' THEN 'root' ELSE '' END`
}

// readTables reads the tables of the given names that the target has, in one snapshot.
// Nothing is locked beyond the catalogue.
func readTables(ctx context.Context, s *server, names []catalog.Name) (ts *tables, err error) {
	err = s.Snapshot(ctx, opCatalogue, func() error {
		ts, err = readTablesNow(ctx, s, names)
		return err
	})
	return ts, err
}

func readTablesNow(ctx context.Context, s *server, names []catalog.Name) (*tables, error) {
	schemas, list := make([]string, len(names)), make([]string, len(names))
	for i, n := range names {
		schemas[i], list[i] = n.Schema, n.Table
	}
	rowSecurity := "false"
	if s.facts.has("pg_class.relrowsecurity") {
		rowSecurity = "row_security_active(c.oid)"
	}
	rows, err := s.Query(ctx, `
		SELECT n.nspname, c.relname, c.oid, `+s.facts.storageExpr()+`, `+s.facts.partitionedExpr()+`, `+rowSecurity+`,
		       array_to_string(ARRAY(SELECT p FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) p
		                             WHERE NOT has_table_privilege(c.oid, p)), ','),
		       has_schema_privilege(n.oid, 'USAGE'),
		       p.policytype, p.numsegments, array_to_string(p.distkey::int2[], ','), array_to_string(p.distclass::oid[], ',')
		FROM unnest($1::text[], $2::text[]) u(s, t)
		JOIN pg_namespace n ON n.nspname = u.s
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = u.t
		LEFT JOIN gp_distribution_policy p ON p.localoid = c.oid
		WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')`, pgside.TextArray(schemas), pgside.TextArray(list))
	if err != nil {
		return nil, s.Fail(opCatalogue, err)
	}
	ts := &tables{byName: map[catalog.Name]*tableFacts{}, byOID: map[uint32]*tableFacts{}}
	var oids []string
	policies := map[uint32][4]string{}
	for _, r := range rows {
		f := &tableFacts{
			Table: &catalog.Table{Schema: string(r[0]), Name: string(r[1])}, oid: pgside.OID(r[2]),
			leaves: map[string]*leaf{}, rowSecurity: string(r[5]) == "t", missing: pgside.SplitList(r[6]),
		}
		if string(r[7]) != "t" {
			f.missing = append(f.missing, pgside.SchemaUsage(f.Schema))
		}
		f.setKind(string(r[3]), string(r[4]), r[8] != nil)
		policies[f.oid] = [4]string{string(r[8]), string(r[9]), string(r[10]), string(r[11])}
		ts.byName[f.QualifiedName()] = f
		ts.byOID[f.oid] = f
		oids = append(oids, string(r[2]))
	}
	all := "{" + strings.Join(oids, ",") + "}"
	attrs, err := readColumns(ctx, s, all, ts)
	if err != nil {
		return nil, err
	}
	if err := readLeaves(ctx, s, ts); err != nil {
		return nil, err
	}
	if err := readPartitionKeys(ctx, s, ts, attrs); err != nil {
		return nil, err
	}
	if err := readIndexes(ctx, s, all, ts, attrs); err != nil {
		return nil, err
	}
	if err := readHazards(ctx, s, all, ts); err != nil {
		return nil, err
	}
	if err := readPolicies(ctx, s, ts, attrs, policies); err != nil {
		return nil, err
	}
	relations := map[catalog.Name][]uint32{}
	for name, f := range ts.byName {
		relations[name] = append([]uint32{f.oid}, f.types...)
	}
	ts.versions, err = pgside.ReadVersions(relations, s.catalogueQuery(ctx))
	return ts, err
}

// setKind decides whether rows can be written, and how.
func (f *tableFacts) setKind(storage, partitioned string, distributed bool) {
	f.Kind = catalog.Heap
	switch storage {
	case "heap":
	case "append":
		f.appendOnly = true
		f.Kind = catalog.AppendOptimized
	case "view":
		f.Kind, f.problem, f.remedy = catalog.OtherKind, "it is a view", "Name the table behind it in a table rule"
	case "external", "foreign":
		f.Kind, f.problem, f.remedy = catalog.OtherKind, "it is an "+storage+" table", "Create an ordinary table, or leave the source table out of the publication"
		if storage == "foreign" {
			f.problem = "it is a foreign table"
		}
	default:
		f.Kind, f.problem, f.remedy = catalog.OtherKind, "its rows are stored in a way that is not known here ("+storage+")", "Create the table with heap or append-optimized storage"
	}
	switch partitioned {
	case "root":
		if f.problem == "" {
			f.Kind = catalog.PartitionRoot
		}
	case "middle":
		f.Kind, f.problem, f.remedy = catalog.OtherKind, "it is a partition that is partitioned itself, which cannot be written to directly", "Name the root of the partitioned table in a table rule"
	}
	if f.problem == "" && !distributed {
		f.Kind, f.problem, f.remedy = catalog.OtherKind, "it has no distribution policy: it exists on the coordinator only", "Create it with a DISTRIBUTED clause"
	}
}

// attrKey finds a column by table and attribute number.
type attrKey struct {
	table  uint32
	number int
}

// readColumns fills the live columns of every table, in attribute order, and
// returns their indexes.
func readColumns(ctx context.Context, s *server, oids string, ts *tables) (map[attrKey]int, error) {
	identity, generated, nondeterministic := "''", "''", "false"
	if s.facts.has("pg_attribute.attidentity") {
		identity = "a.attidentity"
	}
	if s.facts.has("pg_attribute.attgenerated") {
		generated = "a.attgenerated"
	}
	if s.facts.has("pg_collation.collisdeterministic") {
		nondeterministic = "coalesce(NOT l.collisdeterministic, false)"
	}
	rows, err := s.Query(ctx, `
		SELECT a.attrelid, a.attnum, a.attname, a.atttypid, a.attnotnull, a.atthasdef, `+identity+`, `+generated+`,
		       format_type(a.atttypid, a.atttypmod), `+nondeterministic+`
		FROM pg_attribute a LEFT JOIN pg_collation l ON l.oid = a.attcollation
		WHERE a.attrelid = ANY ($1::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
		ORDER BY a.attrelid, a.attnum`, oids)
	if err != nil {
		return nil, s.Fail(opCatalogue, err)
	}
	list := make([]uint32, len(rows))
	for i, r := range rows {
		list[i] = pgside.OID(r[3])
	}
	types, err := pgside.ReadTypes(opCatalogue, s.String(), list, s.facts.has("pg_range.rngmultitypid"), func(sql, arg string) ([][][]byte, error) {
		rows, err := s.Query(ctx, sql, arg)
		return rows, s.Fail(opCatalogue, err)
	})
	if err != nil {
		return nil, err
	}
	attrs := map[attrKey]int{}
	for _, r := range rows {
		f := ts.byOID[pgside.OID(r[0])]
		attrs[attrKey{f.oid, int(pgside.Atoi(r[1]))}] = len(f.Columns)
		f.Columns = append(f.Columns, pgside.ColumnOf(r, types))
		f.types = append(f.types, types[pgside.OID(r[3])].Relations...)
	}
	return attrs, nil
}

// readPolicies fills the tables' distribution policies.
func readPolicies(ctx context.Context, s *server, ts *tables, attrs map[attrKey]int, policies map[uint32][4]string) error {
	rows, err := s.Query(ctx, `SELECT o.oid, o.opcname, n.nspname FROM pg_opclass o JOIN pg_namespace n ON n.oid = o.opcnamespace
		JOIN pg_am m ON m.oid = o.opcmethod WHERE m.amname = 'hash'`)
	if err != nil {
		return s.Fail(opCatalogue, err)
	}
	classes := map[string][2]string{}
	for _, r := range rows {
		classes[string(r[0])] = [2]string{string(r[1]), string(r[2])}
	}
	for oid, p := range policies {
		f := ts.byOID[oid]
		if p[0] == "" {
			continue
		}
		f.Policy.NumSegments = int(pgside.Atoi([]byte(p[1])))
		keys, opclasses := pgside.SplitList([]byte(p[2])), pgside.SplitList([]byte(p[3]))
		switch {
		case p[0] == "r":
			f.Policy.Kind = router.Replicated
			continue
		case len(keys) == 0:
			f.Policy.Kind = router.Random
			continue
		}
		f.Policy.Kind = router.Hash
		for i, k := range keys {
			c, ok := attrs[attrKey{oid, int(pgside.Atoi([]byte(k)))}]
			if !ok || i >= len(opclasses) {
				return pgside.Stop(opCatalogue, "Check the table with gpcheckcat", "the distribution policy of table %s names columns that it does not have", f.Table)
			}
			class, ok := classes[opclasses[i]]
			if !ok {
				return pgside.Stop(opCatalogue, "Check the table with gpcheckcat", "the distribution policy of table %s names an operator class that does not exist", f.Table)
			}
			f.customClass = f.customClass || class[1] != "pg_catalog"
			f.Policy.Columns = append(f.Policy.Columns, router.Column{
				Name: f.Columns[c].Name, Type: f.Columns[c].Type,
				Opclass: class[0], Nondeterministic: f.Columns[c].Nondeterministic,
			})
		}
	}
	return nil
}
