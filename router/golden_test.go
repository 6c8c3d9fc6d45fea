package router

import (
	"bufio"
	"encoding/json"
	"os"
	"strconv"
	"testing"
)

// vector is a line of testdata/cdbhash.jsonl: placements read off a Greenplum
// cluster of eight primaries.
type vector struct {
	Types   []string       `json:"types"`
	Opclass []string       `json:"opclass"`
	Key     []*string      `json:"key"`
	Segment map[string]int `json:"segment"`
	Hash    *uint32        `json:"hash"`
}

// router builds the policy of a vector for n segments.
func (v *vector) router(n int) (*Router, error) {
	p := Policy{Kind: Hash, NumSegments: n}
	for i, name := range v.Types {
		t, err := ParseType(name)
		if err != nil {
			return nil, err
		}
		opclass, err := NamedOpclass(t, v.Opclass[i])
		if err != nil {
			return nil, err
		}
		p.Columns = append(p.Columns, Column{Name: "c" + strconv.Itoa(i+1), Type: t, Opclass: opclass})
	}
	return New(p)
}

func (v *vector) key() [][]byte {
	key := make([][]byte, len(v.Key))
	for i, k := range v.Key {
		if k != nil {
			key[i] = []byte(*k)
		}
	}
	return key
}

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
		var v vector
		if err := json.Unmarshal(sc.Bytes(), &v); err != nil {
			t.Fatalf("line %d: %v", lines, err)
		}
		for seg, want := range v.Segment {
			n, _ := strconv.Atoi(seg)
			r, err := v.router(n)
			if err != nil {
				t.Fatalf("line %d: %v", lines, err)
			}
			got, err := r.Segment(v.key())
			if err != nil {
				t.Errorf("line %d: %s: %v", lines, sc.Text(), err)
				break
			}
			if int(got) != want {
				t.Errorf("line %d: %s over %d: segment %d, want %d", lines, sc.Text(), n, got, want)
			}
			placements++
		}
		if v.Hash != nil {
			r, _ := v.router(1)
			e, err := r.Explain(v.key())
			if err != nil || e.Columns[0].Hash != *v.Hash {
				t.Errorf("line %d: %s: hash %v, want %d (%v)", lines, sc.Text(), e, *v.Hash, err)
			}
			hashes++
		}
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	if lines != want {
		t.Errorf("%d lines, want %d", lines, want)
	}
	t.Logf("%d lines, %d placements, %d hashes", lines, placements, hashes)
}
