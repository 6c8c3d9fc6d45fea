package subscription

import (
	"context"
	"fmt"
	"io"
	"reflect"
	"slices"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/logkey"
	"cbrepl/source"
	"cbrepl/subscription/config"
)

// agreeOnTables compares what the target records as replicated with what the source
// publishes. What is new of a table is recorded; a table that is new is not taken.
func (s *Subscription) agreeOnTables(ctx context.Context, tgt apply.Target, f *sourceFacts, st apply.State) (apply.State, error) {
	if err := source.ComparePublished(st.Tables, f.published); err != nil {
		return st, err
	}
	known := slices.Clone(st.Tables)
	var fresh []string
	for _, p := range publishedTables(f.published) {
		i := slices.IndexFunc(known, func(t catalog.ReplicatedTable) bool {
			return t.Content == p.Content && t.Name == p.Name && t.OID == p.OID
		})
		switch {
		case i >= 0 && !known[i].Forgotten:
			known[i].Published = p.Published
		case i < 0 && !slices.Contains(fresh, p.Name.String()):
			fresh = append(fresh, p.Name.String())
		}
	}
	if len(fresh) > 0 {
		s.log.Warn("tables are published that are not replicated: their rows stop the subscription until `cbrepl table take` has taken them", logkey.Tables, fresh)
	}
	if reflect.DeepEqual(known, st.Tables) {
		return st, nil
	}
	st.Tables = known
	return st, tgt.RecordTables(ctx, known)
}

// TakeTables records tables as replicated, as the source publishes them now: the
// caller says that the target has every row of theirs that is not in the stream. An
// earlier table of the same name is let go of. It refuses while a daemon runs.
func TakeTables(ctx context.Context, c *config.Config, names []string, out io.Writer) error {
	return withTarget(ctx, c, func(tgt apply.Target, st apply.State) error {
		if err := hasBegun(st); err != nil {
			return err
		}
		o, _, err := discover(ctx, c, nil)
		if err != nil {
			return err
		}
		facts, err := source.Preflight(ctx, o, false)
		if err != nil {
			return err
		}
		published := publishedTables(facts.Published())
		tables := slices.Clone(st.Tables)
		for _, name := range names {
			found := false
			for _, p := range published {
				if p.Name.String() != name {
					continue
				}
				found = true
				tables = slices.DeleteFunc(tables, func(t catalog.ReplicatedTable) bool { return t.Content == p.Content && t.OID == p.OID })
				forget(tables, func(t *catalog.ReplicatedTable) bool { return t.Content == p.Content && t.Name == p.Name })
				tables = append(tables, p)
			}
			if !found {
				return tableError(name, "publication %s does not hold it", c.Source.Publication)
			}
		}
		if err := tgt.RecordTables(ctx, tables); err != nil {
			return err
		}
		return printEach(out, "taken, as it is published now: %s\n", names)
	})
}

// ForgetTables lets go of tables: rows of theirs that are still in the stream are
// passed over, and that they change on the source stops nothing any more. Rows on the
// target stay. It refuses while a daemon runs, and needs no source.
func ForgetTables(ctx context.Context, c *config.Config, names []string, out io.Writer) error {
	return withTarget(ctx, c, func(tgt apply.Target, st apply.State) error {
		if err := hasBegun(st); err != nil {
			return err
		}
		tables := slices.Clone(st.Tables)
		for _, name := range names {
			if !forget(tables, func(t *catalog.ReplicatedTable) bool { return t.Name.String() == name }) {
				return tableError(name, "the target does not record it as replicated")
			}
		}
		if err := tgt.RecordTables(ctx, tables); err != nil {
			return err
		}
		return printEach(out, "let go of: %s\n", names)
	})
}

// forget marks tables, and reports whether there are any.
func forget(tables []catalog.ReplicatedTable, is func(*catalog.ReplicatedTable) bool) bool {
	found := false
	for i := range tables {
		if is(&tables[i]) {
			tables[i].Forgotten, found = true, true
		}
	}
	return found
}

func hasBegun(st apply.State) error {
	if st.Initialized {
		return nil
	}
	return &dtx.Error{
		Op: "change replicated tables", Class: dtx.ClassStop, Msg: "the target does not record where this subscription begins",
		Hint: "Run `cbrepl slots create` first; tables that are published then are taken",
	}
}

func tableError(name, format string, args ...any) error {
	return &dtx.Error{
		Op: "change replicated tables", Relation: name, Class: dtx.ClassStop, Msg: fmt.Sprintf(format, args...),
		Hint: "Give the table's name on the source as schema.table, as the catalogue spells it. Nothing is changed",
	}
}

func printEach(out io.Writer, format string, names []string) error {
	for _, n := range names {
		if _, err := fmt.Fprintf(out, format, n); err != nil {
			return err
		}
	}
	return nil
}
