package cloudberry

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
)

// partsSQL finds the relations below the tables in $1, these included.
const partsSQL = `WITH RECURSIVE parts(root, rel) AS (
	SELECT o, o FROM unnest($1::oid[]) o
	UNION ALL
	SELECT p.root, h.inhrelid FROM parts p JOIN pg_inherits h ON h.inhparent = p.rel) `

// roots lists the partitioned tables as an array literal, "" when there are none.
func (ts *tables) roots() string {
	var oids []string
	for oid, f := range ts.byOID {
		if f.Kind == catalog.PartitionRoot {
			oids = append(oids, strconv.FormatUint(uint64(oid), 10))
		}
	}
	if len(oids) == 0 {
		return ""
	}
	return "{" + strings.Join(oids, ",") + "}"
}

// readLeaves finds the relations that hold the tables' rows.
func readLeaves(ctx context.Context, s *server, ts *tables) error {
	for oid, f := range ts.byOID {
		if f.Kind != catalog.PartitionRoot {
			f.leaves[strconv.FormatUint(uint64(oid), 10)] = &leaf{name: pgside.TableName(f.Table), appendOnly: f.appendOnly}
		}
	}
	roots := ts.roots()
	if roots == "" {
		return nil
	}
	rows, err := s.Query(ctx, partsSQL+`
		SELECT p.root, c.oid, quote_ident(n.nspname) || '.' || quote_ident(c.relname), `+s.facts.storageExpr()+`
		FROM parts p JOIN pg_class c ON c.oid = p.rel JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind <> 'p' AND NOT EXISTS (SELECT 1 FROM pg_inherits h WHERE h.inhparent = c.oid)`, roots)
	if err != nil {
		return s.Fail(opCatalogue, err)
	}
	// The root's own storage says nothing: its partitions have theirs.
	for _, f := range ts.byOID {
		if f.Kind == catalog.PartitionRoot {
			f.appendOnly = false
		}
	}
	for _, r := range rows {
		f := ts.byOID[pgside.OID(r[0])]
		l := &leaf{name: string(r[2])}
		switch storage := string(r[3]); storage {
		case "heap":
		case "append":
			l.appendOnly, f.appendOnly = true, true
		default:
			f.problem = "its partition " + l.name + " is an " + storage + " table, which cannot be written to by key"
			f.remedy = "Detach that partition, or leave the source table out of the publication"
		}
		f.leaves[string(r[1])] = l
	}
	return nil
}

// readPartitionKeys pins the columns that choose a partition: some servers refuse
// an update that moves a row to another one.
func readPartitionKeys(ctx context.Context, s *server, ts *tables, attrs map[attrKey]int) error {
	roots := ts.roots()
	if roots == "" {
		return nil
	}
	pin := func(f *tableFacts, c int) {
		if c >= 0 && !slices.Contains(f.Pinned, c) {
			f.Pinned = append(f.Pinned, c)
		}
	}
	if s.facts.has("pg_partition.parrelid") {
		rows, err := s.Query(ctx, `SELECT parrelid, array_to_string(paratts::int2[], ',') FROM pg_partition
			WHERE parrelid = ANY ($1::oid[]) AND NOT paristemplate`, roots)
		if err != nil {
			return s.Fail(opCatalogue, err)
		}
		for _, r := range rows {
			f := ts.byOID[pgside.OID(r[0])]
			for _, a := range pgside.SplitList(r[1]) {
				if c, ok := attrs[attrKey{f.oid, int(pgside.Atoi([]byte(a)))}]; ok {
					pin(f, c)
				}
			}
		}
		return nil
	}
	keys, err := pgside.ReadPartitionKeys(roots, s.catalogueQuery(ctx))
	if err != nil {
		return err
	}
	for oid, names := range keys {
		for _, name := range names {
			pin(ts.byOID[oid], ts.byOID[oid].Column(name))
		}
	}
	return nil
}

// readHazards fills what would harm rows, and completes what unique indexes read.
func readHazards(ctx context.Context, s *server, oids string, ts *tables) error {
	query := s.catalogueQuery(ctx)
	var generated map[uint32]map[string][]string
	var err error
	if s.facts.has("pg_attribute.attgenerated") {
		if generated, err = pgside.ReadGenerated(oids, query); err != nil {
			return err
		}
	}
	facts := pgside.HazardFacts{IsPartition: pgside.DeclarativePartition}
	if s.facts.has("pg_partition.parrelid") {
		facts.IsPartition = "EXISTS (SELECT 1 FROM pg_partition_rule q WHERE q.parchildrelid = h.inhrelid)"
	}
	hazards, err := pgside.ReadHazards(facts, oids, query)
	if err != nil {
		return err
	}
	for oid, f := range ts.byOID {
		f.hazards = hazards[oid]
		ts.fires = ts.fires || f.hazards != nil && len(f.hazards.Origin) > 0
		// The partition key is pinned.
		pgside.CompleteReads(f.Table, pgside.UniqueFacts{Generated: generated[oid]})
	}
	return nil
}

// catalogueQuery runs a statement about some tables.
func (s *server) catalogueQuery(ctx context.Context) func(sql, oids string) ([][][]byte, error) {
	return func(sql, oids string) ([][][]byte, error) {
		rows, err := s.Query(ctx, sql, oids)
		return rows, s.Fail(opCatalogue, err)
	}
}

