package pgbinary

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"cbrepl/lab"
)

// server is started once for all tests.
var server *lab.Server

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctx := context.Background()
	l, err := lab.New(ctx, lab.Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, "start the lab:", err)
		return 1
	}
	code := 1
	if server, err = l.StartServer(ctx, "values", nil); err != nil {
		fmt.Fprintln(os.Stderr, "start a server:", err)
	} else {
		code = m.Run()
	}
	if err := l.Close(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "clean up:", err)
		return 1
	}
	return code
}

// valueSet says which values of a type a server is asked for: edges, and an
// expression over i that makes many.
type valueSet struct {
	oid       uint32
	typ, send string
	edges     []string
	many      string
}

var values = []valueSet{
	{boolOID, "bool", "boolsend", nil, "i % 2 = 0"},
	{byteaOID, "bytea", "byteasend", []string{`\x`, `\x00ff5c0a`}, "decode(md5(i::text), 'hex')"},
	{int2OID, "int2", "int2send", []string{"-32768", "32767", "0", "-1"}, "(i * 7919) % 65536 - 32768"},
	{int4OID, "int4", "int4send", []string{"-2147483648", "2147483647", "0"}, "(random() * 4294967295 - 2147483648)::int8"},
	{int8OID, "int8", "int8send", []string{"-9223372036854775808", "9223372036854775807", "0"}, "(random() * 18446744073709551615 - 9223372036854775808)::numeric(20) / 2"},
	{oidOID, "oid", "oidsend", []string{"0", "4294967295"}, "(i::int8 * 104729) % 4294967296"},
	{textOID, "text", "textsend", []string{"", `\N`, "a\tb\nc\\", "ünï→𝄞"}, "md5(i::text)"},
	{varcharOID, "varchar", "varcharsend", []string{"", "é"}, "md5(i::text)"},
	{bpcharOID, "char(12)", "bpcharsend", []string{"", "é", " x"}, "left(md5(i::text), 12)"},
	{jsonOID, "json", "json_send", []string{`{"a": [1, null, "é\n"]}`, "1.0"}, "json_build_object('i', i)"},
	{jsonbOID, "jsonb", "jsonb_send", []string{`{"a": [1, null, "é\n"]}`, "1.00"}, "jsonb_build_object('i', i, 'f', random())"},
	{uuidOID, "uuid", "uuid_send", []string{"00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"}, "md5(i::text)"},
	{
		float8OID, "float8", "float8send",
		[]string{"NaN", "Infinity", "-Infinity", "0", "-0", "5e-324", "1.7976931348623157e308", "2.2250738585072014e-308", "0.1", "1e15", "1e16", "123456789012345680"},
		"(random() - 0.5) * power(10, i % 600 - 300)",
	},
	{
		float4OID, "float4", "float4send",
		[]string{"NaN", "Infinity", "-Infinity", "0", "-0", "1e-45", "3.4028235e38", "1.1754944e-38", "0.1", "16777217"},
		"(random() - 0.5) * power(10, i % 70 - 35)",
	},
	{
		numericOID, "numeric", "numeric_send",
		[]string{"NaN", "Infinity", "-Infinity", "0", "0.0000", "-0.00", "1", "10000", "9999", "100000000", "0.0001", "0.00001", "-12345.6700", "1e100", "1e-100", "1e131071", "1e-16383", "10000.0001", "1.00000000"},
		"round(((random() - 0.5) * power(10, i % 40 - 20))::numeric, i % 30)",
	},
	{
		dateOID, "date", "date_send",
		[]string{"infinity", "-infinity", "4714-11-24 BC", "0001-12-31 BC", "0001-01-01", "2000-02-29", "1900-02-28", "1900-03-01", "1999-12-31", "9999-12-31", "10000-01-01", "5874897-12-31"},
		"date '4000-01-01 BC' + (random() * 5000000)::int",
	},
	{timeOID, "time", "time_send", []string{"00:00:00", "24:00:00", "23:59:59.999999", "12:00:00.1", "12:00:00.000001"}, "time '00:00' + random() * interval '1 day'"},
	{
		timestampOID, "timestamp", "timestamp_send",
		[]string{"infinity", "-infinity", "4714-11-24 00:00:00 BC", "0001-01-01 00:00:00", "1999-12-31 23:59:59.999999", "2000-01-01 00:00:00", "9999-12-31 23:59:59", "294276-12-31 23:59:59.999999", "2024-02-29 12:00:00.5"},
		"timestamp '4000-01-01 BC' + random() * interval '290000 years'",
	},
	{
		timestamptzOID, "timestamptz", "timestamptz_send",
		[]string{"infinity", "-infinity", "0001-01-02 00:00:00+00", "1999-12-31 23:59:59.999999+00", "294276-12-31 00:00:00+00", "1883-11-18 12:00:00+00", "2024-07-01 12:00:00.5+00"},
		"timestamptz '4000-01-01 BC' + random() * interval '280000 years'",
	},
}

