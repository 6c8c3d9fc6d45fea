package cloudberry

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cbrepl/apply"
	"cbrepl/apply/engine"
	"cbrepl/apply/internal/pgside"
	"cbrepl/apply/ledger"
	"cbrepl/catalog"
	"cbrepl/check"
	"cbrepl/check/probe"
	"cbrepl/dtx"
)

// Check finds out what Open would find, without taking the lock and without changing
// anything, and reads what the target records of the subscription. It must not be
// called while the target is open. Every problem is in the report.
func (t *Target) Check(ctx context.Context) (st apply.State, r check.Report) {
	add := func(err error) bool {
		for _, f := range check.Of(check.Target, err) {
			if f.Relation == "" {
				f.Content = dtx.AtContent(dtx.Coordinator)
			}
			r.Findings = append(r.Findings, f)
		}
		return err != nil
	}
	if t.ledger.IsOpen() {
		add(pgside.Stop(opOpen, dtx.ReportBug, "the target is already open"))
		return st, r
	}
	ctx, cancel := context.WithTimeout(ctx, t.opts.OpenTimeout)
	defer cancel()
	defer t.srv.Close()
	if add(t.connect(ctx)) {
		return st, r
	}
	s, err := probe.Server(ctx, t.srv.Conn, check.Target, dtx.Coordinator)
	if add(t.srv.Fail(opCatalogue, err)) {
		return st, r
	}
	r.Servers = append(r.Servers, s)
	add(t.checkSegments(ctx, &r))
	if !add(ledger.CheckPrepared(ctx, t.srv.Session, opOpen, ledger.Objects)) {
		row, err := t.ledger.ReadRow(ctx, opOpen)
		if err == nil {
			st, err = t.ledger.ReadState(ctx, row)
		}
		add(err)
	}
	published := t.opts.Tables
	if st.Initialized {
		published = t.ledger.Taken(st.Tables)
	}
	_, _, fs := t.makeEngine(ctx, published)
	r.Findings = append(r.Findings, fs...)
	return st, r
}

// checkSegments warns of segments that the cluster takes for down.
func (t *Target) checkSegments(ctx context.Context, r *check.Report) error {
	rows, err := t.srv.Query(ctx, `SELECT content, CASE role WHEN 'p' THEN 'primary' ELSE 'mirror' END
		FROM pg_catalog.gp_segment_configuration WHERE status = 'd' AND content >= 0 ORDER BY 1, 2`)
	for _, row := range rows {
		r.Findings = append(r.Findings, check.Finding{
			Level: check.Warning, Side: check.Target, Content: dtx.AtContent(dtx.Coordinator),
			Found:  fmt.Sprintf("the %s of its segment %s is down", row[1], row[0]),
			Remedy: "Bring it back: gprecoverseg",
		})
	}
	return t.srv.Fail(opCatalogue, err)
}

// readCatalogue reads the target's tables, checks that they can take the source's
// rows, and makes the engine for them.
func (t *Target) readCatalogue(ctx context.Context) error {
	recorded, err := t.ledger.ReadTables(ctx)
	if err != nil {
		return err
	}
	eng, ts, fs := t.makeEngine(ctx, t.ledger.Taken(recorded))
	if err := fs.Err(opCatalogue); err != nil {
		return err
	}
	eng.PassOver(recorded)
	t.engine, t.tables = eng, ts
	for _, f := range fs {
		if f.Level == check.Warning && f.Relation == "" { // the role's
			t.log.Warn(f.Found)
		}
	}
	return nil
}

