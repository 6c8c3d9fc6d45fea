package merge

import (
	"container/heap"
	"fmt"
	"slices"

	"cbrepl/dtx"
)

// dedupState is an applied dtx some of whose messages may be delivered again.
type dedupState struct{ pending int } // how many of them

// awaitedMsg is a message of an applied dtx beyond covered.
type awaitedMsg struct {
	lsn  dtx.LSN
	gxid dtx.GXID
}

type awaitedHeap struct{ s *stream }

func (h awaitedHeap) Len() int { return len(h.s.awaited) }
func (h awaitedHeap) Less(i, j int) bool {
	a, b := h.s.awaited[i], h.s.awaited[j]
	return a.lsn < b.lsn || a.lsn == b.lsn && a.gxid < b.gxid
}

func (h awaitedHeap) Swap(i, j int) { h.s.awaited[i], h.s.awaited[j] = h.s.awaited[j], h.s.awaited[i] }
func (h awaitedHeap) Push(x any)    { h.s.awaited = append(h.s.awaited, x.(awaitedMsg)) }
func (h awaitedHeap) Pop() any {
	n := len(h.s.awaited)
	x := h.s.awaited[n-1]
	h.s.awaited = h.s.awaited[:n-1]
	return x
}

func (s *stream) await(lsn dtx.LSN, g dtx.GXID) {
	heap.Push(awaitedHeap{s}, awaitedMsg{lsn, g})
}

// passed removes and returns the awaited messages at or before lsn.
func (s *stream) passed(lsn dtx.LSN, dst []awaitedMsg) []awaitedMsg {
	for len(s.awaited) > 0 && s.awaited[0].lsn <= lsn {
		dst = append(dst, heap.Pop(awaitedHeap{s}).(awaitedMsg))
	}
	return dst
}

// pendingMessages lists the messages of d that are not covered: a later life
// could not tell from their position that they are applied.
func (e *Engine) pendingMessages(d *txn, covered []dtx.LSN) []dtx.Position {
	var out []dtx.Position
	if d.hasRec && d.rec.EndLSN > covered[0] {
		out = append(out, dtx.Position{Content: dtx.Coordinator, LSN: d.rec.EndLSN})
	}
	for i := range d.parts {
		p := &d.parts[i]
		if p.part.EndLSN > covered[p.s.pos] {
			out = append(out, dtx.Position{Content: p.part.Content, LSN: p.part.EndLSN})
		}
	}
	dtx.SortPositions(out)
	return out
}

// remember puts an applied dtx into the dedup set.
func (e *Engine) remember(en dtx.DedupEntry) error {
	if e.dedup[en.GXID] != nil {
		return fmt.Errorf("merge: gxid %d is in the dedup set twice", en.GXID)
	}
	for _, p := range en.Pending {
		s := e.stream(p.Content)
		if s == nil {
			return fmt.Errorf("merge: the dedup entry of gxid %d names content %d, which the source does not have", en.GXID, p.Content)
		}
		s.await(p.LSN, en.GXID)
	}
	e.dedup[en.GXID] = &dedupState{pending: len(en.Pending)}
	return nil
}

// restoreDedup takes the set read from the target. An entry lists what was
// pending when the dtx was applied; the recorded positions may have passed some of
// it since. MaxLSN stands for a marker, for which nothing waits.
func (e *Engine) restoreDedup(set []dtx.DedupEntry) error {
	for _, en := range set {
		if en.GXID != dtx.AllGXIDs {
			continue
		}
		e.ahead = slices.Clone(en.Pending)
		for _, p := range en.Pending {
			s := e.stream(p.Content)
			if s == nil {
				return fmt.Errorf("merge: the dedup set covers content %d, which the source does not have", p.Content)
			}
			s.covered = max(s.covered, p.LSN)
		}
	}
	for _, en := range set {
		if en.GXID == dtx.AllGXIDs {
			continue
		}
		live := dtx.DedupEntry{GXID: en.GXID}
		for _, p := range en.Pending {
			if s := e.stream(p.Content); s == nil || p.LSN > s.covered && p.LSN < dtx.MaxLSN {
				live.Pending = append(live.Pending, p)
			}
		}
		if len(live.Pending) == 0 {
			e.stale = append(e.stale, en.GXID)
		} else if err := e.remember(live); err != nil {
			return err
		}
	}
	return nil
}
