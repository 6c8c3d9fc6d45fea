package shards

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"cbrepl/apply"
	"cbrepl/apply/engine"
	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/check"
	"cbrepl/check/probe"
	"cbrepl/dtx"
	"cbrepl/logkey"
	"cbrepl/router"
)

// Check finds out what Open would find, without taking the lock and without changing
// anything, and reads what the target records of the subscription. It must not be
// called while the target is open. Every problem is in the report, those of servers
// that answer also when others do not.
func (t *Target) Check(ctx context.Context) (st apply.State, r check.Report) {
	if t.ledger.IsOpen() {
		r.Findings = check.Of(check.Target, pgside.Stop(opOpen, dtx.ReportBug, "the target is already open"))
		return st, r
	}
	ctx, cancel := context.WithTimeout(ctx, t.opts.OpenTimeout)
	defer cancel()
	defer t.disconnect()
	up := t.checkEach(ctx, &r, t.nodes(), t.connectNode)
	up = t.checkEach(ctx, &r, up, func(ctx context.Context, n *node) error {
		s, err := probe.Server(ctx, n.Conn, check.Target, n.content())
		if err != nil {
			return n.Fail(opCatalogue, err)
		}
		n.server = &s
		return nil
	})
	for _, n := range up {
		r.Servers = append(r.Servers, *n.server)
	}
	r.Findings = append(r.Findings, checkServers(up)...)
	prepared := t.checkEach(ctx, &r, up, t.checkNodeLayout)
	if slices.Contains(prepared, t.co) {
		st = t.checkRecord(ctx, &r, prepared)
	}
	if !slices.Contains(up, t.co) {
		return st, r // it knows where rows go
	}
	published := t.opts.Tables
	if st.Initialized {
		published = t.ledger.Taken(st.Tables)
	}
	_, fs := t.makeEngine(ctx, up, published)
	r.Findings = append(r.Findings, fs...)
	return st, r
}

// checkEach asks every node, reports what fails and returns the others.
func (t *Target) checkEach(ctx context.Context, r *check.Report, nodes []*node, f func(context.Context, *node) error) []*node {
	errs := make([]error, len(nodes))
	_ = each(ctx, "", nodes, func(ctx context.Context, n *node) error {
		errs[slices.Index(nodes, n)] = f(ctx, n)
		return nil
	})
	var good []*node
	for i, n := range nodes {
		for _, found := range check.Of(check.Target, errs[i]) {
			found.Content = dtx.AtContent(n.content())
			r.Findings = append(r.Findings, found)
		}
		if errs[i] == nil {
			good = append(good, n)
		}
	}
	return good
}

// checkRecord reads what the target records of the subscription.
func (t *Target) checkRecord(ctx context.Context, r *check.Report, prepared []*node) (st apply.State) {
	row, err := t.readRow(ctx)
	if err == nil {
		st, err = t.ledger.ReadState(ctx, row)
	}
	if err != nil {
		r.Findings = append(r.Findings, check.Of(check.Target, err)...)
		return st
	}
	t.checkEach(ctx, r, prepared, func(ctx context.Context, n *node) error {
		if n == t.co {
			return nil
		}
		_, err := t.readShard(ctx, n, opOpen, row.Token)
		return err
	})
	return st
}

// checkServers reports servers that cannot take part in two-phase commit.
func checkServers(nodes []*node) check.Findings {
	var fs check.Findings
	for _, n := range nodes {
		if n.index < 0 {
			continue
		}
		f := check.Finding{Side: check.Target, Content: dtx.AtContent(n.content()), Restart: true}
		switch {
		case n.facts.maxPrepared == 0:
			f.Found = "max_prepared_transactions is 0, so no batch can be prepared there"
			f.Remedy = "Allow at least as many as there are subscriptions and other two-phase clients; run there"
			f.SQL = []string{"ALTER SYSTEM SET max_prepared_transactions = 10"}
		case n.server != nil && n.server.Prepared.Full():
			f.Level = check.Warning
			f.Found = fmt.Sprintf("all %d prepared transactions (max_prepared_transactions) are taken: no batch can be prepared there", n.facts.maxPrepared)
			f.Remedy = "End those in pg_prepared_xacts that nobody will end, or run there"
			f.SQL = []string{fmt.Sprintf("ALTER SYSTEM SET max_prepared_transactions = %d", n.facts.maxPrepared+10)}
		default:
			continue
		}
		fs = append(fs, f)
	}
	return fs
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
	eng, fs := t.makeEngine(ctx, t.nodes(), t.ledger.Taken(recorded))
	if err := fs.Err(opCatalogue); err != nil {
		return err
	}
	eng.PassOver(recorded)
	t.engine = eng
	return nil
}

