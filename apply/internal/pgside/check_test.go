package pgside

import (
	"errors"
	"strings"
	"testing"

	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/router"
)

// A column is judged by what its domain is over, and fits too where both sides
// have the domain.
func TestCheckTypes(t *testing.T) {
	tab := &catalog.Table{Schema: "app", Name: "t"}
	src := &catalog.PublishedTable{Schema: "app", Name: "s"}
	for _, c := range []struct {
		name, src, dst, base string
		generated            bool
	}{
		{name: "plain", src: "integer", dst: "bigint", base: "bigint"},
		{name: "domain", src: "app.positive", dst: "b.positive", base: "integer"},
		{name: "into_domain", src: "integer", dst: "app.positive", base: "integer"},
		{name: "of_text", src: "app.email", dst: "text", base: "text"},
		{name: "computed", src: "integer", dst: "date", base: "date", generated: true},
		{name: "other_domain", src: "app.positive", dst: "app.negative", base: "integer"},
		{name: "narrow", src: "bigint", dst: "app.positive", base: "integer"},
	} {
		src.Columns = append(src.Columns, catalog.PublishedColumn{Name: c.name, TypeName: c.src})
		tab.Columns = append(tab.Columns, catalog.Column{Name: c.name, TypeName: c.dst, BaseName: c.base, Generated: c.generated})
	}
	src.Columns = append(src.Columns, catalog.PublishedColumn{Name: "mis'sing", TypeName: "integer"})
	fs := CheckColumns(At{Table: tab}, src)
	if len(fs) != 3 || !strings.Contains(fs[0].Found, `column "other_domain" is app.positive on the source table app.s and app.negative`) ||
		fs[0].Relation != "app.t" || !fs[0].Everywhere || fs[0].SQL[0] != `ALTER TABLE "app"."t" ALTER COLUMN "other_domain" TYPE app.positive USING "other_domain"::text::app.positive` ||
		!strings.Contains(fs[1].Found, `column "narrow"`) || fs[2].SQL[0] != `ALTER TABLE "app"."t" ADD COLUMN "mis'sing" integer` || dtx.ClassOf(fs.Err("check")) != dtx.ClassStop {
		t.Errorf("%d findings: %v", len(fs), fs)
	}
}

// Remedies are statements that can be run as they stand.
func TestCheckAccess(t *testing.T) {
	at := At{Content: dtx.AtContent(1), Table: &catalog.Table{Schema: "app", Name: "T"}}
	if fs := CheckAccess(at, "r", nil, false); len(fs) != 0 {
		t.Error(fs)
	}
	fs := CheckAccess(at, `o"r`, []string{"INSERT", "DELETE"}, true)
	if len(fs) != 2 || !strings.HasPrefix(fs[0].String(), `shard 1: table app.T: role o"r lacks INSERT, DELETE. `) || fs[0].SQL[0] != `GRANT INSERT, DELETE ON "app"."T" TO "o""r"` ||
		fs[1].SQL[0] != `ALTER ROLE "o""r" BYPASSRLS` {
		t.Errorf("%v", fs)
	}
	fs = CheckAccess(at, "r", []string{"SELECT", SchemaUsage("app")}, false)
	if len(fs) != 1 || len(fs[0].SQL) != 2 || fs[0].SQL[0] != `GRANT USAGE ON SCHEMA "app" TO "r"` || fs[0].SQL[1] != `GRANT SELECT ON "app"."T" TO "r"` {
		t.Errorf("%v", fs)
	}
}

// rowOf is a row of pg_type: oid, name, kind, and by name what differs from 0.
func rowOf(oid, name, kind string, refs map[string]string) [][]byte {
	r := [][]byte{[]byte(oid), []byte(name), []byte("s." + name), []byte(kind)}
	for _, k := range []string{"elem", "base", "subtype", "multirange"} {
		v := refs[k]
		if v == "" {
			v = "0"
		}
		r = append(r, []byte(v))
	}
	return append(r, []byte(refs["baseName"]), nil, []byte(refs["notnull"]), nil, []byte(refs["fields"]), []byte("null"), []byte("0"), nil, nil)
}

