package shards

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/apply/ledger"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/logkey"
)

const (
	opApply  = ledger.OpApply
	opCommit = ledger.OpCommit
)

// phase is how far a batch has come on a shard.
type phase uint8

const (
	idle      phase = iota
	begun           // a transaction is open
	preparing       // PREPARE TRANSACTION was sent, its outcome is not known
	prepared
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
		return apply.Result{}, err
	}
	return res, nil
}

func (t *Target) apply(ctx context.Context, b *dtx.Batch, rows apply.Rows) (res apply.Result, err error) {
	if err := t.point("before_begin"); err != nil {
		return res, err
	}
	if len(b.Steps) > 0 {
		if res, err = t.engine.Apply(ctx, b, rows, t.backend); err != nil {
			t.abandon(ctx)
			return res, err
		}
	}
	var touched []*node
	for _, n := range t.shards {
		if n.phase == begun {
			touched = append(touched, n)
		}
	}
	if err := t.prepare(ctx, touched); err != nil {
		t.abandon(ctx)
		return res, err
	}
	batches := slices.Clone(t.ledger.ShardBatches())
	for _, n := range touched {
		batches[n.index] = b.Seq
	}
	if err := t.decide(ctx, b, batches); err != nil {
		return res, err
	}
	t.ledger.Decided(b, batches)
	t.stream.Recorded(t.ledger.Positions())
	t.count(func(s *Stats) { s.Batch = b.Seq })
	if err := t.point("after_decide"); err != nil {
		return res, err
	}
	if err := t.commit(ctx, b.Seq, touched); err != nil {
		return res, err
	}
	if err := t.point("after_commit"); err != nil {
		return res, err
	}
	t.count(func(s *Stats) {
		s.Batches++
		if len(touched) == 0 {
			s.PositionBatches++
		}
	})
	return res, nil
}

// begin opens the batch's transaction on a shard, unless it is open. Raising the
// batch number checks the epoch and locks the row that a newer daemon must
// change first: from here to the end of the transaction there is no newer one.
func (t *Target) begin(ctx context.Context, n *node) error {
	if n.phase == begun {
		return nil
	}
	if n.Conn == nil || n.phase != idle {
		return ledger.ErrNotOpen(opApply)
	}
	ctx, cancel := context.WithTimeout(ctx, t.opts.LockTimeout+t.opts.DecideTimeout)
	defer cancel()
	n.phase = begun
	n.begun++
	n.versions.Begin()
	sql := make([]byte, 0, 192)
	sql = append(sql, "BEGIN; UPDATE cbrepl.shard SET batch = "...)
	sql = strconv.AppendUint(sql, t.ledger.Tried().Batch, 10)
	sql = append(sql, " WHERE subscription = "...)
	sql = append(sql, pgside.QuoteLiteral(t.opts.Subscription)...)
	sql = append(sql, " AND epoch = "...)
	sql = strconv.AppendUint(sql, t.ledger.Epoch(), 10)
	results, err := n.Conn.Exec(ctx, string(sql)).ReadAll()
	if err != nil {
		return n.Fail(opApply, err)
	}
	if len(results) != 2 || results[1].CommandTag.RowsAffected() != 1 {
		return t.ledger.Fenced(opApply, n.Session)
	}
	return nil
}

// prepare makes the batch durable on the touched shards without committing it.
// All statements are sent before the first answer is read.
func (t *Target) prepare(ctx context.Context, touched []*node) error {
	if err := t.point("before_prepare"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, t.opts.DecideTimeout)
	defer cancel()
	var errs []error
	for _, n := range touched {
		if err := t.point("between_prepare"); err != nil {
			errs = append(errs, err)
			break
		}
		n.gid = gidOf(t.ledger.Tried(), t.opts.Subscription, n.facts.database)
		n.phase = preparing
		stmts := append(n.versions.CheckSQL(), "PREPARE TRANSACTION "+pgside.QuoteLiteral(n.gid))
		n.reply = n.Conn.Exec(ctx, strings.Join(stmts, "; "))
	}
	for _, n := range touched {
		if n.reply == nil {
			continue
		}
		results, err := n.reply.ReadAll()
		n.reply = nil
		switch {
		case err == nil && len(results) > 0 && results[len(results)-1].CommandTag.String() == "PREPARE TRANSACTION":
			n.phase = prepared
		case err == nil:
			// The server answers ROLLBACK, without error, when the transaction had
			// failed before.
			n.phase = idle
			errs = append(errs, pgside.Stop(opCommit, dtx.ReportBug+". Nothing is applied", "the %s rolled the batch back instead of preparing it", n))
		default:
			if pgside.SQLState(err) != "" && !n.Conn.IsClosed() {
				n.phase = idle // a refused PREPARE has rolled back
			}
			errs = append(errs, t.prepareError(n, err))
		}
	}
	if err := pgside.JoinErrors(opCommit, errs); err != nil {
		return err
	}
	return t.point("after_prepare")
}

