package shards

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply/conformance"
)

// TestValueSettings: no default of the database changes what a shard's session makes
// of a value's text.
func TestValueSettings(t *testing.T) {
	dsn := shared.Database(t)
	ctx := testCtx(t)
	connect := func() *pgconn.PgConn {
		conn, err := pgconn.Connect(ctx, dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
	admin := connect()
	exec := func(sql string) {
		if err := admin.Exec(ctx, sql).Close(); err != nil {
			t.Fatal(err)
		}
	}
	exec("CREATE SCHEMA meaning; DO $$BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET search_path = meaning, public'; END$$")
	pinned := func() *pgconn.PgConn {
		n, err := newNode("shard 0", 0, dsn)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.connect(ctx, "test"); err != nil {
			t.Fatal(err)
		}
		if err := n.prepareSession(ctx, settings{statement: time.Minute, lock: time.Minute, idle: time.Minute}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.close)
		return n.Conn
	}
	alter := func(action string) {
		exec("DO $$BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' " + action + "'; END$$")
	}
	conformance.ValueSettings(t, "meaning", connect, pinned,
		func(name, value string) { alter("SET " + name + " = " + strings.ReplaceAll(value, "'", "''")) },
		func(name string) {
			if name == "search_path" {
				alter("SET search_path = meaning, public")
				return
			}
			alter("RESET " + name)
		})
}
