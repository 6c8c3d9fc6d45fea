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
	// applied batch recorded: prefixLSN, moved back to where the stream can resume.
	// Everything up to covered is applied: prefixLSN, or what an earlier life
	// recorded when it had to resume before it.
	prefix    int
	prefixLSN dtx.LSN
	safe      dtx.LSN
	covered   dtx.LSN
	// reached is the newest prefix a batch was computed with: entries before it
	// no longer change.
	reached  int
	prepared prepared

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

	// awaited is a min-heap of messages of applied dtxs beyond covered.
	awaited []awaitedMsg
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
	return prefix, prefixLSN, max(s.prepared.recordable(prefixLSN), s.safe)
}

// trim forgets entries before the prefix and transactions that are in doubt no more.
func (s *stream) trim() {
	if n := s.prefix - s.base; n > 64 && n > len(s.entries)/2 {
		kept := copy(s.entries, s.entries[n:])
		clear(s.entries[kept:])
		s.entries = s.entries[:kept]
		s.base = s.prefix
	}
	s.prepared.trim(s.covered)
}
