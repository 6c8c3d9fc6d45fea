package ledger

import (
	"context"
	"slices"
	"strconv"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/dtx"
)

// editedHint is the remedy for a record that contradicts itself.
const editedHint = "Somebody has edited schema cbrepl; restore it from a backup"

// Row is the subscription's row.
type Row struct {
	ID string
	// Token belongs to this row only: one that was dropped and prepared again has
	// another.
	Token       string
	Initialized bool
	Epoch       uint64
	// Decided is the last batch recorded.
	Decided BatchID
	// Positions are those recorded, by content.
	Positions []dtx.Position
	// ShardBatches are, on a target of shards, the last batch recorded for each.
	ShardBatches []uint64
}

// ReadRow reads the subscription's row.
func (l *Ledger) ReadRow(ctx context.Context, op string) (Row, error) {
	rows, err := l.srv.Query(ctx, `
		SELECT id, token, initialized, epoch, batch_epoch, batch,
		       array_to_string(contents, ','), array_to_string(lsns, ','), array_to_string(shard_batches, ',')
		FROM cbrepl.subscription WHERE name = $1::text`, l.opts.Subscription)
	if err != nil {
		return Row{}, l.srv.Fail(op, err)
	}
	if len(rows) == 0 {
		return Row{}, pgside.Stop(op, PrepareHint, "the %s knows no subscription %s", l.srv, l.opts.Subscription)
	}
	r := rows[0]
	out := Row{
		ID: string(r[0]), Token: string(r[1]), Initialized: string(r[2]) == "t", Epoch: pgside.Atou(r[3]),
		Decided: BatchID{pgside.Atou(r[4]), pgside.Atou(r[5])},
	}
	for _, f := range pgside.SplitList(r[8]) {
		out.ShardBatches = append(out.ShardBatches, pgside.Atou([]byte(f)))
	}
	var ok bool
	if out.Positions, ok = pgside.ParsePositions(r[6], r[7]); !ok || out.Initialized != (len(out.Positions) > 0) {
		return Row{}, pgside.Stop(op, editedHint,
			"the positions of subscription %s in cbrepl.subscription on the %s do not fit together", l.opts.Subscription, l.srv)
	}
	dtx.SortPositions(out.Positions)
	return out, nil
}

// ReadState completes row to the state that the target reports: stream identities,
// the dedup set and what is replicated.
func (l *Ledger) ReadState(ctx context.Context, row Row) (apply.State, error) {
	st := apply.State{
		Initialized: row.Initialized, Token: row.Token, Epoch: row.Epoch, Batch: row.Decided.Batch,
		Positions: slices.Clone(row.Positions),
	}
	rows, err := l.srv.Query(ctx, `SELECT content, system_id, slot, timeline FROM cbrepl.stream
		WHERE subscription = $1::text ORDER BY content`, l.opts.Subscription)
	if err != nil {
		return st, l.srv.Fail(OpOpen, err)
	}
	if len(rows) != len(row.Positions) {
		return st, pgside.Stop(OpOpen, editedHint,
			"cbrepl.subscription and cbrepl.stream on the %s disagree about the streams of subscription %s", l.srv, l.opts.Subscription)
	}
	for _, r := range rows {
		st.Streams = append(st.Streams, apply.StreamIdentity{
			Content:  dtx.Content(pgside.Atoi(r[0])),
			SystemID: string(r[1]), Slot: string(r[2]), Timeline: int32(pgside.Atoi(r[3])),
		})
	}
	if st.Dedup, err = l.readDedup(ctx); err != nil {
		return st, err
	}
	if st.Tables, err = l.ReadTables(ctx); err != nil {
		return st, err
	}
	st.Copies, err = l.readCopies(ctx)
	return st, err
}

