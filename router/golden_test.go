package router

import (
	"bufio"
	"os"
	"strconv"
	"testing"
)

// TestGolden checks placements and hashes read off Greenplum servers.
func TestGolden(t *testing.T) {
	for _, c := range []struct {
		file  string
		lines int
	}{{"cdbhash.jsonl", 2432}, {"legacy.jsonl", 985}} {
		t.Run(c.file, func(t *testing.T) { testGolden(t, "testdata/"+c.file, c.lines) })
	}
}

func testGolden(t *testing.T, file string, want int) {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	lines, placements, hashes := 0, 0, 0
	for sc.Scan() {
		lines++
		v, err := ParseVector(sc.Bytes())
		if err != nil {
			t.Fatalf("line %d: %v", lines, err)
		}
		res, err := v.Check()
		if err != nil || len(res.Mismatches) > 0 {
			t.Errorf("line %d: %s: %v %v", lines, sc.Text(), res.Mismatches, err)
			continue
		}
		placements += res.Placements
		hashes += res.Hashes
		checkSegments(t, v) // and by the way rows go
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	if lines != want {
		t.Errorf("%d lines, want %d", lines, want)
	}
	t.Logf("%d lines, %d placements, %d hashes", lines, placements, hashes)
}

// checkSegments routes the vector's row with a router of each cluster size.
func checkSegments(t *testing.T, v *Vector) {
	t.Helper()
	one, err := v.Router()
	if err != nil {
		t.Fatal(err)
	}
	key := make([][]byte, len(v.Key))
	for i, k := range v.Key {
		if k != nil {
			key[i] = []byte(*k)
		}
	}
	for seg, want := range v.Segment {
		p := one.Policy()
		p.NumSegments, _ = strconv.Atoi(seg)
		r, err := New(p)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := r.Segment(key); err != nil || int(got) != want {
			t.Errorf("%+v over %s: segment %d, %v, want %d", v, seg, got, err, want)
		}
	}
}
