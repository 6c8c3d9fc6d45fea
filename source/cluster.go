package source

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"

	"cbrepl/dtx"
	"cbrepl/logkey"
	"cbrepl/source/stream/repl"
)

// ClusterConfig says how to find the nodes of a source.
type ClusterConfig struct {
	// Coordinator is the coordinator's connection string, with the replicated
	// database. It is never printed.
	Coordinator string
	// Segments lists the primary segments by hand. When it is empty they are found
	// in the coordinator's gp_segment_configuration, and followed when they move.
	Segments []Node
	// Addresses maps the addresses found there to those that are reached from here.
	Addresses []Address
	// Slot is the logical slot: a server without it cannot take over a stream.
	Slot string
	// Kind is the kind of source that it must be; "" takes what is found.
	Kind Kind
	// Timeout bounds one look at the cluster. Default 15 s.
	Timeout time.Duration
	// Logger is told when a segment has moved; nil discards.
	Logger *slog.Logger
}

// Cluster is a source's nodes. Its methods may be called by several goroutines.
type Cluster struct {
	cfg   ClusterConfig
	rules []rule
	nodes []Node
	found bool // the segments were found, not listed

	sem    *semaphore.Weighted // guards the fields below; waiting for it ends with the context
	cat    *catalogue
	readAt time.Time
	at     map[dtx.Content]hostPort // where each segment is read from
}

// fresh is how old an answer of the coordinator may be: the readers of all
// segments ask together when a network fails.
const fresh = time.Second

// Discover finds the source's nodes. A list made by hand is taken as it is; when
// the coordinator belongs to a Cloudberry or Greenplum cluster, it must name as
// many segments as the cluster has, and connections are opened in utility mode.
// Without a list the coordinator must belong to such a cluster.
func Discover(ctx context.Context, cfg ClusterConfig) (*Cluster, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = 15 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Cluster{
		cfg: cfg, found: len(cfg.Segments) == 0, sem: semaphore.NewWeighted(1),
		at: map[dtx.Content]hostPort{},
	}
	for _, a := range cfg.Addresses {
		r, err := a.parse()
		if err != nil {
			return nil, &dtx.Error{Op: "read address map", Class: dtx.ClassStop, Err: err}
		}
		c.rules = append(c.rules, r)
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	cat, connected, err := readFrom(ctx, cfg.Coordinator)
	switch {
	case err != nil && !connected && !c.found:
		// Preflight looks at every node and reports this with all else.
		cat = &catalogue{kind: cfg.Kind}
	case err != nil:
		return nil, err
	case !cat.cluster && c.found:
		return nil, &dtx.Error{
			Op: "find segments", Content: dtx.AtContent(dtx.Coordinator), Class: dtx.ClassStop,
			Msg:  "the server is not the coordinator of a Cloudberry or Greenplum cluster (it has no gp_segment_configuration), so it does not know the segments",
			Hint: "List every segment with its content id and dsn under source.segments, or correct source.coordinator.dsn",
		}
	}
	if err := checkKind(cfg.Kind, cat); err != nil {
		return nil, err
	}
	c.cat, c.readAt = cat, time.Now()
	// The coordinator's replication connection, too: Greenplum 6 lets no other in.
	coordinator := Node{Content: dtx.Coordinator, DSN: cfg.Coordinator}
	if coordinator.DSN, err = withOption(coordinator, cat.option); err != nil {
		return nil, err
	}
	c.nodes = []Node{coordinator}
	if !c.found {
		return c, c.list()
	}
	return c, c.find()
}

// list takes the nodes listed by hand.
func (c *Cluster) list() error {
	if c.cat.cluster {
		if err := checkListed(c.cfg.Segments, c.cat.primaries); err != nil {
			return err
		}
	}
	for _, n := range c.cfg.Segments {
		dsn, err := withOption(n, c.cat.option)
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, Node{Content: n.Content, DSN: dsn})
	}
	return nil
}

// find takes the nodes of the catalogue.
func (c *Cluster) find() error {
	taken := map[hostPort]dtx.Content{}
	for _, p := range c.cat.primaries {
		at := mapAddress(c.rules, p)
		if other, ok := taken[at]; ok {
			return &dtx.Error{
				Op: "find segments", Content: dtx.AtContent(p.content), Class: dtx.ClassStop,
				Msg:  fmt.Sprintf("by source.addresses it is at %s, and so is content %d", at, other),
				Hint: "Write rules of the form host:port for hosts with several segments",
			}
		}
		taken[at], c.at[p.content] = p.content, at
		dsn, err := segmentDSN(p.content, c.cfg.Coordinator, at, c.cat.option)
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, Node{Content: p.content, DSN: dsn})
	}
	return nil
}

// Nodes lists the coordinator and every primary segment, as they were found; in
// a cluster with connection strings that ask for utility mode.
func (c *Cluster) Nodes() []Node { return slices.Clone(c.nodes) }

// Kind is the kind of source that was found.
func (c *Cluster) Kind() Kind { return c.cat.kind }

// Segments is the number of segments.
func (c *Cluster) Segments() int { return len(c.nodes) - 1 }

