package subscription

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"cbrepl/apply"
	"cbrepl/apply/cloudberry"
	"cbrepl/apply/ledger"
	"cbrepl/apply/shards"
	"cbrepl/catalog"
	"cbrepl/check"
	"cbrepl/coordinator"
	"cbrepl/dtx"
	"cbrepl/logkey"
	"cbrepl/segment"
	"cbrepl/source"
	"cbrepl/source/stream/assemble"
	"cbrepl/source/stream/carrier"
	"cbrepl/source/stream/feed"
	"cbrepl/source/stream/resolver"
	"cbrepl/store"
	"cbrepl/subscription/config"
	"cbrepl/subscription/status"
)

// sourceFacts is what the source says of itself before streaming.
type sourceFacts struct {
	tables []catalog.PublishedTable
	// published is what every node publishes of them, by content.
	published []source.NodePublication
	facts     *source.Facts
	cluster   *source.Cluster
}

// factsOf takes what the checks of a source have found.
func factsOf(f *source.Facts, cl *source.Cluster) *sourceFacts {
	return &sourceFacts{tables: f.Tables, published: f.Published(), facts: f, cluster: cl}
}

// copyOnly lists published tables that the stream does not carry.
func (f *sourceFacts) copyOnly() []string {
	if f.facts == nil {
		return nil
	}
	return f.facts.CopyOnly
}

// discover finds the source's nodes and translates the configuration for
// package source.
func discover(ctx context.Context, c *config.Config, log *slog.Logger) (source.Config, *source.Cluster, error) {
	cc := source.ClusterConfig{Coordinator: c.Source.Coordinator.DSN.Reveal(), Slot: c.Source.Slot, Logger: log}
	if c.Source.Kind != config.Auto {
		cc.Kind = source.Kind(c.Source.Kind)
	}
	for _, s := range c.Source.Segments {
		cc.Segments = append(cc.Segments, source.Node{Content: s.Content, DSN: s.DSN.Reveal()})
	}
	for _, a := range c.Source.Addresses {
		cc.Addresses = append(cc.Addresses, source.Address{From: a.From, To: a.To})
	}
	cl, err := source.Discover(ctx, cc)
	if err != nil {
		return source.Config{}, nil, err
	}
	if cl.Kind() == source.Greenplum6 && c.Spool.Ack == config.Spooled {
		return source.Config{}, nil, &dtx.Error{
			Op: "start subscription", Class: dtx.ClassStop, Msg: "spool.ack is spooled, and the source is a Greenplum 6",
			Hint: "Set spool.ack: applied",
		}
	}
	return sourceConfig(c, cl, log), cl, nil
}

func sourceConfig(c *config.Config, cl *source.Cluster, log *slog.Logger) source.Config {
	return source.Config{
		Nodes: cl.Nodes(), Slot: c.Source.Slot, Publication: c.Source.Publication, TwoPhase: c.Source.TwoPhase, Logger: log,
		Kind: cl.Kind(), Coordinator: c.Source.Coordinator.DSN.Reveal(), CopyOnly: c.Source.CopyOnly,
	}
}

// newEnv makes the real pieces. Targets name the subscription in their log
// themselves.
func newEnv(c *config.Config, plain *slog.Logger) *env {
	log := plain.With(logkey.Subscription, c.Subscription)
	return &env{
		source: func(ctx context.Context) (*sourceFacts, error) {
			o, cl, err := discover(ctx, c, log)
			if err != nil {
				return nil, err
			}
			f, err := source.Preflight(ctx, o, false)
			if err != nil {
				return nil, err
			}
			return factsOf(f, cl), nil
		},
		checkResume: checkResume,
		target:      func(f *sourceFacts) (apply.Target, error) { return newTarget(c, f.tables, plain) },
		checkSpool:  func() check.Findings { return store.Check(spoolOptions(c, log)) },
		spool:       func(ctx context.Context) (openSpool, error) { return newSpool(ctx, c, log) },
		streams: func(f *sourceFacts, st apply.State, sp openSpool) ([]ContentStream, error) {
			return newStreams(c, f, st, sp.(*spool), log)
		},
	}
}

