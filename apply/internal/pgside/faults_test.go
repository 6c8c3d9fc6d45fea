package pgside

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply"
	"cbrepl/dtx"
)

// What a server reports about rows is printed without their values, whatever the
// server's language and whoever made the message.
func TestServerErrorHidesValues(t *testing.T) {
	for _, c := range []struct {
		pg   pgconn.PgError
		want string
	}{
		{
			pgconn.PgError{Code: "22P02", Message: `invalid input syntax for type integer: "canary"`, Where: `COPY t, line 3, column b: "canary, c: canary"`},
			`a value cannot be read as its type, column "b" (SQLSTATE 22P02)`,
		},
		{
			pgconn.PgError{Code: "22P02", Message: "ungültige Eingabesyntax für Typ integer: »canary«", Where: "COPY t, Zeile 3, Spalte b: »canary«"},
			`a value cannot be read as its type, column "b" (SQLSTATE 22P02)`,
		},
		{
			pgconn.PgError{Code: "22P02", Message: "syntaxe en entrée invalide pour le type integer : « canary »", Where: "COPY t, ligne 3 : « canary, canary »"},
			`a value cannot be read as its type (SQLSTATE 22P02)`,
		},
		{
			pgconn.PgError{Code: "22003", Message: "値\"canary\"は型integerの範囲外です"},
			`a number is out of range (SQLSTATE 22003)`,
		},
		{
			pgconn.PgError{Code: "23505", Message: "duplicate key value violates unique constraint \"t_pkey\"", Detail: "Key (id)=(canary) already exists.", ConstraintName: "t_pkey"},
			`a unique constraint is violated, constraint "t_pkey" (SQLSTATE 23505)`,
		},
		{
			pgconn.PgError{Code: "23502", Message: "el valor nulo en la columna «b» viola la restricción de no nulo", Detail: "La fila que falla contiene (canary).", ColumnName: "b"},
			`NULL in a NOT NULL column, column "b" (SQLSTATE 23502)`,
		},
		{
			pgconn.PgError{Code: "42601", Message: "canary"}, // EXECUTE in a function, or RAISE
			"the server refused the statement; its message can hold row values and is only in its log (SQLSTATE 42601)",
		},
		// What names a type or a table by a value has no place in the statement.
		{pgconn.PgError{Code: "42704", Message: `type "canary" does not exist`}, "the server refused the statement; its message can hold row values and is only in its log (SQLSTATE 42704)"},
		{pgconn.PgError{Code: "42P01", Message: `relation "canary" does not exist`}, "a table does not exist (SQLSTATE 42P01)"},
		{pgconn.PgError{Code: "42703", Message: `column "canary" does not exist`, Where: "PL/pgSQL function f() line 1 at EXECUTE"}, "a column does not exist (SQLSTATE 42703)"},
		{pgconn.PgError{Code: "42703", Message: `column "canary" does not exist`, InternalQuery: "SELECT canary", InternalPosition: 8}, "a column does not exist (SQLSTATE 42703)"},
		// A statement's own text is shown.
		{pgconn.PgError{Code: "42703", Message: `column "b" of relation "t" does not exist`}, `column "b" of relation "t" does not exist (SQLSTATE 42703)`},
		{pgconn.PgError{Code: "42P01", Message: `relation "app.t" does not exist`, Position: 13}, `relation "app.t" does not exist (SQLSTATE 42P01)`},
		{pgconn.PgError{Code: "P0001", Message: "no canary allowed"}, "a function on the target raised an error (SQLSTATE P0001)"},
		{
			pgconn.PgError{Code: "AB123", Message: "canary  (seg12 canary pid=canary)"},
			"the server refused the statement; its message can hold row values and is only in its log (SQLSTATE AB123)",
		},
		{
			pgconn.PgError{Code: "AB123", Message: "canary  (seg12 slice1 10.0.0.7:6000 pid=77)"},
			"the server refused the statement; its message can hold row values and is only in its log, on seg12 (SQLSTATE AB123)",
		},
	} {
		err := new(Faults).WrapRows("apply batch", "shard 0", &c.pg)
		if got := err.(*dtx.Error).Err.Error(); got != c.want { //nolint:errorlint // WrapRows returns it bare
			t.Errorf("%s prints as %s, want %s", c.pg.Code, got, c.want)
		}
		if strings.Contains(err.Error(), "canary") {
			t.Errorf("%v holds a value", err)
		}
		var pg *pgconn.PgError
		if !errors.As(err, &pg) {
			t.Error("the server's own error is lost")
		}
	}
	// A statement without rows says what the server said.
	err := new(Faults).Wrap("open target", "shard 0", &pgconn.PgError{Code: "42P01", Message: `relation "x" does not exist`})
	if got := err.Error(); got != `open target: shard 0: relation "x" does not exist (SQLSTATE 42P01)` {
		t.Error(got)
	}
}

// Only a connection that broke is called lost.
func TestClean(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{io.ErrUnexpectedEOF, "the connection was lost: unexpected EOF"},
		{&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}, "the connection was lost: read tcp: connection reset by peer"},
		{fmt.Errorf("receive: %w", context.DeadlineExceeded), "no answer in time: receive: context deadline exceeded"},
		{context.Canceled, "stopped: context canceled"},
		{errors.New("cannot encode parameter 2"), "cannot encode parameter 2"},
	} {
		if got := Clean(c.err, false).Error(); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}

