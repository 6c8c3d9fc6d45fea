package apply

import (
	"testing"

	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
)

// A target that is behind what was recorded of it is refused, with both positions.
func TestCheckRecord(t *testing.T) {
	at := func(a, b dtx.LSN) []dtx.Position { return []dtx.Position{{Content: -1, LSN: a}, {Content: 0, LSN: b}} }
	st := State{Initialized: true, Token: "t", Batch: 7, Positions: at(0x100, 0x200)}
	for name, c := range map[string]struct {
		st   State
		r    Record
		want []string
	}{
		"nothing recorded":  {State{}, Record{}, nil},
		"the same":          {st, st.Record(), nil},
		"the record lags":   {st, Record{Token: "t", Batch: 6, Positions: at(0x80, 0x200)}, nil},
		"before the start":  {State{Token: "t"}, st.Record(), []string{"up to batch 7", "content 0 at 0/200", "has no positions"}},
		"another record":    {State{Initialized: true, Token: "u", Batch: 7, Positions: at(0x100, 0x200)}, st.Record(), []string{"prepared again", "up to batch 7"}},
		"an older position": {State{Initialized: true, Token: "t", Batch: 5, Positions: at(0x100, 0x180)}, st.Record(), []string{"content 0 up to 0/180 (batch 5)", "the spool knows", "0/200 (batch 7)"}},
		"a content is gone": {State{Initialized: true, Token: "t", Batch: 7, Positions: at(0x100, 0x200)[:1]}, st.Record(), []string{"content 0 up to 0/0"}},
		"an older batch":    {State{Initialized: true, Token: "t", Batch: 6, Positions: at(0x100, 0x200)}, st.Record(), []string{"at batch 6", "batch 7"}},
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
