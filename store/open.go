package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"cbrepl/dtx"
)

// formatVersion is the version of keys, frames and records. A spool of a newer
// one is refused.
const formatVersion = 1

// Names inside the spool's directory.
const (
	markerName = "CBREPL-SPOOL"
	markerTemp = "CBREPL-SPOOL.tmp"
	lockName   = "LOCK"
	dataName   = "data"
)

const (
	metaChains = "chains"
	metaBatch  = "batch"
)

// Open opens the spool in o.Dir, or makes one. In mode Applied whatever it held
// is gone afterwards; in mode Spooled everything acknowledged is there. A
// directory that holds something else, a spool of another mode, subscription
// or newer format, and one that is in use are refused untouched.
func Open(ctx context.Context, o Options) (*Spool, error) {
	o.EnsureDefaults()
	fault := func(err error, hint string) error {
		return &dtx.Error{Op: "open spool", Msg: o.Dir, Hint: hint, Class: dtx.ClassStop, Err: err}
	}
	if err := o.Validate(); err != nil {
		return nil, fault(err, "")
	}
	if err := makeDir(o.FS, o.Dir); err != nil {
		return nil, fault(err, "")
	}
	lock, err := o.FS.Lock(o.FS.PathJoin(o.Dir, lockName))
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return nil, fault(err, "")
	}
	if err != nil {
		return nil, fault(fmt.Errorf("the directory is in use: %w", err),
			"Another daemon uses this spool; stop it, or give this one a directory of its own")
	}
	s, err := open(ctx, o, lock)
	if err != nil {
		_ = lock.Close()
		var e *dtx.Error
		if errors.As(err, &e) {
			return nil, err
		}
		return nil, fault(err, "")
	}
	return s, nil
}

func open(ctx context.Context, o Options, lock io.Closer) (*Spool, error) {
	if err := checkMarker(&o); err != nil {
		return nil, err
	}
	dir := o.FS.PathJoin(o.Dir, dataName)
	if o.Mode == Applied {
		if err := o.FS.RemoveAll(dir); err != nil {
			return nil, fmt.Errorf("empty the cache: %w", err)
		}
	}
	if err := makeDir(o.FS, dir); err != nil {
		return nil, err
	}
	db, err := openDatabase(dir, &o, o.Logger)
	if err != nil {
		return nil, err
	}
	s := &Spool{
		opts: o, lock: lock, db: db, rels: newRelations(),
		tier:  &tier{max: o.tierBytes},
		space: newSpace(o.MaxBytes, o.MaxParts, o.Now),
		lanes: map[dtx.Content]*lane{}, reclaimC: make(chan struct{}, 1),
	}
	if o.Mode == Spooled {
		s.tier.max = 0
		if err := s.recover(ctx); err != nil {
			_ = db.close()
			return nil, err
		}
	}
	s.reclaimer.Go(s.runReclaim)
	return s, nil
}

// checkMarker reads the marker file, or writes it into an empty directory.
func checkMarker(o *Options) error {
	there, err := readMarker(o)
	if err != nil || there {
		return err
	}
	return writeMarker(o)
}

// readMarker refuses a directory that is another's. It reports whether it is a spool's;
// else it is empty.
func readMarker(o *Options) (bool, error) {
	text, err := readFile(o.FS, o.FS.PathJoin(o.Dir, markerName))
	if oserror.IsNotExist(err) {
		return false, checkEmpty(o)
	}
	if err != nil {
		return false, err
	}
	refuse := func(hint, format string, a ...any) error {
		return &dtx.Error{Op: "open spool", Msg: o.Dir, Hint: hint, Class: dtx.ClassStop, Err: fmt.Errorf(format, a...)}
	}
	m := parseMarker(text)
	format, err := strconv.Atoi(m["format"])
	if err != nil || format < 1 {
		return false, refuse("Name another directory", "the file %s is not a spool's", markerName)
	}
	if format > formatVersion {
		return false, refuse("Use the version of cbrepl that wrote it, or a newer one",
			"the spool has format %d; this version of cbrepl knows formats up to %d", format, formatVersion)
	}
	if m["subscription"] != strconv.Quote(o.Subscription) {
		return false, refuse("Give every subscription a directory of its own",
			"the spool belongs to subscription %s, not %q", m["subscription"], o.Subscription)
	}
	if m["mode"] != o.Mode.String() {
		hint := "Nothing in it is needed: remove the directory to change the ack mode"
		if m["mode"] == Spooled.String() {
			hint = "It may hold the only copy of confirmed transactions: run the former ack mode until nothing is pending, stop it with SIGTERM, then remove the directory"
		}
		return false, refuse(hint, "the spool was written with ack mode %s, not %s", m["mode"], o.Mode)
	}
	return true, nil
}

// parseMarker returns the marker file's lines by their first word.
func parseMarker(text []byte) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(string(text)) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), " ")
		m[k] = v
	}
	return m
}

// checkEmpty refuses a directory that holds what is no spool's.
func checkEmpty(o *Options) error {
	names, err := o.FS.List(o.Dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		// A first Open that was cut off leaves nothing else.
		if n != lockName && n != markerTemp {
			return &dtx.Error{
				Op: "open spool", Msg: o.Dir, Class: dtx.ClassStop,
				Err:  fmt.Errorf("the directory holds other files (%s) and no spool", n),
				Hint: "Name an empty directory, or one that does not exist",
			}
		}
	}
	return nil
}

func writeMarker(o *Options) error {
	text := fmt.Sprintf("format %d\nmode %s\nsubscription %q\n", formatVersion, o.Mode, o.Subscription)
	temp := o.FS.PathJoin(o.Dir, markerTemp)
	f, err := o.FS.Create(temp, "cbrepl-marker")
	if err != nil {
		return err
	}
	_, err = f.Write([]byte(text))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = o.FS.Rename(temp, o.FS.PathJoin(o.Dir, markerName))
	}
	if err == nil {
		err = syncDir(o.FS, o.Dir)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", markerName, err)
	}
	return nil
}

// makeDir makes a directory and its parents; those that are new survive a power
// cut.
func makeDir(v vfs.FS, dir string) error {
	var changed []string
	for d := dir; ; {
		_, err := v.Stat(d)
		if err == nil {
			break
		}
		if !oserror.IsNotExist(err) {
			return err
		}
		parent := v.PathDir(d)
		changed = append(changed, parent)
		if parent == d {
			break
		}
		d = parent
	}
	if err := v.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, d := range changed {
		if err := syncDir(v, d); err != nil {
			return err
		}
	}
	return nil
}

func syncDir(v vfs.FS, dir string) error {
	d, err := v.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func readFile(v vfs.FS, path string) ([]byte, error) {
	f, err := v.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b bytes.Buffer
	_, err = io.Copy(&b, io.LimitReader(f, 1<<16))
	return b.Bytes(), err
}
