package cloudberry

import (
	"strings"
	"testing"

	"cbrepl/apply/conformance"
	"cbrepl/catalog"
)

// What can be written to, by what the catalogue says of a relation.
func TestKinds(t *testing.T) {
	for _, c := range []struct {
		storage, partitioned string
		distributed          bool
		kind                 catalog.TableKind
		appendOnly           bool
		says                 string
	}{
		{"heap", "", true, catalog.Heap, false, ""},
		{"append", "", true, catalog.AppendOptimized, true, ""},
		{"heap", "root", true, catalog.PartitionRoot, false, ""},
		{"append", "root", true, catalog.PartitionRoot, true, ""},
		{"heap", "middle", true, catalog.OtherKind, false, "partitioned itself"},
		{"heap", "", false, catalog.OtherKind, false, "coordinator only"},
		{"view", "", false, catalog.OtherKind, false, "is a view"},
		{"external", "", true, catalog.OtherKind, false, "external table"},
		{"foreign", "", false, catalog.OtherKind, false, "foreign table"},
		{"access method zedstore", "", true, catalog.OtherKind, false, "zedstore"},
	} {
		f := &tableFacts{Table: new(catalog.Table)}
		f.setKind(c.storage, c.partitioned, c.distributed)
		if f.Kind != c.kind || f.appendOnly != c.appendOnly || !strings.Contains(f.problem, c.says) || (c.says == "") != (f.problem == "") {
			t.Errorf("%s %s: kind %d, append-only %t, problem %q", c.storage, c.partitioned, f.Kind, f.appendOnly, f.problem)
		}
		if f.problem != "" && f.remedy == "" {
			t.Errorf("%s: no remedy", c.storage)
		}
	}
}

// What is read of tables: columns, unique indexes, partitions and policies.
func TestCatalogue(t *testing.T) {
	w := newWorld(t)
	w.exec(`CREATE DOMAIN $S.positive AS integer NOT NULL CHECK (value > 0);
		CREATE TABLE $S.t (gone integer, id bigint, "Code" varchar(10) NOT NULL, p $S.positive, n serial, b text[],
			UNIQUE ("Code", id), PRIMARY KEY (id)) DISTRIBUTED BY (id);
		ALTER TABLE $S.t DROP gone;
		CREATE UNIQUE INDEX part ON $S.t (id) WHERE p > 5;
		CREATE UNIQUE INDEX expr ON $S.t (id, lower("Code"));
		CREATE INDEX plain ON $S.t (p, id)`)
	tab := w.table("t", []string{"id"}, "id bigint", "Code character varying(10)", "p integer", "b text[]")
	src := conformance.NewSource(3, tab)
	tg := w.start(src, tab)
	f := tg.tables.byName[catalog.Name{Schema: w.schema, Table: "t"}]
	var cols []string
	for _, c := range f.Columns {
		s := c.Name + " " + c.CastType
		if c.NotNull {
			s += " not null"
		}
		if c.HasDefault {
			s += " default"
		}
		cols = append(cols, s)
	}
	if got, want := strings.Join(cols, ", "), `id pg_catalog.int8 not null, Code pg_catalog."varchar" not null, p pg_catalog.int4 not null, n pg_catalog.int4 not null default, b pg_catalog._text`; got != want {
		t.Errorf("columns\n%s\nwant\n%s", got, want)
	}
	got := map[string]string{}
	for _, u := range f.Uniques {
		s := strings.Join(f.ColumnNames(u.Columns), ",") + " reads " + strings.Join(f.ColumnNames(u.Reads), ",")
		if u.Plain {
			s += " plain"
		}
		if u.Primary {
			s += " primary"
		}
		got[u.Name] = s
	}
	for name, want := range map[string]string{"t_pkey": "id reads id plain primary", "part": "id reads id,p", "expr": "id reads id,Code"} {
		if got[name] != want {
			t.Errorf("index %s: %q, want %q", name, got[name], want)
		}
	}
	if !f.Uniques[0].Primary || len(f.Uniques) != 4 {
		t.Errorf("unique indexes: %v", got)
	}
	if !f.leads(0) || !f.leads(2) || f.leads(4) {
		t.Errorf("leading columns: %v", f.leading)
	}
	if p := f.Policy.String(); !strings.HasPrefix(p, "hash(id int8_ops) over ") {
		t.Errorf("policy %s", p)
	}
}
