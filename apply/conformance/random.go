package conformance

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"cbrepl/apply"
	"cbrepl/internal/soak"
	"cbrepl/pgoutput"
	"cbrepl/router"
)

// testRandom: random histories on tables of every shape, in batches of random
// size, against the model.
func testRandom(t *testing.T, f Fixture) {
	r := rand.New(rand.NewPCG(soak.Seed(t, 1), 1))
	var tabs []*Table
	for i, s := range storages(f, Heap, Heap, AORow, AOColumn, Heap) {
		for _, kind := range []router.PolicyKind{router.Hash, router.Random, router.Replicated} {
			keyed := onStorage(intKey(fmt.Sprintf("k%d_%d", i, kind)), s)
			keyed.Kind = kind
			if kind != router.Hash {
				keyed.Dist = nil
			}
			if kind == router.Random {
				keyed.NoTargetKey, keyed.Index = true, "id"
			}
			if i == 1 {
				keyed.Identity = pgoutput.IdentityFull
			}
			if i == 4 && kind == router.Hash {
				keyed.NoTargetKey, keyed.Index, keyed.Dist = true, "id", []string{"a"}
			}
			tabs = append(tabs, keyed)
			kl := keyless(fmt.Sprintf("x%d_%d", i, kind), s, kind)
			if i%2 == 1 {
				kl.Index = "b"
			}
			tabs = append(tabs, kl)
		}
	}
	w := newWorld(t, f, apply.ConflictStop, tabs...)
	next := 0
	text := func() string {
		return []string{"", "x", "y\t", `\`, "long" + large(r.IntN(3))}[r.IntN(5)]
	}
	word := func() Values { return V([]string{text(), `\N`}[r.IntN(2)]) }
	change := func(tab *Table) {
		n := len(w.src.Rows(tab))
		keyed := len(tab.Key) > 0
		row := func(id string) Values {
			if keyed {
				return append(V(id, strconv.Itoa(r.IntN(5))), word()...)
			}
			v := append(V(strconv.Itoa(r.IntN(4))), word()...)
			v = append(v, V([]string{"1.0", "1", `\N`}[r.IntN(3)], []string{"{}", "[1]", `\N`}[r.IntN(3)])...)
			if r.IntN(5) == 0 {
				v[0] = nil
			}
			return v
		}
		switch op := r.IntN(10); {
		case n == 0 || op < 4:
			next++
			w.src.Insert(tab, row(strconv.Itoa(next)))
		case op < 8:
			i := r.IntN(n)
			old := w.src.Rows(tab)[i]
			v := row("")
			var unchanged []int
			if keyed {
				v[0] = old[0]
				if r.IntN(4) == 0 {
					next++
					id := strconv.Itoa(next)
					v[0] = &id
				}
				if r.IntN(3) == 0 && old[2] != nil {
					unchanged = append(unchanged, 2)
				}
			}
			w.src.Update(tab, i, v, unchanged...)
		default:
			w.src.Delete(tab, r.IntN(n))
		}
	}
	for batch := range 40 {
		for range 1 + r.IntN(3) { // dtxs
			some := slices.Clone(tabs)
			r.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
			for _, tab := range some[:1+r.IntN(4)] {
				for range []int{1, 2, 8, 60}[r.IntN(4)] {
					change(tab)
				}
			}
			if r.IntN(20) == 0 {
				w.src.Truncate(0, some[0])
			}
			w.src.Commit()
		}
		w.applyOnly()
		if batch%8 == 7 {
			w.check()
		}
	}
	w.check()
}
