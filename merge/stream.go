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
	// applied batch recorded: prefixLSN, moved back out of holds.
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

	debt debt

	// awaited is a min-heap of messages of applied dtxs that the safe LSN has not
	// passed.
	awaited []awaitedMsg
}

// hold is a prepared transaction: lsn is the position before its PREPARE, end
// that of its COMMIT PREPARED, MaxLSN until it is read. No position between the
// two may be recorded, also when the part is applied: a server that is asked to
// start there sends the COMMIT PREPARED alone.
type hold struct {
	id       dtx.SpoolID
	lsn, end dtx.LSN
	dropped  bool
}

func (s *stream) end() int { return s.base + len(s.entries) }

func (s *stream) at(i int) *entry { return &s.entries[i-s.base] }

func (s *stream) push(en entry) int {
	s.entries = append(s.entries, en)
	s.last = max(s.last, en.lsn)
	return s.end() - 1
}

// addPosition takes an entry that is a position and no more. Only the newest of
// a run of them matters.
func (s *stream) addPosition(en entry) {
	if n := len(s.entries); n > 0 && s.base+n-1 >= s.reached && !en.more {
		if e := &s.entries[n-1]; e.d == nil && !e.isPart && !e.more {
			e.lsn = max(e.lsn, en.lsn)
			s.last = max(s.last, en.lsn)
			return
		}
	}
	s.push(en)
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

func (s *stream) tieHold(id dtx.SpoolID, end dtx.LSN) {
	if id == 0 {
		return
	}
	for i := range s.holds {
		if s.holds[i].id == id {
			s.holds[i].end = end
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
	// From the newest down: a position that a hold moves back may lie inside an
	// older one, ended or not.
	for i := len(s.holds) - 1; i >= 0; i-- {
		if h := &s.holds[i]; !h.dropped && h.lsn < safe && safe < h.end {
			safe = h.lsn
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
	for i < len(s.holds) && (s.holds[i].dropped || s.holds[i].end <= s.safe) {
		i++
	}
	s.holds = s.holds[i:]
}
