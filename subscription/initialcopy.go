package subscription

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/faultinject"
	"cbrepl/logkey"
	"cbrepl/snapshot"
	"cbrepl/source"
	"cbrepl/subscription/status"
)

// InitOptions shape a subscription's first copy.
type InitOptions struct {
	// Workers is how many pieces are copied at once; 0 is 4.
	Workers int
	// Tables names the source tables, as schema.table; empty is all that are published.
	Tables []string
	// Truncate allows that target tables are emptied which hold other rows than those
	// of an unfinished copy.
	Truncate bool
	// DryRun only says what would be done.
	DryRun bool
	// Timeout bounds the wait for transactions that are open on the source, when slots
	// are made or a cut is taken; 0 is a minute.
	Timeout time.Duration
	// Begin is called before the first change, with what tells how far the copy has
	// come, at any time. It may be nil.
	Begin func(progress func() []snapshot.Progress)

	// PieceBlocks is the size of a piece of a table in pages; 0 is 8192, 64 MiB.
	PieceBlocks int64
}

// InitResult says what a first copy did, or would do.
type InitResult struct {
	// SlotsMade is set when the subscription's slots were missing and were made.
	SlotsMade bool                `json:"slots_made"`
	DryRun    bool                `json:"dry_run,omitempty"`
	Tables    []snapshot.Progress `json:"tables"`
}

// Init makes the first copy of the published tables, or of some of them, while the
// source's writers go on: slots are made where they are missing, their positions
// recorded, and the tables copied (package snapshot). Then Run brings the target
// in step. Everything that can be refused is refused before the first change. After a
// failure it may be called again: tables that are whole are kept.
func (s *Subscription) Init(ctx context.Context, o InitOptions) (InitResult, error) {
	if o.DryRun {
		return s.initialCopy(ctx, o)
	}
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	served, err := s.serve(serving)
	if err != nil {
		return InitResult{}, err
	}
	res, err := s.initialCopy(ctx, o)
	if err != nil {
		s.board.Fail(err, s.o.Now())
	}
	s.board.SetState(status.Stopped, s.o.Now())
	stopServing()
	if served != nil {
		<-served
	}
	return res, err
}

func (s *Subscription) initialCopy(ctx context.Context, o InitOptions) (res InitResult, err error) {
	res.DryRun = o.DryRun
	src, cl, err := discover(ctx, s.cfg, s.log)
	if err != nil {
		return res, err
	}
	if cl.Kind() == source.Greenplum6 {
		return res, &dtx.Error{
			Op: "copy tables", Class: dtx.ClassStop, Msg: "the source is a Greenplum 6, whose slots export no snapshot that tables can be read under",
			Hint: "Run `cbrepl slots create`, then copy the tables in another way while nothing writes to them",
		}
	}
	src.CreateTimeout, src.SpareSlots = o.Timeout, 1
	missing, err := source.MissingSlots(ctx, src)
	if err != nil {
		return res, err
	}
	noSlots := len(missing) == len(src.Nodes)
	checked, err := source.Preflight(ctx, src, noSlots)
	if err != nil {
		return res, err
	}
	facts := factsOf(checked, cl)
	tgt, err := newCopyTarget(s.cfg, facts.tables, s.o.Log)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, tgt.Close()) }()
	target, ok := tgt.(apply.CopyTarget)
	if !ok {
		return res, fmt.Errorf("a target of kind %s takes no copies", s.cfg.Target.Kind)
	}
	if err := refuseTarget(ctx, tgt); err != nil {
		return res, err
	}
	only, err := parseNames(o.Tables)
	if err != nil {
		return res, err
	}
	st, err := tgt.Open(ctx)
	if err != nil {
		return res, err
	}
	var first *source.Cut // taken with the first positions
	defer func() {
		if first != nil {
			first.Close()
		}
	}()
	c, err := snapshot.New(snapshot.Options{
		Workers: o.Workers, PieceBlocks: o.PieceBlocks, Log: s.log, Now: s.o.Now,
		TakeCut: func(ctx context.Context) (cut *source.Cut, err error) {
			if first != nil {
				cut, first = first, nil
				return cut, nil
			}
			return source.TakeCut(ctx, src)
		},
		Sequences: func(ctx context.Context) ([]source.Sequence, error) {
			return source.ReadSequences(ctx, src, facts.tables)
		},
	}, target, takenTables(facts.tables, st), st.Copies, only)
	if err != nil {
		return res, err
	}
	if err := c.Check(ctx, o.Truncate); err != nil {
		return res, err
	}
	defer func() { res.Tables = c.Progress() }()
	if o.DryRun {
		res.SlotsMade = noSlots && !st.Initialized
		return res, nil
	}
	s.board.AttachCopies(c.Progress)
	s.board.SetState(status.Copying, s.o.Now())
	if o.Begin != nil {
		o.Begin(c.Progress)
	}
	// First of all, so that nothing streams into tables that are not filled.
	if err := c.Mark(ctx); err != nil {
		return res, err
	}
	if noSlots && !st.Initialized {
		if facts, err = s.makeSlots(ctx, src); err != nil {
			return res, err
		}
		res.SlotsMade = true
	}
	if first, err = s.agreeForCopy(ctx, target, facts, st, src); err != nil {
		return res, err
	}
	return res, c.Run(ctx)
}

