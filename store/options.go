package store

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Mode says what the spool's data is worth.
type Mode uint8

const (
	// Applied: the source confirms only what the target has committed, so the
	// spool is a cache. Nothing is synced; Open starts empty.
	Applied Mode = iota
	// Spooled: the source confirms what the spool holds, so it is the only copy.
	Spooled
)

// String names the mode as the configuration does.
func (m Mode) String() string {
	switch m {
	case Applied:
		return "applied"
	case Spooled:
		return "spooled"
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// Options configure a spool.
type Options struct {
	// Dir is the spool's own directory; it is created when missing.
	Dir string
	// Subscription names the owner; a directory of another one is refused.
	Subscription string
	Mode         Mode
	// MaxBytes bounds the spooled bytes not yet released; 0 means 16 GiB. Each
	// content may pass it by one block, an exempt content without limit.
	MaxBytes int64
	// MaxParts bounds the committed parts not yet released, which those who order
	// and apply them keep in memory; 0 means 400,000.
	MaxParts int
	// MemBytes bounds the memory of the spool as a whole: recent blocks, Pebble's
	// memtables and its block cache; 0 means 64 MiB, the least is 8 MiB. Beyond it
	// every writer holds up to five blocks of 64 KiB under construction.
	MemBytes int64
	// Logger receives Pebble's events at debug level; nil discards them.
	Logger *slog.Logger
	// Now is the clock of Usage.FullSince; nil means time.Now.
	Now func() time.Time
	// FS is the file system; nil means the disk's.
	FS vfs.FS

	// tierBytes replaces the share of MemBytes that keeps recent blocks in mode
	// Applied; -1 turns it off.
	tierBytes int64
	// memtableBytes replaces the size of one memtable.
	memtableBytes int64
	// deleteBytes replaces the dead bytes on disk that start a bulk delete.
	deleteBytes int64
	// deleteCount replaces the dead records of one kind that start one.
	deleteCount int
}

const (
	defaultMaxBytes = 16 << 30
	defaultMaxParts = 400_000
	defaultMemBytes = 64 << 20
	minMemBytes     = 8 << 20
)

// EnsureDefaults fills unset fields.
func (o *Options) EnsureDefaults() {
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultMaxBytes
	}
	if o.MaxParts == 0 {
		o.MaxParts = defaultMaxParts
	}
	if o.MemBytes == 0 {
		o.MemBytes = defaultMemBytes
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.tierBytes == 0 {
		o.tierBytes = o.MemBytes / 2
	}
	if o.memtableBytes == 0 {
		o.memtableBytes = o.MemBytes / 10
	}
	if o.deleteCount == 0 {
		o.deleteCount = 4096
	}
	if o.deleteBytes == 0 {
		o.deleteBytes = min(max(o.MaxBytes/16, 1<<20), 64<<20)
	}
}

// Validate reports every problem at once.
func (o *Options) Validate() error {
	var errs []error
	if o.Dir == "" {
		errs = append(errs, errors.New("spool directory is not set"))
	}
	if o.Mode > Spooled {
		errs = append(errs, fmt.Errorf("unknown ack mode %s", o.Mode))
	}
	if o.MaxBytes < blockSize {
		errs = append(errs, fmt.Errorf("spool limit of %d bytes is below one block (%d)", o.MaxBytes, blockSize))
	}
	if o.MaxParts < 1 {
		errs = append(errs, fmt.Errorf("spool limit of %d parts is below 1", o.MaxParts))
	}
	if o.MemBytes < minMemBytes {
		errs = append(errs, fmt.Errorf("spool memory of %d bytes is below the least, %d", o.MemBytes, int64(minMemBytes)))
	}
	return errors.Join(errs...)
}
