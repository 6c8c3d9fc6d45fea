package cloudberry

import (
	"context"
	"log/slog"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/apply/ledger"
	"cbrepl/catalog"
	"cbrepl/logkey"
)

const opOpen = ledger.OpOpen

// Open connects, takes the subscription's lock, raises the epoch, checks the
// target and reads the state. It may be called again at any time; it always
// starts from nothing, so no temporary table, statement or setting of an earlier
// session is relied on.
func (t *Target) Open(ctx context.Context) (st apply.State, err error) {
	t.ledger.Closed()
	t.srv.Close()
	ctx, cancel := context.WithTimeout(ctx, t.opts.OpenTimeout)
	defer cancel()
	defer func() {
		if err != nil {
			err = t.bounded(err)
			t.srv.Close()
		}
	}()
	if err := t.connect(ctx); err != nil {
		return st, err
	}
	if err := ledger.CheckPrepared(ctx, t.srv.Session, opOpen, ledger.Objects); err != nil {
		return st, err
	}
	row, err := t.ledger.ReadRow(ctx, opOpen)
	if err != nil {
		return st, err
	}
	if err := t.ledger.Lock(ctx, row); err != nil {
		return st, err
	}
	if err := t.srv.SetLockTimeout(ctx, opOpen, t.opts.LockTimeout.Milliseconds()); err != nil {
		return st, err
	}
	if err := point("open_after_lock"); err != nil {
		return st, err
	}
	if row, err = t.ledger.RaiseEpoch(ctx, row); err != nil {
		return st, err
	}
	if err := t.ledger.CheckRival(row); err != nil {
		return st, err
	}
	if err := point("open_after_epoch"); err != nil {
		return st, err
	}
	if st, err = t.ledger.ReadState(ctx, row); err != nil {
		return st, err
	}
	t.stream.SetCopies(st.Copies, st.Positions)
	if err := t.readCatalogue(ctx); err != nil {
		return st, err
	}
	if err := pgside.PrepareCheck(ctx, t.srv.Conn); err != nil {
		return st, t.srv.Fail(opOpen, err)
	}
	t.opened(row)
	return st, nil
}

// opened records what the target is known to hold.
func (t *Target) opened(row ledger.Row) {
	t.ledger.Opened(row)
	t.backend = newBackend(t)
	t.count(func(s *Stats) { s.Epoch, s.Batch, s.Opens = t.ledger.Epoch(), t.ledger.Batch(), s.Opens+1 })
	t.log.Info("target is open", slog.String(logkey.Subscription, t.opts.Subscription), slog.Uint64(logkey.Epoch, t.ledger.Epoch()),
		slog.Uint64(logkey.Batch, t.ledger.Batch()), slog.Int(logkey.Segments, t.srv.facts.segments))
}

// Init records where a new subscription begins, once.
func (t *Target) Init(ctx context.Context, b apply.Beginning) error {
	err := t.ledger.Init(ctx, b)
	if err != nil {
		t.rollback(ctx)
	}
	return err
}

// RecordTables replaces the record of the source's tables whose rows are taken.
func (t *Target) RecordTables(ctx context.Context, tables []catalog.ReplicatedTable) error {
	return t.ledger.RecordTables(ctx, tables)
}
