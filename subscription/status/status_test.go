package status

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cbrepl/dtx"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t0 = time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)

func after(d time.Duration) time.Time { return t0.Add(d) }

// fixture is a board with one coordinator and one segment whose facts the test sets.
func fixture() (*Board, map[dtx.Content]*Stream) {
	facts := map[dtx.Content]*Stream{
		-1: {Content: -1, Connected: true, Since: t0, LastHeard: t0, ServerLSN: 100},
		0:  {Content: 0, Connected: true, Since: t0, LastHeard: t0, ServerLSN: 100},
	}
	b := NewBoard("dr", "test", 1, t0)
	var src []Source
	for c := range facts {
		src = append(src, Source{Content: c, Facts: func() Stream { return *facts[c] }})
	}
	b.Attach(src, func() Spool { return Spool{Bytes: 5, MaxBytes: 10} })
	b.Positions(3, []dtx.Position{{Content: -1, LSN: 100}, {Content: 0, LSN: 100}})
	b.SetState(Streaming, t0)
	return b, facts
}

// A stuck process must not show a good lag (field case 37): nothing calls the
// board any more, the report alone lets the lag grow.
func TestLagGrowsWithTheReadersClock(t *testing.T) {
	b, facts := fixture()
	b.Tick(Pending{}, nil, nil, after(0))
	if r := b.Report(after(time.Second)); r.LagSeconds != 0 || r.LagBytes != 0 || !r.Healthy {
		t.Fatalf("up to date: lag %v s, %d bytes, %v", r.LagSeconds, r.LagBytes, r.Unhealthy)
	}
	facts[0].ServerLSN = 150 // the server moved on, the loop saw it, then got stuck
	b.Tick(Pending{Parts: 1}, nil, nil, after(2*time.Second))
	for _, d := range []time.Duration{6, 10, 60} {
		facts[0].LastHeard = after(d * time.Second)
		facts[-1].LastHeard = after(d * time.Second)
		r := b.Report(after(d * time.Second))
		if r.LagSeconds != float64(d-2) || r.LagBytes != 50 {
			t.Fatalf("after %d s: lag %v s, %d bytes", d, r.LagSeconds, r.LagBytes)
		}
	}
	if r := b.Report(after(time.Minute)); r.Healthy || !strings.Contains(r.Unhealthy[0], "main loop has not moved") {
		t.Fatalf("a loop that is stuck for a minute is healthy: %v", r.Unhealthy)
	}
	b.BatchApplied(&dtx.Batch{Seq: 4, GXIDs: []dtx.GXID{7}, Positions: []dtx.Position{{Content: 0, LSN: 150}}}, 1, nil, after(61*time.Second))
	b.Tick(Pending{}, nil, nil, after(61*time.Second))
	facts[0].LastHeard, facts[-1].LastHeard = after(61*time.Second), after(61*time.Second)
	if r := b.Report(after(61 * time.Second)); r.LagSeconds != 0 || !r.Healthy || r.Applied.LastBatch != 4 {
		t.Fatalf("after the batch: %+v", r)
	}
}

// An idle server that is connected and has nothing to say is no lag.
func TestIdleIsNoLag(t *testing.T) {
	b, _ := fixture()
	b.Tick(Pending{}, nil, nil, after(0))
	for d := time.Second; d < time.Minute; d += time.Second {
		b.Tick(Pending{}, nil, nil, after(d))
		if r := b.Report(after(d)); r.LagSeconds != 0 {
			t.Fatalf("idle for %s, lag %v s", d, r.LagSeconds)
		}
	}
}

