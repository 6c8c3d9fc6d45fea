package source

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"cbrepl/check"
	"cbrepl/dtx"
	"cbrepl/logkey"
	"cbrepl/source/stream/repl"
)

// Recorded is where a stream stands and what that position belongs to.
type Recorded struct {
	Content  dtx.Content
	SystemID string
	Timeline int32
	Slot     string
	LSN      dtx.LSN
}

// Streams returns the slots' own positions, with what they belong to: where a
// new subscription begins.
func (f *Facts) Streams() []Recorded {
	var out []Recorded
	for _, n := range f.Nodes {
		if n.Slot == nil {
			continue
		}
		out = append(out, Recorded{n.Content, n.Server.SystemID, n.Server.Timeline, n.Slot.Name, n.Slot.Confirmed})
	}
	return out
}

// CheckResume compares recorded positions with the source as it is found.
func CheckResume(f *Facts, recorded []Recorded) error {
	var ps check.Findings
	byContent := map[dtx.Content]Recorded{}
	for _, r := range recorded {
		byContent[r.Content] = r
	}
	const copyAnew = "Positions of another slot or server say nothing here: a new initial copy is needed (`cbrepl subscription reset --help` lists the steps)"
	for _, n := range f.Nodes {
		r, ok := byContent[n.Content]
		delete(byContent, n.Content)
		add := func(remedy, format string, args ...any) {
			ps = append(ps, check.Finding{Content: dtx.AtContent(n.Content), Found: fmt.Sprintf(format, args...), Remedy: remedy})
		}
		switch {
		case !ok:
			add("If the source was expanded, a new initial copy is needed (`cbrepl subscription reset --help` lists the steps); else correct the list of segments",
				"the target has no position for it: the subscription began with %d segments, now %d are listed", max(len(recorded)-1, 0), f.Segments())
		case r.SystemID != n.Server.SystemID:
			add("Correct the connection string; if the server was replaced, a new initial copy is needed (`cbrepl subscription reset --help` lists the steps)",
				"the server has system identifier %s, but the recorded position belongs to %s", n.Server.SystemID, r.SystemID)
		case r.Timeline != n.Server.Timeline:
			add(fmt.Sprintf("Content %d needs resync: a mirror was promoted, or the server was restored, and changes may be missing from its log. %s", n.Content, resyncHint),
				"the server is on timeline %d, but the recorded position belongs to timeline %d", n.Server.Timeline, r.Timeline)
		case n.Slot == nil:
			add("Its changes since the slot was lost cannot be had any more: a new initial copy is needed (`cbrepl subscription reset --help` lists the steps)", "slot %q does not exist", r.Slot)
		case r.Slot != n.Slot.Name:
			add("Use the slot that the subscription began with; "+copyAnew,
				"the configured slot is %q, but the recorded position belongs to slot %q", n.Slot.Name, r.Slot)
		case n.Slot.Confirmed > r.LSN:
			add("The changes between the two are gone: a new initial copy is needed (`cbrepl subscription reset --help` lists the steps)",
				"slot %q is confirmed up to %s, beyond the recorded position %s: the slot was made anew or moved by somebody else, or the target was restored to an older state", r.Slot, n.Slot.Confirmed, r.LSN)
		case r.LSN > n.Server.WALEnd:
			add("The server was restored from an older backup: a new initial copy is needed (`cbrepl subscription reset --help` lists the steps)",
				"the server's log ends at %s, before the recorded position %s", n.Server.WALEnd, r.LSN)
		}
	}
	for c, r := range byContent {
		ps = append(ps, check.Finding{
			Content: dtx.AtContent(c),
			Found:   fmt.Sprintf("the target has position %s for it, but it is not listed", r.LSN),
			Remedy:  "List every segment that the subscription began with; if the source was shrunk, a new initial copy is needed (`cbrepl subscription reset --help` lists the steps)",
		})
	}
	return ps.Err("resume subscription")
}

