package lab

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Subscription is the content of a configuration file of cbrepl. Everything
// that needs such a file for servers of a lab has it written here.
type Subscription struct {
	Name string
	// Source and Target are connection strings: the coordinator's, then those of
	// the segments or shards by content. Segments that are not named are found
	// through the coordinator by cbrepl.
	Source, Target []string
	// Settings are the other keys, such as "spool.dir", with their values.
	Settings map[string]any
}

// Published is a source as a subscription names it: its servers, the coordinator
// first, and its publication.
type Published interface {
	DSNs() []string
	Publication() string
}

// NewSubscription describes a subscription between two clusters. Its spool is in
// dir; its status endpoint has a port that is free now.
func NewSubscription(name, dir string, src Published, target []string) (*Subscription, error) {
	listen, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	return &Subscription{Name: name, Source: src.DSNs(), Target: target, Settings: map[string]any{
		"source.publication": src.Publication(),
		"spool.dir":          filepath.Join(dir, "spool-"+name),
		"http.listen":        listen,
	}}, nil
}

// FreeAddress is an address on the loopback interface that nobody listens on
// now.
func FreeAddress() (string, error) {
	port, err := freePort()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}

// Clone returns a copy to change.
func (s *Subscription) Clone() *Subscription {
	return &Subscription{Name: s.Name, Source: slices.Clone(s.Source), Target: slices.Clone(s.Target), Settings: maps.Clone(s.Settings)}
}

// Set sets a key.
func (s *Subscription) Set(key string, value any) { s.Settings[key] = value }

// Write writes the file.
func (s *Subscription) Write(file string) error {
	text, err := s.text()
	if err == nil {
		err = os.WriteFile(file, []byte(text), 0o600)
	}
	return opErr("write subscription file", err)
}

// text is the file's content, one key per line. Values are written as JSON,
// which YAML includes.
func (s *Subscription) text() (string, error) {
	sections := map[string][]string{"source": nodeLines("segments", s.Source), "target": nodeLines("shards", s.Target)}
	lines := []string{"subscription: " + s.Name}
	for _, key := range slices.Sorted(maps.Keys(s.Settings)) {
		value, err := json.Marshal(s.Settings[key])
		if err != nil {
			return "", fmt.Errorf("%s: %w", key, err)
		}
		section, name, nested := strings.Cut(key, ".")
		if !nested {
			lines = append(lines, fmt.Sprintf("%s: %s", key, value))
			continue
		}
		sections[section] = append(sections[section], fmt.Sprintf("  %s: %s", name, value))
	}
	order := []string{"source", "target"}
	for _, section := range slices.Sorted(maps.Keys(sections)) {
		if !slices.Contains(order, section) {
			order = append(order, section)
		}
	}
	for _, section := range order {
		lines = append(append(lines, section+":"), sections[section]...)
	}
	return strings.Join(lines, "\n") + "\n", nil
}

// nodeLines names the servers of a cluster.
func nodeLines(list string, dsns []string) []string {
	lines := []string{fmt.Sprintf("  coordinator: {dsn: %q}", dsns[0])}
	if len(dsns) > 1 {
		lines = append(lines, "  "+list+":")
	}
	for i, dsn := range dsns[1:] {
		lines = append(lines, fmt.Sprintf("    - {content: %d, dsn: %q}", i, dsn))
	}
	return lines
}
