package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"cbrepl/lab"
)

// clockTick is the unit of CPU times in /proc (USER_HZ, 100 on Linux).
const clockTick = 10 * time.Millisecond

// procStat is what a process has used so far.
type procStat struct {
	parent int
	own    time.Duration // user and system time
	ended  time.Duration // the same of its children that have ended
}

func readStat(pid int) (procStat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, err
	}
	// The second field is the command in parentheses and may hold spaces.
	i := bytes.LastIndexByte(b, ')')
	f := strings.Fields(string(b[i+1:]))
	if i < 0 || len(f) < 15 {
		return procStat{}, fmt.Errorf("unexpected /proc/%d/stat", pid)
	}
	var n [15]int64
	for _, k := range []int{1, 11, 12, 13, 14} {
		if n[k], err = strconv.ParseInt(f[k], 10, 64); err != nil {
			return procStat{}, fmt.Errorf("unexpected /proc/%d/stat: %w", pid, err)
		}
	}
	return procStat{
		parent: int(n[1]),
		own:    time.Duration(n[11]+n[12]) * clockTick,
		ended:  time.Duration(n[13]+n[14]) * clockTick,
	}, nil
}

// cpuTime reads the user and system time of a process so far.
func cpuTime(pid int) (time.Duration, error) {
	s, err := readStat(pid)
	return s.own, err
}

// serversCPU sums the CPU time of servers, each with all its processes.
func serversCPU(servers []*lab.Server) (time.Duration, error) {
	var sum time.Duration
	postmaster := map[int]bool{}
	for _, s := range servers {
		b, err := os.ReadFile(filepath.Join(s.DataDir(), "postmaster.pid"))
		if err != nil {
			return 0, err
		}
		line, _, _ := strings.Cut(string(b), "\n")
		pid, err := strconv.Atoi(line)
		if err != nil {
			return 0, fmt.Errorf("unexpected postmaster.pid: %w", err)
		}
		st, err := readStat(pid)
		if err != nil {
			return 0, err
		}
		postmaster[pid] = true
		sum += st.own + st.ended
	}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		if st, err := readStat(pid); err == nil && postmaster[st.parent] {
			sum += st.own
		}
	}
	return sum, nil
}

// idleTime reads how long the machine's processors have been idle so far.
func idleTime() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	f := strings.Fields(line)
	if len(f) < 6 {
		return 0, fmt.Errorf("unexpected /proc/stat")
	}
	idle, err1 := strconv.ParseInt(f[4], 10, 64)
	wait, err2 := strconv.ParseInt(f[5], 10, 64)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("unexpected /proc/stat")
	}
	return time.Duration(idle+wait) * clockTick, nil
}

// usage is CPU time by place.
type usage struct {
	source, target, idle time.Duration
	at                   time.Time
}

func (b *bench) usage() (u usage, err error) {
	u.at = time.Now()
	if u.source, err = serversCPU(b.src.Nodes()); err != nil {
		return u, err
	}
	if u.target, err = serversCPU(b.dst.Nodes()); err != nil {
		return u, err
	}
	u.idle, err = idleTime()
	return u, err
}

// peakRSS reads a process's peak resident memory in bytes.
func peakRSS(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("no VmHWM in /proc/%d/status", pid)
}

// cpuWatch follows the CPU time of the source segments' walsenders. A walsender
// that has ended keeps its last sample.
type cpuWatch struct {
	ctx  context.Context
	src  *lab.Source
	seen map[int]time.Duration
}

func newCPUWatch(ctx context.Context, src *lab.Source) *cpuWatch {
	return &cpuWatch{ctx: ctx, src: src, seen: map[int]time.Duration{}}
}

func (w *cpuWatch) sample() {
	if len(w.seen) < w.src.Segments() {
		w.find()
	}
	for pid := range w.seen {
		if d, err := cpuTime(pid); err == nil {
			w.seen[pid] = d
		}
	}
}

func (w *cpuWatch) find() {
	for _, dsn := range w.src.SegmentDSNs() {
		conn, err := pgx.Connect(w.ctx, dsn)
		if err != nil {
			continue
		}
		var pid int
		err = conn.QueryRow(w.ctx, "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1 AND active_pid IS NOT NULL", slot).Scan(&pid)
		_ = conn.Close(w.ctx)
		if err == nil {
			w.seen[pid] = 0
		}
	}
}

func (w *cpuWatch) total() time.Duration {
	var t time.Duration
	for _, d := range w.seen {
		t += d
	}
	return t
}