// makeEngine makes the engine for published tables and the target's, as the servers that are up have
// them, the coordinator database among them. Without errors among the findings it can
// be used, if all are up.
func (t *Target) makeEngine(ctx context.Context, up []*node, published []catalog.PublishedTable) (*engine.Engine, check.Findings) {
	tables, usable, fs, err := t.findTables(ctx, up, published)
	if err != nil {
		return nil, check.Of(check.Target, err)
	}
	segments := make([]dtx.Content, len(t.shards))
	for i := range segments {
		segments[i] = dtx.Content(i)
	}
	opt := t.opts.Engine
	opt.BinaryCopy = !t.textOnly.Load()
	opt.KeepAlive = t.opts.IdleTimeout / 3
	eng, err := engine.New(opt, t.opts.Names, usable, tables, segments, &t.stream)
	return eng, append(fs, check.Of(check.Target, err)...)
}

// findTables reads the target's tables and says what of them does not fit the source's.
// It returns those that do.
func (t *Target) findTables(ctx context.Context, up []*node, published []catalog.PublishedTable) ([]*catalog.Table, []catalog.PublishedTable, check.Findings, error) {
	var names []catalog.Name
	for i := range published {
		names = append(names, t.opts.Names.Candidates(&published[i])...)
	}
	cats := make([]*catalogue, len(t.shards)) // nil of a shard that does not answer
	err := each(ctx, opCatalogue, up, func(ctx context.Context, n *node) (err error) {
		if n.index >= 0 {
			cats[n.index], err = readTables(ctx, n, names)
		}
		return err
	})
	if err != nil {
		return nil, nil, nil, err
	}
	for i, c := range cats {
		if c != nil {
			t.shards[i].versions = c.versions
		}
	}
	policies, err := t.readPolicies(ctx, names)
	if err != nil {
		return nil, nil, nil, err
	}
	var fs check.Findings
	var list []*catalog.Table
	var usable []catalog.PublishedTable
	tables := map[catalog.Name]*catalog.Table{} // nil of one that does not fit
	for i := range published {
		src := &published[i]
		names := t.opts.Names.Candidates(src)
		name, ok := firstFound(names, cats)
		if !ok {
			fs = append(fs, pgside.MissingTable(names[0], names[1:], src, false))
			if _, ok := policies[names[0]]; !ok {
				fs = append(fs, t.missingPolicy(names[0], src))
			}
			continue
		}
		table, seen := tables[name]
		if !seen {
			var found check.Findings
			table, found = t.checkTable(name, src, cats, policies)
			fs = append(fs, found...)
			if table == nil || len(found.Errors()) > 0 {
				table = nil
			} else {
				list = append(list, table)
			}
			tables[name] = table
		}
		if table == nil {
			continue
		}
		at := pgside.At{Table: table}
		fs = append(fs, pgside.CheckColumns(at, src)...)
		fs = append(fs, checkDefaults(src, table)...)
		fs = append(fs, pgside.CheckUniques(at, src)...)
		usable = append(usable, pgside.Present(src, table))
	}
	return list, usable, fs, nil
}

// checkDefaults reports columns of a replicated table that would get another value
// on every shard: those that the source does not send and that have a default which is
// no constant.
func checkDefaults(src *catalog.PublishedTable, t *catalog.Table) check.Findings {
	if t.Policy.Kind != router.Replicated || t.Policy.NumSegments < 2 {
		return nil
	}
	var fs check.Findings
	for i := range t.Columns {
		c := &t.Columns[i]
		if c.Volatile && !c.Generated && !src.HasColumn(c.Name) {
			f := pgside.At{Table: t}.Finding("Give the column a constant default, or none; or distribute the table by hash",
				"column %s exists on the target only, and its default would differ between the copies of this replicated table", strconv.Quote(c.Name))
			fs = append(fs, f)
		}
	}
	return fs
}

// firstFound returns the first of names that any shard has.
func firstFound(names []catalog.Name, cats []*catalogue) (catalog.Name, bool) {
	for _, name := range names {
		for _, c := range cats {
			if c != nil && c.tables[name] != nil {
				return name, true
			}
		}
	}
	return catalog.Name{}, false
}

