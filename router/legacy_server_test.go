package router_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"cbrepl/internal/soak"
	"cbrepl/lab/clustertest"
	"cbrepl/router"
)

// legacyOut records some values of each type and their hashes as vectors, for
// places where there is no such server: testdata/legacy.jsonl.
var legacyOut = flag.String("router.legacy-out", "", "file to write vectors of TestLegacyServerHashes to")

// legacySessions are the sessions of this server's age: only
// extra_float_digits = 3 prints floats exactly.
var legacySessions = []string{
	"set timezone = 'UTC'; set intervalstyle = 'postgres'; set extra_float_digits = 3; set bytea_output = 'hex'",
	"set timezone = 'Europe/Amsterdam'; set intervalstyle = 'iso_8601'; set extra_float_digits = 3; set bytea_output = 'escape'",
}

// genOldInterval draws what an old interval_in reads.
func genOldInterval(r *rand.Rand) string {
	return fmt.Sprintf("%s mons %s days %s.%s seconds", genInt(32)(r), genInt(32)(r), genInt(31)(r), genDigits(r, 6))
}

func legacyProperties() []property {
	fn := func(f string) string { return "cdblegacyhash_" + f + "(x)" }
	ps := []property{
		{name: "bool", hash: fn("bool"), gen: pick("t", "f")},
		{name: `"char"`, cast: `v::int::"char"`, hash: fn("char"), gen: genInt(8), edges: []string{"0", "-128"}},
		{name: "int2", hash: fn("int2"), gen: genInt(16)},
		{name: "int4", hash: fn("int4"), gen: genInt(32)},
		{name: "int8", hash: fn("int8"), gen: genInt(64)},
		{name: "oid", hash: fn("oid"), gen: genUint(32), edges: []string{"4294967295"}},
		{name: "float4", hash: fn("float4"), gen: genFloat4, edges: []string{"-0", "NaN", "Infinity"}},
		{name: "float8", hash: fn("float8"), gen: genFloat8, edges: []string{"-0", "NaN", "-Infinity"}, modified: true}, // float8in of this server rounds twice
		{name: "numeric", hash: fn("numeric"), gen: genNumeric, edges: []string{"0", "0.00", "NaN", "10000", "1e-20"}},
		{name: "text", hash: fn("text"), gen: genText, edges: []string{"", " ", "  ", "a ", " a "}},
		{name: "varchar", hash: fn("text"), gen: genText},
		{name: "bpchar", hash: fn("bpchar"), gen: genText, edges: []string{"", " ", "  "}},
		{name: "character(9)", hash: fn("bpchar"), gen: genText, modified: true, edges: []string{"", "中"}},
		{name: "name", hash: fn("name"), gen: genName, edges: []string{"", " ", strings.Repeat("x", 63), "a  "}},
		{name: "bytea", hash: fn("bytea"), gen: genBytea, edges: []string{`\x`, `\x2020`}},
		{name: "date", hash: fn("date"), gen: genDateIn(5874000), edges: []string{"infinity", "-infinity"}},
		{name: "time", hash: fn("time"), gen: genTime},
		{name: "timetz", hash: fn("timetz"), gen: genTimetz},
		{name: "timestamp", hash: fn("timestamp"), gen: genTimestamp, edges: []string{"infinity"}},
		{name: "timestamptz", hash: fn("timestamptz"), gen: genTimestamptz, edges: []string{"-infinity"}},
		{name: "interval", hash: fn("interval"), gen: genOldInterval, edges: []string{"0", "1 mon", "30 days"}},
		{name: "inet", hash: fn("inet"), gen: genInet},
		{name: "cidr", hash: fn("inet"), gen: genCidr},
		{name: "macaddr", hash: fn("macaddr"), gen: genMAC(6)},
		{name: "varbit", hash: fn("bit"), gen: genBits, edges: []string{"", "0", "00"}},
		{name: "bit(13)", cast: "v::varbit::bit(13)", hash: fn("bit"), gen: genBits},
		{name: "uuid", hash: fn("uuid"), gen: genUUID},
		{name: "tid", hash: fn("tid"), gen: genTid},
		{name: "money", hash: fn("cash"), gen: func(r *rand.Rand) string { return genInt(55)(r) + "." + genDigits(r, 2) }, edges: []string{"0", "-0.01"}},
		{name: "oidvector", hash: fn("oidvector"), gen: genVector(genUint(32))},
	}
	for _, p := range ps { // and arrays of nearly all of them
		if strings.Contains(p.name, "(") || p.cast != "" || p.name == "oidvector" {
			continue
		}
		p.name += "[]"
		p.gen = genArray(p.gen)
		p.hash = fn("array")
		p.edges = []string{"{}", "{NULL}"}
		ps = append(ps, p)
	}
	return append(ps,
		property{name: "xid[]", hash: fn("array"), gen: genArray(genUint(32))},
		property{name: "cid[]", hash: fn("array"), gen: genArray(genUint(32))},
		property{name: `"char"[]`, hash: fn("array"), gen: genArray(pick("a", "b", "", "\\", " "))})
}

