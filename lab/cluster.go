package lab

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"cbrepl/dtx"
)

// nodes is a coordinator and its segments.
type nodes struct {
	lab         *Lab
	coordinator *Server
	segments    []*Server
}

// startNodes starts a coordinator and n segments named after the prefix.
func (l *Lab) startNodes(ctx context.Context, prefix string, n int, settings map[string]string) (nodes, error) {
	c := nodes{lab: l, segments: make([]*Server, n)}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	g.Go(func() (err error) {
		c.coordinator, err = l.StartServer(gctx, prefix+"coordinator", settings)
		return err
	})
	for i := range n {
		g.Go(func() (err error) {
			c.segments[i], err = l.StartServer(gctx, fmt.Sprintf("%s%d", prefix, i), settings)
			return err
		})
	}
	return c, g.Wait()
}

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
	out := make([]dtx.Content, 0, len(c.segments)+1)
	out = append(out, dtx.Coordinator)
	for i := range c.segments {
		out = append(out, dtx.Content(i))
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

// Source is a source cluster: a coordinator and N segments, a distribution
// policy table on the coordinator and a publication on every node.
type Source struct {
	nodes
}

// TargetCluster is a target of M shards with its own coordinator.
type TargetCluster struct {
	nodes
}

// StartSource starts a source cluster in a lab of its own; Stop ends both.
func StartSource(ctx context.Context, o Options) (*Source, error) {
	l, err := New(ctx, o)
	if err != nil {
		return nil, err
	}
	s, err := l.StartSource(ctx, o.Segments)
	if err != nil {
		return nil, errors.Join(err, l.Close(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// StartTarget starts a target cluster in a lab of its own; Stop ends both.
func StartTarget(ctx context.Context, o Options) (*TargetCluster, error) {
	l, err := New(ctx, o)
	if err != nil {
		return nil, err
	}
	t, err := l.StartTarget(ctx, o.Segments)
	if err != nil {
		return nil, errors.Join(err, l.Close(context.WithoutCancel(ctx)))
	}
	return t, nil
}

// StartSource starts a source cluster of n segments (0: 3) in the lab.
func (l *Lab) StartSource(ctx context.Context, n int) (*Source, error) {
	if n == 0 {
		n = 3
	}
	c, err := l.startNodes(ctx, "source", n, nil)
	if err != nil {
		return nil, err
	}
	return &Source{nodes: c}, nil
}

// StartTarget starts a target cluster of m shards (0: 2) in the lab.
func (l *Lab) StartTarget(ctx context.Context, m int) (*TargetCluster, error) {
	if m == 0 {
		m = 2
	}
	c, err := l.startNodes(ctx, "target", m, nil)
	if err != nil {
		return nil, err
	}
	return &TargetCluster{nodes: c}, nil
}

// Stop ends every server of the cluster for good and removes their data.
func (s *Source) Stop(ctx context.Context) error {
	return all(s.Nodes(), func(n *Server) error { return n.Stop(ctx) })
}

// Stop ends every server of the cluster for good and removes their data.
func (t *TargetCluster) Stop(ctx context.Context) error {
	return all(t.Nodes(), func(n *Server) error { return n.Stop(ctx) })
}

func (c *nodes) closePools() {}
