package subscription

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/subscription/status"
)

// TestSkippedRowsAreLogged: each of the first rows with its place and digest, and all of
// them by table, at most once in a while.
func TestSkippedRowsAreLogged(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(1000, 0)
	r := newReporter(status.NewBoard("s", "v", 1, now), slog.New(slog.NewTextHandler(&out, nil)), time.Minute)
	apply1 := func(n int64) {
		r.countConflicts(&apply.Result{Conflicts: map[string]int64{"app.t": n}, Skipped: []apply.Skipped{{
			Table: "app.t", Reason: "the row to update is not there", Rows: 1, GXID: dtx.GXID(40 + n), Content: 2, LSN: 0x1_0000_0020,
			Identity: "id", Digest: fmt.Sprintf("d%d", n), Segment: 1,
		}}}, now)
	}
	apply1(1)
	for _, want := range []string{
		`msg="row skipped" relation=app.t reason="the row to update is not there" rows=1 gxid=41 content=2 lsn=1/20 identity=id digest=d1 segment=1`,
		`msg="rows skipped: the copies have diverged" relation=app.t rows=1`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in:\n%s", want, out.String())
		}
	}
	out.Reset()
	for range 3 * shownSkipped {
		apply1(2)
	}
	if out.Len() > 0 {
		t.Errorf("logged too soon:\n%s", out.String())
	}
	r.flushConflicts(now)
	if n := strings.Count(out.String(), `msg="row skipped"`); n != shownSkipped || !strings.Contains(out.String(), fmt.Sprintf("rows=%d\n", 6*shownSkipped)) {
		t.Errorf("%d rows shown:\n%s", n, out.String())
	}
}