// TestLegacyServerHashes is TestServerHashes for the legacy family, whose
// functions exist on a cluster's servers only.
func TestLegacyServerHashes(t *testing.T) {
	dsn := clustertest.DSNs(t)[0]
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	seed := soak.Seed(t, 1)
	var vectors []byte
	for _, p := range legacyProperties() {
		t.Run(p.name, func(t *testing.T) {
			typ, err := router.ParseType(p.name)
			if err != nil {
				t.Fatal(err)
			}
			opclass, err := router.NamedOpclass(typ, "cdbhash")
			if err != nil {
				t.Fatal(err)
			}
			p.part = max(p.part, 4)
			p.check(t, conn, newRouter(t, typ, opclass), rand.New(rand.NewPCG(seed, 1)), legacySessions)
			vectors = append(vectors, p.vectors(t, conn, "cdbhash")...)
		})
	}
	// Classes of the default family that stock PostgreSQL lacks.
	for _, p := range []property{
		{name: "varbit", hash: "bithash(x)", gen: genBits, edges: []string{"", "0"}},
		{name: "bit(13)", cast: "v::varbit::bit(13)", hash: "bithash(x)", gen: genBits},
		{name: "tid", hash: "hashtid(x)", gen: genTid},
	} {
		t.Run("default "+p.name, func(t *testing.T) {
			typ, err := router.ParseType(p.name)
			if err != nil {
				t.Fatal(err)
			}
			p.check(t, conn, newRouter(t, typ, ""), rand.New(rand.NewPCG(seed, 1)), legacySessions)
			vectors = append(vectors, p.vectors(t, conn, "default")...)
		})
	}
	if *legacyOut != "" {
		if err := os.WriteFile(*legacyOut, vectors, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// vectors makes lines in the format of testdata/cdbhash.jsonl.
func (p *property) vectors(t *testing.T, conn *pgx.Conn, opclass string) []byte {
	if *legacyOut == "" {
		return nil
	}
	values := append([]string(nil), p.edges...)
	for r := rand.New(rand.NewPCG(1, 1)); len(values) < 16; {
		values = append(values, p.gen(r))
	}
	var out []byte
	for _, a := range p.ask(t, conn, legacySessions[0], values) {
		if !utf8.Valid(a.text) {
			continue
		}
		line, err := json.Marshal(struct {
			Types   []string       `json:"types"`
			Opclass []string       `json:"opclass"`
			Key     []string       `json:"key"`
			Segment map[string]int `json:"segment"`
			Hash    uint32         `json:"hash"`
		}{[]string{p.name}, []string{opclass}, []string{string(a.text)}, map[string]int{}, a.hash})
		if err != nil {
			t.Fatal(err)
		}
		out = append(append(out, line...), '\n')
	}
	return out
}
