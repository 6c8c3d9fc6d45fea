package apply

import (
	"testing"

	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
)

// A target that is behind what was recorded of it is refused, with both batches.
func TestCheckRecord(t *testing.T) {
	for name, c := range map[string]struct {
		st   State
		r    Record
		want []string
	}{
		"nothing recorded": {State{}, Record{}, nil},
		"the same":         {State{Initialized: true, Token: "t", Batch: 7}, Record{"t", 7}, nil},
		"the record lags":  {State{Initialized: true, Token: "t", Batch: 7}, Record{"t", 6}, nil},
		"before the start": {State{Token: "t"}, Record{"t", 7}, []string{"up to batch 7", "has no positions"}},
		"another record":   {State{Initialized: true, Token: "u", Batch: 7}, Record{"t", 7}, []string{"prepared again", "up to batch 7"}},
		"an older batch":   {State{Initialized: true, Token: "t", Batch: 6}, Record{"t", 7}, []string{"at batch 6", "the spool has seen", "batch 7", "older state"}},
	} {
		err := c.st.CheckRecord(c.r, "the spool")
		if c.want == nil {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		dtxtest.WantError(t, err, dtx.ClassStop, c.want...)
	}
}
