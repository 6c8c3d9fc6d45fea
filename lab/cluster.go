package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"golang.org/x/sync/errgroup"

	"cbrepl/dtx"
)

// sessions bounds the open sessions on each node, and so the transactions of a
// Source that may be open at once. The coordinator gets twice as many: a
// transaction that writes there holds one session while another writes its
// commit record.
const sessions = 64

// nodes is a coordinator and its segments, with sessions on them and what is
// known of the tables.
type nodes struct {
	lab         *Lab
	coordinator *Server
	segments    []*Server
	publication string // empty on a target
	viaRoot     bool

	mu     sync.Mutex
	pools  map[dtx.Content]*pool
	tables map[string]*tableInfo
	rnd    *rand.Rand
}

// startNodes starts a coordinator and o.Segments segments named after the prefix.
func (l *Lab) startNodes(ctx context.Context, prefix string, o Options) (*nodes, error) {
	n := o.Segments
	c := l.newNodes(n, o)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	g.Go(func() (err error) {
		c.coordinator, err = l.StartServer(gctx, prefix+"coordinator", o.Settings)
		return err
	})
	for i := range n {
		g.Go(func() (err error) {
			c.segments[i], err = l.StartServer(gctx, fmt.Sprintf("%s%d", prefix, i), o.Settings)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return c, c.coordinator.Exec(ctx, policySchema)
}

func (l *Lab) newNodes(n int, o Options) *nodes {
	return &nodes{
		lab: l, segments: make([]*Server, n),
		pools:  map[dtx.Content]*pool{},
		tables: map[string]*tableInfo{},
		rnd:    rand.New(rand.NewPCG(o.Seed, uint64(n))),
	}
}

// policySchema is the layout of docs/architecture.md, "Policies on servers
// without gp_distribution_policy".
const policySchema = `
create schema if not exists cbrepl;
create table if not exists cbrepl.distribution_policy (
  schema_name text, table_name text,
  kind text not null check (kind in ('hash', 'random', 'replicated')),
  columns text[] not null default '{}', opclasses text[] not null default '{}',
  numsegments int not null check (numsegments > 0),
  primary key (schema_name, table_name))`

// Segments is the number of segments.
func (c *nodes) Segments() int { return len(c.segments) }

// Node returns the server of a content; it panics when there is none.
func (c *nodes) Node(content dtx.Content) *Server {
	if content == dtx.Coordinator {
		return c.coordinator
	}
	return c.segments[content]
}

// Nodes lists all servers, the coordinator first.
func (c *nodes) Nodes() []*Server {
	return append([]*Server{c.coordinator}, c.segments...)
}

// Contents lists all contents, the coordinator first.
func (c *nodes) Contents() []dtx.Content {
	return append([]dtx.Content{dtx.Coordinator}, c.segmentContents()...)
}

func (c *nodes) segmentContents() []dtx.Content {
	out := make([]dtx.Content, len(c.segments))
	for i := range out {
		out[i] = dtx.Content(i)
	}
	return out
}

// DSN is the connection string of the coordinator.
func (c *nodes) DSN() string { return c.coordinator.DSN() }

// SegmentDSNs lists the connection strings of the segments by content.
func (c *nodes) SegmentDSNs() []string {
	var out []string
	for _, s := range c.segments {
		out = append(out, s.DSN())
	}
	return out
}

// DSNs lists the connection strings of all servers, the coordinator's first.
func (c *nodes) DSNs() []string { return append([]string{c.DSN()}, c.SegmentDSNs()...) }

// LockTimeout bounds the wait for a row lock in a transaction of the
// dispatcher. It breaks deadlocks over several segments, which no single server
// sees; the transaction fails with a retryable error (see Retryable).
const LockTimeout = "3s"

// Exec runs a statement on one node outside any distributed transaction. A
// change that it makes to a published table of a source is a local change.
func (c *nodes) Exec(ctx context.Context, content dtx.Content, sql string, args ...any) error {
	return c.exec(ctx, content, sql, args...)
}

// ExecAll runs statements on every node.
func (c *nodes) ExecAll(ctx context.Context, sql string) error {
	return all(c.Nodes(), func(s *Server) error { return s.Exec(ctx, sql) })
}

// stop ends every server of the cluster for good and removes their data.
func (c *nodes) stop(ctx context.Context) error {
	c.closePools()
	return all(c.Nodes(), func(n *Server) error { return n.Stop(ctx) })
}

// TargetCluster is a target of M shards with its own coordinator, which keeps
// the distribution policies.
type TargetCluster struct {
	*nodes
}

// StartTarget starts a target cluster in a lab of its own; Stop ends both.
func StartTarget(ctx context.Context, o Options) (*TargetCluster, error) {
	return inNewLab(ctx, o, func(l *Lab) (*TargetCluster, error) { return l.StartTarget(ctx, o.Segments) })
}

// StartTarget starts a target cluster of m shards (0: 2) in the lab.
func (l *Lab) StartTarget(ctx context.Context, m int) (*TargetCluster, error) {
	o := l.opts
	o.Segments = m
	return l.startTarget(ctx, "target-", o)
}

func (l *Lab) startTarget(ctx context.Context, prefix string, o Options) (*TargetCluster, error) {
	if o.Segments == 0 {
		o.Segments = 2
	}
	c, err := l.startNodes(ctx, prefix, o)
	if err != nil {
		return nil, err
	}
	return &TargetCluster{nodes: c}, nil
}

// Stop ends every server of the cluster for good and removes their data.
func (t *TargetCluster) Stop(ctx context.Context) error { return t.stop(ctx) }

// inNewLab runs start in a new lab, which ends when start fails.
func inNewLab[T any](ctx context.Context, o Options, start func(*Lab) (T, error)) (T, error) {
	l, err := New(ctx, o)
	if err != nil {
		var none T
		return none, err
	}
	l.single = true
	v, err := start(l)
	if err != nil {
		return v, errors.Join(err, l.Close(context.WithoutCancel(ctx)))
	}
	return v, nil
}