// checkResume compares the recorded state with the source. A source that was
// confirmed to on arrival may be ahead of the target, not of the spool.
func checkResume(f *sourceFacts, st apply.State, held map[dtx.Content]dtx.LSN) error {
	at := map[dtx.Content]dtx.LSN{}
	for _, p := range st.Positions {
		at[p.Content] = max(p.LSN, held[p.Content])
	}
	var rec []source.Recorded
	for _, s := range st.Streams {
		rec = append(rec, source.Recorded{Content: s.Content, SystemID: s.SystemID, Timeline: s.Timeline, Slot: s.Slot, LSN: at[s.Content]})
	}
	return source.CheckResume(f.facts, rec)
}

// streamLayer wraps all streams of a source at once and returns as many, in the
// same order. What it emits for a content stays in that content's stream order;
// it may hold events back, and then everything after them in that stream.
// Goroutines of its own run inside its streams' Run.
type streamLayer func([]ContentStream) ([]ContentStream, error)

// newStreams makes what the loop reads: a reader per node, and around them the
// layers that the source and the configuration ask for, the innermost first.
// A layer that completes commit records goes before the one that makes events
// durable.
func newStreams(c *config.Config, f *sourceFacts, st apply.State, sp *spool, log *slog.Logger) ([]ContentStream, error) {
	streams, err := newReaders(c, f, st, sp, log)
	if err != nil {
		return nil, err
	}
	var layers []streamLayer
	if f.cluster.Kind() == source.Greenplum6 {
		o := resolver.Options{Positions: st.Positions}
		for _, s := range streams[1:] {
			o.Contents = append(o.Contents, s.Content)
		}
		for _, d := range st.Dedup {
			o.Applied = append(o.Applied, d.GXID)
		}
		layers = append(layers, participantsLayer(o, time.Now, func(ct dtx.Content) sampler { return f.cluster.FlushReader(ct) }))
	}
	if sp.recovered != nil {
		layers = append(layers, spooledLayer(sp, min(c.Source.StatusInterval, time.Second)))
	}
	for _, wrap := range layers {
		if streams, err = wrap(streams); err != nil {
			return nil, err
		}
	}
	return streams, nil
}

// newReaders makes a reader per node.
func newReaders(c *config.Config, f *sourceFacts, st apply.State, sp *spool, log *slog.Logger) ([]ContentStream, error) {
	cl := f.cluster
	recorded := st.Tables
	tables := map[dtx.Content]map[string]uint32{}
	forgotten := map[dtx.Content]map[uint32]bool{}
	for _, t := range recorded {
		if tables[t.Content] == nil {
			tables[t.Content], forgotten[t.Content] = map[string]uint32{}, map[uint32]bool{}
		}
		if t.Forgotten {
			forgotten[t.Content][t.OID] = true
		} else {
			tables[t.Content][t.Name.String()] = t.OID
		}
	}
	if cl.Kind() == source.Greenplum6 { // whose tables have one OID on all nodes, and are recorded for the coordinator
		for _, n := range cl.Nodes() {
			tables[n.Content], forgotten[n.Content] = tables[dtx.Coordinator], forgotten[dtx.Coordinator]
		}
	}
	expect := map[dtx.Content]feed.Identity{}
	for _, id := range st.Streams {
		expect[id.Content] = feed.Identity{SystemID: id.SystemID, Timeline: id.Timeline}
	}
	car, local := decoding(c, cl)
	plugin := cl.Kind().Plugin()
	co, err := newCoordinator(c, f, car, local, expect[dtx.Coordinator], log)
	if err != nil {
		return nil, err
	}
	out := []ContentStream{{dtx.Coordinator, coordinatorStream{co, cl, sourceConfig(c, cl, log), recorded}}}
	for _, n := range cl.Nodes()[1:] {
		r, err := segment.New(segment.Options{
			Content: n.Content, DSN: n.DSN, Resolve: cl.Resolver(n.Content), Slot: c.Source.Slot, Publication: c.Source.Publication,
			Plugin: plugin, PluginOptions: f.facts.StreamOptions, Streaming: c.Source.Streaming, Carrier: car, Spool: sp.Spool, LocalChanges: local, Tables: tables[n.Content], Forgotten: forgotten[n.Content],
			Expect: expect[n.Content], StatusInterval: c.Source.StatusInterval, Logger: log,
		})
		if err != nil {
			return nil, err
		}
		out = append(out, ContentStream{n.Content, segmentStream{r, n.Content, cl.Kind()}})
	}
	return out, nil
}

