// Command bench measures cbrepl on this machine and prints ratios of figures
// that were taken in one run on the same rows. It starts and stops its own
// PostgreSQL servers. It is a measurement, not a test: it never fails on a number.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

type options struct {
	rows    int
	updates int
	binary  string
}

func main() {
	var o options
	flag.IntVar(&o.rows, "rows", 600000, "rows of the insert-only load")
	flag.IntVar(&o.updates, "updated-rows", 100000, "rows of the update load, each updated 10 times")
	flag.StringVar(&o.binary, "cbrepl", "bin/cbrepl", "the cbrepl binary to measure")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// figure is one measured catch-up.
type figure struct {
	rows    int64
	elapsed time.Duration
	// cpu is the CPU time of the process under test, walsenders that of the
	// source's walsenders; 0 where not measured.
	cpu, walsenders time.Duration
	// source and target are the CPU time of all processes of these servers, idle
	// the share of the machine's processor time that nobody used.
	source, target time.Duration
	idle           float64
	peakRSS        int64
}

func (f figure) rate() float64 { return float64(f.rows) / f.elapsed.Seconds() }

func (f figure) perRow(d time.Duration) float64 {
	return float64(d.Nanoseconds()) / 1000 / float64(f.rows)
}

// spent prints where the processors' time went.
func spent(f figure) {
	fmt.Printf("  CPU per row: daemon %.2f us (aim 3), walsenders %.2f us, source %.2f us, target %.2f us; idle %.0f%%\n",
		f.perRow(f.cpu), f.perRow(f.walsenders), f.perRow(f.source), f.perRow(f.target), 100*f.idle)
}

func run(ctx context.Context, o options) error {
	b, err := newBench(ctx, o)
	if err != nil {
		return err
	}
	defer b.close()

	fmt.Printf("insert-only: %d rows of about 150 bytes, 3 segments into 2 shards\n", o.rows)
	if err := b.loadInserts(ctx); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	decode, err := b.decodeOnly(ctx)
	if err != nil {
		return fmt.Errorf("pg_recvlogical: %w", err)
	}
	repl, err := b.catchUp(ctx, int64(o.rows))
	if err != nil {
		return fmt.Errorf("cbrepl: %w", err)
	}
	builtin, err := b.builtin(ctx, int64(o.rows))
	if err != nil {
		return fmt.Errorf("built-in replication: %w", err)
	}
	plain, err := b.plainCopy(ctx)
	if err != nil {
		return fmt.Errorf("plain COPY: %w", err)
	}
	show := func(name string, f figure) {
		fmt.Printf("  %-46s %9.0f rows/s  (%.2f s)\n", name, f.rate(), f.elapsed.Seconds())
	}
	show("3 x pg_recvlogical to /dev/null (source's limit)", decode)
	show("built-in logical replication, 1 to 1", builtin)
	show("plain COPY into the same shards", plain)
	show("cbrepl catch-up, 3 to 2", repl)
	fmt.Printf("  cbrepl / pg_recvlogical        %.2f   (aim 0.5)\n", repl.rate()/decode.rate())
	fmt.Printf("  cbrepl / built-in replication  %.2f   (aim 1.5)\n", repl.rate()/builtin.rate())
	fmt.Printf("  cbrepl / plain COPY            %.2f   (aim 0.7)\n", repl.rate()/plain.rate())
	spent(repl)
	fmt.Printf("  daemon's peak memory: %d MiB\n", repl.peakRSS>>20)

	fmt.Printf("update-heavy: %d rows, each updated 10 times\n", o.updates)
	if err := b.loadUpdates(ctx); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	changes := int64(o.updates) * 10
	repl, err = b.catchUp(ctx, changes)
	if err != nil {
		return fmt.Errorf("cbrepl: %w", err)
	}
	builtin, err = b.builtin(ctx, changes)
	if err != nil {
		return fmt.Errorf("built-in replication: %w", err)
	}
	show("built-in logical replication, 1 to 1", builtin)
	show("cbrepl catch-up, 3 to 2", repl)
	fmt.Printf("  cbrepl / built-in replication  %.2f   (aim 3)\n", repl.rate()/builtin.rate())
	spent(repl)

	fmt.Printf("delete-heavy: %d rows deleted\n", o.updates)
	if err := b.loadDeletes(ctx); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	repl, err = b.catchUp(ctx, int64(o.updates))
	if err != nil {
		return fmt.Errorf("cbrepl: %w", err)
	}
	builtin, err = b.builtin(ctx, int64(o.updates))
	if err != nil {
		return fmt.Errorf("built-in replication: %w", err)
	}
	show("built-in logical replication, 1 to 1", builtin)
	show("cbrepl catch-up, 3 to 2", repl)
	fmt.Printf("  cbrepl / built-in replication  %.2f   (aim 3)\n", repl.rate()/builtin.rate())
	spent(repl)
	return nil
}
