package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// figures are one measurement's rounds. What is printed is the round with the
// median rate: a single round says little on a machine that others use, too.
type figures []figure

func (f figures) median() figure {
	f = slices.Clone(f)
	slices.SortFunc(f, func(a, b figure) int { return int(a.rate() - b.rate()) })
	return f[len(f)/2]
}

// ratio is the median of the ratios of each round.
func (f figures) ratio(of figures) float64 {
	var r []float64
	for i := range f {
		r = append(r, f[i].rate()/of[i].rate())
	}
	slices.Sort(r)
	return r[len(r)/2]
}

func (f figures) show(name string) {
	m := f.median()
	fmt.Printf("  %-48s %9.0f rows/s  (%.2f s)\n", name, m.rate(), m.elapsed.Seconds())
}

// spent prints where the processors' time went.
func (f figures) spent() {
	m := f.median()
	fmt.Printf("  CPU per row: daemon %.2f us (aim 3), walsenders %.2f us, source %.2f us, target %.2f us; idle %.0f%%\n",
		m.perRow(m.cpu), m.perRow(m.walsenders), m.perRow(m.source), m.perRow(m.target), 100*m.idle)
	if m.startUp > 0 {
		fmt.Printf("  daemon: start-up %.2f s (not counted above), peak memory %d MiB\n", m.startUp.Seconds(), m.peakRSS>>20)
	}
}

// phase is changes that are written once and replicated in every round.
type phase struct {
	load func(context.Context) error
	// n counts the changes.
	n      int64
	rounds int
	// ready makes the targets ready for a round.
	ready func(context.Context) error
	// bounds measures the source's and the target's own limits, too.
	bounds bool
}

type measured struct {
	decode, repl, builtin, plain figures
}

func (b *bench) measure(ctx context.Context, p phase) (m measured, err error) {
	if err := b.mark(ctx); err != nil {
		return m, err
	}
	if err := p.load(ctx); err != nil {
		return m, fmt.Errorf("load: %w", err)
	}
	add := func(to *figures, name string, f func() (figure, error)) {
		if err != nil {
			return
		}
		var one figure
		if one, err = f(); err != nil {
			err = fmt.Errorf("%s: %w", name, err)
			return
		}
		*to = append(*to, one)
	}
	for range p.rounds {
		if err := p.ready(ctx); err != nil {
			return m, err
		}
		if p.bounds {
			add(&m.decode, "pg_recvlogical", func() (figure, error) { return b.decodeOnly(ctx) })
		}
		add(&m.repl, "cbrepl", func() (figure, error) { return b.replay(ctx, p.n) })
		add(&m.builtin, "built-in replication", func() (figure, error) { return b.builtin(ctx, p.n) })
		if p.bounds {
			add(&m.plain, "plain COPY", func() (figure, error) { return b.plainCopy(ctx) })
		}
	}
	return m, err
}

// mark remembers where the next phase's changes begin, on every source node and
// on the publisher.
func (b *bench) mark(ctx context.Context) error {
	if err := b.src.DropSlots(ctx, origin); err != nil {
		return err
	}
	if err := b.src.CreateSlots(ctx, origin, false); err != nil {
		return err
	}
	return b.pub.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '`+origin+`';
		SELECT pg_create_logical_replication_slot('`+origin+`', 'pgoutput')`)
}

// slots makes slots that begin at the mark.
func (b *bench) slots(ctx context.Context, name string) error {
	if err := b.src.DropSlots(ctx, name); err != nil {
		return err
	}
	for _, c := range b.src.Contents() {
		if err := b.src.Exec(ctx, c, "SELECT pg_copy_logical_replication_slot($1, $2)", origin, name); err != nil {
			return err
		}
	}
	return nil
}

// replay lets a new subscription catch up from the mark.
func (b *bench) replay(ctx context.Context, n int64) (figure, error) {
	if err := b.slots(ctx, slot); err != nil {
		return figure{}, err
	}
	if err := b.configure(ctx); err != nil {
		return figure{}, err
	}
	return b.catchUp(ctx, n)
}

// truncate empties the table on the targets.
func (b *bench) truncate(ctx context.Context) error {
	if err := b.sub.Exec(ctx, "TRUNCATE bench"); err != nil {
		return err
	}
	if err := b.sub.Exec(ctx, "CHECKPOINT"); err != nil {
		return err
	}
	return b.empty(ctx, "bench")
}

// empty empties a table on the shards. Every measurement that fills one begins
// like this: with as many free buffers, and none that it has to write first.
func (b *bench) empty(ctx context.Context, table string) error {
	if err := b.dst.ExecAll(ctx, "TRUNCATE "+table); err != nil {
		return err
	}
	return b.dst.ExecAll(ctx, "CHECKPOINT")
}

// vacuum takes the dead rows of a round away.
func (b *bench) vacuum(ctx context.Context) error {
	if err := b.dst.ExecAll(ctx, "VACUUM bench"); err != nil {
		return err
	}
	return b.sub.Exec(ctx, "VACUUM bench")
}

// backlog names the table of a round of drain.
func backlog(round int) string { return fmt.Sprintf("backlog_%d", round) }

func (b *bench) drains(ctx context.Context) (repl, plain figures, err error) {
	if err := b.mark(ctx); err != nil {
		return nil, nil, err
	}
	if err := b.slots(ctx, slot); err != nil {
		return nil, nil, err
	}
	if err := b.configure(ctx); err != nil {
		return nil, nil, err
	}
	for r := range b.o.rounds {
		f, err := b.drain(ctx, backlog(r), int64(b.o.rows))
		if err != nil {
			return nil, nil, fmt.Errorf("cbrepl: %w", err)
		}
		repl = append(repl, f)
		if err := b.empty(ctx, backlog(r)); err != nil {
			return nil, nil, err
		}
		if f, err = b.plainCopy(ctx); err != nil {
			return nil, nil, fmt.Errorf("plain COPY: %w", err)
		}
		plain = append(plain, f)
	}
	return repl, plain, nil
}

// figure is one measured run.
type figure struct {
	rows    int64
	elapsed time.Duration
	// startUp is how long the daemon took until its first stream was connected; it
	// is not part of elapsed.
	startUp time.Duration
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
