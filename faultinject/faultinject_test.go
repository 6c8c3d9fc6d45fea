package faultinject

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func arm(t *testing.T, spec string) {
	t.Helper()
	if err := Arm(spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = Arm("") })
}

func TestPasses(t *testing.T) {
	for _, tc := range []struct {
		spec string
		want string // one letter a pass: e for an error, . for none
	}{
		{"", "....."},
		{"other=error@*", "....."},
		{"p=error", "e...."},
		{"p=error@3", "..e.."},
		{"p=error@*", "eeeee"},
		{" p=error@2 , p=error@4 ,", ".e.e."},
		{"p=sleep:1ns@*", "....."},
		{"p=sleep:1ns@1,p=error@*", ".eeee"},
	} {
		arm(t, tc.spec)
		got := ""
		for range len(tc.want) {
			switch err := Point("p"); {
			case err == nil:
				got += "."
			case errors.Is(err, ErrInjected) && strings.Contains(err.Error(), "p"):
				got += "e"
			default:
				t.Fatalf("%q: %v", tc.spec, err)
			}
		}
		if got != tc.want {
			t.Errorf("%q: %s, want %s", tc.spec, got, tc.want)
		}
	}
}

func TestBadSpecs(t *testing.T) {
	arm(t, "p=error@*")
	for _, spec := range []string{"p", "=error", "p=", "p=explode", "p=error@0", "p=error@-1", "p=error@x", "p=sleep", "p=sleep:soon", "ok=error,p"} {
		if err := Arm(spec); err == nil {
			t.Errorf("%q is accepted", spec)
		}
	}
	if Point("p") == nil {
		t.Error("a refused list has replaced the armed one")
	}
}

func TestSleep(t *testing.T) {
	arm(t, "p=sleep:30ms")
	start := time.Now()
	if err := Point("p"); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d < 30*time.Millisecond {
		t.Errorf("slept %v", d)
	}
}

// TestEveryPassCounts: of many concurrent passes exactly one is the n-th.
func TestEveryPassCounts(t *testing.T) {
	arm(t, "p=error@500")
	var mu sync.Mutex
	var wg sync.WaitGroup
	fired := 0
	for range 10 {
		wg.Go(func() {
			for range 100 {
				if Point("p") != nil {
					mu.Lock()
					fired++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if fired != 1 {
		t.Errorf("fired %d times", fired)
	}
}

// TestKill runs this test again as a process that kills itself.
func TestKill(t *testing.T) {
	if spec := os.Getenv(EnvVar); spec != "" {
		arm(t, spec)
		_ = Point("p")
		_ = Point("p")
		t.Fatal("the process outlived its fault point")
	}
	c := exec.Command(os.Args[0], "-test.run=^TestKill$")
	c.Env = append(os.Environ(), EnvVar+"=p=kill@2")
	out, err := c.CombinedOutput()
	var ee *exec.ExitError
	if !errors.As(err, &ee) {
		t.Fatalf("%v\n%s", err, out)
	}
	if ws, ok := ee.Sys().(syscall.WaitStatus); !ok || !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
		t.Errorf("ended with %v\n%s", err, out)
	}
}

// BenchmarkOff: a point costs next to nothing while nothing is armed.
func BenchmarkOff(b *testing.B) {
	for b.Loop() {
		if err := Point("p"); err != nil {
			b.Fatal(err)
		}
	}
}