// CreateSlots makes the slot on every node, or on none: what was made is
// dropped again when a node fails. It returns where each slot begins. A server
// makes a slot once the transactions that are running have ended; after
// CreateTimeout the error names those that are waited for.
func CreateSlots(ctx context.Context, cfg Config) ([]Recorded, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	out := make([]Recorded, len(cfg.Nodes))
	foreign := make([]bool, len(cfg.Nodes)) // the slot was there before
	faults := make([]error, len(cfg.Nodes))
	limited, cancel := context.WithTimeout(ctx, cfg.CreateTimeout)
	defer cancel()
	create := func(i int) { out[i], foreign[i], faults[i] = createSlot(limited, &cfg, cfg.Nodes[i]) }
	// The coordinator's first. A segment's slot begins once the transactions that run
	// there have ended, prepared ones included: so no part behind its beginning has
	// its commit record before the coordinator's.
	for i, n := range cfg.Nodes {
		if n.Content == dtx.Coordinator {
			create(i)
		}
	}
	var g errgroup.Group // all at once: each waits for its own transactions
	for i, n := range cfg.Nodes {
		if n.Content != dtx.Coordinator {
			g.Go(func() error { create(i); return nil })
		}
	}
	_ = g.Wait() // errors are in faults
	err := errors.Join(faults...)
	if err == nil {
		slices.SortFunc(out, func(a, b Recorded) int { return int(a.Content) - int(b.Content) })
		return out, nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	for i, n := range cfg.Nodes {
		if foreign[i] {
			continue
		}
		// Also where making it failed: the server may have finished after we gave up.
		if derr := dropSlot(undo, &cfg, n, true); derr != nil && faults[i] == nil {
			faults[i] = fmt.Errorf("the slot was made, another node failed, and dropping it again failed too (drop it by hand: a slot that nobody reads holds back WAL): %w", derr)
		}
	}
	var ps check.Findings
	for i, n := range cfg.Nodes {
		if faults[i] != nil {
			ps = append(ps, findingOf(n.Content, faults[i]))
		}
	}
	return nil, ps.Err("create slots on every node")
}

const (
	slotTries = 100
	slotPause = 100 * time.Millisecond
)

// metUnknownRecord reports whether the stock decoder of a Greenplum 6, which makes
// the slot, stopped at a record that the plugin would have passed over: a distributed
// commit, or a prefetch of relfilenodes, while it waited for transactions that were
// running.
func metUnknownRecord(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && (strings.HasPrefix(pe.Message, "unexpected RM_XACT_ID record type") ||
		strings.HasPrefix(pe.Message, "unexpected RM_XLOG_ID record type"))
}

func createSlot(ctx context.Context, cfg *Config, n Node) (r Recorded, foreign bool, err error) {
	c, err := repl.Connect(ctx, cfg.repl(n))
	if err != nil {
		return r, false, err
	}
	defer c.Close()
	s := c.Server()
	if cfg.Kind != Greenplum6 && s.Version < minVersion {
		return r, false, &dtx.Error{
			Op: "create slot", Content: dtx.AtContent(n.Content), Class: dtx.ClassStop,
			Msg: fmt.Sprintf("server version is %s, want 14 or newer", s.VersionText),
		}
	}
	if _, ok, err := c.Slot(ctx, cfg.Slot); err != nil || ok {
		if ok {
			err = &dtx.Error{
				Op: "create slot", Content: dtx.AtContent(n.Content), Class: dtx.ClassStop,
				Msg:  fmt.Sprintf("slot %q exists already", cfg.Slot),
				Hint: "Choose another name, or drop it if no subscription needs it",
			}
		}
		return r, ok, err
	}
	watch := watchBlockers(ctx, cfg, n, c.PID())
	slot, err := c.CreateSlot(ctx, cfg.twoPhase(n), false)
	for try := 1; cfg.Kind == Greenplum6 && metUnknownRecord(err) && try < slotTries && ctx.Err() == nil; try++ {
		cfg.Logger.Warn("the server met a record that it cannot decode before the slot's start, making the slot again",
			logkey.Content, int(n.Content), logkey.Slot, cfg.Slot, logkey.Error, err)
		select {
		case <-ctx.Done():
		case <-time.After(slotPause):
			slot, err = c.CreateSlot(ctx, cfg.twoPhase(n), false)
		}
	}
	blockers := watch()
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		e := &dtx.Error{
			Op: "create slot", Content: dtx.AtContent(n.Content), Class: dtx.ClassStop,
			Msg:  fmt.Sprintf("slot %q was not made within %s, and what was made is dropped", cfg.Slot, cfg.CreateTimeout),
			Hint: "A server makes a slot once all transactions that run there have ended: end those, or give more time with --timeout",
		}
		if blockers != "" {
			e.Msg += "; the server waits for " + blockers
		}
		return r, false, e
	}
	if err != nil {
		var pe *pgconn.PgError
		return r, errors.As(err, &pe) && pe.Code == "42710", err // duplicate: made meanwhile by somebody else
	}
	return Recorded{n.Content, s.SystemID, s.Timeline, cfg.Slot, slot.ConsistentPoint}, false, nil
}

// DropSlots drops the slot wherever it is. It goes on after a failure and
// reports all of them.
func DropSlots(ctx context.Context, cfg Config) error {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return err
	}
	faults := make([]error, len(cfg.Nodes))
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, n := range cfg.Nodes {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
			defer cancel()
			faults[i] = dropSlot(ctx, &cfg, n, false)
			return nil
		})
	}
	_ = g.Wait() // errors are in faults
	var ps check.Findings
	for i, n := range cfg.Nodes {
		if faults[i] != nil {
			ps = append(ps, findingOf(n.Content, faults[i]))
		}
	}
	return ps.Err("drop slots")
}

// dropSlot drops one node's slot; one that is not there is no fault. One in use
// is waited for until ctx ends, or refused.
func dropSlot(ctx context.Context, cfg *Config, n Node, wait bool) error {
	c, err := repl.Connect(ctx, cfg.repl(n))
	if err != nil {
		return err
	}
	defer c.Close()
	s, ok, err := c.Slot(ctx, cfg.Slot)
	if err != nil || !ok {
		return err
	}
	if s.Active && !wait {
		return &dtx.Error{
			Op: "drop slot", Content: dtx.AtContent(n.Content), Class: dtx.ClassStop,
			Msg:  fmt.Sprintf("slot %q is in use by %s", s.Name, s.Reader()),
			Hint: "Stop the daemon that reads it first",
		}
	}
	return c.DropSlot(ctx) // waits while it is in use
}
