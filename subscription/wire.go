package subscription

import (
	"context"
	"log/slog"

	"cbrepl/coordinator"
	"cbrepl/dtx"
	"cbrepl/segment"
	"cbrepl/source"
	"cbrepl/source/carrier"
	"cbrepl/source/feed"
	"cbrepl/store"
	"cbrepl/subscription/config"
	"cbrepl/subscription/status"
	"cbrepl/target"
	"cbrepl/target/shards"
)

// sourceFacts is what the source says of itself before streaming.
type sourceFacts struct {
	tables []source.Table
	// identities and positions describe every node's server and slot, by content.
	identities []target.StreamIdentity
	positions  []dtx.Position
}

// newEnv makes the real pieces.
func newEnv(c *config.Config, log *slog.Logger) *env {
	return &env{
		source:      func(ctx context.Context) (*sourceFacts, error) { return readSource(ctx, c) },
		checkResume: func(ctx context.Context, f *sourceFacts, st target.State) error { return checkResume(ctx, c, f, st) },
		target: func(f *sourceFacts) (target.Target, error) {
			if c.Target.Kind != config.Shards {
				return nil, unsupportedKind(c.Target.Kind)
			}
			o, err := shardsOptions(c, log)
			if err != nil {
				return nil, err
			}
			o.Tables = f.tables
			return shards.New(o)
		},
		spool: func(ctx context.Context) (openSpool, error) {
			o := store.Options{
				Dir: c.Spool.Dir, Subscription: c.Subscription, MaxBytes: int64(c.Spool.MaxBytes), Logger: log,
			}
			if c.Spool.Ack == config.Spooled {
				o.Mode = store.Spooled
			}
			sp, err := store.Open(ctx, o)
			if err != nil {
				return nil, err
			}
			return spool{sp}, nil
		},
		streams: func(f *sourceFacts, sp openSpool) ([]ContentStream, error) { return newStreams(c, f, sp.(spool).Spool, log) },
	}
}

// newStreams makes a reader per node.
func newStreams(c *config.Config, f *sourceFacts, sp *store.Spool, log *slog.Logger) ([]ContentStream, error) {
	expect := map[dtx.Content]feed.Identity{}
	for _, id := range f.identities {
		expect[id.Content] = feed.Identity{SystemID: id.SystemID, Timeline: id.Timeline}
	}
	car := carrier.Messages{CommitPrefix: c.Source.CommitPrefix, PartPrefix: c.Source.PartPrefix}
	co, err := coordinator.New(coordinator.Options{
		DSN: c.Source.Coordinator.DSN.Reveal(), Slot: c.Source.Slot, Publication: c.Source.Publication, Carrier: car,
		Expect: expect[dtx.Coordinator], StatusInterval: c.Source.StatusInterval, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	out := []ContentStream{{dtx.Coordinator, coordinatorStream{co}}}
	local := segment.Stop
	if c.Source.LocalChanges == config.Ignore {
		local = segment.Ignore
	}
	for _, s := range c.Source.Segments {
		r, err := segment.New(segment.Options{
			Content: s.Content, DSN: s.DSN.Reveal(), Slot: c.Source.Slot, Publication: c.Source.Publication,
			Streaming: c.Source.Streaming, Carrier: car, Spool: sp, LocalChanges: local,
			Expect: expect[s.Content], StatusInterval: c.Source.StatusInterval, Logger: log,
		})
		if err != nil {
			return nil, err
		}
		out = append(out, ContentStream{s.Content, segmentStream{r, s.Content}})
	}
	return out, nil
}

type coordinatorStream struct{ *coordinator.Reader }

func (s coordinatorStream) Facts() status.Stream { return facts(dtx.Coordinator, s.Stats().Stats) }

type segmentStream struct {
	*segment.Reader
	content dtx.Content
}

func (s segmentStream) Facts() status.Stream { return facts(s.content, s.Stats().Stats) }

func facts(c dtx.Content, s feed.Stats) status.Stream {
	return status.Stream{
		Content: c, Connected: s.Connected, Since: s.Since, LastHeard: s.LastHeard, ReceivedLSN: status.LSN(s.ReceivedLSN),
		ServerLSN: status.LSN(s.ServerLSN), Reconnects: s.Reconnects, LastError: s.LastError,
	}
}

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
