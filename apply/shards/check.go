package shards

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"cbrepl/apply/engine"
	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/logkey"
	"cbrepl/router"
)

// Check finds out whether Open would find the target in order, without taking
// the lock and without changing anything. It must not be called while the target
// is open. The error names every problem with its remedy.
func (t *Target) Check(ctx context.Context) error {
	if t.ledger.IsOpen() {
		return pgside.Stop(opOpen, dtx.ReportBug, "the target is already open")
	}
	ctx, cancel := context.WithTimeout(ctx, t.opts.OpenTimeout)
	defer cancel()
	defer t.disconnect()
	if err := t.connectAll(ctx, appName(t.opts.Subscription, 0)); err != nil {
		return err
	}
	if err := t.checkServers(); err != nil {
		return err
	}
	if err := t.checkLayout(ctx); err != nil {
		return err
	}
	row, err := t.readRow(ctx)
	if err != nil {
		return err
	}
	err = t.eachShard(ctx, opOpen, func(ctx context.Context, n *node) error {
		_, err := t.readShard(ctx, n, opOpen, row.Token)
		return err
	})
	if err != nil {
		return err
	}
	return t.readCatalogue(ctx)
}

// checkServers reports servers that cannot take part in two-phase commit.
func (t *Target) checkServers() error {
	var errs []error
	for _, n := range t.shards {
		if n.facts.maxPrepared == 0 {
			errs = append(errs, pgside.Stop("check target servers",
				"Set max_prepared_transactions = 10 (at least the number of subscriptions and other two-phase clients) on that server and restart it",
				"the %s has max_prepared_transactions = 0, so no batch can be prepared there", n))
		}
	}
	return pgside.JoinErrors("check target servers", errs)
}

// readCatalogue reads the target's tables, checks that they can take the
// source's rows, and makes the engine for them.
func (t *Target) readCatalogue(ctx context.Context) error {
	if f := t.private.newEngine; f != nil {
		t.engine = f()
		return nil
	}
	recorded, err := t.ledger.ReadTables(ctx)
	if err != nil {
		return err
	}
	published := t.ledger.Taken(recorded)
	var names []catalog.Name
	for i := range published {
		names = append(names, t.opts.Names.Candidates(&published[i])...)
	}
	cats := make([]*catalogue, len(t.shards))
	err = t.eachShard(ctx, opCatalogue, func(ctx context.Context, n *node) (err error) {
		cats[n.index], err = readTables(ctx, n, names)
		return err
	})
	if err != nil {
		return err
	}
	policies, err := t.readPolicies(ctx, names)
	if err != nil {
		return err
	}
	var errs []error
	tables := map[catalog.Name]*catalog.Table{}
	bad := map[catalog.Name]bool{}
	var usable []catalog.PublishedTable
	for i := range published {
		src := &published[i]
		name, ok := firstFound(t.opts.Names.Candidates(src), cats)
		if ok && tables[name] == nil && !bad[name] {
			table, problems := t.checkTable(name, cats, policies)
			errs = append(errs, problems...)
			if table == nil || len(problems) > 0 {
				bad[name] = true
			} else {
				tables[name] = table
			}
		}
		if !ok {
			usable = append(usable, *src) // the engine says that its table is missing
			continue
		}
		if bad[name] {
			continue
		}
		if f := cats[0].tables[name]; f != nil {
			more := pgside.CheckTypes(opCatalogue, "Change the column's type on every shard to the source's", src, f.Table)
			if len(more) > 0 {
				errs = append(errs, more...)
				continue
			}
			errs = append(errs, checkDefaults(src, tables[name])...)
		}
		usable = append(usable, *src)
	}
	list := make([]*catalog.Table, 0, len(tables))
	for _, name := range names {
		if table := tables[name]; table != nil {
			list = append(list, table)
			delete(tables, name)
		}
	}
	segments := make([]dtx.Content, len(t.shards))
	for i := range segments {
		segments[i] = dtx.Content(i)
	}
	opt := t.opts.Engine
	opt.BinaryCopy = !t.textOnly.Load()
	opt.KeepAlive = t.opts.IdleTimeout / 3
	eng, err := engine.New(opt, t.opts.Names, usable, list, segments, &t.stream)
	if err != nil {
		errs = append(errs, pgside.Flatten(err)...)
	}
	if err := pgside.JoinErrors(opCatalogue, errs); err != nil {
		return err
	}
	eng.PassOver(recorded)
	t.engine = eng
	for i, n := range t.shards {
		n.versions = cats[i].versions
	}
	return nil
}

// checkDefaults reports columns of a replicated table that would get another value
// on every shard: those that the source does not send and that have a default which is
// no constant.
func checkDefaults(src *catalog.PublishedTable, t *catalog.Table) []error {
	if t.Policy.Kind != router.Replicated || t.Policy.NumSegments < 2 {
		return nil
	}
	var errs []error
	for i := range t.Columns {
		c := &t.Columns[i]
		if c.Volatile && !c.Generated && !src.HasColumn(c.Name) {
			errs = append(errs, tableProblem(t.QualifiedName(), "Give the column a constant default, or none; or distribute the table by hash",
				"column %s exists on the target only, and its default would differ between the copies of this replicated table", strconv.Quote(c.Name)))
		}
	}
	return errs
}

// firstFound returns the first of names that any shard has.
func firstFound(names []catalog.Name, cats []*catalogue) (catalog.Name, bool) {
	for _, name := range names {
		for _, c := range cats {
			if c.tables[name] != nil {
				return name, true
			}
		}
	}
	return catalog.Name{}, false
}

