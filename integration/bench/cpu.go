package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"cbrepl/lab"
)

// clockTick is the unit of CPU times in /proc (USER_HZ, 100 on Linux).
const clockTick = 10 * time.Millisecond

// cpuTime reads the user and system time of a process so far.
func cpuTime(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field is the command in parentheses and may hold spaces.
	i := bytes.LastIndexByte(b, ')')
	f := strings.Fields(string(b[i+1:]))
	if i < 0 || len(f) < 13 {
		return 0, fmt.Errorf("unexpected /proc/%d/stat", pid)
	}
	user, err1 := strconv.ParseInt(f[11], 10, 64)
	sys, err2 := strconv.ParseInt(f[12], 10, 64)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("unexpected /proc/%d/stat", pid)
	}
	return time.Duration(user+sys) * clockTick, nil
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
