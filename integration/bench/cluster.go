package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/router"
)

const (
	slot       = "cbrepl_bench" // of the daemon
	decodeSlot = "bench_decode" // of pg_recvlogical
	origin     = "bench_origin" // where the changes of a phase begin; read by nobody
	copied     = "bench_copy"   // the shards' table that plain COPY fills
	columns    = "id bigint primary key, grp integer, filler text, at timestamptz"
	int8OID    = 20
)

// bench holds the clusters: a source and a target for cbrepl, and two single
// servers for built-in replication of the same rows.
type bench struct {
	o                options
	lab              *lab.Lab
	src              *lab.Source
	dst              *lab.TargetCluster
	pub, sub         *lab.Server
	dir, conf        string
	addr             string
	subscriptions    int
	bySegment, shard [][]int64 // ids by placement; on the shards in the order of the source's commits
}

func newBench(ctx context.Context, o options) (b *bench, err error) {
	b = &bench{o: o}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.lab, err = lab.New(ctx, lab.Options{Settings: map[string]string{
		"max_wal_size": "4GB", "shared_buffers": "256MB", "autovacuum": "off", // it would come at random
	}}); err != nil {
		return b, err
	}
	if b.src, err = b.lab.StartSource(ctx, 3); err != nil {
		return b, err
	}
	if b.dst, err = b.lab.StartTarget(ctx, 2); err != nil {
		return b, err
	}
	if b.pub, err = b.lab.StartServer(ctx, "publisher", nil); err != nil {
		return b, err
	}
	if b.sub, err = b.lab.StartServer(ctx, "subscriber", map[string]string{"wal_retrieve_retry_interval": "100ms"}); err != nil {
		return b, err
	}
	tables := []string{"bench"}
	for r := range o.rounds {
		tables = append(tables, backlog(r))
	}
	for _, name := range tables {
		t := lab.Table{Name: name, Columns: columns, Key: []string{"id"}}
		if err := b.src.CreateTable(ctx, t); err != nil {
			return b, err
		}
		if err := b.dst.CreateTable(ctx, t); err != nil {
			return b, err
		}
	}
	if err := b.dst.CreateTable(ctx, lab.Table{Name: copied, Columns: columns, Key: []string{"id"}}); err != nil {
		return b, err
	}
	for _, s := range []*lab.Server{b.pub, b.sub} {
		if err := s.Exec(ctx, "CREATE TABLE bench ("+columns+")"); err != nil {
			return b, err
		}
	}
	if err := b.pub.Exec(ctx, "CREATE PUBLICATION bench FOR TABLE bench"); err != nil {
		return b, err
	}
	if b.dir, err = os.MkdirTemp("", "cbrepl-bench-"); err != nil {
		return b, err
	}
	return b, b.place()
}

func (b *bench) close() {
	if b.lab != nil {
		if err := b.lab.Close(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "bench: clean up:", err)
		}
	}
	if b.dir != "" {
		_ = os.RemoveAll(b.dir)
	}
}

// place computes where every id lives on both clusters.
func (b *bench) place() error {
	segment, err := idRouter(3)
	if err != nil {
		return err
	}
	shard, err := idRouter(2)
	if err != nil {
		return err
	}
	b.bySegment, b.shard = make([][]int64, 3), make([][]int64, 2)
	for id := range int64(b.o.rows) {
		c, err := segment(id)
		if err != nil {
			return err
		}
		b.bySegment[c] = append(b.bySegment[c], id)
	}
	return b.chunks(b.o.rows, func(parts [][]int64) error {
		for _, part := range parts {
			for _, id := range part {
				s, err := shard(id)
				if err != nil {
					return err
				}
				b.shard[s] = append(b.shard[s], id)
			}
		}
		return nil
	})
}

// idRouter routes ids on a cluster of n segments.
func idRouter(n int) (func(int64) (dtx.Content, error), error) {
	typ, ok := router.BuiltinType(int8OID)
	if !ok {
		return nil, fmt.Errorf("the router does not know bigint")
	}
	r, err := router.New(router.Policy{Kind: router.Hash, NumSegments: n, Columns: []router.Column{{Name: "id", Type: typ}}})
	if err != nil {
		return nil, err
	}
	return func(id int64) (dtx.Content, error) {
		return r.Segment([][]byte{strconv.AppendInt(nil, id, 10)})
	}, nil
}

