package lab

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"cbrepl/dtx"
)

// tool prepares a PostgreSQL program to run as the servers' account, without
// the caller's PG* environment.
func (l *Lab) tool(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(l.bin, name), args...)
	cmd.Dir = l.dir
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PG") && !strings.HasPrefix(kv, "LC_") && !strings.HasPrefix(kv, "LANG") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C", "TZ=UTC")
	cmd.SysProcAttr = sysProcAttr(l.acct, false)
	return cmd
}

// run runs a program to its end; the error holds what it printed.
func (l *Lab) run(ctx context.Context, name string, args ...string) error {
	out, err := l.tool(ctx, name, args...).CombinedOutput()
	if err != nil {
		return &dtx.Error{Op: "run " + name, Msg: strings.TrimSpace(string(out)), Err: err, Class: dtx.ClassStop}
	}
	return nil
}

// initTemplate makes the data directory that every server's is copied from.
func (l *Lab) initTemplate(ctx context.Context) (string, error) {
	dir := filepath.Join(l.dir, "template")
	err := l.run(ctx, "initdb", "-D", dir, "-U", superuser, "-A", "trust", "-E", "UTF8",
		"--locale=C", "--no-sync", "--no-instructions")
	return dir, err
}

// newDataDir makes a data directory with a system identifier of its own. It
// copies the template without WAL, writes a random identifier into pg_control
// (its first field in every version) and lets pg_resetwal write the checksum
// and a first WAL segment under that identifier. This takes a tenth of the CPU
// time of another initdb.
func (l *Lab) newDataDir(ctx context.Context, dir string) error {
	tmpl, err := l.template()
	if err != nil {
		return err
	}
	if err := l.copyTree(tmpl, dir); err != nil {
		return opErr("copy data directory", err)
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	sysid := binary.NativeEndian.Uint64(id[:])>>1 | 1
	binary.NativeEndian.PutUint64(id[:], sysid)
	f, err := os.OpenFile(filepath.Join(dir, "global", "pg_control"), os.O_RDWR, 0)
	if err != nil {
		return opErr("set system identifier", err)
	}
	_, err = f.WriteAt(id[:], 0)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return opErr("set system identifier", err)
	}
	return l.run(ctx, "pg_resetwal", "-f", "-D", dir)
}

// copyTree copies a data directory, WAL segments left out, and gives the copy
// to the servers' account.
func (l *Lab) copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		dst := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			if err := os.Mkdir(dst, 0o700); err != nil {
				return err
			}
		case filepath.Dir(rel) == "pg_wal":
			return nil
		case d.Type().IsRegular():
			if err := copyFile(path, dst); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s is neither file nor directory", path)
		}
		return l.own(dst)
	})
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := out.Close(); err == nil {
			err = cerr
		}
	}()
	_, err = io.Copy(out, in) // copy_file_range, so a reflink where there are any
	return err
}