func (t *Target) prepareError(n *node, err error) error {
	if altered := n.versions.Fault(opCommit, n.String(), err); altered != nil {
		return altered
	}
	const hint = "Set max_prepared_transactions on that server to at least the number of subscriptions and other two-phase clients, and restart it"
	switch pgside.SQLState(err) {
	case pgside.StateOutOfMemory:
		return &dtx.Error{Op: opCommit, Msg: n.String(), Hint: hint, Class: dtx.ClassRetry, Err: errors.New("no room for another prepared transaction")}
	case pgside.StateDuplicateObject:
		return pgside.Stop(opCommit, "Find out where it comes from, and roll it back", "the %s already holds a prepared transaction %s", n, n.gid)
	}
	return n.FailRows(opCommit, err)
}

// abandon rolls back what an undecided batch has done, as far as servers can be
// reached in a moment. The rest is rolled back by the servers (open
// transactions) or by the next Open (prepared ones).
func (t *Target) abandon(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	_ = t.eachShard(ctx, opApply, func(ctx context.Context, n *node) error {
		var err error
		switch {
		case n.phase == idle:
			return nil
		case n.Conn == nil || n.Conn.IsClosed() || n.Conn.IsBusy():
			n.close()
			return nil
		case n.Conn.TxStatus() != 'I': // a PREPARE that was not sent leaves it open, too
			err = n.Exec(ctx, "ROLLBACK")
		case n.phase != begun:
			err = n.Exec(ctx, "ROLLBACK PREPARED "+pgside.QuoteLiteral(n.gid))
		}
		n.phase = idle
		if err != nil {
			t.log.Warn("a failed batch is not rolled back yet; the next open does it",
				slog.String(logkey.Server, n.Name), slog.String(logkey.Error, n.Fail(opApply, err).Error()))
			n.close()
		}
		return nil
	})
}

// commit finishes a decided batch. It goes on when ctx ends: the batch is
// decided, and the sooner its locks are gone the better.
func (t *Target) commit(ctx context.Context, seq uint64, touched []*node) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.opts.DecideTimeout)
	defer cancel()
	var errs []error
	for i, n := range touched {
		if i > 0 {
			if err := t.point("between_commit_prepared"); err != nil {
				errs = append(errs, err)
				break
			}
		}
		n.reply = n.Conn.Exec(ctx, "COMMIT PREPARED "+pgside.QuoteLiteral(n.gid))
	}
	for _, n := range touched {
		if n.reply == nil {
			continue
		}
		err := n.reply.Close()
		n.reply = nil
		if err = t.commitAgain(ctx, n, err); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", n, pgside.Clean(err, false)))
			continue
		}
		n.phase = idle
	}
	if len(errs) == 0 {
		return nil
	}
	return &dtx.Error{
		Op: opCommit, Class: dtx.ClassRetry, Err: pgside.Problems(errs),
		Msg:  fmt.Sprintf("batch %d is decided and not yet committed on %d of %d shards", seq, len(errs), len(touched)),
		Hint: "The next open commits it there",
	}
}

// commitAgain repeats COMMIT PREPARED while the server refuses it for a passing
// reason. A lost connection is left to the next Open.
func (t *Target) commitAgain(ctx context.Context, n *node, err error) error {
	wait := 10 * time.Millisecond
	for err != nil && pgside.SQLState(err) != "" && pgside.SQLState(err) != pgside.StateUndefinedObject && !n.Conn.IsClosed() && faults.Class(err) == dtx.ClassRetry {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-timer.C:
		}
		wait = min(2*wait, time.Second)
		t.count(func(s *Stats) { s.CommitRetries++ })
		err = n.Exec(ctx, "COMMIT PREPARED "+pgside.QuoteLiteral(n.gid))
	}
	return err
}

// shardConn returns the connection of a shard inside the batch's transaction,
// which it opens on first use. It is how the SQL of a batch, which names tables,
// reaches a shard.
func (t *Target) shardConn(ctx context.Context, seg dtx.Content, tables ...*catalog.Table) (*node, error) {
	if seg < 0 || int(seg) >= len(t.shards) {
		return nil, pgside.Stop(opApply, dtx.ReportBug+". Nothing is applied", "a row for shard %d of %d", seg, len(t.shards))
	}
	n := t.shards[seg]
	if err := t.begin(ctx, n); err != nil {
		return nil, err
	}
	n.versions.Touch(tables...)
	return n, nil
}
