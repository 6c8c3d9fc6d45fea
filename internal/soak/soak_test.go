package soak

import (
	"flag"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		value string
		seed  uint64 // 0: any
		on    bool
	}{{"", 0, false}, {"7", 7, true}, {"random", 0, true}, {"0", 0, true}} {
		seed, on := parse(tc.value)
		if on != tc.on || tc.seed != 0 && seed != tc.seed || on && seed == 0 {
			t.Errorf("%q gives %d, %t", tc.value, seed, on)
		}
	}
}

// Two runs of a property see the same values, and as many as asked for.
func TestCheckRepeats(t *testing.T) {
	if Times(0, 1) == 1 {
		t.Skip("a soak")
	}
	before := flag.Lookup("rapid.seed").Value.String()
	draw := func() (out []int) {
		Check(t, 20, 20, func(rt *rapid.T) { out = append(out, rapid.Int().Draw(rt, "n")) })
		return out
	}
	a, b := draw(), draw()
	if len(a) != 20 || !slices.Equal(a, b) {
		t.Errorf("%d and %d values, which differ", len(a), len(b))
	}
	if after := flag.Lookup("rapid.seed").Value.String(); after != before {
		t.Errorf("rapid.seed is left at %s", after)
	}
	if got := slices.Collect(Seeds(t, 3, 5)); !slices.Equal(got, []uint64{1, 2, 3}) {
		t.Errorf("seeds %v", got)
	}
}
