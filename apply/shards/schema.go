package shards

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"cbrepl/apply/internal/pgside"
	"cbrepl/apply/ledger"
	"cbrepl/logkey"
)

// coordinatorObjects are the tables of the coordinator database: the ledger, and
// the placement of the target's tables, kept by the administrator.
var coordinatorObjects = append(slices.Clone(ledger.Objects), ledger.Object{
	Name: "distribution_policy", Key: "schema_name, table_name", FillFactor: 100, DDL: `
	CREATE TABLE cbrepl.distribution_policy (
		schema_name text,
		table_name  text,
		kind        text NOT NULL CHECK (kind IN ('hash', 'random', 'replicated')),
		columns     text[],
		opclasses   text[],
		numsegments integer NOT NULL,
		PRIMARY KEY (schema_name, table_name))`,
})

// shardObjects are the tables of every shard: per subscription which shard this
// is, its epoch, and the last batch committed here. The row is changed by every
// batch.
var shardObjects = []ledger.Object{
	ledger.FormatObject,
	{Name: "shard", Key: "subscription", FillFactor: 10, DDL: `
	CREATE TABLE cbrepl.shard (
		subscription text PRIMARY KEY,
		id           integer GENERATED ALWAYS AS IDENTITY UNIQUE,
		token        uuid NOT NULL,
		shard        integer NOT NULL,
		shards       integer NOT NULL,
		epoch        bigint NOT NULL DEFAULT 0,
		batch        bigint NOT NULL DEFAULT 0)`},
}

// storage is the clause behind a table's columns.
func storage(o *ledger.Object) string { return fmt.Sprintf("WITH (fillfactor = %d)", o.FillFactor) }

// Prepare creates what a subscription needs on its target: schema cbrepl on the
// coordinator database and on every shard, and the subscription's rows there. It
// may be repeated; what exists is kept. Several subscriptions may share a target.
// Nothing else creates any of it.
func Prepare(ctx context.Context, o Options) (err error) {
	t, err := New(o)
	if err != nil {
		return err
	}
	defer t.disconnect()
	if err := t.connectAll(ctx); err != nil {
		return err
	}
	if err := checkServers(t.shards).Err("check target servers"); err != nil {
		return err
	}
	// The coordinator's row comes first: it makes the token that shards belong to.
	token, err := t.prepareCoordinator(ctx)
	if err != nil {
		return err
	}
	for _, n := range t.shards {
		if err := t.prepareShard(ctx, n, token); err != nil {
			return err
		}
	}
	t.log.Info("target is prepared", slog.String(logkey.Subscription, o.Subscription), slog.Int(logkey.Shards, len(t.shards)))
	return nil
}

func (t *Target) prepareCoordinator(ctx context.Context) (token string, err error) {
	err = t.co.Transaction(ctx, ledger.OpPrepare, func() error {
		if err := ledger.CreateObjects(ctx, t.co.Session, storage, coordinatorObjects); err != nil {
			return err
		}
		row, err := t.ledger.CreateRow(ctx, len(t.shards))
		if err != nil {
			return err
		}
		token = row.Token
		return t.checkShards(ledger.OpPrepare, row)
	})
	return token, err
}

func (t *Target) prepareShard(ctx context.Context, n *node, token string) error {
	return n.Transaction(ctx, ledger.OpPrepare, func() error {
		if err := ledger.CreateObjects(ctx, n.Session, storage, shardObjects); err != nil {
			return err
		}
		_, err := n.Query(ctx, `
			INSERT INTO cbrepl.shard (subscription, token, shard, shards)
			VALUES ($1, $2::uuid, $3::int, $4::int) ON CONFLICT (subscription) DO NOTHING`,
			t.opts.Subscription, token, fmt.Sprint(n.index), fmt.Sprint(len(t.shards)))
		if err != nil {
			return err
		}
		_, err = t.readShard(ctx, n, ledger.OpPrepare, token)
		return err
	})
}

// checkShards checks that the subscription was prepared for this many shards.
func (t *Target) checkShards(op string, row ledger.Row) error {
	if got := len(row.ShardBatches); got != len(t.shards) {
		return pgside.Stop(op,
			"List the shards it was prepared with; a target of another size needs another subscription name and a new copy",
			"subscription %s on the %s was prepared for %d shards, the configuration lists %d", t.opts.Subscription, t.co, got, len(t.shards))
	}
	return nil
}

// readRow reads the subscription's row and checks that it belongs to this
// configuration.
func (t *Target) readRow(ctx context.Context) (ledger.Row, error) {
	row, err := t.ledger.ReadRow(ctx, ledger.OpOpen)
	if err != nil {
		return row, err
	}
	return row, t.checkShards(ledger.OpOpen, row)
}

// shardRow is the subscription's row on a shard.
type shardRow struct {
	epoch, batch uint64
}

// readShard reads the subscription's row on a shard and checks that the shard
// is the one that stands at this place of the configuration.
func (t *Target) readShard(ctx context.Context, n *node, op, token string) (shardRow, error) {
	rows, err := n.Query(ctx, `SELECT token, shard, shards, epoch, batch FROM cbrepl.shard WHERE subscription = $1`, t.opts.Subscription)
	if err != nil {
		return shardRow{}, n.Fail(op, err)
	}
	if len(rows) == 0 {
		return shardRow{}, pgside.Stop(op, ledger.PrepareHint, "the %s knows no subscription %s", n, t.opts.Subscription)
	}
	r := rows[0]
	if string(r[0]) != token {
		return shardRow{}, pgside.Stop(op,
			"Correct the connection strings. If the other target is gone for good, delete the row of this subscription from cbrepl.shard on that shard and run `cbrepl target prepare -c FILE`",
			"the %s was prepared for a subscription %s of another coordinator database", n, t.opts.Subscription)
	}
	if i, of := int(pgside.Atoi(r[1])), int(pgside.Atoi(r[2])); i != n.index || of != len(t.shards) {
		return shardRow{}, pgside.Stop(op, "List every shard once, in the order in which the target was prepared: rows are placed by shard number",
			"the %s was prepared as shard %d of %d, the configuration has it as shard %d of %d", n, i, of, n.index, len(t.shards))
	}
	return shardRow{epoch: pgside.Atou(r[3]), batch: pgside.Atou(r[4])}, nil
}
