package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/pgoutput"
	"cbrepl/router"
)

// Storage is how a target keeps a table's rows.
type Storage string

// Storages.
const (
	Heap      Storage = "heap"
	AORow     Storage = "ao_row"
	AOColumn  Storage = "ao_column"
	Partition Storage = "partition" // by ranges of 100 of the integer column PartitionBy
	// Mixed is Partition with every second partition append-optimized, where there
	// is such a thing.
	Mixed Storage = "mixed"
)

// Column is a column of a table.
type Column struct {
	Name string
	Type string // built-in SQL type as format_type prints it
	// Default and NotNull are SQL of the target's column.
	Default string
	NotNull bool
	// TargetOnly columns are not published.
	TargetOnly bool
}

// Table is a table on source and target.
type Table struct {
	Name     string
	Columns  []Column
	Key      []string // primary key on the source, and on the target unless NoTargetKey
	Unique   [][]string
	Identity pgoutput.ReplicaIdentity
	// SourceReplicated marks a table replicated on the source.
	SourceReplicated bool

	Kind        router.PolicyKind // on the target
	Dist        []string          // of a hash policy
	Opclasses   []string          // of Dist; empty: default ones
	Storage     Storage
	PartitionBy string
	// NoTargetKey leaves the target without the primary key; Index names a column
	// that then has a plain index, if any.
	NoTargetKey bool
	Index       string

	schema string
}

// Published lists the columns that the source sends.
func (t *Table) Published() []Column {
	return slices.DeleteFunc(slices.Clone(t.Columns), func(c Column) bool { return c.TargetOnly })
}

// SQLName is the table's qualified name, quoted.
func (t *Table) SQLName() string { return ident(t.schema) + "." + ident(t.Name) }

// Schema is where the suite put the table.
func (t *Table) Schema() string { return t.schema }

// String names the table as reports do.
func (t *Table) String() string { return t.schema + "." + t.Name }

func ident(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// Body is what stands between the parentheses of the target's CREATE TABLE.
func (t *Table) Body() string {
	var parts []string
	for _, c := range t.Columns {
		typ := c.Type
		if typ == "char" { // pg_type's name of the type that SQL has to quote
			typ = `"char"`
		}
		s := ident(c.Name) + " " + typ
		if c.NotNull || slices.Contains(t.Key, c.Name) {
			s += " NOT NULL"
		}
		if c.Default != "" {
			s += " DEFAULT " + c.Default
		}
		parts = append(parts, s)
	}
	if len(t.Key) > 0 && !t.NoTargetKey {
		parts = append(parts, "PRIMARY KEY ("+idents(t.Key)+")")
	}
	for _, u := range t.Unique {
		parts = append(parts, "UNIQUE ("+idents(u)+")")
	}
	return strings.Join(parts, ", ")
}

func idents(names []string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = ident(n)
	}
	return strings.Join(out, ", ")
}

// Source describes the table as the source's catalogue would.
func (t *Table) Source() catalog.PublishedTable {
	s := catalog.PublishedTable{Schema: t.schema, Name: t.Name, Identity: t.Identity, Policy: router.Policy{Kind: router.Hash, NumSegments: 3}}
	if t.SourceReplicated {
		s.Policy.Kind = router.Replicated
	}
	for _, c := range t.Published() {
		typ, err := router.ParseType(c.Type)
		if err != nil {
			panic(fmt.Sprintf("conformance: column %s of table %s: %v", c.Name, t.Name, err))
		}
		if strings.Contains(c.Type, "(") {
			typ.Name = c.Type
		}
		key := slices.Contains(t.Key, c.Name)
		s.Columns = append(s.Columns, catalog.PublishedColumn{
			Name: c.Name, TypeOID: typ.OID, TypeName: typ.Name,
			Key: key && t.Identity == pgoutput.IdentityDefault, PrimaryKey: key,
		})
	}
	return s
}

// relation is the table as the source's stream announces it.
func (t *Table) relation(id uint32) *pgoutput.Relation {
	src := t.Source()
	r := &pgoutput.Relation{ID: id, Schema: t.schema, Name: t.Name, Identity: t.Identity}
	for _, c := range src.Columns {
		r.Columns = append(r.Columns, pgoutput.Column{Key: c.Key || t.Identity == pgoutput.IdentityFull, Name: c.Name, TypeOID: c.TypeOID, TypeMod: typeMod(c)})
	}
	return r
}

// typeMod is the modifier with which the column's type prints as it is named.
func typeMod(c catalog.PublishedColumn) int32 {
	var length int32
	if _, arg, ok := strings.Cut(c.TypeName, "("); !ok {
		return -1
	} else if _, err := fmt.Sscanf(arg, "%d)", &length); err == nil {
		for _, mod := range []int32{length, length + 4} {
			if name, _ := catalog.FormatType(c.TypeOID, mod); name == c.TypeName {
				return mod
			}
		}
	}
	panic(fmt.Sprintf("conformance: no modifier is known for type %s", c.TypeName))
}

// Policy is the target's policy over n segments.
func (t *Table) Policy(n int) router.Policy {
	p := router.Policy{Kind: t.Kind, NumSegments: n}
	for i, d := range t.Dist {
		c := router.Column{Name: d}
		for _, col := range t.Columns {
			if col.Name == d {
				c.Type, _ = router.ParseType(col.Type)
			}
		}
		if i < len(t.Opclasses) {
			c.Opclass = t.Opclasses[i]
		}
		p.Columns = append(p.Columns, c)
	}
	return p
}

// Row is a row on the target: the segment it was read from and its columns as
// text, nil for NULL.
type Row struct {
	Segment int
	Values  []*string
}

// TargetOptions are a test's choices for a target.
type TargetOptions struct {
	Subscription string
	Tables       []catalog.PublishedTable
	Engine       apply.Options
}

// Fixture is one kind of target under test.
type Fixture interface {
	// Name is the target's name in subtests.
	Name() string
	// Segments is the number of the target's segments.
	Segments() int
	// Has tells whether the target has a kind of storage.
	Has(s Storage) bool
	// HasType tells whether the target was built with a type that takes the value.
	HasType(t testing.TB, typ, value string) bool
	// Schema makes a schema for one test, removed when it ends.
	Schema(t testing.TB) string
	// Create makes a table.
	Create(t testing.TB, table *Table)
	// Target prepares a subscription and returns a target for it, not opened. The
	// subscription's state is removed when the test ends.
	Target(t testing.TB, o TargetOptions) apply.Target
	// Exec runs SQL where the rows are: on every shard, or through the coordinator.
	Exec(t testing.TB, sql string)
	// Dump reads every copy of every row of a table, the given columns as text.
	Dump(t testing.TB, table *Table, columns []string) []Row
	// Sever ends the subscription's sessions, as a crashed network would.
	Sever(t testing.TB, subscription string)
}

// SetSchema says which schema a table made by the test itself is in.
func (t *Table) SetSchema(schema string) { t.schema = schema }
