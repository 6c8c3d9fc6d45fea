// Package snapshot makes the first copy of tables while the source's writers go on
// writing. It owns what is copied in which order, the way of the rows from a source
// segment to their place on the target, and what is recorded of it; it never streams.
//
// # The cut
//
// The subscription's slots are made and recorded before, so that everything behind
// them is delivered. Then a cut is taken (source.TakeCut): a snapshot of every
// segment, with the place in its stream up to which the snapshot has everything. A
// table is read under these snapshots, and its copy is recorded on the target with
// its cut (apply.TableCopy). When the streams run, the rows of that table are left
// out up to there (apply/engine). No lock keeps writers away at any time.
//
// The snapshots of the segments are of different moments. That does no harm: what a
// segment committed is in its copy or in its stream, never in both. A row that an
// update moves to another segment (which a server does when columns of the
// distribution key change) can be in both copies or in neither; its old and new
// values are then two identities, or equal rows of a table without one, and the
// stream deletes the one and inserts the other. Only where the target has a key that
// the source does not distribute by, it can be met twice, and the copy is refused.
//
// A TRUNCATE, or a statement that writes a table anew, takes away the rows of older
// snapshots. So whoever reads a piece of a table locks it for that long (ACCESS SHARE,
// which no writer waits for) and looks whether its file is still the one that the
// snapshot knows. If not, the table is copied again under another cut.
//
// # Records
//
// What is copied together are the source tables that share a target table. Of each
// table the record is, in order: waiting, for all that are to be copied, before
// anything else is changed; copying, with the cut, before the target table is emptied
// and rows are written; copied, when all rows are committed. A subscription does not
// run while a record is not copied. Rows are committed piece by piece; after a crash
// only tables that are copied are relied on, and the others begin anew, with a new cut.
//
// # Fault points
//
//	snapshot.after_waiting    tables are recorded, nothing is copied
//	snapshot.after_cut        the cut is taken, not recorded
//	snapshot.after_copying    recorded with the cut, the table is not yet emptied
//	snapshot.after_empty      the target table is empty
//	snapshot.after_piece      a piece is committed
//	snapshot.before_copied    all rows are committed, which is not recorded
//	snapshot.after_copied     it is recorded
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/faultinject"
	"cbrepl/router"
	"cbrepl/source"
)

