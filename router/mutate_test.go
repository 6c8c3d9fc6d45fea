package router_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"cbrepl/internal/soak"
	"cbrepl/router"
)

// TestServerRefusals damages the text of values. What the server refuses, the
// router must refuse, and what both read must hash alike: text that the router
// reads in another way than the server would be a wrong hash.
func TestServerRefusals(t *testing.T) {
	seed := soak.Seed(t, 1)
	conn := connect(t)
	custom := createTypes(t, conn)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if _, err := conn.Exec(ctx, "set timezone = 'UTC'; set datestyle = 'ISO, MDY'; set intervalstyle = 'postgres'"); err != nil {
		t.Fatal(err)
	}
	for i, p := range append(properties, custom.properties...) {
		if p.cast != "" || p.modified || p.trusted {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			typ := custom.types[p.name]
			if typ == nil {
				var err error
				if typ, err = router.ParseType(p.name); err != nil {
					t.Fatal(err)
				}
			}
			p.refuse(t, conn, i, newRouter(t, typ, ""), r)
		})
	}
}

// refuse compares what the router and the server make of damaged values.
func (p *property) refuse(t *testing.T, conn *pgx.Conn, number int, rt *router.Router, r *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	_, err := conn.Exec(ctx, fmt.Sprintf(`create function try%d(v text) returns bigint language plpgsql as $f$
declare x %s; begin x := v; return (%s) & 4294967295; exception when others then return -1; end $f$`, number, p.name, p.hash))
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	for len(values) < propertyValues()/40 {
		v := p.gen(r)
		if len(p.edges) > 0 && r.IntN(3) == 0 {
			v = pick(p.edges...)(r)
		}
		values = append(values, mutate(r, v, p.gen(r)))
	}
	rows, err := conn.Query(ctx, fmt.Sprintf("select try%d(v) from unnest($1::text[]) with ordinality as u(v, n) order by n", number), values)
	if err != nil {
		t.Fatal(err)
	}
	hashes, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	both, wrong := 0, 0
	for i, want := range hashes {
		h, err := rt.RowHash([][]byte{[]byte(values[i])})
		if err != nil {
			continue
		}
		both++
		if int64(h) != want {
			if wrong++; wrong <= 5 {
				t.Errorf("text %q: hash %d, the server says %d", values[i], h, want)
			}
		}
	}
	t.Logf("%d damaged values, %d still read, %d wrong", len(values), both, wrong)
}

const dirt = " \t\n00019ZTeE+-.:,;/\\\"'(){}[]xXbBnNuUlLPYMDSHPfF$_@é\x7f"

// mutate edits v in one to three places; other is another value of the type.
func mutate(r *rand.Rand, v, other string) string {
	b := []rune(v)
	extra := []rune(dirt)
	for range 1 + r.IntN(3) {
		i := 0
		if len(b) > 0 {
			i = r.IntN(len(b))
		}
		switch k := r.IntN(7); {
		case k == 0 && len(b) > 0: // drop
			b = append(b[:i:i], b[i+1:]...)
		case k == 1: // insert
			b = append(b[:i:i], append([]rune{extra[r.IntN(len(extra))]}, b[i:]...)...)
		case k == 2 && len(b) > 0: // replace
			b = append([]rune(nil), b...)
			b[i] = extra[r.IntN(len(extra))]
		case k == 3 && len(b) > 0: // double
			b = append(b[:i:i], append([]rune{b[i]}, b[i:]...)...)
		case k == 4: // cut
			b = b[:i]
		case k == 5 && len(b) > 1: // swap
			b = append([]rune(nil), b...)
			j := r.IntN(len(b))
			b[i], b[j] = b[j], b[i]
		case k == 6 && len(other) > 0: // splice
			o := []rune(other)
			j := r.IntN(len(o))
			b = append(b[:i:i], o[j:min(len(o), j+8)]...)
		}
	}
	return string(b)
}
