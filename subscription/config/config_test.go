package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

func write(t *testing.T, text string) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "sub.yaml")
	if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

const minimal = `
subscription: dr_site
source:
  coordinator: {dsn: "postgres://h:1/d"}
  segments: [{content: 0, dsn: "postgres://h:2/d"}, {content: 1, dsn: "postgres://h:3/d"}]
target:
  coordinator: {dsn: "postgres://t:1/d"}
  shards: [{content: 0, dsn: "postgres://t:2/d"}]
spool: {dir: /tmp/spool}
`

func TestDefaults(t *testing.T) {
	c, err := Load(Sources{File: write(t, minimal)})
	if err != nil {
		t.Fatal(err)
	}
	if c.Source.Slot != "cbrepl_dr_site" || c.Source.Publication != "cbrepl_pub" ||
		c.Source.CommitPrefix != "cbrepl.commit" || !c.Source.Streaming || c.Source.TwoPhase ||
		c.Batch.MaxBytes != 256<<20 || c.Spool.MaxBytes != 8<<30 || c.ShutdownGrace != 5*time.Second ||
		c.Source.StatusInterval != 2*time.Second || c.OnStop != Exit {
		t.Fatalf("defaults: %+v", c)
	}
	if c.Source.Segments[1].DSN.Reveal() != "postgres://h:3/d" {
		t.Fatal("dsn of content 1 lost")
	}
}

// The example must load as it stands, and each default it states in a comment
// must be the default.
func TestExample(t *testing.T) {
	c, err := Load(Sources{File: write(t, Example)})
	if err != nil {
		t.Fatal(err)
	}
	_ = c
	stated := map[string]string{}
	section := ""
	head := regexp.MustCompile(`^(?:# )?([a-z_]+):$`)
	key := regexp.MustCompile(`^ *# ([a-z_]+): (\S+)$`)
	for _, line := range strings.Split(Example, "\n") {
		if m := head.FindStringSubmatch(line); m != nil {
			section = m[1] + "."
		} else if m := key.FindStringSubmatch(line); m != nil {
			k := section + m[1]
			if m[1] == "on_stop" || m[1] == "shutdown_grace" {
				k = m[1]
			}
			stated[k] = m[2]
		}
	}
	def := defaults()
	def["source.slot"] = "cbrepl_dr_site"
	for k, v := range def {
		if stated[k] != fmt.Sprint(v) {
			t.Errorf("example states %s = %q, the default is %v", k, stated[k], v)
		}
	}
	for k := range stated {
		if _, ok := def[k]; !ok {
			t.Errorf("example states a default for %s, which has none", k)
		}
	}
	for _, k := range Keys() {
		last := strings.TrimSuffix(k[strings.LastIndexByte(k, '.')+1:], "[]")
		if !strings.Contains(Example, last+":") {
			t.Errorf("key %s is not in the example", k)
		}
	}
}

