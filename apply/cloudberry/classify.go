package cloudberry

import (
	"errors"
	"fmt"

	"cbrepl/apply/internal/pgside"
	"cbrepl/apply/ledger"
	"cbrepl/dtx"
)

// maxInternal is how many internal errors in a row are taken for a segment's
// trouble; a lost gang and a failed PREPARE broadcast are reported that way.
const maxInternal = 5

// faults says what the errors of such a cluster mean.
var faults = pgside.Faults{
	Passing: []string{ledger.StateFenced, pgside.StateInternal}, // the latter bounded by Target.bounded
	Hints: map[string]string{
		pgside.StateDiskFull:         "Free disk space on that host, then start the daemon again with `cbrepl run`",
		pgside.StateInsufficientPriv: "Grant the role what docs/target-cloudberry.md lists",
		pgside.StateUndefinedTable:   missingHint,
		"3F000":                      missingHint,
		"42703":                      missingHint,
		"53300":                      "Raise max_connections on the coordinator, or close idle sessions",
		"53400":                      memoryHint,
		pgside.StateOutOfMemory:      memoryHint,
		"58M01":                      "A segment is down; see gp_segment_configuration on the target. It is tried again",
		"28P01":                      credentialsHint,
		"28000":                      credentialsHint,
		"3D000":                      "Create the database, or correct the connection string",
		"57P03":                      "The server is starting or shutting down; it is tried again",
	},
	Unreachable: "Check that the cluster runs and that host and port of the connection string are the coordinator's",
}

const (
	missingHint     = "Create what is missing on the target, or run `cbrepl target prepare -c FILE` when it is in schema cbrepl"
	memoryHint      = "Give the role more memory (statement_mem, its resource queue or group), or lower batch.max_bytes"
	credentialsHint = "Check user, password and pg_hba.conf on the coordinator"
)

// opRows names the step in errors.
const opRows = "apply rows"

// fail wraps an error met on the server as a *dtx.Error. An error that is one
// already, the engine's or this package's, keeps its place and class.
func fail(op, where string, err error) error { return faults.Wrap(op, where, err) }

// dataFault wraps an error of a statement about rows.
func dataFault(err error) error { return faults.Data(opRows, err) }

// bounded counts internal errors: they are retried, for a lost segment process is
// reported that way, but not forever, for so is a fault of the server itself.
func (t *Target) bounded(err error) error {
	if pgside.SQLState(err) != pgside.StateInternal {
		return err
	}
	if t.internal++; t.internal <= maxInternal {
		return err
	}
	var de *dtx.Error
	if !errors.As(err, &de) {
		return err
	}
	c := *de
	c.Class = dtx.ClassStop
	c.Hint = fmt.Sprintf("The server has reported an internal error %d times in a row; see its log, then start the daemon again with `cbrepl run`", t.internal)
	return &c
}
