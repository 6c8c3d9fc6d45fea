package cloudberry

import (
	"context"
	"fmt"
	"log/slog"

	"cbrepl/apply/ledger"
	"cbrepl/logkey"
)

// storage is the clause that makes a heap table whatever the default storage is.
func (f *facts) storage(o *ledger.Object) string {
	heap := "WITH (appendonly = false, fillfactor = %d) DISTRIBUTED BY (%s)"
	if f.has("pg_class.relam") && f.has("pg_am.amtype") {
		heap = "USING heap WITH (fillfactor = %d) DISTRIBUTED BY (%s)"
	}
	return fmt.Sprintf(heap, o.FillFactor, o.Key)
}

// Prepare creates what a subscription needs on its target: schema cbrepl and the
// subscription's row in it. It may be repeated; what exists is kept. Several
// subscriptions may share a target. Nothing else creates any of it.
func Prepare(ctx context.Context, o Options) error {
	t, err := New(o)
	if err != nil {
		return err
	}
	defer t.srv.Close()
	if err := t.connect(ctx); err != nil {
		return err
	}
	err = t.srv.Transaction(ctx, ledger.OpPrepare, func() error {
		if err := ledger.CreateObjects(ctx, t.srv.Session, t.srv.facts.storage, ledger.Objects); err != nil {
			return err
		}
		_, err := t.ledger.CreateRow(ctx, 0)
		return err
	})
	if err != nil {
		return err
	}
	t.log.Info("target is prepared", slog.String(logkey.Subscription, t.opts.Subscription))
	return nil
}
