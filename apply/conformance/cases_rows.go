package conformance

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"cbrepl/apply"
	"cbrepl/pgoutput"
	"cbrepl/router"
)

// sizes cross the borders at which a target may change its way of sending rows.
var sizes = []int{1, 2, 40, 1200, 5000}

func testKeyed(t *testing.T, f Fixture) {
	for _, s := range storages(f, Heap, AORow, AOColumn) {
		for _, kind := range []router.PolicyKind{router.Hash, router.Random, router.Replicated} {
			t.Run(fmt.Sprintf("%s/%d", s, kind), func(t *testing.T) {
				one := onStorage(intKey("one"), s)
				two := onStorage(&Table{
					Name: "two", Columns: []Column{{Name: "k", Type: "text"}, {Name: "d", Type: "date"}, {Name: "v", Type: "text"}},
					Key: []string{"k", "d"}, Dist: []string{"k"},
				}, s)
				for _, tab := range []*Table{one, two} {
					tab.Kind = kind
					if kind != router.Hash {
						tab.Dist = nil
					}
					if kind == router.Random { // no primary key goes with random placement
						tab.NoTargetKey, tab.Index = true, tab.Key[0]
					}
				}
				w := newWorld(t, f, apply.ConflictStop, one, two)
				next := 0
				day := func(i int) string { return fmt.Sprintf("2020-01-%02d", 1+i%28) }
				these := sizes
				if kind != router.Hash || s == AOColumn {
					these = sizes[:3]
				}
				for _, n := range these {
					first := next
					for range n {
						w.src.Insert(one, V(strconv.Itoa(next), strconv.Itoa(next%7), "row "+strconv.Itoa(next)))
						w.src.Insert(two, V("key "+strconv.Itoa(next), day(next), `\N`))
						next++
					}
					w.commit()
					for i := range n { // updates
						id := strconv.Itoa(first + i)
						w.src.Update(one, w.src.Find(one, id), V(id, `\N`, "new\t"+id))
						w.src.Update(two, w.src.Find(two, "key "+id), V("key "+id, day(first+i), "v"+id))
					}
					w.commit()
					for i := range n { // updates and deletes of single rows and of many, with inserts
						id := strconv.Itoa(first + i)
						if i%3 == 0 {
							w.src.Delete(one, w.src.Find(one, id))
							w.src.Delete(two, w.src.Find(two, "key "+id))
						} else {
							w.src.Update(one, w.src.Find(one, id), V(id, "5", ""))
						}
					}
					w.src.Insert(one, V(strconv.Itoa(-n), "0", "last"))
					w.commit()
				}
			})
		}
	}
}

func testKeyMoves(t *testing.T, f Fixture) {
	for _, s := range storages(f, Heap, AORow) {
		t.Run(string(s), func(t *testing.T) {
			tab := onStorage(intKey("moves"), s)
			// Distributed by a column outside the source's key, which updates change.
			far := onStorage(&Table{
				Name: "far", Columns: []Column{{Name: "id", Type: "bigint"}, {Name: "a", Type: "integer"}, {Name: "b", Type: "text"}},
				Key: []string{"id"}, Dist: []string{"a"},
			}, s)
			far.NoTargetKey, far.Index = true, "id"
			w := newWorld(t, f, apply.ConflictStop, tab, far)
			for i := range 60 {
				w.src.Insert(tab, V(strconv.Itoa(i), "1", "b"+strconv.Itoa(i)))
				w.src.Insert(far, V(strconv.Itoa(i), strconv.Itoa(i), "b"))
			}
			w.commit()
			swap := func(a, b string) { // by way of a third key, in one dtx
				w.src.Update(tab, w.src.Find(tab, a), V("-1", "2", "was "+a))
				w.src.Update(tab, w.src.Find(tab, b), V(a, "3", "was "+b))
				w.src.Update(tab, w.src.Find(tab, "-1"), V(b, "2", "was "+a))
			}
			swap("1", "2")
			swap("3", "40")
			w.commit()
			for i := range 50 { // every key shifts by 1000
				id := strconv.Itoa(i)
				w.src.Update(tab, w.src.Find(tab, id), V(strconv.Itoa(i+1000), "9", "shifted"))
				w.src.Update(far, w.src.Find(far, id), V(id, strconv.Itoa(i+7), "moved"))
			}
			w.commit()
			// Delete and insert of one key, and a row's whole life inside one batch.
			w.src.Delete(tab, w.src.Find(tab, "1003"))
			w.src.Insert(tab, V("1003", "0", "again"))
			w.src.Insert(tab, V("7777", "0", "short-lived"))
			w.src.Update(tab, w.src.Find(tab, "7777"), V("7777", "1", "x"))
			w.src.Delete(tab, w.src.Find(tab, "7777"))
			w.src.Commit()
			w.src.Update(far, w.src.Find(far, "3"), V("300", "300", "key and place"))
			w.commit()
		})
	}
}