func connect(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// TestServer compares every encoder with what a server sends in binary for the
// values that it prints.
func TestServer(t *testing.T) {
	ctx := t.Context()
	conn := connect(t)
	const rows = 20000
	for _, v := range values {
		zones := []string{"UTC"}
		if v.oid == timestamptzOID {
			zones = []string{"UTC", "America/New_York", "Asia/Kathmandu", "Pacific/Kiritimati", "Africa/Monrovia"}
		}
		for _, zone := range zones {
			if _, err := conn.Exec(ctx, "SELECT set_config('timezone', $1, false), set_config('datestyle', 'ISO', false)", zone); err != nil {
				t.Fatal(err)
			}
			q := fmt.Sprintf("SELECT %s(v), concat(v) FROM (SELECT unnest($1::text[])::%s UNION ALL SELECT (%[3]s)::%[2]s FROM generate_series(1, %[4]d) i) s(v)",
				v.send, v.typ, v.many, rows)
			res, err := conn.Query(ctx, q, v.edges)
			if err != nil {
				t.Fatalf("%s: %v", v.typ, err)
			}
			n := 0
			var got []byte
			for res.Next() {
				var want []byte
				var text string
				if err := res.Scan(&want, &text); err != nil {
					t.Fatalf("%s: %v", v.typ, err)
				}
				n++
				var ok bool
				if got, ok = ForType(v.oid)(got[:0], []byte(text)); !ok || !bytes.Equal(got, want) {
					t.Errorf("%s %.100q: encoded as %.200x (%v), the server sends %.200x", v.typ, text, got, ok, want)
				}
				if Reversible(v.oid) {
					if back := Text(v.oid, want); string(back) != text {
						t.Errorf("%s %x: printed as %q, the server prints %q", v.typ, want, back, text)
					}
				}
			}
			if err := res.Err(); err != nil {
				t.Fatalf("%s: %v", v.typ, err)
			}
			if n != rows+len(v.edges) {
				t.Fatalf("%s: %d rows", v.typ, n)
			}
		}
	}
	if len(values) != len(encoders) {
		t.Errorf("%d of %d encoders have values", len(values), len(encoders))
	}
}

// TestOtherTexts: of what a server does not print, an encoder takes nothing that
// the type's input function reads in another way, or refuses.
func TestOtherTexts(t *testing.T) {
	ctx := t.Context()
	conn := connect(t)
	for oid, texts := range map[uint32][]string{
		boolOID:        {"", "true", "1", "T"},
		byteaOID:       {"", "abc", `\`, `\x0`, `\xzz`, `\\x00`},
		int2OID:        {"", "-", "32768", "-32769", "1.0", " 1", "1 ", "+1", "0x1", "1_0", "--1"},
		int4OID:        {"", "2147483648", "-2147483649", "1e3"},
		int8OID:        {"", "9223372036854775808", "-9223372036854775809", "99999999999999999999", "18446744073709551617"},
		oidOID:         {"", "-1", "4294967296"},
		float8OID:      {"", "nan", "inf", "infinity", "0x1p3", "1_0", "1e", " 1", "1e999", "--1"},
		float4OID:      {"", "1e39", "abc"},
		numericOID:     {"", "-", ".", "1.", ".5", "1e3", "+1", " 1", "1 ", "1.2.3", "--1", "nan", "1,5", "0." + strings.Repeat("0", 16384), strings.Repeat("1234", 3001)},
		uuidOID:        {"", "00000000000000000000000000000000", "{00000000-0000-0000-0000-000000000000}", "0000000-00000-0000-0000-000000000000", "g0000000-0000-0000-0000-000000000000"},
		dateOID:        {"", "2024-1-1", "24-01-01", "2024-02-30", "2023-02-29", "2024-13-01", "2024-00-01", "2024-01-00", "0000-01-01", "01/02/2024", "0044-03-15 BC", "2024-01-01 00:00:00", "today", "Infinity", "5874898-01-01"},
		timeOID:        {"", "1:00:00", "24:00:01", "25:00:00", "12:60:00", "12:00:60", "12:00", "12:00:00.", "12:00:00.1234567", "12:00:00+00"},
		timestampOID:   {"", "2024-01-01", "2024-01-01T00:00:00", "2024-01-01 24:00:00", "2024-01-01 00:00:00+00", "2024-01-01 00:00:00 BC", "294277-01-01 00:00:00", "now"},
		timestamptzOID: {"", "2024-01-01 00:00:00", "2024-01-01 00:00:00 UTC", "2024-01-01 00:00:00+0", "2024-01-01 00:00:00+00:", "2024-01-01 00:00:00+00:60", "2024-01-01 00:00:00+16", "2024-01-01 00:00:00+00 BC", "2024-01-01 00:00:00Z"},
	} {
		v := values[slices.IndexFunc(values, func(v valueSet) bool { return v.oid == oid })]
		for _, text := range texts {
			got, ok := ForType(oid)(nil, []byte(text))
			if !ok {
				continue
			}
			var want []byte
			err := conn.QueryRow(ctx, fmt.Sprintf("SELECT %s($1::text::%s)", v.send, v.typ), text).Scan(&want)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s %.50q: encoded as %.50x, the server makes it %.50x (%v)", v.typ, text, got, want, err)
			}
		}
	}
}

// TestAllocs: no encoder allocates for a value of usual size.
func TestAllocs(t *testing.T) {
	buf := make([]byte, 0, 1024)
	for oid, text := range map[uint32]string{
		boolOID: "t", byteaOID: `\x00ff`, int8OID: "-123456789", float8OID: "1.5e-10", numericOID: "-12345.6789",
		dateOID: "2024-02-29", timestamptzOID: "2024-02-29 12:34:56.789+05:30", uuidOID: "ffffffff-ffff-ffff-ffff-ffffffffffff",
		jsonbOID: `{"a": 1}`, textOID: "text",
	} {
		b := []byte(text)
		if n := testing.AllocsPerRun(100, func() { _, _ = ForType(oid)(buf, b) }); n > 0 {
			t.Errorf("type %d: %v allocations for %q", oid, n, text)
		}
	}
}
