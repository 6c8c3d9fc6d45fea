package subscription

import (
	"context"
	"log/slog"

	"cbrepl/dtx"
	"cbrepl/store"
	"cbrepl/subscription/config"
	"cbrepl/subscription/status"
	"cbrepl/target"
	"cbrepl/target/shards"
)

// shardsOptions translates the configuration for target/shards.
func shardsOptions(c *config.Config, log *slog.Logger) (shards.Options, error) {
	o := shards.Options{
		Subscription: c.Subscription, Coordinator: c.Target.Coordinator.DSN.Reveal(), Logger: log,
		Names: target.NameMap{Schemas: map[string]string{}, Tables: map[target.Name]target.Name{}},
	}
	for _, s := range c.Target.Shards {
		o.Shards = append(o.Shards, s.DSN.Reveal())
	}
	for _, r := range c.Tables.Rename {
		n, err := r.Parse()
		if err != nil {
			return o, err
		}
		if n.FromTable == "" {
			o.Names.Schemas[n.FromSchema] = n.ToSchema
		} else {
			o.Names.Tables[target.Name{Schema: n.FromSchema, Table: n.FromTable}] = target.Name{Schema: n.ToSchema, Table: n.ToTable}
		}
	}
	if c.Apply.OnConflict == config.LogAndGo {
		o.Engine.OnConflict = target.ConflictLog
	}
	return o, nil
}

// PrepareTarget creates what the subscription needs on its target.
func PrepareTarget(ctx context.Context, c *config.Config) error {
	if c.Target.Kind != config.Shards {
		return unsupportedKind(c.Target.Kind)
	}
	o, err := shardsOptions(c, nil)
	if err != nil {
		return err
	}
	return shards.Prepare(ctx, o)
}

func unsupportedKind(kind string) error {
	return &dtx.Error{
		Op: "open target", Class: dtx.ClassStop, Msg: "target.kind " + kind + " is not supported by this build",
		Hint: "Use kind shards",
	}
}

// spool adapts the store to the loop and its status.
type spool struct{ *store.Spool }

func (s spool) Open(p dtx.Part) (target.RowIter, error) { return s.Spool.Open(p) }

func (s spool) Exempt(cs []dtx.Content) { s.SetExempt(cs) }

func (s spool) Usage() status.Spool {
	u := s.Spool.Usage()
	out := status.Spool{
		Bytes: u.Bytes, MaxBytes: u.MaxBytes, DiskBytes: u.DiskBytes, Full: !u.FullSince.IsZero(),
		Contents: make(map[dtx.Content]status.SpoolShare, len(u.Contents)),
	}
	for _, c := range u.Contents {
		out.Contents[c.Content] = status.SpoolShare{Bytes: c.Bytes, Waiting: c.Waiting}
	}
	return out
}
