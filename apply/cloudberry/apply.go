package cloudberry

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/apply/ledger"
	"cbrepl/dtx"
	"cbrepl/logkey"
)

const (
	opApply  = ledger.OpApply
	opCommit = ledger.OpCommit
)

// Apply applies b: see the package comment for the steps. After an error the
// target is closed for batches until Open.
func (t *Target) Apply(ctx context.Context, b *dtx.Batch, rows apply.Rows) (apply.Result, error) {
	if err := t.ledger.Begin(b); err != nil {
		return apply.Result{}, err
	}
	res, err := t.apply(ctx, b, rows)
	if err != nil {
		t.ledger.Closed()
		return apply.Result{}, t.bounded(err)
	}
	t.internal = 0
	return res, nil
}

func (t *Target) apply(ctx context.Context, b *dtx.Batch, rows apply.Rows) (res apply.Result, err error) {
	if err := point("before_begin"); err != nil {
		return res, err
	}
	t.backend.startBatch()
	if len(b.Steps) > 0 {
		if res, err = t.engine.Apply(ctx, b, rows, t.backend); err != nil {
			t.rollback(ctx)
			return res, err
		}
	}
	if err := point("before_commit"); err != nil {
		t.rollback(ctx)
		return res, err
	}
	wrote := t.backend.begun
	if err := t.commit(ctx, b); err != nil {
		return res, err
	}
	t.ledger.Decided(b, nil)
	t.stream.Recorded(t.ledger.Positions())
	t.backend.last = t.opts.now()
	if err := point("after_commit"); err != nil {
		return res, err
	}
	t.count(func(s *Stats) {
		s.Batch = b.Seq
		s.Batches++
		if !wrote {
			s.PositionBatches++
		}
	})
	return res, nil
}

// dedupByValues is up to how many dedup entries are written as values of the last
// message instead of by COPY, which goes to every segment.
const dedupByValues = 8

// commit records positions, dedup set and batch number, and commits. It does not
// stop half-way when ctx ends.
func (t *Target) commit(ctx context.Context, b *dtx.Batch) error {
	if err := ctx.Err(); err != nil { // told to stop: not begun
		t.rollback(ctx)
		return pgside.Retry(opCommit, "", "stopped before batch %d was committed", b.Seq)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.opts.DecideTimeout)
	defer cancel()
	t.backend.dropStages(false)
	var stmts []string
	if t.backend.begun {
		stmts = t.backend.takePrefix()
	} else {
		stmts = append([]string{"BEGIN"}, t.backend.prefix...)
	}
	if sql := t.dropDedup(b); sql != "" {
		stmts = append(stmts, sql)
	}
	switch n := len(b.DedupAdd); {
	case n > dedupByValues:
		stmts = append(stmts, "COPY cbrepl.dedup (subscription, gxid, contents, lsns) FROM STDIN")
		if _, err := t.srv.Conn.CopyFrom(ctx, strings.NewReader(t.dedupLines(b.DedupAdd)), strings.Join(stmts, "; ")); err != nil {
			t.rollback(ctx)
			return t.srv.FailRows(opCommit, err)
		}
		stmts = nil
	case n > 0:
		stmts = append(stmts, t.dedupValues(b.DedupAdd))
	}
	stmts = append(stmts, t.tables.versions.CheckSQL()...)
	c, l := pgside.AppendPositions(nil, nil, t.ledger.Moved(b))
	stmts = append(stmts, t.ledger.Guarded(fmt.Sprintf(
		"batch = %d, batch_epoch = %d, contents = '%s', lsns = '%s', decided_at = clock_timestamp()", b.Seq, t.ledger.Epoch(), c, l),
		b.Seq-1, "initialized"), "COMMIT")
	results, err := t.srv.Conn.Exec(ctx, strings.Join(stmts, "; ")).ReadAll()
	switch {
	case err == nil && len(results) == len(stmts) && results[len(stmts)-1].CommandTag.String() == "COMMIT":
		return nil
	case err == nil:
		// COMMIT of a failed transaction answers ROLLBACK, without an error.
		return pgside.Stop(opCommit, dtx.ReportBug+". Nothing is applied", "the %s rolled batch %d back instead of committing it", t.srv, b.Seq)
	case len(results) < len(stmts)-1 && pgside.SQLState(err) != "" && !t.srv.Conn.IsClosed():
		// The server refused a statement before COMMIT.
		t.rollback(ctx)
		if altered := t.tables.versions.Fault(opCommit, t.srv.String(), err); altered != nil {
			return altered
		}
		if pgside.SQLState(err) == ledger.StateFenced {
			return t.ledger.Fenced(opCommit, t.srv.Session)
		}
		return t.srv.FailRows(opCommit, err)
	}
	t.count(func(s *Stats) { s.Unknown++ })
	t.log.Warn("the outcome of a batch is not known", slog.Uint64(logkey.Batch, b.Seq), slog.String(logkey.Error, pgside.Clean(err, true).Error()))
	return &dtx.Error{
		Op: opCommit, Class: dtx.ClassRetry, Err: pgside.Clean(err, true),
		Msg:  fmt.Sprintf("the %s did not confirm the commit of batch %d", t.srv, b.Seq),
		Hint: "The next open reads from the target whether it was committed",
	}
}

