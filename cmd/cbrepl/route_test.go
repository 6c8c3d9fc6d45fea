package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"cbrepl/lab"
)

// route runs cbrepl route and returns its output and exit code.
func route(t *testing.T, stdin string, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := newRouteCmd()
	var out bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err := cmd.ExecuteContext(ctx)
	var silent *codedError
	var usage *usageError
	switch {
	case err == nil:
		return out.String(), exitOK
	case errors.As(err, &silent):
		return out.String(), silent.code
	case errors.As(err, &usage):
		return out.String() + err.Error(), exitUsage
	}
	return out.String() + err.Error(), exitFault
}

func TestRouteExplains(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"one column", []string{"--type", "int4", "--key", "1", "--segments", "1-3,8"}, `
column  type     family   hash                     row hash so far
1       integer  default  2389907270 (0x8e731746)  2389907270 (0x8e731746)
segments  segment  (jump consistent hash of the row hash)
1         0
2         1
3         1
8         4
`},
		{"legacy with NULL", []string{"--type", "text", "--opclass", "cdbhash", "--type", "int4", "--opclass", "cdbhash", "--key", `\N`, "--key", "5", "--segments", "3"}, `
column  type     family  hash                     row hash so far
1       text     legacy  NULL                     4149882634 (0xf75a2f0a)
2       integer  legacy  2520162430 (0x9636a07e)  836677465 (0x31deaf59)
segments  segment  (remainder of the row hash)
3         1
`},
		{"rows", []string{"--type", "int8", "--key", "1", "--key", "2", "--key", "3", "--segments", "2,3"}, `
row  hash                     of 2  of 3
1    2389907270 (0x8e731746)  1     1
2    1134484726 (0x439edcf6)  0     0
3    4266872727 (0xfe534f97)  0     0
segment = jump consistent hash of the row hash
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, code := route(t, "", c.args...)
			if code != exitOK {
				t.Fatalf("exit code %d: %s", code, out)
			}
			if got, want := trimLines(out), trimLines(c.want[1:]); got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// trimLines drops the blanks at line ends.
func trimLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

func TestRouteRefuses(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{nil, "--type", exitUsage},
		{[]string{"--type", "int4", "--key", "1"}, "--segments", exitUsage},
		{[]string{"--type", "int4", "--key", "1", "--segments", "0"}, "want numbers from 1", exitUsage},
		{[]string{"--type", "int4", "--key", "1", "--segments", "3-2"}, "want numbers from 1", exitUsage},
		{[]string{"--type", "int4", "--type", "text", "--key", "1", "--segments", "3"}, "2 columns and 1 values", exitUsage},
		{[]string{"--type", "int4", "--segments", "3"}, "1 columns and 0 values", exitUsage},
		{[]string{"--type", "mood", "--key", "1", "--segments", "3"}, "not a built-in type", exitUsage},
		{[]string{"--type", "json", "--key", "1", "--segments", "3"}, "no hash operator class", exitFault},
		{[]string{"--type", "int4", "--opclass", "cdbhash", "--opclass", "default", "--key", "1", "--segments", "3"}, "2 operator classes", exitUsage},
		{[]string{"--type", "int4", "--key", "x", "--segments", "3"}, "not in a form the server prints", exitFault},
		{[]string{"--type", "varchar(2)", "--key", "abc", "--segments", "3"}, "does not fit", exitUsage},
		{[]string{"--table", "t", "--type", "int4"}, "either --table or --type", exitUsage},
		{[]string{"--table", "t"}, envRouteDSN, exitUsage},
		{[]string{"--table", "t", "--dsn", "host=127.0.0.1 password=kanarie"}, "other users", exitUsage},
		{[]string{"--vectors", "-", "--type", "int4"}, "stands alone", exitUsage},
		{[]string{"--vectors", "/nonexistent/file"}, "no such file", exitFault},
	} {
		out, code := route(t, "", c.args...)
		if code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("%q: exit code %d, want %d: %s, want %q", c.args, code, c.code, out, c.want)
		}
		if strings.Contains(out, "kanarie") {
			t.Errorf("%q: the password is printed", c.args)
		}
	}
}

func TestRouteVectors(t *testing.T) {
	const golden = "../../router/testdata/cdbhash.jsonl"
	out, code := route(t, "", "--vectors", golden)
	if code != exitOK || out != "2432 vectors: 19456 placements and 644 hashes compared, 0 mismatches, 0 lines not checked\n" {
		t.Errorf("exit code %d: %s", code, out)
	}
	data, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if out, code := route(t, string(data), "--vectors", "-"); code != exitOK || !strings.HasPrefix(out, "2432 vectors") {
		t.Errorf("standard input: exit code %d: %s", code, out)
	}
	bad := filepath.Join(t.TempDir(), "bad.jsonl")
	lines := []string{
		`{"types": ["int4"], "opclass": ["default"], "key": ["1"], "segment": {"2": 1, "3": 0}, "hash": 2389907270}`,
		``,
		`{"types": ["int4"], "opclass": ["default"], "key": ["1"], "segment": {"2": 1}, "hash": 5}`,
		`{"types": ["text", "int4"], "opclass": ["cdbhash", "cdbhash"], "key": ["a b", null], "segment": {"1": 1}}`,
		`{"types": ["mood"], "opclass": ["default"], "key": ["sad"], "segment": {"1": 0}}`,
		`{"types": ["json"], "opclass": ["default"], "key": ["1"], "segment": {"1": 0}}`,
		`{"types": ["jsonb"], "opclass": ["cdbhash"], "key": ["1"], "segment": {"1": 0}}`,
		`{"types": ["int4"], "opclass": ["default"], "key": ["x"], "segment": {"1": 0}}`,
		`{"types": ["int4"], "opclass": ["default"], "key": ["1", "2"], "segment": {"1": 0}}`,
		`{"types": ["int4"], "opclass": ["default"], "key": ["1"], "segment": {"0": 0}}`,
		`{"types": ["int4"], "opclass": ["default"], "key": ["1"]}`,
		`{"types"`,
		`{"types": ["bpchar(5)"], "opclass": ["cdbhash"], "key": [""], "hash": 84696383}`,
		`{"types": ["timestamptz"], "opclass": ["default"], "key": ["2000-01-01 00:00:00"], "segment": {"1": 0}}`,
	}
	if err := os.WriteFile(bad, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	out, code = route(t, "", "--vectors", bad)
	if code != exitFault {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{
		`line 1: key ("1"): segment of 3: expected 0, computed 1`,
		`line 3: key ("1"): hash: expected 5, computed 2389907270`,
		`line 4: key ("a b", NULL): segment of 1: expected 1, computed 0`,
		"line 5: not checked", "line 6: not checked", "line 7: not checked", "line 8: not checked", "line 9: not checked",
		"line 10: not checked", "line 11: not checked", "line 12: not checked",
		"13 vectors: 5 placements and 3 hashes compared, 3 mismatches, 8 lines not checked\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	if out, code := route(t, "\n", "--vectors", "-"); code != exitFault {
		t.Errorf("an empty file: exit code %d: %s", code, out)
	}
}

// TestRouteTable reads policies from a server that keeps them in cbrepl's table.
func TestRouteTable(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	srv := lab.ServerForTest(t, lab.Options{})
	dsn := srv.DSN()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `
create schema cbrepl;
create table cbrepl.distribution_policy (schema_name text, table_name text, kind text not null, columns text[] not null,
 opclasses text[] not null, numsegments int not null, primary key (schema_name, table_name));
create type mood as enum ('sad');
create domain code as varchar(10);
create table orders (id bigint, c code, m mood);
insert into cbrepl.distribution_policy values
 ('public', 'orders', 'hash', '{id,c}', '{"",text_ops}', 3), ('public', 'dims', 'replicated', '{}', '{}', 3),
 ('public', 'log', 'random', '{}', '{}', 3), ('public', 'moods', 'hash', '{m}', '{""}', 3), ('public', 'odd', 'strange', '{}', '{}', 3);
create table dims (k int); create table log (k int); create table moods (m mood); create table odd (k int);`); err != nil {
		t.Fatal(err)
	}
	t.Setenv(envRouteDSN, dsn)
	for _, c := range []struct {
		args []string
		want []string
		code int
	}{
		{[]string{"--table", "public.orders", "--key", "42", "--key", "abc"}, []string{"hash(id, c text_ops) over 3 segments", "id      bigint", "code"}, exitOK},
		{[]string{"--table", "orders", "--key", "42", "--key", "abc", "--segments", "2-4"}, []string{"\n4         "}, exitOK},
		{[]string{"--table", "dims"}, []string{"replicated over 3", "every segment"}, exitOK},
		{[]string{"--table", "log", "--key", "1", "--key", "x"}, []string{"random over 3", "identity", "\n3         "}, exitOK},
		{[]string{"--table", "log"}, []string{"--key"}, exitUsage},
		{[]string{"--table", "moods", "--key", "sad"}, []string{"key column m of type public.mood", "OID"}, exitFault},
		{[]string{"--table", "orders", "--key", "x", "--key", "abc"}, []string{"table orders", "key column id of type bigint"}, exitFault},
		{[]string{"--table", "odd", "--key", "1"}, []string{`kind "strange"`}, exitFault},
		{[]string{"--table", "nothing", "--key", "1"}, []string{"public.nothing", "no such table"}, exitFault},
	} {
		out, code := route(t, "", c.args...)
		if code != c.code {
			t.Errorf("%q: exit code %d, want %d: %s", c.args, code, c.code, out)
		}
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%q: no %q in:\n%s", c.args, want, out)
			}
		}
	}
	if out, code := route(t, "", "--dsn", dsn, "--table", "orders", "--key", "42", "--key", "abc"); code != exitOK {
		t.Errorf("--dsn: exit code %d: %s", code, out)
	}
}

// TestRouteDocs runs the examples of docs/routing.md and compares their output.
func TestRouteDocs(t *testing.T) {
	const page = "../../docs/routing.md"
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```console\n\\$ cbrepl route ([^\n]*)\n(.*?)```").FindAllStringSubmatch(string(data), -1)
	if len(blocks) < 4 {
		t.Fatalf("%d examples found", len(blocks))
	}
	for _, b := range blocks {
		out, code := route(t, "", strings.Fields(b[1])...)
		if got, want := trimLines(out), trimLines(b[2]); code != exitOK || got != want {
			t.Errorf("cbrepl route %s: exit code %d\ngot:\n%s\nthe page says:\n%s", b[1], code, got, want)
		}
	}
	vectors := regexp.MustCompile("(?s)```json\n(.*?)```").FindStringSubmatch(string(data))
	if vectors == nil {
		t.Fatal("no example of a vector file")
	}
	if out, code := route(t, vectors[1], "--vectors", "-"); code != exitOK {
		t.Errorf("the page's vectors: exit code %d: %s", code, out)
	}
}
