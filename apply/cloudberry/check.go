package cloudberry

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
	"cbrepl/apply/ledger"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/logkey"
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
	defer t.srv.Close()
	if err := t.connect(ctx); err != nil {
		return err
	}
	if err := ledger.CheckPrepared(ctx, t.srv.Session, opOpen, ledger.Objects); err != nil {
		return err
	}
	if _, err := t.ledger.ReadRow(ctx, opOpen); err != nil {
		return err
	}
	return t.readCatalogue(ctx)
}

// readCatalogue reads the target's tables, checks that they can take the source's
// rows, and makes the engine for them.
func (t *Target) readCatalogue(ctx context.Context) error {
	recorded, err := t.ledger.ReadTables(ctx)
	if err != nil {
		return err
	}
	published := t.ledger.Taken(recorded)
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
		return err
	}
	if t.tables != nil { // what earlier batches did to a table stays known
		for name, f := range ts.byName {
			old := t.tables.byName[name]
			f.changed = old != nil && old.changed
		}
	}
	errs := t.checkRole(ts)
	checked := map[catalog.Name]bool{}
	var usable []catalog.PublishedTable
	var list []*catalog.Table
	for i := range published {
		src := &published[i]
		f := firstFound(t.opts.Names.Candidates(src), ts)
		if f == nil {
			usable = append(usable, *src) // the engine says that its table is missing
			continue
		}
		name := f.QualifiedName()
		ok, done := checked[name]
		if !done {
			problems := t.checkTable(f)
			errs = append(errs, problems...)
			ok = len(problems) == 0
			checked[name] = ok
			if ok {
				list = append(list, f.Table)
			}
		}
		if !ok {
			continue
		}
		more := pgside.CheckTypes(opCatalogue, "Change the column's type on the target to the source's", src, f.Table)
		switch {
		case t.opts.private.anyType:
			for i := range f.Columns {
				f.Columns[i].BaseName = ""
			}
		case len(more) > 0:
			errs = append(errs, more...)
			continue
		}
		usable = append(usable, *src)
	}
	opt := t.opts.Engine
	opt.KeepAlive = t.opts.IdleTimeout / 3
	eng, err := engine.New(opt, t.opts.Names, usable, list, []dtx.Content{apply.ServerPlaced}, &t.stream)
	if err != nil {
		errs = append(errs, pgside.Flatten(err)...)
	}
	if err := pgside.JoinErrors(opCatalogue, errs); err != nil {
		return err
	}
	eng.PassOver(recorded)
	t.engine, t.tables = eng, ts
	return nil
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

// checkRole reports a role that cannot keep triggers and rules from firing, where
// there are any.
func (t *Target) checkRole(ts *tables) []error {
	role := t.srv.facts.role
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
	switch {
	case len(fires) == 0:
		t.log.Warn("the role may not set session_replication_role; triggers and rules created later on replicated tables would fire",
			slog.String(logkey.Role, role))
	case t.opts.FireTriggers:
		t.log.Warn("the role may not set session_replication_role; triggers and rules fire for replicated rows",
			slog.String(logkey.Role, role), slog.String(logkey.Firing, list))
	default:
		return []error{pgside.Stop(opCatalogue,
			"Run the daemon as a superuser (on PostgreSQL 15 and later: GRANT SET ON PARAMETER session_replication_role), disable them, or set apply.fire_triggers: true to let them fire",
			"role %s may not set session_replication_role, and replicated rows would fire: %s", role, list)}
	}
	return nil
}

func tableProblem(f *tableFacts, hint, format string, args ...any) error {
	return &dtx.Error{Op: opCatalogue, Relation: f.String(), Msg: fmt.Sprintf(format, args...), Hint: hint, Class: dtx.ClassStop}
}

// checkTable reports what stands in the way of writing to a table.
func (t *Target) checkTable(f *tableFacts) []error {
	if f.problem != "" {
		return []error{tableProblem(f, f.remedy, "rows cannot be written to it: %s", f.problem)}
	}
	errs := pgside.CheckAccess(opCatalogue, f.Table, t.srv.facts.role, "", f.missing, f.rowSecurity)
	errs = append(errs, pgside.CheckHazards(opCatalogue, f.Table, "", f.hazards, t.srv.facts.replicaRole)...)
	for _, u := range f.Uniques {
		if u.Deferrable {
			errs = append(errs, tableProblem(f, "Create it NOT DEFERRABLE on the target: rows that swap unique values are written so that it holds at every moment",
				"constraint %s is deferrable, and the server does not check such a constraint where triggers are silenced", strconv.Quote(u.Name)))
		}
	}
	return errs
}
