package shards

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"cbrepl/apply/internal/pgside"
	"cbrepl/dtx"
)

// Layout of schema cbrepl. On the coordinator database:
//
//	state_format         version of this layout (one row)
//	subscription         one row per subscription; its (batch_epoch, batch) is the
//	                     decision of the last batch
//	stream               per subscription and content: recorded position and the
//	                     identity of the stream it belongs to
//	dedup                per subscription: gxids applied ahead of a position
//	distribution_policy  placement of the target's tables, kept by the administrator
//
// On every shard:
//
//	state_format         as above
//	shard                per subscription: which shard this is, its epoch, and the
//	                     last batch committed here
const stateFormat = 1

// object is one table of the layout and how it is made.
type object struct {
	table, ddl string
}

var stateFormatTable = object{"state_format", `
	CREATE TABLE cbrepl.state_format (
		singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
		version   integer NOT NULL);
	INSERT INTO cbrepl.state_format (version) VALUES (1)`}

// Rows of subscription, stream and shard are updated by every batch: room on the
// page keeps those updates off the indexes.
var coordinatorObjects = []object{
	stateFormatTable,
	{"subscription", `
	CREATE TABLE cbrepl.subscription (
		name          text PRIMARY KEY,
		id            integer GENERATED ALWAYS AS IDENTITY UNIQUE,
		token         uuid NOT NULL DEFAULT gen_random_uuid(),
		shards        integer NOT NULL,
		initialized   boolean NOT NULL DEFAULT false,
		epoch         bigint NOT NULL DEFAULT 0,
		batch         bigint NOT NULL DEFAULT 0,
		batch_epoch   bigint NOT NULL DEFAULT 0,
		shard_batches bigint[] NOT NULL,
		decided_at    timestamptz) WITH (fillfactor = 10)`},
	{"stream", `
	CREATE TABLE cbrepl.stream (
		subscription text,
		content      smallint,
		lsn          pg_lsn NOT NULL,
		system_id    text NOT NULL,
		slot         text NOT NULL,
		timeline     integer NOT NULL,
		PRIMARY KEY (subscription, content)) WITH (fillfactor = 10)`},
	{"dedup", `
	CREATE TABLE cbrepl.dedup (
		subscription text,
		gxid         numeric(20, 0),
		contents     smallint[] NOT NULL,
		lsns         pg_lsn[] NOT NULL,
		PRIMARY KEY (subscription, gxid))`},
	{"distribution_policy", `
	CREATE TABLE cbrepl.distribution_policy (
		schema_name text,
		table_name  text,
		kind        text NOT NULL CHECK (kind IN ('hash', 'random', 'replicated')),
		columns     text[],
		opclasses   text[],
		numsegments integer NOT NULL,
		PRIMARY KEY (schema_name, table_name))`},
}

var shardObjects = []object{
	stateFormatTable,
	{"shard", `
	CREATE TABLE cbrepl.shard (
		subscription text PRIMARY KEY,
		id           integer GENERATED ALWAYS AS IDENTITY UNIQUE,
		token        uuid NOT NULL,
		shard        integer NOT NULL,
		shards       integer NOT NULL,
		epoch        bigint NOT NULL DEFAULT 0,
		batch        bigint NOT NULL DEFAULT 0) WITH (fillfactor = 10)`},
}

// prepareLock keeps two Prepare runs on one database apart.
const prepareLock = 0x63627270 // "cbrp"

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
	if err := t.connectAll(ctx, appName(o.Subscription, 0)); err != nil {
		return err
	}
	if err := t.checkServers(); err != nil {
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
	t.log.Info("target is prepared", slog.String("subscription", o.Subscription), slog.Int("shards", len(t.shards)))
	return nil
}

