package integration

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"cbrepl/dtx"
	"cbrepl/lab"
)

// canary stands in every connection string; it must never come out.
const canary = "cAnArY-pw"

// snapshot is what a refused start must leave as it was.
func (p *pair) snapshot() string {
	p.t.Helper()
	var b strings.Builder
	for _, s := range append(p.src.Nodes(), p.dst.Nodes()...) {
		fmt.Fprintln(&b, s.Name(),
			p.ask(s, `select coalesce(string_agg(slot_name || ' ' || confirmed_flush_lsn, ', ' order by slot_name), '') from pg_replication_slots`),
			p.ask(s, `select count(*)::text from pg_prepared_xacts`),
			p.ask(s, `select coalesce(string_agg(nspname || '.' || relname, ', ' order by 1), '') from pg_class c join pg_namespace n on n.oid = relnamespace where nspname = 'cbrepl'`))
	}
	co := p.dst.Node(dtx.Coordinator)
	if p.ask(co, "select (to_regclass('cbrepl.subscription') is not null)::text") == "true" {
		fmt.Fprintln(&b, p.ask(co, "select string_agg(s::text, ' ') from cbrepl.subscription s"), p.ask(co, "select string_agg(s::text, ' ' order by content) from cbrepl.stream s"))
	}
	files, err := filepath.Glob(filepath.Join(p.dir, "*"))
	p.must(err)
	for _, f := range files {
		if !strings.HasSuffix(f, ".yaml") {
			fmt.Fprintln(&b, f)
		}
	}
	return b.String()
}

// withPassword puts the canary into every connection string of the file.
func (p *pair) withPassword() {
	p.t.Helper()
	for _, list := range [][]string{p.sub.Source, p.sub.Target} {
		for i, dsn := range list {
			u, err := url.Parse(dsn)
			p.must(err)
			u.User = url.UserPassword(u.User.Username(), canary)
			list[i] = u.String()
		}
	}
	p.must(p.sub.Write(p.file))
}

