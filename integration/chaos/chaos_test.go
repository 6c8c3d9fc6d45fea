// Package chaos runs a real daemon between real clusters through load and
// faults drawn from a seed: the daemon killed, frozen, terminated and replaced,
// servers crashed and paused, connections cut and stalled. After each round the
// load stops, the daemon drains, and both clusters must hold the same rows in the
// right places.
//
//	go test ./integration/chaos -chaos.seed 7 -chaos.rounds 10 -chaos.for 1m -chaos.dir /tmp/chaos
//
// The seed fixes settings, load and faults, not the moments at which they meet;
// what happened is in the test's log and, with -chaos.dir, in the daemons' logs.
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
)

var (
	seedFlag = flag.Uint64("chaos.seed", 0, "seed; 0 draws one")
	rounds   = flag.Int("chaos.rounds", 1, "rounds in one pair of clusters")
	length   = flag.Duration("chaos.for", 10*time.Second, "length of the load of one round")
	keepIn   = flag.String("chaos.dir", "", "empty or new directory for logs that stay")
	verbose  = flag.Bool("chaos.verbose", false, "log the errors of the load's transactions")
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
	seed := *seedFlag
	if seed == 0 {
		seed = 1 + rand.Uint64N(1_000_000)
	}
	r := rand.New(rand.NewPCG(seed, 7))
	set := draw(r)
	began := time.Now()
	logf := func(format string, a ...any) {
		t.Logf("%6.1f "+format, append([]any{time.Since(began).Seconds()}, a...)...)
	}
	logf("-chaos.seed %d: %+v", seed, set)
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(*rounds)*(*length+2*drainLimit))
	defer cancel()
	w, err := newWorld(ctx, seed, set, logDir(t), logf)
	defer w.close()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.fill(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range *rounds {
		logf("round %d", i+1)
		if err := w.round(ctx, r, *length); err != nil {
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