// Options shape a first copy.
type Options struct {
	// Workers is how many pieces are copied at once. 0 is 4.
	Workers int
	// PieceBlocks is the size of a piece in pages. 0 is 8192: 64 MiB.
	PieceBlocks int64
	// Tries is how often a table that is rewritten meanwhile is begun. 0 is 5.
	Tries int
	// TakeCut takes a cut, Sequences reads the sequences of tables.
	TakeCut   func(ctx context.Context) (*source.Cut, error)
	Sequences func(ctx context.Context) ([]source.Sequence, error)
	// Log is told what is worth a line; nil discards.
	Log *slog.Logger
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// EnsureDefaults fills unset fields.
func (o *Options) EnsureDefaults() {
	if o.Workers == 0 {
		o.Workers = 4
	}
	if o.PieceBlocks == 0 {
		o.PieceBlocks = 8192
	}
	if o.Tries == 0 {
		o.Tries = 5
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// Validate reports every problem.
func (o *Options) Validate() error {
	var errs []error
	if o.Workers < 1 || o.Workers > 256 {
		errs = append(errs, fmt.Errorf("%d workers: want 1 to 256", o.Workers))
	}
	if o.PieceBlocks < 1 || o.Tries < 1 {
		errs = append(errs, errors.New("pieces and tries: want at least 1"))
	}
	if o.TakeCut == nil || o.Sequences == nil {
		errs = append(errs, errors.New("a source is needed"))
	}
	return errors.Join(errs...)
}

func point(name string) error { return faultinject.Point("snapshot." + name) }

// Copier makes one first copy.
type Copier struct {
	o      Options
	target apply.CopyTarget
	mu     sync.Mutex // guards target's methods, and again
	groups []*group
	again  []*group // to be begun anew
}

// New plans the first copy of the given published tables, all of them when only is
// empty. recorded are the records of the target. Its error names every table that
// cannot be copied. Nothing is changed.
func New(o Options, target apply.CopyTarget, tables []catalog.PublishedTable, recorded []apply.TableCopy, only []catalog.Name) (*Copier, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	c := &Copier{o: o, target: target}
	byTarget := map[catalog.Name]*group{}
	var errs []error
	for i := range tables {
		plan, err := target.CopyPlan(tables[i].QualifiedName())
		if err != nil {
			errs = append(errs, err)
			continue
		}
		name := plan.Table.QualifiedName()
		g := byTarget[name]
		if g == nil {
			g = &group{table: plan.Table, segments: plan.Segments}
			byTarget[name] = g
			c.groups = append(c.groups, g)
		}
		t := &Table{src: &tables[i], plan: plan, record: apply.TableCopy{Table: tables[i].QualifiedName(), State: apply.CopyWaiting}}
		t.state.Store(apply.CopyWaiting)
		for j := range recorded {
			if recorded[j].Table == t.record.Table {
				t.record, t.found = recorded[j], true
			}
		}
		g.tables = append(g.tables, t)
	}
	errs = append(errs, c.choose(only)...)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, g := range c.groups {
		g.whole = !slices.ContainsFunc(g.tables, func(t *Table) bool { return !t.found || t.record.State != apply.Copied })
		for _, t := range g.tables {
			if g.whole {
				t.keep()
			}
		}
	}
	return c, nil
}

// choose leaves the groups of the tables named.
func (c *Copier) choose(only []catalog.Name) []error {
	if len(only) == 0 {
		return nil
	}
	var errs []error
	bad := func(n catalog.Name, hint, format string, args ...any) {
		errs = append(errs, &dtx.Error{Op: "choose tables", Relation: n.String(), Msg: fmt.Sprintf(format, args...), Hint: hint, Class: dtx.ClassStop})
	}
	known := map[catalog.Name]bool{}
	var chosen []*group
	for _, g := range c.groups {
		var in, out []string
		for _, t := range g.tables {
			known[t.record.Table] = true
			if slices.Contains(only, t.record.Table) {
				in = append(in, t.record.Table.String())
			} else {
				out = append(out, t.record.Table.String())
			}
		}
		switch {
		case len(in) == 0:
			continue
		case len(out) > 0:
			bad(g.table.QualifiedName(), "Name them all, or none of them", "the target table takes the rows of %s, and of %s, which are not named",
				strings.Join(in, ", "), strings.Join(out, ", "))
		}
		chosen = append(chosen, g)
	}
	for _, n := range only {
		if !known[n] {
			bad(n, "Give it as schema.table, as the source has it, and add it to the publication on every node if it is missing there", "the source does not publish a table of this name")
		}
	}
	c.groups = chosen
	return errs
}

// open lists the groups that are to be copied.
func (c *Copier) open() []*group {
	var out []*group
	for _, g := range c.groups {
		if !g.whole {
			out = append(out, g)
		}
	}
	return out
}

// Check refuses target tables that hold rows, unless they are to be emptied or an
// earlier copy has left them. It changes nothing.
func (c *Copier) Check(ctx context.Context, truncate bool) error {
	l := c.target.NewLoader()
	defer l.Close()
	var errs []error
	for _, g := range c.open() {
		holds := false
		for _, seg := range g.segments {
			h, err := l.HoldsRows(ctx, seg, g.table)
			if err != nil {
				return err
			}
			holds = holds || h
		}
		if g.holds = holds; !holds || truncate || g.begun() {
			continue
		}
		errs = append(errs, &dtx.Error{
			Op: "check target", Relation: g.table.String(), Class: dtx.ClassStop, Msg: "the target table holds rows",
			Hint: "Give --truncate if they may be deleted, or leave the table out with --tables; if they are its copy already, made in another way, nothing is to be done",
		})
	}
	return errors.Join(errs...)
}

// Mark records what is to be copied, so that nothing runs before it is. It is the
// first change of all.
func (c *Copier) Mark(ctx context.Context) error {
	var list []apply.TableCopy
	for _, g := range c.open() {
		for _, t := range g.tables {
			t.record = apply.TableCopy{Table: t.record.Table, State: apply.CopyWaiting}
			list = append(list, t.record)
		}
	}
	if len(list) == 0 {
		return nil
	}
	if err := c.target.RecordCopies(ctx, list); err != nil {
		return err
	}
	return point("after_waiting")
}

// Run copies. It may be called once, after Check and Mark.
func (c *Copier) Run(ctx context.Context) error {
	left := c.open()
	for try := 1; len(left) > 0; try++ {
		if try > c.o.Tries {
			return &dtx.Error{
				Op: "copy table", Relation: left[0].table.String(), Class: dtx.ClassRetry, Err: source.ErrRewritten,
				Msg:  fmt.Sprintf("%d tables were begun %d times", len(left), c.o.Tries),
				Hint: "Run the command again when the table is not truncated or rewritten all the time",
			}
		}
		c.again = nil
		if err := c.round(ctx, left); err != nil {
			return err
		}
		left = c.again
	}
	return nil
}

// cutOf is what the copy of t under a cut holds. Of a table that the source
// replicates the lowest content is read.
func cutOf(cut *source.Cut, t *catalog.PublishedTable) apply.Cut {
	if t.Policy.Kind == router.Replicated {
		return apply.Cut{Positions: cut.Positions[:1]}
	}
	return apply.Cut{Positions: cut.Positions}
}
