package shards

import (
	"cbrepl/apply/internal/pgside"
)

// faults says what the errors of these servers mean.
var faults = pgside.Faults{
	Hints: map[string]string{
		pgside.StateDiskFull:         "Free disk space on that server, then start the daemon again with `cbrepl run`",
		pgside.StateInsufficientPriv: "Grant the role what docs/target-shards.md lists",
		pgside.StateUndefinedTable:   missingHint,
		"3F000":                      missingHint,
		"42703":                      missingHint,
		"53300":                      "Raise max_connections on that server, or close idle sessions",
		"28P01":                      credentialsHint,
		"28000":                      credentialsHint,
		"3D000":                      "Create the database, or correct the connection string",
		"57P03":                      "The server is starting or shutting down; it is tried again",
	},
	Unreachable: "Check that the server runs and that host and port of the connection string are right",
}

const (
	missingHint     = "Create what is missing on every shard, or run `cbrepl target prepare -c FILE` when it is in schema cbrepl"
	credentialsHint = "Check user, password and pg_hba.conf on that server"
)

// fail wraps an error met on one server as a *dtx.Error. An error that is one
// already, the engine's or this package's, keeps its place and class.
func fail(op, where string, err error) error { return faults.Wrap(op, where, err) }

// dataFault wraps an error of a statement about rows.
func dataFault(err error) error { return faults.Data(opRows, err) }
