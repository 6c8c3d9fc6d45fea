package router_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"cbrepl/router"
)

// custom are types that only a catalogue describes.
type custom struct {
	types      map[string]*router.Type
	properties []property
}

const customDDL = `
create domain posint as int4;
create domain code as char(4);
create domain deep as posint;
create domain ints as int4[];
create type floatrange as range (subtype = float8);
create type textrange as range (subtype = text, collation = "C");
create type inetrange as range (subtype = inet);
create type posrange as range (subtype = posint);
create type pair as (a int4, b text);
create type mixed as (f float8, n numeric, p pair, ts timestamptz[], r int4range, j jsonb, d code);
create type one as (x text);
create type ranges as (m nummultirange, t textrange);
`

// createTypes makes the custom types and describes them as a reader of the
// catalogue would.
func createTypes(t *testing.T, conn *pgx.Conn) custom {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := conn.Exec(ctx, customDDL); err != nil {
		t.Fatal(err)
	}
	b := func(name string) *router.Type {
		typ, err := router.ParseType(name)
		if err != nil {
			t.Fatal(err)
		}
		return typ
	}
	oid := uint32(100000)
	mk := func(kind router.TypeKind, name string, elem *router.Type, fields ...*router.Type) *router.Type {
		oid++
		return &router.Type{OID: oid, Name: name, Kind: kind, Elem: elem, Fields: fields}
	}
	posint := mk(router.DomainType, "posint", b("int4"))
	code := mk(router.DomainType, "code", b("bpchar"))
	textrange := mk(router.RangeType, "textrange", b("text"))
	floatrange := mk(router.RangeType, "floatrange", b("float8"))
	inetrange := mk(router.RangeType, "inetrange", b("inet"))
	pair := mk(router.CompositeType, "pair", nil, b("int4"), b("text"))
	ints := mk(router.DomainType, "ints", b("int4[]"))
	mixed := mk(router.CompositeType, "mixed", nil, b("float8"), b("numeric"), pair, b("timestamptz[]"), b("int4range"), b("jsonb"), code)

	genPair := genRecord(genInt(32), genText)
	genCode := pick("a", "ab ", "éé", "    ", "", "中中中中")
	genTextrange := genRange(genText, lessText)
	genMixed := genRecord(genFloat8, genNumeric, genPair, genArray(genTimestamptz), int4range, genJSON(2), genCode)
	c := custom{types: map[string]*router.Type{
		"posint": posint, "code": code, "ints": ints, "mixed": mixed, "pair": pair,
		"deep":            mk(router.DomainType, "deep", posint),
		"posint[]":        mk(router.ArrayType, "posint[]", posint),
		"ints[]":          mk(router.ArrayType, "ints[]", ints),
		"pair[]":          mk(router.ArrayType, "pair[]", pair),
		"mixed[]":         mk(router.ArrayType, "mixed[]", mixed),
		"floatrange":      floatrange,
		"textrange":       textrange,
		"inetrange":       inetrange,
		"posrange":        mk(router.RangeType, "posrange", posint),
		"textrange[]":     mk(router.ArrayType, "textrange[]", textrange),
		"floatmultirange": mk(router.MultirangeType, "floatmultirange", floatrange),
		"textmultirange":  mk(router.MultirangeType, "textmultirange", textrange),
		"one":             mk(router.CompositeType, "one", nil, b("text")),
		"ranges":          mk(router.CompositeType, "ranges", nil, b("nummultirange"), textrange),
	}}
	c.properties = []property{
		{name: "posint", hash: "hashint4(x)", gen: genUint(31), part: 8},
		{name: "deep", hash: "hashint4(x)", gen: genUint(31), part: 8},
		{name: "code", trusted: true, hash: "hashbpchar(x)", gen: genCode, part: 8},
		{name: "ints", hash: "hash_array(x)", gen: genArray(genInt(32)), part: 8},
		{name: "posint[]", hash: "hash_array(x)", gen: genArray(genUint(31)), part: 8},
		{name: "ints[]", hash: "hash_array(x)", gen: genArray(genArray(genInt(32))), part: 16},
		{name: "pair[]", hash: "hash_array(x)", gen: genArray(genPair), part: 8},
		{name: "mixed[]", trusted: true, hash: "hash_array(x)", gen: genArray(genMixed), part: 40},
		{name: "floatrange", hash: "hash_range(x)", gen: genRange(plainDecimal, lessFloat), part: 4, edges: []string{"empty", "[-Infinity,NaN]", "[-0,0]"}},
		{name: "textrange", trusted: true, hash: "hash_range(x)", gen: genTextrange, part: 2, edges: []string{`["",""]`, `("",)`, `[a,"b""c"]`, `[a\,b,c)`, `[ a, b]`}},
		{name: "inetrange", trusted: true, hash: "hash_range(x)", gen: pick("[10.0.0.0/8,10.0.0.0/9]", "(10.1.2.3,)", "[::1,::2)", "(,::)"), part: 16},
		{name: "posrange", hash: "hash_range(x)", gen: genRange(genUint(31), lessInt), part: 8},
		{name: "textrange[]", trusted: true, hash: "hash_array(x)", gen: genArray(genTextrange), part: 16},
		{name: "floatmultirange", hash: "hash_multirange(x)", gen: genMultirange(genRange(plainDecimal, lessFloat)), part: 4},
		{name: "textmultirange", modified: true, hash: "hash_multirange(x)", gen: genMultirange(genTextrange), part: 2},
		{name: "pair", hash: "hash_record(x)", gen: genPair, part: 2, edges: []string{"(,)", `(1,"")`, `(1,"a""b")`, `(1,a b)`, `(1,\,)`}},
		{name: "mixed", trusted: true, hash: "hash_record(x)", gen: genMixed, part: 10, edges: []string{"(,,,,,,)"}},
		{name: "one", hash: "hash_record(x)", gen: genRecord(genText), part: 4, edges: []string{"()", `("")`}},
		{name: "ranges", trusted: true, hash: "hash_record(x)", gen: genRecord(genMultirange(numrange), genTextrange), part: 8},
	}
	return c
}
