package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cbrepl/check"
	"cbrepl/dtx"
	"cbrepl/lab/clustertest"
)

// none has no tests: the databases are dropped with this one.
type none struct{}

func (none) Run() int { return 0 }

// The same on a real Greenplum 6 source and a real cluster as the target: exactly
// what is planted is found, and the remedies work.
func TestCheckGreenplum(t *testing.T) {
	source, target := clustertest.SourceDSN(t), clustertest.DSNs(t)[0]
	var dbs clustertest.Databases
	t.Cleanup(func() {
		if dbs.Main(none{}) != 0 {
			t.Error("the test's databases stay")
		}
	})
	src, dst := dbs.Open(t, source), dbs.Open(t, target)
	clustertest.Exec(t, src, `CREATE EXTENSION cbrepl_source; CREATE SCHEMA "Odd"`)
	clustertest.Exec(t, src, `CREATE TABLE good (id int8 PRIMARY KEY, v text) DISTRIBUTED BY (id);
		CREATE TABLE "Odd"."It's" (id int8 PRIMARY KEY, "v v" text) DISTRIBUTED BY (id);
		CREATE TABLE noid (a int, b text) DISTRIBUTED RANDOMLY;
		CREATE TABLE ao (a int) WITH (appendonly = true) DISTRIBUTED BY (a);
		CREATE UNLOGGED TABLE fleeting (a int) DISTRIBUTED BY (a);
		CREATE TABLE lacks (id int8 PRIMARY KEY, v text, n numeric(8,2)) DISTRIBUTED BY (id)`)
	clustertest.Exec(t, dst, `CREATE TABLE good (id int8 PRIMARY KEY, v varchar(3)) DISTRIBUTED BY (id);
		CREATE TABLE noid (a int, b text) DISTRIBUTED RANDOMLY;
		CREATE TABLE lacks (id int8, v text, UNIQUE (id, v)) DISTRIBUTED BY (id)`)
	dir := t.TempDir()
	file := filepath.Join(dir, "gp.yaml")
	quoted := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	if err := os.WriteFile(file, []byte("subscription: chk_gp\nsource:\n  coordinator: {dsn: "+quoted(src)+"}\n"+
		"target:\n  kind: cloudberry\n  coordinator: {dsn: "+quoted(dst)+"}\nspool: {dir: "+quoted(filepath.Join(dir, "spool"))+"}\nhttp: {listen: 'off'}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cbrepl := func(want int, args ...string) string {
		t.Helper()
		code, stdout, stderr := command(t, nil, args...)
		if code != want {
			t.Fatalf("%q: exit code %d\n%s%s", args, code, stdout, stderr)
		}
		return stdout
	}
	cbrepl(0, "source", "publish", "-c", file, "public.good", `"Odd"."It's"`, "public.noid", "public.ao", "public.fleeting", "public.lacks")
	t.Cleanup(func() { command(t, nil, "slots", "drop", "-c", file) })
	look := func(want int) []finding {
		t.Helper()
		var r struct{ Findings []finding }
		if err := json.Unmarshal([]byte(cbrepl(want, "check", "--json", "-c", file)), &r); err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(r.Findings, func(f finding) bool {
			// What the cluster's own settings bring, whatever this test plants.
			return f.Level == check.OK || f.Level == check.Warning && f.Table == ""
		})
	}
	found := look(1)
	left := slices.Clone(found)
	for _, w := range []string{
		`error source -1: slot "cbrepl_chk_gp" does not exist`,
		`error source -1 public.ao: it is append-optimized (ao_row)`,
		`error source -1 public.fleeting: it is unlogged`,
		`warning source -1 public.noid: an UPDATE or DELETE of it fails`,
		`error target -1: open target: the target coordinator`,
		`error target -1 Odd.It's: there is no table Odd.It's on the target`,
		`error target -1 public.good: column "v" is text on the source table public.good and character varying(3)`,
		`error target -1 public.lacks: column "n" is missing on the target; the source table public.lacks`,
	} {
		i := slices.IndexFunc(left, func(f finding) bool { return strings.HasPrefix(f.String(), w) })
		if i < 0 {
			t.Errorf("not found: %s", w)
			continue
		}
		left = slices.Delete(left, i, i+1)
	}
	for i := range left {
		if f := &left[i]; !strings.Contains(f.Found, `slot "cbrepl_chk_gp" does not exist`) || f.Side != "source" || *f.Content < 0 {
			t.Errorf("not planted: %s", f)
		}
	}
	var commands []string
	for _, f := range found {
		dsn := map[string]string{"source": src, "target": dst}[f.Side]
		for _, sql := range f.SQL {
			if f.Content == nil || *f.Content != dtx.Coordinator {
				t.Errorf("statements for %s", &f)
			}
			clustertest.Exec(t, dsn, sql)
		}
		for _, c := range f.Commands {
			if !slices.Contains(commands, c) {
				commands = append(commands, c)
			}
		}
	}
	slices.SortFunc(commands, func(a, b string) int { // slots once the list is right
		return strings.Count(a, "slots") - strings.Count(b, "slots")
	})
	for _, c := range commands {
		cmd := exec.Command("sh", "-c", filepath.Dir(binary)+"/"+c)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", c, err, out)
		}
	}
	for _, f := range look(0) {
		t.Errorf("after the remedies: %s", &f)
	}
}
