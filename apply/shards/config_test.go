package shards

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"cbrepl/apply/ledger"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
	"cbrepl/lab"
)

// schemaExists reports whether anything of cbrepl is in a database.
func schemaExists(t *testing.T, dsn string) bool {
	t.Helper()
	return len(queryRows(t, dsn, "SELECT FROM pg_namespace WHERE nspname = 'cbrepl'")) > 0
}

// Open creates nothing; Prepare creates everything, any number of times, and
// several subscriptions live side by side.
func TestPrepare(t *testing.T) {
	coordinator, dbs := sharedDatabases(t, 2)
	o := testOptions(coordinator, dbs)
	h := history{seed: 3, shards: 2}
	tg := historyTarget(t, h, o, 0)
	_, err := tg.Open(testCtx(t))
	dtxtest.WantError(t, err, dtx.ClassStop, "3 problems", "the coordinator database", "the shard 0", "the shard 1", "has not been prepared", "`cbrepl target prepare -c FILE`")
	for _, dsn := range append(dbs, coordinator) {
		if schemaExists(t, dsn) {
			t.Error("open has created schema cbrepl")
		}
	}
	prepareHistory(t, h, o)
	openUntil(t, tg)
	if err := applyBatch(testCtx(t), tg, h, 1, 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Prepare(testCtx(t), o); err != nil { // beside a running daemon
			t.Fatal(err)
		}
	}
	if err := applyBatch(testCtx(t), tg, h, 2, 0); err != nil {
		t.Fatal(err)
	}
	o2 := o
	o2.Subscription = "test-2"
	dtxtest.WantError(t, func() error { _, err := historyTarget(t, h, o2, 0).Open(testCtx(t)); return err }(), dtx.ClassStop,
		"knows no subscription test-2", "cbrepl target prepare")
	if err := Prepare(testCtx(t), o2); err != nil {
		t.Fatal(err)
	}
	other := historyTarget(t, history{seed: 4, shards: 2}, o2, 0)
	if st := openUntil(t, other); st.Initialized || st.Batch != 0 || st.Epoch != 1 {
		t.Fatalf("state of the second subscription is %+v", st)
	}
	if err := initHistory(testCtx(t), other); err != nil {
		t.Fatal(err)
	}
	if err := applyBatch(testCtx(t), tg, h, 3, 0); err != nil {
		t.Fatal(err)
	}
	checkWorld(t, h, o, openUntil(t, tg))
}

// A shard of another target, in another place, or named twice is refused before
// anything is written.
func TestWrongShards(t *testing.T) {
	coordinator, dbs := sharedDatabases(t, 3)
	o := testOptions(coordinator, dbs[:2])
	if err := Prepare(testCtx(t), o); err != nil {
		t.Fatal(err)
	}
	try := func(o Options) error {
		t.Helper()
		_, err := historyTarget(t, history{shards: 2}, o, 0).Open(testCtx(t))
		if perr := Prepare(testCtx(t), o); perr == nil {
			t.Error("prepare takes it")
		}
		return err
	}
	swapped := o
	swapped.Shards = []string{dbs[1], dbs[0]}
	dtxtest.WantError(t, try(swapped), dtx.ClassStop, "was prepared as shard 1 of 2, the configuration has it as shard 0 of 2", "List every shard once, in the order")
	twice := o
	twice.Shards = []string{dbs[0], dbs[0]}
	dtxtest.WantError(t, try(twice), dtx.ClassStop, "was prepared as shard 0 of 2, the configuration has it as shard 1 of 2")
	more := o
	more.Shards = dbs
	dtxtest.WantError(t, try(more), dtx.ClassStop)
	fewer := o
	fewer.Shards = dbs[:1]
	dtxtest.WantError(t, try(fewer), dtx.ClassStop, "was prepared for 2 shards, the configuration lists 1")
	// Another coordinator database.
	foreign := o
	foreign.Coordinator, foreign.Shards = shared.Database(t), []string{dbs[2]}
	if err := Prepare(testCtx(t), foreign); err != nil {
		t.Fatal(err)
	}
	foreign.Shards = []string{dbs[0]}
	dtxtest.WantError(t, try(foreign), dtx.ClassStop, "was prepared for a subscription test of another coordinator database")
	// A layout of a newer cbrepl.
	execSQL(t, dbs[0], "UPDATE cbrepl.state_format SET version = 99")
	dtxtest.WantError(t, try(o), dtx.ClassStop, fmt.Sprintf("version 99 of its layout, this cbrepl knows %d", ledger.Version))
}

