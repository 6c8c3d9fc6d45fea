package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cbrepl/dtx"
)

// TestOpenRefuses lists what Open must refuse, and that it changes nothing then.
func TestOpenRefuses(t *testing.T) {
	ctx := context.Background()
	fresh := func(t *testing.T, o Options) string {
		dir := filepath.Join(t.TempDir(), "a", "spool")
		o.Dir = dir
		s, err := Open(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	for _, tc := range []struct {
		name  string
		setup func(t *testing.T) string
		o     Options
		want  []string
	}{
		{"other mode, applied", func(t *testing.T) string {
			return fresh(t, Options{Subscription: "s"})
		}, Options{Subscription: "s", Mode: Spooled}, []string{"ack mode applied, not spooled", "remove the directory"}},
		{"other mode, spooled", func(t *testing.T) string {
			return fresh(t, Options{Subscription: "s", Mode: Spooled})
		}, Options{Subscription: "s"}, []string{"ack mode spooled, not applied", "only copy"}},
		{"other subscription", func(t *testing.T) string {
			return fresh(t, Options{Subscription: "s"})
		}, Options{Subscription: "other"}, []string{`subscription "s", not "other"`}},
		{"newer format", func(t *testing.T) string {
			dir := fresh(t, Options{Subscription: "s"})
			if err := os.WriteFile(filepath.Join(dir, markerName), []byte("format 2\nmode applied\nsubscription \"s\"\nmore things\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			return dir
		}, Options{Subscription: "s"}, []string{"format 2", "up to 1"}},
		{"foreign marker", func(t *testing.T) string {
			dir := fresh(t, Options{Subscription: "s"})
			if err := os.WriteFile(filepath.Join(dir, markerName), []byte("hello"), 0o600); err != nil {
				t.Fatal(err)
			}
			return dir
		}, Options{Subscription: "s"}, []string{"not a spool's"}},
		{"foreign directory", func(t *testing.T) string {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "precious"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return dir
		}, Options{Subscription: "s"}, []string{"holds other files (precious)"}},
		{"a file", func(t *testing.T) string {
			path := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}, Options{}, []string{"not a directory"}},
		{
			"bad options", func(t *testing.T) string { return "" },
			Options{MemBytes: 1, MaxBytes: 1, Mode: 9},
			[]string{"directory is not set", "mode(9)", "below one block", "below the least"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.o.Dir = tc.setup(t)
			before := tree(t, tc.o.Dir)
			_, err := Open(ctx, tc.o)
			var e *dtx.Error
			if !errors.As(err, &e) || e.Class != dtx.ClassStop {
				t.Fatalf("error %v (%T)", err, err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			if after := tree(t, tc.o.Dir); after != before {
				t.Errorf("refused directory changed:\n%s\n%s", before, after)
			}
		})
	}
}

// tree lists the files below a directory, locks left out.
func tree(t *testing.T, dir string) string {
	var b strings.Builder
	if dir == "" {
		return ""
	}
	err := filepath.Walk(dir, func(p string, fi os.FileInfo, err error) error {
		if err == nil && fi.Name() != lockName {
			b.WriteString(p + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestOpenTwice: a directory in use is refused, and free again after Close.
func TestOpenTwice(t *testing.T) {
	o := Options{Dir: t.TempDir()}
	s := openTest(t, o)
	_, err := Open(context.Background(), o)
	if err == nil || !strings.Contains(err.Error(), "in use") {
		t.Fatalf("second Open: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, o)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestAppliedStartsEmpty: what a killed daemon left in a cache is gone.
func TestAppliedStartsEmpty(t *testing.T) {
	o := Options{Dir: t.TempDir(), tierBytes: -1}
	s := openTest(t, o)
	x := &modelTxn{}
	writeRows(t, s.Writer(0), x, 1000, 100)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, o)
	if _, err := s.Open(x.part); !errors.Is(err, errNotSpooled) {
		t.Fatalf("part of the former life: %v", err)
	}
	if u := s.Usage(); u.Bytes != 0 {
		t.Fatalf("%+v", u)
	}
	if r, err := s.Recover(context.Background()); err != nil || r.Parts != nil {
		t.Fatalf("%+v, %v", r, err)
	}
}
