package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"cbrepl/apply/verify"
	"cbrepl/lab"
	"cbrepl/router"
)

// verify runs the command.
func (p *pair) verify(args ...string) (code int, out []verify.Result, text string) {
	p.t.Helper()
	code, stdout, stderr := command(p.t, nil, append([]string{"verify", "--json", "-c", p.file}, args...)...)
	if err := json.Unmarshal([]byte(stdout), &out); err != nil {
		p.t.Fatalf("%v\n%s%s", err, stdout, stderr)
	}
	return code, out, stderr
}

// Under load nothing differs; what is planted is found, of every kind, and nothing
// else, also under load.
func TestVerify(t *testing.T) {
	p := newPair(t, 3, 2, lab.Options{})
	p.must(p.src.CreateWorkloadTables(p.ctx()))
	p.must(p.dst.CreateWorkloadTables(p.ctx()))
	const cols = `id int8 primary key, v text, d float8, r float4, n numeric(12,3), at timestamptz, "o'dd" bytea`
	p.tables(
		lab.Table{Name: "kinds", Columns: cols, Key: []string{"id"}},
		lab.Table{Name: "keyless", Columns: "a int4, b text", Key: []string{"a"}, After: []string{"alter table keyless replica identity full"}},
		lab.Table{Name: "copies", Columns: "id int4 primary key, v text", Kind: router.Replicated},
	)
	p.configure("ver")
	r := p.spawn()
	_, stop := p.load(11)
	p.must(p.src.Do(p.ctx(), func(tx *lab.Tx) error {
		for i := range 400 {
			if err := tx.Insert(p.ctx(), "kinds", lab.Row{i, fmt.Sprint("v", i), float64(i) / 3, fmt.Sprintf("%.3f", float64(i)/7), "1.5", "2024-02-03 04:05:06.789+02", nil}); err != nil {
				return err
			}
			if err := tx.Insert(p.ctx(), "keyless", lab.Row{i % 50, "same"}); err != nil {
				return err
			}
		}
		return tx.Insert(p.ctx(), "copies", lab.Row{1, "a"}, lab.Row{2, "b"})
	}))
	code, out, text := p.verify()
	t.Logf("%s", text)
	for _, res := range out {
		if res.Count > 0 {
			t.Errorf("a false alarm: %+v", res)
		}
	}
	if len(out) < 5 || code != 0 && !slices.ContainsFunc(out, func(r verify.Result) bool { return r.Unsettled > 0 }) {
		t.Errorf("exit code %d, %d tables", code, len(out))
	}
	// Plant.
	plant := func(shard int, sql string) {
		p.must(p.dst.Nodes()[1+shard].Exec(p.ctx(), sql))
	}
	at := func(id int) int { // which shard has a row
		for i, n := range p.dst.Nodes()[1:] {
			if p.ask(n, fmt.Sprintf("select count(*)::text from kinds where id = %d", id)) == "1" {
				return i
			}
		}
		t.Fatalf("no shard has row %d", id)
		return 0
	}
	plant(at(5), "update kinds set d = d + 1e-13 where id = 5")
	plant(at(6), "delete from kinds where id = 6")
	plant(at(7), "insert into kinds (id) values (-7)")
	plant(1-at(8), "insert into kinds select 8, 'v8'")
	plant(1, "update copies set v = 'B' where id = 2")
	plant(0, "delete from keyless where ctid = (select min(ctid) from keyless)")
	code, out, text = p.verify("--tables", "public.kinds,public.keyless,public.copies")
	t.Logf("%s", text)
	stop()
	got := map[string][]string{}
	for _, res := range out {
		for _, d := range res.Differences {
			got[res.Table] = append(got[res.Table], d.Kind)
			if d.Key == "" {
				continue
			}
			found := false
			for _, n := range p.dst.Nodes()[1:] {
				found = found || p.ask(n, "select count(*)::text from ("+d.SQL+") q") != "0"
			}
			if found == (d.Kind == "missing" && res.Table != "public.keyless") {
				t.Errorf("%s is found on the target: %t by %s", d.Kind, found, d.SQL)
			}
		}
		slices.Sort(got[res.Table])
		if res.Unsettled > 0 {
			t.Errorf("%s: %d keys not settled", res.Table, res.Unsettled)
		}
	}
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	for table, want := range map[string]string{
		// Row -7 is extra and, depending on its hash, misplaced; row 8 is doubled, the
		// second one in the wrong place.
		"public.kinds": "changed doubled extra misplaced missing", "public.copies": "changed", "public.keyless": "missing",
	} {
		if have := strings.Join(got[table], " "); have != want && (table != "public.kinds" || have != "changed doubled extra misplaced misplaced missing") {
			t.Errorf("%s: found %q, want %q", table, have, want)
		}
	}
	if code := r.terminate(); code != 0 {
		t.Errorf("the daemon ended with %d", code)
	}
	// Without a daemon the target stays behind: no verdict.
	p.must(p.src.Do(p.ctx(), func(tx *lab.Tx) error { return tx.Insert(p.ctx(), "copies", lab.Row{3, "c"}) }))
	code, _, stderr := command(t, nil, "verify", "-c", p.file, "--tables", "public.copies", "--wait", "1s")
	if code != 1 || !strings.Contains(stderr, "wait for the target") || !strings.Contains(stderr, "Start the daemon") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}
