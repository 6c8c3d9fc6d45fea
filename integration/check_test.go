package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"cbrepl/check"
	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/subscription/config"
)

// finding is one of `cbrepl check --json`.
type finding struct {
	Level       check.Level
	Side, Table string
	Content     *dtx.Content
	Found       string
	SQL         []string
	Everywhere  bool
	Restart     bool
	Commands    []string
}

func (f *finding) String() string {
	at := f.Side
	if f.Content != nil {
		at += fmt.Sprintf(" %d", *f.Content)
	}
	if f.Table != "" {
		at += " " + f.Table
	}
	return fmt.Sprintf("%s %s: %s", f.Level, at, f.Found)
}

// check runs the command and returns what is not well.
func (p *pair) check() (code int, out []finding) {
	p.t.Helper()
	code, stdout, stderr := command(p.t, nil, "check", "--json", "-c", p.file)
	var r struct{ Findings []finding }
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		p.t.Fatalf("%v\n%s%s", err, stdout, stderr)
	}
	if strings.Contains(stdout+stderr, canary) {
		p.t.Errorf("a password came out")
	}
	for _, f := range r.Findings {
		if f.Level != check.OK {
			out = append(out, f)
		}
	}
	return code, out
}

// cure does what findings say.
func (p *pair) cure(fs []finding) {
	p.t.Helper()
	restart := map[*lab.Server]bool{}
	var commands []string
	for _, f := range fs {
		var nodes []*lab.Server
		switch {
		case f.Side == "source" && f.Everywhere:
			nodes = p.src.Nodes()
		case f.Side == "source" && f.Content != nil:
			nodes = []*lab.Server{p.src.Node(*f.Content)}
		case f.Side == "target" && f.Everywhere:
			nodes = p.dst.Nodes()[1:]
		case f.Side == "target" && f.Content != nil:
			nodes = []*lab.Server{p.dst.Node(*f.Content)}
		}
		for _, n := range nodes {
			for _, sql := range f.SQL {
				p.must(n.Exec(p.ctx(), sql))
			}
			restart[n] = restart[n] || f.Restart
		}
		if len(f.SQL) > 0 && len(nodes) == 0 {
			p.t.Errorf("no server is named for the statements of: %s", &f)
		}
		for _, c := range f.Commands {
			if !slices.Contains(commands, c) {
				commands = append(commands, c)
			}
		}
	}
	for n, again := range restart {
		if again {
			p.must(n.Restart(p.ctx()))
		}
	}
	slices.SortFunc(commands, func(a, b string) int { // slots once the target is prepared
		return strings.Count(a, "slots") - strings.Count(b, "slots")
	})
	for _, c := range commands {
		words := strings.Fields(c)
		cmd := exec.CommandContext(p.ctx(), binary, words[1:]...)
		if out, err := cmd.CombinedOutput(); err != nil {
			p.t.Errorf("%s: %v\n%s", c, err, out)
		}
	}
}

