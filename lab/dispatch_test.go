package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"cbrepl/dtx"
	"cbrepl/router"
)

// makeTables creates tables under names of the test's own.
func makeTables(t *testing.T, c interface {
	CreateTable(context.Context, Table) error
	DropTable(context.Context, string) error
}, tables ...Table,
) {
	t.Helper()
	for _, tab := range tables {
		if err := c.CreateTable(testCtx(t), tab); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := c.DropTable(ctx, tab.Name); err != nil {
				t.Error(err)
			}
		})
	}
}

// bank makes a table of accounts with 100 each.
func bank(t *testing.T, s *Source, name string, accounts int) {
	t.Helper()
	makeTables(t, s, Table{Name: name, Columns: "id int primary key, balance int not null", Key: []string{"id"}})
	rows := make([]Row, accounts)
	for i := range rows {
		rows[i] = Row{i, 100}
	}
	if err := s.Do(testCtx(t), func(tx *Tx) error { return tx.Insert(testCtx(t), name, rows...) }); err != nil {
		t.Fatal(err)
	}
}

// transfer moves an amount between two accounts, lower id first so that two
// transfers do not deadlock.
func transfer(ctx context.Context, tx *Tx, table string, from, to, amount int) error {
	type leg struct{ id, delta int }
	legs := []leg{{from, -amount}, {to, amount}}
	slices.SortFunc(legs, func(a, b leg) int { return a.id - b.id })
	for _, l := range legs {
		n, err := tx.Update(ctx, table, Values{"balance": Expr(fmt.Sprintf("balance + (%d)", l.delta))}, Values{"id": l.id})
		if err != nil {
			return err
		}
		if n != 1 {
			return fmt.Errorf("updated %d rows of account %d", n, l.id)
		}
	}
	return nil
}