// makeEngine makes the engine for published tables. Without errors among the
// findings it can be used.
func (t *Target) makeEngine(ctx context.Context, published []catalog.PublishedTable) (*engine.Engine, *tables, check.Findings) {
	var names []catalog.Name
	for i := range published {
		for _, n := range t.opts.Names.Candidates(&published[i]) {
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	ts, err := readTables(ctx, t.srv, names)
	if err != nil {
		return nil, nil, check.Of(check.Target, err)
	}
	if t.tables != nil { // what earlier batches did to a table stays known
		for name, f := range ts.byName {
			old := t.tables.byName[name]
			f.changed = old != nil && old.changed
		}
	}
	fs := t.checkRole(ts)
	checked := map[catalog.Name]bool{}
	var usable []catalog.PublishedTable
	var list []*catalog.Table
	for i := range published {
		src := &published[i]
		names := t.opts.Names.Candidates(src)
		f := firstFound(names, ts)
		if f == nil {
			fs = append(fs, pgside.MissingTable(names[0], names[1:], src, true))
			continue
		}
		name := f.QualifiedName()
		ok, done := checked[name]
		if !done {
			found := t.checkTable(f)
			fs = append(fs, found...)
			ok = len(found.Errors()) == 0
			checked[name] = ok
			if ok {
				list = append(list, f.Table)
			}
		}
		if !ok {
			continue
		}
		if t.opts.private.anyType {
			for i := range f.Columns {
				f.Columns[i].BaseName = ""
			}
		} else {
			fs = append(fs, pgside.CheckColumns(f.at(), src)...)
		}
		fs = append(fs, pgside.CheckUniques(f.at(), src)...)
		usable = append(usable, pgside.Present(src, f.Table))
	}
	opt := t.opts.Engine
	opt.KeepAlive = t.opts.IdleTimeout / 3
	eng, err := engine.New(opt, t.opts.Names, usable, list, []dtx.Content{apply.ServerPlaced}, &t.stream)
	return eng, ts, append(fs, check.Of(check.Target, err)...)
}

// firstFound returns the first of names that the target has.
func firstFound(names []catalog.Name, ts *tables) *tableFacts {
	for _, name := range names {
		if f := ts.byName[name]; f != nil {
			return f
		}
	}
	return nil
}

// at is where findings about the table are: statements about it go to the
// coordinator, which hands them on.
func (f *tableFacts) at() pgside.At {
	return pgside.At{Content: dtx.AtContent(dtx.Coordinator), Table: f.Table}
}

// checkRole reports a role that cannot keep triggers and rules from firing.
func (t *Target) checkRole(ts *tables) check.Findings {
	if t.srv.facts.replicaRole {
		return nil
	}
	var fires []string
	for name, f := range ts.byName {
		if f.hazards != nil && len(f.hazards.Origin) > 0 && f.problem == "" {
			fires = append(fires, fmt.Sprintf("%s (%s)", name, strings.Join(f.hazards.Origin, ", ")))
		}
	}
	slices.Sort(fires)
	list := strings.Join(fires, "; ")
	f := check.Finding{Level: check.Warning, Side: check.Target, Content: dtx.AtContent(dtx.Coordinator)}
	const superuser = "Run the daemon as a superuser (on PostgreSQL 15 and later: GRANT SET ON PARAMETER session_replication_role)"
	f.Remedy = superuser
	switch role := t.srv.facts.role; {
	case len(fires) == 0:
		f.Found = fmt.Sprintf("role %s may not set session_replication_role; triggers and rules created later on replicated tables would fire", role)
	case t.opts.FireTriggers:
		f.Found = fmt.Sprintf("role %s may not set session_replication_role; for replicated rows fire: %s", role, list)
	default:
		f.Level = check.Error
		f.Found = fmt.Sprintf("role %s may not set session_replication_role, and replicated rows would fire: %s", role, list)
		f.Remedy = superuser + ", disable them, or set apply.fire_triggers: true to let them fire"
	}
	return check.Findings{f}
}

// checkTable reports what is in the way of writing to a table.
func (t *Target) checkTable(f *tableFacts) check.Findings {
	if f.problem != "" {
		return check.Findings{f.at().Finding(f.remedy, "rows cannot be written to it: %s", f.problem)}
	}
	fs := pgside.CheckAccess(f.at(), t.srv.facts.role, f.missing, f.rowSecurity)
	fs = append(fs, pgside.CheckHazards(f.at(), f.hazards, t.srv.facts.replicaRole)...)
	for i := range f.Uniques {
		if u := &f.Uniques[i]; u.Deferrable {
			p := f.at().Finding("Create it NOT DEFERRABLE on the target: rows that swap unique values are written so that it holds at every moment",
				"constraint %s is deferrable, and the server does not check such a constraint where triggers are silenced", strconv.Quote(u.Name))
			p.SQL = pgside.NotDeferrable(f.Table, u)
			fs = append(fs, p)
		}
	}
	if len(fs.Errors()) == 0 {
		fs = append(fs, pgside.DescribeTable(f.at(), "segments", f.hazards, t.srv.facts.replicaRole))
	}
	return fs
}
