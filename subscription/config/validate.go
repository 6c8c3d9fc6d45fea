package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/source"
	"cbrepl/source/stream/carrier"
)

var (
	nameForm = regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)
	slotForm = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
)

// fill sets the defaults that depend on other keys.
func (c *Config) fill() {
	if c.Source.Slot == "" && nameForm.MatchString(c.Subscription) {
		c.Source.Slot = "cbrepl_" + strings.ReplaceAll(c.Subscription, "-", "_")
	}
	byContent := func(a, b ContentNode) int { return int(a.Content) - int(b.Content) }
	slices.SortStableFunc(c.Source.Segments, byContent)
	slices.SortStableFunc(c.Target.Shards, byContent)
}

// problems returns everything that is wrong, each line naming its key.
func (c *Config) problems() []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	oneOf := func(key, val string, words ...string) {
		if !slices.Contains(words, val) {
			add("%s: %q is not one of %s", key, val, strings.Join(words, ", "))
		}
	}
	positive := func(key string, n int64) {
		if n < 1 {
			add("%s: %d is too small, want at least 1", key, n)
		}
	}

	switch {
	case c.Subscription == "":
		add("subscription: missing; give the subscription a name")
	case !nameForm.MatchString(c.Subscription):
		add("subscription: %q is not a name: want 1 to 63 of a-z, 0-9, _ and -", c.Subscription)
	}

	out = append(out, dsnProblem("source.coordinator.dsn", c.Source.Coordinator.DSN)...)
	out = append(out, contentProblems("source.segments", c.Source.Segments)...)
	out = append(out, sameServer("source", c.Source.Coordinator, c.Source.Segments)...)
	out = append(out, c.Source.addressProblems()...)
	if (c.Source.Slot != "" || nameForm.MatchString(c.Subscription)) && !slotForm.MatchString(c.Source.Slot) {
		add("source.slot: %q is not a slot name: want 1 to 63 of a-z, 0-9 and _", c.Source.Slot)
	}
	if c.Source.Publication == "" {
		add("source.publication: empty; name the publication that exists on every node")
	}
	if c.Source.CommitPrefix == "" || c.Source.PartPrefix == "" {
		add("source.commit_prefix and source.part_prefix must not be empty")
	} else if err := (&carrier.Messages{CommitPrefix: c.Source.CommitPrefix, PartPrefix: c.Source.PartPrefix}).Validate(); err != nil {
		add("source.commit_prefix, source.part_prefix: %v", err)
	}
	oneOf("source.kind", c.Source.Kind, Auto, Contract, Greenplum6)
	if c.Source.Kind == Contract && len(c.Source.CopyOnly) > 0 {
		add("source.copy_only: only for source.kind greenplum6")
	}
	if c.Source.Kind == Greenplum6 && c.Source.TwoPhase {
		add("source.two_phase: not for source.kind greenplum6, whose plugin sends no transaction at PREPARE")
	}
	if c.Source.Kind == Greenplum6 && c.Spool.Ack == Spooled {
		add("spool.ack: spooled does not go with source.kind greenplum6; set spool.ack: applied")
	}
	oneOf("source.local_changes", c.Source.LocalChanges, Stop, Ignore)
	if c.Source.StatusInterval < 100*time.Millisecond || c.Source.StatusInterval > 20*time.Second {
		add("source.status_interval: %s is out of range, want 100ms to 20s (the source drops silent connections)", c.Source.StatusInterval)
	}

	oneOf("target.kind", c.Target.Kind, Shards, Cloudberry)
	out = append(out, dsnProblem("target.coordinator.dsn", c.Target.Coordinator.DSN)...)
	switch c.Target.Kind {
	case Shards:
		if len(c.Target.Shards) == 0 {
			add("target.shards: missing; list every shard with its content id and dsn")
		}
		if c.Apply.FireTriggers {
			add("apply.fire_triggers: only for target.kind cloudberry")
		}
		out = append(out, contentProblems("target.shards", c.Target.Shards)...)
		out = append(out, sameServer("target", c.Target.Coordinator, c.Target.Shards)...)
	case Cloudberry:
		if len(c.Target.Shards) > 0 {
			add("target.shards: not used with target.kind cloudberry; the cluster's coordinator places the rows")
		}
	}

	from := map[[2]string]int{}
	for i, r := range c.Tables.Rename {
		n, err := r.Parse()
		if err != nil {
			add("tables.rename[%d]: %v", i, err)
			continue
		}
		if j, twice := from[[2]string{n.FromSchema, n.FromTable}]; twice {
			add("tables.rename[%d]: %s is renamed already by tables.rename[%d]", i, r.From, j)
		} else {
			from[[2]string{n.FromSchema, n.FromTable}] = i
		}
	}
	oneOf("apply.on_conflict", c.Apply.OnConflict, Stop, LogAndGo)
	positive("batch.max_rows", c.Batch.MaxRows)
	positive("batch.max_bytes", int64(c.Batch.MaxBytes))
	positive("batch.max_dtxs", int64(c.Batch.MaxDtxs))
	if c.Batch.MaxDelay < 0 || c.Batch.MaxDelay > time.Minute {
		add("batch.max_delay: %s is out of range, want 0s to 1m", c.Batch.MaxDelay)
	}
	if c.Spool.Dir == "" {
		add("spool.dir: missing; name a directory for this subscription alone")
	}
	if c.Spool.MaxBytes < 16<<20 {
		add("spool.max_bytes: %s is too small, want at least 16MiB", c.Spool.MaxBytes)
	}
	oneOf("spool.ack", c.Spool.Ack, Applied, Spooled)
	if c.Spool.Ack == Spooled && c.Source.TwoPhase {
		add("spool.ack: spooled does not go with source.two_phase: true; set one of the two back")
	}
	out = append(out, c.HTTP.problems()...)
	oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	oneOf("log.format", c.Log.Format, Text, JSON)
	oneOf("on_stop", c.OnStop, Exit, Wait)
	if c.ShutdownGrace < 0 || c.ShutdownGrace > 10*time.Minute {
		add("shutdown_grace: %s is out of range, want 0s to 10m", c.ShutdownGrace)
	}
	return out
}

