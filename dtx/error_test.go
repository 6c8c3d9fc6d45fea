package dtx_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"cbrepl/dtx"
)

func TestClassOf(t *testing.T) {
	retry := &dtx.Error{Op: "apply batch", Class: dtx.ClassRetry, Err: io.EOF}
	stop := &dtx.Error{Op: "apply batch", Class: dtx.ClassStop}
	for _, c := range []struct {
		name string
		err  error
		want dtx.Class
	}{
		{"nil", nil, dtx.ClassRetry},
		{"without a class", io.ErrUnexpectedEOF, dtx.ClassRetry},
		{"wrapped, without a class", fmt.Errorf("read: %w", io.EOF), dtx.ClassRetry},
		{"retry", retry, dtx.ClassRetry},
		{"stop", stop, dtx.ClassStop},
		{"stop in words", fmt.Errorf("close: %w", stop), dtx.ClassStop},
		{"the outermost counts", &dtx.Error{Op: "open target", Class: dtx.ClassRetry, Err: stop}, dtx.ClassRetry},
		{"a join asks for a person when one error does", errors.Join(retry, io.EOF, stop), dtx.ClassStop},
		{"a join of passing faults", errors.Join(retry, io.EOF), dtx.ClassRetry},
		{"two causes in one sentence", fmt.Errorf("%w and %w", retry, stop), dtx.ClassStop},
	} {
		if got := dtx.ClassOf(c.err); got != c.want {
			t.Errorf("%s: class %d, want %d", c.name, got, c.want)
		}
	}
}

func TestErrorNamesContent(t *testing.T) {
	for _, c := range []struct {
		err  *dtx.Error
		want string
	}{
		{&dtx.Error{Op: "read stream"}, "read stream"},
		{&dtx.Error{Op: "read stream", Content: dtx.AtContent(0)}, "read stream (content 0)"},
		{&dtx.Error{Op: "read stream", Content: dtx.AtContent(dtx.Coordinator)}, "read stream (content -1)"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
