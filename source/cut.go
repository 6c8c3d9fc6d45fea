package source

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"cbrepl/check"
	"cbrepl/dtx"
	"cbrepl/source/stream/repl"
)

// Cut is a snapshot of every segment, with the place in each segment's stream up to
// which the snapshot has everything: where a logical slot that was made with the
// snapshot begins. It takes no lock and holds nobody up. The snapshots were not
// taken at one moment: a distributed transaction may be in some of them and not in
// others. It lasts until Close, and as long as it does, the servers keep the rows
// and the log that it needs.
type Cut struct {
	// Positions are the segments', in order of content.
	Positions []dtx.Position

	nodes     map[dtx.Content]Node
	snapshots map[dtx.Content]string
	conns     []*repl.Conn // hold slots and snapshots
}

// copySlots ends the names of the slots that a cut is taken with.
const copySlots = "_copy_"

// TakeCut takes a cut of all segments. A server makes it once the transactions that
// are running there have ended; after CreateTimeout the error names those that are
// waited for. The subscription's own slots must have been made before, so that their
// streams have everything behind the cut.
func TakeCut(ctx context.Context, cfg Config) (*Cut, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	var random [4]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, err
	}
	suffix := copySlots + hex.EncodeToString(random[:])
	cfg.Slot = cfg.Slot[:min(len(cfg.Slot), 63-len(suffix))] + suffix

	var segments []Node
	for _, n := range cfg.Nodes {
		if n.Content != dtx.Coordinator {
			segments = append(segments, n)
		}
	}
	c := &Cut{
		nodes: map[dtx.Content]Node{}, snapshots: map[dtx.Content]string{},
		conns: make([]*repl.Conn, len(segments)), Positions: make([]dtx.Position, len(segments)),
	}
	faults := make([]error, len(segments))
	exported := make([]repl.Created, len(segments))
	limited, cancel := context.WithTimeout(ctx, cfg.CreateTimeout)
	defer cancel()
	var g errgroup.Group // all at once: each waits for its own transactions
	for i, n := range segments {
		g.Go(func() error {
			c.conns[i], exported[i], faults[i] = exportSnapshot(limited, &cfg, n)
			return nil
		})
	}
	_ = g.Wait() // errors are in faults
	var ps check.Findings
	for i, n := range segments {
		if faults[i] != nil {
			ps = append(ps, findingOf(n.Content, faults[i]))
			continue
		}
		c.nodes[n.Content], c.snapshots[n.Content] = n, exported[i].Snapshot
		c.Positions[i] = dtx.Position{Content: n.Content, LSN: exported[i].ConsistentPoint}
	}
	if err := errors.Join(ps.Err("take the cut of a first copy"), ctx.Err()); err != nil {
		c.Close()
		return nil, err
	}
	dtx.SortPositions(c.Positions)
	return c, nil
}

func exportSnapshot(ctx context.Context, cfg *Config, n Node) (*repl.Conn, repl.Created, error) {
	conn, err := repl.Connect(ctx, cfg.repl(n))
	if err != nil {
		return nil, repl.Created{}, err
	}
	watch := watchBlockers(ctx, cfg, n, conn.PID())
	s, err := conn.ExportSnapshot(ctx)
	blockers := watch()
	if err == nil {
		return conn, s, nil
	}
	conn.Close()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		e := &dtx.Error{
			Op: "export snapshot", Content: dtx.AtContent(n.Content), Class: dtx.ClassRetry,
			Msg:  fmt.Sprintf("it was not made within %s", cfg.CreateTimeout),
			Hint: "A server makes it once all transactions that run there have ended: end those, or give more time with --timeout",
		}
		if blockers != "" {
			e.Msg += "; the server waits for " + blockers
		}
		err = e
	}
	return nil, repl.Created{}, err
}

// Close gives the snapshots up.
func (c *Cut) Close() {
	for _, conn := range c.conns {
		if conn != nil {
			conn.Close()
		}
	}
	c.conns = nil
}

// LogEnd is the end of a node's log: everything that was written there before the
// call is before it, and on disk. It writes a record of its own, so that the node's
// stream comes to pass it.
func LogEnd(ctx context.Context, n Node) (dtx.LSN, error) {
	conn, err := connect(ctx, n)
	if err != nil {
		return 0, err
	}
	defer closeConn(conn)
	var text string
	if _, err = conn.Exec(ctx, "SELECT txid_current()"); err == nil {
		err = conn.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn()::text").Scan(&text)
	}
	if err != nil {
		return 0, repl.Fault("read the end of the log", n.Content, "", "", err)
	}
	return dtx.ParseLSN(text)
}
