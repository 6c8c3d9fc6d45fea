package lab

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/semaphore"

	"cbrepl/dtx"
)

// Prefixes of the logical messages that a source emits.
const (
	CommitPrefix = "cbrepl.commit"
	PartPrefix   = "cbrepl.part"
	// touchPrefix makes a participant that wrote nothing visible to logical
	// decoding when parts are named by the gid alone.
	touchPrefix = "lab.touch"
)

// Source is a source cluster: a coordinator and N segments, a publication on
// every node, policies and decisions on the coordinator, and the dispatcher of
// distributed transactions. Its methods may be called by several goroutines.
type Source struct {
	*nodes
	opts  Options
	gxids atomic.Uint64
	slots *semaphore.Weighted // open transactions

	commits  sync.Mutex // guards the fields below
	inFlight map[dtx.GXID]struct{}
	markers  markerQueue
	gates    map[dtx.Content]chan struct{} // stalled segments; closed on release
}

// StartSource starts a source cluster in a lab of its own; Stop ends both.
func StartSource(ctx context.Context, o Options) (*Source, error) {
	return inNewLab(ctx, o, func(l *Lab) (*Source, error) { return l.StartSource(ctx, o.Segments) })
}

// StartSource starts a source cluster of n segments (0: 3) in the lab.
func (l *Lab) StartSource(ctx context.Context, n int) (*Source, error) {
	o := l.opts
	o.Segments = n
	return l.startSource(ctx, "source-", o)
}

func (l *Lab) startSource(ctx context.Context, prefix string, o Options) (*Source, error) {
	if o.Segments == 0 {
		o.Segments = 3
	}
	c, err := l.startNodes(ctx, prefix, o)
	if err != nil {
		return nil, err
	}
	s := newSource(c, o)
	if err := c.coordinator.Exec(ctx, decisionSchema); err != nil {
		return nil, err
	}
	return s, c.ExecAll(ctx, fmt.Sprintf("create publication %s with (publish_via_partition_root = %t)",
		pgx.Identifier{c.publication}.Sanitize(), c.viaRoot))
}

func newSource(c *nodes, o Options) *Source {
	c.publication, c.viaRoot = o.Publication, o.ViaPartitionRoot
	s := &Source{
		nodes: c, opts: o, slots: semaphore.NewWeighted(sessions),
		inFlight: map[dtx.GXID]struct{}{}, gates: map[dtx.Content]chan struct{}{},
	}
	first := uint64(o.FirstGXID)
	if o.TimestampGIDs {
		first |= uint64(c.lab.started.Unix()) << 32
	}
	s.gxids.Store(first - 1)
	return s
}

// Stop ends every server of the cluster for good and removes their data.
func (s *Source) Stop(ctx context.Context) error { return s.stop(ctx) }

// Publication is the name of the publication on every node.
func (s *Source) Publication() string { return s.publication }

// CreateSlots makes a pgoutput slot of one name on every node. With twoPhase
// the slots decode prepared transactions.
func (s *Source) CreateSlots(ctx context.Context, name string, twoPhase bool) error {
	for _, c := range s.Contents() {
		if err := s.Exec(ctx, c, "select pg_create_logical_replication_slot($1, 'pgoutput', false, $2)", name, twoPhase); err != nil {
			return err
		}
	}
	return nil
}

// DropSlots drops the slots of one name wherever they are, ending their
// readers' sessions.
func (s *Source) DropSlots(ctx context.Context, name string) error {
	for _, c := range s.Contents() {
		for _, sql := range []string{
			"select pg_terminate_backend(active_pid, 5000) from pg_replication_slots where slot_name = $1 and active",
			"select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1",
		} {
			if err := s.Exec(ctx, c, sql, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// Stall holds every COMMIT PREPARED on one segment until release is called.
// Commits that reach it wait.
func (s *Source) Stall(content dtx.Content) (release func()) {
	gate := make(chan struct{})
	s.commits.Lock()
	s.gates[content] = gate
	s.commits.Unlock()
	return sync.OnceFunc(func() {
		s.commits.Lock()
		if s.gates[content] == gate {
			delete(s.gates, content)
		}
		s.commits.Unlock()
		close(gate)
	})
}

// passGate waits while the segment is stalled.
func (s *Source) passGate(ctx context.Context, content dtx.Content) error {
	s.commits.Lock()
	gate := s.gates[content]
	s.commits.Unlock()
	if gate == nil {
		return nil
	}
	select {
	case <-gate:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
