// Package config is the subscription file: its keys, their defaults, where
// their values come from (file, environment, flags) and what is wrong with
// them. It reports every problem at once and opens no connection.
package config

import (
	"time"

	"cbrepl/dtx"
)

// Config is one subscription. Field comments give unit and default; the keys
// are the mapstructure tags, joined by dots.
type Config struct {
	// Subscription names it: [a-z0-9_-]{1,63}. The target's state rows, prepared
	// transaction ids and the default slot name carry it.
	Subscription string `mapstructure:"subscription"`
	Source       Source `mapstructure:"source"`
	Target       Target `mapstructure:"target"`
	Tables       Tables `mapstructure:"tables"`
	Apply        Apply  `mapstructure:"apply"`
	Batch        Batch  `mapstructure:"batch"`
	Spool        Spool  `mapstructure:"spool"`
	HTTP         HTTP   `mapstructure:"http"`
	Log          Log    `mapstructure:"log"`
	// OnStop says what the process does when the subscription stops on an error:
	// exit (default) or wait, which keeps the HTTP endpoint up for inspection
	// until a signal.
	OnStop string `mapstructure:"on_stop"`
	// ShutdownGrace is how long SIGTERM lets the batch in hand finish. Default 5s.
	ShutdownGrace time.Duration `mapstructure:"shutdown_grace"`
}

// Node is one server.
type Node struct {
	DSN Secret `mapstructure:"dsn"`
}

// ContentNode is one server with its content id.
type ContentNode struct {
	Content dtx.Content `mapstructure:"content"`
	DSN     Secret      `mapstructure:"dsn"`
}

// Source is the cluster read from.
type Source struct {
	// Kind is contract (a server that delivers the stream contract), greenplum6 (an
	// unmodified Greenplum 6 with plugin cbrepl_source) or auto (default): what is
	// found.
	Kind        string `mapstructure:"kind"`
	Coordinator Node   `mapstructure:"coordinator"`
	// Segments lists the primaries, contents 0..N-1. When it is empty they are found
	// through the coordinator, which must then be a Cloudberry or Greenplum one.
	Segments []ContentNode `mapstructure:"segments"`
	// Addresses maps the addresses that the coordinator names to those that are
	// reached from here, for segments found through it.
	Addresses []Address `mapstructure:"addresses"`
	// Slot is the logical slot's name on every node. Default cbrepl_<subscription>.
	Slot string `mapstructure:"slot"`
	// Publication is the publication's name on every node. Default cbrepl_pub.
	Publication string `mapstructure:"publication"`
	// CommitPrefix and PartPrefix are the logical message prefixes of the stream
	// contract. Defaults cbrepl.commit and cbrepl.part.
	CommitPrefix string `mapstructure:"commit_prefix"`
	PartPrefix   string `mapstructure:"part_prefix"`
	// LocalChanges says what to do with changes that belong to no distributed
	// transaction: stop (default) or ignore.
	LocalChanges string `mapstructure:"local_changes"`
	// Streaming asks the server to send big transactions before they commit.
	// Default true.
	Streaming bool `mapstructure:"streaming"`
	// TwoPhase asks the server to decode prepared transactions (protocol 3), for
	// sources that carry the gxid in the prepared transaction's gid. Default false.
	TwoPhase bool `mapstructure:"two_phase"`
	// CopyOnly names published tables (schema.table) of a greenplum6 source whose
	// changes its server does not decode: copies take them, the stream does not.
	CopyOnly []string `mapstructure:"copy_only"`
	// StatusInterval is how often positions are reported to the source and, when
	// idle, recorded on the target. Default 2s.
	StatusInterval time.Duration `mapstructure:"status_interval"`
}

// Address maps host or host:port to another host, which keeps the port, or
// host:port.
type Address struct {
	From string `mapstructure:"from"`
	To   string `mapstructure:"to"`
}

// Target is the cluster written to.
type Target struct {
	// Kind is shards (PostgreSQL servers, cbrepl is the two-phase coordinator) or
	// cloudberry (through the cluster's coordinator).
	Kind        string `mapstructure:"kind"`
	Coordinator Node   `mapstructure:"coordinator"`
	// Shards lists the shards, contents 0..M-1; for kind shards only.
	Shards []ContentNode `mapstructure:"shards"`
}