func (l *Ledger) readDedup(ctx context.Context) ([]dtx.DedupEntry, error) {
	rows, err := l.srv.Query(ctx, `SELECT gxid, array_to_string(contents, ','), array_to_string(lsns, ',')
		FROM cbrepl.dedup WHERE subscription = $1::text ORDER BY gxid`, l.opts.Subscription)
	if err != nil {
		return nil, l.srv.Fail(OpOpen, err)
	}
	var out []dtx.DedupEntry
	for _, r := range rows {
		e := dtx.DedupEntry{GXID: dtx.GXID(pgside.Atou(r[0]))}
		var ok bool
		if e.Pending, ok = pgside.ParsePositions(r[1], r[2]); !ok {
			return nil, pgside.Stop(OpOpen, editedHint, "cbrepl.dedup on the %s: the positions of gxid %s do not fit together", l.srv, e.GXID)
		}
		out = append(out, e)
	}
	return out, nil
}

// addDedup puts entries into the dedup set.
func (l *Ledger) addDedup(ctx context.Context, entries []dtx.DedupEntry) error {
	var gxids, contents, lsns []string
	for i := range entries {
		c, p := pgside.AppendPositions(nil, nil, entries[i].Pending)
		gxids = append(gxids, strconv.FormatUint(uint64(entries[i].GXID), 10))
		contents, lsns = append(contents, string(c)), append(lsns, string(p))
	}
	if len(gxids) == 0 {
		return nil
	}
	_, err := l.srv.Query(ctx, `
		INSERT INTO cbrepl.dedup (subscription, gxid, contents, lsns)
		SELECT $1::text, u.g::numeric, u.c::smallint[], u.l::pg_lsn[] FROM unnest($2::text[], $3::text[], $4::text[]) u(g, c, l)`,
		l.opts.Subscription, pgside.TextArray(gxids), pgside.TextArray(contents), pgside.TextArray(lsns))
	return err
}

// Init records where a new subscription begins, once.
func (l *Ledger) Init(ctx context.Context, b apply.Beginning) error {
	const op = "record first positions"
	if !l.open {
		return ErrNotOpen(op)
	}
	if l.row.Initialized {
		return pgside.Stop(op, "Use another subscription name for a new copy", "subscription %s already has positions", l.opts.Subscription)
	}
	sorted := slices.Clone(b.Positions)
	dtx.SortPositions(sorted)
	var contents, systems, slots, timelines []string
	for _, st := range b.Streams {
		if !slices.ContainsFunc(sorted, func(p dtx.Position) bool { return p.Content == st.Content }) {
			return pgside.Stop(op, thisIsABug, "no position for content %d", st.Content)
		}
		contents = append(contents, st.Content.String())
		systems = append(systems, st.SystemID)
		slots = append(slots, st.Slot)
		timelines = append(timelines, strconv.FormatInt(int64(st.Timeline), 10))
	}
	distinct := slices.CompactFunc(slices.Clone(sorted), func(a, b dtx.Position) bool { return a.Content == b.Content })
	if len(b.Streams) == 0 || len(distinct) != len(b.Streams) || len(sorted) != len(b.Streams) {
		return pgside.Stop(op, thisIsABug, "%d streams with %d positions", len(b.Streams), len(b.Positions))
	}
	err := l.srv.Transaction(ctx, op, func() error {
		if _, err := l.srv.Query(ctx, `
			INSERT INTO cbrepl.stream (subscription, content, system_id, slot, timeline)
			SELECT $1::text, u.* FROM unnest($2::smallint[], $3::text[], $4::text[], $5::integer[]) u`,
			l.opts.Subscription, pgside.TextArray(contents), pgside.TextArray(systems), pgside.TextArray(slots), pgside.TextArray(timelines)); err != nil {
			return err
		}
		if err := l.addDedup(ctx, b.Applied); err != nil {
			return err
		}
		if err := l.insertTables(ctx, b.Tables); err != nil {
			return err
		}
		if err := l.point("init_before_commit"); err != nil {
			return err
		}
		c, p := pgside.AppendPositions(nil, nil, sorted)
		return l.srv.Exec(ctx, l.Guarded("initialized = true, contents = '"+string(c)+"', lsns = '"+string(p)+"'", l.row.Decided.Batch, "NOT initialized"))
	})
	if err != nil {
		l.open = false
		if pgside.SQLState(err) == StateFenced {
			return l.Fenced(op, l.srv)
		}
		return err
	}
	l.row.Initialized, l.row.Positions = true, sorted
	return nil
}
