package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Load is a load of the sample tables: transfers between two accounts with a
// line in the journal, mixed with transactions on a single segment. The total of
// all balances stays the same.
type Load struct {
	Accounts int           // number of accounts, 100 each at the start; default 1000
	Clients  int           // clients at once; default 4
	For      time.Duration // how long; 0 means until the context ends
	Seed     uint64
}

// Run makes the accounts that are missing and runs the load. It returns the
// number of committed distributed transactions.
func (l Load) Run(ctx context.Context, s *Source) (int64, error) {
	if l.Accounts == 0 {
		l.Accounts = 1000
	}
	if l.Clients == 0 {
		l.Clients = 4
	}
	if l.Accounts < 2 || l.Clients < 1 || l.Clients > sessions {
		return 0, opErr("run load", fmt.Errorf("%d accounts and %d clients, want at least 2 and from 1 to %d", l.Accounts, l.Clients, sessions))
	}
	n, err := s.Count(ctx, "accounts")
	if err != nil {
		return 0, err
	}
	var rows []Row
	for i := int(n); i < l.Accounts; i++ {
		rows = append(rows, Row{i, 100})
	}
	if len(rows) > 0 {
		if err := s.Do(ctx, func(tx *Tx) error { return tx.Insert(ctx, "accounts", rows...) }); err != nil {
			return 0, err
		}
	}
	stop, cancel := context.WithCancel(ctx)
	if l.For > 0 {
		stop, cancel = context.WithTimeout(ctx, l.For)
	}
	defer cancel()
	var done, seq atomic.Int64
	seq.Store(time.Now().UnixMicro()) // journal keys of every run differ
	// A transaction under way is finished: only its start looks at the clock.
	ctx = context.WithoutCancel(ctx)
	var g errgroup.Group
	for c := range l.Clients {
		rnd := rand.New(rand.NewPCG(l.Seed, uint64(c)))
		g.Go(func() error {
			for stop.Err() == nil {
				a := rnd.IntN(l.Accounts)
				b := (a + 1 + rnd.IntN(l.Accounts-1)) % l.Accounts
				amount, n := rnd.IntN(50)-25, seq.Add(1)
				err := s.Do(ctx, func(tx *Tx) error { return transferSample(ctx, tx, min(a, b), max(a, b), amount, n) })
				if err != nil {
					cancel()
					return err
				}
				done.Add(1)
			}
			return nil
		})
	}
	err = g.Wait()
	return done.Load(), err
}

// transferSample moves an amount between two accounts, the lower id first so
// that two transfers do not deadlock, and journals it.
func transferSample(ctx context.Context, tx *Tx, a, b, amount int, seq int64) error {
	add := func(id, n int) error {
		_, err := tx.Update(ctx, "accounts", Values{"balance": Expr(fmt.Sprintf("balance + (%d)", n))}, Values{"id": id})
		return err
	}
	if err := add(a, -amount); err != nil {
		return err
	}
	if amount%2 == 0 {
		return errors.Join(add(b, amount), tx.Insert(ctx, "journal", Row{a, seq, amount, "transfer"}))
	}
	return add(a, amount) // there and back: one segment, so one-phase
}