// readIndexes fills the unique indexes and exclusion constraints of every table,
// those of partitions under their root, and the columns that indexes begin with.
func readIndexes(ctx context.Context, s *server, oids string, ts *tables, attrs map[attrKey]int) error {
	keys, attached := "i.indnatts", ""
	if s.facts.has("pg_index.indnkeyatts") {
		keys = "i.indnkeyatts"
		// An index of a partition that belongs to one of the root's is the same
		// constraint.
		attached = "AND (p.root = p.rel OR NOT EXISTS (SELECT 1 FROM pg_inherits h WHERE h.inhrelid = i.indexrelid))"
	}
	rows, err := s.Query(ctx, partsSQL+`
		SELECT p.root, p.rel, x.relname, i.indisprimary, i.indisexclusion,
		       NOT i.indimmediate OR coalesce(k.condeferrable, false),
		       i.indexprs IS NULL AND i.indpred IS NULL,
		       array_to_string((i.indkey::int2[])[0:`+keys+` - 1], ','),
		       array_to_string(ARRAY(
		           SELECT DISTINCT d.refobjsubid FROM pg_depend d
		           WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
		             AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid AND d.refobjsubid > 0), ','),
		       i.indisunique OR i.indisexclusion, i.indisvalid AND i.indpred IS NULL AND m.amname IN ('btree', 'hash', 'bitmap'), i.indisvalid, k.oid IS NOT NULL
		FROM parts p
		JOIN pg_index i ON i.indrelid = p.rel
		JOIN pg_class x ON x.oid = i.indexrelid
		JOIN pg_am m ON m.oid = x.relam
		LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x')
		WHERE i.indisready AND (i.indisunique OR i.indisexclusion OR i.indisvalid AND p.root = p.rel) `+attached+`
		ORDER BY p.root, i.indisprimary DESC, p.rel <> p.root, x.relname`, oids)
	if err != nil {
		return s.Fail(opCatalogue, err)
	}
	partAttrs, err := readPartitionColumns(ctx, s, rows)
	if err != nil {
		return err
	}
	for _, r := range rows {
		f := ts.byOID[pgside.OID(r[0])]
		rel := pgside.OID(r[1])
		if rel != f.oid && f.Kind != catalog.PartitionRoot {
			continue // a table that inherits: its rows are not this table's
		}
		column := func(number string) (int, bool) {
			num := int(pgside.Atoi([]byte(number)))
			if rel == f.oid {
				i, ok := attrs[attrKey{rel, num}]
				return i, ok
			}
			i := f.Column(partAttrs[attrKey{rel, num}])
			return i, i >= 0
		}
		fields := pgside.SplitList(r[7])
		if string(r[10]) == "t" && rel == f.oid && len(fields) > 0 {
			if c, ok := column(fields[0]); ok && !f.leads(c) {
				f.leading = append(f.leading, c)
			}
		}
		if string(r[9]) == "t" {
			f.addUnique(r, rel, fields, column)
		}
	}
	return nil
}

// addUnique adds a row of readIndexes to the table's unique indexes.
func (f *tableFacts) addUnique(r [][]byte, rel uint32, fields []string, column func(string) (int, bool)) {
	columnsOnly := string(r[6]) == "t"
	u := catalog.Unique{
		Name: string(r[2]), Primary: string(r[3]) == "t" && rel == f.oid,
		Exclusion: string(r[4]) == "t", Deferrable: string(r[5]) == "t", Constraint: string(r[12]) == "t",
		// An index of one partition does not make a row of the root unique, nor does
		// one that is not valid: it is enforced, but may lack older rows.
		Plain: columnsOnly && rel == f.oid && string(r[11]) == "t", OnePartition: rel != f.oid,
	}
	reads := map[int]bool{}
	for _, n := range fields {
		if i, ok := column(n); ok { // 0 stands for an expression
			u.Columns = append(u.Columns, i)
			reads[i] = true
		}
	}
	if !columnsOnly {
		// Expressions and predicate: what the index depends on, INCLUDE columns too.
		for _, n := range pgside.SplitList(r[8]) {
			if i, ok := column(n); ok {
				reads[i] = true
			}
		}
	}
	for i := range reads {
		u.Reads = append(u.Reads, i)
	}
	slices.Sort(u.Reads)
	// Where partitions have no link to the root's index, theirs repeat it.
	if rel != f.oid && slices.ContainsFunc(f.Uniques, func(o catalog.Unique) bool {
		return o.Exclusion == u.Exclusion && slices.Equal(o.Columns, u.Columns) && slices.Equal(o.Reads, u.Reads)
	}) {
		return
	}
	f.Uniques = append(f.Uniques, u)
}

// readPartitionColumns returns the column names of the partitions among rows of
// readIndexes: their numbers can differ from the root's.
func readPartitionColumns(ctx context.Context, s *server, rows [][][]byte) (map[attrKey]string, error) {
	seen := map[string]bool{}
	var parts []string
	for _, r := range rows {
		if rel := string(r[1]); rel != string(r[0]) && !seen[rel] {
			seen[rel] = true
			parts = append(parts, rel)
		}
	}
	out := map[attrKey]string{}
	if len(parts) == 0 {
		return out, nil
	}
	found, err := s.Query(ctx, `SELECT attrelid, attnum, attname FROM pg_attribute
		WHERE attrelid = ANY ($1::oid[]) AND attnum > 0 AND NOT attisdropped`, "{"+strings.Join(parts, ",")+"}")
	if err != nil {
		return nil, s.Fail(opCatalogue, err)
	}
	for _, r := range found {
		out[attrKey{pgside.OID(r[0]), int(pgside.Atoi(r[1]))}] = string(r[2])
	}
	return out, nil
}
