package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"

	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/router"
)

// canary stands in every text value: a log must never show it.
const canary = "cAnArYvAlUe"

// shape is a table on both sides and what one transaction may do to it. do runs
// one change inside tx; an error of the server (a duplicate key, say) rolls the
// transaction back and is no fault.
type shape struct {
	src, dst lab.Table
	do       change
}

// change makes one random change to a table inside tx.
type change func(ctx context.Context, r *rand.Rand, tx *lab.Tx, name string) error

// ids counts fresh keys of all tables.
type ids struct{ n atomic.Int64 }

func (i *ids) fresh() int64 { return i.n.Add(1) }

// old draws a key that was given before, most likely a young one.
func (i *ids) old(r *rand.Rand) int64 {
	n := i.n.Load()
	if n < 2 {
		return 1
	}
	if span := min(n, 400); r.IntN(3) > 0 {
		return n - r.Int64N(span)
	}
	return 1 + r.Int64N(n)
}

func same(t lab.Table) (lab.Table, lab.Table) { return t, t }

// word is a text value that trips over careless quoting, with the canary in it.
func word(r *rand.Rand) any {
	switch r.IntN(8) {
	case 0:
		return nil
	case 1:
		return ""
	case 2:
		return canary + "\ttab\nline\\back \\. ' \" \\N {,}"
	case 3:
		return canary + "日本Öé"
	}
	return fmt.Sprintf("%s %d", canary, r.IntN(50))
}

// bulk is n bytes that do not compress.
func bulk(r *rand.Rand, n int) string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/"
	b := make([]byte, n)
	for i := range b {
		b[i] = letters[r.IntN(64)]
	}
	return canary + string(b)
}