// Resolver returns what tells the connection string of a segment at the time of
// the call, for its reader to ask before it connects anew; nil when the segments
// were listed by hand. Its errors are of class stop when the content needs a
// resync or the cluster has another number of segments.
func (c *Cluster) Resolver(content dtx.Content) func(context.Context) (string, error) {
	if !c.found {
		return nil
	}
	return func(ctx context.Context) (string, error) { return c.resolve(ctx, content) }
}

// DSN is the connection string of a node at the time of the call.
func (c *Cluster) DSN(ctx context.Context, n Node) (string, error) {
	if resolve := c.Resolver(n.Content); resolve != nil && n.Content != dtx.Coordinator {
		return resolve(ctx)
	}
	return n.DSN, nil
}

// Watch looks at the cluster at intervals until ctx ends, and returns an error
// when a segment cannot be followed any more although its old server may still
// answer, or when the cluster has another number of segments. Servers that do
// not answer are left to those who read from them.
func (c *Cluster) Watch(ctx context.Context, every time.Duration) error {
	if !c.found {
		<-ctx.Done()
		return ctx.Err()
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		for _, n := range c.nodes[1:] {
			if _, err := c.resolve(ctx, n.Content); err != nil && ctx.Err() == nil && dtx.ClassOf(err) == dtx.ClassStop {
				return err
			}
		}
	}
}

// resolve says where a segment is now.
func (c *Cluster) resolve(ctx context.Context, content dtx.Content) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	if err := c.sem.Acquire(ctx, 1); err != nil {
		return "", err
	}
	defer c.sem.Release(1)
	if err := c.read(ctx); err != nil {
		return "", &dtx.Error{
			Op: "find segment", Content: dtx.AtContent(content), Class: dtx.ClassOf(err), Err: err,
			Msg: "the coordinator, which knows where it is, cannot be asked",
		}
	}
	if err := c.sameSize(); err != nil {
		return "", err
	}
	i := slices.IndexFunc(c.cat.primaries, func(p primary) bool { return p.content == content })
	if i < 0 {
		return "", &dtx.Error{Op: "find segment", Content: dtx.AtContent(content), Class: dtx.ClassStop, Msg: "the cluster has no primary for it any more"}
	}
	at := mapAddress(c.rules, c.cat.primaries[i])
	dsn, err := segmentDSN(content, c.cfg.Coordinator, at, c.cat.option)
	if err != nil || at == c.at[content] {
		return dsn, err
	}
	if err := c.takeOver(ctx, Node{Content: content, DSN: dsn}, at); err != nil {
		return "", err
	}
	c.cfg.Logger.Info("a segment has moved", logkey.Content, int(content), logkey.From, c.at[content].String(), logkey.To, at.String())
	c.at[content] = at
	return dsn, nil
}

// read asks the coordinator, unless it was asked just now.
func (c *Cluster) read(ctx context.Context) error {
	if time.Since(c.readAt) < fresh {
		return nil
	}
	cat, _, err := readFrom(ctx, c.cfg.Coordinator)
	if err != nil {
		return err
	}
	if !cat.cluster {
		return &dtx.Error{
			Op: "find segments", Content: dtx.AtContent(dtx.Coordinator), Class: dtx.ClassStop,
			Msg: "the server has no gp_segment_configuration any more", Hint: "Correct source.coordinator.dsn",
		}
	}
	c.cat, c.readAt = cat, time.Now()
	return nil
}

// sameSize refuses a cluster that was expanded or shrunk.
func (c *Cluster) sameSize() error {
	was, is := c.Segments(), len(c.cat.primaries)
	if was == is {
		return nil
	}
	what := "expanded"
	if is < was {
		what = "shrunk"
	}
	return &dtx.Error{
		Op: "find segments", Content: dtx.AtContent(dtx.Coordinator), Class: dtx.ClassStop,
		Msg:  fmt.Sprintf("the cluster was %s: it has %d primary segments now, the subscription reads %d; it has stopped before a transaction of another segment could be lost", what, is, was),
		Hint: resyncHint,
	}
}

// takeOver asks the server that a segment is on now whether its stream can go on
// there: only a server with the slot has the changes that are still to come.
func (c *Cluster) takeOver(ctx context.Context, n Node, at hostPort) error {
	conn, err := connect(ctx, n)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	var recovery, slot bool
	err = conn.QueryRow(ctx, "SELECT pg_is_in_recovery(), EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)", c.cfg.Slot).Scan(&recovery, &slot)
	if err != nil {
		return repl.Fault("find segment", n.Content, c.cfg.Slot, "", err)
	}
	e := &dtx.Error{Op: "find segment", Content: dtx.AtContent(n.Content)}
	switch {
	case recovery:
		e.Msg = fmt.Sprintf("its primary is to be at %s, which is still a standby", at)
		return e
	case !slot:
		e.Class = dtx.ClassStop
		e.Msg = fmt.Sprintf("content %d needs resync: its primary has moved from %s to %s (a mirror was promoted, or the segment was rebuilt), and slot %q does not exist there, so its changes since the last one applied cannot be had any more",
			n.Content, c.at[n.Content], at, c.cfg.Slot)
		e.Hint = resyncHint
		return e
	}
	return nil
}

// resyncHint is what to do when a content needs a resync.
const resyncHint = "Stop the daemon, drop the slots of all nodes (cbrepl slots drop), create them anew (cbrepl slots create), make a new initial copy and run `cbrepl subscription reset`"