func tableProblem(name catalog.Name, hint, format string, args ...any) error {
	return &dtx.Error{Op: opCatalogue, Relation: name.String(), Msg: fmt.Sprintf(format, args...), Hint: hint, Class: dtx.ClassStop}
}

// checkTable compares a table between the shards that hold it, and reports what
// stands in the way of writing to it. It returns the table as shard 0 has it.
func (t *Target) checkTable(name catalog.Name, cats []*catalogue, policies map[catalog.Name]policyRow) (*catalog.Table, []error) {
	p, ok := policies[name]
	if !ok {
		return nil, []error{tableProblem(name,
			"Insert a row with kind hash, random or replicated, for hash the key columns, and numsegments (see docs/target-shards.md)",
			"the %s has no row for it in cbrepl.distribution_policy, so its rows cannot be placed", t.co)}
	}
	if p.numSegments < 1 || p.numSegments > len(cats) {
		return nil, []error{tableProblem(name, "Correct numsegments in cbrepl.distribution_policy, or list all shards",
			"it is spread over %d segments and the target has %d shards", p.numSegments, len(cats))}
	}
	var errs []error
	first := cats[0].tables[name]
	for i, c := range cats[:p.numSegments] {
		f := c.tables[name]
		if f == nil {
			errs = append(errs, tableProblem(name, "Create it there as on the others", "the %s does not have it, other shards do", t.shards[i]))
			continue
		}
		errs = append(errs, t.checkAccess(name, t.shards[i], f)...)
		if first == nil || f == first {
			continue
		}
		if d := differences(first, f); len(d) > 0 {
			errs = append(errs, tableProblem(name, "Make the table the same on all shards",
				"it differs between shard 0 and shard %d: %s", i, strings.Join(d, "; ")))
		}
	}
	if first == nil {
		return nil, errs
	}
	policy, err := p.policy(first)
	if err != nil {
		errs = append(errs, tableProblem(name, "Correct its row in cbrepl.distribution_policy on the coordinator database",
			"its row in cbrepl.distribution_policy cannot be used: %v", err))
	}
	table := *first.Table
	table.Policy = policy
	return &table, errs
}

// checkAccess reports missing privileges and what would fire on a shard.
func (t *Target) checkAccess(name catalog.Name, n *node, f *foundTable) []error {
	errs := pgside.CheckAccess(opCatalogue, f.Table, n.facts.role, " on the "+n.String(), f.missing, f.rowSecurity)
	errs = append(errs, pgside.CheckHazards(opCatalogue, f.Table, " on the "+n.String(), f.hazards, n.facts.replicaRole)...)
	if f.hazards != nil && len(f.hazards.Origin) > 0 && !n.facts.replicaRole {
		hint := "Run the daemon as a superuser, or ALTER TABLE ... DISABLE TRIGGER"
		if n.facts.version >= 150000 {
			hint = fmt.Sprintf("GRANT SET ON PARAMETER session_replication_role TO %s", pgside.QuoteIdent(n.facts.role))
		}
		errs = append(errs, tableProblem(name, hint,
			"role %s may not set session_replication_role on the %s, and replicated rows would fire %s", n.facts.role, n, strings.Join(f.hazards.Origin, ", ")))
	}
	return errs
}

// differences tells how the table on another shard differs from that on shard 0.
// The order of columns does not matter: rows are written by name.
func differences(a, b *foundTable) []string {
	var out []string
	if a.Kind != b.Kind {
		out = append(out, "one is partitioned and the other is not, or is no table")
	}
	for i := range a.Columns {
		ca := &a.Columns[i]
		j := b.Column(ca.Name)
		if j < 0 {
			out = append(out, fmt.Sprintf("column %s is missing on the latter", strconv.Quote(ca.Name)))
			continue
		}
		cb := &b.Columns[j]
		if ca.TypeName != cb.TypeName {
			out = append(out, fmt.Sprintf("column %s is %s on the former and %s on the latter", strconv.Quote(ca.Name), ca.TypeName, cb.TypeName))
			continue
		}
		if ca.CastType != cb.CastType || ca.NotNull != cb.NotNull || ca.HasDefault != cb.HasDefault || ca.Generated != cb.Generated ||
			ca.IdentityAlways != cb.IdentityAlways || ca.Nondeterministic != cb.Nondeterministic {
			out = append(out, fmt.Sprintf("column %s differs in NOT NULL, default, identity, generation or collation", strconv.Quote(ca.Name)))
		}
	}
	for i := range b.Columns {
		if a.Column(b.Columns[i].Name) < 0 {
			out = append(out, fmt.Sprintf("column %s is missing on the former", strconv.Quote(b.Columns[i].Name)))
		}
	}
	if len(out) == 0 && !slices.Equal(uniqueShapes(a), uniqueShapes(b)) {
		out = append(out, "their primary keys, unique indexes or exclusion constraints differ")
	}
	return out
}

// uniqueShapes prints a table's unique indexes without their names, in a
// comparable order.
func uniqueShapes(f *foundTable) []string {
	var out []string
	for _, u := range f.Uniques {
		reads := f.ColumnNames(u.Reads)
		slices.Sort(reads)
		out = append(out, fmt.Sprintf("%q %q %t %t %t %t", f.ColumnNames(u.Columns), reads, u.Plain, u.Primary, u.Exclusion, u.Deferrable))
	}
	slices.Sort(out)
	return out
}

// warnReplicaRole says once per Open that a role cannot silence triggers; tables
// with any were refused.
func (t *Target) warnReplicaRole() {
	for _, n := range t.shards {
		if !n.facts.replicaRole {
			t.log.Warn("the role may not set session_replication_role; triggers created later on replicated tables would fire",
				slog.String(logkey.Server, n.Name), slog.String(logkey.Role, n.facts.role))
		}
	}
}
