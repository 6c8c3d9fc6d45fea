package ledger

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/dtx"
)

// Options are what every kind of target is configured with.
type Options struct {
	// Subscription names the subscription: [a-z0-9_-]{1,63}.
	Subscription string

	// Tables are the source's published tables; each must have its table on the
	// target, found by Names. Engine bounds the memory of applying and says what
	// happens on conflicts.
	Tables []catalog.PublishedTable
	Names  apply.NameMap
	Engine apply.Options

	// OnlyRecorded leaves out tables that the record of what is replicated does not
	// name: whether all their rows have been in the stream is not known.
	OnlyRecorded bool

	// LockWait is how long Open waits for another daemon's lock. 0 means 5 s.
	LockWait time.Duration
	// OpenTimeout bounds Open. 0 means 60 s.
	OpenTimeout time.Duration
	// DecideTimeout bounds each step of one batch's commit. What records the batch
	// goes on when the daemon is told to stop. 0 means 30 s.
	DecideTimeout time.Duration
	// StatementTimeout bounds one statement. 0 means 10 min.
	StatementTimeout time.Duration
	// LockTimeout bounds the wait for one lock. 0 means 30 s.
	LockTimeout time.Duration
	// IdleTimeout bounds how long a server keeps the open transaction of a daemon
	// that sends nothing, where it can. 0 means 10 min.
	IdleTimeout time.Duration

	// Logger is where Open and Apply log; nil means nowhere.
	Logger *slog.Logger
}

// EnsureDefaults fills unset fields.
func (o *Options) EnsureDefaults() {
	set := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	o.Engine.EnsureDefaults()
	set(&o.LockWait, 5*time.Second)
	set(&o.OpenTimeout, time.Minute)
	set(&o.DecideTimeout, 30*time.Second)
	set(&o.StatementTimeout, 10*time.Minute)
	set(&o.LockTimeout, 30*time.Second)
	set(&o.IdleTimeout, 10*time.Minute)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// namePattern is what a subscription may be called. Without ':' and within 63
// bytes a global transaction id parses one way only and stays below the server's
// limit of 200 bytes (the longest has 127).
var namePattern = regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)

// Validate reports every problem, with those that a target has found in its own
// options.
func (o *Options) Validate(more ...error) error {
	errs := append([]error{o.Engine.Validate(), o.Names.Validate()}, more...)
	if !namePattern.MatchString(o.Subscription) {
		errs = append(errs, fmt.Errorf("subscription name %q: want 1 to 63 of a-z, 0-9, _ and -", o.Subscription))
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
	err := pgside.JoinErrors("read configuration", errs)
	var de *dtx.Error
	if errors.As(err, &de) && de.Op == "read configuration" {
		de.Class = dtx.ClassStop // another try reads the same
	}
	return err
}
