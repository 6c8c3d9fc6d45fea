package lab

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
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

// newDataDir makes a data directory with a system identifier of its own: a copy
// of the template in which the identifier is another. It takes a tenth of the
// CPU time of another initdb, and no program beside the server.
func (l *Lab) newDataDir(ctx context.Context, dir string) error {
	tmpl, err := l.template()
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return opErr("copy data directory", err)
	}
	if err := l.copyTree(tmpl, dir); err != nil {
		return opErr("copy data directory", err)
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	sysid := binary.NativeEndian.Uint64(id[:])>>1 | 1
	return opErr("set system identifier", setSystemID(dir, sysid))
}

// sysidInWAL is where the long page header that begins every WAL segment has
// the system identifier: behind the 24 bytes of the short header.
const sysidInWAL = 24

// setSystemID changes the system identifier of a data directory whose server
// was shut down: in pg_control and in every WAL segment.
func setSystemID(dir string, sysid uint64) error {
	control := filepath.Join(dir, "global", "pg_control")
	b, err := os.ReadFile(control)
	if err != nil {
		return err
	}
	if err := setControlID(b, sysid); err != nil {
		return fmt.Errorf("%s: %w", control, err)
	}
	if err := os.WriteFile(control, b, 0o600); err != nil {
		return err
	}
	segments, err := filepath.Glob(filepath.Join(dir, "pg_wal", strings.Repeat("[0-9A-F]", 24)))
	if err != nil {
		return err
	}
	for _, segment := range segments {
		f, err := os.OpenFile(segment, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, sysid), sysidInWAL)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// setControlID changes the system identifier in the content of pg_control,
// which is its first field in every version. A CRC-32C over all fields is
// behind the last one. Where that is differs between versions, so it is looked
// for: the place whose value is the checksum of everything before it.
func setControlID(b []byte, sysid uint64) error {
	const most = 512 // the fields fit into one sector of a disk
	table := crc32.MakeTable(crc32.Castagnoli)
	for at := 8; at+4 <= min(most, len(b)); at += 4 {
		if binary.NativeEndian.Uint32(b[at:]) != crc32.Checksum(b[:at], table) {
			continue
		}
		binary.NativeEndian.PutUint64(b, sysid)
		binary.NativeEndian.PutUint32(b[at:], crc32.Checksum(b[:at], table))
		return nil
	}
	return errors.New("there is no checksum")
}

// copyTree copies a data directory and gives the copy to the servers' account.
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
			err = os.Mkdir(dst, 0o700)
		case filepath.Dir(rel) == "pg_wal":
			err = copySegment(path, dst)
		case d.Type().IsRegular():
			err = copyFile(path, dst)
		default:
			err = fmt.Errorf("%s is neither file nor directory", path)
		}
		if err != nil {
			return err
		}
		return l.own(dst)
	})
}

// copySegment copies a WAL segment. The zeros behind its last record, which are
// nearly all of it, become a hole.
func copySegment(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to, bytes.TrimRight(b, "\x00"), 0o600); err != nil {
		return err
	}
	return os.Truncate(to, int64(len(b)))
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
