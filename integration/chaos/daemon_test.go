package chaos

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"cbrepl/faultinject"
	"cbrepl/subscription/status"
)

// proc is one daemon.
type proc struct {
	n        int
	cmd      *exec.Cmd
	log      string
	done     chan struct{}
	fault    string // armed
	expected bool   // its end is the driver's doing
}

func (w *world) spawn(fault string) *proc {
	w.procs++
	p := &proc{n: w.procs, log: filepath.Join(w.dir, fmt.Sprintf("daemon-%03d.log", w.procs)), done: make(chan struct{}), fault: fault}
	f, err := os.Create(p.log)
	if err == nil {
		p.cmd = exec.Command(binary, "run", "-c", w.file)
		p.cmd.Env = append(os.Environ(), faultinject.EnvVar+"="+fault, "GOTRACEBACK=all")
		p.cmd.Stderr, p.cmd.Stdout = f, f
		err = p.cmd.Start()
	}
	if err != nil {
		panic(err) // no daemon, no test
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // judged by its state
		_ = f.Close()
	}()
	return p
}

func (p *proc) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// within reports whether it ends in time.
func (p *proc) within(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.done:
		return true
	case <-t.C:
		return false
	}
}

func (p *proc) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

func (p *proc) kill() {
	p.expected = true
	p.signal(syscall.SIGKILL)
	<-p.done
}

func (p *proc) status() syscall.WaitStatus {
	s, _ := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return s
}

// tail is the end of its log.
func (p *proc) tail() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// last is the last line of its log.
func (p *proc) last() string {
	t := p.tail()
	return t[strings.LastIndexByte(t, '\n')+1:]
}

// ensure starts a daemon when none runs, and judges why the last one ended.
func (w *world) ensure(fault string) {
	if p := w.cur; p != nil {
		if !p.ended() {
			return
		}
		w.judge(p)
	}
	w.cur = w.spawn(fault)
}

// recently reports whether a fault of a server or the network is so young that a
// start may fail of it.
func (w *world) recently() bool { return time.Since(w.disturbed) < 20*time.Second }

// judge looks at a daemon's end that nobody asked for.
func (w *world) judge(p *proc) {
	s := p.status()
	switch {
	case p.expected:
	case s.Signaled() && s.Signal() == syscall.SIGKILL && p.fault != "":
		w.logf("daemon %d killed itself at %s", p.n, p.fault)
	case s.Signaled():
		w.problem("daemon %d ended by %s (armed %q): %s", p.n, s.Signal(), p.fault, p.tail())
	case s.ExitStatus() == temporary && w.recently():
		w.logf("daemon %d exited %d after a fault: %s", p.n, s.ExitStatus(), p.last())
	default:
		w.problem("daemon %d exited %d: %s", p.n, s.ExitStatus(), p.tail())
	}
}

// terminate asks the daemon to end, which takes seconds at most.
func (w *world) terminate() string {
	const limit = 20 * time.Second
	p := w.cur
	p.expected = true
	began := time.Now()
	p.signal(syscall.SIGTERM)
	if !p.within(limit) {
		w.problem("daemon %d has not ended %s after SIGTERM: %s", p.n, limit, p.tail())
		p.signal(syscall.SIGQUIT)
		<-p.done
	}
	// One that has just been started has no handler yet.
	if s := p.status(); !s.Signaled() && s.ExitStatus() != 0 {
		if !w.recently() {
			w.problem("daemon %d: SIGTERM gave exit code %d: %s", p.n, s.ExitStatus(), p.tail())
		}
		return fmt.Sprintf("SIGTERM, exit code %d: %s", s.ExitStatus(), p.last())
	}
	return fmt.Sprintf("SIGTERM, ended after %.2f s", time.Since(began).Seconds())
}

// report is the daemon's status, nil while it gives none.
func (w *world) report(ctx context.Context) *status.Report {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	r, _, err := status.Fetch(ctx, w.setting("http.listen"))
	if err != nil {
		return nil
	}
	return r
}

// statusText is what "cbrepl status" prints.
func (w *world) statusText(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, binary, "status", "-c", w.file).CombinedOutput()
	if err != nil {
		return err.Error() + ": " + string(out)
	}
	return string(out)
}

// measure notes how much memory the daemon has used at most.
func (w *world) measure() {
	if w.cur == nil || w.cur.ended() {
		return
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.cur.cmd.Process.Pid))
	if err == nil {
		w.maxRSS = max(w.maxRSS, number(string(b), "VmHWM:"))
	}
}
