package subscription

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/source"
	"cbrepl/subscription/config"
)

// CreateSlots makes the subscription's slot on every source node, after all
// checks that need no slot have passed, or on none, and records on the target, which
// is prepared, that the subscription begins there. Where the target has the record of
// earlier slots it is kept, for Reset to remove, and recorded is false. timeout bounds
// the wait for transactions that are open there; 0: a minute. log, which may be nil,
// is told whom it waits for.
func CreateSlots(ctx context.Context, c *config.Config, timeout time.Duration, log *slog.Logger) (recorded bool, err error) {
	o, _, err := discover(ctx, c, log)
	if err != nil {
		return false, err
	}
	o.CreateTimeout = timeout
	facts, err := source.Preflight(ctx, o, true)
	if err != nil {
		return false, err
	}
	err = withTarget(ctx, c, func(tgt apply.Target, st apply.State) error {
		made, err := source.CreateSlots(ctx, o)
		if err != nil || st.Initialized {
			return err
		}
		if err := tgt.Init(ctx, beginning(made, facts)); err != nil {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			return errors.Join(err, source.DropSlots(undo, o))
		}
		recorded = true
		return nil
	})
	return recorded, err
}

// DropSlots drops the subscription's slot wherever it is.
func DropSlots(ctx context.Context, c *config.Config) error {
	o, _, err := discover(ctx, c, nil)
	if err != nil {
		return err
	}
	return source.DropSlots(ctx, o)
}

// withTarget opens the target as a daemon does, which refuses while one runs, calls f
// and closes it.
func withTarget(ctx context.Context, c *config.Config, f func(apply.Target, apply.State) error) error {
	tgt, err := newTarget(c, nil, nil)
	if err != nil {
		return err
	}
	st, err := tgt.Open(ctx)
	if err == nil {
		err = f(tgt, st)
	}
	return errors.Join(err, tgt.Close())
}

// beginning is that of a subscription whose slots are where they are now.
func beginning(slots []source.Recorded, f *source.Facts) apply.Beginning {
	var b apply.Beginning
	for _, s := range slots {
		b.Streams = append(b.Streams, apply.StreamIdentity{Content: s.Content, SystemID: s.SystemID, Slot: s.Slot, Timeline: s.Timeline})
		b.Positions = append(b.Positions, dtx.Position{Content: s.Content, LSN: s.LSN})
	}
	b.Tables = publishedTables(f.Published())
	return b
}

func publishedTables(nodes []source.NodePublication) []catalog.ReplicatedTable {
	var out []catalog.ReplicatedTable
	for i := range nodes {
		out = append(out, nodes[i].Tables...)
	}
	return out
}
