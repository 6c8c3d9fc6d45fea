package mergetest

import (
	"os"
	"strconv"
	"testing"
)

// Seeds is how many seeds a simulation runs: few and fixed, unless CBREPL_SOAK
// multiplies them. CBREPL_SEED runs one alone.
func Seeds(t testing.TB, few int) (first, end uint64) {
	number := func(name string) (uint64, bool) {
		s := os.Getenv(name)
		if s == "" {
			return 0, false
		}
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return n, true
	}
	if seed, ok := number("CBREPL_SEED"); ok {
		return seed, seed + 1
	}
	end = uint64(few)
	if times, ok := number("CBREPL_SOAK"); ok {
		end *= times
	}
	return 0, end
}
