package lab

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cbrepl/dtx"
	"cbrepl/subscription/config"
)

// TestPlayground starts one, finds it again as another process would, loads it
// and takes it down.
func TestPlayground(t *testing.T) {
	ctx := testCtx(t)
	dir := filepath.Join(tempBase(), "cbrepl-test-"+filepath.Base(t.TempDir())+time.Now().Format("150405.000"))
	p, err := Up(ctx, dir, Options{}, 2, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	p.Detach()
	cfg, err := config.Load(config.Sources{File: p.ConfigFile()})
	if err != nil {
		t.Errorf("the subscription file is not valid: %v", err)
	} else if len(cfg.Source.Segments) != 2 || len(cfg.Target.Shards) != 1 {
		t.Errorf("the subscription file has %d segments and %d shards", len(cfg.Source.Segments), len(cfg.Target.Shards))
	}
	if _, err := Up(ctx, dir, Options{}, 1, 1); err == nil || !strings.Contains(err.Error(), "lab down") {
		t.Errorf("a second up: %v", err)
	}

	q, err := OpenPlayground(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range q.Nodes() {
		if !n.Running() {
			t.Errorf("%s does not run", n.Name())
		}
	}
	for i := range 2 { // the second load meets the first one's rows
		w := NewWorkload(q.Source, 0)
		w.Accounts, w.FirstID = 50+i, int64(1+i*1_000_000)
		if err := w.Fill(ctx); err != nil {
			t.Fatal(err)
		}
		loaded, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		if err := w.Run(loaded); err != nil {
			t.Error(err)
		}
		cancel()
		if sum := total(t, q.Source, Accounts); sum != w.Total() {
			t.Errorf("total is %d, want %d", sum, w.Total())
		}
	}
	if r, err := Compare(ctx, q.Source, q.Target); err != nil || r.OK() || len(r.Tables) != len(WorkloadTables()) {
		t.Errorf("an unreplicated playground compares as %v, %v", r, err)
	}
	pids := pidsOf(t, q.Nodes()...)
	if err := q.Down(ctx); err != nil {
		t.Fatal(err)
	}
	gone(t, dir, pids...)
	if _, err := OpenPlayground(dir, Options{}); !errors.Is(err, os.ErrNotExist) || dtx.ClassOf(err) != dtx.ClassStop {
		t.Errorf("open after down: %v", err)
	}
}
