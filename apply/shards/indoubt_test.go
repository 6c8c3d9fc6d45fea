package shards

import (
	"fmt"
	"strings"
	"testing"

	"cbrepl/apply/internal/pgside"
	"cbrepl/apply/ledger"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
)

// prepareAs leaves a prepared transaction on a database, as a daemon would.
func prepareAs(t *testing.T, dsn, gid string, row int) {
	t.Helper()
	execSQL(t, dsn, fmt.Sprintf("BEGIN; INSERT INTO app.log VALUES (1000, %d); PREPARE TRANSACTION '%s'", row, gid))
}

func databaseOID(t *testing.T, dsn string) uint32 {
	t.Helper()
	return uint32(pgside.Atou([]byte(queryRows(t, dsn, "SELECT oid FROM pg_database WHERE datname = current_database()")[0][0])))
}

func preparedGIDs(t *testing.T, dsn string) string {
	t.Helper()
	var out []string
	for _, r := range queryRows(t, dsn, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid") {
		out = append(out, r[0])
	}
	return strings.Join(out, " ")
}

// Each line of the table in the package comment.
func TestInDoubtTable(t *testing.T) {
	h := history{seed: 20, shards: 1, all: true}
	coordinator, dbs := sharedDatabases(t, h.shards)
	o := testOptions(coordinator, dbs)
	prepareHistory(t, h, o)
	tg := historyTarget(t, h, o, 0)
	openUntil(t, tg) // epoch 2
	for seq := uint64(1); seq <= 3; seq++ {
		if err := applyBatch(testCtx(t), tg, h, seq, 0); err != nil {
			t.Fatal(err)
		}
	}
	closeTarget(t, tg)
	db := databaseOID(t, dbs[0])
	gid := func(epoch, batch uint64) string { return gidOf(ledger.BatchID{Epoch: epoch, Batch: batch}, "test", db) }

	// Decided is epoch 2, batch 3.
	prepareAs(t, dbs[0], gid(2, 3), 1)                // the decision's own: committed
	prepareAs(t, dbs[0], gid(1, 3), 2)                // same number, another daemon
	prepareAs(t, dbs[0], gid(9, 3), 3)                // likewise
	prepareAs(t, dbs[0], gid(2, 4), 4)                // not decided
	prepareAs(t, dbs[0], gid(1, 900), 5)              // likewise
	prepareAs(t, dbs[0], "cbrepl:test2:2:3:1", 6)     // another subscription: not ours
	prepareAs(t, dbs[0], "cbrepl:other:2:3:2:3:4", 7) // nor this
	prepareAs(t, dbs[0], "xcbrepl:test:2:3:1", 8)     // nor this
	elsewhere := shared.Database(t)
	execSQL(t, elsewhere, "CREATE TABLE x (); BEGIN; INSERT INTO x DEFAULT VALUES; PREPARE TRANSACTION 'cbrepl:test:2:3:1'")

	tg = historyTarget(t, h, o, 0)
	st := openUntil(t, tg)
	if got := queryRows(t, dbs[0], "SELECT n FROM app.log WHERE batch = 1000"); len(got) != 1 || got[0][0] != "1" {
		t.Errorf("committed are rows %v, want 1 alone", got)
	}
	if s := tg.Stats(); s.InDoubtCommitted != 1 || s.InDoubtRolledBack != 4 {
		t.Errorf("stats are %+v", s)
	}
	if got := preparedGIDs(t, dbs[0]); got != "cbrepl:other:2:3:2:3:4 cbrepl:test2:2:3:1 xcbrepl:test:2:3:1" {
		t.Errorf("left are %s", got)
	}
	if got := preparedGIDs(t, elsewhere); got != "cbrepl:test:2:3:1" {
		t.Errorf("in another database there is left %q", got)
	}
	for dsn, gids := range map[string]string{dbs[0]: preparedGIDs(t, dbs[0]), elsewhere: preparedGIDs(t, elsewhere)} {
		for _, g := range strings.Fields(gids) {
			execSQL(t, dsn, "ROLLBACK PREPARED '"+g+"'")
		}
	}
	execSQL(t, dbs[0], "DELETE FROM app.log WHERE batch = 1000")
	checkWorld(t, h, o, st)

	// Below the decision: no batch of this cluster can be there.
	closeTarget(t, tg)
	prepareAs(t, dbs[0], gid(2, 2), 1)
	prepareAs(t, dbs[0], gid(7, 8), 2)
	_, err := historyTarget(t, h, o, 0).Open(testCtx(t))
	dtxtest.WantError(t, err, dtx.ClassStop, "shard 0", gid(2, 2), "batch 3 is the last one decided", "Nothing is changed")
	if got := preparedGIDs(t, dbs[0]); got != gid(2, 2)+" "+gid(7, 8) {
		t.Errorf("left are %s", got)
	}
	execSQL(t, dbs[0], "ROLLBACK PREPARED '"+gid(2, 2)+"'")
	execSQL(t, dbs[0], "ROLLBACK PREPARED '"+gid(7, 8)+"'")

	// With this subscription's prefix, but nothing that cbrepl writes.
	prepareAs(t, dbs[0], "cbrepl:test:2:4", 1)
	_, err = historyTarget(t, h, o, 0).Open(testCtx(t))
	dtxtest.WantError(t, err, dtx.ClassStop, "cbrepl:test:2:4", "cbrepl has not made")
	execSQL(t, dbs[0], "ROLLBACK PREPARED 'cbrepl:test:2:4'")
	checkWorld(t, h, o, openUntil(t, historyTarget(t, h, o, 0)))
}