// makeSlots makes the subscription's slots and reads where they begin.
func (s *Subscription) makeSlots(ctx context.Context, src source.Config) (*sourceFacts, error) {
	if _, err := source.CreateSlots(ctx, src); err != nil {
		return nil, err
	}
	s.log.Info("slots are made")
	if err := faultinject.Point("subscription.init_after_slots"); err != nil {
		return nil, err
	}
	return s.env.source(ctx)
}

// agreeForCopy makes target and source agree where the streams begin, as a start
// does. No row is streamed, so the spool is only looked at. When it records the first
// positions it returns the cut that was taken with them.
func (s *Subscription) agreeForCopy(ctx context.Context, tgt apply.CopyTarget, f *sourceFacts, st apply.State, src source.Config) (cut *source.Cut, err error) {
	sp, err := s.env.spool(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sp.Close()) }()
	if st.Initialized {
		_, err := s.agree(ctx, tgt, f, st, sp.Held(), sp.LastApplied())
		return nil, err
	}
	if err := st.CheckRecord(sp.LastApplied(), theSpool); err != nil {
		return nil, err
	}
	if err := checkUnused(sp.Held()); err != nil {
		return nil, err
	}
	early, end, err := s.readEarly(ctx, f)
	if err != nil {
		return nil, err
	}
	if cut, err = source.TakeCut(ctx, src); err != nil {
		return nil, err
	}
	b := beginning(f.facts.Streams(), f.facts)
	b.Applied = appliedBefore(early, end, cut.Positions)
	if err := tgt.Init(ctx, b); err != nil {
		cut.Close()
		return nil, err
	}
	s.log.Info("positions of the slots recorded on the target; transactions that began before all slots were there are in the copies", slog.Int(logkey.Transactions, len(early)))
	return cut, nil
}

// takenTables leaves out tables that were published after the subscription began: its
// streams do not take them.
func takenTables(tables []catalog.PublishedTable, st apply.State) []catalog.PublishedTable {
	if !st.Initialized {
		return tables
	}
	recorded := map[catalog.Name]bool{}
	for i := range st.Tables {
		recorded[st.Tables[i].Name] = true
	}
	var out []catalog.PublishedTable
	for i := range tables {
		if recorded[tables[i].QualifiedName()] {
			out = append(out, tables[i])
		}
	}
	return out
}

// parseNames reads names of the form schema.table.
func parseNames(list []string) ([]catalog.Name, error) {
	var out []catalog.Name
	for _, s := range list {
		schema, table, ok := strings.Cut(s, ".")
		if !ok || schema == "" || table == "" {
			return nil, &dtx.Error{Op: "choose tables", Msg: fmt.Sprintf("%q is no name of a table", s), Hint: "Give it as schema.table", Class: dtx.ClassStop}
		}
		out = append(out, catalog.Name{Schema: schema, Table: table})
	}
	return out, nil
}