// decoding is how commit records and parts are found in the streams, and what is done
// with changes that belong to no part.
func decoding(c *config.Config, cl *source.Cluster) (carrier.Carrier, assemble.LocalChanges) {
	var car carrier.Carrier = carrier.Messages{CommitPrefix: c.Source.CommitPrefix, PartPrefix: c.Source.PartPrefix}
	if cl.Kind() == source.Greenplum6 {
		car = carrier.Greenplum6{}
	}
	if c.Source.LocalChanges == config.Ignore {
		return car, assemble.Ignore
	}
	return car, assemble.Stop
}

// newCoordinator makes the reader of the coordinator.
func newCoordinator(c *config.Config, f *sourceFacts, car carrier.Carrier, local assemble.LocalChanges, expect feed.Identity, log *slog.Logger) (*coordinator.Reader, error) {
	return coordinator.New(coordinator.Options{
		DSN: f.cluster.Nodes()[0].DSN, Slot: c.Source.Slot, Publication: c.Source.Publication, Carrier: car, LocalChanges: local,
		Plugin: f.cluster.Kind().Plugin(), PluginOptions: f.facts.StreamOptions,
		Expect: expect, StatusInterval: c.Source.StatusInterval, Logger: log,
	})
}

// coordinatorStream reads the coordinator and, beside that, watches the cluster
// that it coordinates, and what its nodes publish.
type coordinatorStream struct {
	*coordinator.Reader
	cluster  *source.Cluster
	source   source.Config
	recorded []catalog.ReplicatedTable // what the target records as replicated
}

// watchEvery is how often the cluster is looked at: a segment whose mirror was
// promoted may go on answering on its old connection.
const watchEvery = 10 * time.Second

func (s coordinatorStream) Run(ctx context.Context, start dtx.LSN, emit func(context.Context, dtx.Event) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.Reader.Run(ctx, start, emit) })
	g.Go(func() error { return s.cluster.Watch(ctx, watchEvery) })
	if len(s.recorded) > 0 {
		g.Go(func() error {
			return source.WatchPublished(ctx, s.source, s.recorded, watchEvery, s.cluster.DSN)
		})
	}
	return g.Wait()
}

func (s coordinatorStream) Facts() status.Stream {
	return facts(dtx.Coordinator, s.Stats().Stats, s.cluster.Kind())
}

type segmentStream struct {
	*segment.Reader
	content dtx.Content
	kind    source.Kind
}

func (s segmentStream) Facts() status.Stream { return facts(s.content, s.Stats().Stats, s.kind) }

// facts of a stream. A Greenplum 6 server does not say how far it has decoded:
// what it has sent stands for that.
func facts(c dtx.Content, s feed.Stats, kind source.Kind) status.Stream {
	if kind == source.Greenplum6 {
		s.ServerLSN = s.ReceivedLSN
	}
	return status.Stream{
		Content: c, Connected: s.Connected, Since: s.Since, LastHeard: s.LastHeard, ReceivedLSN: status.LSN(s.ReceivedLSN),
		ServerLSN: status.LSN(s.ServerLSN), Reconnects: s.Reconnects, LastError: s.LastError,
	}
}

// names translates the rename rules.
func names(c *config.Config) (apply.NameMap, error) {
	m := apply.NameMap{Schemas: map[string]string{}, Tables: map[catalog.Name]catalog.Name{}}
	for _, r := range c.Tables.Rename {
		n, err := r.Parse()
		if err != nil {
			return m, err
		}
		if n.FromTable == "" {
			m.Schemas[n.FromSchema] = n.ToSchema
		} else {
			m.Tables[catalog.Name{Schema: n.FromSchema, Table: n.FromTable}] = catalog.Name{Schema: n.ToSchema, Table: n.ToTable}
		}
	}
	return m, nil
}

