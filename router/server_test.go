package router_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"cbrepl/internal/soak"
	"cbrepl/lab"
	"cbrepl/router"
)

var shared lab.Shared

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

// propertyValues is how many random values of each type the tests draw.
func propertyValues() int { return soak.Times(5000, 100_000) }

// property is a type whose hashes the server and the router must agree on.
type property struct {
	name string // as ParseType reads it, or a name of customTypes
	// cast turns the text v into a value; empty means v::name.
	cast  string
	hash  string // the server's hash of the value x
	gen   gen
	edges []string
	// modified tells that the server may change a value it reads (a type
	// modifier, a multirange in an order that only the server knows).
	modified bool
	trusted  bool // text that only the server can refuse (order, length)
	part     int  // divides the number of values
}

func fixedDate(r *rand.Rand) string {
	return fmt.Sprintf("%04d-%02d-%02d", 1000+r.IntN(9000), 1+r.IntN(12), 1+r.IntN(28))
}

func fixedTimestamp(r *rand.Rand) string {
	return fixedDate(r) + fmt.Sprintf(" %02d:%02d:%02d.%06d", r.IntN(24), r.IntN(60), r.IntN(60), r.IntN(1e6))
}
func fixedTimestamptz(r *rand.Rand) string { return fixedTimestamp(r) + "+00" }

func plainDecimal(r *rand.Rand) string {
	return fmt.Sprintf("%d.%s", r.IntN(20000)-10000, genDigits(r, 1+r.IntN(6)))
}

var (
	int4range = genRange(genInt(31), lessInt)
	int8range = genRange(genInt(63), lessInt)
	numrange  = genRange(plainDecimal, lessFloat)
	tsrange   = genRange(fixedTimestamp, lessText)
	tstzrange = genRange(fixedTimestamptz, lessText)
	daterange = genRange(fixedDate, lessText)
	nearRange = genRange(genInt(5), lessInt) // ranges that touch and overlap
)

