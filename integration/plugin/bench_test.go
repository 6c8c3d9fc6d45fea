package plugin

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"cbrepl/source/stream/repl"

	"github.com/jackc/pgx/v5"
)

const benchRows = 100_000

// benchLoad fills a table with rows of about 125 bytes, in one transaction.
var benchLoad = fmt.Sprintf(`INSERT INTO wide SELECT i, i * 7, i / 3.0, 'customer number ' || i, repeat('x', 40), now(), i %% 2 = 0 FROM generate_series(1, %d) i`, benchRows)

const benchTable = "CREATE TABLE wide (id bigint PRIMARY KEY, n int, f float8, name text, pad text, at timestamptz, yes bool)"

// BenchmarkSender measures the CPU time of walsenders for each row, pgoutput and
// cbrepl_source beside each other on stock PostgreSQL.
func BenchmarkSender(b *testing.B) {
	for _, plugin := range []repl.Plugin{repl.PgOutput, repl.CbreplSource} {
		b.Run(string(plugin), func(b *testing.B) { benchStock(b, plugin) })
	}
}

func benchStock(b *testing.B, plugin repl.Plugin) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	srv := pluginServer(b, nil)
	c := connect(ctx, b, srv.DSN())
	must(ctx, b, c, benchTable+"; CREATE PUBLICATION pub FOR TABLE wide")
	must(ctx, b, c, fmt.Sprintf("SELECT pg_create_logical_replication_slot('bench', '%s')", plugin))
	must(ctx, b, c, benchLoad)
	cfg := repl.Config{DSN: srv.DSN(), Slot: "bench", Publication: "pub", Plugin: plugin}
	if plugin == repl.CbreplSource {
		cfg.Options = []repl.Option{{Name: "tables", Value: `"public"."wide"`}}
	}
	var spent time.Duration
	for b.Loop() {
		conn, err := repl.Connect(ctx, cfg)
		if err != nil {
			b.Fatal(err)
		}
		s, err := conn.Start(ctx, 0)
		if err != nil {
			b.Fatal(err)
		}
		rows := 0
		for {
			m, err := s.Next(time.Now().Add(time.Minute))
			if err != nil || m.Kind == repl.Idle {
				b.Fatalf("after %d rows: %v", rows, err)
			}
			if m.Kind == repl.Data && m.Payload[0] == 'I' {
				rows++
			}
			if m.Kind == repl.Data && m.Payload[0] == 'C' && rows > 0 {
				break
			}
		}
		spent += senderCPU(ctx, b, c)
		s.Close()
		waitForSender(ctx, b, c)
	}
	b.ReportMetric(float64(spent.Microseconds())/float64(b.N)/benchRows, "µs-cpu/row")
}

// senderCPU is the CPU time that the server's only walsender has used.
func senderCPU(ctx context.Context, b *testing.B, c *pgx.Conn) time.Duration {
	b.Helper()
	var pid int
	if err := c.QueryRow(ctx, "SELECT pid FROM pg_stat_replication").Scan(&pid); err != nil {
		b.Fatal(err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(stat)[strings.LastIndexByte(string(stat), ')')+1:])
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err1 != nil || err2 != nil {
		b.Fatalf("/proc/%d/stat: %s", pid, stat)
	}
	return time.Duration(user+system) * time.Second / 100
}

func waitForSender(ctx context.Context, b *testing.B, c *pgx.Conn) {
	b.Helper()
	for {
		var n int
		if err := c.QueryRow(ctx, "SELECT count(*) FROM pg_stat_replication").Scan(&n); err != nil {
			b.Fatal(err)
		}
		if n == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
