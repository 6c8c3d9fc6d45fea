package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable/block"

	"cbrepl/logkey"
)

// database is Pebble with its sharp edges taken off: failures are values, never
// exits or panics; a writer that must wait for the disk waits under its context.
type database struct {
	*pebble.DB
	fs  *failFS
	log *slog.Logger
	// stop is closed at the first failure and at the end: whoever waits gives up.
	stop     chan struct{}
	stopOnce sync.Once

	closed atomic.Bool
	// closing lets the last writes pass: nobody flushes for them any more.
	closing atomic.Bool
	// written counts bytes since the memtables were last looked at.
	written  atomic.Int64
	memtable int64
	flushed  struct {
		sync.Mutex
		c chan struct{} // closed at the end of every flush
	}
}

// maxMemtables bounds memtables, the one being written included.
const maxMemtables = 4

// openDatabase opens Pebble in dir for the mode and the memory given by o.
func openDatabase(dir string, o *Options, log *slog.Logger) (*database, error) {
	d := &database{log: log, stop: make(chan struct{}), memtable: o.memtableBytes}
	d.flushed.c = make(chan struct{})
	d.fs = &failFS{FS: o.FS, noSync: o.Mode == Applied}
	d.fs.report = func(err error) {
		log.Error("spool has failed", logkey.Error, err)
		d.halt()
	}
	po := &pebble.Options{
		FS:                 d.fs,
		FormatMajorVersion: pebble.FormatColumnarBlocks,
		Logger:             pebbleLogger{d},
		CacheSize:          o.MemBytes / 16,
		MemTableSize:       uint64(o.memtableBytes),
		DisableWAL:         o.Mode == Applied,
		WALBytesPerSync:    512 << 10,
		// Pebble's own write stalls cannot be interrupted; throttle stands in.
		MemTableStopWritesThreshold: 1 << 20,
		L0StopWritesThreshold:       1 << 20,
		// Blocks live briefly and freed ranges cover whole tables: rewriting
		// them early is wasted work.
		L0CompactionThreshold:     16,
		L0CompactionFileThreshold: 2000,
		LBaseMaxBytes:             1 << 50,
		MaxOpenFiles:              512,
		CompactionConcurrencyRange: func() (int, int) {
			return 1, 1
		},
	}
	po.Experimental.SpanPolicyFunc = func(start []byte) (pebble.SpanPolicy, []byte, error) {
		return pebble.SpanPolicy{}, tableEnd(start), nil
	}
	// With a constant limit a compaction is due only when one was asked for or
	// has ended, so the default scheduler's ticking goroutine has nothing to add;
	// and it would outlive an Open that fails.
	po.Experimental.CompactionScheduler = pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest()
	po.TargetFileSizes[0] = 16 << 20
	po.TargetFileSizes[1] = 32 << 20
	for i := range po.Levels {
		po.Levels[i].BlockSize = 32 << 10
		po.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		po.Levels[i].Compression = func() *block.CompressionProfile { return block.NoCompression }
	}
	l := d.listener()
	po.EventListener = &l
	db, err := protect(func() (*pebble.DB, error) { return pebble.Open(dir, po) })
	if err == nil {
		d.DB = db
		if err = d.failed(); err != nil {
			_ = d.close()
		}
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// protect turns a panic inside Pebble into an error.
func protect[T any](f func() (T, error)) (v T, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("pebble: %v", r)
		}
	}()
	return f()
}

// failed returns the first failure, or that the database is closed.
func (d *database) failed() error {
	if err := d.fs.failed(); err != nil {
		return err
	}
	if d.closed.Load() {
		return errClosed
	}
	return nil
}

func (d *database) halt() { d.stopOnce.Do(func() { close(d.stop) }) }

// stopped says why stop is closed.
func (d *database) stopped() error {
	if err := d.failed(); err != nil {
		return err
	}
	return errClosed
}

// apply writes b; sync waits until it is on disk. It blocks while memtables wait
// for the disk.
func (d *database) apply(ctx context.Context, b *pebble.Batch, sync bool) error {
	if err := d.failed(); err != nil {
		return err
	}
	if d.written.Add(int64(b.Len())) >= d.memtable/2 && !d.closing.Load() {
		d.written.Store(0)
		if err := d.throttle(ctx); err != nil {
			return err
		}
	}
	return d.applyNow(b, sync)
}