// shapes lists every table of a round.
func shapes() []shape {
	var out []shape
	add := func(src, dst lab.Table, do change) {
		out = append(out, shape{src, dst, do})
	}
	key := new(ids)

	// keyed changes a table with an integer key. With reuse, keys come back.
	keyed := func(reuse bool) change {
		return func(ctx context.Context, r *rand.Rand, tx *lab.Tx, name string) error {
			switch n := r.IntN(10); {
			case n < 4 || !reuse && n == 9:
				return tx.Insert(ctx, name, lab.Row{key.fresh(), r.IntN(100), word(r)})
			case n < 8:
				_, err := tx.Update(ctx, name, lab.Values{"v": r.IntN(100), "note": word(r)}, lab.Values{"id": key.old(r)})
				return err
			case n < 9:
				_, err := tx.Delete(ctx, name, lab.Values{"id": key.old(r)})
				return err
			}
			// Delete, insert, update of one row in one transaction.
			id := key.old(r)
			if _, err := tx.Delete(ctx, name, lab.Values{"id": id}); err != nil {
				return err
			}
			if err := tx.Insert(ctx, name, lab.Row{id, -1, word(r)}); err != nil {
				return err
			}
			_, err := tx.Update(ctx, name, lab.Values{"v": r.IntN(100)}, lab.Values{"id": id})
			return err
		}
	}
	plain := "id int8 primary key, v int4, note text"
	pairs := []struct {
		name     string
		src, dst router.PolicyKind
		segs     int
	}{
		{"hh", router.Hash, router.Hash, 0},
		{"hr", router.Hash, router.Random, 0},
		{"hp", router.Hash, router.Replicated, 0},
		{"rr", router.Random, router.Random, 0},
		{"rh", router.Random, router.Hash, 0},
		{"pp", router.Replicated, router.Replicated, 0},
		{"ph", router.Replicated, router.Hash, 0},
		{"pr", router.Replicated, router.Random, 0},
		{"h1", router.Hash, router.Hash, 1},
	}
	for _, p := range pairs {
		s := lab.Table{Name: "public.k_" + p.name, Columns: plain, Kind: p.src}
		d := lab.Table{Name: s.Name, Columns: "note text, extra int4 default 7, id int8 primary key, v int4", Kind: p.dst, NumSegments: p.segs}
		if p.src == router.Hash {
			s.Key = []string{"id"}
		}
		if p.dst == router.Hash {
			d.Key = []string{"id"}
		}
		// Nothing keeps keys of a random table unique over the segments: they are
		// not used twice.
		add(s, d, keyed(p.src != router.Random))
	}

	// Text and integer key; updates move rows between segments.
	regions := []string{"north", "south", "east", "west", "Öst", "日本", "a'b\"c\\"}
	s, d := same(lab.Table{Name: "public.moving", Columns: "region text, no int8, v int4, detail text, primary key (region, no)", Key: []string{"region", "no"}})
	add(s, d, func(ctx context.Context, r *rand.Rand, tx *lab.Tx, name string) error {
		reg := func() string { return regions[r.IntN(len(regions))] }
		switch r.IntN(5) {
		case 0, 1:
			return tx.Insert(ctx, name, lab.Row{reg(), key.fresh() % 200, r.IntN(10), word(r)})
		case 2:
			_, err := tx.Update(ctx, name, lab.Values{"region": reg()}, lab.Values{"region": reg(), "no": key.old(r) % 200})
			return err
		case 3:
			_, err := tx.Update(ctx, name, lab.Values{"v": r.IntN(10)}, lab.Values{"no": key.old(r) % 200})
			return err
		}
		_, err := tx.Delete(ctx, name, lab.Values{"region": reg(), "no": key.old(r) % 200})
		return err
	})

	uuid := func(n int64) string {
		return fmt.Sprintf("%08x-0000-4000-8000-%012x", uint32(n*2654435761), n)
	}
	s, d = same(lab.Table{Name: "public.u", Columns: "id uuid primary key, at timestamptz, payload jsonb", Key: []string{"id"}})
	add(s, d, func(ctx context.Context, r *rand.Rand, tx *lab.Tx, name string) error {
		switch r.IntN(4) {
		case 0, 1:
			return tx.Insert(ctx, name, lab.Row{uuid(key.fresh() % 3000), "2024-02-29 12:00:00.000001+00", `{"a": [1, 2.50, "` + canary + `"]}`})
		case 2:
			_, err := tx.Update(ctx, name, lab.Values{"payload": fmt.Sprintf(`{"n": %d}`, r.IntN(99))}, lab.Values{"id": uuid(key.old(r) % 3000)})
			return err
		}
		_, err := tx.Delete(ctx, name, lab.Values{"id": uuid(key.old(r) % 3000)})
		return err
	})

	// No key at all: duplicate rows and NULLs, a type without equality.
	for _, p := range []struct {
		name     string
		src, dst router.PolicyKind
	}{{"full_rr", router.Random, router.Random}, {"full_hr", router.Hash, router.Random}, {"full_rh", router.Random, router.Hash}, {"full_pp", router.Replicated, router.Replicated}} {
		s := lab.Table{Name: "public." + p.name, Columns: "a int4, b text, j json", Kind: p.src, After: []string{"alter table public." + p.name + " replica identity full"}}
		d := lab.Table{Name: s.Name, Columns: s.Columns, Kind: p.dst, After: s.After}
		if p.src == router.Hash {
			s.Key = []string{"a"}
		}
		if p.dst == router.Hash {
			d.Key = []string{"a"}
		}
		move := p.src != router.Hash
		add(s, d, func(ctx context.Context, r *rand.Rand, tx *lab.Tx, name string) error {
			num := func() any {
				if r.IntN(6) == 0 {
					return nil
				}
				return r.IntN(12)
			}
			j := func() any {
				if r.IntN(3) == 0 {
					return nil
				}
				return fmt.Sprintf(`{"x":  %d}`, r.IntN(3))
			}
			switch r.IntN(5) {
			case 0, 1, 2:
				return tx.Insert(ctx, name, lab.Row{num(), word(r), j()}, lab.Row{num(), nil, j()})
			case 3:
				set := lab.Values{"b": word(r)}
				if move && r.IntN(2) == 0 {
					set["a"] = num()
				}
				_, err := tx.Update(ctx, name, set, lab.Values{"a": num()})
				return err
			}
			_, err := tx.Delete(ctx, name, lab.Values{"a": num()})
			return err
		})
	}

	// Keys whose text is not their value.
	s, d = same(lab.Table{Name: "public.num", Columns: "id numeric, at timestamptz, v int4, primary key (id, at)", Key: []string{"id", "at"}})
	add(s, d, func(ctx context.Context, r *rand.Rand, tx *lab.Tx, name string) error {
		at := func() string {
			return []string{"2024-01-01 00:00:00+00", "2024-07-01 12:00:00.5+02", "infinity", "0044-03-15 10:00:00+00 BC"}[r.IntN(4)]
		}
		id := func() string { return fmt.Sprintf("%d.%0*d", r.IntN(40)-20, 1+r.IntN(3), 0) }
		switch r.IntN(3) {
		case 0:
			return tx.Insert(ctx, name, lab.Row{id(), at(), 1})
		case 1:
			_, err := tx.Update(ctx, name, lab.Values{"v": r.IntN(100)}, lab.Values{"id": id(), "at": at()})
			return err
		}
		_, err := tx.Delete(ctx, name, lab.Values{"id": id(), "at": at()})
		return err
	})

	// Big values out of line, left alone by most updates; the target distributes
	// by another column, so that rows move with an unchanged value.
	toast := func(name, after string) {
		ext := []string{"alter table " + name + " alter big set storage external", "alter table " + name + " alter big2 set storage external"}
		if after != "" {
			ext = append(ext, "alter table "+name+" "+after)
		}
		add(lab.Table{Name: name, Columns: "id int8 primary key, grp int4 not null, v int4, big text, big2 text", Key: []string{"id"}, After: ext},
			lab.Table{Name: name, Columns: "id int8 not null, grp int4 not null, v int4, big text, big2 text, primary key (id, grp)", Key: []string{"grp"}, After: ext[:2]},
			func(ctx context.Context, r *rand.Rand, tx *lab.Tx, name string) error {
				id := func() int64 { return key.old(r) % 150 }
				switch r.IntN(8) {
				case 0, 1, 2:
					return tx.Insert(ctx, name, lab.Row{key.fresh() % 150, r.IntN(9), 0, bulk(r, 8200+r.IntN(4000)), bulk(r, 3000)})
				case 3:
					_, err := tx.Update(ctx, name, lab.Values{"v": r.IntN(9)}, lab.Values{"id": id()})
					return err
				case 4:
					_, err := tx.Update(ctx, name, lab.Values{"grp": r.IntN(9)}, lab.Values{"id": id()})
					return err
				case 5:
					_, err := tx.Update(ctx, name, lab.Values{"big2": bulk(r, 2500)}, lab.Values{"id": id()})
					return err
				case 6:
					n := id()
					if _, err := tx.Update(ctx, name, lab.Values{"big": bulk(r, 9000)}, lab.Values{"id": n}); err != nil {
						return err
					}
					_, err := tx.Update(ctx, name, lab.Values{"grp": r.IntN(9), "big2": nil}, lab.Values{"id": n})
					return err
				}
				_, err := tx.Delete(ctx, name, lab.Values{"id": id()})
				return err
			})
	}
	toast("public.toast_key", "")
	toast("public.toast_full", "replica identity full")

	// A second unique constraint whose values are shifted and swapped.
	s = lab.Table{Name: "public.uniq", Columns: "grp int4, id int4, u int4, primary key (grp, id), unique (grp, u) deferrable initially immediate", Key: []string{"grp"}}
	d = s
	d.Columns = "grp int4, id int4, u int4, primary key (grp, id), unique (grp, u)"
	add(s, d, func(ctx context.Context, r *rand.Rand, tx *lab.Tx, name string) error {
		grp := r.IntN(6)
		on := func(sql string, args ...any) error {
			_, err := tx.ExecOn(ctx, name, lab.Values{"grp": grp}, sql, args...)
			return err
		}
		switch r.IntN(6) {
		case 0, 1:
			return tx.Insert(ctx, name, lab.Row{grp, r.IntN(12), r.IntN(40)})
		case 2:
			return on("update public.uniq set u = u + 1 where grp = $1::int", grp)
		case 3:
			a, b := r.IntN(40), r.IntN(40)
			return on("update public.uniq set u = case when u = $2::int then $3::int else $2::int end where grp = $1::int and u in ($2::int, $3::int)", grp, a, b)
		case 4:
			// Two rows swap their identities, by way of a third value.
			a, b := r.IntN(12), r.IntN(12)
			for _, c := range [][2]int{{a, -1}, {b, a}, {-1, b}} {
				if err := on("update public.uniq set id = $3::int where grp = $1::int and id = $2::int", grp, c[0], c[1]); err != nil {
					return err
				}
			}
			return nil
		}
		return on("delete from public.uniq where grp = $1::int and u > $2::int", grp, 10+r.IntN(40))
	})

	// Tables truncated together, with rows before and after.
	s, d = same(lab.Table{Name: "public.tr_a", Columns: "id int8 primary key, v int4", Key: []string{"id"}})
	s2, d2 := same(lab.Table{Name: "public.tr_b", Columns: "id int8 primary key, v int4", Kind: router.Replicated})
	trunc := func(ctx context.Context, r *rand.Rand, tx *lab.Tx, name string) error {
		if err := tx.Insert(ctx, "public.tr_a", lab.Row{key.fresh(), 1}); err != nil {
			return err
		}
		if err := tx.Insert(ctx, "public.tr_b", lab.Row{key.fresh(), 1}); err != nil || r.IntN(6) > 0 {
			return err
		}
		for range 1 + r.IntN(2) {
			o := lab.TruncateOptions{Cascade: r.IntN(2) == 0, RestartIdentity: r.IntN(2) == 0}
			tables := [][]string{{"public.tr_a", "public.tr_b"}, {"public.tr_a"}, {"public.tr_b"}}[r.IntN(3)]
			if err := tx.Truncate(ctx, o, tables...); err != nil {
				return err
			}
			if err := tx.Insert(ctx, "public.tr_a", lab.Row{key.fresh(), 2}, lab.Row{key.fresh(), 2}); err != nil {
				return err
			}
			if err := tx.Insert(ctx, "public.tr_b", lab.Row{key.fresh(), 2}); err != nil {
				return err
			}
		}
		return nil
	}
	add(s, d, trunc)
	add(s2, d2, trunc)

	// Partitions, published by the leaves, another column order in one.
	parts := []string{
		"create table public.pt_0 (v int4 not null, id int8 not null, note text)", "alter table public.pt attach partition public.pt_0 for values from (minvalue) to (50)",
		"create table public.pt_1 partition of public.pt for values from (50) to (maxvalue)",
	}
	s, d = same(lab.Table{Name: "public.pt", Columns: "id int8, v int4, note text, primary key (id, v)", Suffix: "partition by range (v)", After: parts, Key: []string{"id"}})
	add(s, d, func(ctx context.Context, r *rand.Rand, tx *lab.Tx, name string) error {
		switch r.IntN(4) {
		case 0, 1:
			return tx.Insert(ctx, name, lab.Row{key.fresh(), r.IntN(100), word(r)})
		case 2:
			_, err := tx.Update(ctx, name, lab.Values{"v": r.IntN(100)}, lab.Values{"id": key.old(r)})
			return err
		}
		_, err := tx.Delete(ctx, name, lab.Values{"id": key.old(r)})
		return err
	})

	// Bank: the total stays.
	s, d = same(lab.Table{Name: bank, Columns: "id int8 primary key, balance int8 not null", Key: []string{"id"}})
	add(s, d, func(ctx context.Context, r *rand.Rand, tx *lab.Tx, name string) error {
		a, b, x := 1+r.IntN(accounts), 1+r.IntN(accounts), r.IntN(50)
		for _, c := range [][2]int{{a, -x}, {b, x}} {
			if _, err := tx.Update(ctx, name, lab.Values{"balance": lab.Expr(fmt.Sprintf("balance + %d", c[1]))}, lab.Values{"id": c[0]}); err != nil {
				return err
			}
		}
		return nil
	})
	return out
}

