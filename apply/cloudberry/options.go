package cloudberry

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
)

// cleanupTimeout bounds rolling back after a failed batch; what it does not
// reach is rolled back by the server when the session ends.
const cleanupTimeout = 5 * time.Second

// Options configures a target cluster.
type Options struct {
	// Subscription names the subscription: [a-z0-9_-]{1,63}.
	Subscription string
	// Coordinator is the connection string of the cluster's coordinator.
	Coordinator string

	// Tables are the source's published tables; each must have its table on the
	// target, found by Names. Engine bounds the memory of applying and says what
	// happens on conflicts.
	Tables []catalog.PublishedTable
	Names  apply.NameMap
	Engine apply.Options

	// FireTriggers lets triggers and rules of the target's tables fire for
	// replicated rows where the role may not set session_replication_role, which
	// takes a superuser before PostgreSQL 15.
	FireTriggers bool

	// LockWait is how long Open waits for another daemon's lock. 0 means 5 s.
	LockWait time.Duration
	// OpenTimeout bounds Open. 0 means 60 s.
	OpenTimeout time.Duration
	// DecideTimeout bounds the last message of a batch, which goes on when the
	// daemon is told to stop. 0 means 60 s.
	DecideTimeout time.Duration
	// StatementTimeout bounds one statement. 0 means 10 min.
	StatementTimeout time.Duration
	// LockTimeout bounds the wait for one lock. 0 means 30 s.
	LockTimeout time.Duration
	// IdleTimeout bounds how long the server keeps the open transaction of a daemon
	// that sends nothing, on servers that can. 0 means 10 min.
	IdleTimeout time.Duration

	// Logger is where Open and Apply log; nil means nowhere.
	Logger *slog.Logger

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
	set := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	if o.Engine.ChunkBytes == 0 {
		o.Engine.ChunkBytes = 4 << 20 // each COPY goes to every segment
	}
	o.Engine.EnsureDefaults()
	set(&o.LockWait, 5*time.Second)
	set(&o.OpenTimeout, time.Minute)
	set(&o.DecideTimeout, time.Minute)
	set(&o.StatementTimeout, 10*time.Minute)
	set(&o.LockTimeout, 30*time.Second)
	set(&o.IdleTimeout, 10*time.Minute)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

func (o *Options) now() time.Time {
	if o.private.now != nil {
		return o.private.now()
	}
	return time.Now()
}

// namePattern is what a subscription may be called.
var namePattern = regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)

// Validate reports every problem.
func (o *Options) Validate() error {
	errs := []error{o.Engine.Validate(), o.Names.Validate()}
	if !namePattern.MatchString(o.Subscription) {
		errs = append(errs, fmt.Errorf("subscription name %q: want 1 to 63 of a-z, 0-9, _ and -", o.Subscription))
	}
	if o.Coordinator == "" {
		errs = append(errs, errors.New("the connection string of the target cluster's coordinator is missing"))
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"lock wait", o.LockWait},
		{"open timeout", o.OpenTimeout},
		{"decide timeout", o.DecideTimeout},
		{"statement timeout", o.StatementTimeout},
		{"lock timeout", o.LockTimeout},
		{"idle timeout", o.IdleTimeout},
	} {
		if d.d < time.Millisecond {
			errs = append(errs, fmt.Errorf("%s is %s, want at least 1ms", d.name, d.d))
		}
	}
	return pgside.Together("read configuration", errs)
}
