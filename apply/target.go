// Package apply is the vocabulary of the target side: what a target is (Target),
// what the engine asks of one (Backend and its operations), rows, results, state,
// name rules, options and errors. It holds no logic of its own.
//
//	apply/engine      folds a batch's changes and calls a Backend
//	apply/ledger      keeps a subscription's record on its target, and its lock
//	apply/shards      a target of stock PostgreSQL servers, by two-phase commit
//	apply/cloudberry  a target cluster, through its coordinator
//
// None of them chooses what enters a batch.
package apply

import (
	"context"

	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

// Rows opens the spooled rows of a part.
type Rows interface {
	// Open returns the part's changes in stream order, rows of rolled back
	// subtransactions left out.
	Open(p dtx.Part) (RowIter, error)
}

// RowIter walks one part's changes.
type RowIter interface {
	// Next returns the next change, or io.EOF. The change and all it refers to,
	// except Relation values, are valid until the next call.
	Next() (*pgoutput.Change, error)
	Close() error
}

// StreamIdentity says which node and slot a recorded position belongs to. A
// position is never used against another one.
type StreamIdentity struct {
	Content  dtx.Content
	SystemID string // system identifier of the server, decimal
	Slot     string
	Timeline int32
}

// Beginning is where a new subscription begins: its streams, their positions, and
// the tables as they are published there.
type Beginning struct {
	Streams   []StreamIdentity
	Positions []dtx.Position
	Tables    []catalog.ReplicatedTable
	// Applied are dtxs whose messages behind Positions are not to be applied: the first
	// copies of the tables hold them.
	Applied []dtx.DedupEntry
}

// State is what the target knows of a subscription: the only truth at start.
type State struct {
	// Initialized is false until Init has run: no positions are recorded, and nothing
	// says where the subscription would begin.
	Initialized bool
	// Token belongs to this record of the subscription only: one that was deleted
	// and prepared again has another.
	Token string
	// Epoch is this daemon's epoch, above every earlier daemon's.
	Epoch uint64
	// Batch is the number of the last batch committed.
	Batch     uint64
	Positions []dtx.Position
	Streams   []StreamIdentity
	Dedup     []dtx.DedupEntry
	// Tables are those recorded by Init or RecordTables.
	Tables []catalog.ReplicatedTable
	// Copies are the first copies of tables, by name.
	Copies []TableCopy
}

// Result tells what applying a batch did.
type Result struct {
	// Rows counts the changes applied, before folding.
	Rows int64
	// Updates counts the updates among them.
	Updates int64
	// Folded counts the changes that a later change of the same row in the batch
	// took in: they cost the target nothing.
	Folded int64
	// Conflicts counts, per target table, rows skipped under on_conflict: log, and
	// copies of a replicated table that had other rows than the first.
	Conflicts map[string]int64
	// Skipped describes them, up to MaxSkipped entries.
	Skipped []Skipped
}

// MaxSkipped bounds Result.Skipped.
const MaxSkipped = 100

// Skipped are rows on which source and target differ, and which were left out.
type Skipped struct {
	Table string
	// Reason says how they differ.
	Reason string
	// Rows is how many; the rest is about one of them, as far as it is known.
	Rows int64
	// GXID, Content and LSN are where the change came from; GXID 0 when rows of
	// several transactions went together.
	GXID    dtx.GXID
	Content dtx.Content
	LSN     dtx.LSN
	// Identity are the columns of the row's identity, Digest the md5 of their text,
	// joined by commas; empty where the whole row is the identity.
	Identity, Digest string
	// Segment is the target's, ServerPlaced or below when it does not matter.
	Segment dtx.Content
}

// Target applies batches, each in one distributed transaction together with
// positions, dedup set and batch number. Its methods are called from one
// goroutine at a time.
type Target interface {
	// Open connects, takes the subscription's lock, raises the epoch, resolves
	// batches in doubt and reads the state. After a failed Apply it is called
	// again; State.Batch then says whether that batch was committed.
	Open(ctx context.Context) (State, error)
	// Init records where a new subscription begins.
	Init(ctx context.Context, b Beginning) error
	// RecordTables replaces the record of the source's tables whose rows are taken.
	RecordTables(ctx context.Context, tables []catalog.ReplicatedTable) error
	// Apply applies b. On error nothing of b is applied, or, when the connection
	// was lost while committing, Open will tell.
	Apply(ctx context.Context, b *dtx.Batch, rows Rows) (Result, error)
	// Close gives up locks and connections. It is idempotent.
	Close() error
}
