package lab

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// What one test leaves in its database, the next one does not see.
func TestDatabaseIsCleared(t *testing.T) {
	srv := shared.Server(t)
	ctx := testCtx(t)
	name := newDatabase(t, srv, "used")
	fresh := contentsOf(t, srv.DSNFor(name))
	for i, tc := range []struct {
		left  string
		clean bool // and so used again
	}{
		{"select 1", true},
		{"create schema app; create table app.t (id int primary key, v text); create function app.f() returns int language sql as 'select 1'", true},
		{"create table t (a int); create type e as enum ('a'); revoke all on schema public from public; alter schema public rename to pub", true},
		{"create publication p for all tables; begin; create table x (a int); prepare transaction 'left'", true},
		{"select pg_create_logical_replication_slot('left', 'pgoutput')", true},
		{"select pg_create_logical_replication_slot('temporary', 'pgoutput', true); create temporary table mine (a int)", true},
		{"alter database %[1]s set default_transaction_read_only = on", true},
		{"alter database %[1]s set quote_all_identifiers = on; alter database %[1]s set search_path = nowhere", true},
		{`create function app() returns event_trigger language plpgsql as 'begin raise exception ''no'';end';
			create event trigger no on ddl_command_start execute function app()`, true},
		{"create cast (xid as int) without function", false},
		{"select lo_create(0)", false},
		{"alter role postgres in database %[1]s set work_mem = '1MB'", false},
		{"revoke execute on function pg_catalog.now() from public", false},
		{"revoke connect on database %[1]s from public", false},
	} {
		name := name
		if !tc.clean {
			name = newDatabase(t, srv, fmt.Sprintf("spoilt%d", i))
		}
		c, err := pgx.Connect(ctx, srv.DSNFor(name))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(ctx)
		left := tc.left
		if n := strings.Count(left, "%[1]s"); n > 0 {
			left = fmt.Sprintf(left, name)
		}
		for sql := range strings.SplitSeq(left, "; ") {
			if _, err := c.Exec(ctx, sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		clean, err := srv.clearDatabase(ctx, name)
		if err != nil || clean != tc.clean {
			t.Errorf("after %s: clean is %t, error %v", left, clean, err)
		}
		if err := c.Ping(ctx); err == nil {
			t.Errorf("after %s: the session is still there", left)
		}
		if after := contentsOf(t, srv.DSNFor(name)); tc.clean && after != fresh {
			t.Errorf("after %s the database has\n%s\nwant\n%s", left, after, fresh)
		}
	}
}

func newDatabase(t *testing.T, srv *Server, name string) string {
	t.Helper()
	if err := srv.Exec(testCtx(t), "create database "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.DropDatabase(testCtx(t), name); err != nil {
			t.Error(err)
		}
	})
	return name
}

// contentsOf describes what differs between databases.
func contentsOf(t *testing.T, dsn string) string {
	return queryOne[string](t, dsn, `select concat_ws(E'\n',
		(select string_agg(format('%s %s %s', nspname, nspowner::regrole, nspacl), ', ' order by nspname) from pg_namespace where nspname !~ 'temp'),
		(select string_agg(relname, ', ' order by relname) from pg_class where oid >= 16384),
		(select string_agg(slot_name, ', ') from pg_replication_slots where database = current_database()),
		(select string_agg(gid, ', ') from pg_prepared_xacts where database = current_database()),
		(select string_agg(extname || evtname, ', ') from pg_extension full join pg_event_trigger on false),
		current_setting('search_path'), current_setting('quote_all_identifiers'), current_setting('default_transaction_read_only'),
		(select obj_description(oid) from pg_namespace where nspname = 'public'))`)
}
