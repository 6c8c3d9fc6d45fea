package subscription

import (
	"time"

	"cbrepl/apply"
	"cbrepl/dtx"
)

// growth says how long the next batch may wait to grow. Where rows change again
// and again, and the target is behind anyway, a larger batch writes each of them
// once. A part of the lag is all that it may cost.
//
// Small batches do not show whether rows change again, and updates that are
// written one by one keep them small. So a target that has fallen behind with
// updates tries one larger batch.
type growth struct {
	wait  time.Duration
	tried bool // since the target was last close behind
}

const (
	growMost     = 4 * time.Second
	growLagShare = 4                      // of the lag, one part is spent on waiting
	growRows     = 10_000                 // smaller batches show nothing
	growFolded   = 4                      // one change in so many has to be needless
	growPause    = 200 * time.Millisecond // nothing coming for so long ends the wait
	tryLag       = 5 * time.Second        // behind enough to try
	tryLagShare  = 8
)

// applied takes note of a batch.
func (g *growth) applied(b *dtx.Batch, now time.Time, r apply.Result) {
	g.wait = 0
	if b.LastCommitTime == 0 {
		return
	}
	lag := now.Sub(b.LastCommitTime.Time())
	if lag < tryLag {
		g.tried = false
	}
	share := time.Duration(growLagShare)
	switch {
	case r.Rows < growRows:
		return
	case r.Folded*growFolded >= r.Rows:
	case !g.tried && lag >= tryLag && r.Updates*2 >= r.Rows:
		g.tried = true
		share = tryLagShare
	default:
		return
	}
	g.wait = max(0, min(growMost, lag/share))
}
