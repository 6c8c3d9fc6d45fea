package config

import (
	"fmt"
	"strconv"
	"strings"
)

// Bytes is a size in bytes. In files it is a number or a number with a unit:
// kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024).
type Bytes int64

var units = []struct {
	suffix string
	size   int64
}{
	{"kib", 1 << 10},
	{"mib", 1 << 20},
	{"gib", 1 << 30},
	{"tib", 1 << 40},
	{"kb", 1e3},
	{"mb", 1e6},
	{"gb", 1e9},
	{"tb", 1e12},
	{"b", 1},
}

// ParseBytes reads a size.
func ParseBytes(s string) (Bytes, error) {
	num, mult := strings.ToLower(strings.TrimSpace(s)), int64(1)
	for _, u := range units {
		if rest, ok := strings.CutSuffix(num, u.suffix); ok {
			num, mult = strings.TrimSpace(rest), u.size
			break
		}
	}
	n, err := strconv.ParseInt(num, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a size: want a whole number with an optional unit, such as 64MiB or 8GB", s)
	}
	if mult > 1 && n > (1<<62)/mult {
		return 0, fmt.Errorf("%q is too large", s)
	}
	return Bytes(n * mult), nil
}

// String prints the size in the largest binary unit that divides it.
func (b Bytes) String() string {
	for i := 3; i >= 0; i-- {
		if u := units[i]; int64(b) >= u.size && int64(b)%u.size == 0 {
			return strconv.FormatInt(int64(b)/u.size, 10) + []string{"KiB", "MiB", "GiB", "TiB"}[i]
		}
	}
	return strconv.FormatInt(int64(b), 10)
}
