package verify

import (
	"fmt"
	"strconv"
	"strings"

	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/router"
)

// Table is a table to be compared.
type Table struct {
	// Sources are the source's tables, more than one when partitions are published by
	// their own names and are one table on the target. Their columns are the same.
	Sources []catalog.PublishedTable
	// Target is its name there, Policy its policy.
	Target catalog.Name
	Policy router.Policy
}

// replicatedSource reports whether every segment of the source has all rows.
func (t *Table) replicatedSource() bool { return t.Sources[0].Policy.Kind == router.Replicated }

// replicated reports whether every segment of the target has all rows.
func (t *Table) replicated() bool { return t.Policy.Kind == router.Replicated }

// columns are the columns that are compared; keys those that name a row, all of them
// when none do.
func (t *Table) columns() (all, keys []catalog.PublishedColumn) {
	for _, c := range t.Sources[0].Columns {
		if c.Generated {
			continue
		}
		all = append(all, c)
		if c.Key {
			keys = append(keys, c)
		}
	}
	if len(keys) == 0 {
		keys = all
	}
	return all, keys
}

// value prints a column as the source's type. Floating point numbers print otherwise
// before PostgreSQL 12 and are compared by their bytes.
func value(c *catalog.PublishedColumn) string {
	q := pgside.QuoteIdent(c.Name)
	switch c.TypeName {
	case "real":
		return "float4send(" + q + "::real)"
	case "double precision":
		return "float8send(" + q + "::double precision)"
	}
	if c.Type != nil {
		return q
	}
	if _, ok := router.BuiltinType(c.TypeOID); !ok {
		return q
	}
	return q + "::" + c.TypeName
}

// row is a hash of columns, 32 hexadecimal digits.
func row(cols []catalog.PublishedColumn) string {
	vals := make([]string, len(cols))
	for i := range cols {
		vals[i] = value(&cols[i])
	}
	return "md5(ROW(" + strings.Join(vals, ", ") + ")::text)"
}

// side says how a cluster's rows are read.
type side struct {
	// place is an SQL expression for where a row is, on one of the nodes; version one
	// for the row version.
	place, version string
	// dist reads every segment's rows of a replicated table, through a coordinator.
	dist bool
}

// rows is a query for p (place), k (hash of the key), r (hash of the row) and v (hash of
// the version) of every row.
func (s *side) rows(t *Table, relations []catalog.Name) string {
	all, keys := t.columns()
	parts := make([]string, len(relations))
	for i, n := range relations {
		rel := pgside.QuoteIdent(n.Schema) + "." + pgside.QuoteIdent(n.Table)
		if s.dist && t.replicated() {
			rel = "gp_dist_random(" + pgside.QuoteLiteral(rel) + ")"
		}
		parts[i] = fmt.Sprintf("SELECT %s AS p, %s AS k, %s AS r, md5(%s) AS v FROM %s", s.place, row(keys), row(all), s.version, rel)
	}
	return "(" + strings.Join(parts, " UNION ALL ") + ") q"
}

// bits makes a number of 8 hexadecimal digits of a hash.
func bits(hash string, from int, typ string) string {
	return fmt.Sprintf("('x' || substr(%s, %d, 8))::bit(32)::%s", hash, from, typ)
}

// bucket is the bucket of a key's hash.
func bucket(buckets int) string {
	return fmt.Sprintf("(%s %% %d)", bits("k", 1, "bigint"), buckets)
}

// sumsSQL returns place, bucket, rows and the two halves of the checksum.
func (s *side) sumsSQL(t *Table, relations []catalog.Name, buckets int) string {
	return fmt.Sprintf("SELECT p, %s, count(*), sum(%s), sum(%s) FROM %s GROUP BY 1, 2",
		bucket(buckets), bits("r", 1, "int"), bits("r", 9, "int"), s.rows(t, relations))
}

// keysSQL returns place, key, rows, checksum and version of the rows of some buckets,
// with keys of those keys only.
func (s *side) keysSQL(t *Table, relations []catalog.Name, buckets int, which []int, keys []string) string {
	list := make([]string, len(which))
	for i, b := range which {
		list[i] = strconv.Itoa(b)
	}
	where := fmt.Sprintf("%s IN (%s)", bucket(buckets), strings.Join(list, ", "))
	if keys != nil {
		where += " AND k = ANY (" + pgside.QuoteLiteral(pgside.TextArray(keys)) + "::text[])"
	}
	return fmt.Sprintf("SELECT p, k, count(*), sum(%s), sum(%s), sum(%s) FROM %s WHERE %s GROUP BY 1, 2",
		bits("r", 1, "int"), bits("r", 9, "int"), bits("v", 1, "int"), s.rows(t, relations), where)
}

// placesSQL returns place and distribution key of every row.
func (s *side) placesSQL(t *Table) string {
	vals := []string{s.place}
	for _, c := range t.Policy.Columns {
		vals = append(vals, pgside.QuoteIdent(c.Name)+"::text")
	}
	return fmt.Sprintf("SELECT %s FROM %s.%s", strings.Join(vals, ", "), pgside.QuoteIdent(t.Target.Schema), pgside.QuoteIdent(t.Target.Table))
}

// RowSQL finds the rows of a key's hash, for a person.
func (t *Table) RowSQL(key string) string {
	_, keys := t.columns()
	return fmt.Sprintf("SELECT * FROM %s.%s WHERE %s = '%s'", pgside.QuoteIdent(t.Target.Schema), pgside.QuoteIdent(t.Target.Table), row(keys), key)
}
