// Package dtx is the vocabulary of cbrepl: distributed transaction ids,
// contents, log positions, parts, commit records, batches, and the events a
// stream reader reports. It owns names and their ordering; it never does I/O,
// never reads a clock and never decides an order.
package dtx

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// GXID is a distributed transaction id. A source never reuses one.
type GXID uint64

// AllGXIDs is no dtx's id; see DedupEntry.
const AllGXIDs GXID = 0

// String prints the id in decimal, as the field's tools do.
func (g GXID) String() string { return strconv.FormatUint(uint64(g), 10) }

// Content is a segment's content id: 0..N-1, or Coordinator.
type Content int16

// Coordinator is the content id of a cluster's coordinator.
const Coordinator Content = -1

// String prints the content id in decimal.
func (c Content) String() string { return strconv.Itoa(int(c)) }

// LSN is a position in the write-ahead log of one node.
type LSN uint64

// MaxLSN is beyond every position a server can report.
const MaxLSN = LSN(^uint64(0))

// String prints the position as PostgreSQL does: X/X in upper-case hexadecimal.
func (l LSN) String() string {
	return fmt.Sprintf("%X/%X", uint32(l>>32), uint32(l))
}

// ParseLSN reads the X/X form.
func ParseLSN(s string) (LSN, error) {
	hi, lo, ok := strings.Cut(s, "/")
	if !ok {
		return 0, fmt.Errorf("%q is not an LSN: want X/X", s)
	}
	h, err := strconv.ParseUint(hi, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not an LSN: %w", s, err)
	}
	l, err := strconv.ParseUint(lo, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not an LSN: %w", s, err)
	}
	return LSN(h<<32 | l), nil
}

// XID is a transaction id local to one node.
type XID uint32

// Kind tells how a distributed transaction committed.
type Kind byte

const (
	// TwoPhase is a dtx over several segments: PREPARE, commit record, COMMIT PREPARED.
	TwoPhase Kind = 'T'
	// OnePhase is a dtx on one segment that committed there directly; its
	// commit record is a marker that may be written after that commit.
	OnePhase Kind = 'O'
)

// Valid reports whether the byte names a kind.
func (k Kind) Valid() bool { return k == TwoPhase || k == OnePhase }

// String names the kind.
func (k Kind) String() string {
	switch k {
	case TwoPhase:
		return "two-phase"
	case OnePhase:
		return "one-phase"
	}
	return fmt.Sprintf("kind(%d)", byte(k))
}

// PGTime is a server timestamp: microseconds since 2000-01-01 UTC.
type PGTime int64

var pgEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// Time converts to a time in UTC.
func (t PGTime) Time() time.Time { return pgEpoch.Add(time.Duration(t) * time.Microsecond) }

// PGTimeOf converts a time to server microseconds.
func PGTimeOf(t time.Time) PGTime { return PGTime(t.Sub(pgEpoch) / time.Microsecond) }

// CommitRecord is the coordinator's word that a dtx committed. The order of
// commit records in the coordinator's stream is the commit order.
type CommitRecord struct {
	GXID GXID
	Kind Kind
	// Participants lists the contents that deliver a part, ascending, each once.
	Participants []Content
	CommitTime   PGTime
	// EndLSN is the record's place in the coordinator's stream: the position to
	// confirm once this record and everything before it is applied.
	EndLSN LSN
}

// SpoolID names one spooled transaction of one content. It is unique for the
// life of a spool and rises in order of allocation. 0 names no spooled data.
type SpoolID uint64

// Part is what one content contributes to one dtx: its row changes, possibly none.
type Part struct {
	GXID    GXID
	Kind    Kind
	Content Content
	// EndLSN is the end position of the local commit (or COMMIT PREPARED).
	// Within one content parts rise in EndLSN.
	EndLSN     LSN
	CommitTime PGTime
	// Rows counts row messages and Bytes the raw bytes spooled, rows of rolled
	// back subtransactions included. Both are estimates for limits and status.
	Rows, Bytes int64
	// Barrier is set when the part holds a TRUNCATE or DDL.
	Barrier bool
	// Spool finds the rows in the spool; 0 when there are none.
	Spool SpoolID
	// Lowest is set at release on the part of the dtx's lowest segment content:
	// of a table replicated on the source, only this part's rows are applied.
	Lowest bool
}

// Position is a place in one content's stream.
type Position struct {
	Content Content
	LSN     LSN
}

// String prints "content C at X/X".
func (p Position) String() string { return fmt.Sprintf("content %d at %s", p.Content, p.LSN) }

// SortPositions orders by content.
func SortPositions(ps []Position) {
	slices.SortFunc(ps, func(a, b Position) int { return cmp.Compare(a.Content, b.Content) })
}

// DedupEntry remembers an applied dtx while any of its messages can still be
// delivered again. Pending holds the stream position of every such message.
// The entry of AllGXIDs stands for every dtx: each message of a listed stream up
// to the position is applied, although the stream resumes before it.
type DedupEntry struct {
	GXID    GXID
	Pending []Position
}

// Step is a run of parts with no barrier inside, or the parts of one barrier
// dtx. Steps are applied one after the other. Inside a step parts are grouped
// by content ascending and, per content, stand in stream order. Parts of
// different contents stand in no order.
type Step struct {
	// Barrier is set for the step of a dtx with TRUNCATE or DDL. All its parts
	// belong to that dtx; the n-th TRUNCATE of each part is one and the same
	// statement, which separates the rows before it from the rows after it on
	// every content.
	Barrier bool
	Parts   []Part
}

// Batch is what one target transaction applies: rows, positions and dedup set.
type Batch struct {
	// Seq numbers the batch; the target records it. It rises by one with every
	// batch committed.
	Seq   uint64
	Steps []Step
	// GXIDs lists the batch's dtxs, in commit record order where records were
	// read, one-phase dtxs without a record behind what they depend on.
	GXIDs []GXID
	// Positions holds the safe LSN of every stream that moves when this batch is
	// applied, by content. A batch may hold positions only.
	Positions []Position
	// DedupDrop and DedupAdd change the dedup set, in this order: an entry that
	// is to be replaced stands in both. Both rise in GXID.
	DedupAdd  []DedupEntry
	DedupDrop []GXID
	// Rows and Bytes sum the parts' estimates.
	Rows, Bytes int64
	// LastCommitTime is the latest commit time in the batch, 0 when unknown.
	LastCommitTime PGTime
}

// Empty reports whether applying the batch would change nothing.
func (b *Batch) Empty() bool {
	return len(b.Steps) == 0 && len(b.GXIDs) == 0 && len(b.Positions) == 0 &&
		len(b.DedupAdd) == 0 && len(b.DedupDrop) == 0
}

// Participants lists every content with a part in the batch, ascending.
func (b *Batch) Participants() []Content {
	var out []Content
	for _, s := range b.Steps {
		for _, p := range s.Parts {
			if i, ok := slices.BinarySearch(out, p.Content); !ok {
				out = slices.Insert(out, i, p.Content)
			}
		}
	}
	return out
}
