package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"cbrepl/dtx"
	"cbrepl/router"
)

// Table defines a table of a cluster.
type Table struct {
	Name string // "name" (in public) or "schema.name"
	// Columns is what stands between the parentheses of CREATE TABLE: columns
	// and constraints.
	Columns string
	// Suffix follows the parentheses, for example "partition by range (day)".
	Suffix string
	// After holds statements run on every node after the table is made:
	// partitions, indexes, ALTER TABLE ... REPLICA IDENTITY.
	After []string

	// Kind is the distribution policy; 0 means router.Hash.
	Kind router.PolicyKind
	// Key lists the distribution key columns of a hash policy, in key order.
	Key []string
	// Opclasses are the key columns' operator classes; empty means default ones.
	Opclasses []string
	// NumSegments is the number of segments the table is spread over; 0 means
	// all of the cluster.
	NumSegments int

	// Unpublished keeps the table out of the source's publication.
	Unpublished bool
	// Publish follows the table's name in the publication: a column list, a row
	// filter, as "(a, b) where (a > 0)".
	Publish string
}

var kindNames = map[router.PolicyKind]string{
	router.Hash: "hash", router.Random: "random", router.Replicated: "replicated",
}

// split reads "name" or "schema.name".
func split(name string) pgx.Identifier {
	if schema, table, ok := strings.Cut(name, "."); ok {
		return pgx.Identifier{schema, table}
	}
	return pgx.Identifier{"public", name}
}

// CreateTable makes the table on every node, coordinator included, records its
// policy on the coordinator and, on a source, publishes it on every node.
func (c *nodes) CreateTable(ctx context.Context, t Table) error {
	if t.Kind == 0 {
		t.Kind = router.Hash
	}
	if t.NumSegments == 0 {
		t.NumSegments = c.Segments()
	}
	if t.NumSegments > c.Segments() || kindNames[t.Kind] == "" {
		return opErr("create table "+t.Name, fmt.Errorf("policy %s over %d segments in a cluster of %d", kindNames[t.Kind], t.NumSegments, c.Segments()))
	}
	id := split(t.Name)
	if len(t.Opclasses) == 0 {
		t.Opclasses = make([]string, len(t.Key))
	}
	var sql strings.Builder
	fmt.Fprintf(&sql, "create schema if not exists %s; ", id[:1].Sanitize())
	fmt.Fprintf(&sql, "create table %s (%s) %s", id.Sanitize(), t.Columns, t.Suffix)
	for _, a := range t.After {
		sql.WriteString("; " + a)
	}
	if c.publication != "" && !t.Unpublished {
		fmt.Fprintf(&sql, "; alter publication %s add table %s %s",
			pgx.Identifier{c.publication}.Sanitize(), id.Sanitize(), t.Publish)
	}
	if err := c.ExecAll(ctx, sql.String()); err != nil {
		return opErr("create table "+t.Name, err)
	}
	err := c.Exec(ctx, dtx.Coordinator, recordPolicy, id.Sanitize(), kindNames[t.Kind], nonNil(t.Key), nonNil(t.Opclasses), t.NumSegments)
	if err == nil {
		_, err = c.table(ctx, t.Name)
	}
	return opErr("create table "+t.Name, err)
}

// recordPolicy records a table's policy and the same for its partitions, which
// may be published under their own names.
const recordPolicy = `
insert into cbrepl.distribution_policy
select n.nspname, c.relname, $2, $3, $4, $5
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where c.oid = $1::text::regclass or c.oid in (select relid from pg_partition_tree($1::text::regclass))`

// DropTable drops the table, with its partitions, on every node and its policy.
func (c *nodes) DropTable(ctx context.Context, name string) error {
	id := split(name)
	if err := c.ExecAll(ctx, "drop table if exists "+id.Sanitize()+" cascade"); err != nil {
		return err
	}
	c.forgetTable(name)
	return c.Exec(ctx, dtx.Coordinator, `delete from cbrepl.distribution_policy
	    where to_regclass(quote_ident(schema_name) || '.' || quote_ident(table_name)) is null`)
}

func nonNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// tableInfo is what placement and comparison need of a table.
type tableInfo struct {
	id     pgx.Identifier
	cols   []column // in table order, dropped ones left out
	policy router.Policy
	key    []int          // key columns, in key order, as indexes of cols
	router *router.Router // nil unless the policy is hash
}

type column struct {
	name      string
	typeOID   uint32
	typeName  string // as format_type prints it
	generated bool
}

// sql is the table's quoted name.
func (t *tableInfo) sql() string { return t.id.Sanitize() }

