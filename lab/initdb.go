package lab

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

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

// initdbArgs are initdb's arguments beside the directory.
var initdbArgs = []string{"-U", superuser, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"}

// initTemplate returns the archive of a data directory that every server's is
// unpacked from. With KeepTemplate it is a file of the caller's in the temporary
// directory, and initdb runs once for all labs until the server's binaries are
// others. One file is either there or not: what clears old files away cannot
// damage it.
func (l *Lab) initTemplate(ctx context.Context) (string, error) {
	path, err := l.templatePath()
	if err != nil {
		return "", opErr("find data directory template", err)
	}
	if l.opts.KeepTemplate && ownFile(path) {
		return path, nil
	}
	dir := filepath.Join(l.dir, "template")
	if err := l.run(ctx, "initdb", append([]string{"-D", dir}, initdbArgs...)...); err != nil {
		return "", err
	}
	archive := dir + ".tar"
	if err := errors.Join(archiveTree(dir, archive), removeAll(dir)); err != nil {
		return "", opErr("archive data directory template", err)
	}
	// Another lab may have been quicker, but one archive is as good as the other.
	if !l.opts.KeepTemplate || os.Rename(archive, path) != nil { // another file system: for this lab only
		return archive, nil //nolint:nilerr // see the line above
	}
	return path, nil
}

// templatePath names the template after what makes it.
func (l *Lab) templatePath() (string, error) {
	h := sha256.New()
	for _, name := range serverTools {
		file, err := filepath.EvalSymlinks(filepath.Join(l.bin, name))
		if err != nil {
			return "", err
		}
		st, err := os.Stat(file)
		if err != nil {
			return "", err
		}
		_, _ = fmt.Fprintln(h, file, st.Size(), st.ModTime().UnixNano())
	}
	_, _ = fmt.Fprintln(h, initdbArgs)
	return filepath.Join(tempBase(), fmt.Sprintf("cbrepl-initdb-%d-%.16x.tar", os.Geteuid(), h.Sum(nil))), nil
}

// ownFile reports whether path is a file that only the caller may have written.
func ownFile(path string) bool {
	st, err := os.Lstat(path)
	if err != nil || !st.Mode().IsRegular() || st.Mode().Perm()&0o022 != 0 {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(sys.Uid) == os.Geteuid()
}

// newDataDir makes a data directory with a system identifier of its own: the
// template in which the identifier is another. It takes a tenth of the CPU time
// of another initdb, and no program beside the server.
func (l *Lab) newDataDir(ctx context.Context, dir string) error {
	tmpl, err := l.template()
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return opErr("unpack data directory", err)
	}
	if err := l.unpackTree(tmpl, dir); err != nil {
		return opErr("unpack data directory", err)
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

// archiveTree writes a directory's files into an archive.
func archiveTree(dir, archive string) (err error) {
	f, err := os.OpenFile(archive, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := tar.NewWriter(f)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		return err
	}
	return w.Close()
}

// unpackTree makes a directory of an archive and gives it to the servers'
// account. Zeros at the end of a file, which are nearly all of a WAL segment,
// become a hole.
func (l *Lab) unpackTree(archive, dir string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := l.own(dir); err != nil {
		return err
	}
	for r := tar.NewReader(bufio.NewReaderSize(f, 1<<20)); ; {
		hdr, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !filepath.IsLocal(hdr.Name) {
			return fmt.Errorf("%s holds %q", archive, hdr.Name)
		}
		path := filepath.Join(dir, hdr.Name)
		if hdr.Typeflag == tar.TypeDir {
			err = os.Mkdir(path, 0o700)
		} else {
			err = writeFile(path, r, hdr.Size)
		}
		if err == nil {
			err = l.own(path)
		}
		if err != nil {
			return err
		}
	}
}

func writeFile(path string, r io.Reader, size int64) error {
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	content := bytes.TrimRight(b, "\x00")
	if err := os.WriteFile(path, content, 0o600); err != nil || len(content) == len(b) {
		return err
	}
	return os.Truncate(path, size)
}
