package cloudberry

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/pgoutput"
)

// backend is the apply.Backend of a cluster: one session on the coordinator, one
// transaction per batch. It is used by one goroutine at a time.
//
// Which statement does an operation depends on what the catalogue says of the
// table (facts), not on the server's version: RETURNING and row addresses do not
// exist for every storage.
type backend struct {
	t *Target
	s *server

	begun bool
	// last is when the last batch ended.
	last time.Time
	// prefix are statements that travel ahead of the next one: BEGIN, LOCK, SET
	// LOCAL, RELEASE.
	prefix []string
	plan   planMode
	locked map[uint32]bool
	stages stages
	// unstaged keeps rows out of stage tables for the moment.
	unstaged bool
}

var _ apply.Backend = (*backend)(nil)

func newBackend(t *Target) *backend {
	return &backend{t: t, s: t.srv, stages: stages{byKey: map[string]*stage{}}}
}

// Segments is the one place where rows go: the server finds their segment.
func (b *backend) Segments() []dtx.Content { return []dtx.Content{apply.ServerPlaced} }

// planMode says which plans the planner may choose from. The zero value is how a
// session is set up: nested loops over an index.
type planMode struct {
	// hashed forbids nested loops: the statement joins large sets, or no index
	// serves it, and a scan of the table is right.
	hashed bool
	// indexed keeps a hashed statement off the scan all the same.
	indexed bool
	// free leaves the choice to the planner and its statistics.
	free bool
}

func (m planMode) nestloop() string { return pgside.OnOff(!m.hashed) }
func (m planMode) seqscan() string  { return pgside.OnOff(m.hashed && !m.indexed || m.free) }

// startBatch forgets the last transaction.
func (b *backend) startBatch() {
	b.begun, b.prefix, b.plan = false, nil, planMode{}
	b.locked = map[uint32]bool{}
	b.t.tables.versions.Begin()
	b.stages.startBatch()
}

// takePrefix returns what travels ahead of the next statement, BEGIN first when
// the transaction is not open yet.
func (b *backend) takePrefix() []string {
	p := b.prefix
	b.prefix = nil
	if !b.begun {
		b.begun = true
		p = slices.Insert(p, 0, "BEGIN")
		if b.s.facts.replicaRole && (b.t.tables.fires || b.t.opts.now().Sub(b.last) > idleWorkers) {
			p = slices.Insert(p, 0, "SET session_replication_role = replica")
		}
	}
	return p
}

// idleWorkers is after how long without a batch the worker processes on the
// segments may be new ones; the server's own default for ending them is 18 s.
const idleWorkers = 5 * time.Second

// savepoint begins what may be undone by rollbackTo, which gets its result: plan
// settings that are made behind the savepoint go with it.
func (b *backend) savepoint() planMode {
	b.ahead("SAVEPOINT cbrepl_try")
	return b.plan
}

func (b *backend) release() { b.ahead("RELEASE SAVEPOINT cbrepl_try") }

func (b *backend) rollbackTo(plan planMode) {
	b.ahead("ROLLBACK TO SAVEPOINT cbrepl_try")
	b.release()
	b.plan = plan
}

// ahead adds a statement that travels with the next one.
func (b *backend) ahead(sql string) { b.prefix = append(b.prefix, sql) }

// planFor makes the planner's settings for the next statement. They go back by
// themselves when the transaction ends.
func (b *backend) planFor(m planMode) {
	if m.nestloop() != b.plan.nestloop() {
		b.ahead("SET LOCAL enable_nestloop = " + m.nestloop())
	}
	if m.seqscan() != b.plan.seqscan() {
		b.ahead("SET LOCAL enable_seqscan = " + m.seqscan())
	}
	b.plan = m
}

