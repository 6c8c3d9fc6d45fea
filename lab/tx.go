package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/dtx"
)

// Tx is one distributed transaction. Every segment that a statement is sent to
// takes part in it, whether or not the statement changes a row there. It is for
// one goroutine, and ends with Commit or Rollback.
type Tx struct {
	src  *Source
	gxid dtx.GXID

	conns      map[dtx.Content]*session // participants
	savepoints []string                 // open ones, outermost first
	crash      Step
	done       bool
}

// Begin starts a distributed transaction. It waits while 64 others are open.
func (s *Source) Begin(ctx context.Context) (*Tx, error) {
	if err := s.slots.Acquire(ctx, 1); err != nil {
		return nil, opErr("begin", err)
	}
	gxid := dtx.GXID(s.gxids.Add(1))
	s.commits.Lock()
	s.inFlight[gxid] = struct{}{}
	s.commits.Unlock()
	return &Tx{src: s, gxid: gxid, conns: map[dtx.Content]*session{}}, nil
}

// Do runs f in a transaction and commits it, or rolls back when f fails. A
// transaction that lost to another one (see Retryable) is run again, up to 20
// times.
func (s *Source) Do(ctx context.Context, f func(*Tx) error) error {
	return Retry(ctx, func() error {
		tx, err := s.Begin(ctx)
		if err != nil {
			return err
		}
		if err = f(tx); err == nil {
			err = tx.Commit(ctx)
		}
		_ = tx.Rollback(context.WithoutCancel(ctx)) // no effect after Commit
		return err
	})
}

// Retry runs a transaction again while it loses to others (see Retryable), up to
// 20 times.
func Retry(ctx context.Context, once func() error) error {
	var err error
	for range 20 {
		if err = once(); err == nil || !Retryable(err) || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// Retryable reports whether a transaction failed because of another one: a lock
// timeout, a deadlock or a serialization failure.
func Retryable(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && slices.Contains([]string{"55P03", "40P01", "40001"}, e.Code)
}

// GXID is the transaction's distributed id.
func (tx *Tx) GXID() dtx.GXID { return tx.gxid }

// Participants lists the contents that take part so far, ascending.
func (tx *Tx) Participants() []dtx.Content {
	out := make([]dtx.Content, 0, len(tx.conns))
	for c := range tx.conns {
		out = append(out, c)
	}
	slices.Sort(out)
	return out
}

// join returns the transaction's session on a node, beginning the local
// transaction with all open savepoints when there is none.
func (tx *Tx) join(ctx context.Context, content dtx.Content) (*pgx.Conn, error) {
	if tx.done {
		return nil, opErr("run SQL", pgx.ErrTxClosed)
	}
	if c := tx.conns[content]; c != nil {
		return c.Conn, nil
	}
	c, err := tx.src.session(ctx, content)
	if err != nil {
		return nil, err
	}
	tx.conns[content] = c
	sql := "begin"
	for _, sp := range tx.savepoints {
		sql += "; savepoint " + pgx.Identifier{sp}.Sanitize()
	}
	_, err = c.PgConn().Exec(ctx, sql).ReadAll()
	return c.Conn, nodeErr("begin", content, err)
}

// Conn returns the transaction's session on a node, which takes part from now
// on. The caller runs statements only.
func (tx *Tx) Conn(ctx context.Context, content dtx.Content) (*pgx.Conn, error) {
	return tx.join(ctx, content)
}

// Exec runs one statement on one node and returns the number of rows.
func (tx *Tx) Exec(ctx context.Context, content dtx.Content, sql string, args ...any) (int64, error) {
	c, err := tx.join(ctx, content)
	if err != nil {
		return 0, err
	}
	tag, err := c.Exec(ctx, sql, args...)
	return tag.RowsAffected(), nodeErr("run SQL", content, err)
}

// exec runs a statement whose arguments are in text form.
func (tx *Tx) exec(ctx context.Context, content dtx.Content, sql string, args [][]byte) (int64, error) {
	c, err := tx.join(ctx, content)
	if err != nil {
		return 0, err
	}
	r := c.PgConn().ExecParams(ctx, sql, args, nil, nil, nil).Read()
	return r.CommandTag.RowsAffected(), nodeErr("run SQL", content, r.Err)
}

// execAll runs a statement on every participant.
func (tx *Tx) execAll(ctx context.Context, sql string) error {
	for _, c := range tx.Participants() {
		if _, err := tx.exec(ctx, c, sql, nil); err != nil {
			return err
		}
	}
	return nil
}

// Touch makes a node take part without a statement: a silent participant.
func (tx *Tx) Touch(ctx context.Context, contents ...dtx.Content) error {
	for _, c := range contents {
		if _, err := tx.join(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// Savepoint sets a savepoint on every participant, and on nodes that take part
// later as soon as they do.
func (tx *Tx) Savepoint(ctx context.Context, name string) error {
	if err := tx.execAll(ctx, "savepoint "+pgx.Identifier{name}.Sanitize()); err != nil {
		return err
	}
	tx.savepoints = append(tx.savepoints, name)
	return nil
}

// RollbackTo undoes what happened on every node since the savepoint, which stays
// open.
func (tx *Tx) RollbackTo(ctx context.Context, name string) error {
	i := tx.savepoint(name)
	if i < 0 {
		return opErr("roll back to savepoint", fmt.Errorf("there is no savepoint %s", name))
	}
	tx.savepoints = tx.savepoints[:i+1]
	return tx.execAll(ctx, "rollback to savepoint "+pgx.Identifier{name}.Sanitize())
}

// Release forgets a savepoint and those inside it, keeping their changes.
func (tx *Tx) Release(ctx context.Context, name string) error {
	i := tx.savepoint(name)
	if i < 0 {
		return opErr("release savepoint", fmt.Errorf("there is no savepoint %s", name))
	}
	tx.savepoints = tx.savepoints[:i]
	return tx.execAll(ctx, "release savepoint "+pgx.Identifier{name}.Sanitize())
}

// savepoint finds the innermost savepoint of the name.
func (tx *Tx) savepoint(name string) int {
	for i := len(tx.savepoints) - 1; i >= 0; i-- {
		if tx.savepoints[i] == name {
			return i
		}
	}
	return -1
}

// Rollback undoes the transaction everywhere. After Commit it has no effect.
func (tx *Tx) Rollback(ctx context.Context) error {
	if tx.done {
		return nil
	}
	var errs []error
	for content, c := range tx.conns {
		if _, err := c.PgConn().Exec(ctx, "rollback").ReadAll(); err != nil {
			// Without its session the server rolls back by itself.
			errs = append(errs, nodeErr("roll back", content, err))
			tx.drop(content)
		}
	}
	tx.end()
	return errors.Join(errs...)
}

// drop closes a session: what it had open is rolled back by the server.
func (tx *Tx) drop(content dtx.Content) {
	tx.conns[content].close()
	delete(tx.conns, content)
}

// end gives the sessions back.
func (tx *Tx) end() {
	if tx.done {
		return
	}
	tx.done = true
	for _, c := range tx.conns {
		c.release()
	}
	tx.conns = nil
	s := tx.src
	s.commits.Lock()
	delete(s.inFlight, tx.gxid)
	s.commits.Unlock()
	s.slots.Release(1)
}