func total(t *testing.T, c interface {
	Total(context.Context, string, string) (int64, error)
}, table string,
) int64 {
	t.Helper()
	n, err := c.Total(testCtx(t), table, "balance")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// prepared counts prepared transactions on all nodes.
func prepared(t *testing.T, s *Source) int {
	t.Helper()
	n := 0
	for _, node := range s.Nodes() {
		n += queryOne[int](t, node.DSN(), "select count(*)::int from pg_prepared_xacts")
	}
	return n
}

// TestConcurrentTransfers runs 50 clients whose transfers keep the total.
func TestConcurrentTransfers(t *testing.T) {
	s := shared.Source(t)
	ctx := testCtx(t)
	bank(t, s, "bank50", 40)
	s.LateMarkers(0, 5)
	defer s.LateMarkers(0, 0)
	var g errgroup.Group
	var done atomic.Int64
	for client := range 50 {
		rnd := rand.New(rand.NewPCG(1, uint64(client)))
		g.Go(func() error {
			for range 10 {
				a := rnd.IntN(40)
				b := (a + 1 + rnd.IntN(39)) % 40
				amount := rnd.IntN(20)
				if err := s.Do(ctx, func(tx *Tx) error { return transfer(ctx, tx, "bank50", a, b, amount) }); err != nil {
					return err
				}
				done.Add(1)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := s.ReleaseMarkers(ctx); err != nil {
		t.Fatal(err)
	}
	if got := total(t, s, "bank50"); got != 4000 || done.Load() != 500 {
		t.Errorf("total %d after %d transfers, want 4000 after 500", got, done.Load())
	}
	if n := prepared(t, s); n != 0 {
		t.Errorf("%d prepared transactions are left", n)
	}
	if wrong, err := s.VerifyPlacement(ctx, "bank50"); err != nil || wrong != 0 {
		t.Errorf("%d rows misplaced, %v", wrong, err)
	}
}

// waitFor waits for a condition.
func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := poll(ctx, cond); err != nil {
		t.Fatal("the condition did not come")
	}
}

// TestStatements checks placement and effect of every kind of statement under
// every policy.
func TestStatements(t *testing.T) {
	s := shared.Source(t)
	ctx := testCtx(t)
	makeTables(t, s,
		Table{Name: "s.h2", Columns: "a text, b int, v text, g int generated always as (b * 2) stored, primary key (a, b)", Key: []string{"b", "a"}},
		Table{Name: "s.u", Columns: "id uuid primary key, at timestamptz, v text", Key: []string{"id"}},
		Table{Name: "s.num", Columns: "n numeric primary key, v text", Key: []string{"n"}},
		Table{Name: "s.rep", Columns: "id int primary key, v text", Kind: router.Replicated},
		Table{Name: "s.rnd", Columns: "id int primary key, v text", Kind: router.Random},
		Table{Name: "s.two", Columns: "id int primary key, v text", Key: []string{"id"}, NumSegments: 2})
	do := func(f func(*Tx) error) {
		t.Helper()
		if err := s.Do(ctx, f); err != nil {
			t.Fatal(err)
		}
	}
	var h2, small, nums []Row
	for i := range 100 {
		h2 = append(h2, Row{fmt.Sprintf("k\t%d\\\n", i%7), i, nil})
		small = append(small, Row{i, strings.Repeat("x", i)})
		nums = append(nums, Row{fmt.Sprintf("%d.50", i), "n"}) // the server keeps the scale
	}
	do(func(tx *Tx) error {
		return errors.Join(tx.Insert(ctx, "s.h2", h2...), tx.Insert(ctx, "s.rep", small...), tx.Insert(ctx, "s.rnd", small[:50]...),
			tx.Insert(ctx, "s.two", small...), tx.Insert(ctx, "s.num", nums...),
			tx.Insert(ctx, "s.u", Row{"0F8FAD5B-D9CB-469F-A165-70867728950E", time.Unix(0, 0), "x"}, Row{"7c9e6679-7425-40de-944b-e07fc1f90ae7", "2024-01-01", nil}))
	})
	for _, r := range small[50:] { // one by one, so by INSERT
		do(func(tx *Tx) error { return tx.Insert(ctx, "s.rnd", r) })
	}
	check := func(table string, want int64) {
		t.Helper()
		n, err := s.Count(ctx, table)
		if err != nil || n != want {
			t.Errorf("%s has %d rows, want %d: %v", table, n, want, err)
		}
		if wrong, err := s.VerifyPlacement(ctx, table); err != nil || wrong != 0 {
			t.Errorf("%s: %d rows misplaced, %v", table, wrong, err)
		}
	}
	for table, n := range map[string]int64{"s.h2": 100, "s.u": 2, "s.num": 100, "s.rep": 100, "s.rnd": 100, "s.two": 100} {
		check(table, n)
	}
	if rows, _ := s.RowsOf(ctx, "s.rep"); len(rows) != 100 {
		t.Errorf("RowsOf a replicated table gives %d rows", len(rows))
	}
	var gone int64
	do(func(tx *Tx) error {
		n1, err1 := tx.Delete(ctx, "s.rnd", Values{"id": 3})
		n2, err2 := tx.Delete(ctx, "s.rep", Values{"id": 3})
		n3, err3 := tx.Delete(ctx, "s.h2", Values{"a": "k\t3\\\n", "b": 3, "v": nil})
		gone = n1 + n2 + n3
		if len(tx.Participants()) != 3 {
			t.Errorf("a replicated table's delete has participants %v", tx.Participants())
		}
		return errors.Join(err1, err2, err3)
	})
	if gone != 3 {
		t.Errorf("deleted %d rows, want 3", gone)
	}
	// Keys move over all segments.
	do(func(tx *Tx) error {
		for i := 10; i < 30; i++ {
			n, err := tx.Update(ctx, "s.two", Values{"id": i + 1000, "v": "moved"}, Values{"id": i})
			if err != nil || n != 1 {
				return fmt.Errorf("moved %d rows: %w", n, err)
			}
		}
		return nil
	})
	check("s.two", 100)
	check("s.rnd", 99)
	check("s.rep", 99)
	check("s.h2", 99)
	if rows, _ := s.RowsOf(ctx, "s.two"); !slices.Contains(rows, "(1010,moved)") || slices.ContainsFunc(rows, func(r string) bool { return strings.HasPrefix(r, "(10,") }) {
		t.Error("a moved row is not where it should be")
	}
	do(func(tx *Tx) error {
		return tx.Truncate(ctx, TruncateOptions{Cascade: true, RestartIdentity: true}, "s.two", "s.rep")
	})
	check("s.two", 0)
	check("s.rep", 0)
}

// TestPartitions checks the policies of partitions and that rows are found
// under the root.
func TestPartitions(t *testing.T) {
	s := shared.NewSource(t, Options{Segments: 2, ViaPartitionRoot: true})
	ctx := testCtx(t)
	makeTables(t, s, Table{
		Name: "part", Columns: "id int, day date, primary key (id, day)", Suffix: "partition by range (day)", Key: []string{"id"},
		After: []string{
			"create table part_a partition of part for values from ('2024-01-01') to ('2024-02-01')",
			`create table "part B" (day date not null, id int not null)`, // columns in another order
			`alter table part attach partition "part B" for values from ('2024-02-01') to ('2024-03-01')`,
		},
	})
	if err := s.Do(ctx, func(tx *Tx) error {
		return tx.Insert(ctx, "part", Row{1, "2024-01-05"}, Row{2, "2024-02-05"}, Row{3, "2024-02-06"})
	}); err != nil {
		t.Fatal(err)
	}
	tables, err := s.Tables(ctx)
	if err != nil || !slices.Equal(tables, []string{"public.part"}) {
		t.Errorf("tables are %v, %v", tables, err)
	}
	n := queryOne[int](t, s.DSN(), "select count(*)::int from cbrepl.distribution_policy where columns = '{id}' and table_name in ('part', 'part_a', 'part B')")
	if n != 3 {
		t.Errorf("%d policies, want 3", n)
	}
	rows, err := s.RowsOf(ctx, "part")
	if err != nil || !slices.Equal(rows, []string{"(1,2024-01-05)", "(2,2024-02-05)", "(3,2024-02-06)"}) {
		t.Errorf("rows are %v, %v", rows, err)
	}
	if wrong, err := s.VerifyPlacement(ctx, "part B"); err != nil || wrong != 0 {
		t.Errorf("%d rows misplaced, %v", wrong, err)
	}
}

// TestSavepoints checks that a savepoint covers nodes that join after it.
func TestSavepoints(t *testing.T) {
	s := shared.Source(t)
	ctx := testCtx(t)
	makeTables(t, s, Table{Name: "sp", Columns: "id int primary key", Key: []string{"id"}})
	rows := func(from, to int) (out []Row) {
		for i := from; i < to; i++ {
			out = append(out, Row{i})
		}
		return out
	}
	err := s.Do(ctx, func(tx *Tx) error {
		return errors.Join(
			tx.Insert(ctx, "sp", rows(0, 1)...),
			tx.Savepoint(ctx, "a"),
			tx.Insert(ctx, "sp", rows(100, 300)...),
			tx.Savepoint(ctx, "b"),
			tx.Insert(ctx, "sp", rows(300, 400)...),
			tx.Release(ctx, "b"),
			tx.RollbackTo(ctx, "a"),
			tx.Insert(ctx, "sp", rows(1000, 1004)...))
	})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.Count(ctx, "sp"); err != nil || n != 5 {
		t.Errorf("%d rows, want 5: %v", n, err)
	}
}

// stream reads the messages of a slot as the server decodes them.
func stream(t *testing.T, s *Source, c dtx.Content, slot string, twoPhase bool) (kinds string, prefixes []string) {
	t.Helper()
	ctx := testCtx(t)
	conn, err := pgx.Connect(ctx, s.Node(c).DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	proto := "2"
	if twoPhase {
		proto = "3"
	}
	rows, _ := conn.Query(ctx, "select data from pg_logical_slot_get_binary_changes($1, null, null, 'proto_version', $2, 'publication_names', $3, 'messages', 'true')",
		slot, proto, s.Publication())
	msgs, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range msgs {
		kinds += string(m[0])
		if m[0] == 'M' {
			p, _, _ := strings.Cut(string(m[10:]), "\x00")
			prefixes = append(prefixes, p)
		}
	}
	return kinds, prefixes
}

// TestStreams checks the stream contract: what one-phase, two-phase and silent
// participants leave in each node's stream.
func TestStreams(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts Options
	}{
		{"messages", Options{Segments: 2}},
		{"gids", Options{Segments: 2, GIDCarrier: true, PlainRecords: true, TimestampGIDs: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.opts.GIDCarrier {
				Need(t, shared.Server(t).DSN(), TwoPhaseStreams)
			}
			s := shared.NewSource(t, tc.opts)
			ctx := testCtx(t)
			bank(t, s, "bankcrash", 10)
			rows := accountsBySegment(t, s, "bankcrash", 10)
			if err := s.CreateSlots(ctx, "x", tc.opts.GIDCarrier); err != nil {
				t.Fatal(err)
			}
			s.HoldMarkers()
			err := s.Do(ctx, func(tx *Tx) error {
				return transfer(ctx, tx, "bankcrash", rows[0][0], rows[0][1], 1)
			})
			if err != nil || s.HeldMarkers() != 1 {
				t.Fatalf("%d markers held, %v", s.HeldMarkers(), err)
			}
			err = s.Do(ctx, func(tx *Tx) error {
				_, err := tx.Update(ctx, "bankcrash", Values{"balance": 100}, Values{"id": rows[1][0]})
				return errors.Join(err, tx.Touch(ctx, 0))
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.ReleaseMarkers(ctx); err != nil {
				t.Fatal(err)
			}
			k0, p0 := stream(t, s, 0, "x", tc.opts.GIDCarrier)
			k1, p1 := stream(t, s, 1, "x", tc.opts.GIDCarrier)
			kc, pc := stream(t, s, dtx.Coordinator, "x", tc.opts.GIDCarrier)
			got := fmt.Sprintf("%s %v %s %v %s %v", k0, p0, k1, p1, kc, pc)
			want := "BRUUMCBMC [cbrepl.part cbrepl.part] BRUMC [cbrepl.part] BMCBMC [cbrepl.commit cbrepl.commit]"
			if tc.opts.GIDCarrier {
				want = "BRUUMCbMPK [cbrepl.part lab.touch] bRUMPK [lab.touch] MM [cbrepl.commit cbrepl.commit]"
			}
			if got != want {
				t.Errorf("streams are\n%s, want\n%s", got, want)
			}
		})
	}
}

// TestCompare sees every kind of difference between two clusters.
func TestCompare(t *testing.T) {
	s, d := shared.Source(t), shared.Target(t)
	ctx := testCtx(t)
	table := Table{Name: "cmp", Columns: "id int primary key, v text", Key: []string{"id"}}
	rep := Table{Name: "cmprep", Columns: "id int primary key, v text", Kind: router.Replicated}
	makeTables(t, s, table, rep)
	rep.Columns = "extra int, v text, id int primary key"
	makeTables(t, d, table, rep)
	var rows []Row
	for i := range 50 {
		rows = append(rows, Row{i, "v"})
	}
	if err := s.Do(ctx, func(tx *Tx) error {
		return errors.Join(tx.Insert(ctx, "cmp", rows...), tx.Insert(ctx, "cmprep", rows...))
	}); err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		c, err := d.SegmentOf(ctx, "cmp", r[0])
		if err == nil {
			err = d.Exec(ctx, c, "insert into cmp values ($1, 'v')", r[0])
		}
		for _, c := range d.Contents()[1:] {
			err = errors.Join(err, d.Exec(ctx, c, "insert into cmprep values (1, 'v', $1)", r[0]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(what, table string, want TableReport) {
		t.Helper()
		r, err := Compare(ctx, s, d, table)
		if err != nil {
			t.Fatal(err)
		}
		got := r.Tables[0]
		if got.Missing != want.Missing || got.Extra != want.Extra || got.Misplaced != want.Misplaced || got.OK() != (want.Missing+want.Extra+want.Misplaced == 0) {
			t.Errorf("%s: %+v", what, got)
		}
	}
	check("same", "cmp", TableReport{})
	check("same replicated", "cmprep", TableReport{})
	home, err := d.SegmentOf(ctx, "cmp", 7)
	if err != nil {
		t.Fatal(err)
	}
	exec := func(c dtx.Content, sql string) {
		t.Helper()
		if err := d.Exec(ctx, c, sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(home, "update cmp set v = 'w' where id = 7")
	check("changed row", "cmp", TableReport{Missing: 1, Extra: 1})
	exec(home, "delete from cmp where id = 7")
	check("missing row", "cmp", TableReport{Missing: 1})
	exec(1-home, "insert into cmp values (7, 'v')")
	check("misplaced row", "cmp", TableReport{Misplaced: 1})
	exec(home, "insert into cmp values (7, 'v')")
	check("doubled row", "cmp", TableReport{Extra: 1, Misplaced: 1})
	exec(1, "update cmprep set v = 'w' where id = 7")
	check("second copy differs", "cmprep", TableReport{Misplaced: 1})
}
