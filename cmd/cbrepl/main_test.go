package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cbrepl/subscription/config"
	"cbrepl/subscription/status"
)

// cbrepl runs one command line.
func cbrepl(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(context.Background(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestConfigCommands(t *testing.T) {
	code, out, _ := cbrepl("config", "example")
	if code != exitOK || out != config.Example {
		t.Fatalf("config example: exit code %d", code)
	}
	file := filepath.Join(t.TempDir(), "s.yaml")
	if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, _ = cbrepl("config", "check", "-c", file)
	if code != exitOK || !strings.Contains(out, "subscription dr_site: from a coordinator and 3 segments to a target of kind shards with 2 shards") {
		t.Errorf("config check: exit code %d, %s", code, out)
	}
	code, _, stderr := cbrepl("config", "check", "-c", file, "--log.level", "loud", "--batch.max_rows", "0")
	if code != exitUsage || !strings.Contains(stderr, "log.level") || !strings.Contains(stderr, "batch.max_rows") {
		t.Errorf("config check of two bad flags: exit code %d, %s", code, stderr)
	}
}

// Wrong command lines are told in one line with exit code 2.
func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{"frobnicate"},
		{"run"},
		{"run", "-c"},
		{"run", "extra"},
		{"status", "--addr", "x", "-c", "y"},
		{"slots", "create"},
		{"config", "check", "--source.coordinator.dsn", "x"}, // connection strings have no flag
	} {
		code, stdout, stderr := cbrepl(args...)
		if code != exitUsage || !strings.HasPrefix(stderr, "cbrepl: ") || stdout != "" {
			t.Errorf("%v: exit code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
	if code, out, _ := cbrepl("version"); code != exitOK || !strings.HasPrefix(out, "cbrepl ") {
		t.Errorf("version: %d %s", code, out)
	}
	if code, out, _ := cbrepl(); code != exitOK || !strings.Contains(out, "Available Commands") {
		t.Errorf("help: %d %s", code, out)
	}
}

func TestStatus(t *testing.T) {
	b := status.NewBoard("dr", "test", 1, time.Now())
	h, err := status.Handler(func() status.Report { return b.Report(time.Now()) })
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h)
	defer srv.Close()
	addr := strings.TrimPrefix(srv.URL, "http://")
	code, out, stderr := cbrepl("status", "--addr", addr)
	if code != exitUnhealthy || !strings.HasPrefix(out, "subscription dr: starting") {
		t.Errorf("status of a daemon that starts: %d %s%s", code, out, stderr)
	}
	b.SetState(status.Streaming, time.Now())
	if code, out, stderr = cbrepl("status", "--addr", addr); code != exitOK || !strings.HasPrefix(out, "subscription dr: streaming") {
		t.Errorf("status: %d %s%s", code, out, stderr)
	}
	var rep status.Report
	code, out, _ = cbrepl("status", "--addr", addr, "--json")
	if code != exitOK || json.Unmarshal([]byte(out), &rep) != nil || rep.Subscription != "dr" {
		t.Errorf("status --json: %d %s", code, out)
	}

	b.SetState(status.Stopped, time.Now())
	for _, args := range [][]string{{"status", "--addr", addr}, {"status", "--addr", addr, "--json"}} {
		if code, out, stderr = cbrepl(args...); code != exitUnhealthy || !strings.Contains(out, "stopped") || stderr != "" {
			t.Errorf("%v of a stopped subscription: %d %s%s", args, code, out, stderr)
		}
	}

	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	code, _, stderr = cbrepl("status", "--addr", strings.TrimPrefix(other.URL, "http://"))
	if code != exitNoDaemon || !strings.Contains(stderr, "is not a cbrepl daemon") {
		t.Errorf("status of something else: %d %s", code, stderr)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.Addr().String()
	_ = l.Close()
	code, _, stderr = cbrepl("status", "--addr", nobody)
	if code != exitNoDaemon || !strings.Contains(stderr, "no daemon answers at "+nobody) {
		t.Errorf("status of nothing: %d %s", code, stderr)
	}
}
