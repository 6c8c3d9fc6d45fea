// Package built builds cbrepl's binary for the tests that need it as a process
// of its own.
package built

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Main builds the binary, puts its path into binary and runs m's tests. It
// returns their exit code and leaves nothing behind.
func Main(m *testing.M, binary *string) int {
	dir, err := os.MkdirTemp("", "cbrepl-built-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	*binary = filepath.Join(dir, "cbrepl")
	out, err := exec.Command("go", "build", "-o", *binary, "cbrepl/cmd/cbrepl").CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr, "build cbrepl: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}