// dsnProblem checks the form. The parser's own message is not used: it quotes
// the string.
func dsnProblem(key string, s Secret) []string {
	if s.Empty() {
		return []string{key + ": missing; want postgres://user@host:port/database or host=... port=... dbname=... user=..."}
	}
	if _, err := pgconn.ParseConfig(s.Reveal()); err != nil {
		return []string{key + ": not a PostgreSQL connection string; want postgres://user@host:port/database or host=... port=... dbname=... user=..."}
	}
	return nil
}

func contentProblems(key string, nodes []ContentNode) []string {
	var out []string
	seen := map[int]bool{}
	for _, n := range nodes {
		c := int(n.Content)
		if c < 0 {
			out = append(out, fmt.Sprintf("%s: content %d is not a segment's content id", key, c))
		}
		if seen[c] {
			out = append(out, fmt.Sprintf("%s: content %d is listed twice", key, c))
		}
		seen[c] = true
		out = append(out, dsnProblem(fmt.Sprintf("%s (content %d).dsn", key, c), n.DSN)...)
	}
	for i := range len(nodes) {
		if !seen[i] {
			out = append(out, fmt.Sprintf("%s: content %d is missing; contents run from 0 without a gap", key, i))
		}
	}
	return out
}

// sameServer finds two entries that name one database on one server.
func sameServer(key string, coord Node, nodes []ContentNode) []string {
	var out []string
	names := map[string]string{}
	check := func(name string, s Secret) {
		cfg, err := pgconn.ParseConfig(s.Reveal())
		if s.Empty() || err != nil {
			return
		}
		at := net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))) + "/" + cfg.Database
		if other, ok := names[at]; ok {
			out = append(out, fmt.Sprintf("%s: %s and %s name the same server and database", key, other, name))
			return
		}
		names[at] = name
	}
	check("the coordinator", coord.DSN)
	for _, n := range nodes {
		check("content "+n.Content.String(), n.DSN)
	}
	return out
}

// addressProblems reports rules of the address map that cannot be meant.
func (s *Source) addressProblems() []string {
	if len(s.Addresses) > 0 && len(s.Segments) > 0 {
		return []string{"source.addresses: not used with source.segments, which name the addresses themselves; leave one of the two out"}
	}
	var out []string
	from := map[string]int{}
	for i, a := range s.Addresses {
		if err := (source.Address{From: a.From, To: a.To}).Validate(); err != nil {
			out = append(out, fmt.Sprintf("source.addresses[%d].%v", i, err))
		}
		if j, twice := from[a.From]; twice {
			out = append(out, fmt.Sprintf("source.addresses[%d]: %s is mapped already by source.addresses[%d]", i, a.From, j))
			continue
		}
		from[a.From] = i
	}
	return out
}

func (h HTTP) problems() []string {
	if h.Listen == Off {
		return nil
	}
	host, port, err := net.SplitHostPort(h.Listen)
	if err != nil {
		return []string{fmt.Sprintf("http.listen: %q is not host:port (or the word off)", h.Listen)}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n > 65535 {
		return []string{fmt.Sprintf("http.listen: port %q is not a number from 0 to 65535", port)}
	}
	if h.AllowRemote || host == "localhost" {
		return nil
	}
	if a, err := netip.ParseAddr(host); err == nil && a.IsLoopback() {
		return nil
	}
	return []string{fmt.Sprintf("http.listen: %s is not a loopback address; status has no password, so set http.allow_remote: true if that is meant", h.Listen)}
}

// Names is a parsed rename rule. Tables are empty when a schema is renamed.
type Names struct {
	FromSchema, FromTable string
	ToSchema, ToTable     string
}

// Parse splits a rule's names. A name with a dot or a quote in it is written in
// double quotes, as in SQL; case is kept either way.
func (r Rename) Parse() (Names, error) {
	from, err := splitName(r.From)
	if err != nil {
		return Names{}, fmt.Errorf("from: %w", err)
	}
	to, err := splitName(r.To)
	if err != nil {
		return Names{}, fmt.Errorf("to: %w", err)
	}
	if len(from) != len(to) {
		return Names{}, errors.New("from and to must both be a schema or both be schema.table")
	}
	n := Names{FromSchema: from[0], ToSchema: to[0]}
	if len(from) == 2 {
		n.FromTable, n.ToTable = from[1], to[1]
	}
	return n, nil
}

func splitName(s string) ([]string, error) {
	bad := fmt.Errorf("%q is not schema or schema.table", s)
	var parts []string
	rest := s
	for {
		var word string
		if strings.HasPrefix(rest, `"`) {
			i := 1
			var b strings.Builder
			for ; i < len(rest); i++ {
				if rest[i] == '"' {
					if i+1 < len(rest) && rest[i+1] == '"' {
						i++
					} else {
						break
					}
				}
				b.WriteByte(rest[i])
			}
			if i >= len(rest) {
				return nil, bad
			}
			word, rest = b.String(), rest[i+1:]
		} else {
			i := strings.IndexAny(rest, `."`)
			if i < 0 {
				i = len(rest)
			}
			word, rest = rest[:i], rest[i:]
		}
		if word == "" || len(parts) == 2 {
			return nil, bad
		}
		parts = append(parts, word)
		if rest == "" {
			return parts, nil
		}
		if rest[0] != '.' {
			return nil, bad
		}
		rest = rest[1:]
	}
}
