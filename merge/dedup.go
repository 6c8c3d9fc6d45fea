package merge

import (
	"container/heap"
	"fmt"

	"cbrepl/dtx"
)

// dedupState is an applied dtx some of whose messages may be delivered again.
type dedupState struct {
	// pending counts those messages. marker is set while one of them is a
	// one-phase marker that has not been read.
	pending int
	marker  bool
	// recordedMax is set while the target's entry has MaxLSN for the marker.
	// When the coordinator's safe LSN passes the marker, the entry must be dropped
	// or rewritten in the same batch: the marker will not be delivered again, and
	// an entry that waits for it would stay for good. rest is the message that
	// the rewritten entry still waits for.
	recordedMax bool
	rest        []dtx.Position
}

// awaitedMsg is a message of an applied dtx ahead of the safe LSN.
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

// pendingMessages lists the messages of d that positions at safe(stream) would
// have delivered again.
func (e *Engine) pendingMessages(d *txn, safe []dtx.LSN) []dtx.Position {
	var out []dtx.Position
	coord := e.streams[0]
	switch {
	case !d.hasRec: // a one-phase marker still to come
		out = append(out, dtx.Position{Content: dtx.Coordinator, LSN: dtx.MaxLSN})
	case d.rec.EndLSN > safe[coord.pos]:
		out = append(out, dtx.Position{Content: dtx.Coordinator, LSN: d.rec.EndLSN})
	}
	for i := range d.parts {
		p := &d.parts[i]
		if p.part.EndLSN > safe[p.s.pos] {
			out = append(out, dtx.Position{Content: p.part.Content, LSN: p.part.EndLSN})
		}
	}
	dtx.SortPositions(out)
	return out
}

// remember puts an applied dtx into the dedup set. d is nil at start.
func (e *Engine) remember(en dtx.DedupEntry, d *txn) error {
	if e.dedup[en.GXID] != nil {
		return fmt.Errorf("merge: gxid %d is in the dedup set twice", en.GXID)
	}
	st := &dedupState{pending: len(en.Pending)}
	for _, p := range en.Pending {
		s := e.stream(p.Content)
		if s == nil {
			return fmt.Errorf("merge: the dedup entry of gxid %d names content %d, which the source does not have", en.GXID, p.Content)
		}
		if p.LSN == dtx.MaxLSN {
			st.recordedMax = true
		} else {
			st.rest = append(st.rest, p)
		}
		switch {
		case p.LSN != dtx.MaxLSN:
			s.await(p.LSN, en.GXID)
		case d != nil && d.hasRec: // the marker was read while the batch was under way
			s.await(d.rec.EndLSN, en.GXID)
		default:
			st.marker = true
		}
	}
	e.dedup[en.GXID] = st
	return nil
}

// restoreDedup takes an entry read from the target. The entry lists what was
// pending when the dtx was applied; the recorded positions may have passed
// some of it since.
func (e *Engine) restoreDedup(en dtx.DedupEntry) error {
	live := dtx.DedupEntry{GXID: en.GXID}
	for _, p := range en.Pending {
		if s := e.stream(p.Content); s == nil || p.LSN > s.safe {
			live.Pending = append(live.Pending, p)
		}
	}
	return e.remember(live, nil)
}