// applyNow is apply for small batches: it does not wait for memtables.
func (d *database) applyNow(b *pebble.Batch, sync bool) error {
	if err := d.failed(); err != nil {
		return err
	}
	o := pebble.NoSync
	if sync {
		o = pebble.Sync
	}
	_, err := protect(func() (struct{}, error) { return struct{}{}, d.Apply(b, o) })
	if err != nil {
		d.fs.fail(err)
	}
	return d.failed()
}

// update applies the batch that f fills, if it does.
func (d *database) update(ctx context.Context, sync bool, f func(*pebble.Batch) error) error {
	b := d.NewBatch()
	err := f(b)
	if err == nil && !b.Empty() {
		err = d.apply(ctx, b, sync)
	}
	return errors.Join(err, b.Close())
}

// sync makes everything applied before durable.
func (d *database) sync(ctx context.Context) error {
	return d.update(ctx, true, func(b *pebble.Batch) error { return b.LogData(nil, nil) })
}

// flush writes the memtables to tables and waits for it.
func (d *database) flush(ctx context.Context) error {
	if err := d.failed(); err != nil {
		return err
	}
	c, err := protect(d.AsyncFlush)
	if err != nil {
		d.fs.fail(err)
		return err
	}
	select {
	case <-c:
		return d.failed()
	case <-ctx.Done():
		return ctx.Err()
	case <-d.stop:
		return d.stopped()
	}
}

// excise removes everything in [start, end) from the tables.
func (d *database) excise(ctx context.Context, start, end []byte) error {
	if err := d.failed(); err != nil {
		return err
	}
	_, err := protect(func() (struct{}, error) {
		return struct{}{}, d.Excise(ctx, pebble.KeyRange{Start: start, End: end})
	})
	if err != nil {
		d.fs.fail(err)
	}
	return d.failed()
}

// throttle waits until the memtables are below their bound.
func (d *database) throttle(ctx context.Context) error {
	for {
		d.flushed.Lock()
		c := d.flushed.c
		d.flushed.Unlock()
		if d.memtableBytes() < maxMemtables*uint64(d.memtable) {
			return nil
		}
		select {
		case <-c:
		case <-ctx.Done():
			return ctx.Err()
		case <-d.stop:
			return d.stopped()
		}
	}
}

func (d *database) memtableBytes() uint64 { return d.Metrics().MemTable.Size }

// get reads a block. The value is valid until the closer is closed.
func (d *database) get(key []byte) ([]byte, io.Closer, error) {
	if d.closed.Load() {
		return nil, nil, errClosed
	}
	type res struct {
		v []byte
		c io.Closer
	}
	r, err := protect(func() (res, error) {
		v, c, err := d.Get(key)
		return res{v, c}, err
	})
	return r.v, r.c, err
}

func (d *database) close() error {
	d.closed.Store(true)
	_, err := protect(func() (struct{}, error) { return struct{}{}, d.DB.Close() }) //nolint:staticcheck // close is ours
	return err
}

func (d *database) listener() pebble.EventListener {
	l := pebble.MakeLoggingEventListener(pebbleLogger{d})
	l.BackgroundError = func(err error) {
		// An excise cancels a flush that overlaps it; it is done again.
		if errors.Is(err, pebble.ErrClosed) || errors.Is(err, pebble.ErrCancelledCompaction) {
			return
		}
		d.fs.fail(fmt.Errorf("background work: %w", err))
		// Pebble tries again at once, for ever; it holds its lock here, which
		// nobody but Close wants any more.
		time.Sleep(20 * time.Millisecond)
	}
	l.DataCorruption = func(info pebble.DataCorruptionInfo) {
		d.fs.fail(fmt.Errorf("%w: %w", errCorrupt, info.Details))
	}
	end := l.FlushEnd
	l.FlushEnd = func(info pebble.FlushInfo) {
		end(info)
		d.flushed.Lock()
		close(d.flushed.c)
		d.flushed.c = make(chan struct{})
		d.flushed.Unlock()
	}
	return l
}

// pebbleLogger sends Pebble's messages to debug level. Fatalf freezes the disk
// and returns: what reaches it here, with failures of manifest and log kept away
// (see failFS), is followed by an error, or is a broken invariant, and a frozen
// disk keeps what comes behind it harmless.
type pebbleLogger struct{ d *database }

func (l pebbleLogger) Infof(format string, args ...any) {
	if l.d.log.Enabled(context.Background(), slog.LevelDebug) {
		l.d.log.Debug("pebble", logkey.Event, fmt.Sprintf(format, args...))
	}
}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.d.log.Debug("pebble", logkey.Error, fmt.Sprintf(format, args...))
}

func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.d.fs.fail(fmt.Errorf(format, args...))
}