// properties lists every type with a hash class on the server.
var properties = []property{
	{name: "bool", hash: "hashchar(x::int::\"char\")", gen: pick("t", "f", "true", "false", "yes", "off", "1", "0", "TRUE", "n")},
	{name: `"char"`, cast: `v::int::"char"`, hash: "hashchar(x)", gen: genInt(8), edges: []string{"0", "-128", "127", "92", "-1"}},
	{name: "int2", hash: "hashint2(x)", gen: genInt(16), edges: []string{"-32768", "32767", "0", "-1"}},
	{name: "int4", hash: "hashint4(x)", gen: genInt(32), edges: []string{"-2147483648", "2147483647", "0", "-1"}},
	{name: "int8", hash: "hashint8(x)", gen: genInt(64), edges: []string{"-9223372036854775808", "9223372036854775807", "-1", "0", "4294967295", "4294967296", "-4294967296", "-4294967297", "2147483648", "-2147483649"}},
	{name: "oid", hash: "hashoid(x)", gen: genUint(32), edges: []string{"0", "4294967295", "010", "0000000010"}},
	{name: "xid", hash: byArray, gen: genUint(32), edges: []string{"0", "4294967295"}},
	{name: "cid", hash: byArray, gen: genUint(32), edges: []string{"0", "4294967295"}},
	{name: "xid8", hash: byArray, gen: genUint(64), edges: []string{"0", "9223372036854775807", "18446744073709551615"}},
	{name: "float4", hash: "hashfloat4(x)", gen: genFloat4, edges: []string{"0", "-0", "NaN", "Infinity", "-Infinity", "1e-45", "3.4028235e38", "1.1754944e-38", "0.1", "16777216"}},
	{name: "float8", hash: "hashfloat8(x)", gen: genFloat8, edges: []string{"0", "-0", "NaN", "Infinity", "-Infinity", "5e-324", "1.7976931348623157e308", "2.2250738585072014e-308", "0.1", "9007199254740993"}},
	{name: "numeric", hash: "hash_numeric(x)", gen: genNumeric, edges: []string{"0", "0.000", "-0", "NaN", "Infinity", "-Infinity", "1e131071", "1e-16383", "10000", "9999", "0.0001", "0.00001", "1e4", "1e-4", "100000000", "0.00010000", "99999999999999999999.99990000", "00012.3400"}},
	{name: "numeric(40,7)", hash: "hash_numeric(x)", gen: func(r *rand.Rand) string { return genDigits(r, 1+r.IntN(30)) + "." + genDigits(r, r.IntN(12)) }, modified: true, part: 4},
	{name: "text", hash: "hashtext(x)", gen: genText, edges: []string{"", " ", "NULL", "a", "é", "😀"}},
	{name: "varchar", hash: "hashtext(x)", gen: genText, edges: []string{"", " "}, part: 4},
	{name: "varchar(5)", cast: "v::varchar(5)", hash: "hashtext(x)", gen: genText, part: 4},
	{name: "bpchar", hash: "hashbpchar(x)", gen: genText, edges: []string{"", " ", "  ", "a ", "é  ", " a"}},
	{name: "character(9)", modified: true, hash: "hashbpchar(x)", gen: genText, edges: []string{"", " ", "中", "中数据😀🙂éüßñ"}},
	{name: "name", hash: "hashname(x)", gen: genName, edges: []string{"", "123456789012345678901234567890123456789012345678901234567890123"}},
	{name: "bytea", hash: byArray, gen: genBytea, edges: []string{`\x`, `\x00`, `\x5c`, `\x5c5c785c`, `\xff`}},
	{name: "date", hash: byArray, gen: genDateIn(5874000), edges: []string{"infinity", "-infinity", "2000-02-29", "1900-02-28", "0001-01-01", "0001-12-31 BC", "4714-11-24 BC", "5874897-12-31"}},
	{name: "date", cast: "'2000-01-01'::date + v::int", hash: "hashint4(x - '2000-01-01'::date)", gen: func(r *rand.Rand) string { return strconv.Itoa(r.IntN(maxDays-minDays) + minDays) }, edges: []string{strconv.Itoa(minDays), strconv.Itoa(maxDays - 1)}},
	{name: "time", hash: "time_hash(x)", gen: genTime, edges: []string{"00:00:00", "24:00:00", "23:59:59.999999", "12:34", "12:00:60"}},
	{name: "timetz", hash: "timetz_hash(x)", gen: genTimetz, edges: []string{"00:00:00+00", "24:00:00-15:59:59", "23:59:59.999999+15:59:59", "01:02:03Z"}},
	{name: "timestamp", hash: "timestamp_hash(x)", gen: genTimestamp, edges: []string{"infinity", "-infinity", "2000-01-01 00:00:00", "1999-12-31 23:59:59.999999", "294276-12-31 23:59:59.999999", "4714-11-24 00:00:00 BC", "0001-01-01 00:00:00", "0001-12-31 24:00:00 BC", "2000-02-29 12:00:00", "1900-02-28 24:00:00"}},
	{name: "timestamptz", hash: byArray, gen: genTimestamptz, edges: []string{"infinity", "-infinity", "2000-01-01 00:00:00Z", "294276-12-31 23:59:59.999999+00", "4714-11-24 00:00:00+00 BC", "0001-01-01 00:00:00+14", "1883-11-18 12:03:58-04:56:02"}},
	{name: "interval", hash: "interval_hash(x)", gen: genInterval, edges: []string{"0", "1 mon", "30 days", "720 hours", "-1 day", "24:00:00", "-00:00:00.000001", "1 year -1 mon", "178000000 years", "-178000000 years", "2147483647 days", "-2147483648 days 2147483647 mons", "9223372036854775807 microseconds", "-9223372036854775808 microseconds", "1 day -24:00:00", "P1Y2M3DT4H5M6.5S"}},
	{name: "inet", hash: "hashinet(x)", gen: genInet, edges: []string{"0.0.0.0/0", "::/0", "::", "::1/128", "::ffff:1.2.3.4", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "255.255.255.255", "10.1.2.3/8"}},
	{name: "cidr", hash: "hashinet(x)", gen: genCidr, edges: []string{"0.0.0.0/0", "::/0", "10.0.0.0/8", "ffff::/16", "128.0.0.0/1"}},
	{name: "macaddr", hash: "hashmacaddr(x)", gen: genMAC(6), edges: []string{"00:00:00:00:00:00", "08002b:010203", "08002b-010203", "0800.2b01.0203", "0800-2b01-0203", "08002b010203", "08-00-2B-01-02-03"}},
	{name: "macaddr8", hash: "hashmacaddr8(x)", gen: oneOf(genMAC(8), genMAC(6)), edges: []string{"08002b:0102030405", "08002b-0102030405", "0800.2b01.0203.0405", "0800-2b01-0203-0405", "08002b01:02030405", "08002b0102030405"}},
	{name: "uuid", hash: "uuid_hash(x)", gen: genUUID, edges: []string{"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "{a0eebc99-9c0b4ef8-bb6d6bb9-bd380a11}", "a0eebc999c0b4ef8bb6d6bb9bd380a11", "a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11"}},
	{name: "varbit", hash: bitHash, gen: genBits, edges: []string{"", "0", "1", "B101", "xA5f", "X", "00000000", "000000000"}},
	{name: "bit(13)", cast: "v::varbit::bit(13)", hash: bitHash, gen: genBits, edges: []string{"", "1"}, part: 4},
	{name: "pg_lsn", hash: "pg_lsn_hash(x)", gen: genLSN, edges: []string{"0/0", "FFFFFFFF/FFFFFFFF", "1/0"}},
	{name: "tid", hash: "hashtid(x)", gen: genTid, edges: []string{"(0,0)", "(4294967295,65535)", "(0,1)"}},
	{name: "oidvector", hash: "hashoidvector(x)", gen: genVector(genUint(32)), edges: []string{"", "010 7"}},
	{name: "int2vector", hash: "hash_array(x)", gen: genVector(genInt(16)), edges: []string{""}, part: 4},
	{name: "jsonb", hash: "jsonb_hash(x)", gen: genJSON(4), edges: []string{"{}", "[]", "null", "1", "1.0", `""`, "[[]]", "[{}]", `{"a":{}}`, `{"a":1,"a":2}`, `{"bb":1,"a":2,"":3}`, `"\ud83d\ude00"`, "[1e5, 100000, 1E-3]", "-0", "[-0.0]"}},

	{name: "int4[]", hash: "hash_array(x)", gen: genArray(genInt(32)), edges: []string{"{}", "{NULL}", "[0:1]={1,2}", "{{1},{2}}", "{ 1 , NULL , 3 }"}},
	{name: "int8[]", hash: "hash_array(x)", gen: genArray(genInt(64)), part: 4},
	{name: "text[]", hash: "hash_array(x)", gen: genArray(genText), edges: []string{`{""}`, `{"NULL",NULL}`, `{"\\"}`, `{" a "}`}},
	{name: "bpchar[]", hash: "hash_array(x)", gen: genArray(genText), part: 4},
	{name: "name[]", hash: "hash_array(x)", gen: genArray(genName), part: 8},
	{name: "bytea[]", hash: "hash_array(x)", gen: genArray(genBytea), part: 4},
	{name: "bool[]", hash: "hash_array(x)", gen: genArray(pick("t", "f")), part: 8},
	{name: "float8[]", hash: "hash_array(x)", gen: genArray(genFloat8), part: 4},
	{name: "numeric[]", hash: "hash_array(x)", gen: genArray(genNumeric), part: 4},
	{name: "date[]", hash: "hash_array(x)", gen: genArray(genDateIn(9999)), part: 4},
	{name: "timestamptz[]", hash: "hash_array(x)", gen: genArray(genTimestamptz), part: 4},
	{name: "timetz[]", hash: "hash_array(x)", gen: genArray(genTimetz), part: 8},
	{name: "interval[]", hash: "hash_array(x)", gen: genArray(genInterval), part: 4},
	{name: "inet[]", hash: "hash_array(x)", gen: genArray(genInet), part: 4},
	{name: "uuid[]", hash: "hash_array(x)", gen: genArray(genUUID), part: 4},
	{name: "jsonb[]", hash: "hash_array(x)", gen: genArray(genJSON(2)), part: 8},
	{name: "tid[]", hash: "hash_array(x)", gen: genArray(genTid), part: 8},
	{name: "int4range[]", hash: "hash_array(x)", gen: genArray(int4range), part: 8},

	{name: "int4range", hash: "hash_range(x)", gen: oneOf(int4range, nearRange), edges: []string{"empty", "(,)", "[1,2)", "(1,2)", "[1,1]", "(1,1]", "[,5)", "[2147483647,)", "(,2147483646]"}},
	{name: "int8range", hash: "hash_range(x)", gen: oneOf(int8range, nearRange), edges: []string{"empty", "[9223372036854775806,9223372036854775807)"}},
	{name: "numrange", hash: "hash_range(x)", gen: numrange, edges: []string{"empty", "[1.0,1.00]", "[1.0,1.00)", "(1.0,1.00)", "[-Infinity,Infinity]", "[1.5,NaN]", "[-1.10,-1.1]", "[-10000,-9999.9]"}},
	{name: "tsrange", hash: "hash_range(x)", gen: tsrange, edges: []string{"empty", "[-infinity,infinity)", "[2000-01-01,2000-01-01]"}},
	{name: "tstzrange", hash: "hash_range(x)", gen: tstzrange, edges: []string{"empty", "[,infinity]"}},
	{name: "daterange", hash: "hash_range(x)", gen: daterange, edges: []string{"empty", "[-infinity,infinity]", "(-infinity,infinity)", "[2000-01-01,infinity]", "(2000-01-01,2000-01-02)"}},
	{name: "int4multirange", hash: "hash_multirange(x)", gen: genMultirange(oneOf(nearRange, int4range)), edges: []string{"{}", "{(,)}", "{empty}"}},
	{name: "int8multirange", hash: "hash_multirange(x)", gen: genMultirange(int8range), part: 4},
	{name: "nummultirange", hash: "hash_multirange(x)", gen: genMultirange(numrange), part: 2},
	{name: "tsmultirange", hash: "hash_multirange(x)", gen: genMultirange(tsrange), part: 4},
	{name: "tstzmultirange", hash: "hash_multirange(x)", gen: genMultirange(tstzrange), part: 4},
	{name: "datemultirange", hash: "hash_multirange(x)", gen: genMultirange(daterange), part: 4},
}

// bitHash is what Greenplum's bithash computes: stock PostgreSQL has no hash
// class for bit strings, so the server only provides the bytes.
const bitHash = `(hash_array(array[substr(varbit_send(x::varbit), 5)])::bigint - 31) & 4294967295`

// byArray is the hash of types whose hash function SQL cannot name: hash_array
// of an array of one is 31 plus the element's.
const byArray = "(hash_array(array[x])::bigint - 31) & 4294967295"

const (
	minDays = -2451545
	maxDays = 2145031949
)

// sessions are settings that shape values' text, used in turn.
var sessions = []string{
	"set timezone = 'UTC'; set intervalstyle = 'postgres'; set extra_float_digits = 1; set bytea_output = 'hex'",
	"set timezone = 'Asia/Kolkata'; set intervalstyle = 'iso_8601'; set extra_float_digits = 3; set bytea_output = 'escape'",
	"set timezone = 'Europe/Amsterdam'; set intervalstyle = 'postgres_verbose'; set extra_float_digits = 2; set bytea_output = 'hex'",
	"set timezone = 'America/St_Johns'; set intervalstyle = 'postgres'; set extra_float_digits = 1; set bytea_output = 'escape'",
}

// TestServerHashes draws random values of every type, asks a PostgreSQL server
// for their text and hash, and compares the router's hash of that text.
func TestServerHashes(t *testing.T) {
	seed := soak.Seed(t, 1)
	conn := connect(t)
	custom := createTypes(t, conn)
	for _, p := range append(properties, custom.properties...) {
		t.Run(p.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			typ := custom.types[p.name]
			if typ == nil {
				var err error
				if typ, err = router.ParseType(p.name); err != nil {
					t.Fatal(err)
				}
			}
			p.check(t, conn, newRouter(t, typ, ""), r, sessions)
		})
	}
}

// newRouter routes by one column.
func newRouter(t *testing.T, typ *router.Type, opclass string) *router.Router {
	t.Helper()
	rt, err := router.New(router.Policy{Kind: router.Hash, NumSegments: 1, Columns: []router.Column{{Name: "k", Type: typ, Opclass: opclass}}})
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

func connect(t *testing.T) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, shared.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// check compares hashes batch by batch, each under other session settings.
func (p *property) check(t *testing.T, conn *pgx.Conn, rt *router.Router, r *rand.Rand, sessions []string) {
	const batch = 5000
	total := propertyValues() / max(p.part, 1)
	wrong, refused := 0, 0
	for done, turn := 0, r.IntN(len(sessions)); done < total; turn++ {
		values := append([]string(nil), p.edges...)
		for len(values) < batch && done < total {
			values = append(values, p.gen(r))
			done++
		}
		for i, got := range p.ask(t, conn, sessions[turn%len(sessions)], values) {
			h, err := rt.RowHash([][]byte{got.text})
			if err != nil || h != got.hash {
				if wrong++; wrong <= 5 {
					t.Errorf("value %q, text %q: hash %d, the server says %d (%v)", values[i], got.text, h, got.hash, err)
				}
			}
			if p.cast != "" || p.modified {
				continue
			}
			// What a person would type is refused or hashed right.
			h, err = rt.RowHash([][]byte{[]byte(values[i])})
			if err != nil {
				refused++
			} else if h != got.hash {
				if wrong++; wrong <= 5 {
					t.Errorf("input %q, text %q: hash %d, the server says %d", values[i], got.text, h, got.hash)
				}
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d values wrong", wrong, total)
	}
	if refused > 0 {
		t.Logf("%d of %d input texts refused", refused, total)
	}
}

type answer struct {
	text []byte
	hash uint32
}

// ask has the server read the values and returns their text and hash.
func (p *property) ask(t *testing.T, conn *pgx.Conn, settings string, values []string) []answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if _, err := conn.PgConn().Exec(ctx, settings).ReadAll(); err != nil {
		t.Fatal(err)
	}
	cast := p.cast
	if cast == "" {
		cast = "v::" + p.name
	}
	arg, err := conn.TypeMap().Encode(pgtype.TextArrayOID, pgtype.BinaryFormatCode, values, nil)
	if err != nil {
		t.Fatal(err)
	}
	sql := fmt.Sprintf("select x, %s from (select %s as x, n from unnest($1::text[]) with ordinality as u(v, n) offset 0) s order by n", p.hash, cast)
	res := conn.PgConn().ExecParams(ctx, sql, [][]byte{arg}, nil, []int16{pgtype.BinaryFormatCode}, nil)
	var out []answer
	for res.NextRow() {
		row := res.Values()
		h, err := strconv.ParseInt(string(row[1]), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, answer{append([]byte{}, row[0]...), uint32(h)})
	}
	if _, err := res.Close(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	if len(out) != len(values) {
		t.Fatalf("%d answers for %d values", len(out), len(values))
	}
	return out
}

// TestCatalogue compares the table of built-in types with the server's own.
func TestCatalogue(t *testing.T) {
	conn := connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	rows, err := conn.Query(ctx, `select t.oid, format_type(t.oid, null), t.typtype::text, t.typarray,
 exists (select from pg_opclass o join pg_am am on am.oid = o.opcmethod where am.amname = 'hash' and o.opcdefault
  and (o.opcintype = t.oid or t.typname in ('varchar', 'cidr', 'int2vector') or t.typtype in ('r', 'm')))
 from pg_type t where t.typnamespace = 'pg_catalog'::regnamespace and t.typtype in ('b', 'r', 'm') and t.typarray <> 0 order by 1`)
	if err != nil {
		t.Fatal(err)
	}
	var oid, array uint32
	var name, kind string
	var hashable bool
	n := 0
	_, err = pgx.ForEachRow(rows, []any{&oid, &name, &kind, &array, &hashable}, func() error {
		n++
		typ, ok := router.BuiltinType(oid)
		if !ok {
			if hashable {
				t.Errorf("%s (%d) is not known", name, oid)
			}
			return nil
		}
		if typ.Name != name {
			t.Errorf("type %d is %q, the server says %q", oid, typ.Name, name)
		}
		if want := map[string]router.TypeKind{"b": router.BaseType, "r": router.RangeType, "m": router.MultirangeType}[kind]; typ.Kind != want {
			t.Errorf("%s: kind %d, want %d", name, typ.Kind, want)
		}
		if a, ok := router.BuiltinType(array); !ok || a.Kind != router.ArrayType || a.Elem.OID != oid {
			t.Errorf("%s[]: %+v", name, a)
		}
		_, err := router.New(router.Policy{Kind: router.Hash, NumSegments: 1, Columns: []router.Column{{Name: "k", Type: typ}}})
		greenplum := name == "bit" || name == "bit varying" // hashable there only
		byOID := name == "aclitem"                          // refused: its text holds names
		if (err == nil) != (hashable || greenplum) && !byOID {
			t.Errorf("%s: hashable on the server: %v, here: %v", name, hashable, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n < 60 {
		t.Errorf("%d types compared", n)
	}
}