// transaction runs f in a transaction of n's session.
func (n *node) transaction(ctx context.Context, op string, f func() error) error {
	if err := n.simple(ctx, "BEGIN"); err != nil {
		return fail(op, n.String(), err)
	}
	err := f()
	if err == nil {
		err = n.simple(ctx, "COMMIT")
	} else if n.conn != nil && !n.conn.IsClosed() {
		_ = n.simple(ctx, "ROLLBACK") // a lost connection rolls back as well
	}
	return fail(op, n.String(), err)
}

const opPrepare = "prepare target"

// createObjects creates the missing ones of objects.
func (n *node) createObjects(ctx context.Context, objects []object) error {
	if _, err := n.query(ctx, `SELECT pg_advisory_xact_lock($1)`, fmt.Sprint(prepareLock)); err != nil {
		return err
	}
	rows, err := n.query(ctx, `SELECT to_regnamespace('cbrepl') IS NOT NULL`)
	if err != nil {
		return err
	}
	if string(rows[0][0]) != "t" {
		if err := n.simple(ctx, `CREATE SCHEMA cbrepl`); err != nil {
			return err
		}
	}
	for _, o := range objects {
		rows, err := n.query(ctx, `SELECT to_regclass('cbrepl.' || $1) IS NOT NULL`, o.table)
		if err != nil {
			return err
		}
		if string(rows[0][0]) == "t" {
			continue
		}
		if err := n.simple(ctx, o.ddl); err != nil {
			return err
		}
	}
	return n.checkFormat(ctx, opPrepare)
}

// checkFormat refuses a layout of another version.
func (n *node) checkFormat(ctx context.Context, op string) error {
	rows, err := n.query(ctx, `SELECT version FROM cbrepl.state_format`)
	if err != nil {
		return fail(op, n.String(), err)
	}
	return pgside.CheckFormat(op, n.String(), rows, stateFormat)
}

func (t *Target) prepareCoordinator(ctx context.Context) (token string, err error) {
	n := t.co
	err = n.transaction(ctx, opPrepare, func() error {
		if err := n.createObjects(ctx, coordinatorObjects); err != nil {
			return err
		}
		_, err := n.query(ctx, `
			INSERT INTO cbrepl.subscription (name, shards, shard_batches)
			VALUES ($1, $2::int, array_fill(0::bigint, ARRAY[$2::int]))
			ON CONFLICT (name) DO NOTHING`, t.opts.Subscription, fmt.Sprint(len(t.shards)))
		if err != nil {
			return err
		}
		row, err := t.readSubscription(ctx, opPrepare)
		token = row.token
		return err
	})
	return token, err
}

func (t *Target) prepareShard(ctx context.Context, n *node, token string) error {
	return n.transaction(ctx, opPrepare, func() error {
		if err := n.createObjects(ctx, shardObjects); err != nil {
			return err
		}
		_, err := n.query(ctx, `
			INSERT INTO cbrepl.shard (subscription, token, shard, shards)
			VALUES ($1, $2::uuid, $3::int, $4::int) ON CONFLICT (subscription) DO NOTHING`,
			t.opts.Subscription, token, fmt.Sprint(n.index), fmt.Sprint(len(t.shards)))
		if err != nil {
			return err
		}
		_, err = t.readShard(ctx, n, opPrepare, token)
		return err
	})
}

// prepareHint is the remedy for everything that Prepare creates.
const prepareHint = "Run `cbrepl target prepare -c FILE`, which creates it"

// subscriptionRow is the subscription's row on the coordinator database.
type subscriptionRow struct {
	id           string
	token        string
	initialized  bool
	epoch        uint64
	decided      batchID
	shardBatches []uint64
}

