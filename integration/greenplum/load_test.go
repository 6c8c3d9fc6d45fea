package greenplum

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	accounts = 60
	balance  = 1000
)

// load is a random history: transactions of several workers, and rewrites of the
// tables beside them. The oracle is the source itself: what it holds at the end,
// and the bank's total at every commit.
type load struct {
	dsn     string
	seed    uint64
	workers int
	rewrite bool
	// transfers leaves out everything but the bank.
	transfers bool

	stop    context.CancelFunc
	done    sync.WaitGroup
	commits atomic.Int64
	fails   atomic.Int64
	rewrote atomic.Int64
	mu      sync.Mutex
	errs    map[string]int // messages of statements that failed
}

func (l *load) start() {
	ctx, cancel := context.WithCancel(context.Background())
	l.stop, l.errs = cancel, map[string]int{}
	for i := range l.workers {
		l.done.Go(func() {
			r := rand.New(rand.NewPCG(l.seed, uint64(i)))
			next := int64(i+1) * 1_000_000
			l.sessions(ctx, func(ctx context.Context, c *pgx.Conn) error {
				next += 100
				return l.commit(ctx, c, l.transaction(r, next))
			})
		})
	}
	if !l.rewrite {
		return
	}
	l.done.Go(func() {
		r := rand.New(rand.NewPCG(l.seed, 1000))
		l.sessions(ctx, func(ctx context.Context, c *pgx.Conn) error {
			if _, err := c.Exec(ctx, rewrites[r.IntN(len(rewrites))]); err != nil {
				return err
			}
			l.rewrote.Add(1)
			return nil
		})
	})
}

// finish stops the load and waits for what is under way.
func (l *load) finish() {
	l.stop()
	l.done.Wait()
}

// sessions calls do until ctx ends, in a session that is opened again when it was
// lost. Statements under way when ctx ends are finished.
func (l *load) sessions(ctx context.Context, do func(context.Context, *pgx.Conn) error) {
	var c *pgx.Conn
	background := context.WithoutCancel(ctx)
	defer func() {
		if c != nil {
			_ = c.Close(background)
		}
	}()
	for ctx.Err() == nil {
		if c == nil || c.IsClosed() {
			var err error
			if c, err = connect(ctx, l.dsn); err != nil {
				l.failed(err)
				select {
				case <-ctx.Done():
				case <-time.After(50 * time.Millisecond): // the source is down
				}
				continue
			}
			if _, err = c.Exec(ctx, "SET lock_timeout = '3s'; SET statement_timeout = '60s'"); err != nil {
				l.failed(err)
			}
		}
		one, cancel := context.WithTimeout(background, 2*time.Minute)
		if err := do(one, c); err != nil {
			l.failed(err)
		}
		cancel()
	}
}

func (l *load) failed(err error) {
	l.fails.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	text, _, _ := strings.Cut(err.Error(), " (seg")
	l.errs[text]++
}

// rewrites change no rows.
var rewrites = []string{
	"VACUUM FULL world.wide", "VACUUM FULL world.large", "VACUUM FULL world.parts", "VACUUM world.bank", "VACUUM FULL world.copies",
	"CLUSTER world.orders USING orders_pkey", "CLUSTER world.emptied USING emptied_pkey", "REINDEX TABLE world.bank", "REINDEX TABLE world.large",
	"ALTER TABLE world.moved SET DISTRIBUTED BY (k)", "ALTER TABLE world.moved SET DISTRIBUTED BY (id)",
	"ALTER TABLE world.moved SET WITH (REORGANIZE=true)", "CREATE INDEX extra ON world.moved (n); DROP INDEX world.extra", "VACUUM FULL pg_class", "VACUUM FULL pg_attribute",
}

// commit runs statements as one transaction.
func (l *load) commit(ctx context.Context, c *pgx.Conn, statements []string) error {
	if _, err := c.Exec(ctx, "BEGIN"); err != nil {
		return err
	}
	for _, sql := range statements {
		if _, err := c.Exec(ctx, sql); err != nil {
			if !c.IsClosed() {
				_, _ = c.Exec(ctx, "ROLLBACK")
			}
			return err
		}
	}
	if _, err := c.Exec(ctx, "COMMIT"); err != nil {
		return err
	}
	l.commits.Add(1)
	return nil
}

