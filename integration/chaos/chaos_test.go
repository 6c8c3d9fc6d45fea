// Package chaos runs a real daemon between real clusters through load and
// faults drawn from a seed: the daemon killed, frozen, terminated and replaced,
// servers crashed and paused, connections cut and stalled. After each round the
// load stops, the daemon drains, and both clusters must hold the same rows in the
// right places.
//
// The seed fixes settings, load and faults, not the moments at which they meet;
// what happened is in the test's log and, with -chaos.dir, in the daemons' logs.
// One seed runs usually, another and for longer in a soak:
//
//	CBREPL_SOAK=7 go test ./integration/chaos -run TestChaos -chaos.dir /tmp/chaos
package chaos

import (
	"context"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cbrepl/integration/internal/built"
	"cbrepl/internal/soak"
)

var (
	keepIn  = flag.String("chaos.dir", "", "empty or new directory for logs that stay")
	verbose = flag.Bool("chaos.verbose", false, "log the errors of the load's transactions")
)

// binary is the built cbrepl.
var binary string

func TestMain(m *testing.M) { os.Exit(built.Main(m, &binary)) }

// logDir is where the daemons of one test write.
func logDir(t *testing.T) string {
	t.Helper()
	if *keepIn == "" {
		return t.TempDir()
	}
	dir := filepath.Join(*keepIn, t.Name())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestChaos(t *testing.T) {
	seed := soak.Seed(t, 1)
	rounds, length := soak.Times(1, 10), time.Duration(soak.Times(10, 60))*time.Second
	r := rand.New(rand.NewPCG(seed, 7))
	set := draw(r)
	began := time.Now()
	logf := func(format string, a ...any) {
		t.Logf("%6.1f "+format, append([]any{time.Since(began).Seconds()}, a...)...)
	}
	logf("seed %d: %+v", seed, set)
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rounds)*(length+2*drainLimit))
	defer cancel()
	w, err := newWorld(ctx, seed, set, logDir(t), logf)
	defer w.close()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.fill(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range rounds {
		logf("round %d", i+1)
		if err := w.round(ctx, r, length); err != nil {
			w.problem("%v", err)
		}
		if len(w.problems) > 0 {
			break
		}
	}
	for _, p := range w.problems {
		t.Error(p)
	}
}
