// Command matrix runs the tests on several versions of PostgreSQL, and prints a
// line per version and package and a summary.
//
//	go run ./integration/matrix [-log DIR] [-packages ./lab,./segment] BINDIR...
//
// Each BINDIR holds a version's initdb and postgres. The whole output of go test
// is in a file per version.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"cbrepl/lab"
)

func main() {
	logs := flag.String("log", "", "directory for the tests' output; empty makes one below the temporary directory")
	packages := flag.String("packages", "./...", "packages to test, separated by commas")
	flag.Parse()
	ok, err := run(os.Stdout, *logs, strings.Split(*packages, ","), flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// run tests on every version, and reports whether all is well.
func run(out io.Writer, logs string, packages, bindirs []string) (bool, error) {
	if len(bindirs) == 0 {
		return false, fmt.Errorf("name at least one directory of PostgreSQL server binaries")
	}
	var err error
	if logs == "" {
		logs, err = os.MkdirTemp("", "cbrepl-matrix-")
	} else {
		err = os.MkdirAll(logs, 0o755)
	}
	if err != nil {
		return false, err
	}
	var summary []string
	well := true
	for _, dir := range bindirs {
		version, err := versionOf(dir)
		if err != nil {
			return false, err
		}
		file := filepath.Join(logs, "postgresql-"+version+".txt")
		t, err := test(out, version, dir, file, packages)
		if err != nil {
			return false, err
		}
		line := fmt.Sprintf("PostgreSQL %-6s %3d packages, %4d tests passed, %3d skipped, %3d failed", version, t.packages, t.passed, t.skipped, len(t.failed))
		if !t.ok() {
			well = false
			line += "; see " + file
		}
		summary = append(summary, line)
	}
	_, err = fmt.Fprintf(out, "\n%s\n", strings.Join(summary, "\n"))
	return well, err
}

// versionOf asks the server program.
func versionOf(bindir string) (string, error) {
	out, err := exec.Command(filepath.Join(bindir, "postgres"), "--version").Output()
	f := strings.Fields(string(out)) // postgres (PostgreSQL) 16.14 (Debian …)
	if err != nil || len(f) < 3 {
		return "", fmt.Errorf("%s: no PostgreSQL server: %q, %w", bindir, out, err)
	}
	return f[2], nil
}

// event is what go test -json prints of a package or a test.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// tally is what became of the tests on one version.
type tally struct {
	packages, passed, skipped int
	failed                    []string // package.test, or a package that failed as a whole
}

func (t *tally) ok() bool { return len(t.failed) == 0 }

// test runs the packages on one version.
func test(out io.Writer, version, bindir, file string, packages []string) (*tally, error) {
	log, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command("go", append([]string{"test", "-json", "-count=1", "-timeout", "30m"}, packages...)...)
	cmd.Env = append(os.Environ(), lab.EnvBinDir+"="+bindir)
	cmd.Stderr = log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t := &tally{}
	if err := t.read(out, log, version, stdout); err != nil {
		return nil, err
	}
	if err := cmd.Wait(); err != nil && t.ok() { // what did not build has no test that failed
		t.failed = append(t.failed, "go test: "+err.Error())
	}
	return t, nil
}

// read counts the events of go test and prints a line per package.
func (t *tally) read(out, log io.Writer, version string, events io.Reader) error {
	type result struct {
		passed, skipped int
		failed          []string
	}
	byPackage := map[string]*result{}
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			if _, err := fmt.Fprintf(log, "%s\n", lines.Bytes()); err != nil {
				return err
			}
			continue
		}
		if _, err := io.WriteString(log, e.Output); err != nil {
			return err
		}
		r := byPackage[e.Package]
		if r == nil {
			r = &result{}
			byPackage[e.Package] = r
		}
		if e.Test != "" {
			switch e.Action {
			case "pass":
				r.passed++
			case "skip":
				r.skipped++
			case "fail":
				r.failed = append(r.failed, e.Test)
			}
			continue
		}
		if e.Action != "pass" && e.Action != "fail" || r.passed+r.skipped+len(r.failed) == 0 && e.Action == "pass" {
			continue // a package without tests
		}
		failed := leaves(r.failed)
		if e.Action == "fail" && len(failed) == 0 {
			failed = []string{"(did not build or ended early)"}
		}
		t.packages++
		t.passed += r.passed
		t.skipped += r.skipped
		word := "ok"
		if len(failed) > 0 {
			word = "FAIL " + strings.Join(failed, ", ")
		}
		name := strings.TrimPrefix(e.Package, "cbrepl/")
		for _, f := range failed {
			t.failed = append(t.failed, name+"."+f)
		}
		if _, err := fmt.Fprintf(out, "PostgreSQL %-6s %-28s %4d passed %3d skipped %6.1f s  %s\n", version, name, r.passed, r.skipped, e.Elapsed, word); err != nil {
			return err
		}
	}
	return lines.Err()
}

// leaves leaves out tests whose subtests are in the list.
func leaves(failed []string) []string {
	var out []string
	for _, f := range failed {
		if !slices.ContainsFunc(failed, func(o string) bool { return strings.HasPrefix(o, f+"/") }) {
			out = append(out, f)
		}
	}
	return out
}
