package merge

import (
	"cbrepl/dtx"
)

// Counts says how much the engine holds that is not applied.
type Counts struct {
	Dtxs, Parts, Records int
	Rows, Bytes          int64
}

// Pending counts what is not applied, the outstanding batch included.
func (e *Engine) Pending() Counts { return e.n }

// Safe returns a stream's safe LSN as recorded by the last applied batch.
func (e *Engine) Safe(c dtx.Content) dtx.LSN {
	if s := e.stream(c); s != nil {
		return s.safe
	}
	return 0
}

// DedupSize is the number of dtxs in the dedup set.
func (e *Engine) DedupSize() int { return len(e.dedup) }

// Kept counts what the engine keeps in memory and the caller bounds: parts and
// records that are not applied, and applied dtxs in the dedup set. As long as
// something is kept, NeededContents names the streams that make it less.
func (e *Engine) Kept() int { return e.n.Parts + e.n.Records + len(e.dedup) }

// Wait says what an unreleased dtx waits for.
type Wait struct {
	GXID dtx.GXID
	Kind dtx.Kind
	// RecordSeen is false while the coordinator's commit record is missing.
	RecordSeen bool
	// Missing lists the participants without a part, once the record is known.
	Missing []dtx.Content
	// Parts lists the contents that delivered theirs.
	Parts []dtx.Content
	// Prepared lists the contents that hold the dtx prepared, without outcome: their
	// streams are not confirmed beyond the PREPARE.
	Prepared []dtx.Content
	// Blocking is set on the dtx that the next release waits for.
	Blocking bool
}

func (e *Engine) waitOf(d *txn) Wait {
	w := Wait{GXID: d.gxid, Kind: d.kind, RecordSeen: d.hasRec, Blocking: d == e.closure.blocker}
	if d.hasRec {
		for _, c := range d.rec.Participants {
			if !d.part(c) {
				w.Missing = append(w.Missing, c)
			}
		}
	}
	for i := range d.parts {
		w.Parts = append(w.Parts, d.parts[i].part.Content)
	}
	return w
}

// Waits lists up to limit dtxs that are not complete: first the one that blocks
// the next release, then those with a record in record order, then parts
// whose record never came, by stream, then the first one-phase dtx of each stream
// whose marker has come and whose part has not, then prepared ones without outcome.
func (e *Engine) Waits(limit int) []Wait {
	var out []Wait
	seen := map[*txn]bool{}
	add := func(d *txn) bool {
		if len(out) >= limit {
			return false
		}
		if d.state == waiting && !d.complete() && !seen[d] {
			seen[d] = true
			out = append(out, e.waitOf(d))
		}
		return true
	}
	if e.out == nil {
		e.build()
	}
	if b := e.closure.blocker; b != nil {
		add(b)
	}
	for i := e.orderHead - e.orderBase; i < len(e.order) && add(e.order[i]); i++ {
	}
	for _, s := range e.streams {
		for i := max(s.front, s.prefix); i < s.end(); i++ {
			if en := s.at(i); en.isPart && en.d != nil && !add(en.d) {
				return out
			}
		}
	}
	for _, s := range e.streams {
		if g, _, ok := s.debt.oldest(); ok && len(out) < limit {
			out = append(out, Wait{GXID: g, Kind: dtx.OnePhase, RecordSeen: true, Missing: []dtx.Content{s.content}})
		}
	}
	return e.addPrepared(out, limit)
}

// addPrepared puts in who is in doubt on each stream, oldest first.
func (e *Engine) addPrepared(out []Wait, limit int) []Wait {
	known := make(map[dtx.GXID]int, len(out))
	for i := range out {
		known[out[i].GXID] = i
	}
	for _, s := range e.streams {
		n := 0
		for _, d := range s.prepared.open {
			if d.ended {
				continue
			}
			i, ok := known[d.gxid]
			if !ok && len(out) < limit {
				i, ok = len(out), true
				known[d.gxid] = i
				out = append(out, Wait{GXID: d.gxid, Kind: dtx.TwoPhase})
			}
			if ok {
				out[i].Prepared = append(out[i].Prepared, s.content)
			}
			if n++; n == limit {
				break
			}
		}
	}
	return out
}

// NeededContents names the streams that must read on, whatever the spool holds,
// for the next release to become possible. It is empty while a batch is
// outstanding or can be taken: applying it makes room. When nothing waits, every
// stream is needed: only transactions still in progress fill the spool.
func (e *Engine) NeededContents() []dtx.Content {
	if e.out != nil || e.build() {
		return nil
	}
	for _, s := range e.dirty {
		if s.leading() != nil {
			return nil
		}
	}
	if b := e.closure.blocker; b != nil {
		if !b.hasRec {
			return []dtx.Content{dtx.Coordinator}
		}
		return e.waitOf(b).Missing
	}
	if e.n.Parts > 0 { // parts without a record
		return []dtx.Content{dtx.Coordinator}
	}
	out := make([]dtx.Content, 0, len(e.streams))
	for _, s := range e.streams {
		out = append(out, s.content)
	}
	return out
}
