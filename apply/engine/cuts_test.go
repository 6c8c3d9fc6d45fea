package engine

import (
	"slices"
	"testing"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
	"cbrepl/pgoutput"
	"cbrepl/router"
)

// copied makes f's engine anew for a table that was copied under a cut.
func (f *fixture) copied(t *testing.T, s *Stream, recorded []dtx.Position, cut ...dtx.Position) {
	t.Helper()
	s.SetCopies([]apply.TableCopy{{Table: f.src.QualifiedName(), State: apply.Copied, Cut: apply.Cut{Positions: cut}}}, recorded)
	var err error
	if f.e, err = New(apply.Options{}, apply.NameMap{}, []catalog.PublishedTable{f.src}, []*catalog.Table{f.tgt}, f.m.Segments(), s); err != nil {
		t.Fatal(err)
	}
}

// dtxOf is one dtx with a part per content, whose ends are ends.
func dtxOf(gxid dtx.GXID, barrier bool, rows memRows, ends []dtx.LSN, changes ...[]*pgoutput.Change) dtx.Step {
	step := dtx.Step{Barrier: barrier}
	for i := range changes {
		spool := dtx.SpoolID(100*uint64(gxid) + uint64(i))
		rows[spool] = changes[i]
		step.Parts = append(step.Parts, dtx.Part{GXID: gxid, Content: dtx.Content(i), EndLSN: ends[i], Spool: spool, Lowest: i == 0, Barrier: barrier})
	}
	return step
}

func at(lsns ...dtx.LSN) []dtx.Position {
	var out []dtx.Position
	for i, l := range lsns {
		out = append(out, dtx.Position{Content: dtx.Content(i), LSN: l})
	}
	return out
}

// TestCutSkips: what a first copy holds is left out per part, whichever side of the
// cut the other parts of its dtx are on, until the streams have passed the cut.
func TestCutSkips(t *testing.T) {
	f := newFixture(t, apply.Options{}, 2, 'd')
	var s Stream
	f.copied(t, &s, at(0x10, 0x10), at(0x100, 0x200)...)
	rows := memRows{}
	var steps []dtx.Step
	row := func(id string) []*pgoutput.Change { return changes(f.ins(id, "u"+id, "v", "b")) }
	steps = append(steps,
		dtxOf(1, false, rows, []dtx.LSN{0x100, 0x150}, row("1"), row("2")), // the copy has both: its last parts
		dtxOf(2, false, rows, []dtx.LSN{0x101, 0x200}, row("3"), row("4")), // on both sides
		dtxOf(3, false, rows, []dtx.LSN{0x120, 0x201}, row("5"), row("6"))) // behind it
	res, err := f.e.Apply(t.Context(), &dtx.Batch{Steps: steps}, rows, f.m)
	if err != nil || res.Rows != 3 {
		t.Fatalf("%d rows, %v", res.Rows, err)
	}
	var ids []string
	for _, l := range f.m.lines(f.tgt, false) {
		ids = append(ids, l[1:2])
	}
	if slices.Sort(ids); !slices.Equal(ids, []string{"3", "5", "6"}) {
		t.Errorf("applied %v", ids)
	}

	// One stream has passed, then both.
	s.Recorded(at(0x100, 0x1ff))
	if _, err := f.e.Apply(t.Context(), &dtx.Batch{Steps: []dtx.Step{dtxOf(4, false, rows, []dtx.LSN{0x90, 0x200}, row("7"), row("8"))}}, rows, f.m); err != nil {
		t.Fatal(err)
	}
	if len(f.m.lines(f.tgt, false)) != 4 || len(s.cuts) != 1 {
		t.Errorf("%d rows, %d cuts", len(f.m.lines(f.tgt, false)), len(s.cuts))
	}
	s.Recorded(at(0x100, 0x200))
	if len(s.cuts) != 0 {
		t.Error("a cut that was passed is kept")
	}
	// One that was passed before the start counts for nothing, nor does a copy that is not whole.
	f.copied(t, &s, at(0x100, 0x200), at(0x100, 0x200)...)
	if s.cuts != nil {
		t.Error("a cut that was passed is taken")
	}
	s.SetCopies([]apply.TableCopy{{Table: f.src.QualifiedName(), State: apply.Copying, Cut: apply.Cut{Positions: at(1, 1)}}}, nil)
	if s.cuts != nil {
		t.Error("the cut of a copy that is not finished is taken")
	}
}

