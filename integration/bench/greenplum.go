package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/lab/clustertest"
	"cbrepl/source"
	"cbrepl/source/stream/repl"
	"cbrepl/subscription"
	"cbrepl/subscription/config"
	"cbrepl/subscription/status"
)

const (
	// sourceEnv names the source, which must run on this machine for the CPU figures.
	sourceEnv = clustertest.SourceEnvVar

	database = "cbrepl_bench"
	rawSlot  = "bench_raw"
	// wide is a row of about 125 bytes.
	wideColumns = "id int8 primary key, n int4, f float8, name text, pad text, at timestamptz, yes bool"
	wideRows    = "SELECT i, (i * 7)::int4, i / 3.0, 'customer number ' || i, repeat('x', 40), now(), i % 2 = 0 FROM generate_series"
)

// greenplum measures a Greenplum 6 as the source: a database of its own there, and
// shards of the lab.
type greenplum struct {
	*bench
	admin string // the caller's DSN
	dsn   string
	nodes []source.Node
	pub   *lab.Server // stock PostgreSQL with the same rows
	cfg   *config.Config
}

func newGreenplum(ctx context.Context, o options, dsn string) (g *greenplum, err error) {
	g = &greenplum{bench: &bench{o: o}, admin: dsn}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	if g.lab, err = lab.New(ctx, lab.Options{Settings: map[string]string{"max_wal_size": "4GB", "shared_buffers": "256MB", "autovacuum": "off"}}); err != nil {
		return g, err
	}
	if g.dst, err = g.lab.StartTarget(ctx, 2); err != nil {
		return g, err
	}
	if g.pub, err = g.lab.StartServer(ctx, "publisher", nil); err != nil {
		return g, err
	}
	if g.dir, err = os.MkdirTemp("", "cbrepl-bench-"); err != nil {
		return g, err
	}
	for _, sql := range []string{"DROP DATABASE IF EXISTS " + database, "CREATE DATABASE " + database} {
		if err := run1(ctx, dsn, sql); err != nil {
			return g, err
		}
	}
	if g.dsn, err = withDatabase(dsn); err != nil {
		return g, err
	}
	if err := run1(ctx, g.dsn, "CREATE EXTENSION cbrepl_source"); err != nil {
		return g, err
	}
	cl, err := source.Discover(ctx, source.ClusterConfig{Coordinator: g.dsn})
	if err != nil {
		return g, err
	}
	g.nodes = cl.Nodes()
	return g, nil
}

// close removes what the measurement has made.
func (g *greenplum) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if g.nodes != nil {
		errs = append(errs, g.dropSlots(ctx), run1(ctx, g.admin, "DROP DATABASE "+database))
	}
	g.bench.close()
	return errors.Join(errs...)
}

// withDatabase names the measurement's database in a connection URL.
func withDatabase(dsn string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme == "" {
		return "", errors.New(sourceEnv + " is no connection URL: write it as postgres://user@host:port/database")
	}
	u.Path = "/" + database
	return u.String(), nil
}

