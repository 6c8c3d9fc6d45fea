package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"cbrepl/dtx"
)

// gone checks that no server and no directory of a lab is left.
func gone(t *testing.T, dir string, pids ...int) {
	t.Helper()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory %s is left: %v", dir, err)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d is left: %v", pid, err)
		}
	}
}

// pidsOf lists the server processes of a cluster with their children.
func pidsOf(t *testing.T, servers ...*Server) []int {
	t.Helper()
	var out []int
	for _, s := range servers {
		pid := readPid(s.DataDir())
		kids, err := childrenOf(pid)
		if err != nil || pid == 0 {
			t.Fatalf("server %s: pid %d, %v", s.Name(), pid, err)
		}
		out = append(append(out, pid), kids...)
	}
	return out
}

func TestStopLeavesNothing(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx := testCtx(t)
	s, err := StartSource(ctx, Options{Segments: 2})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := s.Begin(ctx) // left open: its session must not keep a server
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Touch(ctx, 0); err != nil {
		t.Fatal(err)
	}
	pids := pidsOf(t, s.Nodes()...)
	if err := s.Node(1).Pause(); err != nil { // nor must a paused one stay
		t.Fatal(err)
	}
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	_ = tx.Rollback(ctx)
	gone(t, s.lab.Dir(), pids...)
}

// TestFailedStart leaves nothing when one setting keeps the servers down.
func TestFailedStart(t *testing.T) {
	dir := t.TempDir()
	for d := dir; strings.HasPrefix(d, os.TempDir()) && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	_, err := StartSource(testCtx(t), Options{Segments: 1, Dir: dir, Settings: map[string]string{"wal_level": "nonsense"}})
	var e *dtx.Error
	if !errors.As(err, &e) || !strings.Contains(err.Error(), "wal_level") {
		t.Fatalf("error is %v, want one that names the setting", err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestServerLife(t *testing.T) {
	ctx := testCtx(t)
	s := shared.NewServer(t, Options{})
	if err := s.Exec(ctx, "create table t (a int); insert into t values (1)"); err != nil {
		t.Fatal(err)
	}
	count := func() int { return queryOne[int](t, s.DSN(), "select count(*)::int from t") }
	for name, end := range map[string]func(context.Context) error{"shutdown": s.Shutdown, "crash": s.Crash} {
		if err := end(ctx); err != nil {
			t.Fatal(err)
		}
		if s.Running() {
			t.Fatalf("runs after %s", name)
		}
		if c, err := pgx.Connect(ctx, s.DSN()); err == nil {
			_ = c.Close(ctx)
			t.Fatalf("answers after %s", name)
		}
		if err := s.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if n := count(); n != 1 {
			t.Fatalf("%d rows after %s", n, name)
		}
	}
	if err := s.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	c, err := pgx.Connect(ctx, s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := c.Exec(ctx, "select 1")
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatalf("a paused server's session answered: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
}

// childVar makes the test binary a child that starts a server and waits to be
// killed.
const childVar = "CBREPL_LAB_TEST_CHILD"

// TestKilledOwner kills a process that has started a server: the server ends,
// and the next lab removes the directory.
func TestKilledOwner(t *testing.T) {
	ctx := testCtx(t)
	if os.Getenv(childVar) != "" {
		s, err := StartServer(ctx, Options{})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("child %d %s\n", readPid(s.DataDir()), s.lab.Dir())
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledOwner$", "-test.v")
	cmd.Env = append(os.Environ(), childVar+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	var pid int
	var dir, seen string
	buf := make([]byte, 4096)
	for pid == 0 {
		n, err := out.Read(buf)
		seen += string(buf[:n])
		if i := strings.Index(seen, "child "); i >= 0 && strings.HasSuffix(seen, "\n") {
			_, _ = fmt.Sscanf(seen[i:], "child %d %s", &pid, &dir)
		}
		if err != nil {
			t.Fatalf("child: %v, output %q", err, seen)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	waitFor(t, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
	l, err := New(ctx, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	gone(t, dir, pid)
}

func TestOptions(t *testing.T) {
	o := Options{Segments: 65, Settings: map[string]string{"a": "b\nc = d"}}
	err := o.Validate()
	if err == nil || !strings.Contains(err.Error(), "65") || !strings.Contains(err.Error(), "line break") {
		t.Errorf("problems are %v", err)
	}
}

func TestBinariesRemedy(t *testing.T) {
	t.Setenv(EnvBinDir, t.TempDir())
	_, err := StartServer(testCtx(t), Options{})
	if err == nil || !strings.Contains(err.Error(), EnvBinDir) || dtx.ClassOf(err) != dtx.ClassStop {
		t.Errorf("error is %v, want one that names %s", err, EnvBinDir)
	}
}
