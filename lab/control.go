package lab

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// Stop ends the server for good and removes its directory. With the last server
// of a lab that StartServer, StartSource or StartTarget made for it, the lab
// ends too. Stop is idempotent.
func (s *Server) Stop(ctx context.Context) error {
	err := errors.Join(s.kill(ctx), removeAll(s.dir))
	s.lab.forget(s)
	if s.lab.unused() {
		err = errors.Join(err, s.lab.Close(ctx))
	}
	return opErr("stop server "+s.name, err)
}

// kill ends the process the fastest way that leaves nothing behind.
func (s *Server) kill(ctx context.Context) error {
	s.ops.Lock()
	defer s.ops.Unlock()
	p := s.running()
	if p == nil {
		return nil
	}
	if err := s.signalAll(p, syscall.SIGCONT); err != nil { // a paused process takes no signal
		_ = syscall.Kill(p.pid, syscall.SIGCONT)
	}
	return s.signalAndWait(ctx, p, syscall.SIGQUIT)
}

// Shutdown ends the process in good order (a fast shutdown with a checkpoint)
// and keeps the data; Start brings it back. Walsenders wait for their readers;
// after 30 seconds the shutdown becomes immediate.
func (s *Server) Shutdown(ctx context.Context) error { return s.end(ctx, syscall.SIGINT) }

// Crash ends the process at once, without a checkpoint; Start recovers.
// Prepared transactions survive, others do not.
func (s *Server) Crash(ctx context.Context) error { return s.end(ctx, syscall.SIGQUIT) }

// Restart is Shutdown, if it runs, and Start.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Shutdown(ctx); err != nil {
		return err
	}
	return s.Start(ctx)
}

func (s *Server) end(ctx context.Context, sig syscall.Signal) error {
	s.ops.Lock()
	defer s.ops.Unlock()
	p := s.running()
	if p == nil {
		return nil
	}
	return opErr("stop server "+s.name, s.signalAndWait(ctx, p, sig))
}

// signalAndWait sends the signal, then harder ones, until the process is gone.
func (s *Server) signalAndWait(ctx context.Context, p *process, sig syscall.Signal) error {
	steps := []struct {
		sig  syscall.Signal
		wait time.Duration
	}{{syscall.SIGINT, 30 * time.Second}, {syscall.SIGQUIT, 10 * time.Second}, {syscall.SIGKILL, 10 * time.Second}}
	if sig == syscall.SIGQUIT {
		steps = steps[1:]
	}
	for _, st := range steps {
		if err := syscall.Kill(p.pid, st.sig); err != nil && !s.ended(p) {
			return fmt.Errorf("signal %s: %w", st.sig, err)
		}
		if s.waitEnd(ctx, p, st.wait) {
			return nil
		}
		if ctx.Err() != nil { // the caller has no time left: no process may stay
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
			s.waitEnd(context.WithoutCancel(ctx), p, 5*time.Second)
			return ctx.Err()
		}
	}
	return fmt.Errorf("process %d does not end", p.pid)
}

// waitEnd waits for the end of the process and reports whether it came.
func (s *Server) waitEnd(ctx context.Context, p *process, limit time.Duration) bool {
	if p.done == nil {
		return waitGone(ctx, p.pid, s.dataDir(), limit) == nil
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-p.done:
		return true
	case <-ctx.Done():
	case <-t.C:
	}
	return s.ended(p)
}

// Pause freezes the server and all its sessions: connections stay open and
// nothing answers. It needs Linux.
func (s *Server) Pause() error {
	s.ops.Lock()
	defer s.ops.Unlock()
	p := s.running()
	if p == nil {
		return opErr("pause server "+s.name, errors.New("the server is not running"))
	}
	return opErr("pause server "+s.name, s.signalAll(p, syscall.SIGSTOP))
}

// Resume ends a Pause.
func (s *Server) Resume() error {
	s.ops.Lock()
	defer s.ops.Unlock()
	p := s.running()
	if p == nil {
		return opErr("resume server "+s.name, errors.New("the server is not running"))
	}
	return opErr("resume server "+s.name, s.signalAll(p, syscall.SIGCONT))
}

// signalAll signals the server process, first so that it starts no more
// children, and then its children.
func (s *Server) signalAll(p *process, sig syscall.Signal) error {
	if err := syscall.Kill(p.pid, sig); err != nil {
		return err
	}
	kids, err := childrenOf(p.pid)
	if err != nil {
		return err
	}
	for _, k := range kids {
		if err := syscall.Kill(k, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

// all runs f on every server at once.
func all(servers []*Server, f func(*Server) error) error {
	var g errgroup.Group
	for _, s := range servers {
		g.Go(func() error { return f(s) })
	}
	return g.Wait()
}