// Servers that were restored to different moments are found, before anything is
// resolved.
func TestLostWork(t *testing.T) {
	h := history{seed: 21, shards: 2, all: true}
	coordinator, dbs := sharedDatabases(t, h.shards)
	o := testOptions(coordinator, dbs)
	prepareHistory(t, h, o)
	tg := historyTarget(t, h, o, 0)
	openUntil(t, tg)
	for seq := uint64(1); seq <= 3; seq++ {
		if err := applyBatch(testCtx(t), tg, h, seq, 0); err != nil {
			t.Fatal(err)
		}
	}
	closeTarget(t, tg)
	open := func() error {
		_, err := historyTarget(t, h, o, 0).Open(testCtx(t))
		return err
	}
	// A shard that is behind.
	execSQL(t, dbs[1], "UPDATE cbrepl.shard SET batch = 2")
	dtxtest.WantError(t, open(), dtx.ClassStop, "shard 1", "committed up to batch 2", "records batch 3")
	execSQL(t, dbs[1], "UPDATE cbrepl.shard SET batch = 3")
	// A coordinator database that is behind: the undecided batch stays prepared.
	execSQL(t, coordinator, "UPDATE cbrepl.subscription SET batch = 2, shard_batches = '{2,2}'")
	gid := gidOf(ledger.BatchID{Epoch: 2, Batch: 3}, "test", databaseOID(t, dbs[0]))
	prepareAs(t, dbs[0], gid, 1)
	dtxtest.WantError(t, open(), dtx.ClassStop, "batch 3", "records epoch", "batch 2 only", "coordinator database has lost committed work")
	if got := preparedGIDs(t, dbs[0]); got != gid {
		t.Errorf("left are %q", got)
	}
	execSQL(t, dbs[0], "ROLLBACK PREPARED '"+gid+"'")
	execSQL(t, coordinator, "UPDATE cbrepl.subscription SET batch = 3, shard_batches = '{3,3}'")
	// The same by its epoch alone.
	execSQL(t, coordinator, "UPDATE cbrepl.subscription SET epoch = 1")
	dtxtest.WantError(t, open(), dtx.ClassStop, "coordinator database has lost committed work")
	execSQL(t, coordinator, "UPDATE cbrepl.subscription SET epoch = 100")
	checkWorld(t, h, o, openUntil(t, historyTarget(t, h, o, 0)))
}
