package cloudberry

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"cbrepl/apply/internal/pgside"
	"cbrepl/dtx"
)

// stateFormat is the version of the layout of schema cbrepl:
//
//	state_format  version of this layout (one row)
//	subscription  one row per subscription: epoch, last batch, and the recorded
//	              position of every stream. A batch moves this row and no other,
//	              so that its fence and its positions are one statement that goes
//	              to one segment.
//	stream        per subscription and content: what the stream's positions belong
//	              to; written once
//	dedup         per subscription: gxids applied ahead of a position, hashed by
//	              gxid, so that many of them spread over the segments
//	positions     a view: the subscriptions' positions, one per row
const stateFormat = 1

// object is one relation of the layout. Its statement has one %s for the storage
// of a table.
type object struct {
	name, ddl string
}

// Rows of subscription are moved by every batch: room on the page keeps these
// updates off the index.
var objects = []object{
	{"state_format", `
	CREATE TABLE cbrepl.state_format (
		version integer PRIMARY KEY) %s DISTRIBUTED BY (version);
	INSERT INTO cbrepl.state_format (version) VALUES (1)`},
	{"subscription", `
	CREATE TABLE cbrepl.subscription (
		name        text PRIMARY KEY,
		id          integer NOT NULL,
		token       uuid NOT NULL,
		initialized boolean NOT NULL DEFAULT false,
		epoch       bigint NOT NULL DEFAULT 0,
		batch       bigint NOT NULL DEFAULT 0,
		batch_epoch bigint NOT NULL DEFAULT 0,
		contents    smallint[] NOT NULL DEFAULT '{}',
		lsns        pg_lsn[] NOT NULL DEFAULT '{}',
		decided_at  timestamptz) %s DISTRIBUTED BY (name)`},
	{"stream", `
	CREATE TABLE cbrepl.stream (
		subscription text,
		content      smallint,
		system_id    text NOT NULL,
		slot         text NOT NULL,
		timeline     integer NOT NULL,
		PRIMARY KEY (subscription, content)) %s DISTRIBUTED BY (subscription)`},
	{"dedup", `
	CREATE TABLE cbrepl.dedup (
		subscription text,
		gxid         numeric(20, 0),
		contents     smallint[] NOT NULL,
		lsns         pg_lsn[] NOT NULL,
		PRIMARY KEY (subscription, gxid)) %s DISTRIBUTED BY (gxid)`},
	{"positions", `
	CREATE VIEW cbrepl.positions AS
		SELECT name AS subscription, unnest(contents) AS content, unnest(lsns) AS lsn
		FROM cbrepl.subscription`},
}

// storage is the clause that makes a heap table whatever the default storage is.
func (f *facts) storage(fillfactor int) string {
	switch {
	case f.has("pg_class.relam") && f.has("pg_am.amtype"):
		return fmt.Sprintf("USING heap WITH (fillfactor = %d)", fillfactor)
	default:
		return fmt.Sprintf("WITH (appendonly = false, fillfactor = %d)", fillfactor)
	}
}

// prepareLock keeps two Prepare runs on one database apart.
const prepareLock = 0x63627270 // "cbrp"

const opPrepare = "prepare target"

// prepareHint is the remedy for everything that Prepare creates.
const prepareHint = "Run `cbrepl target prepare -c FILE`, which creates it"

// Prepare creates what a subscription needs on its target: schema cbrepl and the
// subscription's row in it. It may be repeated; what exists is kept. Several
// subscriptions may share a target. Nothing else creates any of it.
func Prepare(ctx context.Context, o Options) error {
	t, err := New(o)
	if err != nil {
		return err
	}
	defer t.srv.close()
	if err := t.connect(ctx); err != nil {
		return err
	}
	s := t.srv
	if err := s.simple(ctx, "BEGIN"); err != nil {
		return fail(opPrepare, s.String(), err)
	}
	if err := t.prepare(ctx); err != nil {
		return fail(opPrepare, s.String(), err) // the session's end rolls back
	}
	if err := s.simple(ctx, "COMMIT"); err != nil {
		return fail(opPrepare, s.String(), err)
	}
	t.log.Info("target is prepared", slog.String("subscription", t.opts.Subscription))
	return nil
}

func (t *Target) prepare(ctx context.Context) error {
	s := t.srv
	if _, err := s.query(ctx, `SELECT pg_advisory_xact_lock($1)`, strconv.Itoa(prepareLock)); err != nil {
		return err
	}
	rows, err := s.query(ctx, `SELECT 1 FROM pg_namespace WHERE nspname = 'cbrepl'`)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		if err := s.simple(ctx, `CREATE SCHEMA cbrepl`); err != nil {
			return err
		}
	}
	missing, err := s.missing(ctx)
	if err != nil {
		return err
	}
	for _, o := range objects {
		if !missing[o.name] {
			continue
		}
		ddl := o.ddl
		if strings.Contains(ddl, "%s") {
			fill := 100
			if o.name == "subscription" {
				fill = 10
			}
			ddl = fmt.Sprintf(ddl, s.facts.storage(fill))
		}
		if err := s.simple(ctx, ddl); err != nil {
			return err
		}
	}
	if err := s.checkFormat(ctx, opPrepare); err != nil {
		return err
	}
	var token [16]byte
	if _, err := rand.Read(token[:]); err != nil {
		return err
	}
	_, err = s.query(ctx, `
		INSERT INTO cbrepl.subscription (name, id, token)
		SELECT $1::text, coalesce(max(id), 0) + 1, $2::uuid FROM cbrepl.subscription
		HAVING NOT coalesce(bool_or(name = $1::text), false)`, t.opts.Subscription, fmt.Sprintf("%x", token))
	return err
}

