package cloudberry

import (
	"context"
	"strconv"

	"cbrepl/apply"
	"cbrepl/apply/internal/load"
	"cbrepl/apply/internal/pgside"
	"cbrepl/apply/ledger"
	"cbrepl/catalog"
	"cbrepl/dtx"
)

var _ apply.CopyTarget = (*Target)(nil)

// CopyPlan says where the rows of a source table go.
func (t *Target) CopyPlan(src catalog.Name) (apply.CopyPlan, error) {
	if !t.ledger.IsOpen() {
		return apply.CopyPlan{}, ledger.ErrNotOpen(opOpen)
	}
	return t.engine.CopyPlan(src)
}

// RecordCopies replaces the records of the given tables' first copies.
func (t *Target) RecordCopies(ctx context.Context, copies []apply.TableCopy) error {
	err := t.ledger.RecordCopies(ctx, copies)
	if err != nil {
		t.rollback(ctx)
	}
	return err
}

// NewLoader returns a loader, which has one session.
func (t *Target) NewLoader() apply.Loader {
	epoch := strconv.FormatUint(t.ledger.Epoch(), 10)
	connect := func(ctx context.Context, _ dtx.Content) (*pgside.Session, error) {
		s, err := newServer(t.opts.Coordinator)
		if err != nil {
			return nil, err
		}
		opts := t.opts
		opts.StatementTimeout = 0
		if err := s.connect(ctx, t.appName(), &opts); err != nil {
			s.Close()
			return nil, err
		}
		return s.Session, nil
	}
	fence := func(ctx context.Context, s *pgside.Session) error {
		rows, err := s.Query(ctx, `SELECT 1 FROM cbrepl.subscription WHERE name = $1::text AND epoch = $2::bigint`, t.opts.Subscription, epoch)
		if err == nil && len(rows) == 0 {
			err = t.ledger.Fenced("copy table", s)
		}
		return err
	}
	return load.New([]dtx.Content{apply.ServerPlaced}, connect, fence, point)
}