// Types are read with all they are made of, each once. One that is dropped
// meanwhile, or a part of it, is tried again and never taken for a type of no kind.
func TestReadTypes(t *testing.T) {
	all := map[string][][]byte{
		"1": rowOf("1", "list", "b", map[string]string{"elem": "2"}),
		"2": rowOf("2", "pair", "c", map[string]string{"fields": "3,4"}),
		"3": rowOf("3", "int", "b", nil),
		"4": rowOf("4", "short", "d", map[string]string{"base": "5", "baseName": "s.shorter"}),
		"5": rowOf("5", "shorter", "d", map[string]string{"base": "3", "baseName": "int", "notnull": "t"}),
	}
	asked := map[string]int{}
	query := func(_, oids string) ([][][]byte, error) {
		var rows [][][]byte
		for _, oid := range strings.Split(strings.Trim(oids, "{}"), ",") {
			asked[oid]++
			if r := all[oid]; r != nil {
				rows = append(rows, r)
			}
		}
		return rows, nil
	}
	got, err := ReadTypes("check", "shard 1", []uint32{1, 4, 4}, true, query)
	if err != nil || len(got) != 2 {
		t.Fatalf("%d types, %v", len(got), err)
	}
	if c := got[4]; c.Cast != "s.int" || !c.NotNull || c.base != "int" || c.Type.Kind != router.DomainType || c.Type.Elem.Elem.OID != 3 {
		t.Errorf("domain %+v", c)
	}
	if c := got[1]; c.Type.Kind != router.ArrayType || c.Type.Elem.Kind != router.CompositeType || len(c.Type.Elem.Fields) != 2 || c.domain {
		t.Errorf("array %+v", c)
	}
	for oid, n := range asked {
		if n != 1 {
			t.Errorf("type %s is asked for %d times", oid, n)
		}
	}
	for _, gone := range []string{"1", "3"} {
		kept := all[gone]
		delete(all, gone)
		_, err := ReadTypes("check", "shard 1", []uint32{1}, true, query)
		if err == nil || dtx.ClassOf(err) != dtx.ClassRetry || !strings.Contains(err.Error(), "type "+gone+" was dropped on the shard 1") {
			t.Errorf("without type %s: %v", gone, err)
		}
		all[gone] = kept
	}
	broken := errors.New("broken")
	if _, err := ReadTypes("check", "shard 1", []uint32{1}, true, func(string, string) ([][][]byte, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
}

func TestKeys(t *testing.T) {
	tab := func(u catalog.Unique) *catalog.Table { return &catalog.Table{Uniques: []catalog.Unique{u}} }
	for _, c := range []struct {
		u               catalog.Unique
		indexed, unique bool
	}{
		{catalog.Unique{Columns: []int{2, 1}, Plain: true}, true, true},
		{catalog.Unique{Columns: []int{1}, Plain: true, Deferrable: true}, true, false},
		{catalog.Unique{Columns: []int{1, 3}, Plain: true}, false, false},
		{catalog.Unique{Columns: []int{1}}, false, false},
		{catalog.Unique{Plain: true}, false, false},
		{catalog.Unique{Columns: []int{1}, Plain: true, Exclusion: true}, false, false},
	} {
		if i, u := IndexedKeys(tab(c.u), []int{1, 2}), UniqueKeys(tab(c.u), []int{1, 2}); i != c.indexed || u != c.unique {
			t.Errorf("%+v: indexed %t, unique %t", c.u, i, u)
		}
	}
}

func TestSQL(t *testing.T) {
	heap := &catalog.Table{Schema: "a", Name: `t"1`, Kind: catalog.Heap, Columns: []catalog.Column{{Name: "x"}, {Name: "Y"}}}
	root := &catalog.Table{Schema: "a", Name: "p", Kind: catalog.PartitionRoot}
	if got, want := CopySQL(heap, []int{1, 0}), `COPY "a"."t""1" ("Y", "x") FROM STDIN`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := TruncateSQL([]*catalog.Table{heap, root}, true), `TRUNCATE ONLY "a"."t""1", "a"."p" RESTART IDENTITY`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
