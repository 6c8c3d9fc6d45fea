package source

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"cbrepl/catalog"
	"cbrepl/check"
	"cbrepl/dtx"
	"cbrepl/router"
)

// policyRow is a distribution policy as a catalogue holds it.
type policyRow struct {
	schema, table string
	kind          string // hash, random, replicated
	columns       []keyColumn
	numSegments   int
}

type keyColumn struct {
	name             string
	opclass          string // "" is the type's default
	typ              *router.Type
	nondeterministic bool
}

// Where policies are kept.
const (
	ownPolicies = "cbrepl.distribution_policy"
	gpPolicies  = "pg_catalog.gp_distribution_policy"
)

// createPolicyTable is the remedy when a server has neither.
const createPolicyTable = "CREATE SCHEMA IF NOT EXISTS cbrepl; CREATE TABLE cbrepl.distribution_policy " +
	"(schema_name text, table_name text, kind text NOT NULL, columns text[] NOT NULL, opclasses text[] NOT NULL, " +
	"numsegments int NOT NULL, PRIMARY KEY (schema_name, table_name))"

// readPolicies reads the cluster's policies from the coordinator: of a
// Greenplum-family server from its catalogue, else from cbrepl's own table. nil
// means that neither is there.
func readPolicies(ctx context.Context, conn *pgx.Conn) ([]policyRow, error) {
	for _, src := range []struct{ name, sql string }{
		{gpPolicies, gpPolicySQL(gpPolicies)},
		{ownPolicies, ownPolicySQL},
	} {
		var there bool
		if err := conn.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", src.name).Scan(&there); err != nil {
			return nil, err
		}
		if there {
			return scanPolicies(ctx, conn, src.sql)
		}
	}
	return nil, nil
}

// ownPolicySQL has one row per key column; one with empty names otherwise.
const ownPolicySQL = `SELECT p.schema_name, p.table_name, p.kind, p.numsegments, coalesce(k.col, ''),
 CASE WHEN k.class IS NULL OR k.class = 'default' THEN '' ELSE k.class END, coalesce(a.atttypid, 0)::oid,
 coalesce(NOT co.collisdeterministic, false)
 FROM cbrepl.distribution_policy p
 LEFT JOIN LATERAL unnest(p.columns, p.opclasses) WITH ORDINALITY k(col, class, ord) ON p.kind = 'hash' AND k.col IS NOT NULL
 LEFT JOIN pg_namespace n ON n.nspname = p.schema_name
 LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.table_name
 LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = k.col AND NOT a.attisdropped
 LEFT JOIN pg_collation co ON co.oid = a.attcollation
 ORDER BY 1, 2, k.ord`

// gpPolicySQL reads gp_distribution_policy (Greenplum 6 and later, Cloudberry):
// policytype r is replicated, p is hash, or random without key columns; distkey
// and distclass are vectors of column numbers and operator classes. A class of
// another schema than the server's own keeps its schema, so that it is not taken
// for the server's of the same name. Columns that not every generation has are
// read through JSON.
func gpPolicySQL(catalogue string) string {
	return `SELECT n.nspname, c.relname,
 CASE WHEN p.policytype = 'r' THEN 'replicated' WHEN p.distkey::text <> '' THEN 'hash' ELSE 'random' END,
 p.numsegments::int, coalesce(a.attname, ''),
 coalesce(CASE WHEN ocn.nspname = 'pg_catalog' THEN '' ELSE ocn.nspname || '.' END || oc.opcname, ''), coalesce(a.atttypid, 0)::oid,
 coalesce(row_to_json(co)->>'collisdeterministic' = 'false', false)
 FROM ` + catalogue + ` p
 JOIN pg_class c ON c.oid = p.localoid
 JOIN pg_namespace n ON n.oid = c.relnamespace
 LEFT JOIN LATERAL unnest(p.distkey::int2[], p.distclass::oid[]) WITH ORDINALITY k(att, cls, ord) ON p.policytype = 'p'
 LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.att
 LEFT JOIN pg_opclass oc ON oc.oid = k.cls
 LEFT JOIN pg_namespace ocn ON ocn.oid = oc.opcnamespace
 LEFT JOIN pg_collation co ON co.oid = a.attcollation
 WHERE p.policytype IN ('p', 'r') ORDER BY 1, 2, k.ord`
}

