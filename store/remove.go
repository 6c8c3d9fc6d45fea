package store

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/errors/oserror"

	"cbrepl/dtx"
)

// Remove deletes the spool of o's subscription in o.Dir, whatever its mode, and
// reports whether there was one. It refuses one that is in use or that belongs to
// another subscription. With dryRun it deletes nothing. It may be repeated.
func Remove(o Options, dryRun bool) (found bool, err error) {
	o.EnsureDefaults()
	fault := func(err error, hint string) error {
		return &dtx.Error{Op: "remove spool", Msg: o.Dir, Hint: hint, Class: dtx.ClassStop, Err: err}
	}
	marker := o.FS.PathJoin(o.Dir, markerName)
	if _, err := o.FS.Stat(marker); err != nil {
		if oserror.IsNotExist(err) {
			return false, nil
		}
		return false, fault(err, "")
	}
	lock, err := o.FS.Lock(o.FS.PathJoin(o.Dir, lockName))
	if err != nil {
		return true, fault(fmt.Errorf("the directory is in use: %w", err), "Stop the daemon first")
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	text, err := readFile(o.FS, marker)
	if err != nil {
		return true, fault(err, "")
	}
	m := parseMarker(text)
	if want := fmt.Sprintf("%q", o.Subscription); m["subscription"] != want {
		return true, fault(fmt.Errorf("the spool belongs to subscription %s, not %s", m["subscription"], want), "Correct spool.dir")
	}
	if dryRun {
		return true, nil
	}
	// The marker goes last: what is left of a removal that was cut off is found again.
	if err := o.FS.RemoveAll(o.FS.PathJoin(o.Dir, dataName)); err != nil {
		return true, fault(err, "")
	}
	if err := o.FS.Remove(marker); err != nil {
		return true, fault(err, "")
	}
	if err := syncDir(o.FS, o.Dir); err != nil {
		return true, fault(err, "")
	}
	return true, nil
}
