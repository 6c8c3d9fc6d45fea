package lab

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// sysProcAttr starts a process in a session of its own, so that a terminal's
// interrupt does not reach it, under the account, and tied to the life of the
// starting thread when bound. The kernel clears the death signal when
// credentials change; package syscall sets it after them.
func sysProcAttr(a account, bound bool) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if a.other() {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	if bound {
		attr.Pdeathsig = syscall.SIGQUIT // immediate shutdown, children included
	}
	return attr
}

// childrenOf lists the processes whose parent is pid.
func childrenOf(pid int) ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it ended meanwhile
		}
		// pid (name) state ppid ...; the name may hold spaces and parentheses.
		i := bytes.LastIndexByte(b, ')')
		if i < 0 {
			continue
		}
		f := strings.Fields(string(b[i+1:]))
		if len(f) < 2 || f[1] != strconv.Itoa(pid) {
			continue
		}
		if child, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			out = append(out, child)
		}
	}
	return out, nil
}

// runsIn reports whether pid is a postgres server on the data directory.
func runsIn(pid int, dataDir string) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return false
	}
	args := strings.Split(string(b), "\x00")
	for i, a := range args {
		if a == "-D" && i+1 < len(args) && args[i+1] == dataDir {
			return true
		}
	}
	return false
}
