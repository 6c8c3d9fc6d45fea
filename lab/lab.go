package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"cbrepl/dtx"
)

// Options describes servers to start. The zero value is usable.
type Options struct {
	// Segments is the number of segments of a source or shards of a target, up
	// to 64; 0 means 3 for a source and 2 for a target. StartServer ignores it.
	Segments int
	// Dir is where the lab's directory is made; empty means the temporary
	// directory. Every component must be open to the servers' account.
	Dir string
	// Settings are server settings over the lab's own (see baseSettings).
	Settings map[string]string
	// Publication names the publication on every node of a source; empty means
	// cbrepl_pub.
	Publication string
	// ViaPartitionRoot sets the publication's publish_via_partition_root.
	ViaPartitionRoot bool
	// GIDCarrier names the parts of two-phase transactions by their gid alone, for
	// slots with two_phase; else a message in the transaction names them.
	GIDCarrier bool
	// TimestampGIDs makes gids "<timestamp>-<gxid>" instead of "<gxid>".
	TimestampGIDs bool
	// PlainRecords makes commit records non-transactional messages. A server
	// crash at the moment of such a record may leave it without its decision.
	PlainRecords bool
	// FirstGXID is the first distributed transaction id; 0 means 1.
	FirstGXID dtx.GXID
	// Seed makes the choices of the dispatcher (placement of random tables, order
	// of COMMIT PREPARED, delay of markers) repeatable.
	Seed uint64
	// KeepTemplate leaves what initdb made in a file in the temporary directory, for
	// later labs of other processes.
	KeepTemplate bool
	// Logger gets one line per start and stop; nil means none.
	Logger *slog.Logger
}

// EnsureDefaults fills unset fields.
func (o *Options) EnsureDefaults() {
	if o.Dir == "" {
		o.Dir = tempBase()
	}
	if o.Publication == "" {
		o.Publication = "cbrepl_pub"
	}
	if o.FirstGXID == 0 {
		o.FirstGXID = 1
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate reports every problem.
func (o *Options) Validate() error {
	var errs []error
	if o.Segments < 0 || o.Segments > 64 {
		errs = append(errs, fmt.Errorf("segments is %d, want 0 to 64", o.Segments))
	}
	for _, k := range slices.Sorted(maps.Keys(o.Settings)) {
		if strings.ContainsAny(k+o.Settings[k], "\n\r") {
			errs = append(errs, fmt.Errorf("setting %q holds a line break", k))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return &dtx.Error{Op: "start lab", Err: err, Class: dtx.ClassStop}
	}
	return nil
}

// dirPrefix begins the name of every lab directory.
const dirPrefix = "cbrepl-lab-"

// lockName is the file that a living lab holds locked in its directory.
const lockName = "lock"

// Lab owns a directory and the servers in it. Its methods may be called by several goroutines.
type Lab struct {
	opts    Options
	bin     string
	acct    account
	dir     string
	lock    *os.File
	detach  bool // servers outlive the process ("lab up")
	single  bool // made for one server or cluster, and ends with it
	started time.Time

	template func() (string, error) // finds or makes the data directories' archive

	mu      sync.Mutex
	servers []*Server
	closed  bool
}

// New prepares a lab: finds binaries and account, removes directories of labs
// whose process is gone, and makes the lab's own. It starts nothing.
func New(ctx context.Context, o Options) (*Lab, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	l, err := newLab(ctx, o)
	if err != nil {
		return nil, err
	}
	sweep(o.Dir, o.Logger)
	if l.dir, err = os.MkdirTemp(o.Dir, dirPrefix); err == nil {
		err = l.prepareDir()
	}
	if err != nil {
		return nil, errors.Join(opErr("make lab directory", err), l.Close(context.WithoutCancel(ctx)))
	}
	return l, nil
}

// newLab finds what a lab needs on the machine.
func newLab(ctx context.Context, o Options) (*Lab, error) {
	bin, err := FindBinaries(ctx)
	if err != nil {
		return nil, err
	}
	acct, err := findAccount()
	if err != nil {
		return nil, err
	}
	l := &Lab{opts: o, bin: bin, acct: acct, started: time.Now()}
	tctx := context.WithoutCancel(ctx) // the result is shared by later callers
	l.template = sync.OnceValues(func() (string, error) {
		ctx, cancel := context.WithTimeout(tctx, 2*time.Minute)
		defer cancel()
		return l.initTemplate(ctx)
	})
	return l, nil
}

// prepareDir hands the lab's directory to the servers' account and locks it.
// The lock file takes its final name only when it is locked, so a sweeper never
// sees it unlocked while its owner lives.
func (l *Lab) prepareDir() error {
	if err := l.handOver(); err != nil {
		return err
	}
	path := filepath.Join(l.dir, lockName)
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	l.lock = f
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// handOver opens the lab's directory to the servers' account.
func (l *Lab) handOver() error {
	if l.acct.other() && !openToAll(filepath.Dir(l.dir)) {
		return &dtx.Error{
			Op: "make lab directory", Msg: "the account " + l.acct.name + ", which runs the servers, may not enter " + filepath.Dir(l.dir),
			Hint: "Name a directory whose every component is open to all (chmod o+x)", Class: dtx.ClassStop,
		}
	}
	if err := os.Chmod(l.dir, 0o711); err != nil {
		return err
	}
	return l.own(l.dir)
}

// own gives a path to the servers' account.
func (l *Lab) own(path string) error {
	if !l.acct.other() {
		return nil
	}
	return os.Lchown(path, l.acct.uid, l.acct.gid)
}

// Dir is the lab's directory.
func (l *Lab) Dir() string { return l.dir }

// BinDir is the directory of the server binaries in use.
func (l *Lab) BinDir() string { return l.bin }

// Close stops every server of the lab and removes its directory. It is
// idempotent. Use a context that outlives a cancelled run.
func (l *Lab) Close(ctx context.Context) error {
	l.mu.Lock()
	servers := l.servers
	l.servers, l.closed = nil, true
	l.mu.Unlock()
	var g errgroup.Group
	for _, s := range servers {
		g.Go(func() error { return s.kill(ctx) })
	}
	err := g.Wait()
	if l.dir != "" {
		err = errors.Join(err, removeAll(l.dir))
	}
	if l.lock != nil {
		_ = l.lock.Close()
	}
	return opErr("stop lab", err)
}

// add registers a server unless the lab is closed.
func (l *Lab) add(s *Server) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return opErr("start server", errors.New("the lab is closed"))
	}
	l.servers = append(l.servers, s)
	return nil
}

// forget drops a server that ended for good.
func (l *Lab) forget(s *Server) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.servers = slices.DeleteFunc(l.servers, func(o *Server) bool { return o == s })
}

// unused reports whether the lab was made for one server or cluster that is gone.
func (l *Lab) unused() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.single && len(l.servers) == 0
}

