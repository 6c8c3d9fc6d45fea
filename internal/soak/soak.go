// Package soak says how much random tests try, and from which seed. Usually,
// and in CI, they try little and always the same. `make soak` sets EnvVar, and
// they try much, from a seed that is drawn, or is the variable's value: a
// failure names the value that repeats it. No other package reads the variable.
package soak

import (
	"flag"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"

	"pgregory.net/rapid"
)

// EnvVar names the environment variable that asks for a soak: a seed, or random.
// It is unset for short runs with fixed seeds.
const EnvVar = "CBREPL_SOAK"

// TB is what the helpers need of *testing.T and *testing.B.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// asked is the base seed of this process, and whether it is to soak.
var asked = sync.OnceValues(func() (uint64, bool) { return parse(os.Getenv(EnvVar)) })

// parse reads the variable's value. What is no number counts as random.
func parse(value string) (uint64, bool) {
	if value == "" {
		return 0, false
	}
	seed, err := strconv.ParseUint(value, 10, 64)
	if err != nil || seed == 0 {
		seed = 1 + rand.Uint64N(1<<40)
	}
	return seed, true
}

// Seed returns the seed of a test: the given one, in a soak the soak's.
func Seed(t TB, fixed uint64) uint64 {
	t.Helper()
	if seed, on := asked(); on {
		t.Logf("seed %d; %s=%[1]d repeats it", seed, EnvVar)
		return seed
	}
	return fixed
}

// Seeds yields the seeds of a test that goes through many: short of them from 1
// on, in a soak long of them from the soak's on.
func Seeds(t TB, short, long int) iter.Seq[uint64] {
	t.Helper()
	first, n := uint64(1), short
	if seed, on := asked(); on {
		t.Logf("seeds from %d; %s=SEED begins with the one that failed", seed, EnvVar)
		first, n = seed, long
	}
	return func(yield func(uint64) bool) {
		for i := range uint64(n) {
			if !yield(first + i) {
				return
			}
		}
	}
}

// Times returns how often a test tries: short, in a soak long.
func Times(short, long int) int {
	if _, on := asked(); on {
		return long
	}
	return short
}

// rapidFlags guards rapid's settings, which are those of the process.
var rapidFlags sync.Mutex

// Check is rapid.Check with short checks from a fixed seed, in a soak with long
// ones from the soak's. Flags of rapid's own that are set win.
func Check(t rapid.TB, short, long int, property func(*rapid.T)) {
	t.Helper()
	rapidFlags.Lock()
	defer rapidFlags.Unlock()
	seed, on := asked()
	if !on {
		seed = 1
	}
	defer set(t, "rapid.seed", strconv.FormatUint(seed, 10))()
	defer set(t, "rapid.checks", strconv.Itoa(Times(short, long)))()
	rapid.Check(t, property)
}

// set sets a flag that has its default until the returned function is called.
func set(t rapid.TB, name, value string) (restore func()) {
	t.Helper()
	f := flag.Lookup(name)
	if f == nil {
		t.Fatal(fmt.Sprintf("there is no flag %s", name))
	}
	if f.Value.String() != f.DefValue {
		return func() {}
	}
	if err := f.Value.Set(value); err != nil {
		t.Fatal(err)
	}
	return func() { _ = f.Value.Set(f.DefValue) }
}