// targetOptions translates the configuration for both kinds of target.
func targetOptions(c *config.Config, tables []catalog.PublishedTable, log *slog.Logger) (shards.Options, cloudberry.Options, error) {
	m, err := names(c)
	if err != nil {
		return shards.Options{}, cloudberry.Options{}, err
	}
	var engine apply.Options
	if c.Apply.OnConflict == config.LogAndGo {
		engine.OnConflict = apply.ConflictLog
	}
	dsn := c.Target.Coordinator.DSN.Reveal()
	common := ledger.Options{Subscription: c.Subscription, Tables: tables, Names: m, Engine: engine, OnlyRecorded: true, Logger: log}
	s := shards.Options{Options: common, Coordinator: dsn}
	for _, n := range c.Target.Shards {
		s.Shards = append(s.Shards, n.DSN.Reveal())
	}
	return s, cloudberry.Options{Options: common, Coordinator: dsn, FireTriggers: c.Apply.FireTriggers}, nil
}

var _, _ checker = (*shards.Target)(nil), (*cloudberry.Target)(nil)

// newTarget makes the target of the configured kind. It connects to nothing.
func newTarget(c *config.Config, tables []catalog.PublishedTable, log *slog.Logger) (apply.Target, error) {
	s, b, err := targetOptions(c, tables, log)
	if err != nil {
		return nil, err
	}
	return targetOf(c, s, b)
}

// newCopyTarget is newTarget of one whose tables are to be copied: they need not have
// been recorded.
func newCopyTarget(c *config.Config, tables []catalog.PublishedTable, log *slog.Logger) (apply.Target, error) {
	s, b, err := targetOptions(c, tables, log)
	if err != nil {
		return nil, err
	}
	s.OnlyRecorded, b.OnlyRecorded = false, false
	return targetOf(c, s, b)
}

func targetOf(c *config.Config, s shards.Options, b cloudberry.Options) (apply.Target, error) {
	if c.Target.Kind == config.Cloudberry {
		return cloudberry.New(b)
	}
	return shards.New(s)
}

// PrepareTarget creates what the subscription needs on its target.
func PrepareTarget(ctx context.Context, c *config.Config) error {
	s, b, err := targetOptions(c, nil, nil)
	if err != nil {
		return err
	}
	if c.Target.Kind == config.Cloudberry {
		return cloudberry.Prepare(ctx, b)
	}
	return shards.Prepare(ctx, s)
}

// spool adapts the store to the loop and its status.
type spool struct {
	*store.Spool
	recovered *recovered // in ack mode spooled

	// Status may be asked for at any time, the store's figures only while it is open.
	mu     sync.RWMutex
	closed bool
	last   status.Spool // when it was closed
}

// Close ends the spool; Usage goes on with the last figures.
func (s *spool) Close() error {
	last := s.Usage()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.last = true, last
	return s.Spool.Close()
}

func spoolOptions(c *config.Config, log *slog.Logger) store.Options {
	o := store.Options{Dir: c.Spool.Dir, Subscription: c.Subscription, MaxBytes: int64(c.Spool.MaxBytes), Logger: log}
	if c.Spool.Ack == config.Spooled {
		o.Mode = store.Spooled
	}
	return o
}

func newSpool(ctx context.Context, c *config.Config, log *slog.Logger) (*spool, error) {
	o := spoolOptions(c, log)
	st, err := store.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	s := &spool{Spool: st}
	if o.Mode == store.Spooled {
		if s.recovered, err = recoverSpool(ctx, st); err != nil {
			return nil, errors.Join(err, st.Close())
		}
	}
	return s, nil
}

// Held returns the positions up to which streams are in the spool for good.
func (s *spool) Held() map[dtx.Content]dtx.LSN {
	if s.recovered == nil {
		return nil
	}
	return s.recovered.positions
}

// LastApplied is what an earlier life noted.
func (s *spool) LastApplied() apply.Record {
	if s.recovered == nil {
		return apply.Record{}
	}
	return s.recovered.applied
}

// Applied notes a batch in a spool that is the only copy.
func (s *spool) Applied(r apply.Record) error {
	return s.SaveBatch(context.Background(), r.Token, r.Batch)
}

func (s *spool) Open(p dtx.Part) (apply.RowIter, error) { return s.Spool.Open(p) }

func (s *spool) Exempt(cs []dtx.Content) { s.SetExempt(cs) }

func (s *spool) Usage() status.Spool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return s.last
	}
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