// Lag is the age of the oldest commit that is not applied, also while nothing
// else can be known: a full disk ends life after life before anything is read.
func TestLagIsNotZeroBeforeDrained(t *testing.T) {
	b, facts := fixture()
	b.Tick(Pending{Parts: 3, OldestCommit: after(-time.Hour)}, nil, nil, after(time.Second))
	if r := b.Report(after(2 * time.Second)); r.LagSeconds != 3602 {
		t.Errorf("lag %v s, the oldest commit is 3602 s old", r.LagSeconds)
	}
	b.Tick(Pending{}, nil, nil, after(10*time.Second)) // drained
	if r := b.Report(after(10 * time.Second)); r.LagSeconds != 0 {
		t.Errorf("drained, lag %v s", r.LagSeconds)
	}
	now := 10 * time.Second
	for range 20 {
		now += 2 * time.Second
		b.Restart(&dtx.Error{Op: "write spool", Msg: "no space left on device"}, after(now))
		for _, state := range []State{Starting, Streaming} { // what is read at these moments must not differ
			b.SetState(state, after(now))
			b.Positions(3, []dtx.Position{{Content: -1, LSN: 100}, {Content: 0, LSN: 100}})
			facts[0].ServerLSN = 0 // connecting
			b.Tick(Pending{}, nil, nil, after(now))
			r := b.Report(after(now))
			if want := (now - 10*time.Second).Seconds(); r.LagSeconds != want {
				t.Errorf("%s after %s: lag %v s, want %v", state, now, r.LagSeconds, want)
			}
			if r.Healthy || !strings.Contains(r.Unhealthy[0], "no space left on device") {
				t.Errorf("%s after %s: %v", state, now, r.Unhealthy)
			}
		}
	}
	facts[0].ServerLSN = 100
	b.Tick(Pending{}, nil, nil, after(now))
	if r := b.Report(after(now)); r.LagSeconds != 0 || !r.Healthy {
		t.Errorf("drained again: lag %v s, %v", r.LagSeconds, r.Unhealthy)
	}
}

// What has not happened yet has no time: neither year 1 nor centuries since.
func TestNoTimeBeforeTheFirst(t *testing.T) {
	b, facts := fixture()
	*facts[0] = Stream{Content: 0}
	b.Tick(Pending{}, nil, nil, after(20*time.Second))
	r := b.Report(after(20 * time.Second))
	if !strings.Contains(strings.Join(r.Unhealthy, "\n"), "content 0 is not connected for 20s") {
		t.Errorf("%v", r.Unhealthy)
	}
	text, err := json.Marshal(r)
	if err != nil || strings.Contains(string(text), "0001-01-01") {
		t.Errorf("%v %s", err, text)
	}
}

