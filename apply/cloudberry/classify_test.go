package cloudberry

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/apply/ledger"
	"cbrepl/dtx"
)

func TestClassify(t *testing.T) {
	for code, want := range map[string]dtx.Class{
		"08006": dtx.ClassRetry, "57P01": dtx.ClassRetry, "57P02": dtx.ClassRetry, "57P03": dtx.ClassRetry, "57014": dtx.ClassRetry,
		"58M01": dtx.ClassRetry, "XX000": dtx.ClassRetry, "40001": dtx.ClassRetry, "40P01": dtx.ClassRetry, "55P03": dtx.ClassRetry,
		"53300": dtx.ClassRetry, "53400": dtx.ClassRetry, "CBF01": dtx.ClassRetry, "25P03": dtx.ClassRetry,
		"53100": dtx.ClassStop, "22P02": dtx.ClassStop, "23505": dtx.ClassStop, "42P01": dtx.ClassStop, "42501": dtx.ClassStop,
		"0A000": dtx.ClassStop, "0AM01": dtx.ClassStop, "22M01": dtx.ClassStop, "28P01": dtx.ClassStop, "XX001": dtx.ClassStop,
	} {
		if got := faults.Class(fmt.Errorf("x: %w", &pgconn.PgError{Code: code})); got != want {
			t.Errorf("class of %s is %d, want %d", code, got, want)
		}
	}
	if faults.Class(io.ErrUnexpectedEOF) != dtx.ClassRetry {
		t.Error("a lost connection is not retried")
	}
}

// Internal errors are retried a few times, then stop.
func TestInternalErrorsAreBounded(t *testing.T) {
	tg, err := New(Options{Options: ledger.Options{Subscription: "x"}, Coordinator: "host=h"})
	if err != nil {
		t.Fatal(err)
	}
	fault := fail(opApply, "", &pgconn.PgError{Code: "XX000", Message: "gang was lost"})
	for i := range maxInternal {
		if got := tg.bounded(fault); dtx.ClassOf(got) != dtx.ClassRetry {
			t.Fatalf("internal error %d stops", i+1)
		}
	}
	if got := tg.bounded(fault); dtx.ClassOf(got) != dtx.ClassStop || !strings.Contains(got.Error(), "6 times") {
		t.Errorf("internal errors without end: %v", got)
	}
	if got := tg.bounded(fail(opApply, "", &pgconn.PgError{Code: "58M01"})); dtx.ClassOf(got) != dtx.ClassRetry {
		t.Errorf("a segment that is down: %v", got)
	}
}

func TestOptions(t *testing.T) {
	o := Options{Options: ledger.Options{Subscription: "Not good"}}
	o.EnsureDefaults()
	o.LockWait = -1
	err := o.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"subscription name", "coordinator", "lock wait"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
}
