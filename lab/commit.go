package lab

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/dtx"
)

// Step is a place between two durable steps of a commit where the dispatcher
// may crash.
type Step int

// Places to crash. AfterOnePhase concerns a transaction with one participant,
// the others one with several.
const (
	NoCrash           Step = iota
	BeforePrepare          // nothing is prepared
	AfterFirstPrepare      // one participant is prepared
	AfterPrepare           // all are prepared, there is no commit record
	AfterRecord            // the record is written, nothing is committed
	AfterFirstCommit       // one participant has committed
	AfterOnePhase          // the segment has committed, there is no marker
)

// Steps lists all places to crash.
func Steps() []Step {
	return []Step{BeforePrepare, AfterFirstPrepare, AfterPrepare, AfterRecord, AfterFirstCommit, AfterOnePhase}
}

// String names the place.
func (s Step) String() string {
	names := [...]string{"no crash", "before prepare", "after first prepare", "after prepare", "after record", "after first commit", "after one-phase commit"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("step(%d)", int(s))
	}
	return names[s]
}

// Committed reports whether a transaction that crashes here ends as committed.
func (s Step) Committed() bool {
	return s == AfterRecord || s == AfterFirstCommit || s == AfterOnePhase
}

// ErrCrashed is what Commit returns at the place set by CrashAt.
var ErrCrashed = errors.New("the dispatcher crashed, as told")

// CrashAt makes Commit stop dead at a step: its sessions end and what is
// prepared stays, until Source.Recover.
func (tx *Tx) CrashAt(s Step) { tx.crash = s }

// crashed ends the transaction as a crash would when the step is the one set.
func (tx *Tx) crashed(s Step) error {
	if tx.crash != s {
		return nil
	}
	tx.dropAll()
	return ErrCrashed
}

// dropAll ends the transaction with its sessions.
func (tx *Tx) dropAll() {
	for c := range tx.conns {
		tx.drop(c)
	}
	tx.end()
}

// decisionSchema keeps the gxids with a two-phase commit record: a record in
// the log cannot be asked for. The row is written in the record's transaction.
const decisionSchema = `
create schema if not exists cbrepl_lab;
create table if not exists cbrepl_lab.decision (gxid int8 primary key)`

// EncodeRecord gives the body of a commit record, version 1.
func EncodeRecord(r dtx.CommitRecord) []byte {
	b := []byte{1, byte(r.Kind)}
	b = binary.BigEndian.AppendUint64(b, uint64(r.GXID))
	b = binary.BigEndian.AppendUint64(b, uint64(r.CommitTime))
	b = binary.BigEndian.AppendUint16(b, uint16(len(r.Participants)))
	for _, c := range r.Participants {
		b = binary.BigEndian.AppendUint16(b, uint16(c))
	}
	return b
}

// EncodePart gives the body of a part message, version 1.
func EncodePart(kind dtx.Kind, gxid dtx.GXID) []byte {
	return binary.BigEndian.AppendUint64([]byte{1, byte(kind)}, uint64(gxid))
}

// EmitMessage writes a logical message on a node, outside any distributed
// transaction, and returns its position. It is on disk when the call returns.
func (s *Source) EmitMessage(ctx context.Context, content dtx.Content, transactional bool, prefix string, body []byte) (dtx.LSN, error) {
	// A transaction with an id is flushed when it commits; the message alone is not.
	out, err := query(ctx, s.nodes, content, func(r pgx.CollectableRow) (lsn string, err error) {
		var xid string
		return lsn, r.Scan(&lsn, &xid)
	}, "select pg_logical_emit_message($1, $2, $3::bytea)::text, pg_current_xact_id()::text", transactional, prefix, body)
	if err != nil {
		return 0, err
	}
	return dtx.ParseLSN(out[0])
}

// EmitRecord writes a commit record that no transaction stands behind.
func (s *Source) EmitRecord(ctx context.Context, r dtx.CommitRecord) (dtx.LSN, error) {
	return s.EmitMessage(ctx, dtx.Coordinator, !s.opts.PlainRecords, CommitPrefix, EncodeRecord(r))
}

// gid names a prepared transaction.
func (s *Source) gid(g dtx.GXID) string {
	if s.opts.TimestampGIDs {
		return fmt.Sprintf("%d-%d", g>>32, uint32(g))
	}
	return g.String()
}

// gxidOf reads a gid back.
func gxidOf(gid string) (dtx.GXID, bool) {
	ts, n, stamped := strings.Cut(gid, "-")
	if !stamped {
		ts, n = "0", gid
	}
	high, err1 := strconv.ParseUint(ts, 10, 32)
	low, err2 := strconv.ParseUint(n, 10, 64)
	return dtx.GXID(high<<32 | low), err1 == nil && err2 == nil
}

// partSQL makes the local transaction name its gxid.
func (s *Source) partSQL(kind dtx.Kind, g dtx.GXID) string {
	if s.opts.GIDCarrier && kind == dtx.TwoPhase {
		// The gid is the name. Of a transaction that logged nothing before its PREPARE,
		// decoding sends nothing, also if it has an xid: an update that waited for a row
		// and found it deleted assigns one. So every participant writes a message of no
		// meaning.
		return "select pg_logical_emit_message(true, '" + touchPrefix + "', ''); "
	}
	return fmt.Sprintf(`select pg_logical_emit_message(true, '%s', '\x%s'::bytea); `, PartPrefix, hex.EncodeToString(EncodePart(kind, g)))
}