// chunks calls f with the ids below limit as transactions write them: one chunk
// per segment.
func (b *bench) chunks(limit int, f func(parts [][]int64) error) error {
	for from := 0; ; from += chunk {
		parts := make([][]int64, len(b.bySegment))
		found := false
		for c, ids := range b.bySegment {
			for i := from; i < min(from+chunk, len(ids)) && ids[i] < int64(limit); i++ {
				parts[c] = append(parts[c], ids[i])
				found = true
			}
		}
		if !found {
			return nil
		}
		if err := f(parts); err != nil {
			return err
		}
	}
}

// configure makes a new subscription that reads the slots named slot, and
// prepares the target for it.
func (b *bench) configure(ctx context.Context) error {
	b.subscriptions++
	name := fmt.Sprintf("bench_%d", b.subscriptions)
	sub, err := lab.NewSubscription(name, b.dir, b.src, b.dst.DSNs())
	if err != nil {
		return err
	}
	b.addr = sub.Settings["http.listen"].(string)
	sub.Set("source.slot", slot)
	sub.Set("log.level", "warn")
	b.conf = filepath.Join(b.dir, name+".yaml")
	if err := sub.Write(b.conf); err != nil {
		return err
	}
	// The slots are copies of others: what begins at them is said by a reset.
	out, err := exec.CommandContext(ctx, b.o.binary, "subscription", "reset", "-c", b.conf).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cbrepl subscription reset: %w: %s", err, out)
	}
	return nil
}

// chunk is the number of rows of one source transaction on one segment.
const chunk = 5000

// row makes the row of an id; updates change gen.
func row(id int64, gen int) []any {
	return []any{id, int32(id % 97), fmt.Sprintf("%0100d", id*31+int64(gen)), time.Unix(1700000000+id, 0)}
}

func copyIDs(ctx context.Context, conn *pgx.Conn, table string, ids []int64) error {
	_, err := conn.CopyFrom(ctx, pgx.Identifier{table}, []string{"id", "grp", "filler", "at"},
		pgx.CopyFromSlice(len(ids), func(i int) ([]any, error) { return row(ids[i], 0), nil }))
	return err
}

// loadSource writes the rows to the source by distributed transactions over all
// segments.
func (b *bench) loadSource(ctx context.Context, table string) error {
	return b.perChunk(ctx, b.o.rows, func(ctx context.Context, conn *pgx.Conn, ids []int64) error {
		return copyIDs(ctx, conn, table, ids)
	})
}

// loadInserts writes the rows to the source and to the publisher.
func (b *bench) loadInserts(ctx context.Context) error {
	if err := b.loadSource(ctx, "bench"); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, b.pub.DSN())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for id := 0; id < b.o.rows; id += 3 * chunk {
		var ids []int64
		for i := id; i < min(id+3*chunk, b.o.rows); i++ {
			ids = append(ids, int64(i))
		}
		if err := copyIDs(ctx, conn, "bench", ids); err != nil {
			return err
		}
	}
	return nil
}

