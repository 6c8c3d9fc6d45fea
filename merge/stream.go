package merge

import (
	"cbrepl/dtx"
)

// entry is one event's place in a stream.
type entry struct {
	lsn    dtx.LSN
	d      *txn // nil: nothing to apply
	isPart bool
	more   bool // another entry with the same LSN follows
}

// stream is one content's events, from the recorded safe LSN on. Entry indexes
// are absolute: they keep their meaning when applied entries are trimmed.
type stream struct {
	content dtx.Content
	pos     int // index in Engine.streams
	entries []entry
	base    int // absolute index of entries[0]

	last dtx.LSN // LSN of the newest event

	// prefix is the absolute index of the first entry that is not applied, and
	// prefixLSN the position all entries before it allow. safe is what the last
	// applied batch recorded: min(prefixLSN, holds).
	prefix    int
	prefixLSN dtx.LSN
	safe      dtx.LSN
	// reached is the newest prefix a batch was computed with: entries before it
	// no longer change.
	reached int
	holds   []hold // rising in lsn

	// front is the absolute index of the first part that is still waiting; it
	// may lag behind. onePhase lists the waiting one-phase parts, ascending.
	front    int
	onePhase []int
	dirty    bool

	// frontier and scanTo belong to the closure being built: every part before
	// frontier is taken or a member; the closure requires this up to scanTo.
	frontier int
	scanTo   int
	scanning bool

	// awaited is a min-heap of messages of applied dtxs that the safe LSN has not
	// passed.
	awaited []awaitedMsg
}

type hold struct {
	id      dtx.SpoolID
	lsn     dtx.LSN
	d       *txn // once the COMMIT PREPARED was read
	dropped bool
}

func (h *hold) active() bool {
	return !h.dropped && (h.d == nil || !h.d.done())
}

func (s *stream) end() int { return s.base + len(s.entries) }

func (s *stream) at(i int) *entry { return &s.entries[i-s.base] }

func (s *stream) push(en entry) int {
	s.entries = append(s.entries, en)
	s.last = max(s.last, en.lsn)
	return s.end() - 1
}

// addPosition coalesces: only the newest of a run of positions matters.
func (s *stream) addPosition(lsn dtx.LSN) {
	if n := len(s.entries); n > 0 && s.base+n-1 >= s.reached {
		if e := &s.entries[n-1]; e.d == nil && !e.isPart && !e.more {
			e.lsn = max(e.lsn, lsn)
			s.last = max(s.last, lsn)
			return
		}
	}
	s.push(entry{lsn: lsn})
}

func (s *stream) dropHold(id dtx.SpoolID) {
	if id == 0 {
		return
	}
	for i := range s.holds {
		if s.holds[i].id == id {
			s.holds[i].dropped = true
		}
	}
}

func (s *stream) tieHold(id dtx.SpoolID, d *txn) {
	if id == 0 {
		return
	}
	for i := range s.holds {
		if s.holds[i].id == id {
			s.holds[i].d = d
		}
	}
}

// reach computes how far the stream is applied if the outstanding batch is:
// the new prefix and the position to record.
func (s *stream) reach() (prefix int, prefixLSN, safe dtx.LSN) {
	prefix, prefixLSN = s.prefix, s.prefixLSN
	for prefix < s.end() {
		en := s.at(prefix)
		if en.d != nil && !en.d.done() {
			break
		}
		prefix++
		// Entries that share an LSN are confirmed by the last of them only.
		if !en.more && (prefix == s.end() || s.at(prefix).lsn > en.lsn) {
			prefixLSN = max(prefixLSN, en.lsn)
		}
	}
	safe = prefixLSN
	for i := range s.holds {
		if s.holds[i].active() {
			safe = min(safe, s.holds[i].lsn)
			break
		}
	}
	return prefix, prefixLSN, max(safe, s.safe)
}

// trim forgets entries before the prefix and holds that ended.
func (s *stream) trim() {
	if n := s.prefix - s.base; n > 64 && n > len(s.entries)/2 {
		kept := copy(s.entries, s.entries[n:])
		clear(s.entries[kept:])
		s.entries = s.entries[:kept]
		s.base = s.prefix
	}
	i := 0
	for i < len(s.holds) && (s.holds[i].dropped || s.holds[i].d != nil && s.holds[i].d.state == applied) {
		i++
	}
	s.holds = s.holds[i:]
}