func TestClass(t *testing.T) {
	f := Faults{Passing: []string{StateInternal, "53100"}}
	for code, want := range map[string]dtx.Class{
		"08006": dtx.ClassRetry, "57P01": dtx.ClassRetry, "57P03": dtx.ClassRetry, "40001": dtx.ClassRetry, "40P01": dtx.ClassRetry,
		"55000": dtx.ClassRetry, "55006": dtx.ClassRetry, "55P03": dtx.ClassRetry, "53300": dtx.ClassRetry, "53200": dtx.ClassRetry,
		"57014": dtx.ClassRetry, "25006": dtx.ClassRetry, "25P03": dtx.ClassRetry, "58030": dtx.ClassRetry,
		"53100": dtx.ClassStop, "22P02": dtx.ClassStop, "23505": dtx.ClassStop, "42P01": dtx.ClassStop, "42501": dtx.ClassStop, "0A000": dtx.ClassStop,
		"28P01": dtx.ClassStop, "28000": dtx.ClassStop, "3D000": dtx.ClassStop, "XX000": dtx.ClassStop, "P0001": dtx.ClassStop, "54000": dtx.ClassStop,
		// What no PostgreSQL server sends.
		"": dtx.ClassRetry, "5": dtx.ClassRetry, "XX": dtx.ClassRetry, "23505x": dtx.ClassRetry,
	} {
		err := fmt.Errorf("x: %w", &pgconn.PgError{Code: code})
		if got := new(Faults).Class(err); got != want {
			t.Errorf("class of %q is %d, want %d", code, got, want)
		}
		if code == "53100" || code == StateInternal {
			want = dtx.ClassRetry
		}
		if got := f.Class(err); got != want {
			t.Errorf("class of %q is %d where some states pass, want %d", code, got, want)
		}
	}
	if new(Faults).Class(io.ErrUnexpectedEOF) != dtx.ClassRetry {
		t.Error("a lost connection does not retry")
	}
}

// Faults of the data name the row and hold no value; others are no faults of it.
func TestData(t *testing.T) {
	f := Faults{Hints: map[string]string{StateDiskFull: "make room"}}
	err := f.Data("apply rows", &pgconn.PgError{
		Code: "22P02", Message: `invalid input syntax for integer: "hun"ter2"  (seg1 10.0.0.1:6001 pid=5)`,
		Detail: "hunter2", Where: `COPY t, line 7, column a: "hunter2, line 9"`, SchemaName: "app", TableName: "t",
	})
	var data *apply.DataError
	if !errors.As(err, &data) || data.Row != 6 || data.Duplicate {
		t.Fatalf("%#v", err)
	}
	if s := err.Error(); strings.Contains(s, "ter2") || !strings.Contains(s, "seg1") || !strings.Contains(s, "22P02") || !strings.Contains(s, "table app.t") {
		t.Errorf("error text: %s", s)
	}
	err = f.Data("apply rows", &pgconn.PgError{Code: "23P01", ConstraintName: "c"})
	if !errors.As(err, &data) || data.Row != -1 || !data.Duplicate || data.Constraint != "c" {
		t.Errorf("%#v", err)
	}
	for _, code := range []string{"53100", "2", "23"} {
		err = f.Data("apply rows", &pgconn.PgError{Code: code, Message: "text"})
		if errors.As(err, &data) {
			t.Errorf("%q is a fault of the data", code)
		}
	}
	if err := f.Data("apply rows", &pgconn.PgError{Code: StateDiskFull}); !strings.Contains(err.Error(), "make room") {
		t.Errorf("no hint in %v", err)
	}
	if err := f.Data("apply rows", io.ErrUnexpectedEOF); !strings.Contains(err.Error(), "connection was lost") {
		t.Errorf("%v", err)
	}
}

// A server that refuses says why; one that cannot be reached has its own hint.
func TestConnect(t *testing.T) {
	f := Faults{Hints: map[string]string{"28P01": "check the password"}, Unreachable: "check the port"}
	if err := f.Connect("connect to target", "shard 1", &pgconn.PgError{Code: "28P01"}); dtx.ClassOf(err) != dtx.ClassStop || !strings.HasSuffix(err.Error(), "check the password") {
		t.Error(err)
	}
	if err := f.Connect("connect to target", "shard 1", io.EOF); dtx.ClassOf(err) != dtx.ClassRetry || !strings.HasSuffix(err.Error(), "check the port") {
		t.Error(err)
	}
}

func TestConfig(t *testing.T) {
	for _, dsn := range []string{"postgres://u:canary/pw@h/d", "host=a port=canary"} {
		_, err := Config("shard 1", dsn)
		if err == nil || dtx.ClassOf(err) != dtx.ClassStop || !strings.Contains(err.Error(), "shard 1") || strings.Contains(err.Error(), "canary") {
			t.Error(err)
		}
	}
	for dsn, want := range map[string]string{
		"postgres://u@[::1]:7/d":              "shard 1 ([::1]:7, database d)",
		"host=/run/pg port=7 dbname=d user=u": "shard 1 (socket /run/pg, port 7, database d)",
	} {
		cfg, err := Config("shard 1", dsn)
		if err != nil {
			t.Fatal(err)
		}
		if got := Place("shard 1", cfg); got != want {
			t.Errorf("%s is %s, want %s", dsn, got, want)
		}
	}
}
