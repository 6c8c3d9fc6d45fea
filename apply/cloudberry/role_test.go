package cloudberry

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply"
	"cbrepl/apply/conformance"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
	"cbrepl/lab/clustertest"
)

// asRole makes a role without privileges and a connection string for it.
func (w *world) asRole(t *testing.T) (role, dsn string) {
	t.Helper()
	role = fmt.Sprintf("cbrepl_role_%d_%d", os.Getpid(), schemas)
	w.exec("CREATE ROLE " + role + " LOGIN")
	t.Cleanup(func() {
		w.exec("DROP OWNED BY " + role + "; DROP ROLE " + role)
	})
	cfg, err := pgconn.ParseConfig(w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	dsn = fmt.Sprintf("host=%s port=%d user=%s dbname=%s sslmode=disable", cfg.Host, cfg.Port, role, cfg.Database)
	if _, err := clustertest.TryQuery(dsn, "SELECT 1"); err != nil {
		t.Skipf("NOT RUN: the cluster lets no new role in without a password: %v", err)
	}
	return role, dsn
}

// documentedGrants is the block of docs/target-cloudberry.md.
func documentedGrants(t *testing.T, role, schema, table, database string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/target-cloudberry.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "<!-- grants")
	_, rest, ok2 := strings.Cut(rest, "```sql\n")
	block, _, ok3 := strings.Cut(rest, "```")
	if !ok || !ok2 || !ok3 {
		t.Fatal("the documentation has no block of grants")
	}
	return strings.NewReplacer("cbrepl_apply", role, "app.orders", schema+"."+table, "SCHEMA app ", "SCHEMA "+schema+" ",
		"DATABASE warehouse", "DATABASE "+database).Replace(block)
}

// The documented grants, and nothing more, let a role that is no superuser do
// everything; each of them is needed.
func TestGrants(t *testing.T) {
	w := newWorld(t)
	w.exec(`CREATE TABLE $S.orders (id bigint PRIMARY KEY, a integer, b text) DISTRIBUTED BY (id)`)
	tab := w.table("orders", []string{"id"}, "id bigint", "a integer", "b text")
	w.opts.Tables = sources([]*conformance.Table{tab})
	if err := Prepare(testCtx(t), w.opts); err != nil {
		t.Fatal(err)
	}
	role, dsn := w.asRole(t)
	w.opts.Coordinator = dsn
	tg := w.target()
	if err := checked(t, tg); err == nil {
		t.Fatal("a role without privileges passes the check")
	} else {
		dtxtest.WantError(t, err, dtx.ClassStop, "docs/target-cloudberry.md")
	}
	grants := documentedGrants(t, role, w.schema, "orders", w.one("SELECT current_database()"))
	lines := strings.Split(strings.TrimSpace(grants), "\n")
	last := lines[len(lines)-1]
	w.exec(strings.Join(lines[:len(lines)-1], "\n"))
	dtxtest.WantError(t, checked(t, tg), dtx.ClassStop, "lacks SELECT, INSERT, UPDATE, DELETE, TRUNCATE", "GRANT SELECT, INSERT")
	w.exec(last)

	src := conformance.NewSource(3, tab)
	w.open(tg)
	streams, positions := src.First()
	if err := tg.Init(testCtx(t), apply.Beginning{Streams: streams, Positions: positions}); err != nil {
		t.Fatal(err)
	}
	for i := range 6000 {
		src.Insert(tab, conformance.V(num(i), "1", "b"))
	}
	w.apply(tg, src)
	for i := range 5000 { // through a stage table
		src.Update(tab, i, conformance.V(num(i), "2", ""), 2)
	}
	src.Delete(tab, 5500)
	src.Update(tab, 5600, conformance.V("99999", "1", "moved"))
	src.Commit()
	b := src.Batch()
	for g := range 20 {
		b.DedupAdd = append(b.DedupAdd, dtx.DedupEntry{GXID: dtx.GXID(1000 + g)})
	}
	if _, err := tg.Apply(testCtx(t), b, src); err != nil {
		t.Fatal(err)
	}
	if tg.Stats().Staged == 0 {
		t.Error("no stage table was used")
	}
	src.Truncate(0, tab)
	src.Insert(tab, conformance.V("1", "1", "b"))
	src.Commit()
	b = src.Batch()
	b.DedupDrop = []dtx.GXID{1000, 1001}
	if _, err := tg.Apply(testCtx(t), b, src); err != nil {
		t.Fatal(err)
	}
	w.open(tg)
	if got := w.one("SELECT string_agg(id::text, ',') FROM $S.orders"); got != "1" {
		t.Errorf("rows %s", got)
	}
}

// Where the role may, triggers and rules stay silent, in worker processes started
// later, too. Where it may not, they are a finding at start that can be overruled.
func TestTriggers(t *testing.T) {
	w := newWorld(t)
	w.exec(`CREATE TABLE $S.t (id bigint PRIMARY KEY, a integer) DISTRIBUTED BY (id);
		CREATE FUNCTION $S.boom() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'fired'; END $$;
		CREATE TRIGGER boom BEFORE INSERT ON $S.t FOR EACH ROW EXECUTE PROCEDURE $S.boom()`)
	tab := w.table("t", []string{"id"}, "id bigint", "a integer")
	src := conformance.NewSource(3, tab)
	tg := w.start(src, tab)
	n := 0
	insert := func() error {
		for range 5 {
			src.Insert(tab, conformance.V(num(n), "1"))
			n++
		}
		src.Commit()
		_, err := tg.Apply(testCtx(t), src.Batch(), src)
		return err
	}
	if err := insert(); err != nil {
		t.Fatal(err)
	}
	// Worker processes that are replaced while the session is idle do not get all of
	// its settings.
	sess := w.one("SELECT sess_id FROM pg_stat_activity WHERE application_name = 'cbrepl:" + w.opts.Subscription + "'")
	w.query("SELECT pg_terminate_backend(pid) FROM gp_dist_random('pg_stat_activity') WHERE sess_id = " + sess)
	for ctx := testCtx(t); tg.srv.Exec(ctx, "SELECT count(*) FROM "+w.schema+".t") != nil; {
		if ctx.Err() != nil || tg.srv.Conn.IsClosed() {
			t.Fatal("the session does not get new worker processes")
		}
	}
	lost := w.query("SELECT 1 FROM pg_stat_activity WHERE application_name = 'cbrepl:" + w.opts.Subscription + "' AND sess_id <> " + sess)
	t.Logf("session %s goes on with new workers, renamed: %t", sess, len(lost) > 0)
	if err := insert(); err != nil {
		t.Fatalf("after the worker processes were renewed: %v", err)
	}
	_ = tg.Close()

	role, dsn := w.asRole(t)
	w.exec(documentedGrants(t, role, w.schema, "t", w.one("SELECT current_database()")))
	w.opts.Coordinator = dsn
	tg = w.target()
	_, err := tg.Open(testCtx(t))
	dtxtest.WantError(t, err, dtx.ClassStop, "session_replication_role", w.schema+".t (trigger boom)", "apply.fire_triggers")
	w.opts.FireTriggers = true
	tg = w.target()
	w.open(tg)
	err = insert()
	dtxtest.WantError(t, err, dtx.ClassStop, w.schema+".t", "a function on the target raised an error")
	_ = tg.Close()
	w.exec("ALTER TABLE $S.t DISABLE TRIGGER boom")
	w.opts.FireTriggers = false
	tg = w.target() // nothing would fire now
	w.open(tg)
	if _, err := tg.Apply(testCtx(t), &dtx.Batch{Seq: 3}, src); err != nil {
		t.Fatal(err)
	}
}
