package ledger

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"cbrepl/apply/internal/pgside"
)

// Version is the version of the layout of schema cbrepl. On the server that keeps
// the record:
//
//	state_format  version of this layout (one row)
//	subscription  one row per subscription: token, epoch, last batch, and the
//	              recorded position of every stream. A batch changes this row and
//	              no other of fixed number, so that guard and positions are one
//	              statement, which on a cluster goes to one segment. A target of
//	              shards has in it the last batch of each.
//	stream        per subscription and content: what the stream's positions belong
//	              to; written once
//	dedup         per subscription: gxids applied ahead of a position; on a cluster
//	              spread by gxid over the segments
//	replicated    per subscription and content: the source's tables whose rows are
//	              taken, by their OIDs there, with what is published of them; and
//	              those that were let go of
//	copy          per subscription: first copies of the source's tables, how far they
//	              have come and what they hold
//	positions     a view: the subscriptions' positions, one per row
//
// Targets add tables of their own; each server that has any has state_format.
const Version = 3

// Object is a relation of the layout.
type Object struct {
	Name string
	// DDL creates it. Of a table it ends with the columns' closing parenthesis.
	DDL string
	// Key are the columns that a cluster distributes the table by, FillFactor how
	// full its pages are made. Without Key it is no table.
	Key        string
	FillFactor int
	// Fill puts the first rows in.
	Fill string
}

// FormatObject is on every server that has any table of the layout.
var FormatObject = Object{
	Name: "state_format", Key: "version", FillFactor: 100,
	DDL:  `CREATE TABLE cbrepl.state_format (version integer PRIMARY KEY)`,
	Fill: fmt.Sprintf(`INSERT INTO cbrepl.state_format (version) VALUES (%d)`, Version),
}

// Objects is the record. The row of subscription is changed by every batch: room
// on the page keeps these updates off the index.
var Objects = []Object{
	FormatObject,
	{Name: "subscription", Key: "name", FillFactor: 10, DDL: `
	CREATE TABLE cbrepl.subscription (
		name          text PRIMARY KEY,
		id            integer NOT NULL,
		token         uuid NOT NULL,
		initialized   boolean NOT NULL DEFAULT false,
		epoch         bigint NOT NULL DEFAULT 0,
		batch         bigint NOT NULL DEFAULT 0,
		batch_epoch   bigint NOT NULL DEFAULT 0,
		contents      smallint[] NOT NULL DEFAULT '{}',
		lsns          pg_lsn[] NOT NULL DEFAULT '{}',
		shard_batches bigint[] NOT NULL DEFAULT '{}',
		decided_at    timestamptz)`},
	{Name: "stream", Key: "subscription", FillFactor: 100, DDL: `
	CREATE TABLE cbrepl.stream (
		subscription text,
		content      smallint,
		system_id    text NOT NULL,
		slot         text NOT NULL,
		timeline     integer NOT NULL,
		PRIMARY KEY (subscription, content))`},
	{Name: "dedup", Key: "gxid", FillFactor: 100, DDL: `
	CREATE TABLE cbrepl.dedup (
		subscription text,
		gxid         numeric(20, 0),
		contents     smallint[] NOT NULL,
		lsns         pg_lsn[] NOT NULL,
		PRIMARY KEY (subscription, gxid))`},
	{Name: "replicated", Key: "subscription", FillFactor: 100, DDL: `
	CREATE TABLE cbrepl.replicated (
		subscription text,
		content      smallint,
		oid          bigint,
		schema_name  text NOT NULL,
		table_name   text NOT NULL,
		published    text NOT NULL,
		forgotten    boolean NOT NULL,
		PRIMARY KEY (subscription, content, oid))`},
	{Name: "copy", Key: "subscription", FillFactor: 50, DDL: `
	CREATE TABLE cbrepl.copy (
		subscription text,
		schema_name  text,
		table_name   text,
		state        text NOT NULL CHECK (state IN ('waiting', 'copying', 'copied')),
		contents     smallint[] NOT NULL,
		lsns         pg_lsn[] NOT NULL,
		rows         bigint NOT NULL,
		bytes        bigint NOT NULL,
		started_at   timestamptz,
		finished_at  timestamptz,
		PRIMARY KEY (subscription, schema_name, table_name))`},
	{Name: "positions", DDL: `
	CREATE VIEW cbrepl.positions AS
		SELECT name AS subscription, unnest(contents) AS content, unnest(lsns) AS lsn
		FROM cbrepl.subscription`},
}

