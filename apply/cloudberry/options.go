package cloudberry

import (
	"errors"
	"time"

	"cbrepl/apply/ledger"
)

// cleanupTimeout bounds rolling back after a failed batch; what it does not
// reach is rolled back by the server when the session ends.
const cleanupTimeout = 5 * time.Second

// Options configures a target cluster.
type Options struct {
	ledger.Options
	// Coordinator is the connection string of the cluster's coordinator.
	Coordinator string

	// FireTriggers lets triggers and rules of the target's tables fire for
	// replicated rows where the role may not set session_replication_role, which
	// takes a superuser before PostgreSQL 15.
	FireTriggers bool

	private struct {
		// now is the clock that tells how long the session was idle.
		now func() time.Time
		// rowset forces how values reach the server; for tests.
		rowset rowsetKind
		// explain gets the plan of every statement about rows.
		explain func(plan string)
		// anyType leaves out the comparison of column types; for tests.
		anyType bool
	}
}

// EnsureDefaults fills unset fields.
func (o *Options) EnsureDefaults() {
	if o.Engine.ChunkBytes == 0 {
		o.Engine.ChunkBytes = 4 << 20 // each COPY goes to every segment
	}
	if o.DecideTimeout == 0 {
		o.DecideTimeout = time.Minute // it covers both phases of the server's commit
	}
	o.Options.EnsureDefaults()
}

func (o *Options) now() time.Time {
	if o.private.now != nil {
		return o.private.now()
	}
	return time.Now()
}

// Validate reports every problem.
func (o *Options) Validate() error {
	var errs []error
	if o.Coordinator == "" {
		errs = append(errs, errors.New("the connection string of the target cluster's coordinator is missing"))
	}
	return o.Options.Validate(errs...)
}
