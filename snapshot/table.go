package snapshot

import (
	"slices"
	"sync/atomic"
	"time"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
)

// group is a target table with the source tables whose rows it takes. It is copied as
// a whole.
type group struct {
	table    *catalog.Table
	segments []dtx.Content
	tables   []*Table
	// whole is set when it was copied before; holds when the target table has rows.
	whole, holds bool

	// left counts the pieces that are not finished, and one for their list; rewritten
	// is set when one could not be read as the cut has it. Of one round.
	left      atomic.Int64
	rewritten atomic.Bool
}

// begun reports whether an earlier copy was begun and is not whole.
func (g *group) begun() bool {
	return slices.ContainsFunc(g.tables, func(t *Table) bool { return t.found })
}

// Table is a source table that is copied.
type Table struct {
	src    *catalog.PublishedTable
	plan   apply.CopyPlan
	record apply.TableCopy // as last written, or as found
	found  bool            // it was recorded before

	state                 atomic.Value // apply.CopyState
	kept                  bool
	rows, bytes, expected atomic.Int64
	started, finished     atomic.Int64 // nanoseconds
}

// keep takes the table as an earlier copy left it.
func (t *Table) keep() {
	t.kept = true
	t.state.Store(apply.Copied)
	t.rows.Store(t.record.Rows)
	t.expected.Store(t.record.Rows)
	t.bytes.Store(t.record.Bytes)
}

// Progress is how far a table has come.
type Progress struct {
	Table  string          `json:"table"`
	Target string          `json:"target"`
	State  apply.CopyState `json:"state"`
	// Kept is set for a table that an earlier command has copied.
	Kept bool `json:"kept,omitempty"`
	// Rows and Bytes are copied, of about Expected rows.
	Rows     int64 `json:"rows"`
	Bytes    int64 `json:"bytes"`
	Expected int64 `json:"expected"`
	// Seconds is how long it took, or takes so far.
	Seconds float64 `json:"seconds"`
	// Truncate is set when rows of the target table are deleted first.
	Truncate bool `json:"truncate,omitempty"`
}

// Progress returns how far the tables have come, in order of their target tables. It
// may be called at any time.
func (c *Copier) Progress() []Progress {
	var out []Progress
	for _, g := range c.groups {
		for _, t := range g.tables {
			p := Progress{
				Table: t.record.Table.String(), Target: g.table.String(), State: t.state.Load().(apply.CopyState), Kept: t.kept,
				Rows: t.rows.Load(), Bytes: t.bytes.Load(), Truncate: g.holds && !g.whole,
			}
			p.Expected = max(t.expected.Load(), p.Rows)
			if from := t.started.Load(); from != 0 {
				to := t.finished.Load()
				if to == 0 {
					to = c.o.Now().UnixNano()
				}
				p.Seconds = time.Duration(to - from).Seconds()
			}
			out = append(out, p)
		}
	}
	return out
}