// transaction draws a transaction: changes of one to three tables, some in
// savepoints, some of those rolled back.
func (l *load) transaction(r *rand.Rand, id int64) []string {
	var kinds []int
	for range 1 + r.IntN(3) {
		kinds = append(kinds, r.IntN(len(changes)))
	}
	if l.transfers || r.IntN(3) == 0 {
		kinds = []int{0}
	}
	slices.Sort(kinds) // one order of locks
	var out []string
	for i, k := range kinds {
		sql := changes[k](r, id+int64(i)*30)
		switch {
		case k == 0 || r.IntN(3) > 0:
			out = append(out, sql...)
		case r.IntN(2) == 0:
			out = append(append(append(out, "SAVEPOINT s"), sql...), "RELEASE s")
		default:
			out = append(append(append(out, "SAVEPOINT s"), sql...), "ROLLBACK TO s")
		}
	}
	if r.IntN(12) == 0 {
		out = append(out, "ROLLBACK; BEGIN")
	}
	return out
}

// old draws an id that a worker may have inserted lately, by the one that is
// inserted now.
func old(r *rand.Rand, id int64) int64 {
	n := max(0, id%1_000_000/100-int64(r.IntN(40)))
	return int64(1+r.IntN(4))*1_000_000 + n*100 + int64(r.IntN(3))*30
}

var regions = []string{"north", "south", "Öst", "日本"}

// changes change one table each, in the order of shapes.
var changes = []func(r *rand.Rand, id int64) []string{
	func(r *rand.Rand, _ int64) []string {
		a, b, n := 1+r.IntN(accounts), 1+r.IntN(accounts), 1+r.IntN(50)
		return []string{
			fmt.Sprintf("UPDATE world.bank SET balance = balance - %d WHERE id = %d", n, a),
			fmt.Sprintf("UPDATE world.bank SET balance = balance + %d WHERE id = %d", n, b),
		}
	},
	func(r *rand.Rand, id int64) []string {
		switch r.IntN(4) {
		case 0:
			return []string{fmt.Sprintf("DELETE FROM world.wide WHERE id = %d", old(r, id))}
		case 1:
			var set []string
			for range 1 + r.IntN(5) {
				k := r.IntN(len(values))
				v := literal(r, k)
				if s := fmt.Sprintf("c%d = ", k); !slices.ContainsFunc(set, func(o string) bool { return strings.HasPrefix(o, s) }) {
					set = append(set, s+v)
				}
			}
			return []string{fmt.Sprintf("UPDATE world.wide SET %s WHERE id BETWEEN %d AND %[2]d + 200", strings.Join(set, ", "), old(r, id))}
		}
		var row []string
		for k := range values {
			row = append(row, literal(r, k))
		}
		return []string{fmt.Sprintf("INSERT INTO world.wide VALUES (%d, %s)", id, strings.Join(row, ", "))}
	},
	func(r *rand.Rand, id int64) []string {
		switch r.IntN(5) {
		case 0:
			return []string{fmt.Sprintf("DELETE FROM world.large WHERE id = %d", old(r, id))}
		case 1: // the long values are unchanged
			return []string{fmt.Sprintf("UPDATE world.large SET n = n + 1 WHERE id BETWEEN %d AND %[1]d + 300", old(r, id))}
		case 2:
			return []string{fmt.Sprintf("UPDATE world.large SET v = repeat(chr(%d), %d) WHERE id = %d", 65+r.IntN(20), r.IntN(60_000), old(r, id))}
		}
		return []string{fmt.Sprintf("INSERT INTO world.large SELECT %d + i, 0, repeat(chr(64 + i), %d), repeat('compressed', 3000) FROM generate_series(1, 3) i", id, r.IntN(60_000))}
	},
	func(r *rand.Rand, id int64) []string {
		from, to := regions[r.IntN(4)], regions[r.IntN(4)]
		switch r.IntN(4) {
		case 0:
			return []string{fmt.Sprintf("DELETE FROM world.orders WHERE region = '%s' AND no = %d", from, old(r, id))}
		case 1: // rows move between segments
			return []string{fmt.Sprintf("UPDATE world.orders SET region = '%s' WHERE region = '%s' AND no BETWEEN %d AND %[3]d + 300", to, from, old(r, id))}
		}
		return []string{fmt.Sprintf("INSERT INTO world.orders SELECT '%s', %d + i, i FROM generate_series(0, %d) i", from, id, r.IntN(10))}
	},
	func(r *rand.Rand, id int64) []string {
		switch r.IntN(8) {
		case 0:
			return []string{fmt.Sprintf("DELETE FROM world.parts WHERE id BETWEEN %d AND %[1]d + 100", old(r, id))}
		case 1, 2:
			return []string{fmt.Sprintf("UPDATE world.parts SET n = n + 1 WHERE id BETWEEN %d AND %[1]d + 300", old(r, id))}
		case 3:
			leaf := []string{"jan_2_prt_a_3_prt_low", "jan_2_prt_o_3_prt_high", "feb_2_prt_a_3_prt_high"}[r.IntN(3)]
			return []string{fmt.Sprintf("INSERT INTO world.parts SELECT %d + i, '2020-01-05', 'a', 1, i FROM generate_series(0, 5) i", id), "TRUNCATE world.parts_1_prt_" + leaf}
		}
		return []string{fmt.Sprintf("INSERT INTO world.parts SELECT %d + i, '2020-01-01'::date + (i * 7 %% 60), CASE i %% 3 WHEN 0 THEN 'a' ELSE 'b' END, i %% 10, i FROM generate_series(0, %d) i", id, r.IntN(20))}
	},
	func(r *rand.Rand, id int64) []string {
		switch r.IntN(4) {
		case 0:
			return []string{fmt.Sprintf("DELETE FROM world.copies WHERE id = %d", old(r, id))}
		case 1:
			return []string{fmt.Sprintf("UPDATE world.copies SET n = n + 1, v = 'u' WHERE id BETWEEN %d AND %[1]d + 300", old(r, id))}
		}
		return []string{fmt.Sprintf("INSERT INTO world.copies VALUES (%d, repeat('c', %d), 1)", id, r.IntN(3000))}
	},
	func(r *rand.Rand, id int64) []string { return keyless(r, id, "world.anywhere (id, n, v)") },
	func(r *rand.Rand, id int64) []string { return keyless(r, id, "world.moved (id, n, v, k)") },
	truncation, truncation,
}

