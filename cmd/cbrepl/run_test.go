package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cbrepl/dtx"
	"cbrepl/subscription/config"
)

// exampleFile writes the example configuration with its spool elsewhere.
func exampleFile(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "s.yaml")
	text := strings.Replace(config.Example, "/var/lib/cbrepl/dr_site", filepath.Join(dir, "spool"), 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// A service manager learns from the exit code whether another start can help.
func TestDaemonExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, exitOK},
		{&dtx.Error{Op: "apply batch", Class: dtx.ClassStop}, exitStopped},
		{&dtx.Error{Op: "write spool", Class: dtx.ClassRetry}, exitTemporary},
		{os.ErrDeadlineExceeded, exitTemporary},
	} {
		if got := exitCode(daemonError(c.err)); got != c.want {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.want)
		}
	}
}

// With log.format json, every line that run writes is JSON, the last one too.
func TestLastLineIsJSON(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	code, _, stderr := cbrepl("run", "-c", exampleFile(t), "--log.format", "json", "--http.listen", busy.Addr().String())
	if code != exitStopped {
		t.Errorf("exit code %d", code)
	}
	var last map[string]any
	for line := range strings.Lines(stderr) {
		last = nil
		if err := json.Unmarshal([]byte(line), &last); err != nil {
			t.Errorf("%v: %s", err, line)
		}
	}
	if last["level"] != "ERROR" || last["exit_code"] != float64(exitStopped) || !strings.Contains(last["error"].(string), "serve status") {
		t.Errorf("the last line is %v", last)
	}
}

// syncBuffer is a log that another goroutine writes.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// SIGHUP takes the log level from the file and says so; a file that is not valid
// changes nothing.
func TestHangupReadsLogLevel(t *testing.T) {
	file := exampleFile(t)
	out := &syncBuffer{}
	level := &slog.LevelVar{}
	load := func() (*config.Config, error) { return config.Load(config.Sources{File: file}) }
	stop := reloadOnHangup(slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level})), level, load)
	defer stop()
	for _, c := range []struct {
		extra, want string
		level       slog.Level
	}{
		{"log: {level: debug}\n", "log_level=debug", slog.LevelDebug},
		{"log: {level: loud}\n", "nothing is changed", slog.LevelDebug},
		{"log: {level: error}\n", "log_level=error", slog.LevelError},
	} {
		if err := os.WriteFile(file, []byte(config.Example+c.extra), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(20 * time.Second); !strings.Contains(out.String(), c.want); {
			if time.Now().After(end) {
				t.Fatalf("no %q in the log:\n%s", c.want, out.String())
			}
			time.Sleep(time.Millisecond)
		}
		if level.Level() != c.level {
			t.Errorf("%s: level %s", c.want, level.Level())
		}
	}
}
