// Package ledger keeps what a target records of a subscription: its lock and
// epoch, the batch last decided, the streams with their recorded positions, and
// the gxids applied ahead of a position. It owns schema cbrepl and the rule that
// one daemon at a time writes; the targets (apply/shards, apply/cloudberry) own
// how a batch's rows and its record come to be committed together.
//
// # Epoch and lock
//
// Open, of either target, takes a session advisory lock (Lock), then raises the
// epoch in the subscription's row (RaiseEpoch). The lock keeps a second daemon
// waiting; the epoch makes sure: a statement that records a batch is guarded by
// token, epoch and the batch before, so a daemon of an earlier epoch changes
// nothing, however long it was paused. What the row says once the epoch is raised
// is therefore final.
//
// A daemon that opens its target again compares the row with what it knows
// (CheckRival): a batch that it has neither seen nor tried is another daemon's,
// and what it holds in memory no longer follows from the record.
package ledger

import (
	"slices"

	"cbrepl/apply/internal/pgside"
	"cbrepl/dtx"
)

// Steps in errors.
const (
	OpOpen    = "open target"
	OpPrepare = "prepare target"
	OpApply   = "apply batch"
	OpCommit  = "commit batch"
)

// BatchID names one attempt to apply a batch: the epoch of the daemon that made
// it and the batch number.
type BatchID struct {
	Epoch, Batch uint64
}

// Ledger is one subscription's record on the server that keeps it, as this daemon
// knows it. It is used by one goroutine at a time.
type Ledger struct {
	srv  *pgside.Session
	opts *Options
	// point is called between durable steps, for fault injection.
	point func(name string) error

	open bool
	// row is the record as last seen or written here, once seen is set; tried the
	// batch that may have been recorded since without the outcome being known.
	row   Row
	seen  bool
	tried BatchID
	// session identifies the session of the last Lock, which may outlive a lost
	// connection and still hold the lock.
	session sessionID
}

// New returns the ledger of o's subscription on s. It sends nothing.
func New(s *pgside.Session, o *Options, point func(name string) error) *Ledger {
	return &Ledger{srv: s, opts: o, point: point}
}

// Opened records that the target is open and that its record is row.
func (l *Ledger) Opened(row Row) {
	l.row, l.tried, l.seen, l.open = row, row.Decided, true, true
}

// Closed records that nothing may be written before the next Open.
func (l *Ledger) Closed() { l.open = false }

// IsOpen reports whether batches may be written.
func (l *Ledger) IsOpen() bool { return l.open }

// Epoch is this daemon's epoch.
func (l *Ledger) Epoch() uint64 { return l.row.Epoch }

// Batch is the number of the last batch recorded.
func (l *Ledger) Batch() uint64 { return l.row.Decided.Batch }

// Positions are the recorded positions of the streams.
func (l *Ledger) Positions() []dtx.Position { return l.row.Positions }

// Tried names the batch being applied.
func (l *Ledger) Tried() BatchID { return l.tried }

// ShardBatches are, per shard, the last batch recorded for it.
func (l *Ledger) ShardBatches() []uint64 { return l.row.ShardBatches }

// Begin checks that b follows from the record, and makes it the batch tried.
func (l *Ledger) Begin(b *dtx.Batch) error {
	if !l.open {
		return ErrNotOpen(OpApply)
	}
	if err := l.row.check(b); err != nil {
		return err
	}
	l.tried = BatchID{l.row.Epoch, b.Seq}
	return nil
}

// Decided follows in memory what recording b has changed.
func (l *Ledger) Decided(b *dtx.Batch, shardBatches []uint64) {
	l.row.Decided = l.tried
	l.row.Positions = l.row.moved(b.Positions)
	l.row.ShardBatches = shardBatches
}

// Moved returns the recorded positions after b.
func (l *Ledger) Moved(b *dtx.Batch) []dtx.Position { return l.row.moved(b.Positions) }

// ErrNotOpen is what a call between a failure and the next Open gets.
func ErrNotOpen(op string) error {
	return pgside.Retry(op, "", "the target is not open; Open comes first")
}

// thisIsABug is the remedy for what only a fault in cbrepl can bring about.
const thisIsABug = dtx.ReportBug + ". Nothing is applied"

// position finds a content among the recorded positions, or -1.
func (r *Row) position(c dtx.Content) int {
	return slices.IndexFunc(r.Positions, func(p dtx.Position) bool { return p.Content == c })
}

// moved returns the positions with those of ps in place.
func (r *Row) moved(ps []dtx.Position) []dtx.Position {
	out := slices.Clone(r.Positions)
	for _, p := range ps {
		out[r.position(p.Content)].LSN = p.LSN
	}
	return out
}

// check refuses a batch that does not follow from what is recorded.
func (r *Row) check(b *dtx.Batch) error {
	refuse := func(format string, args ...any) error {
		return pgside.Stop(OpApply, thisIsABug, format, args...)
	}
	if !r.Initialized {
		return refuse("batch %d of a subscription without first positions", b.Seq)
	}
	if b.Seq != r.Decided.Batch+1 {
		return refuse("batch %d does not follow batch %d", b.Seq, r.Decided.Batch)
	}
	for _, p := range b.Positions {
		i := r.position(p.Content)
		if i < 0 {
			return refuse("batch %d moves a stream of content %d, which the subscription does not have", b.Seq, p.Content)
		}
		if at := r.Positions[i].LSN; p.LSN < at {
			return refuse("batch %d moves content %d back from %s to %s", b.Seq, p.Content, at, p.LSN)
		}
	}
	return nil
}