// dropDedup deletes the entries that go, those to be replaced included.
func (t *Target) dropDedup(b *dtx.Batch) string {
	if len(b.DedupDrop) == 0 {
		return ""
	}
	sql := make([]byte, 0, 96+21*len(b.DedupDrop))
	sql = append(sql, "DELETE FROM cbrepl.dedup WHERE subscription = '"...)
	sql = append(sql, t.opts.Subscription...)
	sql = append(sql, "' AND gxid = ANY ('{"...)
	for i, g := range b.DedupDrop {
		if i > 0 {
			sql = append(sql, ',')
		}
		sql = strconv.AppendUint(sql, uint64(g), 10)
	}
	return string(append(sql, "}'::numeric[])"...))
}

// dedupValues inserts few entries.
func (t *Target) dedupValues(add []dtx.DedupEntry) string {
	var b strings.Builder
	b.WriteString("INSERT INTO cbrepl.dedup (subscription, gxid, contents, lsns) VALUES ")
	for i := range add {
		if i > 0 {
			b.WriteString(", ")
		}
		c, l := pgside.AppendPositions(nil, nil, add[i].Pending)
		fmt.Fprintf(&b, "('%s', %d, '%s', '%s')", t.opts.Subscription, add[i].GXID, c, l)
	}
	return b.String()
}

// dedupLines are entries as COPY text; nothing in them needs escaping.
func (t *Target) dedupLines(add []dtx.DedupEntry) string {
	out := make([]byte, 0, 96*len(add))
	for i := range add {
		out = append(out, t.opts.Subscription...)
		out = append(out, '\t')
		out = strconv.AppendUint(out, uint64(add[i].GXID), 10)
		c, l := pgside.AppendPositions(nil, nil, add[i].Pending)
		out = append(append(append(out, '\t'), c...), '\t')
		out = append(append(out, l...), '\n')
	}
	return string(out)
}

// rollback undoes what a failed batch has done, as far as the server can be
// reached in a moment, so that its locks are gone. The rest the server does when
// the session ends.
func (t *Target) rollback(ctx context.Context) {
	s := t.srv
	if s.Conn == nil || s.Conn.IsClosed() || s.Conn.IsBusy() {
		s.Close()
		return
	}
	if s.Conn.TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := s.Exec(ctx, "ROLLBACK"); err != nil {
		t.log.Warn("a failed batch is not rolled back yet; the end of its session does it", slog.String(logkey.Error, pgside.Clean(err, false).Error()))
		s.Close()
	}
}