func TestEnvironmentAndFlags(t *testing.T) {
	fs := pflag.NewFlagSet("t", pflag.ContinueOnError)
	level := fs.String("log-level", "info", "")
	fs.String("log-format", "json", "") // not given: its default must not count
	if err := fs.Parse([]string{"--log-level", "warn"}); err != nil {
		t.Fatal(err)
	}
	_ = level
	c, err := Load(Sources{
		File: write(t, minimal),
		Env: []string{
			"CBREPL_BATCH_MAX_ROWS=7", "CBREPL_LOG_LEVEL=debug", "CBREPL_SOURCE_STREAMING=false",
			"CBREPL_BATCH_MAX_DELAY=30ms", "CBREPL_SPOOL_MAX_BYTES=1GiB",
			"CBREPL_SOURCE_SEGMENTS_1_DSN=postgres://env:9/d", "CBREPL_SOURCE_SEGMENTS_2_DSN=postgres://env:10/d",
			"CBREPL_FAULTS=x", "PATH=/bin",
		},
		Flags: map[string]*pflag.Flag{"log.level": fs.Lookup("log-level"), "log.format": fs.Lookup("log-format")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Batch.MaxRows != 7 || c.Log.Level != "warn" || c.Log.Format != "text" || c.Source.Streaming ||
		c.Batch.MaxDelay != 30*time.Millisecond || c.Spool.MaxBytes != 1<<30 || len(c.Source.Segments) != 3 ||
		c.Source.Segments[1].DSN.Reveal() != "postgres://env:9/d" || c.Source.Segments[2].Content != 2 {
		t.Fatalf("%+v", c)
	}
}

func TestProblems(t *testing.T) {
	replace := func(old, with string) string {
		if !strings.Contains(minimal, old) {
			t.Fatalf("no %q in the minimal file", old)
		}
		return strings.Replace(minimal, old, with, 1)
	}
	for _, tc := range []struct {
		name, text string
		env        []string
		want       []string
	}{
		{"unknown key", minimal + "bacth: {max_rows: 1}\n", nil, []string{"unknown key bacth"}},
		{"unknown key in section", minimal + "batch: {max_row: 1}\n", nil, []string{"unknown key batch.max_row; did you mean batch.max_rows?"}},
		{
			"unknown key in list", replace("{content: 0, dsn: \"postgres://h:2/d\"}", "{content: 0, dns: x}"), nil,
			[]string{"unknown key source.segments[0].dns; did you mean source.segments[N].dsn?", "source.segments (content 0).dsn: missing"},
		},
		{"key in wrong section", minimal + "max_delay: 1s\n", nil, []string{"unknown key max_delay; did you mean batch.max_delay?"}},
		{"unknown variable", minimal, []string{"CBREPL_BATCH_MAX_ROW=1"}, []string{"environment variable CBREPL_BATCH_MAX_ROW sets no key; did you mean CBREPL_BATCH_MAX_ROWS?"}},
		{"missing dsn", replace(`coordinator: {dsn: "postgres://h:1/d"}`, ""), nil, []string{"source.coordinator.dsn: missing"}},
		{"wrong dsn", replace("postgres://h:1/d", "mysql://u:canary-pw@h:1/d"), nil, []string{"source.coordinator.dsn: not a PostgreSQL connection string"}},
		{"no unit", minimal + "batch: {max_delay: 5}\n", nil, []string{"batch.max_delay: want a duration with a unit"}},
		{"bad size", minimal + "batch: {max_bytes: 5 apples}\n", nil, []string{"batch.max_bytes: want a size"}},
		{"bad number", minimal + "batch: {max_rows: canary-pw}\n", nil, []string{"batch.max_rows: want a whole number"}},
		{"section is a word", minimal + "batch: canary-pw\n", nil, []string{"batch: want a section"}},
		{"list is a word", replace(`shards: [{content: 0, dsn: "postgres://t:2/d"}]`, "shards: canary-pw"), nil, []string{"target.shards: want a list"}},
		{"gap", replace("{content: 1,", "{content: 2,"), nil, []string{"source.segments: content 1 is missing"}},
		{"twice", replace("{content: 1,", "{content: 0,"), nil, []string{"content 0 is listed twice", "content 1 is missing"}},
		{"same server", replace("postgres://h:3/d", "postgres://h:2/d"), nil, []string{"content 0 and content 1 name the same server and database"}},
		{"remote listen", minimal + "http: {listen: '0.0.0.0:7432'}\n", nil, []string{"http.listen: 0.0.0.0:7432 is not a loopback address"}},
		{"all interfaces", minimal + "http: {listen: ':7432'}\n", nil, []string{"is not a loopback address"}},
		{"bad name", replace("dr_site", "DR site"), nil, []string{"subscription: \"DR site\" is not a name"}},
		{"bad words", minimal + "source: {}\n", nil, []string{"not valid YAML: line"}},
		{"broken yaml", "source: {coordinator: {dsn: \"postgres://u:canary-pw@h/d\"}\n  x: [", nil, []string{"not valid YAML"}},
		{
			"rename", minimal + "tables: {rename: [{from: a.b, to: c}, {from: 'a.b.c', to: x.y.z}]}\n", nil,
			[]string{"tables.rename[0]: from and to must both be", "tables.rename[1]: from: \"a.b.c\" is not schema or schema.table"},
		},
		{
			"rename twice", minimal + "tables: {rename: [{from: a.b, to: c.d}, {from: '\"a\".b', to: x.y}]}\n", nil,
			[]string{"tables.rename[1]: \"a\".b is renamed already by tables.rename[0]"},
		},
		{
			"address map", replace(`segments: [{content: 0, dsn: "postgres://h:2/d"}, {content: 1, dsn: "postgres://h:3/d"}]`,
				`addresses: [{from: "sdw1:x", to: a}, {from: sdw2, to: ""}, {from: sdw2, to: "[::1]:5"}, {from: s, to: "::1"}]`), nil,
			[]string{
				`source.addresses[0].from: "sdw1:x" is neither host nor host:port`, `source.addresses[1].to: "" is neither`,
				"source.addresses[2]: sdw2 is mapped already by source.addresses[1]",
			},
		},
		{"address map and list", replace("segments: [", `addresses: [{from: a, to: b}]
  segments: [`), nil, []string{"source.addresses: not used with source.segments"}},
		{"prefix", minimal + "foo: 1\n", []string{"CBREPL_SOURCE_PART_PREFIX=cbrepl.commit"}, []string{"unknown key foo", "share the prefix"}},
		{"all at once", "log: {level: loud}\non_stop: maybe\n", nil, []string{
			"subscription: missing", "source.coordinator.dsn: missing", "target.coordinator.dsn: missing",
			"target.shards: missing", "spool.dir: missing", "log.level: \"loud\" is not one of", "on_stop: \"maybe\" is not one of",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Load(Sources{File: write(t, tc.text), Env: tc.env})
			var p *Problems
			if !errors.As(err, &p) {
				t.Fatalf("want problems, got %v", err)
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("no %q in:\n%v", w, err)
				}
			}
			if len(p.List) != len(tc.want) {
				t.Errorf("want %d problems, got:\n%v", len(tc.want), err)
			}
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("a value leaked: %v", err)
			}
		})
	}
}

func TestRename(t *testing.T) {
	n, err := Rename{From: `"My.Schema"."T ""1"""`, To: "b.C"}.Parse()
	if err != nil || n.FromSchema != "My.Schema" || n.FromTable != `T "1"` || n.ToTable != "C" {
		t.Fatalf("%+v %v", n, err)
	}
	for _, bad := range []string{"", ".", "a.", ".b", `"a`, `"a"b`, `a"b"`, "a.b."} {
		if _, err := (Rename{From: bad, To: "x.y"}).Parse(); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
}

func TestBytes(t *testing.T) {
	for in, want := range map[string]Bytes{"0": 0, "17": 17, "64MiB": 64 << 20, "8 GB": 8e9, "1tib": 1 << 40, "5kB": 5000} {
		if got, err := ParseBytes(in); err != nil || got != want {
			t.Errorf("%q: %d, %v", in, got, err)
		}
	}
	for _, bad := range []string{"", "x", "-1", "1.5GB", "9999999999TiB"} {
		if b, err := ParseBytes(bad); err == nil {
			t.Errorf("%q read as %d", bad, b)
		}
	}
	if s := Bytes(64 << 20).String(); s != "64MiB" {
		t.Error(s)
	}
}

// A secret must not come out of any way of printing (field case 39).
func TestSecretNeverPrints(t *testing.T) {
	const canary = "postgres://u:canary-pw@h/d"
	c := Config{Source: Source{Coordinator: Node{DSN: NewSecret(canary)}, Segments: []ContentNode{{DSN: NewSecret(canary)}}}}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+"\n", c)
		fmt.Fprintf(&out, verb+"\n", &c.Source.Coordinator.DSN)
		fmt.Fprintf(&out, verb+"\n", c.Source.Coordinator.DSN)
	}
	js, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	ym, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(js)
	out.Write(ym)
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(h).Info("x", "cfg", c, "dsn", c.Source.Coordinator.DSN)
	}
	if s := out.String(); strings.Contains(s, "canary") || strings.Contains(s, fmt.Sprintf("%x", "canary")) || !strings.Contains(s, hidden) {
		t.Fatalf("secret printed:\n%s", s)
	}
	if c.Source.Coordinator.DSN.Reveal() != canary {
		t.Fatal("value lost")
	}
}
