package pgside

import (
	"fmt"
	"slices"
	"strings"

	"cbrepl/check"
)

// Hazards is what a table and its partitions have that would write other rows than
// the source's, or lose them.
type Hazards struct {
	// Origin fires unless the session runs as replica, Always does even then.
	Origin, Always []string
	// Defuse makes what Always lists fire for ordinary sessions only.
	Defuse []string
	// Unlogged are the relations that a crash empties.
	Unlogged []string
	// Sequences belong to columns, whose values they give.
	Sequences []string
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

// hazardsSQL reads one row per trigger, rule, unlogged relation and sequence of the
// tables in $1 and their partitions: the table, whether it is a partition's, its state
// (pg_trigger.tgenabled; u for an unlogged relation, s for a sequence), its name and
// its relation.
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
			SELECT u.oid, 'u', '' FROM pg_class u WHERE u.relpersistence <> 'p' AND u.relkind = 'r'
			UNION ALL
			SELECT d.refobjid, 's', quote_ident(qn.nspname) || '.' || quote_ident(q.relname) || ' of column ' || quote_ident(a.attname)
			FROM pg_depend d JOIN pg_class q ON q.oid = d.objid AND q.relkind = 'S' JOIN pg_namespace qn ON qn.oid = q.relnamespace
			JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
			WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')) x ON x.rel = p.rel
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
		plain := name
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
		case "s":
			add(&h.Sequences, plain)
		case "O":
			if !internal || f.ForeignKeys {
				add(&h.Origin, name)
			}
		case "A":
			add(&h.Origin, name)
			add(&h.Always, name)
			add(&h.Defuse, defuse(string(r[4]), plain))
		case "R":
			add(&h.Always, name)
			add(&h.Defuse, defuse(string(r[4]), plain))
		}
	}
	return out, nil
}

// defuse is the statement by which a trigger or rule no longer fires for replicas.
func defuse(relation, name string) string {
	kind, name, _ := strings.Cut(name, " ")
	return fmt.Sprintf("ALTER TABLE %s ENABLE %s %s", relation, strings.ToUpper(kind), name)
}

// CheckHazards reports what no session can keep from happening. replica says that
// the session runs as replica.
func CheckHazards(at At, h *Hazards, replica bool) check.Findings {
	if h == nil {
		return nil
	}
	var fs check.Findings
	if replica && len(h.Always) > 0 {
		f := at.Finding("The rows that the source's triggers and rules wrote are replicated already: let it fire for rows of other sessions only, or disable it",
			"%s fires for replicated rows, too (ENABLE ALWAYS or ENABLE REPLICA)", strings.Join(h.Always, ", "))
		for _, sql := range h.Defuse {
			if !strings.Contains(sql, " ENABLE FOREIGN ") { // whose trigger has a name of the server's
				f.SQL = append(f.SQL, sql)
			}
		}
		fs = append(fs, f)
	}
	if len(h.Unlogged) > 0 {
		f := at.Finding("Log its changes", "%s is not logged: after a crash it would be empty, while its rows count as applied", strings.Join(h.Unlogged, ", "))
		for _, rel := range h.Unlogged {
			f.SQL = append(f.SQL, "ALTER TABLE "+rel+" SET LOGGED")
		}
		fs = append(fs, f)
	}
	return fs
}
