package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
)

// hidden is what every printed form of a Secret shows.
const hidden = "[hidden]"

// Secret holds a value that must never be printed: a connection string may
// carry a password. Every way of printing it (fmt verbs, slog, JSON, YAML,
// text) shows a fixed mask; only Reveal gives the value, and only the code that
// opens a connection calls it.
type Secret struct{ value string }

// NewSecret wraps a value.
func NewSecret(v string) Secret { return Secret{value: v} }

// Reveal returns the value.
func (s Secret) Reveal() string { return s.value }

// Empty reports whether there is no value.
func (s Secret) Empty() bool { return s.value == "" }

func (s Secret) mask() string {
	if s.value == "" {
		return ""
	}
	return hidden
}

// String returns the mask.
func (s Secret) String() string { return s.mask() }

// GoString returns the mask.
func (s Secret) GoString() string { return s.mask() }

// Format prints the mask for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(s.mask())) }

// LogValue returns the mask.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.mask()) }

// MarshalText returns the mask.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.mask()), nil }

// MarshalJSON returns the mask.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.mask()) }

// MarshalYAML returns the mask.
func (s Secret) MarshalYAML() (any, error) { return s.mask(), nil }
