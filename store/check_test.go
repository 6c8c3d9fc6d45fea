package store

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cbrepl/check"
)

// What Open would refuse is found without opening, and nothing is made.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	full := filepath.Join(dir, "full")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(full, "other"), 0o700); err != nil {
		t.Fatal(err)
	}
	used := filepath.Join(dir, "used")
	s, err := Open(context.Background(), Options{Dir: used, Subscription: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for _, tc := range []struct {
		dir, sub string
		max      int64
		level    check.Level
		want     string
	}{
		{filepath.Join(dir, "new", "deep"), "mine", 1 << 20, check.OK, "free"},
		{used, "mine", 1 << 20, check.OK, "free"},
		{used, "other", 1 << 20, check.Error, `belongs to subscription "mine", not "other"`},
		{full, "mine", 1 << 20, check.Error, "holds other files (other) and no spool"},
		{file, "mine", 1 << 20, check.Error, "not a directory"},
		{filepath.Join(file, "below"), "mine", 1 << 20, check.Error, "not a directory"},
		{used, "mine", 1 << 60, check.Warning, "spool.max_bytes allows"},
		{used, "mine", 1, check.Error, "below one block"},
	} {
		fs := Check(Options{Dir: tc.dir, Subscription: tc.sub, MaxBytes: tc.max})
		if len(fs) != 1 || fs[0].Level != tc.level || !strings.Contains(fs[0].Found, tc.want) || tc.level != check.OK && fs[0].Level == check.Warning && fs[0].Remedy == "" {
			t.Errorf("%s: %v, want %s with %q", tc.dir, fs, tc.level, tc.want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); !os.IsNotExist(err) {
		t.Errorf("the check made a directory: %v", err)
	}
}
