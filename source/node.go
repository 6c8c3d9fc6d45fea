package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"cbrepl/dtx"
	"cbrepl/source/stream/repl"
)

// Node is one server of the source: the coordinator (dtx.Coordinator) or a
// primary segment.
type Node struct {
	Content dtx.Content
	// DSN is a connection string with the replicated database. It is never printed.
	DSN string
}

// Config says what to check.
type Config struct {
	// Nodes lists the coordinator and every primary segment.
	Nodes             []Node
	Slot, Publication string
	// Kind is the kind of source; "" is Contract.
	Kind Kind
	// Coordinator is the coordinator's connection string for ordinary sessions, of a
	// Greenplum 6 source. It is never printed.
	Coordinator string
	// CopyOnly names tables (schema.name) of a Greenplum 6 source whose changes the
	// server does not decode, and which are replicated by copies only.
	CopyOnly []string
	// TwoPhase wants segments' slots that decode transactions at PREPARE.
	TwoPhase bool
	// Timeout bounds the checks of one node. Default 30 s.
	Timeout time.Duration
	// SlotWait is how long a slot in use is waited for: a daemon that was killed
	// leaves it in use until the server notices. Default 15 s; -1 does not wait.
	SlotWait time.Duration
	// Running says that the subscription's own daemon runs: that its slot is in use is
	// as it should be.
	Running bool
	// CreateTimeout bounds making the slots: a server makes one once the
	// transactions that are running have ended. Default 60 s.
	CreateTimeout time.Duration
	// SpareSlots is how many slots the nodes must have room for besides the
	// subscription's: a first copy takes one for its cut.
	SpareSlots int
	// Logger is told what takes long; nil discards.
	Logger *slog.Logger
}

// EnsureDefaults fills unset fields.
func (c *Config) EnsureDefaults() {
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	if c.CreateTimeout == 0 {
		c.CreateTimeout = time.Minute
	}
	if c.SlotWait == 0 {
		c.SlotWait = 15 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate reports every problem of the list of nodes and the names.
func (c *Config) Validate() error {
	var errs []error
	seen := map[dtx.Content]bool{}
	for _, n := range c.Nodes {
		if n.Content < dtx.Coordinator {
			errs = append(errs, fmt.Errorf("content %d: want -1 for the coordinator, 0 and above for segments", n.Content))
		}
		if seen[n.Content] {
			errs = append(errs, fmt.Errorf("content %d is listed twice", n.Content))
		}
		seen[n.Content] = true
		if n.DSN == "" {
			errs = append(errs, fmt.Errorf("content %d has no connection string", n.Content))
		}
	}
	if !seen[dtx.Coordinator] {
		errs = append(errs, errors.New("the coordinator (content -1) is missing"))
	}
	segments := len(seen)
	if seen[dtx.Coordinator] {
		segments--
	}
	if segments <= 0 {
		errs = append(errs, errors.New("no segment is listed"))
	}
	for i := range segments {
		if !seen[dtx.Content(i)] {
			errs = append(errs, fmt.Errorf("segment %d is missing: %d segments must have the contents 0 to %d", i, segments, segments-1))
		}
	}
	if err := repl.CheckSlotName(c.Slot); err != nil {
		errs = append(errs, err)
	}
	if c.Publication == "" {
		errs = append(errs, errors.New("no publication"))
	}
	if c.Kind == Greenplum6 && c.Coordinator == "" {
		errs = append(errs, errors.New("no connection string of the coordinator for ordinary sessions"))
	}
	if err := errors.Join(errs...); err != nil {
		return &dtx.Error{Op: "read list of source nodes", Err: err, Class: dtx.ClassStop}
	}
	return nil
}

// segments is the number of segments.
func (c *Config) segments() int { return len(c.Nodes) - 1 }

// repl is the configuration of a replication connection to n.
func (c *Config) repl(n Node) repl.Config {
	return repl.Config{Content: n.Content, DSN: n.DSN, Slot: c.Slot, Publication: c.Publication, Plugin: c.Kind.Plugin()}
}

// twoPhase says whether n's slot is to decode at PREPARE: segments prepare, the
// coordinator decides.
func (c *Config) twoPhase(n Node) bool { return c.TwoPhase && n.Content != dtx.Coordinator }

// connect opens an ordinary session.
func connect(ctx context.Context, n Node) (*pgx.Conn, error) {
	if _, err := repl.ParseDSN(n.Content, n.DSN); err != nil {
		return nil, err // masked: pgx would print the string
	}
	pc, err := pgx.ParseConfig(n.DSN)
	if err != nil {
		return nil, &dtx.Error{
			Op: "read connection string", Content: dtx.AtContent(n.Content), Class: dtx.ClassStop,
			Msg: "a query option in it is not valid", Hint: "Remove options that libpq does not know",
		}
	}
	pc.DefaultQueryExecMode = pgx.QueryExecModeExec
	pc.RuntimeParams["search_path"] = "pg_catalog"
	pc.RuntimeParams["client_encoding"] = "UTF8"
	pc.RuntimeParams["quote_all_identifiers"] = "off" // names of types are compared as printed
	if pc.RuntimeParams["application_name"] == "" {
		pc.RuntimeParams["application_name"] = "cbrepl"
	}
	conn, err := pgx.ConnectConfig(ctx, pc)
	if err != nil {
		return nil, repl.Fault("connect to source", n.Content, "", "", err)
	}
	return conn, nil
}

// closeConn ends a session; nothing is pending in it.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