// Bad input of every kind: one message that names the thing and the remedy, an
// exit code that is not 0, and nothing changed anywhere.
func TestBadInput(t *testing.T) {
	p := newPair(t, 2, 2, lab.Options{})
	p.tables(lab.Table{Name: "t", Columns: "id int8 primary key, v text", Key: []string{"id"}})
	p.configure("bad")
	p.withPassword()
	bad := lab.ServerForTest(t, lab.Options{})
	setting := func(kv ...string) {
		for i := 0; i < len(kv); i += 2 {
			p.must(bad.Exec(p.ctx(), fmt.Sprintf("alter system set %s = '%s'", kv[i], kv[i+1])))
		}
		p.must(bad.Restart(p.ctx()))
	}
	withDSN := func(dsn string) string { // content 1 of the source at another place
		return p.variant(func(s *lab.Subscription) { s.Source[2] = dsn })
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	p.must(err)
	defer func() { _ = busy.Close() }()
	readOnly := filepath.Join(p.dir, "file")
	p.must(os.WriteFile(readOnly, nil, 0o600))

	for _, tc := range []struct {
		name   string
		before func() // changes something, after undoes it
		after  func()
		file   func() string
		verb   []string // default: run
		env    []string
		code   int
		want   []string
	}{
		{
			name: "unknown key", file: func() string { return p.with("batch.max_rws", 1) }, code: 2,
			want: []string{"unknown key batch.max_rws", "did you mean batch.max_rows"},
		},
		{
			name: "unknown variable", file: func() string { return p.file }, env: []string{"CBREPL_BATCH_MAX_RWS=1"}, code: 2,
			want: []string{"CBREPL_BATCH_MAX_RWS", "did you mean CBREPL_BATCH_MAX_ROWS"},
		},
		{
			name: "unknown flag", file: func() string { return p.file }, verb: []string{"run", "--batch.max_rws=1"}, code: 2,
			want: []string{"unknown flag: --batch.max_rws"},
		},
		{
			name: "no file", file: func() string { return filepath.Join(p.dir, "nowhere.yaml") }, code: 2,
			want: []string{"nowhere.yaml", "cbrepl config example"},
		},
		{
			name: "missing DSN", file: func() string { return withDSN("") }, code: 2,
			want: []string{"source.segments (content 1).dsn: missing"},
		},
		{
			name: "wrong DSN", file: func() string { return withDSN("http://u:" + canary + "@h") }, code: 2,
			want: []string{"source.segments (content 1).dsn: not a PostgreSQL connection string"},
		},
		{
			name: "no such database", file: func() string { return withDSN(bad.DSNFor("nowhere")) }, code: 3,
			want: []string{"content 1", `database "nowhere" does not exist`},
		},
		{
			name: "wal_level wrong", before: func() { setting("wal_level", "replica") }, file: func() string { return withDSN(bad.DSN()) }, code: 3,
			want: []string{"content 1", "wal_level is replica, want logical", "ALTER SYSTEM SET wal_level = 'logical'", "restart"},
		},
		{
			name: "too few senders", before: func() { setting("wal_level", "logical", "max_wal_senders", "0") },
			file: func() string { return withDSN(bad.DSN()) }, code: 3, want: []string{"content 1", "max_wal_senders"},
		},
		{
			name: "too few slots", before: func() { setting("max_wal_senders", "5", "max_replication_slots", "0") },
			file: func() string { return withDSN(bad.DSN()) }, verb: []string{"slots", "create"}, code: 1,
			want: []string{"content 1", "max_replication_slots"},
		},
		{
			name: "slot missing", file: func() string { return p.with("source.slot", "nosuch") }, code: 3,
			want: []string{`slot "nosuch" does not exist`, "cbrepl slots create"},
		},
		{
			name: "publication missing", file: func() string { return p.with("source.publication", "nosuch") }, code: 3,
			want: []string{"publication", "nosuch", "does not exist", "CREATE PUBLICATION"},
		},
		{
			name: "target not prepared", file: func() string {
				return p.variant(func(s *lab.Subscription) {
					s.Name = "other"
					s.Set("source.slot", "cbrepl_bad")
				})
			}, code: 3,
			want: []string{"other", "cbrepl target prepare"},
		},
		{
			name:   "target table missing",
			before: func() { p.must(p.dst.ExecAll(p.ctx(), "alter table t rename to u")) },
			after:  func() { p.must(p.dst.ExecAll(p.ctx(), "alter table u rename to t")) },
			file:   func() string { return p.file }, code: 3, want: []string{"public.t", "there is no table"},
		},
		{
			name:   "target column missing",
			before: func() { p.must(p.dst.ExecAll(p.ctx(), "alter table t rename v to w")) },
			after:  func() { p.must(p.dst.ExecAll(p.ctx(), "alter table t rename w to v")) },
			file:   func() string { return p.file }, code: 3, want: []string{"public.t", `"v"`},
		},
		{
			name:   "no policy",
			before: func() { p.must(p.src.Exec(p.ctx(), -1, "update cbrepl.distribution_policy set table_name = 'u'")) },
			after:  func() { p.must(p.src.Exec(p.ctx(), -1, "update cbrepl.distribution_policy set table_name = 't'")) },
			file:   func() string { return p.file }, code: 3, want: []string{"public.t", "policy"},
		},
		{
			name: "address in use", file: func() string { return p.with("http.listen", busy.Addr().String()) }, code: 3,
			want: []string{"serve status", "in use", "http.listen"},
		},
		{
			name: "spool is a file", file: func() string { return p.with("spool.dir", filepath.Join(readOnly, "spool")) }, code: 3,
			want: []string{"spool", "not a directory"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			outer := p.t
			p.t = t
			defer func() { p.t = outer }()
			if tc.before != nil {
				tc.before()
			}
			if tc.after != nil {
				defer tc.after()
			}
			before := p.snapshot()
			verb := tc.verb
			if verb == nil {
				verb = []string{"run"}
			}
			p.refused(tc.env, append(verb, "-c", tc.file()), tc.code, tc.want...)
			if tc.name != "spool is a file" { // the target was opened: its epoch rose
				if after := p.snapshot(); after != before {
					t.Errorf("something changed:\n%s\nwas\n%s", after, before)
				}
			}
		})
	}
}

// refused runs a command that must fail with a message for a person.
func (p *pair) refused(env, args []string, code int, want ...string) {
	p.t.Helper()
	got, stdout, stderr := command(p.t, env, args...)
	if got != code {
		p.t.Errorf("exit code %d, want %d", got, code)
	}
	_, message, ok := strings.Cut(stderr, "cbrepl: ")
	if !ok || strings.Contains(message, "cbrepl: ") {
		p.t.Errorf("want one message, got:\n%s", stderr)
	}
	for _, w := range want {
		if !strings.Contains(message, w) {
			p.t.Errorf("no %q in the message:\n%s", w, message)
		}
	}
	if strings.Contains(stdout+stderr, canary) {
		p.t.Errorf("a password came out:\n%s", stderr)
	}
	if strings.Contains(message, "goroutine ") {
		p.t.Errorf("a stack trace came out:\n%s", stderr)
	}
	p.t.Logf("%s", strings.TrimSpace(message))
}

// A second daemon for a subscription, and a source of another size than the
// subscription began with, are refused; the first daemon goes on.
func TestSecondDaemonAndSegmentCount(t *testing.T) {
	p := newPair(t, 2, 2, lab.Options{})
	p.tables(lab.Table{Name: "t", Columns: "id int8 primary key, v text", Key: []string{"id"}})
	p.configure("one")
	r := p.spawn()
	insert := func(id int) {
		p.must(p.src.Do(p.ctx(), func(tx *lab.Tx) error { return tx.Insert(p.ctx(), "t", lab.Row{id, "x"}) }))
	}
	insert(1)
	r.drain()
	p.refused(nil, []string{"run", "-c", p.file}, 3, "a daemon of subscription one", fmt.Sprintf("pid %d", r.cmd.Process.Pid), "stop that one first")
	// With an address and a spool of its own it is found out at the source.
	other := p.variant(func(s *lab.Subscription) {
		s.Set("http.listen", "127.0.0.1:0")
		s.Set("spool.dir", filepath.Join(p.dir, "other-spool"))
	})
	p.refused(nil, []string{"run", "-c", other}, 3, "slot", "is in use by the session with pid", "another daemon")
	if _, err := os.Stat(filepath.Join(p.dir, "other-spool")); err == nil {
		t.Error("the second daemon made a spool")
	}
	insert(2)
	r.drain()
	if code := r.terminate(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	p.same("t")

	f := p.variant(func(s *lab.Subscription) { s.Source = s.Source[:2] })
	before := p.snapshot()
	p.refused(nil, []string{"run", "-c", f}, 3, "public.t", "over 2 segments, but 1 segments are listed", "List every primary segment")
	if p.snapshot() != before {
		t.Error("something changed")
	}
}

// The remedies that messages print work when they are run as they stand (field
// case 40).
func TestRemediesWork(t *testing.T) {
	p := newPair(t, 1, 1, lab.Options{Settings: map[string]string{"wal_level": "replica"}})
	p.tables(lab.Table{Name: "t", Columns: "id int8 primary key, v text", Key: []string{"id"}})
	p.describe("remedy", nil)
	done := map[string]bool{}
	for range 10 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		out, err := exec.CommandContext(ctx, binary, "run", "-c", p.file).CombinedOutput()
		killed := ctx.Err() != nil
		cancel()
		if killed {
			break // it runs
		}
		if err == nil {
			t.Fatalf("ended without an error:\n%s", out)
		}
		p.obey(string(out), done)
	}
	for _, want := range []string{"sql", "restart", "cbrepl slots create", "cbrepl target prepare"} {
		if !done[want] {
			t.Errorf("no message asked for %s", want)
		}
	}
	p.must(p.src.Do(p.ctx(), func(tx *lab.Tx) error { return tx.Insert(p.ctx(), "t", lab.Row{1, "x"}) }))
	r := p.spawn()
	r.drain()
	p.same("t")
}

// obey does what a message says.
func (p *pair) obey(message string, done map[string]bool) {
	p.t.Helper()
	at := regexp.MustCompile(`content (-?\d+)`)
	alter := regexp.MustCompile(`(ALTER SYSTEM [^;\n]*?)(; then restart the server)?(\n|$|;)`)
	acted := false
	for _, line := range strings.Split(message, "\n") {
		c := at.FindStringSubmatch(line)
		if m := alter.FindStringSubmatch(line); m != nil && c != nil {
			var content int
			_, err := fmt.Sscan(c[1], &content)
			p.must(err)
			node := p.src.Node(dtx.Content(content))
			p.must(node.Exec(p.ctx(), m[1]))
			done["sql"], acted = true, true
			if m[2] != "" {
				p.must(node.Restart(p.ctx()))
				done["restart"] = true
			}
		}
	}
	for _, verb := range []string{"cbrepl slots create", "cbrepl target prepare"} {
		if !strings.Contains(message, verb) || acted {
			continue
		}
		acted = true
		code, _, stderr := command(p.t, nil, append(strings.Fields(verb)[1:], "-c", p.file)...)
		if done[verb] = code == 0; code != 0 {
			if strings.Contains(stderr, verb) {
				p.t.Fatalf("%s: %s", verb, stderr)
			}
			p.obey(stderr, done) // it needs another step before
		}
	}
	if !acted {
		p.t.Fatalf("no remedy in:\n%s", message)
	}
}
