package apply

import (
	"time"

	"cbrepl/catalog"
	"cbrepl/dtx"
)

// Cut says what the first copy of a source table holds.
type Cut struct {
	// Positions are, for every content that rows were copied from, the place in its
	// stream up to which the copy has everything: what was committed up to there, and
	// nothing that was committed later.
	Positions []dtx.Position
}

// Has reports whether the copy holds what a part did to the table.
func (c *Cut) Has(p *dtx.Part) bool {
	for i := range c.Positions {
		if at := &c.Positions[i]; at.Content == p.Content {
			return p.EndLSN <= at.LSN
		}
	}
	return false
}

// Passed returns the cut without the contents whose stream is recorded at or beyond
// its position: no part that the copy holds comes from them any more.
func (c *Cut) Passed(recorded []dtx.Position) Cut {
	var left Cut
	for _, p := range c.Positions {
		passed := false
		for _, r := range recorded {
			passed = passed || r.Content == p.Content && r.LSN >= p.LSN
		}
		if !passed {
			left.Positions = append(left.Positions, p)
		}
	}
	return left
}

// CopyState is how far the first copy of a table has come.
type CopyState string

// States of a table's first copy, in order. Only what is Copied may be relied on.
const (
	CopyWaiting CopyState = "waiting"
	Copying     CopyState = "copying"
	Copied      CopyState = "copied"
)

// TableCopy is what the target records of the first copy of a source table. It
// stays there when the stream has passed the cut.
type TableCopy struct {
	// Table is the table's name on the source.
	Table catalog.Name
	State CopyState
	// Cut is what the copy holds once it is Copied.
	Cut Cut
	// Rows and Bytes were copied, Bytes in COPY's text format.
	Rows, Bytes int64
	// StartedAt and FinishedAt are zero until then.
	StartedAt, FinishedAt time.Time
}
