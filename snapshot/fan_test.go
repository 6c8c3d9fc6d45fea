package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
	"cbrepl/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// spread sends lines through a fan and returns what each segment's load read.
func spread(t *testing.T, plan apply.CopyPlan, lines [][]byte, end error) ([][]byte, []error, int64) {
	t.Helper()
	plan.Table = &catalog.Table{Schema: "s", Name: "t"}
	got, errs := make([][]byte, len(plan.Segments)), make([]error, len(plan.Segments))
	var g errgroup.Group
	var sent int64
	f := newFan(t.Context(), &plan, func(i int, r io.Reader) {
		g.Go(func() error {
			got[i], errs[i] = io.ReadAll(r)
			return nil
		})
	}, func(rows, _ int64) { sent += rows })
	for _, l := range lines {
		if _, err := f.Write(l); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.flush(); err != nil {
		t.Fatal(err)
	}
	f.end(end)
	_ = g.Wait() // its functions return nil
	return got, errs, sent
}

// TestFan: each row goes to its place, whole and in order, through many chunks.
func TestFan(t *testing.T) {
	segments := []dtx.Content{0, 1, 2}
	var lines [][]byte
	var want [4][]byte // the last: all
	place := func(key [][]byte) (int, error) {
		if key[1] == nil {
			return 2, nil
		}
		n, err := strconv.Atoi(string(key[0]))
		if string(key[1]) != fmt.Sprintf("a\tb\\\v%d", n) {
			t.Errorf("the second value of row %d is read as %q", n, key[1])
		}
		return n % 2, err
	}
	for i := range 50_000 {
		l, at := fmt.Appendf(nil, "%d\ta\\tb\\\\\\v%d\trest\\n of it %d\n", i, i, i), i%2
		if i%7 == 0 {
			l, at = fmt.Appendf(nil, "%d\t\\N\tx\n", i), 2
		}
		lines = append(lines, l)
		want[at], want[3] = append(want[at], l...), append(want[3], l...)
	}
	got, _, sent := spread(t, apply.CopyPlan{Segments: segments, Key: 2, Place: place}, lines, nil)
	for i := range segments {
		if !bytes.Equal(got[i], want[i]) {
			t.Errorf("segment %d got %d bytes, want %d", i, len(got[i]), len(want[i]))
		}
	}
	if sent != int64(len(lines)) {
		t.Errorf("%d rows counted", sent)
	}
	got, _, sent = spread(t, apply.CopyPlan{Segments: segments, Fixed: apply.Everywhere}, lines, nil)
	for i := range segments {
		if !bytes.Equal(got[i], want[3]) {
			t.Errorf("segment %d of a replicated table got %d bytes, want %d", i, len(got[i]), len(want[3]))
		}
	}
	if sent != int64(len(lines)) {
		t.Errorf("%d rows counted", sent)
	}
	got, _, _ = spread(t, apply.CopyPlan{Segments: segments[:1]}, lines, nil)
	if !bytes.Equal(got[0], want[3]) {
		t.Errorf("one segment got %d bytes, want %d", len(got[0]), len(want[3]))
	}
	got, errs, _ := spread(t, apply.CopyPlan{Segments: segments}, nil, nil)
	if len(got[0]) != 0 || errs[0] != nil {
		t.Error("a load without rows")
	}
	// Rows that end early are no end of the rows.
	_, errs, _ = spread(t, apply.CopyPlan{Segments: segments[:1]}, lines[:10], errors.New("lost"))
	if !errors.Is(errs[0], errSource) {
		t.Errorf("the load ends with %v", errs[0])
	}
}

// TestFanErrors: a row without its key is refused, and a load that has ended does not
// block the reader.
func TestFanErrors(t *testing.T) {
	plan := apply.CopyPlan{Table: &catalog.Table{Schema: "s", Name: "t"}, Segments: []dtx.Content{0}, Key: 2, Place: func([][]byte) (int, error) { return 0, nil }}
	ctx, cancel := context.WithCancel(t.Context())
	f := newFan(ctx, &plan, func(int, io.Reader) {}, func(int64, int64) {}) // nobody reads
	_, err := f.Write([]byte("only one\n"))
	dtxtest.WantError(t, err, dtx.ClassStop, "s.t", "1 columns, want at least 2")
	large := bytes.Repeat([]byte("x\ty\n"), maxChunk)
	for range queueChunks {
		if _, err := f.Write(large); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if _, err := f.Write(large); !errors.Is(err, context.Canceled) {
		t.Errorf("writing without a reader: %v", err)
	}
	f.end(nil)
}

// TestInTurns: pieces of different contents take turns, those of one stay in order.
func TestInTurns(t *testing.T) {
	var tb Table
	var tasks []task
	for _, c := range []dtx.Content{0, 0, 0, 1, 2, 2} {
		tasks = append(tasks, task{table: &tb, piece: source.Piece{Content: c, From: int64(len(tasks))}})
	}
	var got []int64
	for _, tk := range inTurns(tasks) {
		got = append(got, tk.piece.From)
	}
	if want := []int64{0, 3, 4, 1, 5, 2}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}
