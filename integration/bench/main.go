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
)

type options struct {
	rows    int
	updates int
	rounds  int
	binary  string
	lab     bool // measure the lab's clusters
}

func main() {
	var o options
	flag.IntVar(&o.rows, "rows", 600000, "rows of the insert-only load")
	flag.IntVar(&o.updates, "updated-rows", 100000, "rows of the update load, each updated 10 times; 0 measures inserts only")
	flag.IntVar(&o.rounds, "rounds", 3, "rounds of each measurement")
	flag.StringVar(&o.binary, "cbrepl", "bin/cbrepl", "the cbrepl binary to measure")
	flag.BoolVar(&o.lab, "lab", true, "measure between clusters of the lab; false measures only the Greenplum 6 that "+sourceEnv+" names")
	flag.Parse()
	if o.rows < 1 || o.rounds < 1 || o.updates < 0 || o.updates > o.rows {
		fmt.Fprintln(os.Stderr, "bench: want at least one row and one round, and no more updated rows than rows")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.lab {
		if err := measureLab(ctx, o); err != nil {
			return err
		}
	}
	dsn := os.Getenv(sourceEnv)
	if dsn == "" {
		fmt.Printf("Greenplum 6 as the source: not measured, %s is not set\n", sourceEnv)
		return nil
	}
	return measureGreenplum(ctx, o, dsn)
}

func measureLab(ctx context.Context, o options) error {
	b, err := newBench(ctx, o)
	if err != nil {
		return err
	}
	defer b.close()

	fmt.Printf("medians of %d rounds; ratios are medians of the rounds' ratios\n", o.rounds)
	fmt.Printf("insert-only: %d rows of about 150 bytes, 3 segments into 2 shards\n", o.rows)
	m, err := b.measure(ctx, phase{load: b.loadInserts, n: int64(o.rows), rounds: o.rounds, ready: b.truncate, bounds: true})
	if err != nil {
		return err
	}
	m.decode.show("3 x pg_recvlogical to /dev/null (source's limit)")
	m.builtin.show("built-in logical replication, 1 to 1")
	m.plain.show("plain COPY into the same shards (target's limit)")
	m.repl.show("cbrepl catch-up, 3 to 2")
	fmt.Printf("  cbrepl / pg_recvlogical        %.2f   (aim 0.5)\n", m.repl.ratio(m.decode))
	fmt.Printf("  cbrepl / built-in replication  %.2f   (aim 1.5)\n", m.repl.ratio(m.builtin))
	fmt.Printf("  cbrepl / plain COPY            %.2f\n", m.repl.ratio(m.plain))
	m.repl.spent()

	if o.updates == 0 {
		return nil
	}
	fmt.Println("insert-only, the rows received while the target's table was locked:")
	repl, plain, err := b.drains(ctx)
	if err != nil {
		return err
	}
	plain.show("plain COPY into the same shards")
	repl.show("cbrepl, from the spool")
	fmt.Printf("  cbrepl / plain COPY            %.2f   (aim 0.7)\n", repl.ratio(plain))
	fmt.Printf("  CPU per row of plain COPY: target %.2f us\n", plain.median().perRow(plain.median().target))
	repl.spent()

	changed := func(name string, p phase) error {
		fmt.Println(name)
		m, err := b.measure(ctx, p)
		if err != nil {
			return err
		}
		m.builtin.show("built-in logical replication, 1 to 1")
		m.repl.show("cbrepl catch-up, 3 to 2")
		fmt.Printf("  cbrepl / built-in replication  %.2f   (aim 3)\n", m.repl.ratio(m.builtin))
		m.repl.spent()
		return nil
	}
	err = changed(fmt.Sprintf("update-heavy: %d rows, each updated 10 times", o.updates),
		phase{load: b.loadUpdates, n: int64(o.updates) * 10, rounds: o.rounds, ready: b.vacuum})
	if err != nil {
		return err
	}
	return changed(fmt.Sprintf("delete-heavy (one round): %d rows deleted", o.rows),
		phase{load: b.loadDeletes, n: int64(o.rows), rounds: 1, ready: b.vacuum})
}