// A server that went silent shows as lag, even with no known backlog.
func TestSilentServer(t *testing.T) {
	b, facts := fixture()
	facts[0].Connected, facts[0].LastError = false, "connection refused"
	b.Tick(Pending{}, nil, nil, after(40*time.Second))
	r := b.Report(after(40 * time.Second))
	if r.LagSeconds != 40 || r.Healthy {
		t.Fatalf("lag %v, healthy %v", r.LagSeconds, r.Healthy)
	}
	var out strings.Builder
	if err := r.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"NOT HEALTHY", "content 0 is not connected for 40s", "DISCONNECTED", "content 0: connection refused"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

func TestRateFallsToZero(t *testing.T) {
	b, _ := fixture()
	for i := range 30 {
		b.BatchApplied(&dtx.Batch{Seq: uint64(4 + i), GXIDs: []dtx.GXID{1, 2}}, 100, nil, after(time.Duration(i)*time.Second))
		b.Tick(Pending{}, nil, nil, after(time.Duration(i)*time.Second))
	}
	if r := b.Report(after(29 * time.Second)); r.Applied.RowsPerSecond != 100 || r.Applied.DtxsPerSecond != 2 {
		t.Fatalf("rate %v rows/s", r.Applied.RowsPerSecond)
	}
	if r := b.Report(after(60 * time.Second)); r.Applied.RowsPerSecond != 0 {
		t.Fatalf("rate %v rows/s half a minute after the last batch", r.Applied.RowsPerSecond)
	}
}

// The wait line names gxid, content and since when (field case 17).
func TestWaitLine(t *testing.T) {
	b, _ := fixture()
	w := Wait{GXID: 42, Kind: "two-phase", RecordSeen: true, Missing: []dtx.Content{1}, Blocking: true, Since: t0}
	b.Tick(Pending{Dtxs: 1, Records: 1}, []Wait{w}, nil, after(90*time.Second))
	r := b.Report(after(90 * time.Second))
	if line := r.Waits[0].Line(); line != "gxid 42 waits for the part of content 1 since 2024-05-01 12:00:00Z (1m30s)" {
		t.Error(line)
	}
	if r.Healthy {
		t.Error("healthy although the next release has waited for 90 s")
	}
	w = Wait{GXID: 44, Kind: "two-phase", Prepared: []dtx.Content{0, 1}, Since: t0}
	b.Tick(Pending{}, []Wait{w}, nil, after(11*time.Minute))
	r = b.Report(after(11 * time.Minute))
	if line := r.Waits[0].Line(); line != "gxid 44 is prepared on content 0, 1 and has no outcome since 2024-05-01 12:00:00Z (11m0s); the log behind it is kept there" {
		t.Error(line)
	}
	if !strings.Contains(strings.Join(r.Unhealthy, "\n"), "gxid 44") {
		t.Errorf("unhealthy: %v", r.Unhealthy)
	}
	w = Wait{GXID: 43, Parts: []dtx.Content{0, 2}, Since: t0}
	if line := w.Line(); line != "gxid 43 waits for its commit record since 2024-05-01 12:00:00Z (0s); parts arrived from content 0, 2" {
		t.Error(line)
	}
}

func TestEndpoint(t *testing.T) {
	b, _ := fixture()
	now := after(time.Second)
	b.Tick(Pending{}, nil, nil, now)
	b.BatchApplied(&dtx.Batch{Seq: 4, GXIDs: []dtx.GXID{1}}, 10, map[string]int64{"public.t": 3}, now)
	h, err := Handler(func() Report { return b.Report(now) })
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, l, h, slog.New(slog.DiscardHandler)) }()
	addr := l.Addr().String()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) (int, string) {
		resp, err := client.Get("http://" + addr + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	if code, body := get("/healthz"); code != 200 || body != "ok\n" {
		t.Errorf("healthz %d %q", code, body)
	}
	code, body := get("/metrics")
	for _, want := range []string{
		`cbrepl_healthy{subscription="dr"} 1`, `cbrepl_applied_rows_total{subscription="dr"} 10`,
		`cbrepl_lag_seconds{content="0",subscription="dr"} 0`, `cbrepl_conflicts_total{subscription="dr",table="public.t"} 3`,
	} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("no %s in metrics:\n%s", want, body)
		}
	}
	r, raw, err := Fetch(ctx, addr)
	if err != nil || r.Subscription != "dr" || r.Streams[0].ServerLSN != 100 || !json.Valid(raw) {
		t.Fatalf("fetch: %+v, %v", r, err)
	}
	if !strings.Contains(string(raw), `"safe_lsn": "0/64"`) {
		t.Errorf("positions are not printed as X/X:\n%s", raw)
	}

	b.Fail(&dtx.Error{Op: "apply batch", GXID: 9, Relation: "public.t", Msg: "boom", Class: dtx.ClassStop}, now)
	b.SetState(Stopped, now)
	b.SetState(Streaming, now) // stopped is final
	if code, body := get("/healthz"); code != 503 || !strings.Contains(body, "stopped") {
		t.Errorf("healthz of a stopped subscription: %d %q", code, body)
	}
	if r, _, err := Fetch(ctx, addr); err != nil || r.LastError == nil || r.LastError.GXID != 9 || !r.LastError.Stops {
		t.Errorf("last error: %+v %v", r, err)
	}
	cancel()
	if err := <-served; err != nil && !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	if _, _, err := Fetch(context.Background(), addr); err == nil || !strings.Contains(err.Error(), "no daemon answers at") {
		t.Errorf("fetch from a closed port: %v", err)
	}
}

// Under a steady load nothing is ever drained: lag is still the age of the oldest
// commit that waits, not the time since the start.
func TestLagUnderSteadyLoad(t *testing.T) {
	b, _ := fixture()
	for d := time.Second; d < time.Minute; d += time.Second {
		b.Tick(Pending{Parts: 1, OldestCommit: after(d - 2*time.Second)}, nil, nil, after(d))
		if r := b.Report(after(d)); r.LagSeconds > 3 {
			t.Fatalf("%s after the start: lag %v s, the oldest commit is 2 s old", d, r.LagSeconds)
		}
	}
}