const (
	bank     = "public.bank"
	accounts = 60
	balance  = 1000
)

// step changes one to six tables in one transaction, now and then with a
// savepoint rolled back, a silent participant, or many rows.
func step(ctx context.Context, r *rand.Rand, tx *lab.Tx, all []shape, segments, rows int) error {
	inner := func(n int) error {
		for range n {
			s := all[r.IntN(len(all))]
			if err := s.do(ctx, r, tx, s.src.Name); err != nil {
				return err
			}
		}
		return nil
	}
	if err := inner(1 + r.IntN(4)); err != nil {
		return err
	}
	switch r.IntN(10) {
	case 0, 1:
		if err := tx.Savepoint(ctx, "a"); err != nil {
			return err
		}
		if err := inner(2); err != nil {
			return err
		}
		if r.IntN(2) == 0 {
			if err := tx.Savepoint(ctx, "b"); err != nil {
				return err
			}
			if err := inner(1); err != nil {
				return err
			}
		}
		var err error
		if r.IntN(3) > 0 {
			err = tx.RollbackTo(ctx, "a")
		} else {
			err = tx.Release(ctx, "a")
		}
		if err != nil {
			return err
		}
		return inner(1)
	case 2:
		return tx.Touch(ctx, dtx.Content(r.IntN(segments)))
	case 3:
		if r.IntN(4) == 0 {
			return big(ctx, r, tx, rows)
		}
	}
	return nil
}

// big writes enough to be streamed before the commit, half of it rolled back.
func big(ctx context.Context, r *rand.Rand, tx *lab.Tx, n int) error {
	batch := func(v int) []lab.Row {
		out := make([]lab.Row, n)
		for i := range out {
			out[i] = lab.Row{int64(1_000_000_000) + r.Int64N(1<<40), v, strings.Repeat(canary, 20)}
		}
		return out
	}
	if err := tx.Insert(ctx, "public.k_hh", batch(1)...); err != nil {
		return err
	}
	if err := tx.Savepoint(ctx, "big"); err != nil {
		return err
	}
	if err := tx.Insert(ctx, "public.k_hh", batch(2)...); err != nil {
		return err
	}
	if r.IntN(2) == 0 {
		if err := tx.RollbackTo(ctx, "big"); err != nil {
			return err
		}
	}
	if _, err := tx.ExecOn(ctx, "public.k_hh", nil, "delete from public.k_hh where id > 1000000000 and id % 3 = $1::int", r.IntN(3)); err != nil {
		return err
	}
	return tx.Insert(ctx, "public.k_hr", batch(3)[:n/2]...)
}
