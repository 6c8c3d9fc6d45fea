package demo

import (
	"context"
	"fmt"

	"cbrepl/lab"
)

// destination is where a demo replicates to.
type destination interface {
	// create makes the workload's tables.
	create(ctx context.Context) error
	// segments is how many segments, or shards, it has; word is the one of the two.
	segments() int
	word() string
	// describe puts the target into the subscription's file; from is the schema of
	// the source's tables.
	describe(s *lab.Subscription, from string)
	// rows reads a table's rows as sorted text.
	rows(ctx context.Context, table string) ([]string, error)
	// misplaced counts rows of a table that are not where its policy puts them; want
	// is all rows.
	misplaced(ctx context.Context, table string, want []string) (int64, error)
	// total sums the balances of the accounts.
	total(ctx context.Context) (int64, error)
	// places lists what a person can look at.
	places() []string
	// remove takes away what the demo has made there, and says what, unless it goes
	// with the lab. It runs when the daemon has ended.
	remove(ctx context.Context) (what string, err error)
}

// labTarget is a target of PostgreSQL shards in the demo's lab, with which it
// goes.
type labTarget struct{ *lab.TargetCluster }

func (t labTarget) create(ctx context.Context) error { return t.CreateWorkloadTables(ctx) }

func (t labTarget) segments() int { return t.Segments() }

func (labTarget) word() string { return "shards" }

func (t labTarget) describe(s *lab.Subscription, from string) {
	s.Target = t.DSNs()
	if from != "public" {
		s.Set("tables.rename", []map[string]string{{"from": from, "to": "public"}})
	}
}

func (t labTarget) rows(ctx context.Context, table string) ([]string, error) {
	return t.RowsOf(ctx, table)
}

func (t labTarget) misplaced(ctx context.Context, table string, _ []string) (int64, error) {
	return t.VerifyPlacement(ctx, table)
}

func (t labTarget) total(ctx context.Context) (int64, error) {
	return t.Total(ctx, lab.Accounts, "balance")
}

func (t labTarget) places() []string { return contents("target", t.DSN(), t.SegmentDSNs()) }

func (labTarget) remove(context.Context) (string, error) { return "", nil }

// contents lists the servers of a lab cluster.
func contents(name, coordinator string, segments []string) []string {
	var out []string
	for i, d := range append([]string{coordinator}, segments...) {
		out = append(out, fmt.Sprintf("%s content %2d  %s", name, i-1, d))
	}
	return out
}
