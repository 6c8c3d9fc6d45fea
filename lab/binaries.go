package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"cbrepl/dtx"
)

const (
	// EnvBinDir names the environment variable with the directory of the server
	// binaries (initdb, postgres).
	EnvBinDir = "CBREPL_PG_BINDIR"
	// EnvUser names the environment variable with the account that runs the
	// servers when the caller is root.
	EnvUser = "CBREPL_PG_USER"
	// MinVersion is the oldest major version of PostgreSQL that the lab uses.
	MinVersion = 14
)

// serverTools are the programs that a usable binary directory holds.
var serverTools = []string{"postgres", "initdb"}

// FindBinaries returns the directory of PostgreSQL server binaries, version
// MinVersion or newer: $CBREPL_PG_BINDIR, else the newest of
// /usr/lib/postgresql/*/bin, else the directory that holds postgres on PATH,
// else the one that pg_config names.
func FindBinaries(ctx context.Context) (string, error) {
	if dir := os.Getenv(EnvBinDir); dir != "" {
		if err := checkBinaries(ctx, dir); err != nil {
			return "", &dtx.Error{
				Op: "find PostgreSQL", Msg: EnvBinDir + " is set to an unusable directory", Err: err,
				Hint:  "Set it to a directory with initdb and postgres of version " + strconv.Itoa(MinVersion) + " or newer, or unset it",
				Class: dtx.ClassStop,
			}
		}
		return dir, nil
	}
	tried := []string{}
	for _, dir := range binaryDirs(ctx) {
		err := checkBinaries(ctx, dir)
		if err == nil {
			return dir, nil
		}
		tried = append(tried, err.Error())
	}
	msg := fmt.Sprintf("no PostgreSQL server binaries, version %d or newer, on this machine", MinVersion)
	if len(tried) > 0 {
		msg += " (" + strings.Join(tried, "; ") + ")"
	}
	return "", &dtx.Error{
		Op: "find PostgreSQL", Msg: msg, Class: dtx.ClassStop,
		Hint: "Run scripts/ensure-postgres.sh (on Debian it installs the package postgresql), or set " + EnvBinDir,
	}
}

// binaryDirs lists directories that may hold server binaries, best first.
func binaryDirs(ctx context.Context) []string {
	type versioned struct {
		major int
		dir   string
	}
	var found []versioned
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"} {
		dirs, _ := filepath.Glob(pattern)
		for _, d := range dirs {
			base := strings.TrimPrefix(filepath.Base(filepath.Dir(d)), "pgsql-")
			if v, err := strconv.Atoi(base); err == nil {
				found = append(found, versioned{v, d})
			}
		}
	}
	slices.SortFunc(found, func(a, b versioned) int { return b.major - a.major })
	var out []string
	for _, f := range found {
		out = append(out, f.dir)
	}
	if p, err := exec.LookPath("postgres"); err == nil {
		if file, err := filepath.EvalSymlinks(p); err == nil {
			out = append(out, filepath.Dir(file))
		}
	}
	if b, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		out = append(out, strings.TrimSpace(string(b)))
	}
	return out
}

var versionRE = regexp.MustCompile(`\) (\d+)`)

// checkBinaries returns why dir is not usable, nil when it is.
func checkBinaries(ctx context.Context, dir string) error {
	for _, tool := range serverTools {
		if _, err := exec.LookPath(filepath.Join(dir, tool)); err != nil {
			return fmt.Errorf("%s has no %s", dir, tool)
		}
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return fmt.Errorf("%s/postgres --version: %w", dir, err)
	}
	m := versionRE.FindSubmatch(out)
	if m == nil {
		return fmt.Errorf("%s/postgres --version says %q", dir, strings.TrimSpace(string(out)))
	}
	if v, _ := strconv.Atoi(string(m[1])); v < MinVersion {
		return fmt.Errorf("%s holds version %d", dir, v)
	}
	return nil
}

// account is who runs the servers. The zero value is the caller.
type account struct {
	uid, gid int
	name     string
}

// other reports whether servers run under another account than the caller's.
func (a account) other() bool { return a.name != "" }

// findAccount chooses an unprivileged account when the caller is root, because
// PostgreSQL refuses to run as root: $CBREPL_PG_USER, else postgres, else nobody.
func findAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	names := []string{"postgres", "nobody"}
	if n := os.Getenv(EnvUser); n != "" {
		names = []string{n}
	}
	for _, n := range names {
		u, err := user.Lookup(n)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err1 == nil && err2 == nil && uid != 0 {
			return account{uid, gid, n}, nil
		}
	}
	return account{}, &dtx.Error{
		Op: "start PostgreSQL", Class: dtx.ClassStop,
		Msg:  "the caller is root, PostgreSQL refuses to run as root, and there is no account " + strings.Join(names, " or "),
		Hint: "Set " + EnvUser + " to an unprivileged account, or run as one",
	}
}