// Storage is the clause that follows a table's columns on one kind of server.
type Storage func(o *Object) string

// PrepareHint is the remedy for everything that preparing a target creates.
const PrepareHint = "Run `cbrepl target prepare -c FILE`, which creates it"

// prepareLock keeps two runs of CreateObjects on one database apart.
const prepareLock = 0x63627270 // "cbrp"

// CreateObjects creates the missing ones of objects, inside a transaction of s.
func CreateObjects(ctx context.Context, s *pgside.Session, storage Storage, objects []Object) error {
	if _, err := s.Query(ctx, `SELECT pg_advisory_xact_lock($1)`, fmt.Sprint(prepareLock)); err != nil {
		return err
	}
	rows, err := s.Query(ctx, `SELECT 1 FROM pg_namespace WHERE nspname = 'cbrepl'`)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		if err := s.Exec(ctx, `CREATE SCHEMA cbrepl`); err != nil {
			return err
		}
	}
	missing, err := missingObjects(ctx, s, objects)
	if err != nil {
		return err
	}
	for i := range missing {
		o := &missing[i]
		sql := o.DDL
		if o.Key != "" {
			sql += " " + storage(o)
		}
		if o.Fill != "" {
			sql += "; " + o.Fill
		}
		if err := s.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return checkFormat(ctx, s, OpPrepare)
}

// missingObjects lists those of objects that are not there.
func missingObjects(ctx context.Context, s *pgside.Session, objects []Object) ([]Object, error) {
	rows, err := s.Query(ctx, `SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'cbrepl'`)
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	for _, r := range rows {
		there[string(r[0])] = true
	}
	var out []Object
	for _, o := range objects {
		if !there[o.Name] {
			out = append(out, o)
		}
	}
	return out, nil
}

// CheckPrepared names what of objects is missing on a server.
func CheckPrepared(ctx context.Context, s *pgside.Session, op string, objects []Object) error {
	missing, err := missingObjects(ctx, s, objects)
	if err != nil {
		return s.Fail(op, err)
	}
	var names []string
	for _, o := range missing {
		names = append(names, "cbrepl."+o.Name)
	}
	if len(names) > 0 {
		return pgside.Stop(op, PrepareHint, "the %s has not been prepared: no %s", s, strings.Join(names, ", "))
	}
	return checkFormat(ctx, s, op)
}

// checkFormat refuses a layout of another version.
func checkFormat(ctx context.Context, s *pgside.Session, op string) error {
	rows, err := s.Query(ctx, `SELECT version FROM cbrepl.state_format`)
	if err != nil {
		return s.Fail(op, err)
	}
	if len(rows) == 1 && pgside.Atoi(rows[0][0]) == Version {
		return nil
	}
	found := "no version"
	if len(rows) > 0 {
		found = "version " + string(rows[0][0])
	}
	return pgside.Stop(op, "Run the cbrepl that wrote it", "schema cbrepl of the %s has %s of its layout, this cbrepl knows %d", s, found, Version)
}

// CreateRow makes the subscription's row unless there is one, inside the
// transaction of CreateObjects, and returns it. shards is how many a target of
// shards has, else 0.
func (l *Ledger) CreateRow(ctx context.Context, shards int) (Row, error) {
	var token [16]byte
	if _, err := rand.Read(token[:]); err != nil {
		return Row{}, err
	}
	_, err := l.srv.Query(ctx, `
		INSERT INTO cbrepl.subscription (name, id, token, shard_batches)
		SELECT $1::text, coalesce(max(id), 0) + 1, $2::uuid, $3::bigint[] FROM cbrepl.subscription
		HAVING NOT coalesce(bool_or(name = $1::text), false)`,
		l.opts.Subscription, fmt.Sprintf("%x", token), "{"+strings.TrimSuffix(strings.Repeat("0,", shards), ",")+"}")
	if err != nil {
		return Row{}, err
	}
	return l.ReadRow(ctx, OpPrepare)
}
