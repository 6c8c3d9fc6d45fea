package cloudberry

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply"
	"cbrepl/apply/conformance"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
	"cbrepl/faultinject"
)

// throughProxy makes a target whose connection can be cut.
func throughProxy(t *testing.T, w *world) *proxy {
	t.Helper()
	cfg, err := pgconn.ParseConfig(w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	p := startProxy(t, fmt.Sprintf("%s:%d", cfg.Host, cfg.Port))
	host, port, _ := strings.Cut(p.ln.Addr().String(), ":")
	w.opts.Coordinator = fmt.Sprintf("host=%s port=%s user=%s dbname=%s sslmode=disable", host, port, cfg.User, cfg.Database)
	return p
}

// A connection lost while committing leaves the outcome to the next Open, which
// reads it from the target: applied or not, never twice, never lost.
func TestOutcomeUnknown(t *testing.T) {
	w := newWorld(t)
	p := throughProxy(t, w)
	w.exec("CREATE TABLE $S.t (id bigint PRIMARY KEY, a integer) DISTRIBUTED BY (id)")
	tab := w.table("t", []string{"id"}, "id bigint", "a integer")
	src := conformance.NewSource(3, tab)
	tg := w.start(src, tab)
	id := 0
	batch := func() *dtx.Batch {
		for range 5 {
			id++
			src.Insert(tab, conformance.V(num(id), "1"))
		}
		src.Commit()
		return src.Batch()
	}
	rows := func(want int) {
		t.Helper()
		if got := w.one("SELECT count(*) FROM $S.t"); got != num(want) {
			t.Fatalf("%s rows, want %d", got, want)
		}
	}
	for _, m := range []cut{beforeCommit, afterCommit, afterCommit, beforeCommit} {
		b := batch()
		p.set(m)
		_, err := tg.Apply(testCtx(t), b, src)
		dtxtest.WantError(t, err, dtx.ClassRetry, "did not confirm the commit", "next open")
		st := w.open(tg)
		if m == afterCommit && st.Batch != b.Seq || m == beforeCommit && st.Batch != b.Seq-1 {
			t.Fatalf("cut %d: batch %d was sent, the target records %d", m, b.Seq, st.Batch)
		}
		if st.Batch < b.Seq {
			rows(id - 5)
			if _, err := tg.Apply(testCtx(t), b, src); err != nil {
				t.Fatal(err)
			}
		}
		rows(id)
	}
	if got := tg.Stats().Unknown; got != 4 {
		t.Errorf("%d outcomes unknown, want 4", got)
	}
}

// A batch behind a raised epoch, and one of a subscription that was dropped and
// prepared again, write nothing at all.
func TestFence(t *testing.T) {
	w := newWorld(t)
	w.exec("CREATE TABLE $S.t (id bigint PRIMARY KEY, a integer) DISTRIBUTED BY (id)")
	tab := w.table("t", []string{"id"}, "id bigint", "a integer")
	src := conformance.NewSource(3, tab)
	tg := w.start(src, tab)
	sub := w.opts.Subscription
	for i, change := range []string{
		"UPDATE cbrepl.subscription SET epoch = epoch + 1 WHERE name = '" + sub + "'",
		"UPDATE cbrepl.subscription SET token = '00000000-0000-0000-0000-000000000001' WHERE name = '" + sub + "'",
		"UPDATE cbrepl.subscription SET batch = batch + 1 WHERE name = '" + sub + "'",
		"DELETE FROM cbrepl.subscription WHERE name = '" + sub + "'",
	} {
		w.exec("DROP TABLE IF EXISTS $S.saved; CREATE TABLE $S.saved AS SELECT * FROM cbrepl.subscription DISTRIBUTED BY (name)")
		src.Insert(tab, conformance.V(num(i), "1"))
		src.Commit()
		b := src.Batch()
		w.exec(change)
		_, err := tg.Apply(testCtx(t), b, src)
		dtxtest.WantError(t, err, dtx.ClassRetry, "epoch", "nothing is written")
		if got := w.one("SELECT count(*) FROM $S.t"); got != num(i) {
			t.Fatalf("after %q: %s rows", change, got)
		}
		w.exec("DELETE FROM cbrepl.subscription WHERE name = '" + sub + "'; INSERT INTO cbrepl.subscription SELECT * FROM $S.saved WHERE name = '" + sub + "'")
		if st := w.open(tg); st.Batch != b.Seq-1 {
			t.Fatalf("batch %d", st.Batch)
		}
		if _, err := tg.Apply(testCtx(t), b, src); err != nil {
			t.Fatal(err)
		}
	}
}

// A fault at any point leaves the batch wholly applied or not at all.
func TestFaultPoints(t *testing.T) {
	w := newWorld(t)
	w.exec("CREATE TABLE $S.t (id bigint PRIMARY KEY, a integer) DISTRIBUTED BY (id)")
	tab := w.table("t", []string{"id"}, "id bigint", "a integer")
	src := conformance.NewSource(3, tab)
	tg := w.start(src, tab)
	defer func() { _ = faultinject.Arm("") }()
	for i, point := range []string{"cloudberry.before_begin", "cloudberry.before_commit", "cloudberry.after_commit"} {
		src.Insert(tab, conformance.V(num(i), "1"))
		src.Commit()
		b := src.Batch()
		if err := faultinject.Arm(point + "=error"); err != nil {
			t.Fatal(err)
		}
		if _, err := tg.Apply(testCtx(t), b, src); err == nil {
			t.Fatalf("%s: no error", point)
		}
		_ = faultinject.Arm("")
		st := w.open(tg)
		if done := st.Batch == b.Seq; done != (point == "cloudberry.after_commit") {
			t.Fatalf("%s: the target records batch %d of %d", point, st.Batch, b.Seq)
		} else if !done {
			if _, err := tg.Apply(testCtx(t), b, src); err != nil {
				t.Fatal(err)
			}
		}
		if got := w.one("SELECT count(*) FROM $S.t"); got != num(i+1) {
			t.Fatalf("%s: %s rows, want %d", point, got, i+1)
		}
	}
	for _, point := range []string{"cloudberry.open_after_lock", "cloudberry.open_after_epoch"} {
		_ = faultinject.Arm(point + "=error")
		if _, err := tg.Open(testCtx(t)); err == nil {
			t.Fatalf("%s: no error", point)
		}
		_ = faultinject.Arm("")
		w.open(tg)
	}
}

// The worker process of a segment that dies under a batch is a passing fault.
func TestSegmentProcessDies(t *testing.T) {
	w := newWorld(t)
	w.exec("CREATE TABLE $S.t (id bigint PRIMARY KEY, a integer) DISTRIBUTED BY (id)")
	tab := w.table("t", []string{"id"}, "id bigint", "a integer")
	src := conformance.NewSource(3, tab)
	tg := w.start(src, tab)
	for i := range 100 {
		src.Insert(tab, conformance.V(num(i), "1"))
	}
	w.apply(tg, src)
	sess := w.one("SELECT sess_id FROM pg_stat_activity WHERE application_name = 'cbrepl:" + w.opts.Subscription + "'")
	for i := range 100 {
		src.Update(tab, i, conformance.V(num(i), "2"))
	}
	src.Commit()
	b := src.Batch()
	read := 0
	src.OnRow = func() {
		if read++; read == 50 {
			if got := w.query("SELECT pg_terminate_backend(pid) FROM gp_dist_random('pg_stat_activity') WHERE sess_id = " + sess); len(got) == 0 {
				t.Error("no worker process found")
			}
		}
	}
	_, err := tg.Apply(testCtx(t), b, src)
	src.OnRow = nil
	if err == nil { // the server made new ones in time: before the transaction touched them
		t.Log("the batch went through")
	} else {
		dtxtest.WantError(t, err, dtx.ClassRetry)
		w.open(tg)
		if _, err := tg.Apply(testCtx(t), b, src); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.one("SELECT count(*) FROM $S.t WHERE a = 2"); got != "100" {
		t.Fatalf("%s rows updated", got)
	}
}

// Other writers and cbrepl do not deadlock, and a lock that is held too long is a
// passing fault that names the table.
func TestLocks(t *testing.T) {
	w := newWorld(t)
	w.opts.LockTimeout = 300e6
	w.exec("CREATE TABLE $S.t (id bigint PRIMARY KEY, a integer) DISTRIBUTED BY (id)")
	tab := w.table("t", []string{"id"}, "id bigint", "a integer")
	src := conformance.NewSource(3, tab)
	tg := w.start(src, tab)
	src.Insert(tab, conformance.V("1", "1"))
	w.apply(tg, src)
	src.Update(tab, 0, conformance.V("1", "2"))
	w.apply(tg, src) // from here on the table is known to be updated

	other, err := pgconn.Connect(testCtx(t), w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close(testCtx(t)) }()
	hold := func(sql string) {
		t.Helper()
		if err := other.Exec(testCtx(t), "BEGIN; "+strings.ReplaceAll(sql, "$S", w.schema)).Close(); err != nil {
			t.Fatal(err)
		}
	}
	hold("INSERT INTO $S.t VALUES (1000, 1)")
	for i := range 10 {
		src.Insert(tab, conformance.V(num(10+i), "1"))
	}
	src.Commit()
	b := src.Batch()
	// A COPY alone would not wait for the other's INSERT; the stronger lock is
	// taken at once instead of second.
	_, err = tg.Apply(testCtx(t), b, src)
	dtxtest.WantError(t, err, dtx.ClassRetry, w.schema+".t", "55P03")
	if err := other.Exec(testCtx(t), "ROLLBACK").Close(); err != nil {
		t.Fatal(err)
	}
	w.open(tg)
	if _, err := tg.Apply(testCtx(t), b, src); err != nil {
		t.Fatal(err)
	}
}

// A table that changes between batches bites no statement: none is kept, and where a
// column may have changed the catalogue is read again.
func TestChangesOfTables(t *testing.T) {
	w := newWorld(t)
	w.exec("CREATE TABLE $S.t (id bigint PRIMARY KEY, a integer, b text) DISTRIBUTED BY (id)")
	tab := w.table("t", []string{"id"}, "id bigint", "a integer", "b text")
	src := conformance.NewSource(3, tab)
	tg := w.start(src, tab)
	n := 0
	step := func() {
		t.Helper()
		for range 3 {
			src.Insert(tab, conformance.V(num(n), "1", "b"))
			n++
		}
		if n > 3 {
			for i := range 3 {
				src.Update(tab, i, conformance.V(num(i), num(n), "u"))
			}
			src.Delete(tab, 3)
		}
		w.apply(tg, src)
	}
	step()
	for _, ddl := range []string{
		"ALTER TABLE $S.t ADD extra integer DEFAULT 5", "ALTER TABLE $S.t ALTER a TYPE bigint", "ALTER TABLE $S.t DROP extra",
		"CREATE INDEX ON $S.t (a)", "ALTER TABLE $S.t ALTER b TYPE varchar", "ANALYZE $S.t",
	} {
		w.exec(ddl)
		if strings.HasPrefix(ddl, "ALTER") {
			w.open(tg)
		}
		step()
	}
	if got := w.one("SELECT count(*) FROM $S.t"); got != num(len(src.Rows(tab))) {
		t.Errorf("%s rows, the source has %d", got, len(src.Rows(tab)))
	}
	// A column that is gone stops, opening names it, and the rest stays as it was.
	w.exec("ALTER TABLE $S.t DROP b")
	src.Insert(tab, conformance.V("9999", "1", "b"))
	src.Commit()
	_, err := tg.Apply(testCtx(t), src.Batch(), src)
	dtxtest.WantError(t, err, dtx.ClassStop, "42703", w.schema+".t", `column "b" of relation "t" does not exist`)
	_, err = tg.Open(testCtx(t))
	dtxtest.WantError(t, err, dtx.ClassStop, `"b" is missing on the target`)
}

var _ apply.Target = (*Target)(nil)
