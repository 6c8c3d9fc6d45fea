package lab

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// TB is what the helpers need of *testing.T and *testing.B.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Cleanup(func())
	Name() string
}

// testWait bounds a start or stop of servers in a test.
const testWait = 2 * time.Minute

// Shared keeps servers for the tests of one package. Each kind starts when
// first asked for and ends with Main.
type Shared struct {
	// Options describe the servers; set it before Main.
	Options Options

	mu     sync.Mutex
	lab    *Lab
	server *Server
	source *Source
	target *TargetCluster
	dbs    int          // databases made
	free   []string     // databases that no test uses
	own    atomic.Int64 // servers and clusters of single tests
}

// Main runs the tests of m (a *testing.M), then stops the servers. It returns
// the exit code for os.Exit.
func (s *Shared) Main(m interface{ Run() int }) int {
	code := m.Run()
	ctx, cancel := context.WithTimeout(context.Background(), testWait)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.source != nil {
		s.source.closePools()
	}
	if s.target != nil {
		s.target.closePools()
	}
	if s.lab != nil {
		if err := s.lab.Close(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "stop the tests' servers:", err)
			return max(code, 1)
		}
	}
	return code
}

// with runs f under the lock with the lab ready.
func (s *Shared) with(t TB, f func(ctx context.Context, l *Lab) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testWait)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.lab == nil {
		o := s.Options
		o.KeepTemplate = true
		s.lab, err = New(ctx, o)
	}
	if err == nil {
		err = f(ctx, s.lab)
	}
	if err != nil {
		t.Fatalf("start the tests' servers: %v", err)
	}
}

// Server returns the shared single server.
func (s *Shared) Server(t TB) *Server {
	t.Helper()
	s.with(t, func(ctx context.Context, l *Lab) (err error) {
		if s.server == nil {
			s.server, err = l.StartServer(ctx, "server", nil)
		}
		return err
	})
	return s.server
}

// Source returns the shared source cluster.
func (s *Shared) Source(t TB) *Source {
	t.Helper()
	s.with(t, func(ctx context.Context, l *Lab) (err error) {
		if s.source == nil {
			s.source, err = l.StartSource(ctx, s.Options.Segments)
		}
		return err
	})
	return s.source
}

// Target returns the shared target cluster.
func (s *Shared) Target(t TB) *TargetCluster {
	t.Helper()
	s.with(t, func(ctx context.Context, l *Lab) (err error) {
		if s.target == nil {
			s.target, err = l.StartTarget(ctx, s.Options.Segments)
		}
		return err
	})
	return s.target
}

// Database returns the connection string of an empty database on the shared
// single server. It is the test's until the test ends; then everything in it is
// dropped, with slots and sessions, and a later test may get it again.
func (s *Shared) Database(t TB) string {
	t.Helper()
	srv := s.Server(t)
	ctx, cancel := context.WithTimeout(context.Background(), testWait)
	defer cancel()
	name, fresh := s.takeDatabase()
	if fresh {
		if err := srv.Exec(ctx, "create database "+name); err != nil {
			t.Fatalf("create a database: %v", err)
		}
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testWait)
		defer cancel()
		switch clean, err := srv.clearDatabase(ctx, name); {
		case clean:
			s.mu.Lock()
			s.free = append(s.free, name)
			s.mu.Unlock()
			return
		case err != nil:
			t.Logf("clear the test's database: %v", err)
		}
		if err := srv.DropDatabase(ctx, name); err != nil {
			t.Logf("drop the test's database: %v", err)
		}
	})
	return srv.DSNFor(name)
}

// takeDatabase returns the name of the database that is cleared longest, else
// of one that is yet to be made.
func (s *Shared) takeDatabase() (name string, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) > 0 {
		name, s.free = s.free[0], s.free[1:]
		return name, false
	}
	s.dbs++
	return fmt.Sprintf("t%d", s.dbs), true
}

// NewServer starts a server for one test, which may break it. The options count,
// except Dir.
func (s *Shared) NewServer(t TB, o Options) *Server {
	t.Helper()
	return newForTest(t, s, o, func(l *Lab, ctx context.Context, name string, o Options) (*Server, error) {
		return l.StartServer(ctx, name+"server", o.Settings)
	}, (*Server).Stop)
}

// NewSource starts a source cluster for one test, as NewServer does.
func (s *Shared) NewSource(t TB, o Options) *Source {
	t.Helper()
	return newForTest(t, s, o, (*Lab).startSource, (*Source).Stop)
}

// NewTarget starts a target cluster for one test, as NewServer does.
func (s *Shared) NewTarget(t TB, o Options) *TargetCluster {
	t.Helper()
	return newForTest(t, s, o, (*Lab).startTarget, (*TargetCluster).Stop)
}

func newForTest[T any](t TB, s *Shared, o Options, start func(*Lab, context.Context, string, Options) (T, error), stop func(T, context.Context) error) T {
	t.Helper()
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		t.Fatalf("%v", err)
	}
	var l *Lab
	s.with(t, func(_ context.Context, shared *Lab) error {
		l = shared
		return nil
	})
	name := fmt.Sprintf("t%d-", s.own.Add(1))
	return forTest(t, o, func(ctx context.Context, o Options) (T, error) { return start(l, ctx, name, o) }, stop)
}

// ServerForTest starts a server for one test in a lab of its own. In a package
// with a Shared, its NewServer is quicker.
func ServerForTest(t TB, o Options) *Server {
	t.Helper()
	return forTest(t, o, StartServer, (*Server).Stop)
}

// SourceForTest starts a source cluster for one test in a lab of its own.
func SourceForTest(t TB, o Options) *Source {
	t.Helper()
	return forTest(t, o, StartSource, (*Source).Stop)
}

// TargetForTest starts a target cluster for one test in a lab of its own.
func TargetForTest(t TB, o Options) *TargetCluster {
	t.Helper()
	return forTest(t, o, StartTarget, (*TargetCluster).Stop)
}

func forTest[T any](t TB, o Options, start func(context.Context, Options) (T, error), stop func(T, context.Context) error) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testWait)
	defer cancel()
	o.KeepTemplate = true
	v, err := start(ctx, o)
	if err != nil {
		t.Fatalf("start the test's servers: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testWait)
		defer cancel()
		if err := stop(v, ctx); err != nil {
			t.Logf("stop the test's servers: %v", err)
		}
	})
	return v
}
