package subscription

import (
	"sync/atomic"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

// progress counts the rows that the target takes of the batch in hand. The
// worker writes, the loop reads.
type progress struct {
	rows apply.Rows
	read atomic.Int64
}

// Open implements apply.Rows.
func (p *progress) Open(part dtx.Part) (apply.RowIter, error) {
	it, err := p.rows.Open(part)
	if err != nil {
		return nil, err
	}
	return &countedIter{RowIter: it, total: &p.read}, nil
}

// countEvery is how many rows are read between two looks of others at the count.
const countEvery = 256

type countedIter struct {
	apply.RowIter
	total *atomic.Int64
	n     int64
}

// Next implements apply.RowIter.
func (c *countedIter) Next() (*pgoutput.Change, error) {
	ch, err := c.RowIter.Next()
	if err != nil {
		c.flush()
		return ch, err
	}
	if c.n++; c.n == countEvery {
		c.flush()
	}
	return ch, nil
}

func (c *countedIter) flush() {
	c.total.Add(c.n)
	c.n = 0
}