// sweep removes directories of labs whose process is gone without Close: their
// lock file is not held by anyone.
func sweep(base string, log *slog.Logger) {
	dirs, _ := filepath.Glob(filepath.Join(base, dirPrefix+"*"))
	for _, dir := range dirs {
		f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR, 0)
		if err != nil {
			continue // being made, being removed, or another user's
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			killStrays(dir)
			if err := removeAll(dir); err != nil {
				log.Warn("left-over lab directory stays", "dir", dir, "err", err)
			} else {
				log.Info("removed left-over lab directory", "dir", dir)
			}
		}
		_ = f.Close()
	}
}

// killStrays ends servers that still run in a dead lab's directory.
func killStrays(dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*", "data", "postmaster.pid"))
	for _, f := range files {
		data := filepath.Dir(f)
		if pid := readPid(data); pid > 0 && runsIn(pid, data) {
			_ = syscall.Kill(pid, syscall.SIGQUIT)
			_ = waitGone(context.Background(), pid, data, 5*time.Second)
		}
	}
}

// readPid reads the server's process id from its data directory; 0 if none.
func readPid(data string) int {
	b, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid <= 1 {
		return 0
	}
	return pid
}

// waitGone waits until pid no longer runs on the data directory.
func waitGone(ctx context.Context, pid int, data string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return poll(ctx, func() bool { return !runsIn(pid, data) })
}

// poll calls done every few milliseconds until it holds or ctx ends.
func poll(ctx context.Context, done func() bool) error {
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
	return nil
}

// removeAll removes a directory, trying again while dying processes still
// write files into it.
func removeAll(dir string) error {
	var err error
	for range 20 {
		if err = os.RemoveAll(dir); err == nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

// tempBase is the first temporary directory that every account may enter.
func tempBase() string {
	for _, d := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		if d, err := filepath.Abs(d); err == nil && (os.Geteuid() != 0 || openToAll(d)) {
			return d
		}
	}
	return os.TempDir()
}

// openToAll reports whether any account may enter dir.
func openToAll(dir string) bool {
	for {
		st, err := os.Stat(dir)
		if err != nil || st.Mode().Perm()&0o001 == 0 {
			return false
		}
		up := filepath.Dir(dir)
		if up == dir {
			return true
		}
		dir = up
	}
}

// opErr wraps a plain error as a dtx.Error; nil and dtx.Errors pass.
func opErr(op string, err error) error {
	var e *dtx.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	return &dtx.Error{Op: op, Err: err, Class: dtx.ClassStop}
}

// quote makes an SQL string literal.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