// lock keeps other writers off a table until the batch ends. It stands before the
// first statement on a table that reads rows and then changes them by address,
// and before a COPY into a table that the batch may also update: there the server
// locks the whole table anyway, and taking the stronger lock second deadlocks
// with other writers that do the same.
func (b *backend) lock(f *tableFacts) {
	if b.locked[f.oid] {
		return
	}
	b.locked[f.oid] = true
	b.ahead("LOCK TABLE " + pgside.TableName(f.Table) + " IN EXCLUSIVE MODE")
}

// facts returns what the catalogue said of a table that is about to be touched. A
// table that is changed by key is remembered, so that later batches lock it before
// their first COPY.
func (b *backend) facts(t *catalog.Table, changed bool) *tableFacts {
	b.t.tables.versions.Touch(t)
	f := b.t.tables.of(t)
	f.changed = f.changed || changed
	return f
}

// run executes statements in one round trip, what is ahead of them included, and
// returns their results; after an error, those of the statements before it.
func (b *backend) run(ctx context.Context, qs ...*query) ([]*pgconn.Result, error) {
	pre := b.takePrefix()
	if explain := b.t.opts.private.explain; explain != nil {
		if err := b.explain(ctx, pre, qs, explain); err != nil {
			return nil, err
		}
		pre = nil
	}
	var batch pgconn.Batch
	for _, sql := range pre {
		batch.ExecParams(sql, nil, nil, nil, nil)
	}
	for _, q := range qs {
		batch.ExecParams(q.String(), q.params, q.oids, q.formats, nil)
	}
	results, err := b.s.Conn.ExecBatch(ctx, &batch).ReadAll()
	if err != nil {
		return results[min(len(pre), len(results)):], err
	}
	if len(results) != len(pre)+len(qs) {
		return nil, pgside.Stop(opRows, dtx.ReportBug, "%d answers to %d statements", len(results), len(pre)+len(qs))
	}
	return results[len(pre):], nil
}

// explain runs what stands ahead of statements and reports their plans.
func (b *backend) explain(ctx context.Context, pre []string, qs []*query, report func(string)) error {
	if len(pre) > 0 {
		if err := b.s.Exec(ctx, strings.Join(pre, "; ")); err != nil {
			return err
		}
	}
	for _, q := range qs {
		res := b.s.Conn.ExecParams(ctx, "EXPLAIN "+q.String(), q.params, q.oids, q.formats, nil).Read()
		if res.Err != nil {
			return res.Err
		}
		var plan strings.Builder
		for _, r := range res.Rows {
			plan.Write(append(r[0], '\n'))
		}
		report(plan.String())
	}
	return nil
}

// one executes a single statement.
func (b *backend) one(ctx context.Context, q *query) (*pgconn.Result, error) {
	res, err := b.run(ctx, q)
	if err != nil {
		return nil, err
	}
	return res[0], nil
}

// plain executes statements without parameters.
func (b *backend) plain(ctx context.Context, sql string) error {
	return b.s.Exec(ctx, strings.Join(append(b.takePrefix(), sql), "; "))
}

// Truncate empties tables.
func (b *backend) Truncate(ctx context.Context, _ dtx.Content, tables []*catalog.Table, restartIdentity bool) error {
	b.t.tables.versions.Touch(tables...)
	if err := b.plain(ctx, pgside.TruncateSQL(tables, restartIdentity)); err != nil {
		return fail(opRows, "", err) // no rows are in it
	}
	return nil
}

// KeepAlive runs an empty query.
func (b *backend) KeepAlive(ctx context.Context, _ dtx.Content) error {
	if err := b.s.Exec(ctx, ";"); err != nil {
		return fail(opRows, "", err)
	}
	return nil
}

// Copy inserts rows. Where duplicates are to be skipped the rows are first tried
// as they are: duplicates are the exception.
func (b *backend) Copy(ctx context.Context, _ dtx.Content, op *apply.CopyOp) (apply.Inserted, error) {
	f := b.facts(op.Table, false)
	if f.changed && b.s.facts.tableLocks {
		b.lock(f)
	}
	if !op.SkipDuplicates || len(op.Table.Uniques) == 0 {
		n, err := b.insert(ctx, op)
		return apply.Inserted{Rows: n, Skipped: -1}, faultOrNil(err)
	}
	done, err := b.copyNew(ctx, op)
	return done, faultOrNil(err)
}