// missingPolicy reports a table whose rows cannot be placed.
func (t *Target) missingPolicy(name catalog.Name, src *catalog.PublishedTable) check.Finding {
	kind, cols := "random", "'{}'"
	switch src.Policy.Kind {
	case router.Replicated:
		kind = "replicated"
	case router.Hash:
		kind = "hash"
		quoted := make([]string, len(src.Policy.Columns))
		for i, c := range src.Policy.Columns {
			quoted[i] = pgside.QuoteLiteral(c.Name)
		}
		cols = "ARRAY[" + strings.Join(quoted, ", ") + "]"
	}
	return check.Finding{
		Side: check.Target, Content: dtx.AtContent(dtx.Coordinator), Relation: name.String(),
		Found:  "the " + t.co.String() + " has no row for it in cbrepl.distribution_policy, so its rows cannot be placed",
		Remedy: "Describe it there, by the key that suits the target (docs/target-shards.md)",
		SQL: []string{fmt.Sprintf("INSERT INTO cbrepl.distribution_policy (schema_name, table_name, kind, columns, opclasses, numsegments) VALUES (%s, %s, '%s', %s, '{}', %d)",
			pgside.QuoteLiteral(name.Schema), pgside.QuoteLiteral(name.Table), kind, cols, len(t.shards))},
	}
}

// checkTable compares a table between the shards that hold it, and reports what
// is in the way of writing to it. It returns the table as the first of them has it.
func (t *Target) checkTable(name catalog.Name, src *catalog.PublishedTable, cats []*catalogue, policies map[catalog.Name]policyRow) (*catalog.Table, check.Findings) {
	everywhere := pgside.At{Table: &catalog.Table{Schema: name.Schema, Name: name.Table}}
	p, ok := policies[name]
	if !ok {
		return nil, check.Findings{t.missingPolicy(name, src)}
	}
	if p.numSegments < 1 || p.numSegments > len(cats) {
		f := everywhere.Finding("Correct numsegments in cbrepl.distribution_policy, or list all shards",
			"it is spread over %d segments and the target has %d shards", p.numSegments, len(cats))
		return nil, check.Findings{f}
	}
	var fs check.Findings
	var first *foundTable
	var of int
	for i, c := range cats[:p.numSegments] {
		if c != nil && c.tables[name] != nil {
			first, of = c.tables[name], i
			break
		}
	}
	for i, c := range cats[:p.numSegments] {
		if c == nil {
			continue
		}
		f := c.tables[name]
		at := pgside.At{Content: dtx.AtContent(dtx.Content(i)), Table: everywhere.Table}
		if f == nil {
			fs = append(fs, at.Finding("Create it there as on the others", "this shard does not have it, other shards do"))
			continue
		}
		at.Table = f.Table
		fs = append(fs, t.checkAccess(at, t.shards[i], f)...)
		if f == first {
			continue
		}
		if d := differences(first, f); len(d) > 0 {
			fs = append(fs, at.Finding("Make the table the same on all shards", "it differs between shard %d and shard %d: %s", of, i, strings.Join(d, "; ")))
		}
	}
	if first == nil {
		return nil, fs
	}
	policy, err := p.policy(first)
	if err != nil {
		f := everywhere.Finding("Correct its row in cbrepl.distribution_policy on the coordinator database",
			"its row in cbrepl.distribution_policy cannot be used: %v", err)
		fs = append(fs, f)
	}
	table := *first.Table
	table.Policy = policy
	if len(fs.Errors()) == 0 {
		fs = append(fs, pgside.DescribeTable(pgside.At{Table: &table}, "shards", first.hazards, t.shards[of].facts.replicaRole))
	}
	return &table, fs
}

// checkAccess reports missing privileges and what would fire on a shard.
func (t *Target) checkAccess(at pgside.At, n *node, f *foundTable) check.Findings {
	fs := pgside.CheckAccess(at, n.facts.role, f.missing, f.rowSecurity)
	fs = append(fs, pgside.CheckHazards(at, f.hazards, n.facts.replicaRole)...)
	if f.hazards != nil && len(f.hazards.Origin) > 0 && !n.facts.replicaRole {
		p := at.Finding("Run the daemon as a superuser, or disable them (ALTER TABLE ... DISABLE TRIGGER)",
			"role %s may not set session_replication_role, and replicated rows would fire %s", n.facts.role, strings.Join(f.hazards.Origin, ", "))
		if n.facts.version >= 150000 {
			p.Remedy = "As a superuser"
			p.SQL = []string{"GRANT SET ON PARAMETER session_replication_role TO " + pgside.QuoteIdent(n.facts.role)}
		}
		fs = append(fs, p)
	}
	return fs
}

// differences says how the table on another shard differs from that on shard 0.
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