// TestCutOfReplicated: of a table that the source replicates, the lowest content was
// copied; the other copies are still compared.
func TestCutOfReplicated(t *testing.T) {
	f := newFixture(t, apply.Options{}, 2, 'd')
	f.src.Policy.Kind = router.Replicated
	var s Stream
	f.copied(t, &s, nil, at(0x100)...)
	rows := memRows{}
	row := func(id string) []*pgoutput.Change { return changes(f.ins(id, "u"+id, "v", "b")) }
	res, err := f.e.Apply(t.Context(), &dtx.Batch{Steps: []dtx.Step{
		dtxOf(1, false, rows, []dtx.LSN{0x100, 0x500}, row("1"), row("1")),
		dtxOf(2, false, rows, []dtx.LSN{0x110, 0x90}, row("2"), row("2")),
	}}, rows, f.m)
	if err != nil || res.Rows != 1 {
		t.Fatalf("%d rows, %v", res.Rows, err)
	}
	_, err = f.e.Apply(t.Context(), &dtx.Batch{Steps: []dtx.Step{dtxOf(3, false, rows, []dtx.LSN{0x100, 0x500}, row("3"), row("4"))}}, rows, f.m)
	dtxtest.WantError(t, err, dtx.ClassStop, "content 1 sent other changes", "gxid 3")
}

// TestCutAndTruncate: a TRUNCATE that the copy holds is left out with the rows around
// it; one behind the cut is applied; one that would be both is refused.
func TestCutAndTruncate(t *testing.T) {
	f := newFixture(t, apply.Options{}, 2, 'd')
	var s Stream
	trunc := &pgoutput.Change{Row: pgoutput.Row{Type: pgoutput.TypeTruncate}, Relations: []*pgoutput.Relation{f.rel}}
	for _, c := range []struct {
		name string
		ends []dtx.LSN
		want int // rows afterwards, with the one that was there; -1: refused
	}{
		{"in the copy", []dtx.LSN{0x100, 0x200}, 1},
		{"behind it", []dtx.LSN{0x101, 0x201}, 2},
		{"on both sides", []dtx.LSN{0x100, 0x201}, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			f.m = newModel(2, f.tgt)
			f.copied(t, &s, nil, at(0x100, 0x200)...)
			rows := memRows{}
			there := dtxOf(1, false, rows, []dtx.LSN{0x101}, changes(f.ins("0", "u0", "v", "b")))
			if _, err := f.e.Apply(t.Context(), &dtx.Batch{Steps: []dtx.Step{there}}, rows, f.m); err != nil {
				t.Fatal(err)
			}
			part := func(id string) []*pgoutput.Change {
				return changes(f.ins("x"+id, "y"+id, "v", "b"), trunc, f.ins(id, "u"+id, "v", "b"))
			}
			_, err := f.e.Apply(t.Context(), &dtx.Batch{Steps: []dtx.Step{dtxOf(2, true, rows, c.ends, part("1"), part("2"))}}, rows, f.m)
			if c.want < 0 {
				dtxtest.WantError(t, err, dtx.ClassStop, "holds this TRUNCATE as content 0 ran it, and not as content 1", "gxid 2")
				return
			}
			if got := len(f.m.lines(f.tgt, false)); err != nil || got != c.want {
				t.Errorf("%d rows, %v", got, err)
			}
		})
	}
}