// readSubscription reads the subscription's row and checks that it belongs to
// this configuration.
func (t *Target) readSubscription(ctx context.Context, op string) (subscriptionRow, error) {
	n := t.co
	rows, err := n.query(ctx, `
		SELECT id, token, shards, initialized, epoch, batch_epoch, batch, array_to_string(shard_batches, ',')
		FROM cbrepl.subscription WHERE name = $1`, t.opts.Subscription)
	if err != nil {
		return subscriptionRow{}, fail(op, n.String(), err)
	}
	if len(rows) == 0 {
		return subscriptionRow{}, stop(op, prepareHint, "the %s knows no subscription %s", n, t.opts.Subscription)
	}
	r := rows[0]
	if got := int(pgside.Atoi(r[2])); got != len(t.shards) {
		return subscriptionRow{}, stop(op,
			"List the shards it was prepared with; a target of another size needs another subscription name and a new copy",
			"subscription %s on the %s was prepared for %d shards, the configuration lists %d", t.opts.Subscription, n, got, len(t.shards))
	}
	s := subscriptionRow{
		id: string(r[0]), token: string(r[1]), initialized: string(r[3]) == "t",
		epoch: pgside.Atou(r[4]), decided: batchID{pgside.Atou(r[5]), pgside.Atou(r[6])},
	}
	for _, f := range strings.Split(string(r[7]), ",") {
		s.shardBatches = append(s.shardBatches, pgside.Atou([]byte(f)))
	}
	if len(s.shardBatches) != len(t.shards) {
		return subscriptionRow{}, stop(op, "Somebody has edited the row; restore it from a backup",
			"cbrepl.subscription on the %s records batches of %d shards instead of %d", n, len(s.shardBatches), len(t.shards))
	}
	return s, nil
}

// shardRow is the subscription's row on a shard.
type shardRow struct {
	epoch, batch uint64
}

// readShard reads the subscription's row on a shard and checks that the shard
// is the one that stands at this place of the configuration.
func (t *Target) readShard(ctx context.Context, n *node, op, token string) (shardRow, error) {
	rows, err := n.query(ctx, `SELECT token, shard, shards, epoch, batch FROM cbrepl.shard WHERE subscription = $1`, t.opts.Subscription)
	if err != nil {
		return shardRow{}, fail(op, n.String(), err)
	}
	if len(rows) == 0 {
		return shardRow{}, stop(op, prepareHint, "the %s knows no subscription %s", n, t.opts.Subscription)
	}
	r := rows[0]
	if string(r[0]) != token {
		return shardRow{}, stop(op,
			"Correct the connection strings. If the other target is gone for good, delete the row of this subscription from cbrepl.shard on that shard and run `cbrepl target prepare -c FILE`",
			"the %s was prepared for a subscription %s of another coordinator database", n, t.opts.Subscription)
	}
	if i, of := int(pgside.Atoi(r[1])), int(pgside.Atoi(r[2])); i != n.index || of != len(t.shards) {
		return shardRow{}, stop(op, "List every shard once, in the order in which the target was prepared: rows are placed by shard number",
			"the %s was prepared as shard %d of %d, the configuration has it as shard %d of %d", n, i, of, n.index, len(t.shards))
	}
	return shardRow{epoch: pgside.Atou(r[3]), batch: pgside.Atou(r[4])}, nil
}

// checkPrepared tells which parts of the layout are missing on a server.
func (n *node) checkPrepared(ctx context.Context, op string, objects []object) error {
	names := make([]string, len(objects))
	for i, o := range objects {
		names[i] = o.table
	}
	rows, err := n.query(ctx, `
		SELECT string_agg('cbrepl.' || t, ', ') FROM unnest($1::text[]) t
		WHERE NOT EXISTS (
			SELECT FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace
			WHERE s.nspname = 'cbrepl' AND c.relname = t)`, "{"+strings.Join(names, ",")+"}")
	if err != nil {
		return fail(op, n.String(), err)
	}
	if missing := rows[0][0]; missing != nil {
		return &dtx.Error{Op: op, Msg: fmt.Sprintf("the %s has not been prepared: no %s", n, missing), Hint: prepareHint, Class: dtx.ClassStop}
	}
	return n.checkFormat(ctx, op)
}
