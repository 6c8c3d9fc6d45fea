package subscription

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"cbrepl/apply/verify"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/router"
	"cbrepl/source"
	"cbrepl/subscription/config"
)

// VerifyOptions say what to verify.
type VerifyOptions struct {
	// Tables are the source's, as schema.table; none are all.
	Tables []string
	// Limits are verify.Options without servers and tables.
	Limits verify.Options
}

// Verify proves that the published tables hold the same rows on both sides, while the
// daemon runs.
func Verify(ctx context.Context, c *config.Config, o VerifyOptions, log *slog.Logger) ([]verify.Result, error) {
	so, cl, err := discover(ctx, c, log)
	if err != nil {
		return nil, err
	}
	so.Running, so.SlotWait = true, -1
	facts, r, err := source.Check(ctx, so, false)
	if err == nil {
		err = r.Err("check source")
	}
	if err != nil {
		return nil, err
	}
	v := o.Limits
	v.Subscription, v.Old = c.Subscription, cl.Kind() == source.Greenplum6
	for _, n := range cl.Nodes()[1:] {
		v.Source = append(v.Source, verify.Node{Content: n.Content, DSN: n.DSN})
	}
	v.Coordinator = verify.Node{Content: dtx.Coordinator, DSN: c.Target.Coordinator.DSN.Reveal()}
	for _, n := range c.Target.Shards {
		v.Target = append(v.Target, verify.Node{Content: n.Content, DSN: n.DSN.Reveal()})
	}
	if v.Tables, err = verifyTables(ctx, c, facts.Tables, o.Tables); err != nil {
		return nil, err
	}
	return verify.Run(ctx, v)
}

// verifyTables finds the target's tables of those published, or of some.
func verifyTables(ctx context.Context, c *config.Config, published []catalog.PublishedTable, only []string) ([]verify.Table, error) {
	m, err := names(c)
	if err != nil {
		return nil, err
	}
	for _, name := range only {
		if !slices.ContainsFunc(published, func(t catalog.PublishedTable) bool { return t.String() == name || t.Root == name }) {
			return nil, &dtx.Error{
				Op: "verify", Relation: name, Class: dtx.ClassStop, Msg: "it is not published",
				Hint: "Name tables of the source as schema.table; `cbrepl check` lists them",
			}
		}
	}
	dsn := c.Target.Coordinator.DSN.Reveal()
	policies, err := source.ReadPolicies(ctx, dsn)
	if err != nil {
		return nil, err
	}
	byName := map[catalog.Name]int{}
	var out []verify.Table
	for _, t := range published {
		if len(only) > 0 && !slices.Contains(only, t.String()) && !slices.Contains(only, t.Root) {
			continue
		}
		if t.RowFilter {
			return nil, &dtx.Error{
				Op: "verify", Relation: t.String(), Class: dtx.ClassStop, Msg: "it is published with a row filter, and its target need not hold the same rows",
				Hint: "Name the tables to verify with --tables",
			}
		}
		found := false
		for _, n := range m.Candidates(&t) {
			p, ok := policies[n]
			if !ok {
				continue
			}
			found = true
			if i, ok := byName[n]; ok {
				out[i].Sources = append(out[i].Sources, t)
				break
			}
			byName[n] = len(out)
			out = append(out, verify.Table{Sources: []catalog.PublishedTable{t}, Target: n, Policy: withTypes(p, &t)})
			break
		}
		if !found {
			return nil, &dtx.Error{
				Op: "verify", Relation: t.String(), Class: dtx.ClassStop, Msg: "the target has no table for it, or no policy",
				Hint: "Run `cbrepl check -c FILE`, which says what is missing",
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no table is published")
	}
	return out, nil
}

// withTypes gives the key's columns the source's types: a coordinator database need not
// have the tables.
func withTypes(p router.Policy, t *catalog.PublishedTable) router.Policy {
	p.Columns = slices.Clone(p.Columns)
	for i := range p.Columns {
		for _, c := range t.Columns {
			if c.Name != p.Columns[i].Name {
				continue
			}
			if p.Columns[i].Type = c.Type; c.Type == nil {
				p.Columns[i].Type, _ = router.BuiltinType(c.TypeOID)
			}
		}
	}
	return p
}
