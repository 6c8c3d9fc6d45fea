// Package faultinject holds named fault points: places between two durable
// steps where a test may stop, delay or kill the process. When no fault is
// armed a point costs one atomic load. It never does anything by itself.
package faultinject

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// EnvVar names the environment variable that a command gives to Arm when it
// starts: a comma-separated list of point=action[@n], where action is "kill"
// (SIGKILL to itself), "error", or "sleep:DURATION", and n is the pass (from 1,
// default 1) on which it fires. "error@*" and "sleep:1s@*" fire on every pass.
// A point may be named several times; of the faults due on a pass the first one
// listed fires.
const EnvVar = "CBREPL_FAULTS"

var (
	armed atomic.Bool
	mu    sync.Mutex
	table map[string][]*fault
)

type fault struct {
	action string
	delay  time.Duration
	at     int // 0: every pass
	passes int
}

// ErrInjected is what a point armed with "error" returns.
var ErrInjected = fmt.Errorf("injected fault")

// Point returns nil unless a fault is armed for name and due on this pass.
func Point(name string) error {
	if !armed.Load() {
		return nil
	}
	return fire(name)
}

func fire(name string) error {
	var due *fault
	mu.Lock()
	for _, f := range table[name] {
		f.passes++
		if due == nil && (f.at == 0 || f.passes == f.at) {
			due = f
		}
	}
	mu.Unlock()
	if due == nil {
		return nil
	}
	switch due.action {
	case "kill":
		kill()
	case "sleep":
		time.Sleep(due.delay)
		return nil
	}
	return fmt.Errorf("fault point %s: %w", name, ErrInjected)
}

func kill() {
	p, err := os.FindProcess(os.Getpid())
	if err == nil {
		_ = p.Kill()
	}
	select {} // SIGKILL needs a moment; nothing after the point may run
}

// Arm replaces the armed faults by spec, in the form of EnvVar. An empty spec
// disarms.
func Arm(spec string) error {
	t := map[string][]*fault{}
	for _, item := range strings.Split(spec, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		name, rest, ok := strings.Cut(item, "=")
		if !ok || name == "" {
			return fmt.Errorf("fault %q: want point=action[@n]", item)
		}
		f := &fault{at: 1}
		if action, n, has := strings.Cut(rest, "@"); has {
			rest = action
			if n == "*" {
				f.at = 0
			} else {
				v, err := strconv.Atoi(n)
				if err != nil || v < 1 {
					return fmt.Errorf("fault %q: pass %q is not a number from 1 or *", item, n)
				}
				f.at = v
			}
		}
		action, arg, _ := strings.Cut(rest, ":")
		switch action {
		case "kill", "error":
		case "sleep":
			d, err := time.ParseDuration(arg)
			if err != nil {
				return fmt.Errorf("fault %q: %w", item, err)
			}
			f.delay = d
		default:
			return fmt.Errorf("fault %q: unknown action %q, want kill, error or sleep:DURATION", item, action)
		}
		f.action = action
		t[name] = append(t[name], f)
	}
	mu.Lock()
	table = t
	mu.Unlock()
	armed.Store(len(t) > 0)
	return nil
}
