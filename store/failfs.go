package store

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// failFS stands between Pebble and the disk and makes the first failed write
// the last one: from then on nothing on disk changes, as after a power cut, and
// the spool reports the failure.
//
// Pebble is told the truth about tables: a flush or compaction that cannot write
// one ends with an error. About everything else (logs, manifests, markers,
// directory syncs) it is told that all is well: at a failure there it would end
// the process, or, when kept from that, go on with state in memory that it knows
// to be wrong. The spool asks failed before it acknowledges anything and does
// the reporting.
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

// isTable reports whether Pebble hears of failures to write the file.
func isTable(name string) bool {
	return strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob")
}

func (f *failFS) wrap(op, name string, open func() (vfs.File, error)) (vfs.File, error) {
	w := &failFile{fs: f, name: name, quiet: !isTable(name)}
	err := errFrozen
	if f.failed() == nil {
		w.File, err = open()
		err = f.check(op, name, err)
	}
	if err != nil {
		w.File = nil
		if !w.quiet {
			return nil, err
		}
	}
	return w, nil
}

func (f *failFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.wrap("create", name, func() (vfs.File, error) {
		return f.FS.Create(name, category)
	})
}

func (f *failFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.wrap("open", name, func() (vfs.File, error) {
		return f.FS.OpenReadWrite(name, category, opts...)
	})
}

func (f *failFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.wrap("reuse", newname, func() (vfs.File, error) {
		return f.FS.ReuseForWrite(oldname, newname, category)
	})
}

func (f *failFS) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &failFile{File: file, fs: f, name: name, quiet: true}, nil
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

// failFile is a file opened for writing, or a directory. A quiet one never tells
// of failures; its File is nil when it could not be created.
type failFile struct {
	vfs.File
	fs    *failFS
	name  string
	quiet bool
}

// write runs do, unless the disk is frozen, and returns what Pebble is told.
func (w *failFile) write(op string, do func() error) error {
	err := errFrozen
	if w.fs.failed() == nil {
		err = w.fs.check(op, w.name, do())
	}
	return w.tell(err)
}

// tell returns what Pebble hears of err.
func (w *failFile) tell(err error) error {
	if w.quiet {
		return nil
	}
	return err
}

func (w *failFile) Write(p []byte) (n int, err error) {
	err = w.write("write", func() (e error) { n, e = w.File.Write(p); return e })
	if err == nil {
		n = len(p)
	}
	return n, err
}

func (w *failFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = w.write("write", func() (e error) { n, e = w.File.WriteAt(p, off); return e })
	if err == nil {
		n = len(p)
	}
	return n, err
}

func (w *failFile) Preallocate(offset, length int64) error {
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
	if !w.quiet {
		return w.File.Stat()
	}
	if _ = w.write("stat", func() (e error) { fi, e = w.File.Stat(); return e }); fi == nil {
		return noFile{name: w.name}, nil
	}
	return fi, nil
}

// noFile is what Pebble is told about a file that it cannot have.
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
	return w.tell(err)
}
