package source

import (
	"errors"

	"cbrepl/check"
	"cbrepl/dtx"
)

// findingOf turns an error of a connection into a finding at its node.
func findingOf(c dtx.Content, err error) check.Finding {
	f := check.Finding{Content: dtx.AtContent(c), Passing: dtx.ClassOf(err) == dtx.ClassRetry}
	var de *dtx.Error
	if !errors.As(err, &de) {
		f.Found = err.Error()
		return f
	}
	e := *de
	f.Remedy, e.Hint, e.Content = e.Hint, "", dtx.OptionalContent{}
	f.Found = e.Error()
	return f
}