// index finds a column; -1 when there is none.
func (t *tableInfo) index(name string) int {
	return slices.IndexFunc(t.cols, func(c column) bool { return c.name == name })
}

// insertable lists the columns that take values.
func (t *tableInfo) insertable() []int {
	var out []int
	for i, c := range t.cols {
		if !c.generated {
			out = append(out, i)
		}
	}
	return out
}

// Tables lists the tables with a policy, as schema.name in order. Partitions
// count as their root.
func (c *nodes) Tables(ctx context.Context) ([]string, error) {
	return query(ctx, c, dtx.Coordinator, pgx.RowTo[string],
		`select p.schema_name || '.' || p.table_name
		   from cbrepl.distribution_policy p join pg_class c on c.oid = to_regclass(quote_ident(schema_name) || '.' || quote_ident(table_name))
		  where not c.relispartition order by 1`)
}

// forgetTable makes the next use read the table's definition again.
func (c *nodes) forgetTable(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.tables, strings.Join(split(name), "."))
}

// table reads a table's columns and policy from the coordinator, once.
func (c *nodes) table(ctx context.Context, name string) (*tableInfo, error) {
	id := split(name)
	key := strings.Join(id, ".")
	c.mu.Lock()
	t := c.tables[key]
	c.mu.Unlock()
	if t != nil {
		return t, nil
	}
	t, err := c.readTable(ctx, id)
	if err != nil {
		return nil, opErr("read table "+name, err)
	}
	c.mu.Lock()
	c.tables[key] = t
	c.mu.Unlock()
	return t, nil
}

func (c *nodes) readTable(ctx context.Context, id pgx.Identifier) (*tableInfo, error) {
	t := &tableInfo{id: id}
	var err error
	t.cols, err = query(ctx, c, dtx.Coordinator, func(r pgx.CollectableRow) (column, error) {
		var v column
		return v, r.Scan(&v.name, &v.typeOID, &v.typeName, &v.generated)
	}, `select attname, atttypid, format_type(atttypid, atttypmod), attgenerated <> ''
	      from pg_attribute where attrelid = $1::text::regclass and attnum > 0 and not attisdropped order by attnum`, t.sql())
	if err != nil {
		return nil, err
	}
	type policyRow struct {
		kind          string
		columns, opcs []string
		n             int
	}
	rows, err := query(ctx, c, dtx.Coordinator, func(r pgx.CollectableRow) (policyRow, error) {
		var v policyRow
		return v, r.Scan(&v.kind, &v.columns, &v.opcs, &v.n)
	}, "select kind, columns, opclasses, numsegments from cbrepl.distribution_policy where schema_name = $1 and table_name = $2", id[0], id[1])
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, errors.New("it has no distribution policy")
	}
	p := rows[0]
	for k, n := range kindNames {
		if n == p.kind {
			t.policy.Kind = k
		}
	}
	t.policy.NumSegments = p.n
	t.policy.AssumeUTC = true // every session of the lab has timezone UTC
	if t.policy.Kind != router.Hash {
		return t, nil
	}
	for i, name := range p.columns {
		k := t.index(name)
		if k < 0 {
			return nil, fmt.Errorf("its distribution key column %s does not exist", name)
		}
		typ, err := c.keyType(ctx, t.cols[k])
		if err != nil {
			return nil, err
		}
		col := router.Column{Name: name, Type: typ}
		if i < len(p.opcs) {
			col.Opclass = p.opcs[i]
		}
		t.key = append(t.key, k)
		t.policy.Columns = append(t.policy.Columns, col)
	}
	t.router, err = router.New(t.policy)
	return t, err
}

// keyType describes a built-in type or a domain over one.
func (c *nodes) keyType(ctx context.Context, col column) (*router.Type, error) {
	if t, ok := router.BuiltinType(col.typeOID); ok {
		return t, nil
	}
	base, err := query(ctx, c, dtx.Coordinator, func(r pgx.CollectableRow) (column, error) {
		var v column
		return v, r.Scan(&v.typeOID, &v.typeName)
	}, "select typbasetype, format_type(typbasetype, -1) from pg_type where oid = $1 and typtype = 'd'", col.typeOID)
	if err != nil {
		return nil, err
	}
	if len(base) == 0 {
		return nil, fmt.Errorf("column %s of type %s cannot be a distribution key in the lab", col.name, col.typeName)
	}
	elem, err := c.keyType(ctx, base[0])
	if err != nil {
		return nil, err
	}
	return &router.Type{OID: col.typeOID, Name: col.typeName, Kind: router.DomainType, Elem: elem}, nil
}
