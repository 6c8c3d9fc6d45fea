package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"cbrepl/subscription/status"
)

// daemon is a running cbrepl.
type daemon struct {
	b       *bench
	cmd     *exec.Cmd
	started time.Time
	done    chan error
}

func (b *bench) startDaemon() (*daemon, error) {
	d := &daemon{b: b, cmd: exec.Command(b.o.binary, "run", "-c", b.conf), done: make(chan error, 1)}
	d.cmd.Stderr = os.Stderr
	d.started = time.Now()
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { d.done <- d.cmd.Wait() }()
	return d, nil
}

// end stops the daemon; how it ended counts where nothing failed before.
func (d *daemon) end(err *error) {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	if e := <-d.done; *err == nil {
		*err = e
	}
}

// until reads the status, every few milliseconds, until ok is content with it.
func (d *daemon) until(ctx context.Context, ok func(*status.Report) bool) (*status.Report, error) {
	for {
		select {
		case err := <-d.done:
			d.done <- nil
			return nil, fmt.Errorf("the daemon ended: %w", err)
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		r, _, err := status.Fetch(ctx, d.b.addr)
		if err == nil && ok(r) { // an error: not up yet
			return r, nil
		}
	}
}

// catchUp starts the daemon and measures from its first stream's connection
// until it has applied n changes.
func (b *bench) catchUp(ctx context.Context, n int64) (f figure, err error) {
	before, err := b.usage()
	if err != nil {
		return f, err
	}
	d, err := b.startDaemon()
	if err != nil {
		return f, err
	}
	defer d.end(&err)
	senders := newCPUWatch(ctx, b.src)
	r, err := d.until(ctx, func(r *status.Report) bool {
		senders.sample()
		return r.Applied.Rows >= n
	})
	if err != nil {
		return f, err
	}
	senders.sample()
	if err := f.spent(b, d, before); err != nil {
		return f, err
	}
	connected := r.Now
	for _, s := range r.Streams {
		if s.Since.Before(connected) {
			connected = s.Since
		}
	}
	f.rows, f.elapsed, f.startUp = n, r.Applied.LastAt.Sub(connected), connected.Sub(d.started)
	f.walsenders = senders.total()
	return f, nil
}

// drain measures the apply side alone: the target's table is locked while the
// daemon receives n rows, then the lock is given up.
func (b *bench) drain(ctx context.Context, table string, n int64) (f figure, err error) {
	d, err := b.startDaemon()
	if err != nil {
		return f, err
	}
	defer d.end(&err)
	if _, err := d.until(ctx, func(r *status.Report) bool { return r.State == status.Streaming }); err != nil {
		return f, err
	}
	var locks []pgx.Tx
	defer func() {
		for _, tx := range locks {
			_ = tx.Conn().Close(context.Background())
		}
	}()
	for _, dsn := range b.dst.SegmentDSNs() {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return f, err
		}
		tx, err := conn.Begin(ctx)
		if err != nil {
			return f, err
		}
		locks = append(locks, tx)
		if _, err := tx.Exec(ctx, "LOCK TABLE "+table+" IN ACCESS EXCLUSIVE MODE"); err != nil {
			return f, err
		}
	}
	if err := b.loadSource(ctx, table); err != nil {
		return f, err
	}
	ends, err := walEnds(ctx, b.src.SegmentDSNs())
	if err != nil {
		return f, err
	}
	r, err := d.until(ctx, func(r *status.Report) bool {
		for _, s := range r.Streams {
			if s.Content >= 0 && s.ReceivedLSN < ends[s.Content] {
				return false
			}
		}
		return true
	})
	if err != nil {
		return f, err
	}
	if r.Applied.Rows > n/10 {
		return f, fmt.Errorf("%d rows were applied to a locked table", r.Applied.Rows)
	}
	if err := b.empty(ctx, copied); err != nil {
		return f, err
	}
	before, err := b.usage()
	if err != nil {
		return f, err
	}
	cpu, err := cpuTime(d.cmd.Process.Pid)
	if err != nil {
		return f, err
	}
	start := time.Now()
	for _, tx := range locks {
		if err := tx.Rollback(ctx); err != nil {
			return f, err
		}
	}
	if r, err = d.until(ctx, func(r *status.Report) bool { return r.Applied.Rows >= n }); err != nil {
		return f, err
	}
	f.rows, f.elapsed = n, r.Applied.LastAt.Sub(start)
	if err := f.spent(b, d, before); err != nil {
		return f, err
	}
	f.cpu -= cpu
	return f, nil
}

// spent fills in who used the processors since before.
func (f *figure) spent(b *bench, d *daemon, before usage) error {
	after, err := b.usage()
	if err != nil {
		return err
	}
	f.source, f.target = after.source-before.source, after.target-before.target
	f.idle = float64(after.idle-before.idle) / float64(after.at.Sub(before.at)*time.Duration(runtime.NumCPU()))
	if f.cpu, err = cpuTime(d.cmd.Process.Pid); err != nil {
		return err
	}
	f.peakRSS, err = peakRSS(d.cmd.Process.Pid)
	return err
}

// walEnds reads how far the servers' WAL goes.
func walEnds(ctx context.Context, dsns []string) ([]status.LSN, error) {
	ends := make([]status.LSN, len(dsns))
	for c, dsn := range dsns {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return nil, err
		}
		var end string
		err = conn.QueryRow(ctx, "SELECT pg_current_wal_lsn()::text").Scan(&end)
		_ = conn.Close(ctx)
		if err == nil {
			err = ends[c].UnmarshalText([]byte(end))
		}
		if err != nil {
			return nil, err
		}
	}
	return ends, nil
}
