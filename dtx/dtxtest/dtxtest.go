// Package dtxtest checks errors in tests.
package dtxtest

import (
	"errors"
	"strings"
	"testing"

	"cbrepl/dtx"
)

// WantError checks that err is a *dtx.Error of the class and says every part.
func WantError(t testing.TB, err error, class dtx.Class, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one about %q", parts)
	}
	var de *dtx.Error
	if !errors.As(err, &de) {
		t.Fatalf("error %v is no *dtx.Error", err)
	}
	if dtx.ClassOf(err) != class {
		t.Errorf("class of %q is %d, want %d", err, dtx.ClassOf(err), class)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error does not say %q: %v", p, err)
		}
	}
}
