package lab

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"cbrepl/dtx"
	"cbrepl/router"
)

// Names of the workload's tables. Accounts hold a constant total.
const (
	Accounts   = "public.accounts"
	Orders     = "public.orders"
	Events     = "public.events"
	Currencies = "public.currencies"
	Audit      = "public.audit"
)

// startBalance is what every account starts with.
const startBalance = 1000

// WorkloadTables are the workload's tables: an integer key, a text and integer
// key, a uuid key, a replicated and a random table.
func WorkloadTables() []Table {
	return []Table{
		{Name: Accounts, Columns: "id int8 primary key, balance int8 not null, note text", Key: []string{"id"}},
		{Name: Orders, Columns: "region text, no int8, amount numeric(12,2), detail text, primary key (region, no)", Key: []string{"region", "no"}},
		{Name: Events, Columns: "id uuid primary key, at timestamptz, kind int2, payload jsonb", Key: []string{"id"}},
		{Name: Currencies, Columns: "code text primary key, rate numeric, changes int4 not null default 0", Kind: router.Replicated},
		{Name: Audit, Columns: "id int8 primary key, worker int4, what text", Kind: router.Random},
	}
}

// CreateWorkloadTables makes the workload's tables on a cluster.
func (c *nodes) CreateWorkloadTables(ctx context.Context) error {
	for _, t := range WorkloadTables() {
		if err := c.CreateTable(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// Workload runs concurrent distributed transactions on a source: transfers that
// keep the accounts' total, and inserts, updates and deletes of the other
// tables, on one segment or several. Its methods may be called by several
// goroutines.
type Workload struct {
	Accounts int    // number of accounts
	Workers  int    // transactions at once
	Seed     uint64 // of all that is drawn
	// FirstID begins the keys of orders and audit rows; 0 means 1. A workload on
	// tables that another one has filled needs keys of its own.
	FirstID int64
	// TransfersOnly leaves out the other tables.
	TransfersOnly bool

	src   Database
	dtxs  atomic.Int64
	rows  atomic.Int64
	multi atomic.Int64
	next  atomic.Int64 // the last key of orders and audit rows
	mu    sync.Mutex
	keys  []orderKey
	ids   []string // events
}

type orderKey struct {
	region string
	no     int64
}

var (
	regions = []string{"north", "south", "east", "west", "Öst", "日本"}
	codes   = []string{"EUR", "USD", "JPY", "CHF", "SEK", "BRL"}
)

// Database is what a workload runs on: a source of the lab, or a cluster that
// somebody else runs.
type Database interface {
	// Transact runs f in a distributed transaction and commits it. It runs f again
	// when the transaction lost to another one.
	Transact(ctx context.Context, f func(Statements) error) error
	// Count counts the rows of a table.
	Count(ctx context.Context, table string) (int64, error)
}

// Statements change rows in one transaction, as the methods of Tx do.
type Statements interface {
	Insert(ctx context.Context, table string, rows ...Row) error
	Update(ctx context.Context, table string, set, key Values) (int64, error)
	Delete(ctx context.Context, table string, key Values) (int64, error)
	// Participants lists the segments that have taken part so far.
	Participants() []dtx.Content
}

// Transact is Do for a workload.
func (s *Source) Transact(ctx context.Context, f func(Statements) error) error {
	return s.Do(ctx, func(tx *Tx) error { return f(tx) })
}

// NewWorkload returns a workload of 500 accounts and 8 workers on a database with
// the workload's tables.
func NewWorkload(db Database, seed uint64) *Workload {
	return &Workload{src: db, Seed: seed, Accounts: 500, Workers: 8}
}

// Total is the sum of all balances at every commit.
func (w *Workload) Total() int64 { return int64(w.Accounts) * startBalance }

// Counts returns committed transactions, how many of them ran on several
// segments, and changed rows.
func (w *Workload) Counts() (dtxs, multi, rows int64) {
	return w.dtxs.Load(), w.multi.Load(), w.rows.Load()
}

// do runs one transaction and counts it.
func (w *Workload) do(ctx context.Context, f func(tx Statements) (rows int64, err error)) error {
	var n int64
	var parts int
	err := w.src.Transact(ctx, func(tx Statements) (err error) {
		n, err = f(tx)
		parts = len(tx.Participants())
		return err
	})
	if err != nil {
		return err
	}
	w.dtxs.Add(1)
	w.rows.Add(n)
	if parts > 1 {
		w.multi.Add(1)
	}
	return nil
}

// Fill inserts the first rows, in a few transactions. Accounts and currencies
// that are there stay.
func (w *Workload) Fill(ctx context.Context) error {
	w.next.Store(w.before())
	accounts, err := w.src.Count(ctx, Accounts)
	if err != nil {
		return err
	}
	currencies, err := w.src.Count(ctx, Currencies)
	if err != nil {
		return err
	}
	var rows []Row
	for i := int(accounts); i < w.Accounts; i++ {
		rows = append(rows, Row{i + 1, startBalance, fmt.Sprintf("account %d", i+1)})
	}
	if err := w.insert(ctx, Accounts, rows); err != nil {
		return err
	}
	rows = nil
	for _, c := range codes[min(int(currencies), len(codes)):] {
		rows = append(rows, Row{c, "1.0", 0})
	}
	if err := w.insert(ctx, Currencies, rows); err != nil {
		return err
	}
	rnd := w.random(99)
	for range 4 {
		if err := w.insertOrders(ctx, rnd, 250); err != nil {
			return err
		}
		if err := w.insertEvents(ctx, rnd, 250); err != nil {
			return err
		}
		if err := w.audit(ctx, rnd, 0, 100); err != nil {
			return err
		}
	}
	return nil
}

// before is the key before the workload's first.
func (w *Workload) before() int64 { return max(w.FirstID-1, 0) }

// random is a sequence of the workload's own.
func (w *Workload) random(stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(w.Seed^uint64(w.before()), stream))
}

// insert inserts rows in one transaction.
func (w *Workload) insert(ctx context.Context, table string, rows []Row) error {
	if len(rows) == 0 {
		return nil
	}
	return w.do(ctx, func(tx Statements) (int64, error) { return int64(len(rows)), tx.Insert(ctx, table, rows...) })
}

// Run keeps the workers busy until ctx ends; that is no error.
func (w *Workload) Run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	for i := range w.Workers {
		g.Go(func() error {
			rnd := w.random(uint64(i))
			for gctx.Err() == nil {
				// The transaction in hand is finished: a source's clients do not
				// vanish in the middle of a commit because the load ends.
				if err := w.one(context.WithoutCancel(gctx), rnd, i); err != nil && !Retryable(err) {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// one runs one transaction of a random kind.
func (w *Workload) one(ctx context.Context, rnd *rand.Rand, worker int) error {
	switch n := rnd.IntN(100); {
	case n < 55 || w.TransfersOnly:
		return w.transfer(ctx, rnd)
	case n < 70:
		return w.insertOrders(ctx, rnd, 1+rnd.IntN(5))
	case n < 80:
		return w.changeOrder(ctx, rnd)
	case n < 88:
		return w.insertEvents(ctx, rnd, 1+rnd.IntN(3))
	case n < 93:
		return w.changeEvent(ctx, rnd)
	case n < 94:
		return w.reprice(ctx, rnd)
	default:
		return w.audit(ctx, rnd, worker, 1+rnd.IntN(4))
	}
}

// transfer moves an amount between two accounts, in the order of their ids.
func (w *Workload) transfer(ctx context.Context, rnd *rand.Rand) error {
	a := 1 + rnd.IntN(w.Accounts)
	b := 1 + rnd.IntN(w.Accounts)
	if a == b {
		return nil
	}
	amount := 1 + rnd.IntN(50)
	if a > b {
		a, b, amount = b, a, -amount
	}
	return w.do(ctx, func(tx Statements) (int64, error) {
		set := func(id, delta int) error {
			_, err := tx.Update(ctx, Accounts, Values{"balance": Expr(fmt.Sprintf("balance + %d", delta))}, Values{"id": id})
			return err
		}
		if err := set(a, -amount); err != nil {
			return 0, err
		}
		return 2, set(b, amount)
	})
}

func (w *Workload) insertOrders(ctx context.Context, rnd *rand.Rand, n int) error {
	keys := make([]orderKey, n)
	rows := make([]Row, n)
	for i := range rows {
		keys[i] = orderKey{regions[rnd.IntN(len(regions))], w.next.Add(1)}
		rows[i] = Row{keys[i].region, keys[i].no, fmt.Sprintf("%d.%02d", rnd.IntN(10000), rnd.IntN(100)), detail(rnd)}
	}
	err := w.do(ctx, func(tx Statements) (int64, error) { return int64(n), tx.Insert(ctx, Orders, rows...) })
	if err == nil {
		w.mu.Lock()
		w.keys = append(w.keys, keys...)
		w.mu.Unlock()
	}
	return err
}

// detail is a text with what a copy may trip over, sometimes long enough to be
// stored out of line.
func detail(rnd *rand.Rand) any {
	switch rnd.IntN(10) {
	case 0:
		return nil
	case 1:
		return "tab\tnewline\nbackslash \\ \\. quote ' \" null \\N"
	case 2:
		b := make([]byte, 3000)
		for i := range b {
			b[i] = byte('a' + rnd.IntN(26)) // does not compress
		}
		return string(b)
	}
	return fmt.Sprintf("order %d", rnd.IntN(1000))
}

// changeOrder updates an order, deletes it, or moves it to another region and
// with that, often, to another segment.
func (w *Workload) changeOrder(ctx context.Context, rnd *rand.Rand) error {
	k, ok := take(w, &w.keys, rnd)
	if !ok {
		return nil
	}
	var keep *orderKey
	err := w.do(ctx, func(tx Statements) (int64, error) {
		keep = &k // the transaction may run again
		key := Values{"region": k.region, "no": k.no}
		switch rnd.IntN(4) {
		case 0:
			keep = nil
			return tx.Delete(ctx, Orders, key)
		case 1:
			moved := orderKey{regions[rnd.IntN(len(regions))], k.no}
			keep = &moved
			n, err := tx.Update(ctx, Orders, Values{"region": moved.region}, key)
			return 2 * n, err
		default:
			return tx.Update(ctx, Orders, Values{"amount": fmt.Sprintf("%d.5", rnd.IntN(500))}, key)
		}
	})
	if err == nil && keep != nil {
		w.mu.Lock()
		w.keys = append(w.keys, *keep)
		w.mu.Unlock()
	}
	return err
}

// take removes a random element: nobody else works on it meanwhile.
func take[T any](w *Workload, list *[]T, rnd *rand.Rand) (v T, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(*list)
	if n == 0 {
		return v, false
	}
	i := rnd.IntN(n)
	v = (*list)[i]
	(*list)[i] = (*list)[n-1]
	*list = (*list)[:n-1]
	return v, true
}

func (w *Workload) insertEvents(ctx context.Context, rnd *rand.Rand, n int) error {
	ids := make([]string, n)
	rows := make([]Row, n)
	for i := range rows {
		ids[i] = fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", rnd.Uint32(), rnd.IntN(1<<16), rnd.IntN(1<<12), rnd.IntN(1<<12), rnd.Int64N(1<<48))
		rows[i] = Row{ids[i], "2024-02-29 12:00:00.000001+00", rnd.IntN(100), `{"a": [1, 2.50, "x\ty"]}`}
	}
	err := w.do(ctx, func(tx Statements) (int64, error) { return int64(n), tx.Insert(ctx, Events, rows...) })
	if err == nil {
		w.mu.Lock()
		w.ids = append(w.ids, ids...)
		w.mu.Unlock()
	}
	return err
}

func (w *Workload) changeEvent(ctx context.Context, rnd *rand.Rand) error {
	id, ok := take(w, &w.ids, rnd)
	if !ok {
		return nil
	}
	gone := rnd.IntN(3) == 0
	err := w.do(ctx, func(tx Statements) (int64, error) {
		if gone {
			return tx.Delete(ctx, Events, Values{"id": id})
		}
		return tx.Update(ctx, Events, Values{"kind": rnd.IntN(100)}, Values{"id": id})
	})
	if err == nil && !gone {
		w.mu.Lock()
		w.ids = append(w.ids, id)
		w.mu.Unlock()
	}
	return err
}

// reprice changes a row of the replicated table, on every segment.
func (w *Workload) reprice(ctx context.Context, rnd *rand.Rand) error {
	return w.do(ctx, func(tx Statements) (int64, error) {
		return tx.Update(ctx, Currencies, Values{
			"rate": fmt.Sprintf("%d.%04d", rnd.IntN(3), rnd.IntN(10000)), "changes": Expr("changes + 1"),
		}, Values{"code": codes[rnd.IntN(len(codes))]})
	})
}

// audit inserts into the random table, and now and then removes an old row,
// which takes every segment since nobody knows where it is.
func (w *Workload) audit(ctx context.Context, rnd *rand.Rand, worker, n int) error {
	return w.do(ctx, func(tx Statements) (int64, error) {
		rows := make([]Row, n)
		for i := range rows {
			rows[i] = Row{w.next.Add(1), worker, fmt.Sprintf("step %d", rnd.IntN(100))}
		}
		if err := tx.Insert(ctx, Audit, rows...); err != nil {
			return 0, err
		}
		var gone int64
		if rnd.IntN(20) == 0 {
			var err error
			if gone, err = tx.Delete(ctx, Audit, Values{"id": w.before() + 1 + rnd.Int64N(w.next.Load()-w.before())}); err != nil {
				return 0, err
			}
		}
		return int64(n) + gone, nil
	})
}