// run1 runs statements in a session of their own.
func run1(ctx context.Context, dsn, sql string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

// dropSlots drops every slot of the database, once nobody reads it.
func (g *greenplum) dropSlots(ctx context.Context) error {
	for _, n := range g.nodes {
		for {
			err := run1(ctx, n.DSN, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()")
			if err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return err
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	return nil
}

// prepare makes a table on all sides, its publication, the daemon's slots and a
// prepared target.
func (g *greenplum) prepare(ctx context.Context, table string) error {
	if err := run1(ctx, g.dsn, "CREATE TABLE "+table+" ("+wideColumns+") DISTRIBUTED BY (id)"); err != nil {
		return err
	}
	if err := g.dst.CreateTable(ctx, lab.Table{Name: table, Columns: wideColumns, Key: []string{"id"}}); err != nil {
		return err
	}
	if err := source.Publish(ctx, g.dsn, table, []string{"public." + table}, false); err != nil {
		return err
	}
	sub, err := lab.NewSubscription(table, g.dir, published{g.dsn, table}, g.dst.DSNs())
	if err != nil {
		return err
	}
	g.addr = sub.Settings["http.listen"].(string)
	sub.Set("source.slot", slot)
	sub.Set("log.level", "warn")
	g.conf = filepath.Join(g.dir, table+".yaml")
	if err := sub.Write(g.conf); err != nil {
		return err
	}
	if g.cfg, err = config.Load(config.Sources{File: g.conf}); err != nil {
		return err
	}
	if err := subscription.PrepareTarget(ctx, g.cfg); err != nil {
		return err
	}
	_, err = subscription.CreateSlots(ctx, g.cfg, 0, nil)
	return err
}

// published is the source as a subscription names it.
type published struct{ dsn, publication string }

func (p published) DSNs() []string      { return []string{p.dsn} }
func (p published) Publication() string { return p.publication }

// catchUps measures one round: the same rows read by pg_recvlogical, by a reader
// that drops them, and by the daemon.
type catchUps struct {
	raw, repl       figures
	plugin, stock   []time.Duration // CPU of the senders, in all
	pluginN, stockN int64           // rows of a round
}

func (g *greenplum) catchUp(ctx context.Context, c *catchUps, round int) (err error) {
	table := fmt.Sprintf("wide_%d", round)
	if err := g.prepare(ctx, table); err != nil {
		return err
	}
	for _, n := range g.nodes[1:] {
		if err := run1(ctx, n.DSN, "SELECT pg_create_logical_replication_slot('"+rawSlot+"', 'cbrepl_source')"); err != nil {
			return err
		}
	}
	for _, sql := range []string{
		"CREATE TABLE " + table + " (" + wideColumns + "); CREATE PUBLICATION " + table + " FOR TABLE " + table,
		"SELECT pg_create_logical_replication_slot('" + table + "', 'pgoutput')",
	} {
		if err := run1(ctx, g.pub.DSN(), sql); err != nil {
			return err
		}
	}
	const step = 15_000
	for from := 0; from < g.o.rows; from += step {
		sql := fmt.Sprintf("INSERT INTO %s %s(%d, %d) i", table, wideRows, from+1, min(from+step, g.o.rows))
		for _, dsn := range []string{g.dsn, g.pub.DSN()} {
			if err := run1(ctx, dsn, sql); err != nil {
				return err
			}
		}
	}
	var cpu, stock time.Duration
	var n int64
	for _, node := range g.nodes[1:] {
		d, rows, err := sendersCPU(ctx, rawConfig(node, table), 0)
		if err != nil {
			return err
		}
		cpu, n = cpu+d, n+rows
	}
	if stock, c.stockN, err = sendersCPU(ctx, repl.Config{DSN: g.pub.DSN(), Slot: table, Publication: table, Plugin: repl.PgOutput}, int64(g.o.rows)); err != nil {
		return err
	}
	c.plugin, c.stock, c.pluginN = append(c.plugin, cpu), append(c.stock, stock), n

	raw, err := g.receive(ctx, table) // it confirms what it has read: nobody can read that again
	if err != nil {
		return fmt.Errorf("pg_recvlogical: %w", err)
	}
	c.raw = append(c.raw, raw)

	d, err := g.startDaemon()
	if err != nil {
		return err
	}
	defer d.end(&err)
	r, err := d.until(ctx, func(r *status.Report) bool { return r.Applied.Rows >= int64(g.o.rows) })
	if err != nil {
		return err
	}
	connected := r.Now
	for _, s := range r.Streams {
		if s.Since.Before(connected) {
			connected = s.Since
		}
	}
	f := figure{rows: int64(g.o.rows), elapsed: r.Applied.LastAt.Sub(connected), startUp: connected.Sub(d.started)}
	if f.cpu, err = cpuTime(d.cmd.Process.Pid); err != nil {
		return err
	}
	f.peakRSS, err = peakRSS(d.cmd.Process.Pid)
	c.repl = append(c.repl, f)
	return err
}

// rawConfig reads a node without the daemon.
func rawConfig(n source.Node, table string) repl.Config {
	return repl.Config{
		Content: n.Content, DSN: n.DSN, Slot: rawSlot, Publication: table, Plugin: repl.CbreplSource,
		Options: []repl.Option{{Name: "tables", Value: quoted(table)}},
	}
}

// receive lets a pg_recvlogical per segment read the slots side by side.
func (g *greenplum) receive(ctx context.Context, table string) (figure, error) {
	ends := map[dtx.Content]dtx.LSN{}
	for _, n := range g.nodes[1:] {
		conn, err := pgx.Connect(ctx, n.DSN)
		if err != nil {
			return figure{}, err
		}
		var at string
		err = conn.QueryRow(ctx, "SELECT cbrepl_source.flush_lsn()").Scan(&at)
		_ = conn.Close(ctx)
		if err == nil {
			ends[n.Content], err = dtx.ParseLSN(at)
		}
		if err != nil {
			return figure{}, err
		}
	}
	start := time.Now()
	e, ectx := errgroup.WithContext(ctx)
	for _, n := range g.nodes[1:] {
		e.Go(func() error {
			out, err := exec.CommandContext(ectx, filepath.Join(g.lab.BinDir(), "pg_recvlogical"), "-d", n.DSN, "-S", rawSlot, "--start", "-f", "/dev/null",
				"--endpos", ends[n.Content].String(), "--no-loop", "-o", "proto_version=1", "-o", "publication_names=x", "-o", "tables="+quoted(table)).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
	err := e.Wait()
	return figure{rows: int64(g.o.rows), elapsed: time.Since(start)}, err
}

// quoted is a table as the plugin's option names it.
func quoted(table string) string { return pgx.Identifier{"public", table}.Sanitize() }

// sendersCPU reads a slot's rows, drops them, and returns the CPU time that the
// walsender has used. want 0 reads until the stream has caught up.
func sendersCPU(ctx context.Context, cfg repl.Config, want int64) (spent time.Duration, rows int64, err error) {
	conn, err := repl.Connect(ctx, cfg)
	if err != nil {
		return 0, 0, err
	}
	s, err := conn.Start(ctx, 0)
	if err != nil {
		return 0, 0, err
	}
	defer s.Close()
	ends := false
	for !ends {
		m, err := s.Next(time.Now().Add(3 * time.Second))
		if err != nil {
			return 0, 0, err
		}
		switch {
		case m.Kind == repl.Idle:
			ends = true
		case m.Kind == repl.Data && m.Payload[0] == 'I':
			rows++
		case m.Kind == repl.Data && m.Payload[0] == 'C':
			ends = want > 0 && rows >= want
		}
	}
	sql, err := pgx.Connect(ctx, cfg.DSN)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = sql.Close(context.WithoutCancel(ctx)) }()
	// Only the benchmark streams from this server's database.
	pids, err := sql.Query(ctx, "SELECT r.pid FROM pg_stat_replication r JOIN pg_stat_activity a ON a.pid = r.pid WHERE a.datname = current_database()")
	if err != nil {
		return 0, 0, err
	}
	list, err := pgx.CollectRows(pids, pgx.RowTo[int32])
	for _, pid := range list {
		d, cerr := cpuTime(int(pid))
		spent, err = spent+d, errors.Join(err, cerr)
	}
	if len(list) == 0 {
		err = errors.Join(err, errors.New("no walsender is listed"))
	}
	return spent, rows, err
}

// oltp is what small transactions on the source see.
type oltp struct {
	tps, median, p95 float64 // latencies in milliseconds
}

// small runs transactions of one row on the source for a while. rate 0 is as many
// as possible, else so many per second.
func (g *greenplum) small(ctx context.Context, table string, from int64, rate float64) (o oltp, next int64, err error) {
	const workers, length = 8, 8 * time.Second
	var id atomic.Int64
	id.Store(from)
	latencies := make([][]float64, workers)
	e, ectx := errgroup.WithContext(ctx)
	start := time.Now()
	for w := range workers {
		e.Go(func() error {
			conn, err := pgx.Connect(ectx, g.dsn)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close(context.WithoutCancel(ectx)) }()
			for i := 0; ; i++ {
				if rate > 0 {
					at := start.Add(time.Duration((float64(i*workers+w) / rate) * float64(time.Second)))
					select {
					case <-ectx.Done():
						return ectx.Err()
					case <-time.After(time.Until(at)):
					}
				}
				if time.Since(start) > length {
					return nil
				}
				began := time.Now()
				n := id.Add(1)
				if _, err := conn.Exec(ectx, fmt.Sprintf("INSERT INTO %s %s(%d, %d) i", table, wideRows, n, n), pgx.QueryExecModeSimpleProtocol); err != nil {
					return err
				}
				latencies[w] = append(latencies[w], float64(time.Since(began).Microseconds())/1000)
			}
		})
	}
	err = e.Wait()
	all := slices.Concat(latencies...)
	slices.Sort(all)
	if len(all) == 0 {
		return o, id.Load(), errors.Join(err, errors.New("no transaction was committed"))
	}
	return oltp{float64(len(all)) / time.Since(start).Seconds(), all[len(all)/2], all[len(all)*95/100]}, id.Load(), err
}

// load compares small transactions with and without the daemon reading.
func (g *greenplum) load(ctx context.Context) (err error) {
	if err := g.prepare(ctx, "small"); err != nil {
		return err
	}
	for _, n := range g.nodes {
		if err := run1(ctx, n.DSN, "SELECT pg_create_logical_replication_slot('"+rawSlot+"', 'cbrepl_source')"); err != nil {
			return err
		}
	}
	_, next, err := g.small(ctx, "small", 0, 0) // warm up
	if err != nil {
		return err
	}
	var most oltp
	if most, next, err = g.small(ctx, "small", next, 0); err != nil {
		return err
	}
	show := func(name string, o oltp) {
		fmt.Printf("  %-44s %7.0f /s, median %.2f ms, 95%% %.2f ms\n", name, o.tps, o.median, o.p95)
	}
	show("alone, as many as possible", most)
	names := []string{"half of that, nobody reading", "half of that, the plugin read on every node", "half of that, the daemon reading and applying"}
	readers := []func(context.Context) (func() error, error){
		func(context.Context) (func() error, error) { return func() error { return nil }, nil },
		g.readAll, g.replicate,
	}
	half := make([][]oltp, len(names))
	for range g.o.rounds {
		for i, reader := range readers {
			end, err := reader(ctx)
			if err != nil {
				return err
			}
			o, n, err := g.small(ctx, "small", next, most.tps/2)
			if err := errors.Join(err, end()); err != nil {
				return err
			}
			next = n
			half[i] = append(half[i], o)
		}
	}
	for i, name := range names {
		slices.SortFunc(half[i], func(a, b oltp) int { return cmp.Compare(a.median, b.median) })
		show(name, half[i][len(half[i])/2])
	}
	return nil
}

// replicate runs the daemon until end is called.
func (g *greenplum) replicate(ctx context.Context) (end func() error, err error) {
	d, err := g.startDaemon()
	if err != nil {
		return nil, err
	}
	end = func() (err error) { d.end(&err); return err }
	_, err = d.until(ctx, func(r *status.Report) bool {
		return r.State == status.Streaming && r.LagSeconds < 1 && r.Applied.Batches > 0
	})
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return end, nil
}

// readAll reads every node's stream and drops it until end is called.
func (g *greenplum) readAll(ctx context.Context) (end func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var e errgroup.Group
	end = func() error { cancel(); return e.Wait() }
	for _, n := range g.nodes {
		conn, err := repl.Connect(ctx, rawConfig(n, "small"))
		if err != nil {
			return nil, errors.Join(err, end())
		}
		s, err := conn.Start(ctx, 0)
		if err != nil {
			return nil, errors.Join(err, end())
		}
		e.Go(func() error {
			defer s.Close()
			for {
				if _, err := s.Next(time.Now().Add(time.Minute)); err != nil {
					if ctx.Err() != nil {
						return nil
					}
					return err
				}
			}
		})
	}
	return end, nil
}

func measureGreenplum(ctx context.Context, o options, dsn string) (err error) {
	g, err := newGreenplum(ctx, o, dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	fmt.Printf("Greenplum 6 source: %d rows of about 125 bytes, %d segments into 2 shards\n", o.rows, len(g.nodes)-1)
	var c catchUps
	for r := range o.rounds {
		if err := g.catchUp(ctx, &c, r); err != nil {
			return err
		}
		if err := g.dropSlots(ctx); err != nil {
			return err
		}
	}
	c.raw.show("pg_recvlogical to /dev/null, a slot per segment")
	c.repl.show("cbrepl catch-up")
	fmt.Printf("  cbrepl / pg_recvlogical        %.2f\n", c.repl.ratio(c.raw))
	m := c.repl.median()
	fmt.Printf("  CPU per row: daemon %.2f us; start-up %.2f s, peak memory %d MiB\n", m.perRow(m.cpu), m.startUp.Seconds(), m.peakRSS>>20)
	slices.Sort(c.plugin)
	slices.Sort(c.stock)
	plugin := float64(c.plugin[len(c.plugin)/2].Microseconds()) / float64(c.pluginN)
	stock := float64(c.stock[len(c.stock)/2].Microseconds()) / float64(c.stockN)
	fmt.Printf("  CPU per row of the senders: cbrepl_source %.2f us (aim 2), pgoutput of PostgreSQL on the same rows %.2f us, ratio %.2f (aim 1.5)\n",
		plugin, stock, plugin/stock)
	fmt.Println("Greenplum 6 source: transactions of one row")
	return g.load(ctx)
}