func faultOrNil(err error) error {
	var de *apply.DataError
	if err == nil || errors.As(err, &de) {
		return err
	}
	return dataFault(err)
}

// fewRows is up to how many rows a statement per row costs less than one for all:
// a statement with constants goes to one segment, a join or a COPY to all.
// fewBytes bounds the rows that are inserted that way.
const (
	fewRows  = 3
	fewBytes = 64 << 10
)

// insert inserts all rows of op.
func (b *backend) insert(ctx context.Context, op *apply.CopyOp) (int64, error) {
	if len(op.Cols) == 0 { // rows of defaults only; COPY cannot say that
		q := new(query)
		q.WriteString("INSERT INTO " + pgside.TableName(op.Table) + " SELECT FROM pg_catalog.generate_series(1, " + strconv.FormatInt(op.Rows, 10) + ")")
		res, err := b.one(ctx, q)
		if err != nil {
			return 0, err
		}
		return res.CommandTag.RowsAffected(), nil
	}
	if op.Rows <= fewRows && len(op.Data) <= fewBytes {
		return b.insertValues(ctx, op)
	}
	sql := strings.Join(append(b.takePrefix(), pgside.CopySQL(op.Table, op.Cols)), "; ")
	tag, err := b.s.Conn.CopyFrom(ctx, bytes.NewReader(op.Data), sql)
	if err != nil {
		return 0, err
	}
	return tag.RowsAffected(), nil
}

// insertValues inserts a few rows as parameters of the columns' own types, as
// COPY would read them.
func (b *backend) insertValues(ctx context.Context, op *apply.CopyOp) (int64, error) {
	t := op.Table
	identity := slices.ContainsFunc(op.Cols, func(c int) bool { return t.Columns[c].IdentityAlways })
	var qs []*query
	for line := range bytes.Lines(op.Data) {
		q := new(query)
		q.WriteString("INSERT INTO " + pgside.TableName(t) + " (")
		for i, c := range op.Cols {
			if i > 0 {
				q.WriteString(", ")
			}
			q.WriteString(pgside.Column(t, c))
		}
		q.WriteString(")")
		if identity {
			q.WriteString(" OVERRIDING SYSTEM VALUE")
		}
		q.WriteString(" VALUES (")
		for i, raw := range bytes.Split(line[:len(line)-1], []byte{'\t'}) {
			if i > 0 {
				q.WriteString(", ")
			}
			if string(raw) == `\N` {
				q.WriteString("NULL")
				continue
			}
			q.WriteString(q.value(pgside.Unescape(make([]byte, 0, len(raw)), raw)))
		}
		q.WriteString(")")
		qs = append(qs, q)
	}
	done, err := b.run(ctx, qs...)
	if err != nil {
		err = dataFault(err)
		var de *apply.DataError
		if errors.As(err, &de) {
			de.Row = len(done)
		}
		return 0, err
	}
	var n int64
	for _, res := range done {
		n += res.CommandTag.RowsAffected()
	}
	return n, nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// values converts the columns of a result row.
func values(dst []pgoutput.Value, row [][]byte) []pgoutput.Value {
	for _, v := range row {
		if v == nil {
			dst = append(dst, pgoutput.Value{Kind: pgoutput.ValueNull})
		} else {
			dst = append(dst, pgoutput.Value{Kind: pgoutput.ValueText, Data: v})
		}
	}
	return dst
}

// complement fills Missing and MissingRows with the ordinals of 0..n-1 that are
// not in hit.
func complement(f *apply.Found, hit []bool) {
	for i, h := range hit {
		if h {
			continue
		}
		f.MissingRows++
		if len(f.Missing) < apply.MaxMissing {
			f.Missing = append(f.Missing, i)
		}
	}
}
