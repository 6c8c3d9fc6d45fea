package pgside

import (
	"slices"

	"cbrepl/catalog"
)

// UniqueFacts is what decides, besides an index's own columns, whether changes of
// rows can meet in it.
type UniqueFacts struct {
	// Generated are the columns that a generated column is computed from, by name.
	Generated map[string][]string
	// PartitionKey are the columns that choose a row's partition, on any level.
	PartitionKey []string
}

// ReadGenerated reads, by table, what generated columns are computed from. Servers
// before PostgreSQL 12 have none, and no attgenerated.
func ReadGenerated(oids string, query func(sql, oids string) ([][][]byte, error)) (map[uint32]map[string][]string, error) {
	// Until PostgreSQL 14 the column itself depends on the others, later its default.
	rows, err := query(`
		SELECT DISTINCT g.attrelid, g.attname, b.attname
		FROM pg_attribute g
		LEFT JOIN pg_attrdef e ON e.adrelid = g.attrelid AND e.adnum = g.attnum
		JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = g.attrelid AND d.refobjsubid > 0 AND d.refobjsubid <> g.attnum
		  AND (d.classid = 'pg_class'::regclass AND d.objid = g.attrelid AND d.objsubid = g.attnum
		       OR d.classid = 'pg_attrdef'::regclass AND d.objid = e.oid)
		JOIN pg_attribute b ON b.attrelid = g.attrelid AND b.attnum = d.refobjsubid
		WHERE g.attrelid = ANY ($1::oid[]) AND g.attnum > 0 AND NOT g.attisdropped AND g.attgenerated <> ''`, oids)
	if err != nil {
		return nil, err
	}
	out := map[uint32]map[string][]string{}
	for _, r := range rows {
		t := OID(r[0])
		if out[t] == nil {
			out[t] = map[string][]string{}
		}
		out[t][string(r[1])] = append(out[t][string(r[1])], string(r[2]))
	}
	return out, nil
}

// ReadPartitionKeys reads the columns of the partition keys of declaratively
// partitioned tables, all levels of each. Every level has its own key, in its own
// numbers. An expression stands as 0; the columns that it reads are among what the
// relation depends on.
func ReadPartitionKeys(oids string, query func(sql, oids string) ([][][]byte, error)) (map[uint32][]string, error) {
	rows, err := query(`
		WITH RECURSIVE parts(root, rel) AS (
			SELECT o, o FROM unnest($1::oid[]) o
			UNION ALL
			SELECT p.root, h.inhrelid FROM parts p JOIN pg_inherits h ON h.inhparent = p.rel AND `+DeclarativePartition+`)
		SELECT DISTINCT p.root, a.attname FROM parts p
		JOIN pg_partitioned_table t ON t.partrelid = p.rel
		JOIN pg_attribute a ON a.attrelid = p.rel AND a.attnum > 0 AND NOT a.attisdropped
		WHERE a.attnum = ANY (t.partattrs::int2[])
		   OR 0 = ANY (t.partattrs::int2[]) AND EXISTS (
			SELECT 1 FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = p.rel AND d.objsubid = 0
			AND d.refclassid = 'pg_class'::regclass AND d.refobjid = p.rel AND d.refobjsubid = a.attnum)`, oids)
	if err != nil {
		return nil, err
	}
	out := map[uint32][]string{}
	for _, r := range rows {
		out[OID(r[0])] = append(out[OID(r[0])], string(r[1]))
	}
	return out, nil
}

// CompleteReads adds to what a table's unique indexes read (catalog.Unique.Reads)
// what decides it indirectly: a generated column's value comes from others, and an
// index of one partition meets the rows that the partition key brings there.
func CompleteReads(t *catalog.Table, f UniqueFacts) {
	for i := range t.Uniques {
		u := &t.Uniques[i]
		add := func(names []string) {
			for _, name := range names {
				if c := t.Column(name); c >= 0 && !slices.Contains(u.Reads, c) {
					u.Reads = append(u.Reads, c)
				}
			}
		}
		for _, c := range slices.Clone(u.Reads) {
			add(f.Generated[t.Columns[c].Name])
		}
		if u.OnePartition {
			add(f.PartitionKey)
		}
		slices.Sort(u.Reads)
	}
}
