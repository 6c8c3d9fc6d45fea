package conformance

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cbrepl/apply"
	"cbrepl/dtx"
	"cbrepl/router"
)

// testFirstCopy fills tables with a loader as a plan of them says, and lets a stream
// pass the cut.
func testFirstCopy(t *testing.T, f Fixture) {
	hash, all := intKey("copied"), intKey("copied_all")
	all.Kind, all.SourceReplicated = router.Replicated, true
	parts := &Table{
		Name: "copied_seq", Columns: []Column{{Name: "id", Type: "bigint"}, {Name: "n", Type: "serial", TargetOnly: true}}, Key: []string{"id"}, Dist: []string{"id"},
	}
	w := newWorld(t, f, apply.ConflictStop, hash, all, parts)
	tg := w.tg.(apply.CopyTarget)
	for i := range 200 {
		for _, tab := range []*Table{hash, all} {
			w.src.Insert(tab, V(strconv.Itoa(i), "1", "tab\tline\n"))
		}
		w.src.Insert(parts, V(strconv.Itoa(i)))
	}
	w.src.Commit()
	cut := apply.Cut{}
	for c, l := range w.src.moved {
		if c != dtx.Coordinator {
			cut.Positions = append(cut.Positions, dtx.Position{Content: c, LSN: l})
		}
	}
	dtx.SortPositions(cut.Positions)
	l := tg.NewLoader()
	defer l.Close()
	ctx := testCtx(t)
	var records []apply.TableCopy
	for _, tab := range w.tables {
		src := tab.Source()
		plan, err := tg.CopyPlan(src.QualifiedName())
		if err != nil {
			t.Fatal(err)
		}
		lines := make([]bytes.Buffer, len(plan.Segments))
		for _, row := range w.src.Rows(tab) {
			var line []byte
			var key [][]byte
			for i, name := range plan.Columns {
				at := slices.IndexFunc(tab.Published(), func(c Column) bool { return c.Name == name })
				if i > 0 {
					line = append(line, '\t')
				}
				line = append(line, escaper.Replace(*row[at])...)
				if i < plan.Key {
					key = append(key, []byte(*row[at]))
				}
			}
			place := plan.Fixed
			if plan.Key > 0 {
				if place, err = plan.Place(key); err != nil {
					t.Fatal(err)
				}
			}
			for i := range lines {
				if place == i || place == apply.Everywhere {
					lines[i].Write(append(line, '\n'))
				}
			}
		}
		for i, seg := range plan.Segments {
			want := int64(bytes.Count(lines[i].Bytes(), []byte{'\n'}))
			for range 2 { // filled, emptied and filled again
				if err := l.Empty(ctx, seg, plan.Table); err != nil {
					t.Fatal(err)
				}
				if holds, err := l.HoldsRows(ctx, seg, plan.Table); holds || err != nil {
					t.Fatalf("an emptied table holds rows: %t, %v", holds, err)
				}
				if n, err := l.Load(ctx, seg, plan.Table, plan.Cols, bytes.NewReader(lines[i].Bytes())); err != nil || n != want {
					t.Fatalf("loaded %d rows of %d, %v", n, want, err)
				}
			}
			if err := l.Analyze(ctx, seg, plan.Table); err != nil {
				t.Fatal(err)
			}
			for _, c := range []string{"n", "id"} { // id owns none
				if plan.Table.Column(c) >= 0 {
					if err := l.SetSequence(ctx, seg, plan.Table, c, 777, true); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		c := cut
		if tab.SourceReplicated {
			c.Positions = cut.Positions[:1]
		}
		records = append(records, apply.TableCopy{Table: src.QualifiedName(), State: apply.Copied, Cut: c, Rows: 200, StartedAt: time.Unix(1000, 0), FinishedAt: time.Unix(2000, 0)})
	}
	w.check()
	if err := tg.RecordCopies(ctx, records); err != nil {
		t.Fatal(err)
	}
	// What the copies hold comes once more, with more behind it.
	w.open()
	if len(w.state.Copies) != 3 || w.state.Copies[0].Rows != 200 {
		t.Errorf("recorded %+v", w.state.Copies)
	}
	w.src.Insert(hash, V("1000", "1", "x"))
	w.src.Update(hash, w.src.Find(hash, "5"), V("5", "2", "y"))
	w.src.Delete(all, w.src.Find(all, "6"))
	w.commit()
	w.src.Truncate(0, hash)
	w.src.Insert(hash, V("7", "1", "z"))
	w.commit()

	// A process that was replaced commits nothing.
	f.Sever(t, w.opts.Subscription)
	old := l
	fresh := tg.NewLoader()
	defer fresh.Close()
	rival := f.Target(t, w.opts)
	defer func() { _ = rival.Close() }()
	if _, err := openUntil(t, rival); err != nil {
		t.Fatal(err)
	}
	src := hash.Source()
	plan, err := tg.CopyPlan(src.QualifiedName())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []apply.Loader{old, fresh} {
		row := fmt.Sprintf("%d\t1\tx\n", 5000)
		if n, err := l.Load(ctx, plan.Segments[0], plan.Table, plan.Cols, bytes.NewBufferString(row)); err == nil {
			t.Errorf("a loader of the old daemon inserted %d rows", n)
		}
	}
	if err := tg.RecordCopies(ctx, records); err == nil {
		t.Error("the old daemon recorded copies")
	}
	w.check()
}

// escaper writes a value as a field of COPY text.
var escaper = strings.NewReplacer("\\", `\\`, "\n", `\n`, "\t", `\t`, "\r", `\r`)
