package apply

import (
	"errors"
	"fmt"
	"time"

	"cbrepl/dtx"
)

// OnConflict says what happens when source and target turn out to differ.
type OnConflict uint8

const (
	// ConflictStop stops the subscription; the batch is undone.
	ConflictStop OnConflict = iota
	// ConflictLog counts the row and goes on without it.
	ConflictLog
)

// Options bound what the engine holds in memory. They shape statements, never
// results.
type Options struct {
	OnConflict OnConflict
	// WindowBytes bounds the changes held before they are sent: rows, keys and
	// bookkeeping. A single larger row passes alone. 0 is 32 MiB.
	WindowBytes int64
	// WindowRows bounds the rows held in one window. 0 is 250,000.
	WindowRows int
	// HoldBytes bounds the inserts that tables hold back, all together: those with
	// deferrable constraints on the source until the end of a part, those whose rows
	// cross contents until the end of the batch. Beyond it they are sent, and meet whatever
	// still has their unique values. 0 is WindowBytes.
	HoldBytes int64
	// QueueBytes bounds the operations waiting for the target's segments. 0 is
	// 16 MiB.
	QueueBytes int64
	// ChunkBytes is the size at which buffered inserts are sent. 0 is 512 KiB.
	ChunkBytes int
	// ChunkRows bounds the rows of one update or delete statement. 0 is 50,000.
	ChunkRows int
	// TurnRows is how many changes of one content are read before it is another's
	// turn. The rows of a content often all go to one segment of the target, which
	// would be the only one at work while that content is read. 0 is 2,000.
	TurnRows int
	// FetchBytes is the size aimed at for rows fetched from the target by one
	// statement. 0 is 4 MiB.
	FetchBytes int64
	// BinaryCopy lets inserts be sent in COPY's binary format, which costs the
	// server a quarter less than text, where every value's binary form is known
	// exactly. The backend has to take both formats.
	BinaryCopy bool
	// KeepAlive is after how long without an operation a segment that takes part in
	// the batch is asked for a sign of life (Backend.KeepAlive): a large transaction
	// can keep one segment busy for longer than the others' servers let a session
	// stand idle. 0 is 3 minutes.
	KeepAlive time.Duration
	// TempDir takes fetched rows that do not fit a window; "" is the system's
	// directory for temporary files.
	TempDir string
}

// EnsureDefaults fills what was left zero.
func (o *Options) EnsureDefaults() {
	if o.WindowBytes == 0 {
		o.WindowBytes = 32 << 20
	}
	if o.WindowRows == 0 {
		o.WindowRows = 250_000
	}
	if o.HoldBytes == 0 {
		o.HoldBytes = o.WindowBytes
	}
	if o.QueueBytes == 0 {
		o.QueueBytes = 16 << 20
	}
	if o.ChunkBytes == 0 {
		o.ChunkBytes = 512 << 10
	}
	if o.ChunkRows == 0 {
		o.ChunkRows = 50_000
	}
	if o.TurnRows == 0 {
		o.TurnRows = 2000
	}
	if o.KeepAlive == 0 {
		o.KeepAlive = 3 * time.Minute
	}
	if o.FetchBytes == 0 {
		o.FetchBytes = 4 << 20
	}
}

// Validate joins all problems.
func (o *Options) Validate() error {
	var errs []error
	if o.OnConflict > ConflictLog {
		errs = append(errs, fmt.Errorf("on_conflict %d is not known", o.OnConflict))
	}
	for _, f := range []struct {
		name string
		v    int64
	}{
		{"window bytes", o.WindowBytes},
		{"window rows", int64(o.WindowRows)},
		{"hold bytes", o.HoldBytes},
		{"queue bytes", o.QueueBytes},
		{"chunk bytes", int64(o.ChunkBytes)},
		{"chunk rows", int64(o.ChunkRows)},
		{"turn rows", int64(o.TurnRows)},
		{"fetch bytes", o.FetchBytes},
		{"keep alive", int64(o.KeepAlive)},
	} {
		if f.v < 1 {
			errs = append(errs, fmt.Errorf("%s is %d: want at least 1", f.name, f.v))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return &dtx.Error{Op: "check apply options", Err: errors.Join(errs...), Class: dtx.ClassStop}
}
