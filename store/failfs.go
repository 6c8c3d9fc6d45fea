package store

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// failFS stands between Pebble and the disk and makes the first failed write
// the last one: from then on nothing on disk changes, as after a power cut, and
// the spool reports the failure. Pebble itself would end the process at a
// failed write-ahead log, and could go on writing a manifest after a failed
// sync, which recovery then finds inconsistent.
//
// Failures of the log and of directory syncs are kept from Pebble: it is told
// they succeeded, and the spool, which asks failed before it acknowledges
// anything, does the reporting. All other failures are returned as well;
// Pebble's background work ends there by itself.
type failFS struct {
	vfs.FS
	// noSync drops syncs: the spool is a cache.
	noSync bool
	cause  atomic.Pointer[error]
	report func(error)
}

var errFrozen = errors.New("spool has failed before; nothing is written any more")

// failed returns the first failure.
func (f *failFS) failed() error {
	if p := f.cause.Load(); p != nil {
		return *p
	}
	return nil
}

// fail records the first failure and freezes the disk.
func (f *failFS) fail(err error) {
	if f.cause.CompareAndSwap(nil, &err) && f.report != nil {
		f.report(err)
	}
}

// check passes the outcome of a write on, recording failures.
func (f *failFS) check(op, name string, err error) error {
	if err != nil {
		f.fail(fmt.Errorf("%s %s: %w", op, f.PathBase(name), err))
	}
	return err
}

const walCategory vfs.DiskWriteCategory = "pebble-wal"

func (f *failFS) wrap(op, name string, wal bool, open func() (vfs.File, error)) (vfs.File, error) {
	if f.failed() != nil {
		if wal {
			return &failFile{fs: f, name: name, wal: true}, nil
		}
		return nil, errFrozen
	}
	file, err := open()
	if f.check(op, name, err) != nil {
		if wal {
			return &failFile{fs: f, name: name, wal: true}, nil
		}
		return nil, err
	}
	return &failFile{File: file, fs: f, name: name, wal: wal}, nil
}

func (f *failFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.wrap("create", name, category == walCategory, func() (vfs.File, error) {
		return f.FS.Create(name, category)
	})
}

func (f *failFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.wrap("open", name, category == walCategory, func() (vfs.File, error) {
		return f.FS.OpenReadWrite(name, category, opts...)
	})
}

func (f *failFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.wrap("reuse", newname, category == walCategory, func() (vfs.File, error) {
		return f.FS.ReuseForWrite(oldname, newname, category)
	})
}

func (f *failFS) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &failFile{File: file, fs: f, name: name, wal: true}, nil
}

func (f *failFS) change(op, name string, do func() error) error {
	if f.failed() != nil {
		return errFrozen
	}
	return f.check(op, name, do())
}

func (f *failFS) Link(oldname, newname string) error {
	return f.change("link", newname, func() error { return f.FS.Link(oldname, newname) })
}

func (f *failFS) Rename(oldname, newname string) error {
	return f.change("rename", newname, func() error { return f.FS.Rename(oldname, newname) })
}

func (f *failFS) MkdirAll(dir string, perm os.FileMode) error {
	return f.change("create directory", dir, func() error { return f.FS.MkdirAll(dir, perm) })
}

// Remove reports failures to Pebble only: a file that cannot be removed costs
// space, not data.
func (f *failFS) Remove(name string) error {
	if f.failed() != nil {
		return errFrozen
	}
	return f.FS.Remove(name)
}

func (f *failFS) RemoveAll(name string) error {
	if f.failed() != nil {
		return errFrozen
	}
	return f.FS.RemoveAll(name)
}

func (f *failFS) Unwrap() vfs.FS { return f.FS }

// failFile is a file opened for writing, or a directory. File is nil when the
// log could not be created.
type failFile struct {
	vfs.File
	fs   *failFS
	name string
	wal  bool
}

// write runs do, unless the disk is frozen, and returns what Pebble is told.
func (w *failFile) write(op string, do func() error) error {
	err := errFrozen
	if w.fs.failed() == nil {
		err = w.fs.check(op, w.name, do())
	}
	if w.wal {
		return nil
	}
	return err
}

func (w *failFile) Write(p []byte) (n int, err error) {
	err = w.write("write", func() (e error) { n, e = w.File.Write(p); return e })
	if w.wal {
		return len(p), nil
	}
	return n, err
}

func (w *failFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = w.write("write", func() (e error) { n, e = w.File.WriteAt(p, off); return e })
	if w.wal {
		return len(p), nil
	}
	return n, err
}

func (w *failFile) Preallocate(offset, length int64) error {
	if w.File == nil || w.fs.failed() != nil {
		return nil
	}
	return w.write("preallocate", func() error { return w.File.Preallocate(offset, length) })
}

func (w *failFile) Sync() error {
	if w.fs.noSync {
		return nil
	}
	return w.write("sync", func() error { return w.File.Sync() })
}

func (w *failFile) SyncData() error {
	if w.fs.noSync {
		return nil
	}
	return w.write("sync", func() error { return w.File.SyncData() })
}

func (w *failFile) SyncTo(length int64) (full bool, err error) {
	if w.fs.noSync {
		return false, nil
	}
	err = w.write("sync", func() (e error) { full, e = w.File.SyncTo(length); return e })
	return full, err
}

func (w *failFile) Stat() (fi vfs.FileInfo, err error) {
	if !w.wal {
		return w.File.Stat()
	}
	if _ = w.write("stat", func() (e error) { fi, e = w.File.Stat(); return e }); fi == nil {
		return noFile{name: w.name}, nil
	}
	return fi, nil
}

// noFile is what Pebble is told about a log that it cannot have.
type noFile struct {
	name string
}

func (f noFile) Name() string           { return f.name }
func (f noFile) Size() int64            { return 0 }
func (f noFile) Mode() os.FileMode      { return 0 }
func (f noFile) ModTime() time.Time     { return time.Time{} }
func (f noFile) IsDir() bool            { return false }
func (f noFile) Sys() any               { return nil }
func (f noFile) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }

func (w *failFile) Fd() uintptr {
	if w.File == nil {
		return vfs.InvalidFd
	}
	return w.File.Fd()
}

// Close always closes the file; a failure counts only before the disk froze.
func (w *failFile) Close() error {
	if w.File == nil {
		return nil
	}
	err := w.File.Close()
	if w.fs.failed() == nil {
		err = w.fs.check("close", w.name, err)
	}
	if w.wal {
		return nil
	}
	return err
}
