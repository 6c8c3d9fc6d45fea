package pgside

import (
	"fmt"
	"slices"
	"strings"

	"cbrepl/catalog"
	"cbrepl/dtx"
)

// Hazards is what a table and its partitions have that would write other rows than
// the source's, or lose them.
type Hazards struct {
	// Origin fires unless the session runs as replica, Always does even then.
	Origin, Always []string
	// Unlogged are the relations that a crash empties.
	Unlogged []string
}

// HazardFacts says how a kind of server spells its catalogue.
type HazardFacts struct {
	// IsPartition is a condition: relation h.inhrelid is a partition of h.inhparent,
	// not a table that inherits from it.
	IsPartition string
	// ForeignKeys is set where foreign keys are enforced.
	ForeignKeys bool
}

// DeclarativePartition is HazardFacts.IsPartition on PostgreSQL 10 and later.
const DeclarativePartition = "EXISTS (SELECT 1 FROM pg_class q WHERE q.oid = h.inhparent AND q.relkind = 'p')"

// hazardsSQL reads one row per trigger, rule and unlogged relation of the tables in
// $1 and their partitions: the table, whether it is a partition's, its state
// (pg_trigger.tgenabled; u for an unlogged relation) and its name.
func (f HazardFacts) hazardsSQL() string {
	return `
		WITH RECURSIVE parts(root, rel) AS (
			SELECT o, o FROM unnest($1::oid[]) o
			UNION ALL
			SELECT p.root, h.inhrelid FROM parts p JOIN pg_inherits h ON h.inhparent = p.rel AND ` + f.IsPartition + `)
		SELECT p.root, p.rel <> p.root, x.state, x.name, quote_ident(s.nspname) || '.' || quote_ident(c.relname)
		FROM parts p
		JOIN pg_class c ON c.oid = p.rel
		JOIN pg_namespace s ON s.oid = c.relnamespace
		JOIN (
			SELECT t.tgrelid AS rel, t.tgenabled::text AS state,
			       CASE WHEN t.tgisinternal THEN 'foreign key ' || quote_ident(k.conname) ELSE 'trigger ' || quote_ident(t.tgname) END AS name
			FROM pg_trigger t LEFT JOIN pg_constraint k ON k.oid = t.tgconstraint
			WHERE t.tgenabled <> 'D' AND (NOT t.tgisinternal OR k.contype = 'f')
			UNION
			SELECT r.ev_class, r.ev_enabled::text, 'rule ' || quote_ident(r.rulename) FROM pg_rewrite r
			WHERE r.ev_enabled <> 'D' AND r.ev_type <> '1'
			UNION ALL
			SELECT u.oid, 'u', '' FROM pg_class u WHERE u.relpersistence <> 'p' AND u.relkind = 'r') x ON x.rel = p.rel
		ORDER BY 1, 2, 5, 4, 3`
}

// ReadHazards finds the hazards of tables, by OID. query runs a statement with an
// array of OIDs as its parameter.
func ReadHazards(f HazardFacts, oids string, query func(sql, oids string) ([][][]byte, error)) (map[uint32]*Hazards, error) {
	rows, err := query(f.hazardsSQL(), oids)
	if err != nil {
		return nil, err
	}
	out := map[uint32]*Hazards{}
	for _, r := range rows {
		h := out[OID(r[0])]
		if h == nil {
			h = &Hazards{}
			out[OID(r[0])] = h
		}
		name := string(r[3])
		internal := strings.HasPrefix(name, "foreign key ")
		// The root's triggers are repeated on its partitions.
		if string(r[1]) == "t" && !slices.Contains(h.Origin, name) && !slices.Contains(h.Always, name) {
			name += " of partition " + string(r[4])
		}
		add := func(list *[]string, v string) {
			if !slices.Contains(*list, v) {
				*list = append(*list, v)
			}
		}
		switch string(r[2]) {
		case "u":
			add(&h.Unlogged, string(r[4]))
		case "O":
			if !internal || f.ForeignKeys {
				add(&h.Origin, name)
			}
		case "A":
			add(&h.Origin, name)
			add(&h.Always, name)
		case "R":
			add(&h.Always, name)
		}
	}
	return out, nil
}

// CheckHazards reports what no session can keep from happening. replica tells that
// the session runs as replica; where is " on the SERVER", or empty where there is one
// server only.
func CheckHazards(op string, t *catalog.Table, where string, h *Hazards, replica bool) []error {
	var errs []error
	if h == nil {
		return nil
	}
	add := func(hint, format string, args ...any) {
		errs = append(errs, &dtx.Error{Op: op, Relation: t.String(), Msg: fmt.Sprintf(format, args...) + where, Hint: hint, Class: dtx.ClassStop})
	}
	if replica && len(h.Always) > 0 {
		add("The rows that the source's triggers and rules wrote are replicated already: ALTER TABLE ... ENABLE TRIGGER NAME (or ENABLE RULE NAME) lets it fire for rows of other sessions only, DISABLE for none",
			"%s fires for replicated rows, too (ENABLE ALWAYS or ENABLE REPLICA)", strings.Join(h.Always, ", "))
	}
	if len(h.Unlogged) > 0 {
		add("ALTER TABLE ... SET LOGGED", "%s is not logged: after a crash it would be empty, while its rows count as applied", strings.Join(h.Unlogged, ", "))
	}
	return errs
}