func keyless(r *rand.Rand, id int64, table string) []string {
	name, _, _ := strings.Cut(table, " ")
	switch r.IntN(4) {
	case 0:
		return []string{fmt.Sprintf("DELETE FROM %s WHERE id BETWEEN %d AND %[2]d + 100", name, old(r, id))}
	case 1:
		return []string{fmt.Sprintf("UPDATE %s SET n = n + 1 WHERE id BETWEEN %d AND %[2]d + 200", name, old(r, id))}
	}
	k := ""
	if strings.Contains(table, "k)") {
		k = ", i % 5"
	}
	return []string{fmt.Sprintf("INSERT INTO %s SELECT %d + i, 0, CASE WHEN i %% 2 = 0 THEN 'v' END%s FROM generate_series(0, %d) i", table, id, k, r.IntN(10))}
}

// truncation empties one table or two, between rows of the same transaction.
func truncation(r *rand.Rand, id int64) []string {
	insert := func(table string, from int64) string {
		return fmt.Sprintf("INSERT INTO world.%s SELECT %d + i, i FROM generate_series(0, %d) i", table, from, r.IntN(8))
	}
	truncate := "TRUNCATE world.emptied"
	if r.IntN(2) == 0 {
		truncate += ", world.emptied2"
	}
	switch r.IntN(5) {
	case 0:
		return []string{insert("emptied", id), insert("emptied2", id), truncate, insert("emptied", id)}
	case 1:
		return []string{insert("emptied", id), "SAVEPOINT t", truncate, insert("emptied2", id), "ROLLBACK TO t", insert("emptied2", id+10)}
	case 2:
		return []string{truncate, insert("emptied", id), truncate, insert("emptied2", id)}
	}
	return []string{
		insert("emptied", id), insert("emptied2", id),
		fmt.Sprintf("UPDATE world.emptied SET n = n + 1 WHERE id BETWEEN %d AND %[1]d + 300", old(r, id)),
		fmt.Sprintf("DELETE FROM world.emptied2 WHERE id BETWEEN %d AND %[1]d + 100", old(r, id)),
	}
}

// literal draws a value of a column of wide.
func literal(r *rand.Rand, k int) string {
	if r.IntN(8) == 0 {
		return "NULL"
	}
	form := values[k][1]
	if values[k][0] == "timetz" {
		return fmt.Sprintf(form, 10+r.IntN(49))
	}
	if !strings.Contains(form, "%") {
		return form
	}
	return fmt.Sprintf(form, 1+r.IntN(9000))
}
