package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"cbrepl/dtx"
)

const (
	superuser = "postgres"
	database  = "postgres"
	startWait = 60 * time.Second
	// Ports are taken below the range that the kernel gives to outgoing
	// connections, so that a stopped server finds its port free again.
	firstPort, lastPort = 20000, 32700
)

// baseSettings suit a source node and a shard, many of them on one machine.
// Nothing is safe against a crash of the machine.
var baseSettings = map[string]string{
	"listen_addresses":                  "127.0.0.1",
	"unix_socket_directories":           "",
	"wal_level":                         "logical",
	"max_wal_senders":                   "30",
	"max_replication_slots":             "30",
	"max_prepared_transactions":         "200",
	"max_connections":                   "200",
	"shared_buffers":                    "64MB",
	"max_wal_size":                      "1GB",
	"fsync":                             "off",
	"full_page_writes":                  "off",
	"timezone":                          "UTC",
	"log_timezone":                      "UTC",
	"log_statement":                     "none",
	"log_min_messages":                  "warning",
	"log_min_error_statement":           "panic", // no statement, so no row value, in the log
	"log_parameter_max_length_on_error": "0",
	"log_checkpoints":                   "off",
	"logging_collector":                 "off",
	"jit":                               "off",
	"track_commit_timestamp":            "off",
	"checkpoint_timeout":                "15min",
	"wal_receiver_status_interval":      "1s",
}

// Server is one PostgreSQL server. Its methods may be called by several
// goroutines; those that start and stop the process exclude each other.
type Server struct {
	lab  *Lab
	name string
	dir  string
	port int

	ops sync.Mutex // held while starting or stopping

	mu     sync.Mutex
	proc   *process // nil when not running
	starts int      // number of starts: sessions of an earlier one are dead
}

// process is a started server process.
type process struct {
	pid  int
	done chan struct{} // closed when it has ended; nil for a server started by another process
}

// StartServer starts one server in a lab of its own; Stop ends both.
func StartServer(ctx context.Context, o Options) (*Server, error) {
	return inNewLab(ctx, o, func(l *Lab) (*Server, error) { return l.StartServer(ctx, "server", nil) })
}

