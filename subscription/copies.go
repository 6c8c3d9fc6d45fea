package subscription

import (
	"fmt"
	"strings"

	"cbrepl/apply"
	"cbrepl/dtx"
)

// maxNamed bounds the tables that one message names.
const maxNamed = 10

// checkCopies refuses to stream into tables whose first copy was begun and is not
// finished: what they hold is not what any point of the source held.
func checkCopies(copies []apply.TableCopy) error {
	var open []string
	for i := range copies {
		if copies[i].State != apply.Copied {
			open = append(open, copies[i].Table.String())
		}
	}
	if len(open) == 0 {
		return nil
	}
	n := len(open)
	if n > maxNamed {
		open = append(open[:maxNamed], fmt.Sprintf("and %d more", n-maxNamed))
	}
	return &dtx.Error{
		Op: "start subscription", Class: dtx.ClassStop,
		Msg:  fmt.Sprintf("the first copy of %d tables is not finished: %s", n, strings.Join(open, ", ")),
		Hint: "Run `cbrepl init -c FILE` with this configuration: it keeps the tables that are copied and copies these",
	}
}
