package lab

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

var shared Shared

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

func testCtx(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// queryOne reads one value.
func queryOne[T any](t *testing.T, dsn, sql string, args ...any) T {
	t.Helper()
	ctx := testCtx(t)
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	var v T
	if err := c.QueryRow(ctx, sql, args...).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestSourceNodesDiffer(t *testing.T) {
	src := shared.Source(t)
	ids := map[int64]string{}
	for _, n := range src.Nodes() {
		id := queryOne[int64](t, n.DSN(), "select system_identifier from pg_control_system()")
		if other, ok := ids[id]; ok {
			t.Errorf("%s and %s share system identifier %d", n.Name(), other, id)
		}
		ids[id] = n.Name()
		if v := queryOne[string](t, n.DSN(), "show wal_level"); v != "logical" {
			t.Errorf("wal_level is %s", v)
		}
	}
	if len(ids) != 4 {
		t.Errorf("%d nodes, want 4", len(ids))
	}
}

func TestDatabase(t *testing.T) {
	dsn := shared.Database(t)
	if n := queryOne[int](t, dsn, "select 1"); n != 1 {
		t.Fatal(n)
	}
	queryOne[string](t, dsn, "select slot_name from pg_create_logical_replication_slot('x', 'pgoutput')")
}