// Commit commits the transaction on every participant. With one participant it
// commits there and writes the marker afterwards (see LateMarkers); with several
// it prepares all, writes the commit record, which is the decision, and commits
// the prepared transactions in random order. Without participants it does
// nothing.
//
// On an error before the decision everything is rolled back. After it, Commit
// goes on until the context ends; what is then left, Recover finishes.
func (tx *Tx) Commit(ctx context.Context) error {
	if tx.done {
		return opErr("commit", pgx.ErrTxClosed)
	}
	defer tx.end()
	parts := tx.Participants()
	switch len(parts) {
	case 0:
		return nil
	case 1:
		return tx.commitOnePhase(ctx, parts[0])
	}
	return tx.commitTwoPhase(ctx, parts)
}

// finish runs SQL that must not end in a rollback without an error.
func (tx *Tx) finish(ctx context.Context, content dtx.Content, sql string) error {
	res, err := tx.conns[content].PgConn().Exec(ctx, sql).ReadAll()
	if err == nil && res[len(res)-1].CommandTag.String() == "ROLLBACK" {
		err = errors.New("the local transaction had failed before")
	}
	return nodeErr("commit", content, err)
}

func (tx *Tx) commitOnePhase(ctx context.Context, content dtx.Content) error {
	s := tx.src
	if err := tx.finish(ctx, content, s.partSQL(dtx.OnePhase, tx.gxid)+"commit"); err != nil {
		tx.dropAll()
		return err
	}
	m := marker{dtx.CommitRecord{GXID: tx.gxid, Kind: dtx.OnePhase, Participants: []dtx.Content{content}, CommitTime: dtx.PGTimeOf(time.Now())}, 0}
	if err := tx.crashed(AfterOnePhase); err != nil {
		s.commits.Lock()
		s.markers.lost = append(s.markers.lost, m)
		s.commits.Unlock()
		return err
	}
	tx.end() // the session is free: a late marker holds nothing
	return s.committed(ctx, &m)
}

func (tx *Tx) commitTwoPhase(ctx context.Context, parts []dtx.Content) error {
	s := tx.src
	gid := s.gid(tx.gxid)
	if err := tx.crashed(BeforePrepare); err != nil {
		return err
	}
	for i, c := range parts {
		if err := tx.finish(ctx, c, s.partSQL(dtx.TwoPhase, tx.gxid)+"prepare transaction '"+gid+"'"); err != nil {
			return errors.Join(err, tx.undoPrepared(parts[:i+1], gid))
		}
		if i == 0 {
			if err := tx.crashed(AfterFirstPrepare); err != nil {
				return err
			}
		}
	}
	if err := tx.crashed(AfterPrepare); err != nil {
		return err
	}
	if err := tx.decide(ctx, parts); err != nil {
		return err
	}
	if err := tx.crashed(AfterRecord); err != nil {
		return err
	}
	order := append([]dtx.Content(nil), parts...)
	s.shuffle(order)
	for i, c := range order {
		if err := s.passGate(ctx, c); err != nil {
			return nodeErr("commit prepared", c, err)
		}
		if err := tx.endPrepared(ctx, c, "commit", gid); err != nil {
			return err
		}
		if i == 0 {
			if err := tx.crashed(AfterFirstCommit); err != nil {
				return err
			}
		}
	}
	tx.end()
	return s.committed(ctx, nil)
}

// decide writes the commit record. When the answer is lost, it asks the server.
func (tx *Tx) decide(ctx context.Context, parts []dtx.Content) error {
	s := tx.src
	body := EncodeRecord(dtx.CommitRecord{GXID: tx.gxid, Kind: dtx.TwoPhase, Participants: parts, CommitTime: dtx.PGTimeOf(time.Now())})
	err := s.Exec(ctx, dtx.Coordinator, "with d as (insert into cbrepl_lab.decision values ($1)) select pg_logical_emit_message($2, '"+CommitPrefix+"', $3::bytea)",
		int64(tx.gxid), !s.opts.PlainRecords, body)
	if err == nil {
		return nil
	}
	decided, asked := s.decided(context.WithoutCancel(ctx), tx.gxid)
	switch {
	case asked != nil: // in doubt: Recover will know
		return errors.Join(err, asked)
	case decided:
		return nil
	}
	return errors.Join(err, tx.undoPrepared(parts, s.gid(tx.gxid)))
}

// decided asks the coordinator whether a gxid has a commit record.
func (s *Source) decided(ctx context.Context, g dtx.GXID) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var err error
	for {
		var n []int
		if n, err = query(ctx, s.nodes, dtx.Coordinator, pgx.RowTo[int], "select count(*)::int from cbrepl_lab.decision where gxid = $1", int64(g)); err == nil {
			return n[0] == 1, nil
		}
		select {
		case <-ctx.Done():
			return false, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// undoPrepared rolls back where the transaction is, or may be, prepared; what is
// open is rolled back with its session.
func (tx *Tx) undoPrepared(parts []dtx.Content, gid string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for c, conn := range tx.conns {
		if conn.PgConn().TxStatus() != 'I' {
			tx.drop(c)
		}
	}
	var errs []error
	for _, c := range parts {
		errs = append(errs, tx.endPrepared(ctx, c, "rollback", gid))
	}
	return errors.Join(errs...)
}

// endPrepared commits or rolls back a prepared transaction, with another session
// when the one in hand is broken, until it is done or the context ends.
func (tx *Tx) endPrepared(ctx context.Context, content dtx.Content, verb, gid string) error {
	sql := verb + " prepared '" + gid + "'"
	if c := tx.conns[content]; c != nil {
		_, err := c.PgConn().Exec(ctx, sql).ReadAll()
		if err == nil || notPrepared(err) {
			return nil
		}
		tx.drop(content)
	}
	for {
		err := tx.src.Exec(ctx, content, sql)
		if err == nil || notPrepared(err) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// notPrepared reports that there is no prepared transaction of the gid.
func notPrepared(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == "42704"
}
