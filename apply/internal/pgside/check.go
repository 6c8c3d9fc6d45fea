package pgside

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cbrepl/catalog"
	"cbrepl/check"
	"cbrepl/dtx"
	"cbrepl/router"
)

// At makes findings about a target's table: on one server, or, without one, on all
// that hold its rows.
type At struct {
	Content dtx.OptionalContent
	Table   *catalog.Table
}

// Finding is an error at that place.
func (a At) Finding(remedy, format string, args ...any) check.Finding {
	_, one := a.Content.Get()
	return check.Finding{
		Side: check.Target, Content: a.Content, Relation: a.Table.String(), Everywhere: !one,
		Found: fmt.Sprintf(format, args...), Remedy: remedy,
	}
}

// withSQL adds statements to a finding.
func withSQL(f check.Finding, sql ...string) check.Finding {
	f.SQL = sql
	return f
}

// CheckAccess reports what keeps a role from reading and writing all rows of a
// table: missing are the privileges that it lacks.
func CheckAccess(at At, role string, missing []string, rowSecurity bool) check.Findings {
	var fs check.Findings
	t := at.Table
	if len(missing) > 0 {
		var sql, table []string
		for _, m := range missing {
			if m == SchemaUsage(t.Schema) {
				sql = append(sql, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", QuoteIdent(t.Schema), QuoteIdent(role)))
			} else {
				table = append(table, m)
			}
		}
		if len(table) > 0 {
			sql = append(sql, fmt.Sprintf("GRANT %s ON %s TO %s", strings.Join(table, ", "), TableName(t), QuoteIdent(role)))
		}
		fs = append(fs, withSQL(at.Finding("As the table's owner or a superuser", "role %s lacks %s", role, strings.Join(missing, ", ")), sql...))
	}
	if rowSecurity {
		fs = append(fs, withSQL(at.Finding("Let it see all rows, or make it the table's owner", "row security hides rows from role %s", role),
			fmt.Sprintf("ALTER ROLE %s BYPASSRLS", QuoteIdent(role))))
	}
	return fs
}

// SchemaUsage is what CheckAccess calls the privilege to use a schema.
func SchemaUsage(schema string) string { return "USAGE on schema " + schema }

// CheckColumns reports columns that are missing, and those whose values would not come
// through unchanged.
func CheckColumns(at At, src *catalog.PublishedTable) check.Findings {
	var fs check.Findings
	t := at.Table
	for i := range src.Columns {
		col := &src.Columns[i]
		if col.Generated {
			continue
		}
		c := t.Column(col.Name)
		if c < 0 {
			fs = append(fs, withSQL(at.Finding("Add it (rows that are there get NULL), or leave it out of the publication",
				"column %s is missing on the target; the source table %s has it", strconv.Quote(col.Name), src),
				fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s", TableName(t), QuoteIdent(col.Name), col.TypeName)))
			continue
		}
		if t.Columns[c].Generated {
			continue
		}
		if t.Columns[c].CastVia == noVia || t.Columns[c].PrintVia == noVia {
			fs = append(fs, at.Finding("Drop one of the casts between this type and text, varchar and bpchar, or declare it WITH INOUT",
				"column %s is %s on the target, and casts of its own hide the type's input or output function", strconv.Quote(col.Name), t.Columns[c].TypeName))
			continue
		}
		ok, why := t.Columns[c].TakesType(col.TypeName, col.Type)
		if ok {
			continue
		}
		f := at.Finding("Change the column's type to the source's", "column %s is %s on the source table %s and %s on the target: %s",
			strconv.Quote(col.Name), col.TypeName, src, t.Columns[c].TypeName, why)
		if !slices.ContainsFunc(t.Policy.Columns, func(k router.Column) bool { return k.Name == col.Name }) {
			f.SQL = []string{fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s TYPE %s USING %[2]s::text::%[3]s", TableName(t), QuoteIdent(col.Name), col.TypeName)}
		}
		fs = append(fs, f)
	}
	return fs
}

// Present is a source table without the columns that CheckColumns calls missing, for
// what else is to be said of it.
func Present(src *catalog.PublishedTable, t *catalog.Table) catalog.PublishedTable {
	out := *src
	out.Columns = slices.DeleteFunc(slices.Clone(src.Columns), func(c catalog.PublishedColumn) bool { return !c.Generated && t.Column(c.Name) < 0 })
	return out
}

// CheckUniques warns of unique and exclusion constraints that the source does not
// have: rows that are valid there may violate them.
func CheckUniques(at At, src *catalog.PublishedTable) check.Findings {
	var fs check.Findings
	t := at.Table
	for i := range t.Uniques {
		u := &t.Uniques[i]
		if !u.Exclusion && slices.ContainsFunc(src.Uniques, func(key []string) bool {
			return !slices.ContainsFunc(key, func(name string) bool { return !slices.Contains(t.ColumnNames(u.Columns), name) })
		}) {
			continue // what the source holds unique is among its columns
		}
		f := at.Finding("Drop it, or create it on the source, too", "the source does not have what %s enforces: a row that is valid there can stop the subscription", strconv.Quote(u.Name))
		f.Level = check.Warning
		switch {
		case u.OnePartition:
		case u.Constraint:
			f.SQL = []string{fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s", TableName(t), QuoteIdent(u.Name))}
		default:
			f.SQL = []string{fmt.Sprintf("DROP INDEX %s.%s", QuoteIdent(t.Schema), QuoteIdent(u.Name))}
		}
		fs = append(fs, f)
	}
	return fs
}

// NotDeferrable makes a deferrable unique constraint anew as one that is not; nil for
// what is no plain one.
func NotDeferrable(t *catalog.Table, u *catalog.Unique) []string {
	if u.Exclusion || u.OnePartition || !u.Constraint {
		return nil
	}
	kind := "UNIQUE"
	if u.Primary {
		kind = "PRIMARY KEY"
	}
	cols := make([]string, len(u.Columns))
	for i, c := range u.Columns {
		cols[i] = Column(t, c)
	}
	return []string{fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s, ADD CONSTRAINT %[2]s %s (%s)", TableName(t), QuoteIdent(u.Name), kind, strings.Join(cols, ", "))}
}

// DescribeTable says how a table that can be written to is placed, over so many
// segments of a kind, and what of it does not follow the source.
func DescribeTable(at At, segments string, h *Hazards, replica bool) check.Finding {
	t := at.Table
	f := at.Finding("", "")
	f.Level, f.Everywhere = check.OK, false
	switch t.Policy.Kind {
	case router.Replicated:
		f.Found = fmt.Sprintf("replicated to %d %s", t.Policy.NumSegments, segments)
	case router.Random:
		f.Found = fmt.Sprintf("distributed randomly over %d %s", t.Policy.NumSegments, segments)
	default:
		f.Found = fmt.Sprintf("distributed by (%s) over %d %s", keyList(t.Policy), t.Policy.NumSegments, segments)
	}
	if h == nil {
		return f
	}
	if replica && len(h.Origin) > 0 {
		f.Found += "; for replicated rows do not fire: " + strings.Join(h.Origin, ", ")
	}
	if len(h.Sequences) > 0 {
		f.Found += "; values of sequences are not replicated: " + strings.Join(h.Sequences, ", ")
	}
	return f
}

// keyList prints a distribution key's columns.
func keyList(p router.Policy) string {
	names := make([]string, len(p.Columns))
	for i, c := range p.Columns {
		names[i] = QuoteIdent(c.Name)
	}
	return strings.Join(names, ", ")
}

// MissingTable reports a table that the target does not have. distributed adds a
// DISTRIBUTED clause; Everywhere is set without it.
func MissingTable(name catalog.Name, others []catalog.Name, src *catalog.PublishedTable, distributed bool) check.Finding {
	found := "there is no table " + name.String()
	for _, o := range others {
		found += " or its root " + o.String()
	}
	f := check.Finding{
		Side: check.Target, Relation: src.String(), Found: found + " on the target", Everywhere: !distributed,
		Remedy: "Create it, with the defaults and indexes that it needs there, or add a name rule for it (tables.rename)",
	}
	if distributed {
		f.Content = dtx.AtContent(dtx.Coordinator)
	}
	if name.Schema != "public" {
		f.SQL = append(f.SQL, "CREATE SCHEMA IF NOT EXISTS "+QuoteIdent(name.Schema))
	}
	var parts, primary, key []string
	for _, c := range src.Columns {
		if !c.Generated {
			parts = append(parts, QuoteIdent(c.Name)+" "+c.TypeName)
		}
		if c.PrimaryKey {
			primary = append(primary, QuoteIdent(c.Name))
		}
		if c.Key {
			key = append(key, QuoteIdent(c.Name))
		}
	}
	switch {
	case len(primary) > 0:
		parts = append(parts, "PRIMARY KEY ("+strings.Join(primary, ", ")+")")
	case len(key) > 0 && src.Identity == 'i':
		parts = append(parts, "UNIQUE ("+strings.Join(key, ", ")+")")
	}
	sql := fmt.Sprintf("CREATE TABLE %s.%s (%s)", QuoteIdent(name.Schema), QuoteIdent(name.Table), strings.Join(parts, ", "))
	if distributed {
		sql += " " + distributedBy(src.Policy)
	}
	f.SQL = append(f.SQL, sql)
	return f
}

// distributedBy is the clause for a policy.
func distributedBy(p router.Policy) string {
	switch p.Kind {
	case router.Replicated:
		return "DISTRIBUTED REPLICATED"
	case router.Hash:
		return "DISTRIBUTED BY (" + keyList(p) + ")"
	}
	return "DISTRIBUTED RANDOMLY"
}
