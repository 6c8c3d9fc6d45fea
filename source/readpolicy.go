package source

import (
	"context"
	"strings"

	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/router"
)

// ReadPolicy reads one table's distribution policy from a coordinator's
// catalogue. table is schema.name; without a schema it is public.
func ReadPolicy(ctx context.Context, dsn, table string) (router.Policy, error) {
	if !strings.Contains(table, ".") {
		table = "public." + table
	}
	fail := func(msg, hint string, err error) (router.Policy, error) {
		return router.Policy{}, &dtx.Error{Op: "read distribution policy", Relation: table, Msg: msg, Hint: hint, Class: dtx.ClassStop, Err: err}
	}
	conn, err := connect(ctx, Node{Content: dtx.Coordinator, DSN: dsn})
	if err != nil {
		return router.Policy{}, err
	}
	defer closeConn(conn)
	policies, err := readPolicies(ctx, conn)
	if err != nil {
		return fail("", "", err)
	}
	if policies == nil {
		return fail("the server has neither gp_distribution_policy nor "+ownPolicies, "Name the coordinator, or describe the key by its types", nil)
	}
	for i := range policies {
		p := &policies[i]
		t := catalog.PublishedTable{Schema: p.schema, Name: p.table}
		if t.String() != table {
			continue
		}
		out, wrong := p.compile(&t, p.numSegments)
		if wrong != nil {
			return fail(wrong.Found, wrong.Remedy, nil)
		}
		return out, nil
	}
	return fail("no such table has a distribution policy", "Give the table as schema.name; of a partition, give the root", nil)
}

// ReadPolicies reads the distribution policies of all tables from a coordinator's
// catalogue, of either side. Key columns have names and classes; their types are the
// tables'.
func ReadPolicies(ctx context.Context, dsn string) (map[catalog.Name]router.Policy, error) {
	conn, err := connect(ctx, Node{Content: dtx.Coordinator, DSN: dsn})
	if err != nil {
		return nil, err
	}
	defer closeConn(conn)
	rows, err := readPolicies(ctx, conn)
	if err != nil {
		return nil, &dtx.Error{Op: "read distribution policies", Class: dtx.ClassOf(err), Err: err}
	}
	out := map[catalog.Name]router.Policy{}
	for _, r := range rows {
		p := router.Policy{NumSegments: r.numSegments, Kind: policyKinds[r.kind]}
		for _, c := range r.columns {
			p.Columns = append(p.Columns, router.Column{Name: c.name, Opclass: c.opclass, Type: c.typ, Nondeterministic: c.nondeterministic})
		}
		out[catalog.Name{Schema: r.schema, Table: r.table}] = p
	}
	return out, nil
}

// policyKinds are the kinds by their names in a catalogue.
var policyKinds = map[string]router.PolicyKind{"hash": router.Hash, "random": router.Random, "replicated": router.Replicated}