// perChunk runs f over the ids below limit, as distributed transactions.
func (b *bench) perChunk(ctx context.Context, limit int, f func(context.Context, *pgx.Conn, []int64) error) error {
	return b.chunks(limit, func(parts [][]int64) error {
		return b.src.Do(ctx, func(tx *lab.Tx) error {
			for c, part := range parts {
				if len(part) == 0 {
					continue
				}
				conn, err := tx.Conn(ctx, dtx.Content(c))
				if err != nil {
					return err
				}
				if err := f(ctx, conn, part); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func (b *bench) loadUpdates(ctx context.Context) error {
	const q = "UPDATE bench SET grp = grp + 1, filler = left(filler, 99) || $1 WHERE id = ANY($2)"
	for gen := range 10 {
		err := b.perChunk(ctx, b.o.updates, func(ctx context.Context, conn *pgx.Conn, ids []int64) error {
			_, err := conn.Exec(ctx, q, strconv.Itoa(gen), ids)
			return err
		})
		if err != nil {
			return err
		}
		if err := b.pub.Exec(ctx, fmt.Sprintf("UPDATE bench SET grp = grp + 1, filler = left(filler, 99) || '%d' WHERE id < %d", gen, b.o.updates)); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) loadDeletes(ctx context.Context) error {
	err := b.perChunk(ctx, b.o.rows, func(ctx context.Context, conn *pgx.Conn, ids []int64) error {
		_, err := conn.Exec(ctx, "DELETE FROM bench WHERE id = ANY($1)", ids)
		return err
	})
	if err != nil {
		return err
	}
	return b.pub.Exec(ctx, fmt.Sprintf("DELETE FROM bench WHERE id < %d", b.o.rows))
}

// decodeOnly lets three pg_recvlogical read the segments' slots side by side.
func (b *bench) decodeOnly(ctx context.Context) (figure, error) {
	if err := b.slots(ctx, decodeSlot); err != nil {
		return figure{}, err
	}
	ends, err := walEnds(ctx, b.src.SegmentDSNs())
	if err != nil {
		return figure{}, err
	}
	start := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	for c, dsn := range b.src.SegmentDSNs() {
		g.Go(func() error {
			out, err := exec.CommandContext(gctx, filepath.Join(b.lab.BinDir(), "pg_recvlogical"), "-d", dsn, "-S", decodeSlot,
				"--start", "-f", "/dev/null", "--endpos", ends[c].String(), "--no-loop", "-o", "proto_version=2", "-o", "streaming=on",
				"-o", "messages=true", "-o", "publication_names="+b.src.Publication()).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
	err = g.Wait()
	return figure{rows: int64(b.o.rows), elapsed: time.Since(start)}, err
}

// builtin measures a new subscription on the subscriber until the publisher's
// slot has confirmed everything.
func (b *bench) builtin(ctx context.Context, n int64) (figure, error) {
	conn, err := pgx.Connect(ctx, b.pub.DSN())
	if err != nil {
		return figure{}, err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var end string
	if err := conn.QueryRow(ctx, "SELECT pg_current_wal_lsn()::text").Scan(&end); err != nil {
		return figure{}, err
	}
	if _, err := conn.Exec(ctx, "SELECT pg_copy_logical_replication_slot($1, 'bench')", origin); err != nil {
		return figure{}, err
	}
	err = b.sub.Exec(ctx, fmt.Sprintf("CREATE SUBSCRIPTION bench CONNECTION '%s' PUBLICATION bench WITH (copy_data = false, enabled = false, create_slot = false, slot_name = 'bench')", b.pub.DSN()))
	if err != nil {
		return figure{}, err
	}
	if err := b.sub.Exec(ctx, "ALTER SUBSCRIPTION bench ENABLE"); err != nil {
		return figure{}, err
	}
	connected := time.Now()
	for caught := false; !caught; {
		select {
		case <-ctx.Done():
			return figure{}, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		err := conn.QueryRow(ctx, "SELECT coalesce(bool_or(replay_lsn >= $1::pg_lsn), false), coalesce(min(backend_start), now()) FROM pg_stat_replication", end).Scan(&caught, &connected)
		if err != nil {
			return figure{}, err
		}
	}
	f := figure{rows: n, elapsed: time.Since(connected)}
	return f, b.sub.Exec(ctx, "DROP SUBSCRIPTION bench") // and its slot
}

// plainCopy copies the same rows in the same order straight into an equal table
// on the shards.
func (b *bench) plainCopy(ctx context.Context) (figure, error) {
	bodies := make([]string, len(b.shard))
	for s, ids := range b.shard {
		var y strings.Builder
		for _, id := range ids {
			r := row(id, 0)
			fmt.Fprintf(&y, "%d\t%d\t%s\t%s\n", r[0], r[1], r[2], r[3].(time.Time).UTC().Format("2006-01-02 15:04:05+00"))
		}
		bodies[s] = y.String()
	}
	conns := make([]*pgx.Conn, len(bodies))
	defer func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close(context.Background())
			}
		}
	}()
	for s, dsn := range b.dst.SegmentDSNs() {
		var err error
		if conns[s], err = pgx.Connect(ctx, dsn); err != nil {
			return figure{}, err
		}
	}
	if err := b.empty(ctx, copied); err != nil {
		return figure{}, err
	}
	before, err := b.usage()
	if err != nil {
		return figure{}, err
	}
	f := figure{rows: int64(b.o.rows)}
	g, gctx := errgroup.WithContext(ctx)
	start := time.Now()
	for s, conn := range conns {
		g.Go(func() error {
			_, err := conn.PgConn().CopyFrom(gctx, strings.NewReader(bodies[s]), "COPY "+copied+" FROM STDIN")
			return err
		})
	}
	err = g.Wait()
	f.elapsed = time.Since(start)
	if err != nil {
		return f, err
	}
	after, err := b.usage()
	f.target = after.target - before.target
	return f, err
}