// missing tells which relations of the layout are not there.
func (s *server) missing(ctx context.Context) (map[string]bool, error) {
	out := map[string]bool{}
	for _, o := range objects {
		out[o.name] = true
	}
	rows, err := s.query(ctx, `SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'cbrepl'`)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		delete(out, string(r[0]))
	}
	return out, nil
}

// checkFormat refuses a layout of another version.
func (s *server) checkFormat(ctx context.Context, op string) error {
	rows, err := s.query(ctx, `SELECT version FROM cbrepl.state_format`)
	if err != nil {
		return fail(op, s.String(), err)
	}
	return pgside.CheckFormat(op, s.String(), rows, stateFormat)
}

// checkPrepared tells which parts of the layout are missing.
func (s *server) checkPrepared(ctx context.Context, op string) error {
	missing, err := s.missing(ctx)
	if err != nil {
		return fail(op, s.String(), err)
	}
	var names []string
	for _, o := range objects {
		if missing[o.name] {
			names = append(names, "cbrepl."+o.name)
		}
	}
	if len(names) > 0 {
		return &dtx.Error{Op: op, Msg: fmt.Sprintf("the %s has not been prepared: no %s", s, strings.Join(names, ", ")), Hint: prepareHint, Class: dtx.ClassStop}
	}
	return s.checkFormat(ctx, op)
}

// batchID names one attempt to apply a batch: the epoch of the daemon that made
// it and the batch number.
type batchID struct {
	epoch, batch uint64
}

// subscriptionRow is the subscription's row on the target.
type subscriptionRow struct {
	id          string
	token       string
	initialized bool
	epoch       uint64
	decided     batchID
	positions   []dtx.Position
}

// readSubscription reads the subscription's row.
func (t *Target) readSubscription(ctx context.Context, op string) (subscriptionRow, error) {
	s := t.srv
	rows, err := s.query(ctx, `
		SELECT id, token, initialized, epoch, batch_epoch, batch, array_to_string(contents, ','), array_to_string(lsns, ',')
		FROM cbrepl.subscription WHERE name = $1::text`, t.opts.Subscription)
	if err != nil {
		return subscriptionRow{}, fail(op, s.String(), err)
	}
	if len(rows) == 0 {
		return subscriptionRow{}, stop(op, prepareHint, "the %s knows no subscription %s", s, t.opts.Subscription)
	}
	r := rows[0]
	out := subscriptionRow{
		id: string(r[0]), token: string(r[1]), initialized: string(r[2]) == "t", epoch: pgside.Atou(r[3]),
		decided: batchID{pgside.Atou(r[4]), pgside.Atou(r[5])},
	}
	var ok bool
	if out.positions, ok = pgside.ParsePositions(r[6], r[7]); !ok || out.initialized != (len(out.positions) > 0) {
		return subscriptionRow{}, stop(op, "Somebody has edited the row; restore it from a backup",
			"the positions of subscription %s in cbrepl.subscription on the %s do not fit together", t.opts.Subscription, s)
	}
	dtx.SortPositions(out.positions)
	return out, nil
}

// readState reads stream identities and the dedup set.
func (t *Target) readState(ctx context.Context, row subscriptionRow) (st stateRows, err error) {
	s := t.srv
	rows, err := s.query(ctx, `SELECT content, system_id, slot, timeline FROM cbrepl.stream
		WHERE subscription = $1::text ORDER BY content`, t.opts.Subscription)
	if err != nil {
		return st, fail(opOpen, s.String(), err)
	}
	st.streams = rows
	if len(rows) != len(row.positions) {
		return st, stop(opOpen, "Somebody has edited these tables; restore them from a backup",
			"cbrepl.subscription and cbrepl.stream on the %s disagree about the streams of subscription %s", s, t.opts.Subscription)
	}
	rows, err = s.query(ctx, `SELECT gxid, array_to_string(contents, ','), array_to_string(lsns, ',')
		FROM cbrepl.dedup WHERE subscription = $1::text ORDER BY gxid`, t.opts.Subscription)
	if err != nil {
		return st, fail(opOpen, s.String(), err)
	}
	for _, r := range rows {
		e := dtx.DedupEntry{GXID: dtx.GXID(pgside.Atou(r[0]))}
		var ok bool
		if e.Pending, ok = pgside.ParsePositions(r[1], r[2]); !ok {
			return st, stop(opOpen, "Somebody has edited the table; restore it from a backup",
				"cbrepl.dedup on the %s: the positions of gxid %s do not fit together", s, e.GXID)
		}
		st.dedup = append(st.dedup, e)
	}
	return st, nil
}

// stateRows is what readState found.
type stateRows struct {
	streams [][][]byte
	dedup   []dtx.DedupEntry
}