// Everything that can be wrong is planted at once: one run of `cbrepl check` finds
// that and nothing else, changes nothing, and what it says to do makes it go away.
func TestCheck(t *testing.T) {
	p := newPair(t, 2, 2, lab.Options{})
	for _, name := range []string{"good", "unpublished", "nopolicy", "narrow", "lacks", "uniq", "trig", "fleeting"} {
		p.tables(lab.Table{Name: name, Columns: "id int8 primary key, v text", Key: []string{"id"}})
	}
	p.must(p.src.CreateTable(p.ctx(), lab.Table{Name: "noid", Columns: "id int8, v text", Key: []string{"id"}}))
	p.must(p.src.CreateTable(p.ctx(), lab.Table{Name: "absent", Columns: `id int8 primary key, "odd'col" text, n numeric(8,2)`, Key: []string{"id"}}))
	p.must(p.dst.CreateTable(p.ctx(), lab.Table{Name: "noid", Columns: "id int8, v text", Key: []string{"id"}}))
	p.describe("chk", nil)
	p.withPassword()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	p.must(err)
	defer func() { _ = busy.Close() }()
	p.sub.Set("http.listen", busy.Addr().String())
	p.sub.Set("spool.max_bytes", "900TiB")
	p.must(p.sub.Write(p.file))
	p.cfg, err = config.Load(config.Sources{File: p.file})
	p.must(err)

	on := func(s *lab.Server, sqls ...string) {
		for _, sql := range sqls {
			p.must(s.Exec(p.ctx(), sql))
		}
	}
	co, seg0, seg1 := p.src.Node(-1), p.src.Node(0), p.src.Node(1)
	tco, shard0, shard1 := p.dst.Node(-1), p.dst.Node(0), p.dst.Node(1)
	pub := p.src.Publication()
	on(co, "ALTER SYSTEM SET max_wal_size = '32MB'", "SELECT pg_reload_conf()", "SELECT pg_create_logical_replication_slot('stale', 'pgoutput')",
		"DELETE FROM cbrepl.distribution_policy WHERE table_name = 'nopolicy'")
	for range 5 {
		on(co, "SELECT pg_logical_emit_message(false, 'x', 'y')", "SELECT pg_switch_wal()")
	}
	on(seg0, "ALTER SYSTEM SET max_replication_slots = 1", "SELECT pg_create_physical_replication_slot('taken')", "ALTER DATABASE postgres SET timezone = 'Asia/Tokyo'",
		"ALTER PUBLICATION "+pub+" DROP TABLE unpublished")
	on(seg1, "ALTER SYSTEM SET wal_level = 'replica'", "ALTER PUBLICATION "+pub+" SET (publish = 'insert, delete')")
	on(tco, "DELETE FROM cbrepl.distribution_policy WHERE table_name = 'good'")
	on(shard1, "ALTER SYSTEM SET max_prepared_transactions = 0", "ALTER TABLE fleeting SET UNLOGGED")
	on(shard0, "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
		`CREATE TRIGGER "Always On" BEFORE INSERT ON trig FOR EACH ROW EXECUTE FUNCTION f()`, `ALTER TABLE trig ENABLE ALWAYS TRIGGER "Always On"`)
	p.must(p.dst.ExecAll(p.ctx(), "ALTER TABLE narrow ALTER v TYPE varchar(3)"))
	p.must(p.dst.ExecAll(p.ctx(), "ALTER TABLE lacks DROP v"))
	p.must(p.dst.ExecAll(p.ctx(), `ALTER TABLE uniq ADD CONSTRAINT "Uniq V" UNIQUE (v)`))
	p.must(p.dst.ExecAll(p.ctx(), `CREATE UNIQUE INDEX "Uniq L" ON uniq (lower(v))`))
	for _, s := range []*lab.Server{seg0, seg1, shard1} {
		p.must(s.Restart(p.ctx()))
	}

	want := []string{
		`error source -1: slot "cbrepl_chk" does not exist`,
		`error source 0: slot "cbrepl_chk" does not exist`,
		`error source 1: slot "cbrepl_chk" does not exist`,
		`error source -1 public.nopolicy: it has no distribution policy`,
		`error source 0: all 1 replication slots (max_replication_slots) are taken`,
		`error source 0 public.unpublished: it is published on the coordinator, but not here`,
		`error source 1: wal_level is replica, want logical`,
		`error source 1: publication "` + pub + `" leaves out update, truncate`,
		`error target -1: open target: the coordinator database`, // not prepared
		`error target 0: open target: the shard 0`,
		`error target 1: open target: the shard 1`,
		`error target public.absent: there is no table public.absent on the target`,
		`error target -1 public.absent: the coordinator database`, // no policy
		`error target -1 public.good: the coordinator database`,
		`error target public.narrow: column "v" is text on the source table public.narrow and character varying(3)`,
		`error target public.lacks: column "v" is missing on the target; the source table public.lacks`,
		`error target 0 public.trig: trigger "Always On" fires for replicated rows`,
		`error target 1 public.fleeting: public.fleeting is not logged`,
		`error target 1: max_prepared_transactions is 0`,
		`error here: status cannot be served on`,
		`warning source -1: slot "stale" keeps`,
		`warning source public.noid: an UPDATE or DELETE of it fails`,
		`warning source 0: its time zone is Asia/Tokyo, on the coordinator it is UTC`,
		`warning target public.uniq: the source does not have what "Uniq V" enforces`,
		`warning target public.uniq: the source does not have what "Uniq L" enforces`,
		`warning here: spool `,
	}
	before := p.snapshot()
	code, found := p.check()
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	if after := p.snapshot(); after != before {
		t.Errorf("something changed:\n%s\nwas\n%s", after, before)
	}
	left := slices.Clone(found)
	for _, w := range want {
		i := slices.IndexFunc(left, func(f finding) bool { return strings.HasPrefix(f.String(), w) })
		if i < 0 {
			t.Errorf("not found: %s", w)
			continue
		}
		left = slices.Delete(left, i, i+1)
	}
	for i := range left {
		t.Errorf("not planted: %s", &left[i])
	}
	// `run` refuses on the same, of the source first.
	_, _, stderr := command(t, nil, "run", "-c", p.with("http.listen", "off"))
	for _, f := range found {
		if f.Level == check.Error && f.Side == "source" && !strings.Contains(stderr, f.Found) {
			t.Errorf("run says nothing of: %s\n%s", &f, stderr)
		}
	}
	if t.Failed() {
		return
	}

	p.must(busy.Close())
	p.cure(found)
	code, found = p.check()
	if len(found) > 0 && found[len(found)-1].Side == "here" { // the disk is as it is
		found = found[:len(found)-1]
	}
	for i := range found {
		t.Errorf("after the remedies: %s", &found[i])
	}
	if code != 0 {
		t.Errorf("exit code %d after the remedies", code)
	}
	r := p.spawn()
	tables := []string{"good", "unpublished", "nopolicy", "narrow", "lacks", "uniq", "trig", "fleeting"}
	for _, tb := range tables {
		p.must(p.src.Do(p.ctx(), func(tx *lab.Tx) error { return tx.Insert(p.ctx(), tb, lab.Row{1, "longer than three"}) }))
	}
	r.drain()
	p.same(tables...)
	// Beside the daemon: its slots are in use, as they should be.
	if code, found := p.check(); code != 0 || len(found) != 1 || found[0].Side != "here" {
		t.Errorf("beside the daemon: exit code %d, %v", code, found)
	}
}
