package store

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cockroachdb/errors/oserror"
	"golang.org/x/sys/unix"

	"cbrepl/check"
	"cbrepl/dtx"
)

// Check finds out whether Open would take o.Dir, and whether the disk has the room that
// the spool may take. It changes nothing; a spool that is in use may be looked at.
func Check(o Options) check.Findings {
	o.EnsureDefaults()
	var fs check.Findings
	add := func(l check.Level, remedy, format string, args ...any) *check.Finding {
		fs = append(fs, check.Finding{Level: l, Side: check.Here, Found: "spool " + o.Dir + ": " + fmt.Sprintf(format, args...), Remedy: remedy})
		return &fs[len(fs)-1]
	}
	if err := o.Validate(); err != nil {
		return check.Of(check.Here, &dtx.Error{Op: "open spool", Class: dtx.ClassStop, Err: err})
	}
	dir, err := existing(&o)
	switch {
	case err != nil:
		add(check.Error, "Name another directory in spool.dir", "%v", err)
		return fs
	case unix.Access(dir, unix.W_OK|unix.X_OK|unix.R_OK) != nil:
		add(check.Error, "Let the account that runs the daemon write there, or name another directory in spool.dir", "%s cannot be written to by this account", dir)
		return fs
	}
	if dir == o.Dir {
		if _, err := readMarker(&o); err != nil {
			return append(fs, check.Of(check.Here, err)...)
		}
	}
	usage, err := o.FS.GetDiskUsage(dir)
	if err != nil {
		add(check.Warning, "", "how much room its disk has cannot be found out: %v", err)
		return fs
	}
	const mib = 1 << 20
	if usage.AvailBytes < uint64(o.MaxBytes) {
		add(check.Warning, fmt.Sprintf("Make room, name a directory on another disk in spool.dir, or lower spool.max_bytes to %dMiB", usage.AvailBytes/mib*9/10),
			"its disk has %d MiB free, spool.max_bytes allows %d MiB: a full disk stops the daemon, a full spool only lets it wait", usage.AvailBytes/mib, o.MaxBytes/mib)
		return fs
	}
	add(check.OK, "", "%d MiB free, up to %d MiB may be used", usage.AvailBytes/mib, o.MaxBytes/mib)
	return fs
}

// existing is the directory, or the closest one above it that exists.
func existing(o *Options) (string, error) {
	for dir := o.Dir; ; {
		st, err := o.FS.Stat(dir)
		switch {
		case err == nil && !st.IsDir():
			return "", &fs.PathError{Op: "open", Path: dir, Err: errors.New("not a directory")}
		case err == nil:
			return dir, nil
		case errors.Is(err, unix.ENOTDIR) || oserror.IsNotExist(err):
		default:
			return "", err
		}
		parent := o.FS.PathDir(dir)
		if parent == dir {
			return "", err
		}
		dir = parent
	}
}
