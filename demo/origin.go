package demo

import (
	"context"

	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/subscription/config"
)

// origin is where a demo replicates from.
type origin interface {
	lab.Database
	lab.Published
	// create makes the workload's tables and publishes them.
	create(ctx context.Context) error
	segments() int
	// schemaName is where the workload's tables are.
	schemaName() string
	// rows reads a table's rows as sorted text.
	rows(ctx context.Context, table string) ([]string, error)
	// ends are the positions that a target must reach to hold everything.
	ends(ctx context.Context) (map[dtx.Content]dtx.LSN, error)
	// places lists what a person can look at.
	places() []string
	// remove takes away what the demo has made there, and says what, unless it goes
	// with the lab. cfg is nil when it was not written. It runs when the daemon has
	// ended.
	remove(ctx context.Context, cfg *config.Config) (what string, err error)
}

// labSource is a source in the demo's lab, with which it goes.
type labSource struct{ *lab.Source }

func (s labSource) create(ctx context.Context) error { return s.CreateWorkloadTables(ctx) }

func (s labSource) segments() int { return s.Segments() }

func (labSource) schemaName() string { return "public" }

func (s labSource) rows(ctx context.Context, table string) ([]string, error) {
	return s.RowsOf(ctx, table)
}

func (s labSource) ends(ctx context.Context) (map[dtx.Content]dtx.LSN, error) { return s.Ends(ctx) }

func (s labSource) places() []string { return contents("source", s.DSN(), s.SegmentDSNs()) }

func (labSource) remove(context.Context, *config.Config) (string, error) { return "", nil }
