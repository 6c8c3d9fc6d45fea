package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The commands that "cbrepl lab up" prints, run literally in that order, end
// with a check that finds both sides the same.
func TestLabCommands(t *testing.T) {
	dir := filepath.Join(openDir(t), "play")
	down := func() { command(t, nil, "lab", "down", "--dir", dir) }
	defer down()
	code, out, stderr := command(t, nil, "lab", "up", "--dir", dir, "--source-segments", "2")
	if code != 0 {
		t.Fatalf("lab up: %s", stderr)
	}
	var run *exec.Cmd
	defer func() {
		if run != nil {
			_ = run.Process.Kill()
			_ = run.Wait()
		}
	}()
	commands := regexp.MustCompile(`(?m)^ +cbrepl ([^#\n]*)`).FindAllStringSubmatch(out, -1)
	if len(commands) < 5 {
		t.Fatalf("lab up printed:\n%s", out)
	}
	for _, c := range commands {
		args := strings.Fields(c[1])
		switch args[0] + " " + args[1] {
		case "run -c":
			run = exec.Command(binary, args...)
			log := &syncBuffer{}
			run.Stderr = log
			if err := run.Start(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "status answers", func() bool {
				code, out, _ := command(t, nil, "status", "-c", args[2])
				return code == 0 && strings.Contains(out, "streaming")
			})
			continue
		case "lab load":
			args = append(args, "--for", "2s")
		case "lab check":
			eventually(t, "both sides are the same", func() bool {
				code, _, _ := command(t, nil, args...)
				return code == 0
			})
			if err := run.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := run.Wait(); err != nil {
				t.Errorf("the daemon ended with %v", err)
			}
			run = nil
			continue
		}
		if code, _, stderr := command(t, nil, args...); code != 0 {
			t.Fatalf("cbrepl %s: exit code %d\n%s", strings.Join(args, " "), code, stderr)
		}
	}
	if code, _, stderr := command(t, nil, "config", "check", "-c", filepath.Join(dir, "subscription.yaml")); code == 0 {
		t.Errorf("the playground is still there after lab down: %s", stderr)
	}
}

// openDir is a temporary directory that the servers' account may enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// The demo proves its result, and cleans up when it is interrupted.
func TestDemo(t *testing.T) {
	tmp := openDir(t)
	env := []string{"TMPDIR=" + tmp}
	leftovers := func() {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(tmp, "*"))
		if err != nil || len(found) > 0 {
			t.Errorf("left behind: %v %v", found, err)
		}
	}
	code, out, stderr := command(t, env, "demo", "--source-segments", "2", "--target-segments", "3", "--seconds", "3")
	if code != 0 || !strings.Contains(out, "RESULT: both clusters hold the same rows, each on the right shard") {
		t.Errorf("exit code %d\n%s%s", code, out, stderr)
	}
	leftovers()

	cmd := exec.Command(binary, "demo", "--seconds", "30")
	cmd.Env = append(os.Environ(), env...)
	stdout := &syncBuffer{}
	cmd.Stdout, cmd.Stderr = stdout, stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the load runs", func() bool { return strings.Contains(stdout.String(), "load    source") })
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(limit):
		_ = cmd.Process.Kill()
		t.Fatal("the demo does not end on an interrupt")
	}
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit code %d after an interrupt", code)
	}
	leftovers()

	if code, _, stderr := command(t, nil, "demo", "--seconds", "0"); code != 2 || !strings.Contains(stderr, "at least 1") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}
