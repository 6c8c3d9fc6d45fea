package subscription

import (
	"errors"
	"fmt"
	"strings"

	"cbrepl/dtx"
)

// nameCulprit puts the batch's only transaction into an error that names none.
func nameCulprit(err error, gxids []dtx.GXID) error {
	out := dtx.Error{Op: "apply batch", Class: dtx.ClassStop, Err: err}
	var e *dtx.Error
	if errors.As(err, &e) {
		if e.GXID != 0 || len(gxids) == 0 {
			return err
		}
		out = *e
	}
	switch {
	case len(gxids) == 1:
		out.GXID = gxids[0]
	case len(gxids) > 1:
		words := make([]string, 0, 8)
		for _, g := range gxids[:min(len(gxids), 8)] {
			words = append(words, g.String())
		}
		if len(gxids) > 8 {
			words = append(words, fmt.Sprintf("%d more", len(gxids)-8))
		}
		out.Msg = strings.TrimPrefix(out.Msg+"; one of the transactions that can only be applied together: gxid "+strings.Join(words, ", "), "; ")
	}
	return &out
}
