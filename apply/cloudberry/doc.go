// Package cloudberry applies batches to a Cloudberry or Greenplum cluster through
// its coordinator: one batch is one ordinary distributed transaction there, and
// the server places the rows and commits in two phases. The package owns the
// session, the SQL shapes that are right on
// such a cluster, and the reading of its catalogue. It never chooses what enters
// a batch and never maps or folds rows (apply/engine does).
//
// # One session
//
// Lock and batches share one session, so they end together: a daemon whose
// session is lost holds nothing any more, and what it had written is rolled back.
// What differs between Greenplum 6 (PostgreSQL 9.4) and its successors is found by
// looking into the catalogue and pg_settings, never by version number.
//
// Settings are made once, for the session, which costs a batch nothing. A worker
// process that the server starts on a segment later, in place of one that was idle
// for long or has died, or for a statement of several slices, gets some of them
// only. Of those that matter there session_replication_role is lost, and is set
// again ahead of a batch when a table has something to silence or the session was
// idle; it counts only where rows are written, which the session's first worker
// process of a segment does. Nothing else may depend on a lost one: no statement
// compares floating-point values by their text.
//
// # A batch
//
//  1. The first statement travels with BEGIN in one message.
//  2. The engine's operations, table by table in name order.
//  3. One message: dedup entries that go and come, then the check that no table was
//     altered since Open, then the fence, then COMMIT.
//
// The fence is a statement that moves the subscription's row to the new batch
// number and positions where token, epoch and batch number are the expected ones,
// and raises an error (SQLSTATE CBF01) where they are not. COMMIT stands behind it
// in the same message, so it is only reached when the row was moved.
//
// # Epoch and lock
//
// Open takes a session advisory lock on the coordinator and raises the epoch in
// the subscription's row. From then on the fence of a daemon of an earlier epoch
// fails, however long it was paused. It locks no table for longer than its COMMIT
// takes.
//
// # Outcome not known
//
// When the last message ends with an error or a lost connection after the fence
// has answered, the batch may or may not be committed: Apply returns a retry
// fault, and the next Open reads the subscription's row. Every failed Apply closes
// the target for batches until Open, which starts a new session.
//
// # Fault points
//
// Between the durable steps of Apply and Open, in order:
//
//	cloudberry.before_begin        nothing written yet
//	cloudberry.before_commit       rows written, the last message not sent
//	cloudberry.after_commit        committed, not yet reported
//	cloudberry.open_after_lock     lock held, epoch not raised
//	cloudberry.open_after_epoch    epoch raised
//	cloudberry.init_before_commit  first positions not yet recorded
package cloudberry
