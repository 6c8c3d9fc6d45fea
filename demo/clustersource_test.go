package demo

import (
	"bytes"
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"cbrepl/lab/clustertest"
	"cbrepl/source"
)

var databases clustertest.Databases

func TestMain(m *testing.M) { os.Exit(databases.Main(m)) }

// TestDemoSource runs the demo from a real Greenplum 6, where it leaves nothing:
// into fewer and into more shards, into another cluster, and interrupted.
func TestDemoSource(t *testing.T) {
	dsn := databases.Open(t, clustertest.SourceDSN(t))
	run := func(t *testing.T, o Options) (string, error) {
		var out bytes.Buffer
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		o.SourceDSN, o.Duration, o.Out = dsn, 2*time.Second, &out
		err := Run(ctx, o)
		noTraces(t, dsn)
		return out.String(), err
	}
	for _, shards := range []int{2, 4} {
		out, err := run(t, Options{TargetSegments: shards})
		if err != nil || !strings.Contains(out, "RESULT: both clusters hold the same rows, each on the right shard") {
			t.Errorf("%d shards: %v\n%s", shards, err, out)
		}
	}
	t.Run("cluster", func(t *testing.T) {
		target := databases.Open(t, clustertest.DSNs(t)[0])
		out, err := run(t, Options{TargetDSN: target})
		if err != nil || !strings.Contains(out, "RESULT: both clusters hold the same rows, each on the right segment") {
			t.Fatalf("%v\n%s", err, out)
		}
		traces(t, target, regexp.MustCompile(`schema (cbrepl_demo_[0-9a-f]{8})\n`).FindStringSubmatch(out)[1])
	})
}

// interrupting is an output that ends a demo at a line.
type interrupting struct {
	out  bytes.Buffer
	at   string
	stop context.CancelFunc
}

func (i *interrupting) Write(p []byte) (int, error) {
	if strings.HasPrefix(string(p), i.at) {
		i.stop()
	}
	return i.out.Write(p)
}

func TestDemoSourceInterrupted(t *testing.T) {
	dsn := databases.Open(t, clustertest.SourceDSN(t))
	for _, at := range []string{"loaded", "verifying"} {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		out := &interrupting{at: at, stop: cancel}
		if err := Run(ctx, Options{SourceDSN: dsn, Duration: time.Second, Out: out}); !errors.Is(err, ErrInterrupted) {
			t.Errorf("at %q: %v\n%s", at, err, out.out.String())
		}
		noTraces(t, dsn)
	}
}

// noTraces looks for what a demo has left in a database that had nothing.
func noTraces(t *testing.T, dsn string) {
	t.Helper()
	for _, r := range clustertest.Query(t, dsn, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'cbrepl%'") {
		t.Errorf("schema %s is left", *r[0])
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	cl, err := source.Discover(ctx, source.ClusterConfig{Coordinator: dsn})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range cl.Nodes() {
		for _, r := range clustertest.Query(t, n.DSN, "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") {
			t.Errorf("content %d: slot %s is left", n.Content, *r[0])
		}
	}
}
