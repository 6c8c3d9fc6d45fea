//go:build unix

package router

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"
)

// cpuTime is the processor time of the process: on a busy machine it says more
// than the clock.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchRouter routes by columns of the named types over 3 segments.
func benchRouter(b *testing.B, opclass string, types ...string) *Router {
	b.Helper()
	p := Policy{Kind: Hash, NumSegments: 3}
	for i, name := range types {
		t, err := ParseType(name)
		if err != nil {
			b.Fatal(err)
		}
		oc, err := NamedOpclass(t, opclass)
		if err != nil {
			b.Fatal(err)
		}
		p.Columns = append(p.Columns, Column{Name: fmt.Sprint("c", i), Type: t, Opclass: oc})
	}
	r, err := New(p)
	if err != nil {
		b.Fatal(err)
	}
	return r
}

const benchKeys = 1024

// run routes keys in turn and reports keys per second of processor time.
func run(b *testing.B, r *Router, key func(i int) [][]byte) {
	keys := make([][][]byte, benchKeys)
	for i := range keys {
		keys[i] = key(i)
	}
	b.ReportAllocs()
	i := 0
	start := cpuTime(b)
	for b.Loop() {
		if _, err := r.Segment(keys[i%benchKeys]); err != nil {
			b.Fatal(err)
		}
		i++
	}
	b.ReportMetric(float64(b.N)/(cpuTime(b)-start).Seconds()/1e6, "Mkeys/cpu-s")
}

func BenchmarkInt8(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	run(b, benchRouter(b, "", "int8"), func(int) [][]byte {
		return [][]byte{fmt.Append(nil, int64(r.Uint64())>>r.IntN(64))}
	})
}

func BenchmarkInt8Wide(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	run(b, benchRouter(b, "", "int8"), func(int) [][]byte {
		return [][]byte{fmt.Append(nil, r.Int64()|1<<62)}
	})
}

func BenchmarkTextInt4(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	run(b, benchRouter(b, "", "text", "int4"), func(i int) [][]byte {
		return [][]byte{fmt.Appendf(nil, "customer-%08d", r.IntN(1e8)), fmt.Append(nil, r.IntN(1e6))}
	})
}

func BenchmarkTypes(b *testing.B) {
	for _, c := range []struct {
		name, opclass string
		types         []string
		values        []string
	}{
		{"uuid", "", []string{"uuid"}, []string{"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}},
		{"numeric", "", []string{"numeric"}, []string{"123456.7800"}},
		{"timestamptz", "", []string{"timestamptz"}, []string{"2026-11-30 01:57:26.123456+05:30"}},
		{"float8", "", []string{"float8"}, []string{"123456789.12345679"}},
		{"jsonb", "", []string{"jsonb"}, []string{`{"a": 1, "b": [1, 2, {"c": "d"}], "cc": "e\"f"}`}},
		{"text[]", "", []string{"text[]"}, []string{`{a,"b c","d\"e",NULL}`}},
		{"daterange", "", []string{"daterange"}, []string{"[2020-01-01,2021-01-01)"}},
		{"legacy text,int4", "cdbhash", []string{"text", "int4"}, []string{"customer-00001234", "123456"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			key := make([][]byte, len(c.values))
			for i, v := range c.values {
				key[i] = []byte(v)
			}
			run(b, benchRouter(b, c.opclass, c.types...), func(int) [][]byte { return key })
		})
	}
}
