package shards

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"cbrepl/apply/internal/pgside"
	"cbrepl/apply/ledger"
	"cbrepl/faultinject"
	"cbrepl/internal/soak"
)

// killPoints are all fault points of a daemon's life, with the pass to die on.
var killPoints = []string{
	"before_begin@1", "before_begin@4", "test_rows_written@2",
	"before_prepare@2", "between_prepare@2", "between_prepare@3", "after_prepare@2",
	"after_decide@1", "after_decide@3", "between_commit_prepared@1", "between_commit_prepared@2", "between_commit_prepared@4",
	"after_commit@2",
	"open_after_lock@1", "open_after_epoch@1", "open_between_resolve@1", "open_between_resolve@2",
	"open_between_fence@1", "open_between_fence@2", "open_after_fence@1",
}

// daemon runs the loop in a process of its own until it is killed at point or
// has applied batch until. It returns the last batch it reported.
func daemon(t *testing.T, job loopJob, point string) (applied uint64, killed bool) {
	t.Helper()
	arg, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	name, pass, _ := strings.Cut(point, "@")
	cmd := exec.CommandContext(testCtx(t), os.Args[0])
	cmd.Env = append(os.Environ(), loopEnv+"="+string(arg))
	if point != "" {
		cmd.Env = append(cmd.Env, fmt.Sprintf("%s=shards.%s=kill@%s", faultinject.EnvVar, name, pass))
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	for line := range strings.Lines(string(out)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "applied "); ok {
			applied = pgside.Atou([]byte(n))
		}
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return applied, false
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
		return applied, true
	}
	t.Fatalf("daemon with fault %q: %v: %s", point, err, stderr.String())
	return 0, false
}

// A daemon that dies at any point loses nothing and applies nothing twice, and
// the next one needs no manual step: not even when that one dies, too, while it
// resolves what the first has left.
func TestKill(t *testing.T) {
	h := history{seed: soak.Seed(t, 1) & (1<<32 - 1), shards: 3}
	coordinator, dbs := sharedDatabases(t, h.shards)
	o := testOptions(coordinator, dbs)
	prepareHistory(t, h, o)
	checker := historyTarget(t, h, o, 0)
	r := rand.New(rand.NewPCG(h.seed, 0))
	job := loopJob{Seed: h.seed, Coordinator: coordinator, Shards: dbs, Until: 4}
	reported := uint64(0)
	kills := 0
	check := func(point string) {
		st := openUntil(t, checker)
		defer closeTarget(t, checker)
		if st.Batch < reported || st.Batch > job.Until {
			t.Fatalf("after a kill at %s the target is at batch %d, %d were reported of %d", point, st.Batch, reported, job.Until)
		}
		checkWorld(t, h, o, st)
		checker.ledger = ledger.New(checker.co.Session, &checker.opts.Options, checker.point) // the daemons in between are not rivals
		job.Until = st.Batch + 6
	}
	for _, point := range killPoints {
		before := "-"
		if strings.HasPrefix(point, "open_") {
			// Something is in doubt when the open that dies begins.
			before = []string{"after_prepare@2", "after_decide@1", "between_commit_prepared@1"}[r.IntN(3)]
			n, killed := daemon(t, job, before)
			reported = max(reported, n)
			kills += count(killed)
		}
		// A point of the batch loop is passed by most batches, not by each: the
		// daemon goes on until it dies there. One of an open may have nothing to do.
		if !strings.HasPrefix(point, "open_") {
			job.Until += 100
		}
		n, killed := daemon(t, job, point)
		reported = max(reported, n)
		kills += count(killed)
		if !killed && !strings.HasPrefix(point, "open_between_resolve") {
			t.Errorf("the daemon was not killed at %s (before: %s)", point, before)
		}
		check(point)
	}
	for range 3 { // chains of deaths without a look in between
		for range 3 {
			n, killed := daemon(t, job, killPoints[r.IntN(len(killPoints))])
			reported = max(reported, n)
			kills += count(killed)
		}
		check("a chain")
	}
	n, killed := daemon(t, job, "")
	if killed || n != job.Until {
		t.Fatalf("the last daemon applied up to %d of %d", n, job.Until)
	}
	check("the end")
	t.Logf("%d kills, %d batches, in doubt: %+v", kills, n, checker.Stats())
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}
