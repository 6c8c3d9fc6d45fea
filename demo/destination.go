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
	// describe puts the target into the subscription's file.
	describe(*lab.Subscription)
	// compare compares every table with the source's and checks where rows are.
	compare(ctx context.Context, src *lab.Source) (lab.Report, error)
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

func (t labTarget) describe(s *lab.Subscription) { s.Target = t.DSNs() }

func (t labTarget) compare(ctx context.Context, src *lab.Source) (lab.Report, error) {
	return lab.Compare(ctx, src, t.TargetCluster)
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