// StartServer makes and starts a server. The name is its directory's name in
// the lab; settings come over the lab's.
func (l *Lab) StartServer(ctx context.Context, name string, settings map[string]string) (*Server, error) {
	s := &Server{lab: l, name: name, dir: filepath.Join(l.dir, name)}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return nil, opErr("start server "+name, err)
	}
	if err := l.own(s.dir); err != nil {
		return nil, opErr("start server "+name, err)
	}
	if err := l.newDataDir(ctx, s.dataDir()); err != nil {
		return nil, err
	}
	if err := s.configure(settings); err != nil {
		return nil, opErr("start server "+name, err)
	}
	if err := l.add(s); err != nil {
		return nil, err
	}
	// The port found free may be taken by the time the server binds it.
	var err error
	for range 10 {
		if s.port, err = freePort(); err != nil {
			break
		}
		if err = s.Start(ctx); err == nil || ctx.Err() != nil || !s.portTaken() {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// configure writes the server's settings behind initdb's.
func (s *Server) configure(settings map[string]string) error {
	all := maps.Clone(baseSettings)
	maps.Copy(all, s.lab.opts.Settings)
	maps.Copy(all, settings)
	var b strings.Builder
	b.WriteString("\n# lab\n")
	for _, k := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s = %s\n", k, quote(all[k]))
	}
	f, err := os.OpenFile(filepath.Join(s.dataDir(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(b.String())
	return errors.Join(err, f.Close())
}

func (s *Server) dataDir() string { return filepath.Join(s.dir, "data") }

// Name is the server's name in its lab.
func (s *Server) Name() string { return s.name }

// Port is the server's port on 127.0.0.1.
func (s *Server) Port() int { return s.port }

// LogFile is the server's log.
func (s *Server) LogFile() string { return filepath.Join(s.dir, "server.log") }

// DataDir is the server's data directory.
func (s *Server) DataDir() string { return s.dataDir() }

// DSN is the connection string of the server's default database.
func (s *Server) DSN() string { return s.DSNFor(database) }

// DSNFor is the connection string of one database.
func (s *Server) DSNFor(db string) string {
	u := url.URL{
		Scheme: "postgres", User: url.User(superuser),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), Path: "/" + db, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Running reports whether the server process runs.
func (s *Server) Running() bool { return s.running() != nil }

func (s *Server) running() *process {
	s.mu.Lock()
	p := s.proc
	s.mu.Unlock()
	if p == nil || s.ended(p) {
		return nil
	}
	return p
}

// lives is the number of starts.
func (s *Server) lives() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.starts
}

// ended reports whether a process is gone.
func (s *Server) ended(p *process) bool {
	if p.done == nil {
		return !runsIn(p.pid, s.dataDir())
	}
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Start starts a server that is not running and waits until it takes connections.
func (s *Server) Start(ctx context.Context) error {
	s.ops.Lock()
	defer s.ops.Unlock()
	return s.start(ctx)
}

func (s *Server) start(ctx context.Context) error {
	if s.running() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	p, err := s.spawn()
	if err != nil {
		return opErr("start server "+s.name, err)
	}
	s.mu.Lock()
	s.proc = p
	s.starts++
	s.mu.Unlock()
	for {
		if s.ready(p) {
			s.lab.opts.Logger.Debug("server started", "name", s.name, "port", s.port)
			return nil
		}
		if s.ended(p) {
			return &dtx.Error{Op: "start server " + s.name, Msg: "the server ended: " + s.logTail(), Class: dtx.ClassStop}
		}
		select {
		case <-ctx.Done():
			_ = s.signalAndWait(context.WithoutCancel(ctx), p, syscall.SIGQUIT)
			return &dtx.Error{
				Op: "start server " + s.name, Msg: "the server is not ready: " + s.logTail(),
				Err: ctx.Err(), Class: dtx.ClassStop,
			}
		case <-p.done:
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// spawn starts the process. A goroutine of its own holds the OS thread until
// the process ends: when this process dies, the kernel sends SIGQUIT to the
// server because the thread that started it is gone.
func (s *Server) spawn() (*process, error) {
	log, err := os.OpenFile(s.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := s.lab.tool(context.Background(), "postgres", "-D", s.dataDir(), "-p", strconv.Itoa(s.port))
	cmd.Cancel = nil
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = sysProcAttr(s.lab.acct, !s.lab.detach)
	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		defer close(p.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			p.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// ready reports whether the process has said in its pid file that it takes
// connections. That it is in this server's directory, under this process id,
// says that it is this server which has the port.
func (s *Server) ready(p *process) bool {
	b, err := os.ReadFile(filepath.Join(s.dataDir(), "postmaster.pid"))
	if err != nil {
		return false
	}
	const pidLine, statusLine = 0, 7
	lines := strings.Split(string(b), "\n")
	return len(lines) > statusLine && lines[pidLine] == strconv.Itoa(p.pid) && strings.TrimSpace(lines[statusLine]) == "ready"
}

// logTail returns the last lines of the server's log.
func (s *Server) logTail() string {
	b, err := os.ReadFile(s.LogFile())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-6):], "; ")
}

// portTaken reports whether the last start failed because of the port.
func (s *Server) portTaken() bool {
	return strings.Contains(s.logTail(), "could not create any TCP/IP sockets") ||
		strings.Contains(s.logTail(), "Address already in use")
}

func freePort() (int, error) {
	for range 200 {
		p := firstPort + rand.IntN(lastPort-firstPort)
		ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
		if err == nil {
			_ = ln.Close()
			return p, nil
		}
	}
	return 0, opErr("start server", fmt.Errorf("no free port between %d and %d", firstPort, lastPort))
}