func TestServersThatCannot(t *testing.T) {
	srv := shared.Server(t)
	coordinator, dbs := sharedDatabases(t, 1)
	o := testOptions(coordinator, dbs)
	with := func(shard string) error {
		o := o
		o.Shards = []string{shard}
		return Prepare(testCtx(t), o)
	}
	execSQL(t, coordinator, "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
	t.Cleanup(func() {
		if err := srv.DropDatabase(testCtx(t), "ascii"); err != nil {
			t.Error(err)
		}
	})
	dtxtest.WantError(t, with(srv.DSNFor("ascii")), dtx.ClassStop, "shard 0", "has encoding SQL_ASCII", "ENCODING 'UTF8'")
	dtxtest.WantError(t, with(srv.DSNFor("nowhere")), dtx.ClassStop, "shard 0", `database "nowhere" does not exist`, "Create the database")
	dtxtest.WantError(t, with(fmt.Sprintf("postgres://canary_user@127.0.0.1:%d/postgres", srv.Port())), dtx.ClassStop, "shard 0", "Check user, password and pg_hba.conf")
	begin := time.Now()
	dtxtest.WantError(t, with("postgres://u:canary-password@127.0.0.1:1/d"), dtx.ClassRetry, "shard 0 (127.0.0.1:1, database d)", "connection refused", "Check that the server runs")
	if d := time.Since(begin); d > 15*time.Second {
		t.Errorf("an unreachable server took %s", d)
	}
	if schemaExists(t, coordinator) || schemaExists(t, dbs[0]) {
		t.Error("a failed prepare has created schema cbrepl")
	}
}

func TestNoPreparedTransactions(t *testing.T) {
	srv := lab.ServerForTest(t, lab.Options{Settings: map[string]string{"max_prepared_transactions": "0"}})
	coordinator := shared.Database(t)
	o := testOptions(coordinator, []string{srv.DSN()})
	dtxtest.WantError(t, Prepare(testCtx(t), o), dtx.ClassStop, "shard 0: max_prepared_transactions is 0", "ALTER SYSTEM SET max_prepared_transactions = 10; then restart the server")
	if schemaExists(t, coordinator) {
		t.Error("a failed prepare has created schema cbrepl")
	}
}

// Prepared transactions of others fill the server: they are named, not touched.
func TestNoRoomToPrepare(t *testing.T) {
	srv := lab.ServerForTest(t, lab.Options{Settings: map[string]string{"max_prepared_transactions": "1"}})
	execSQL(t, srv.DSN(), "CREATE DATABASE shard")
	coordinator := shared.Database(t)
	o := testOptions(coordinator, []string{srv.DSNFor("shard")})
	h := history{seed: 12, shards: 1, all: true}
	prepareHistory(t, h, o)
	fill := func() {
		execSQL(t, srv.DSN(), "CREATE TABLE IF NOT EXISTS x (); BEGIN; INSERT INTO x DEFAULT VALUES; PREPARE TRANSACTION 'cbrepl:test:1:1:1'")
	}
	tg := historyTarget(t, h, o, 0)
	st := openUntil(t, tg)
	fill()
	dtxtest.WantError(t, applyBatch(testCtx(t), tg, h, st.Batch+1, 0), dtx.ClassRetry, "no room for another prepared transaction", "Set max_prepared_transactions")
	_, err := tg.Open(testCtx(t))
	dtxtest.WantError(t, err, dtx.ClassRetry, "has room for 1 prepared transactions and holds 1", "cbrepl:test:1:1:1 (database postgres)")
	execSQL(t, srv.DSN(), "ROLLBACK PREPARED 'cbrepl:test:1:1:1'")
	checkWorld(t, h, o, openUntil(t, tg))

	o2 := o
	o2.Subscription = "second"
	if err := Prepare(testCtx(t), o2); err != nil {
		t.Fatal(err)
	}
	_, err = historyTarget(t, h, o2, 0).Open(testCtx(t))
	dtxtest.WantError(t, err, dtx.ClassStop, "max_prepared_transactions = 1", "2 subscriptions")
}

// The decision is durable whatever the server's default.
func TestSynchronousCommit(t *testing.T) {
	coordinator, dbs := sharedDatabases(t, 1)
	o := testOptions(coordinator, dbs)
	h := history{seed: 13, shards: 1}
	prepareHistory(t, h, o)
	for set, want := range map[string]string{"off": "local", "on": "on", "remote_apply": "remote_apply"} {
		execSQL(t, coordinator, fmt.Sprintf("DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET synchronous_commit = %s', current_database()); END $$", set))
		tg := historyTarget(t, h, o, 0)
		openUntil(t, tg)
		rows, err := tg.co.Query(testCtx(t), "SHOW synchronous_commit")
		if err != nil || string(rows[0][0]) != want {
			t.Errorf("synchronous_commit is %s with default %s (%v), want %s", rows, set, err, want)
		}
		closeTarget(t, tg)
	}
}

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		o     Options
		parts []string
	}{
		{Options{}, []string{"3 problems", `subscription name ""`, "coordinator database's connection string is missing", "0 shards"}},
		{Options{Options: ledger.Options{Subscription: "Upper"}, Coordinator: "x", Shards: []string{"", "host=a"}}, []string{`subscription name "Upper"`, "connection string of shard 0 is missing"}},
		{Options{Options: ledger.Options{Subscription: strings.Repeat("a", 64), LockWait: -1}, Coordinator: "x", Shards: []string{"host=a"}}, []string{"1 to 63", "lock wait is -1ns"}},
		{
			Options{Options: ledger.Options{Subscription: "a"}, Coordinator: "postgres://u:canary/pw@h/d", Shards: []string{"host=a port=canary"}},
			[]string{"the connection string of the coordinator database cannot be parsed", "the connection string of the shard 0 cannot be parsed", "percent-encoded"},
		},
	} {
		_, err := New(c.o)
		dtxtest.WantError(t, err, dtx.ClassStop, c.parts...)
		if strings.Contains(err.Error(), "canary") {
			t.Errorf("the error holds a piece of the connection string: %v", err)
		}
	}
}
