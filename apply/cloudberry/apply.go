package cloudberry

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/dtx"
	"cbrepl/faultinject"
)

const (
	opApply  = "apply batch"
	opCommit = "commit batch"
)

// errNotOpen is what a call between a failure and the next Open gets.
func errNotOpen(op string) error {
	return retry(op, "", "the target is not open; Open comes first")
}

// Apply applies b: see the package comment for the steps. After an error the
// target is closed for batches until Open.
func (t *Target) Apply(ctx context.Context, b *dtx.Batch, rows apply.Rows) (apply.Result, error) {
	if !t.open {
		return apply.Result{}, errNotOpen(opApply)
	}
	err := pgside.CheckBatch(opApply, b, t.initialized, t.batch, func(c dtx.Content) (dtx.LSN, bool) {
		i := t.position(c)
		if i < 0 {
			return 0, false
		}
		return t.positions[i].LSN, true
	})
	if err != nil {
		return apply.Result{}, err
	}
	t.tried = batchID{t.epoch, b.Seq}
	res, err := t.apply(ctx, b, rows)
	if err != nil {
		t.open = false
		return apply.Result{}, t.bounded(err)
	}
	t.known, t.internal = t.tried, 0
	return res, nil
}

// position finds a content among the recorded positions, or -1.
func (t *Target) position(c dtx.Content) int {
	return slices.IndexFunc(t.positions, func(p dtx.Position) bool { return p.Content == c })
}

func (t *Target) apply(ctx context.Context, b *dtx.Batch, rows apply.Rows) (res apply.Result, err error) {
	if err := faultinject.Point("cloudberry.before_begin"); err != nil {
		return res, err
	}
	t.backend.startBatch()
	if len(b.Steps) > 0 {
		if res, err = t.engine.Apply(ctx, b, rows, t.backend); err != nil {
			t.rollback(ctx)
			return res, err
		}
	}
	if err := faultinject.Point("cloudberry.before_commit"); err != nil {
		t.rollback(ctx)
		return res, err
	}
	wrote := t.backend.begun
	after := t.moved(b.Positions)
	if err := t.commit(ctx, b, after); err != nil {
		return res, err
	}
	t.batch, t.positions = b.Seq, after
	t.backend.last = t.opts.now()
	if err := faultinject.Point("cloudberry.after_commit"); err != nil {
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

// moved returns the recorded positions after ps.
func (t *Target) moved(ps []dtx.Position) []dtx.Position {
	out := slices.Clone(t.positions)
	for _, p := range ps {
		out[t.position(p.Content)].LSN = p.LSN
	}
	return out
}

// dedupByValues is up to how many dedup entries are written as values of the last
// message instead of by COPY, which goes to every segment.
const dedupByValues = 8

// commit records positions, dedup set and batch number, and commits. It does not
// stop half-way when ctx ends.
func (t *Target) commit(ctx context.Context, b *dtx.Batch, after []dtx.Position) error {
	if err := ctx.Err(); err != nil { // told to stop: not begun
		t.rollback(ctx)
		return retry(opCommit, "", "stopped before batch %d was committed", b.Seq)
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
		if _, err := t.srv.conn.CopyFrom(ctx, strings.NewReader(t.dedupLines(b.DedupAdd)), strings.Join(stmts, "; ")); err != nil {
			t.rollback(ctx)
			return fail(opCommit, t.srv.String(), err)
		}
		stmts = nil
	case n > 0:
		stmts = append(stmts, t.dedupValues(b.DedupAdd))
	}
	c, l := pgside.AppendPositions(nil, nil, after)
	stmts = append(stmts, t.guarded(fmt.Sprintf(
		"batch = %d, batch_epoch = %d, contents = '%s', lsns = '%s', decided_at = clock_timestamp()", b.Seq, t.epoch, c, l),
		b.Seq-1, "initialized"), "COMMIT")
	results, err := t.srv.conn.Exec(ctx, strings.Join(stmts, "; ")).ReadAll()
	switch {
	case err == nil && len(results) == len(stmts) && results[len(stmts)-1].CommandTag.String() == "COMMIT":
		return nil
	case err == nil:
		// COMMIT of a failed transaction answers ROLLBACK, without an error.
		return stop(opCommit, "This is a fault of cbrepl; nothing is applied", "the %s rolled batch %d back instead of committing it", t.srv, b.Seq)
	case len(results) < len(stmts)-1 && pgside.SQLState(err) != "" && !t.srv.conn.IsClosed():
		// The server refused a statement before COMMIT.
		t.rollback(ctx)
		if pgside.SQLState(err) == stateFenced {
			return t.fenced(opCommit)
		}
		return fail(opCommit, t.srv.String(), err)
	}
	t.count(func(s *Stats) { s.Unknown++ })
	t.log.Warn("the outcome of a batch is not known", slog.Uint64("batch", b.Seq), slog.String("error", pgside.Clean(err).Error()))
	return &dtx.Error{
		Op: opCommit, Class: dtx.ClassRetry, Err: pgside.Clean(err),
		Msg:  fmt.Sprintf("the %s did not confirm the commit of batch %d", t.srv, b.Seq),
		Hint: "The next open reads from the target whether it was committed",
	}
}

// guarded is a statement that changes the subscription's row, or fails with
// stateFenced when that row is not this daemon's any more or not at the given
// batch. A block is one statement without parameters, so that COMMIT can stand
// behind it in one message. What goes into it is numbers, LSNs, a checked name
// and a uuid.
func (t *Target) guarded(set string, batch uint64, and string) string {
	return fmt.Sprintf(`DO $cbrepl$ BEGIN
UPDATE cbrepl.subscription SET %s WHERE name = '%s' AND token = '%s' AND epoch = %d AND batch = %d AND %s;
IF NOT FOUND THEN RAISE EXCEPTION USING ERRCODE = '%s', MESSAGE = 'the subscription belongs to another daemon'; END IF;
END $cbrepl$`, set, t.opts.Subscription, t.token, t.epoch, batch, and, stateFenced)
}

// fenced is the end of a daemon that has been replaced. The class is retry: the
// next Open tells whether the other daemon is still there.
func (t *Target) fenced(op string) error {
	return retry(op, "Only one daemon may run a subscription",
		"epoch %d of subscription %s is over: another daemon has raised it on the %s, or the subscription was dropped; nothing is written",
		t.epoch, t.opts.Subscription, t.srv)
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
	if s.conn == nil || s.conn.IsClosed() || s.conn.IsBusy() {
		s.close()
		return
	}
	if s.conn.TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := s.simple(ctx, "ROLLBACK"); err != nil {
		t.log.Warn("a failed batch is not rolled back yet; the end of its session does it", slog.String("error", pgside.Clean(err).Error()))
		s.close()
	}
}