func scanPolicies(ctx context.Context, conn *pgx.Conn, sql string) ([]policyRow, error) {
	rows, err := conn.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	out := []policyRow{}
	var r policyRow
	var c keyColumn
	var oid uint32
	var oids []uint32
	_, err = pgx.ForEachRow(rows, []any{&r.schema, &r.table, &r.kind, &r.numSegments, &c.name, &c.opclass, &oid, &c.nondeterministic}, func() error {
		if n := len(out); n == 0 || out[n-1].schema != r.schema || out[n-1].table != r.table {
			out = append(out, policyRow{schema: r.schema, table: r.table, kind: r.kind, numSegments: r.numSegments})
		}
		if c.name != "" {
			last := &out[len(out)-1]
			last.columns = append(last.columns, c)
			oids = append(oids, oid)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	types, err := readTypes(ctx, conn, oids)
	if err != nil {
		return nil, err
	}
	i := 0
	for r := range out {
		for c := range out[r].columns {
			out[r].columns[c].typ = types[oids[i]]
			i++
		}
	}
	return out, nil
}

// typesSQL describes types that are not built in, with what they consist of.
const typesSQL = `SELECT t.oid, format_type(t.oid, NULL), t.typtype::text, t.typcategory = 'A' AND t.typelem <> 0,
 CASE t.typtype WHEN 'd' THEN t.typbasetype WHEN 'r' THEN (SELECT rngsubtype FROM pg_range WHERE rngtypid = t.oid)
  WHEN 'm' THEN (SELECT rngtypid FROM pg_range r WHERE row_to_json(r)->>'rngmultitypid' = t.oid::text) ELSE t.typelem END,
 ARRAY(SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = t.typrelid AND t.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum),
 coalesce((SELECT e.extname FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
  WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'), ''),
 CASE t.typtype WHEN 'd' THEN format_type(t.typbasetype, t.typtypmod) ELSE '' END,
 (SELECT coalesce(json_agg(json_build_object('Name', a.attname, 'TypeName', format_type(a.atttypid, a.atttypmod)) ORDER BY a.attnum), 'null')
  FROM pg_attribute a WHERE a.attrelid = t.typrelid AND t.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped)::text,
 coalesce((SELECT row_to_json(co)->>'collisdeterministic' = 'false' FROM pg_range r JOIN pg_collation co ON co.oid = r.rngcollation WHERE r.rngtypid = t.oid), false)
 FROM pg_type t WHERE t.oid = ANY ($1)`

// readTypes describes types by OID, with all they refer to.
func readTypes(ctx context.Context, conn *pgx.Conn, oids []uint32) (map[uint32]*router.Type, error) {
	types := map[uint32]*router.Type{}
	type link struct {
		elem   uint32
		fields []uint32
	}
	links := map[uint32]link{}
	for todo := oids; len(todo) > 0; {
		var ask []uint32
		for _, o := range todo {
			if types[o] != nil || o == 0 {
				continue
			}
			if t, ok := router.BuiltinType(o); ok {
				types[o] = t
				continue
			}
			types[o] = &router.Type{OID: o, Name: fmt.Sprintf("type %d", o), Kind: router.BaseType}
			ask = append(ask, o)
		}
		todo = nil
		if len(ask) == 0 {
			break
		}
		rows, err := conn.Query(ctx, typesSQL, ask)
		if err != nil {
			return nil, err
		}
		var t router.Type
		var kind string
		var array bool
		var l link
		var attributes string
		_, err = pgx.ForEachRow(rows, []any{&t.OID, &t.Name, &kind, &array, &l.elem, &l.fields, &t.Extension, &t.ElemName, &attributes, &t.Nondeterministic}, func() error {
			t.Attributes = nil
			if err := json.Unmarshal([]byte(attributes), &t.Attributes); err != nil {
				return fmt.Errorf("attributes of type %s: %w", t.Name, err)
			}
			t.Kind = map[string]router.TypeKind{
				"d": router.DomainType, "e": router.EnumType, "r": router.RangeType,
				"m": router.MultirangeType, "c": router.CompositeType,
			}[kind]
			if t.Kind == 0 {
				t.Kind = router.BaseType
				if array {
					t.Kind = router.ArrayType
				}
			}
			*types[t.OID] = t
			links[t.OID] = l
			todo = append(append(todo, l.elem), l.fields...)
			l.fields = nil
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	for o, l := range links {
		t := types[o]
		if t.Kind != router.BaseType && t.Kind != router.EnumType && t.Kind != router.CompositeType {
			t.Elem = types[l.elem]
		}
		for _, f := range l.fields {
			t.Fields = append(t.Fields, types[f])
		}
	}
	return types, nil
}

// withPolicies joins the coordinator's published tables with their policies. A
// partition that is published under its own name may have the policy of its
// root.
func withPolicies(cfg *Config, f *Facts, policies []policyRow) ([]catalog.PublishedTable, check.Findings) {
	var ps check.Findings
	add := func(table, found, remedy string, sql ...string) {
		ps = append(ps, check.Finding{Content: dtx.AtContent(dtx.Coordinator), Relation: table, Found: found, Remedy: remedy, SQL: sql})
	}
	pubs := f.Nodes[0].tables
	if policies == nil && len(pubs) > 0 {
		add("", "neither gp_distribution_policy nor "+ownPolicies+" says how tables are distributed",
			"Create the table there and describe every published table in it", createPolicyTable)
		return nil, ps
	}
	byName := map[string]*policyRow{}
	for i := range policies {
		p := &policies[i]
		byName[p.schema+"."+p.table] = p
	}
	var out []catalog.PublishedTable
	for _, pt := range pubs {
		t := pt.PublishedTable
		p := byName[t.String()]
		if p == nil && t.Root != "" {
			p = byName[t.Root]
		}
		if p == nil {
			add(t.String(), "it has no distribution policy", "Describe it there, by its own key if this is not it", insertPolicySQL(&pt, cfg.segments()))
			continue
		}
		policy, wrong := p.compile(&t, cfg.segments())
		if wrong != nil {
			add(t.String(), wrong.Found, wrong.Remedy)
			continue
		}
		t.Policy = policy
		out = append(out, t)
	}
	return out, ps
}

// insertPolicySQL proposes a policy: by primary key, else random.
func insertPolicySQL(t *nodeTable, segments int) string {
	kind, cols := "random", "'{}', '{}'"
	if len(t.primaryKey) > 0 {
		kind = "hash"
		cols = "ARRAY[" + joinQuoted(t.primaryKey) + "], ARRAY[" + joinQuoted(make([]string, len(t.primaryKey))) + "]"
	}
	return fmt.Sprintf("INSERT INTO %s VALUES (%s, %s, '%s', %s, %d)", ownPolicies, quote(t.Schema), quote(t.Name), kind, cols, segments)
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func joinQuoted(ss []string) string {
	q := make([]string, len(ss))
	for i, s := range ss {
		q[i] = quote(s)
	}
	return strings.Join(q, ", ")
}

// compile turns a catalogue row into a policy.
func (p *policyRow) compile(t *catalog.PublishedTable, segments int) (router.Policy, *check.Finding) {
	out := router.Policy{NumSegments: p.numSegments}
	if p.numSegments < 1 || p.numSegments > segments {
		return out, &check.Finding{
			Found:  fmt.Sprintf("its policy spreads it over %d segments, but %d segments are listed", p.numSegments, segments),
			Remedy: "List every primary segment of the source; if the cluster was expanded or shrunk, a new initial copy is needed",
		}
	}
	kind, ok := policyKinds[p.kind]
	out.Kind = kind
	switch {
	case !ok:
		return out, &check.Finding{Found: fmt.Sprintf("its policy is of kind %q, want hash, random or replicated", p.kind), Remedy: "Correct the policy in " + ownPolicies}
	case kind == router.Hash:
		if len(p.columns) == 0 {
			return out, &check.Finding{Found: "its policy is hash, but names no column", Remedy: "Name the distribution key in " + ownPolicies}
		}
		for _, c := range p.columns {
			if c.typ == nil {
				return out, &check.Finding{Found: fmt.Sprintf("its policy names column %q, which it does not have", c.name), Remedy: "Correct the policy in " + ownPolicies}
			}
			if t.ColumnList && !t.HasColumn(c.name) {
				return out, &check.Finding{
					Found:  fmt.Sprintf("its publication leaves out distribution key column %q", c.name),
					Remedy: "Add the column to the publication's column list on every node",
				}
			}
			out.Columns = append(out.Columns, router.Column{Name: c.name, Type: c.typ, Opclass: c.opclass, Nondeterministic: c.nondeterministic})
		}
	}
	return out, nil
}
