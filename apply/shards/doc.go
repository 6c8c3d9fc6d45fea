// Package shards applies batches to M PostgreSQL databases (the shards) as one
// distributed transaction, with a coordinator database that keeps what the
// target knows of a subscription. It is its own two-phase coordinator: it owns
// connections, the commit protocol, fencing and recovery on the shards,
// and the reading of the shards' catalogues. It never chooses what enters a
// batch and never maps or folds rows (apply/engine does).
//
// # Commit protocol
//
// One batch is applied as follows. A step is only taken when the one before it
// is done on every shard that the batch touches; shards work concurrently.
//
//  1. On each shard that gets rows: BEGIN; raise the shard's batch number in
//     cbrepl.shard where the epoch is this daemon's (no such row: this daemon
//     has been replaced, stop); write the rows.
//  2. On the touched shards, the check that no table was altered since Open, and
//     PREPARE TRANSACTION.
//  3. The decision: one statement, hence one local commit, on the coordinator
//     database. Where the epoch is this daemon's and the recorded batch is the
//     one before, it records batch number, the epoch it was decided in,
//     positions and dedup set.
//  4. COMMIT PREPARED on the touched shards.
//
// A batch that touches no shard is step 3 alone.
//
// # Epoch and lock
//
// Open takes a session advisory lock on the coordinator database, raises the
// epoch there, and then on every shard. The epoch row of a shard is locked by
// each batch transaction, prepared ones included, so raising the epoch there
// waits for all of them, and Open ends or resolves them. When Open is through,
// a daemon of an earlier epoch can neither decide (the coordinator's row), nor
// write (the shard's row), nor has it left anything undecided.
//
// The epoch is part of a transaction's global id, because batch numbers alone
// do not name a batch: an old daemon that was paused before its PREPARE and its
// successor both call their next batch b, with different contents. Once the
// successor has decided its own b, a prepared transaction named only after b
// could be the old daemon's, and committing it would apply rows twice. The
// decision therefore records the pair (epoch, batch), and only the prepared
// transactions of that pair are committed. The database's OID ends the id since
// ids are unique per server, and several shards may be databases of one server.
//
// # In doubt
//
// Open has raised the coordinator's epoch, so the recorded decision (E, B) is
// final. For each prepared transaction (e, b) of this subscription in this
// shard's database, with S the batch number committed in cbrepl.shard there:
//
//	e = E, b = B        decided: COMMIT PREPARED
//	b = B, e not E      another daemon's attempt, lost to (E, B): ROLLBACK PREPARED
//	b > B               not decided, and never will be: ROLLBACK PREPARED
//	b < B               stop. b was either decided, then B would not have been
//	                    started before b was committed everywhere; or not, then
//	                    raising the shard's epoch would have rolled it back. So
//	                    the shard was restored to an older state, or the
//	                    coordinator database to a newer one.
//
// Afterwards S must be the batch that the coordinator database recorded as the
// last one to touch this shard. S is compared before anything is resolved, as
// well: S above B says that the coordinator database has lost decisions. Either
// mismatch means that a server was restored or failed over with loss; Open stops
// and changes nothing further.
//
// # Fault points
//
// Between the durable steps of Apply and Open, in order:
//
//	shards.before_begin              nothing written yet
//	shards.before_prepare            rows written on all shards, none prepared
//	shards.between_prepare           before each PREPARE TRANSACTION
//	shards.after_prepare             all prepared, not decided
//	shards.after_decide              decided, none committed
//	shards.between_commit_prepared   before each COMMIT PREPARED but the first
//	shards.after_commit              everything committed, not yet reported
//	shards.open_after_lock           lock held, epoch not raised
//	shards.open_after_epoch          coordinator's epoch raised, shards' not
//	shards.open_between_resolve      before each COMMIT or ROLLBACK PREPARED of Open
//	shards.open_between_fence        before each shard's epoch is raised
//	shards.open_after_fence          all epochs raised
//	shards.init_before_commit        first positions not yet recorded
//
// Points of concurrent steps (between_*) are passed one after the other in shard
// order while any fault is armed, so that "the second COMMIT PREPARED" is a
// repeatable place.
package shards
