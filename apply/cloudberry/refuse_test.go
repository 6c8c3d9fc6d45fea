package cloudberry

import (
	"strings"
	"testing"

	"cbrepl/apply/conformance"
	"cbrepl/apply/ledger"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
	"cbrepl/lab"
	"cbrepl/lab/clustertest"
	"cbrepl/router"
)

// Tables that rows cannot be written to are refused by name, all at once.
func TestRefusedTables(t *testing.T) {
	w := newWorld(t)
	w.exec(`CREATE TABLE $S.base (id bigint PRIMARY KEY, a integer) DISTRIBUTED BY (id);
		CREATE VIEW $S.looks AS SELECT * FROM $S.base;
		CREATE EXTERNAL WEB TABLE $S.ext (id bigint, a integer) EXECUTE 'echo 1' ON ALL FORMAT 'TEXT'`)
	var tables []*conformance.Table
	w.exec("CREATE TABLE $S.later (id bigint PRIMARY KEY DEFERRABLE, a integer) DISTRIBUTED BY (id)")
	for _, n := range []string{"looks", "ext", "absent", "later"} {
		tables = append(tables, w.table(n, []string{"id"}, "id bigint", "a integer"))
	}
	w.opts.Tables = sources(tables)
	if err := Prepare(testCtx(t), w.opts); err != nil {
		t.Fatal(err)
	}
	_, err := w.target().Open(testCtx(t))
	dtxtest.WantError(t, err, dtx.ClassStop, w.schema+".looks", "it is a view", w.schema+".ext", "external table",
		w.schema+".absent", w.schema+".later", "is deferrable", "4 problems")
}

// What differs from the source's columns is refused, and so is a type that would
// change values.
func TestRefusedColumns(t *testing.T) {
	w := newWorld(t)
	w.exec(`CREATE TABLE $S.a (id bigint PRIMARY KEY, v varchar(5), extra integer NOT NULL) DISTRIBUTED BY (id)`)
	w.opts.Tables = sources([]*conformance.Table{w.table("a", []string{"id"}, "id bigint", "v text", "w text")})
	if err := Prepare(testCtx(t), w.opts); err != nil {
		t.Fatal(err)
	}
	err := checked(t, w.target())
	dtxtest.WantError(t, err, dtx.ClassStop, `"v" is text on the source`, "character varying(5)")
	w.exec(`ALTER TABLE $S.a ALTER v TYPE text`)
	err = checked(t, w.target())
	dtxtest.WantError(t, err, dtx.ClassStop, `"w" is missing`, `"extra" exists on the target only`)
}

// A type of the same name that is made of other things than the source's is refused.
func TestTypesOfOneName(t *testing.T) {
	w := newWorld(t)
	w.exec(`CREATE TYPE $S.pair AS (b integer, a integer); CREATE TABLE $S.t (id bigint PRIMARY KEY, p $S.pair) DISTRIBUTED BY (id)`)
	src := w.table("t", []string{"id"}, "id bigint", "p text").Source()
	integer, _ := router.BuiltinType(23)
	src.Columns[1].TypeName = w.schema + ".pair"
	src.Columns[1].Type = &router.Type{
		Name: w.schema + ".pair", Kind: router.CompositeType, Fields: []*router.Type{integer, integer},
		Attributes: []router.Attribute{{Name: "a", TypeName: "integer"}, {Name: "b", TypeName: "integer"}},
	}
	w.opts.Tables = []catalog.PublishedTable{src}
	if err := Prepare(testCtx(t), w.opts); err != nil {
		t.Fatal(err)
	}
	err := checked(t, w.target())
	dtxtest.WantError(t, err, dtx.ClassStop, `column "p" is `+w.schema+".pair", "are (a, b) and (b, a)")
	w.exec("ALTER TYPE $S.pair DROP ATTRIBUTE b, ADD ATTRIBUTE b integer")
	if err := checked(t, w.target()); err != nil {
		t.Error(err)
	}
}

func TestNotPrepared(t *testing.T) {
	w := newWorld(t)
	if w.one("SELECT count(*) FROM pg_namespace WHERE nspname = 'cbrepl'") == "1" {
		// Other tests have prepared the database: this subscription is not known.
		_, err := w.target().Open(testCtx(t))
		dtxtest.WantError(t, err, dtx.ClassStop, "knows no subscription", "cbrepl target prepare")
		return
	}
	_, err := w.target().Open(testCtx(t))
	dtxtest.WantError(t, err, dtx.ClassStop, "has not been prepared", "cbrepl.subscription", "cbrepl target prepare")
}

// A server of another kind, a segment, and a database in another encoding are told
// apart before anything is written.
func TestRefusedServers(t *testing.T) {
	w := newWorld(t)
	open := func(dsn string) error {
		o := w.opts
		o.Coordinator = dsn
		tg, err := New(o)
		if err != nil {
			return err
		}
		defer func() { _ = tg.Close() }()
		_, err = tg.Open(testCtx(t))
		return err
	}
	seg := w.query(`SELECT address, port, current_user FROM gp_segment_configuration WHERE content = 0 AND role = 'p'`)[0]
	db := w.one("SELECT current_database()")
	option := "gp_session_role"
	if !w.old {
		option = "gp_role"
	}
	err := open("host=" + *seg[0] + " port=" + *seg[1] + " user=" + *seg[2] + " dbname=" + db + " sslmode=disable options='-c " + option + "=utility'")
	dtxtest.WantError(t, err, dtx.ClassStop, "utility", "Connect to the coordinator")

	dsn := clustertest.DSNs(t)[0]
	clustertest.Exec(t, dsn, "CREATE DATABASE cbrepl_latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
	defer clustertest.Exec(t, dsn, "DROP DATABASE cbrepl_latin")
	dtxtest.WantError(t, open(clustertest.WithDatabase(t, dsn, "cbrepl_latin")), dtx.ClassStop, "encoding LATIN1", "ENCODING 'UTF8'")

	dtxtest.WantError(t, open("host=127.0.0.1 port=1 user=x dbname=x password=hunter2"), dtx.ClassRetry, "127.0.0.1:1")
	dtxtest.WantError(t, open(clustertest.WithDatabase(t, dsn, "no_such_database")), dtx.ClassStop, "no_such_database", "Create the database")
	if err := open("postgres://u:hunter2@h:bad/db"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a bad connection string: %v", err)
	}
}

func TestRefusedPostgreSQL(t *testing.T) {
	srv := lab.ServerForTest(t, lab.Options{})
	tg, err := New(Options{Options: ledger.Options{Subscription: "x"}, Coordinator: srv.DSN()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tg.Close() }()
	_, err = tg.Open(testCtx(t))
	dtxtest.WantError(t, err, dtx.ClassStop, "is not a Cloudberry or Greenplum server", "target.kind")
}

// checked is what keeps a target from being used.
func checked(t *testing.T, tg *Target) error {
	t.Helper()
	_, r := tg.Check(testCtx(t))
	return r.Err("check target")
}
