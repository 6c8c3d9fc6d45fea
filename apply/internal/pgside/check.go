package pgside

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cbrepl/catalog"
	"cbrepl/dtx"
)

// CheckAccess reports what keeps a role from reading and writing all rows of a
// table: missing are the privileges that it lacks, where is " on the SERVER", or
// empty where there is one server only.
func CheckAccess(op string, t *catalog.Table, role, where string, missing []string, rowSecurity bool) []error {
	var errs []error
	add := func(hint, msg string) {
		errs = append(errs, &dtx.Error{Op: op, Relation: t.String(), Msg: msg, Hint: hint, Class: dtx.ClassStop})
	}
	if len(missing) > 0 {
		hint := fmt.Sprintf("GRANT %s ON %s TO %s", strings.Join(missing, ", "), TableName(t), QuoteIdent(role))
		if slices.Contains(missing, SchemaUsage(t.Schema)) {
			hint = fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s, and SELECT, INSERT, UPDATE, DELETE, TRUNCATE on the table", QuoteIdent(t.Schema), QuoteIdent(role))
		}
		add(hint, fmt.Sprintf("role %s lacks %s%s", role, strings.Join(missing, ", "), where))
	}
	if rowSecurity {
		add(fmt.Sprintf("ALTER ROLE %s BYPASSRLS, or make it the table's owner", QuoteIdent(role)),
			fmt.Sprintf("row security hides rows from role %s%s", role, where))
	}
	return errs
}

// SchemaUsage is what CheckAccess calls the privilege to use a schema.
func SchemaUsage(schema string) string { return "USAGE on schema " + schema }

// CheckTypes reports columns whose values would not come through unchanged.
// Missing columns are the engine's to report.
func CheckTypes(op, hint string, src *catalog.PublishedTable, t *catalog.Table) []error {
	var errs []error
	for i := range src.Columns {
		col := &src.Columns[i]
		c := t.Column(col.Name)
		if c < 0 || col.Generated || t.Columns[c].Generated {
			continue
		}
		if t.Columns[c].CastVia == noVia || t.Columns[c].PrintVia == noVia {
			errs = append(errs, &dtx.Error{
				Op: op, Relation: t.String(), Class: dtx.ClassStop,
				Hint: "Drop one of the casts between this type and text, varchar and bpchar, or declare it WITH INOUT",
				Msg:  fmt.Sprintf("column %s is %s on the target, and casts of its own hide the type's input or output function", strconv.Quote(col.Name), t.Columns[c].TypeName),
			})
			continue
		}
		ok, why := t.Columns[c].TakesType(col.TypeName, col.Type)
		if !ok {
			errs = append(errs, &dtx.Error{
				Op: op, Relation: t.String(), Hint: hint, Class: dtx.ClassStop,
				Msg: fmt.Sprintf("column %s is %s on the source table %s and %s on the target: %s",
					strconv.Quote(col.Name), col.TypeName, src, t.Columns[c].TypeName, why),
			})
		}
	}
	return errs
}
