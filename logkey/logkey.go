// Package logkey lists the keys of log records, so that each fact has one
// spelling in every package's log.
package logkey

// Where something happened.
const (
	Subscription = "subscription"
	Content      = "content"
	GXID         = "gxid"
	LSN          = "lsn"
	Relation     = "relation"
	Slot         = "slot"
	Server       = "server"
	Address      = "address"
	PID          = "pid"
	GID          = "gid"
	Role         = "role"
	From         = "from"
	To           = "to"
)

// What happened.
const (
	Error    = "error"
	Pause    = "pause"
	Attempt  = "attempt"
	Outcome  = "outcome"
	ExitCode = "exit_code"
	Setting  = "setting"
	Value    = "value"
	Level    = "log_level"
	Firing   = "firing"
	Event    = "event"
	WaitsFor = "waits_for"
	Reason   = "reason"
	Identity = "identity"
	Digest   = "digest"
	Segment  = "segment"
)

// How much, and which.
const (
	Batch        = "batch"
	Epoch        = "epoch"
	Limit        = "limit"
	Dtxs         = "dtxs"
	Transactions = "transactions"
	Took         = "took"
	Rows         = "rows"
	Streams      = "streams"
	Tables       = "tables"
	Segments     = "segments"
	Shards       = "shards"
	Version      = "server_version"
)
