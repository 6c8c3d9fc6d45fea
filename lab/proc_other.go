//go:build unix && !linux

package lab

import (
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

func sysProcAttr(a account, _ bool) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if a.other() {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

func childrenOf(int) ([]int, error) {
	return nil, errors.New("pausing a server needs Linux's /proc")
}

func runsIn(pid int, dataDir string) bool {
	out, err := exec.Command("ps", "-p", strconv.Itoa(pid), "-o", "command=").Output()
	return err == nil && strings.Contains(string(out), dataDir)
}
