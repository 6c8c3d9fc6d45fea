package store

import (
	"testing"

	"pgregory.net/rapid"

	"cbrepl/internal/soak"
)

// TestChainOrder lets chains be born and die in any order and takes the dead ones
// now and then: no range may hold a live chain, every dead byte comes back once,
// and what is remembered stays in proportion to what is alive.
func TestChainOrder(t *testing.T) {
	soak.Check(t, 100, 5000, func(t *rapid.T) {
		var o chainOrder
		live := map[chainNum]*chain{}
		deleted := map[chainNum]bool{} // on disk no more
		onDisk := map[chainNum]int64{} // dead and still there
		num := chainNum(1)
		take := func(least int64) {
			for _, r := range o.takeDead(least) {
				if r.start >= r.end {
					t.Fatalf("range %d to %d", r.start, r.end)
				}
				sum := int64(0)
				for n := r.start; n < r.end; n++ {
					if live[n] != nil {
						t.Fatalf("range %d to %d holds live chain %d", r.start, r.end, n)
					}
					sum += onDisk[n]
					delete(onDisk, n)
					deleted[n] = true
				}
				if sum != r.bytes || sum < least {
					t.Fatalf("range %d to %d of %d bytes, want %d, at least %d", r.start, r.end, r.bytes, sum, least)
				}
			}
		}
		steps := rapid.SampledFrom([]int{20, 20, 20, 1000}).Draw(t, "steps")
		for range steps {
			switch k := rapid.IntRange(0, 9).Draw(t, "step"); {
			case k < 5:
				num += 2 * chainNum(rapid.IntRange(1, 3).Draw(t, "gap"))
				c := &chain{num: num, disk: int64(rapid.SampledFrom([]int{0, 1, 7, 1000}).Draw(t, "disk"))}
				live[num] = c
				o.list = append(o.list, c)
			case k < 9 && len(live) > 0:
				// A chain in front, or one somewhere.
				i := rapid.IntRange(0, 2).Draw(t, "which")
				var c *chain
				for n := chainNum(1); n <= num; n++ {
					if c = live[n]; c != nil {
						if i--; i < 0 {
							break
						}
					}
				}
				for n := num; c == nil; n-- {
					c = live[n]
				}
				delete(live, c.num)
				if c.disk > 0 {
					onDisk[c.num] = c.disk
				}
				c.dead = true
				o.died()
			case k == 9:
				take(int64(rapid.SampledFrom([]int{0, 5, 500}).Draw(t, "min")))
			}
			if n := len(o.list); n > 4*len(live)+200 {
				t.Fatalf("%d chains remembered for %d live ones", n, len(live))
			}
		}
		take(0)
		if len(onDisk) != 0 {
			t.Fatalf("dead chains are left on disk: %v", onDisk)
		}
		if o.dead != 0 || len(o.list) != len(live) {
			t.Fatalf("%d dead of %d remembered, %d alive", o.dead, len(o.list), len(live))
		}
	})
}