func testSecondaryUnique(t *testing.T, f Fixture) {
	tab := &Table{
		Name: "uniq", Columns: []Column{{Name: "id", Type: "bigint"}, {Name: "u", Type: "integer"}, {Name: "b", Type: "text"}},
		Key: []string{"id"}, Unique: [][]string{{"id", "u"}}, Dist: []string{"id"},
	}
	rep := &Table{
		Name: "uniqrep", Columns: []Column{{Name: "id", Type: "bigint"}, {Name: "u", Type: "integer"}, {Name: "b", Type: "text"}},
		Key: []string{"id"}, Unique: [][]string{{"u"}}, Kind: router.Replicated,
	}
	w := newWorld(t, f, apply.ConflictStop, tab, rep)
	for i := range 30 {
		w.src.Insert(tab, V(strconv.Itoa(i), strconv.Itoa(i), "b"))
		w.src.Insert(rep, V(strconv.Itoa(i), strconv.Itoa(i), "b"))
	}
	w.commit()
	for i := 29; i >= 0; i-- { // update t set u = u + 1
		id := strconv.Itoa(i)
		w.src.Update(rep, w.src.Find(rep, id), V(id, strconv.Itoa(i+1), "shifted"))
		w.src.Update(tab, w.src.Find(tab, id), V(id, strconv.Itoa(i+1), "shifted"))
	}
	w.commit()
	w.src.Update(rep, w.src.Find(rep, "3"), V("3", "100", "swap")) // 3 and 4 swap their values
	w.src.Update(rep, w.src.Find(rep, "4"), V("4", "4", "swap"))
	w.src.Update(rep, w.src.Find(rep, "3"), V("3", "5", "swap"))
	w.src.Update(rep, w.src.Find(rep, "7"), V("7", "8", "in place"))
	w.commit()
}

// large is a value that a source keeps out of line.
func large(i int) string { return strings.Repeat(fmt.Sprintf("%08d", i), 500) }

func testToast(t *testing.T, f Fixture) {
	for _, s := range storages(f, Heap, AORow, AOColumn) {
		t.Run(string(s), func(t *testing.T) {
			tab := onStorage(&Table{Name: "toast", Columns: []Column{
				{Name: "id", Type: "bigint"},
				{Name: "a", Type: "integer"},
				{Name: "big", Type: "text"},
				{Name: "big2", Type: "text"},
			}, Key: []string{"id"}, Dist: []string{"id"}}, s)
			full := onStorage(&Table{
				Name: "toastfull", Columns: []Column{{Name: "id", Type: "bigint"}, {Name: "big", Type: "text"}, {Name: "n", Type: "integer"}},
				Key: []string{"id"}, Dist: []string{"id"}, Identity: pgoutput.IdentityFull,
			}, s)
			w := newWorld(t, f, apply.ConflictStop, tab, full)
			for i := range 40 {
				w.src.Insert(tab, V(strconv.Itoa(i), "0", large(i), large(i+1)))
				w.src.Insert(full, V(strconv.Itoa(i), large(i), "0"))
			}
			w.commit()
			for i := range 40 { // two partial updates, each leaving another column alone
				id := strconv.Itoa(i)
				w.src.Update(tab, w.src.Find(tab, id), V(id, "1", "small", ""), 3)
				if i%2 == 0 {
					w.src.Update(tab, w.src.Find(tab, id), V(id, "2", "", "other"), 2)
				}
				w.src.Update(full, w.src.Find(full, id), V(id, "", "1"), 1)
			}
			w.commit()
			w.src.Update(tab, w.src.Find(tab, "5"), V("500", "3", "", ""), 2, 3) // key change, values fetched
			w.src.Update(tab, w.src.Find(tab, "6"), V("6", "0", "", ""), 1, 2, 3)
			w.src.Insert(tab, V("900", "0", large(9), "x")) // insert, then partial update
			w.src.Update(tab, w.src.Find(tab, "900"), V("900", "1", "", "y"), 2)
			w.src.Update(full, w.src.Find(full, "7"), V("70", "", "2"), 1)
			w.commit()
			for i := 1000; i < 6000; i++ {
				w.src.Insert(tab, V(strconv.Itoa(i), "0", "v"+strconv.Itoa(i), "w"))
			}
			w.commit()
			for i := 1000; i < 6000; i++ { // many partial updates
				id := strconv.Itoa(i)
				w.src.Update(tab, w.src.Find(tab, id), V(id, "1", "", "w2"), 2)
			}
			w.commit()
		})
	}
}

func testTargetOnly(t *testing.T, f Fixture) {
	for _, s := range storages(f, Heap, AORow) {
		t.Run(string(s), func(t *testing.T) {
			tab := onStorage(&Table{
				Name: "extra", Columns: []Column{
					{Name: "note", Type: "text", TargetOnly: true, Default: "'none'"},
					{Name: "b", Type: "text"},
					{Name: "id", Type: "bigint"},
					{Name: "n", Type: "integer", TargetOnly: true, NotNull: true, Default: "7"},
				},
				Key: []string{"id"}, Dist: []string{"id"},
			}, s)
			w := newWorld(t, f, apply.ConflictStop, tab)
			for i := range 20 {
				w.src.Insert(tab, V("b"+strconv.Itoa(i), strconv.Itoa(i)))
			}
			w.commit()
			w.f.Exec(t, "UPDATE "+tab.SQLName()+" SET note = 'kept ' || id, n = 8")
			for i := range 20 {
				switch b, id := "b"+strconv.Itoa(i), strconv.Itoa(i); {
				case i < 8: // key change; to another content it would be a new row for the target
					to := i + 100
					for w.src.content(tab, V(b, strconv.Itoa(to))) != w.src.content(tab, V(b, id)) {
						to += 100
					}
					w.src.Update(tab, w.src.Find(tab, b), V(b, strconv.Itoa(to)))
				case i < 16:
					w.src.Update(tab, w.src.Find(tab, b), V("new "+b, id))
				}
			}
			w.commit()
			for _, l := range w.dump(tab) {
				if !strings.Contains(l, `"kept `) || !strings.Contains(l, `"8"`) {
					t.Errorf("a target-only column lost its value: %s", l)
				}
			}
		})
	}
}
