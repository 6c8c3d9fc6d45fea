package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Vector is a key with the placement that a server gave it: one line of a
// vector file (testdata/README.md describes the format).
type Vector struct {
	// Types are the SQL types of the key columns, Opclass the words default or
	// cdbhash, or names of operator classes.
	Types   []string `json:"types"`
	Opclass []string `json:"opclass"`
	// Key holds the columns' values as text, nil for NULL; timestamps and times
	// without an offset are UTC.
	Key []*string `json:"key"`
	// Segment maps numsegments to the content that owns the row.
	Segment map[string]int `json:"segment"`
	// Hash is the hash of the only column alone, where it was read.
	Hash *uint32 `json:"hash"`
}

// VectorResult is what checking a Vector found.
type VectorResult struct {
	Placements, Hashes int // compared
	Mismatches         []Mismatch
}

// Mismatch is a difference between a vector and the router.
type Mismatch struct {
	NumSegments        int // 0: the column's hash
	Expected, Computed int64
}

// Check compares the vector with the router. The error tells that it cannot be
// checked: a type the router does not know, a value it cannot read, a malformed
// line.
func (v *Vector) Check() (res VectorResult, err error) {
	if len(v.Types) == 0 || len(v.Opclass) != len(v.Types) || len(v.Key) != len(v.Types) {
		return res, fmt.Errorf("%d types, %d operator classes, %d values: want as many of each, at least one", len(v.Types), len(v.Opclass), len(v.Key))
	}
	if len(v.Segment) == 0 && v.Hash == nil {
		return res, errors.New("neither segment nor hash is given")
	}
	if v.Hash != nil && len(v.Types) != 1 {
		return res, errors.New("hash is given for a key of several columns")
	}
	segments := map[int]int{}
	for s, want := range v.Segment {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > MaxSegments {
			return res, fmt.Errorf("%q is not a number of segments between 1 and %d", s, MaxSegments)
		}
		segments[n] = want
	}
	r, err := v.Router()
	if err != nil {
		return res, err
	}
	key := make([][]byte, len(v.Key))
	for i, k := range v.Key {
		if k == nil {
			continue
		}
		if key[i], err = StoredText(v.Types[i], *k); err != nil {
			return res, err
		}
	}
	e, err := r.Explain(key)
	if err != nil {
		return res, err
	}
	if v.Hash != nil {
		res.Hashes++
		if got := e.Columns[0].Hash; got != *v.Hash {
			res.Mismatches = append(res.Mismatches, Mismatch{0, int64(*v.Hash), int64(got)})
		}
	}
	for _, n := range slices.Sorted(maps.Keys(segments)) {
		res.Placements++
		if got := e.Segment(n); int(got) != segments[n] {
			res.Mismatches = append(res.Mismatches, Mismatch{n, int64(segments[n]), int64(got)})
		}
	}
	return res, nil
}

// Router makes a router for the vector's key, over one segment.
func (v *Vector) Router() (*Router, error) {
	p := Policy{Kind: Hash, NumSegments: 1, AssumeUTC: true}
	for i, name := range v.Types {
		t, err := ParseType(name)
		if err != nil {
			return nil, err
		}
		opclass, err := NamedOpclass(t, v.Opclass[i])
		if err != nil {
			return nil, err
		}
		p.Columns = append(p.Columns, Column{Name: strconv.Itoa(i + 1), Type: t, Opclass: opclass})
	}
	return New(p)
}

// ParseVector reads one line.
func ParseVector(line []byte) (*Vector, error) {
	v := new(Vector)
	if err := json.Unmarshal(line, v); err != nil {
		return nil, fmt.Errorf("not a vector: %w", err)
	}
	return v, nil
}

// StoredText turns a value typed for a column of the named type into the text
// that the server would print for it: blanks pad character(n). It refuses a
// value that the type's modifier would change in any other way.
func StoredText(typeName, text string) ([]byte, error) {
	mod, kind := modifier(typeName)
	if len(mod) == 0 {
		return []byte(text), nil
	}
	n := mod[0]
	var fits bool
	switch kind {
	case "bpchar":
		for length := utf8.RuneCountInString(text); length < n; length++ {
			text += " "
		}
		fits = utf8.RuneCountInString(strings.TrimRight(text, " ")) <= n && utf8.RuneCountInString(text) == n
	case "varchar":
		fits = utf8.RuneCountInString(text) <= n
	case "bit":
		fits = len(text) == n
	case "varbit":
		fits = len(text) <= n
	case "numeric":
		scale := 0
		if len(mod) > 1 {
			scale = mod[1]
		}
		fits = decimals(text) <= scale || floatText(text)
	default: // a precision of seconds
		fits = decimals(text) <= n
	}
	if !fits {
		return nil, fmt.Errorf("the value does not fit type %s as it is: give it as the server prints it", typeName)
	}
	return []byte(text), nil
}

// modifier splits "numeric(10,2)" into its numbers and the pg_type name of what
// they modify; arrays are left alone.
func modifier(typeName string) (mod []int, kind string) {
	open, end := strings.IndexByte(typeName, '('), strings.IndexByte(typeName, ')')
	if open < 0 || end < open || strings.HasSuffix(typeName, "]") {
		return nil, ""
	}
	for f := range strings.SplitSeq(typeName[open+1:end], ",") {
		n, err := strconv.Atoi(strings.TrimSpace(f))
		if err != nil {
			return nil, ""
		}
		mod = append(mod, n)
	}
	t, err := ParseType(typeName)
	if err != nil {
		return nil, ""
	}
	return mod, builtinByOID(t.OID).typname
}

// decimals counts the digits that matter behind the decimal point.
func decimals(text string) int {
	_, frac, _ := strings.Cut(text, ".")
	n := 0
	for n < len(frac) && frac[n]-'0' <= 9 {
		n++
	}
	if strings.ContainsAny(text, "eE") {
		return n + numericMaxFrac // an exponent: too clever to be text of a server
	}
	return len(strings.TrimRight(frac[:n], "0"))
}

func floatText(text string) bool {
	_, ok := floatWord([]byte(text))
	return ok
}
