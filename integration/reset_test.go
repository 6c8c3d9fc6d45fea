package integration

import (
	"regexp"
	"strings"
	"testing"

	"cbrepl/lab"
)

// The printed way to a new copy, followed literally: the commands are taken from
// what `cbrepl subscription reset --help` prints.
func TestResyncAsPrinted(t *testing.T) {
	p := newPair(t, 3, 2, lab.Options{})
	p.tables(lab.Table{Name: "t", Columns: "id int8 primary key, v text", Key: []string{"id"}})
	p.configure("resync")
	insert := func(ids ...int) {
		rows := make([]lab.Row, len(ids))
		for i, id := range ids {
			rows[i] = lab.Row{id, "x"}
		}
		p.must(p.src.Do(p.ctx(), func(tx *lab.Tx) error { return tx.Insert(p.ctx(), "t", rows...) }))
	}
	r := p.spawn()
	insert(1, 2, 3, 4, 5, 6)
	r.drain()
	p.refused(nil, []string{"subscription", "reset", "-c", p.file}, 1, "in use", "Stop the daemon")
	elsewhere := p.variant(func(s *lab.Subscription) { s.Set("spool.dir", p.dir+"/other") })
	p.refused(nil, []string{"subscription", "reset", "-c", elsewhere}, 1, "a daemon runs subscription resync", "Stop the daemon")
	insert(7)
	r.drain()
	if code := r.terminate(); code != 0 { // step 1
		t.Fatalf("exit code %d", code)
	}

	_, help, _ := command(t, nil, "subscription", "reset", "--help")
	commands := regexp.MustCompile(`(?m)^  \d\. cbrepl (.*)$`).FindAllStringSubmatch(help, -1)
	if len(commands) != 4 {
		t.Fatalf("%d commands are printed:\n%s", len(commands), help)
	}
	follow := func(i int) string {
		t.Helper()
		args := strings.Fields(strings.ReplaceAll(commands[i][1], "FILE", p.file))
		code, out, stderr := command(t, nil, args...)
		if code != 0 {
			t.Fatalf("%v: exit code %d\n%s%s", args, code, out, stderr)
		}
		return out
	}
	follow(0)
	insert(8) // what comes between the slots is in the copy alone
	follow(1)
	p.must(p.dst.ExecAll(p.ctx(), "truncate t"))
	for id := 1; id <= 8; id++ {
		c, err := p.dst.SegmentOf(p.ctx(), "t", id)
		p.must(err)
		p.must(p.dst.Exec(p.ctx(), c, "insert into t values ($1, 'x')", id))
	}
	p.refused(nil, []string{"run", "-c", p.file}, 3, "beyond the recorded position", "cbrepl subscription reset")

	before := p.snapshot()
	code, out, stderr := command(t, nil, "subscription", "reset", "-c", p.file, "--dry-run")
	if code != 0 || !strings.Contains(out, "would be removed") || !strings.Contains(out, "cbrepl.shard: 1 rows") || p.snapshot() != before {
		t.Errorf("--dry-run: exit code %d\n%s%s", code, out, stderr)
	}
	for range 2 { // it may be repeated
		if out := follow(2); !strings.Contains(out, "removed from the shard 1: cbrepl.shard: 1 rows") {
			t.Errorf("reset printed\n%s", out)
		}
	}
	insert(9)
	r = p.spawn()
	insert(10)
	r.drain()
	p.same("t")
	if code := r.terminate(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