// Tables maps names.
type Tables struct {
	// Rename lists the rules; one for a table wins over one for its schema.
	Rename []Rename `mapstructure:"rename"`
}

// Rename maps a schema ("a" to "b") or a table ("a.t" to "b.u"). It is a list
// and not a map so that names keep their case.
type Rename struct {
	From string `mapstructure:"from"`
	To   string `mapstructure:"to"`
}

// Apply says how rows are written.
type Apply struct {
	// OnConflict says what to do when the copies have diverged: stop (default) or
	// log, which counts the row and goes on.
	OnConflict string `mapstructure:"on_conflict"`
	// FireTriggers lets triggers and rules of a cloudberry target fire for
	// replicated rows where its role may not keep them from it. Default false.
	FireTriggers bool `mapstructure:"fire_triggers"`
}

// Batch limits one target transaction. A transaction larger than a limit is a
// batch of its own.
type Batch struct {
	// MaxRows in rows, default 1000000.
	MaxRows int64 `mapstructure:"max_rows"`
	// MaxBytes of raw row data, default 256MiB.
	MaxBytes Bytes `mapstructure:"max_bytes"`
	// MaxDtxs in distributed transactions, default 5000.
	MaxDtxs int `mapstructure:"max_dtxs"`
	// MaxDelay is how long a batch may wait to grow when the target is idle.
	// Default 0: what is ready is applied at once.
	MaxDelay time.Duration `mapstructure:"max_delay"`
}

// Spool is the local store of changes on their way.
type Spool struct {
	// Dir is the spool's directory. Required.
	Dir string `mapstructure:"dir"`
	// MaxBytes bounds the spool; when it is full, reading pauses. Default 8GiB.
	MaxBytes Bytes `mapstructure:"max_bytes"`
	// Ack is applied (default): positions are confirmed to the source after the
	// target has committed; or spooled: on arrival, so that the source can drop
	// its log while the target is away.
	Ack string `mapstructure:"ack"`
}

// HTTP is the status endpoint.
type HTTP struct {
	// Listen is host:port, default 127.0.0.1:7432; off disables it.
	Listen string `mapstructure:"listen"`
	// AllowRemote permits an address that is not loopback.
	AllowRemote bool `mapstructure:"allow_remote"`
}

// Log is the log on standard error.
type Log struct {
	// Level is debug, info (default), warn or error.
	Level string `mapstructure:"level"`
	// Format is text (default) or json.
	Format string `mapstructure:"format"`
}

// DefaultListen is where status is served unless the file says otherwise.
const DefaultListen = "127.0.0.1:7432"

// Values of the keys that take one of a few words.
const (
	Stop       = "stop"
	Ignore     = "ignore"
	LogAndGo   = "log"
	Exit       = "exit"
	Wait       = "wait"
	Shards     = "shards"
	Cloudberry = "cloudberry"
	Applied    = "applied"
	Spooled    = "spooled"
	Off        = "off"
	Text       = "text"
	JSON       = "json"
	Auto       = "auto"
	Contract   = "contract"
	Greenplum6 = "greenplum6"
)

// defaults lists the value of every key that has one. Keys without an entry are
// required or empty by default.
func defaults() map[string]any {
	return map[string]any{
		"source.kind":            Auto,
		"source.publication":     "cbrepl_pub",
		"source.commit_prefix":   "cbrepl.commit",
		"source.part_prefix":     "cbrepl.part",
		"source.local_changes":   Stop,
		"source.streaming":       true,
		"source.two_phase":       false,
		"source.status_interval": "2s",
		"target.kind":            Shards,
		"apply.on_conflict":      Stop,
		"apply.fire_triggers":    false,
		"batch.max_rows":         1000000,
		"batch.max_bytes":        "256MiB",
		"batch.max_dtxs":         5000,
		"batch.max_delay":        "0s",
		"spool.max_bytes":        "8GiB",
		"spool.ack":              Applied,
		"http.listen":            DefaultListen,
		"http.allow_remote":      false,
		"log.level":              "info",
		"log.format":             Text,
		"on_stop":                Exit,
		"shutdown_grace":         "5s",
	}
}
