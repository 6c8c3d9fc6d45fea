// Package demo shows cbrepl at work: it starts a source and a target cluster of
// another size on this machine, or takes a Greenplum 6 cluster as the source and a
// Cloudberry or Greenplum cluster as the target, replicates live distributed
// transactions from one to the other, and proves the result. It owns the progress
// line and the verdict; clusters and the workload are package lab's, replication
// is package subscription's.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"cbrepl/lab"
	"cbrepl/subscription"
	"cbrepl/subscription/config"
	"cbrepl/subscription/status"
)

// Options shape a demo.
type Options struct {
	// SourceSegments and TargetSegments are the clusters' sizes; 0 means 3 and 2.
	SourceSegments, TargetSegments int
	// SourceDSN is the connection string of the coordinator of a Greenplum 6 cluster
	// to replicate from, instead of a source that the demo starts. It is never
	// printed.
	SourceDSN string
	// TargetDSN is the connection string of the coordinator of a Cloudberry or
	// Greenplum cluster to replicate into, instead of a target that the demo starts.
	// It is never printed.
	TargetDSN string
	// Duration is how long the load runs; 0 means 20 s.
	Duration time.Duration
	// Keep leaves clusters and daemon running after the verdict, until ctx ends.
	Keep bool
	// Out takes the progress and the summary. Terminal says that it is one: the
	// progress line is then rewritten in place.
	Out      io.Writer
	Terminal bool
	// Log takes the daemon's log; nil discards it.
	Log *slog.Logger
	// Seed of the workload; 0 means 1.
	Seed uint64
	// Version is what the daemon calls itself.
	Version string
}

// EnsureDefaults fills unset fields.
func (o *Options) EnsureDefaults() {
	if o.SourceSegments == 0 {
		o.SourceSegments = 3
	}
	if o.TargetSegments == 0 {
		o.TargetSegments = 2
	}
	if o.Duration == 0 {
		o.Duration = 20 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
}

// Validate reports every problem.
func (o *Options) Validate() error {
	var errs []error
	for name, n := range map[string]int{"source": o.SourceSegments, "target": o.TargetSegments} {
		if n < 1 || n > 16 {
			errs = append(errs, fmt.Errorf("%d %s segments: want 1 to 16", n, name))
		}
	}
	if o.Duration < time.Second || o.Duration > time.Hour {
		errs = append(errs, fmt.Errorf("a load of %s: want 1s to 1h", o.Duration))
	}
	return errors.Join(errs...)
}

// ErrDifferent is returned when the clusters do not hold the same rows in the
// right places. The summary says where.
var ErrDifferent = errors.New("the target does not hold what the source holds")

// ErrInterrupted is returned when ctx ends before the verdict.
var ErrInterrupted = errors.New("interrupted; servers and files are removed")

const (
	subscriptionName = "demo"
	drainLimit       = 60 * time.Second
	// cleanupLimit bounds stopping the servers, whatever ended the demo.
	cleanupLimit = 60 * time.Second
)

// run is one demo under way.
type run struct {
	o      Options
	lab    *lab.Lab // nil when both clusters are the caller's
	dir    string
	src    origin
	dst    destination
	load   *lab.Workload
	sub    *subscription.Subscription
	cfg    *config.Config
	file   string
	ended  chan struct{} // closed when the daemon has ended
	subErr error
	stop   context.CancelFunc
	line   *line
	lagMax float64
}

// Run runs the demo. It returns nil only when the result is proved. Servers and
// files are gone when it returns, however it ends.
func Run(ctx context.Context, o Options) (err error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return err
	}
	r := &run{o: o, line: &line{out: o.Out, terminal: o.Terminal}}
	defer func() { err = errors.Join(err, r.cleanUp(context.WithoutCancel(ctx))) }()
	began := time.Now()
	for _, step := range []func() error{
		func() error { return r.start(ctx) },
		func() error { return r.replicate(ctx) },
		func() error { return r.verdict(ctx, began) },
	} {
		if err := step(); err != nil {
			if ctx.Err() != nil {
				return ErrInterrupted
			}
			return err
		}
	}
	return nil
}

// start brings up clusters, tables, slots, first rows and the daemon.
func (r *run) start(ctx context.Context) error {
	name, err := r.open(ctx)
	if err != nil {
		return err
	}
	if err := r.src.create(ctx); err != nil {
		return err
	}
	if err := r.dst.create(ctx); err != nil {
		return err
	}
	if err := r.configure(name); err != nil {
		return err
	}
	if err := subscription.PrepareTarget(ctx, r.cfg); err != nil {
		return err
	}
	if _, err := subscription.CreateSlots(ctx, r.cfg, 0, nil); err != nil {
		return err
	}
	r.load = lab.NewWorkload(r.src, r.o.Seed)
	if err := r.load.Fill(ctx); err != nil {
		return err
	}
	dtxs, _, rows := r.load.Counts()
	r.line.say("loaded %d rows in %d transactions; starting the daemon (status: cbrepl status --addr %s)", rows, dtxs, r.cfg.HTTP.Listen)
	r.sub, err = subscription.New(subscription.Options{Config: r.cfg, Log: r.o.Log, Version: r.o.Version})
	if err != nil {
		return err
	}
	subCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.stop, r.ended = stop, make(chan struct{})
	go func() {
		defer close(r.ended)
		r.subErr = r.sub.Run(subCtx)
	}()
	return nil
}

// open takes or starts both clusters. It returns the subscription's name.
func (r *run) open(ctx context.Context) (name string, err error) {
	name = subscriptionName
	if r.o.SourceDSN != "" || r.o.TargetDSN != "" {
		if name, err = newName(); err != nil {
			return "", err
		}
	}
	source, target := fmt.Sprintf("a source of %d segments", r.o.SourceSegments), fmt.Sprintf("a target of %d shards", r.o.TargetSegments)
	var given, started []string
	take := func(which string, c *cluster) {
		given = append(given, fmt.Sprintf("the %s is your cluster of %d segments, in schema %s", which, c.n, c.schema))
	}
	if r.o.SourceDSN == "" {
		started = append(started, source)
	} else {
		s, err := openSource(ctx, r.o.SourceDSN, name)
		if err != nil {
			return "", err
		}
		take("source", s.cluster)
		r.src = s
	}
	if r.o.TargetDSN == "" {
		started = append(started, target)
	} else {
		c, err := openCluster(ctx, "target", r.o.TargetDSN, name)
		if err != nil {
			return "", err
		}
		take("target", c)
		r.dst = clusterTarget{c}
	}
	for _, g := range given {
		r.line.say("%s", g)
	}
	if len(started) == 0 {
		r.dir, err = os.MkdirTemp("", "cbrepl-demo-")
		return name, err
	}
	r.line.say("starting %s, each with its coordinator", strings.Join(started, " and "))
	return name, r.startLab(ctx)
}

// startLab starts the clusters that were not given.
func (r *run) startLab(ctx context.Context) (err error) {
	if r.lab, err = lab.New(ctx, lab.Options{Logger: r.o.Log}); err != nil {
		return err
	}
	r.dir = r.lab.Dir()
	g, ctx := errgroup.WithContext(ctx)
	if r.src == nil {
		g.Go(func() error {
			s, err := r.lab.StartSource(ctx, r.o.SourceSegments)
			r.src = labSource{s}
			return err
		})
	}
	if r.dst == nil {
		g.Go(func() error {
			t, err := r.lab.StartTarget(ctx, r.o.TargetSegments)
			r.dst = labTarget{t}
			return err
		})
	}
	return g.Wait()
}

// replicate runs the load, stops it, and waits until the target has everything.
func (r *run) replicate(ctx context.Context) error {
	loadCtx, stopLoad := context.WithTimeout(ctx, r.o.Duration)
	defer stopLoad()
	loaded := make(chan error, 1)
	go func() { loaded <- r.load.Run(loadCtx) }()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	running := true
	var err error
	for running {
		select {
		case err = <-loaded:
			running = false
		case <-r.ended:
			stopLoad()
			return errors.Join(r.ranOut(), <-loaded)
		case <-tick.C:
			r.progress("load")
		}
	}
	if err != nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	r.line.say("load stopped; draining")
	ends, err := r.src.ends(ctx)
	if err != nil {
		return err
	}
	limit := time.NewTimer(drainLimit)
	defer limit.Stop()
	drained := func() bool {
		rep := r.sub.Report()
		return rep.Reached(ends)
	}
	for !drained() {
		select {
		case <-tick.C:
			r.progress("drain")
		case <-r.ended:
			return r.ranOut()
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			return fmt.Errorf("the target has not caught up %s after the load stopped: %s", drainLimit, waitLine(r.sub.Report()))
		}
	}
	r.progress("drained")
	r.line.end()
	return nil
}

// ranOut explains why the daemon ended by itself.
func (r *run) ranOut() error {
	if r.subErr != nil {
		return r.subErr
	}
	return errors.New("the daemon ended by itself")
}

func waitLine(rep status.Report) string {
	if len(rep.Waits) > 0 {
		return rep.Waits[0].Line()
	}
	return strings.Join(rep.Unhealthy, "; ")
}

// cleanUp ends daemon and servers and removes files.
func (r *run) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupLimit)
	defer cancel()
	r.line.end()
	if r.stop != nil {
		r.stop()
		<-r.ended
	}
	var errs []error
	removed := func(what string, err error) {
		if err == nil && what != "" {
			r.line.say("%s", what)
		}
		errs = append(errs, err)
	}
	if r.dst != nil {
		removed(r.dst.remove(ctx))
	}
	if r.src != nil {
		removed(r.src.remove(ctx, r.cfg))
	}
	if r.lab != nil {
		errs = append(errs, r.lab.Close(ctx))
	} else if r.dir != "" {
		errs = append(errs, os.RemoveAll(r.dir))
	}
	return errors.Join(errs...)
}

// configure writes the subscription's file and loads it.
func (r *run) configure(name string) error {
	sub, err := lab.NewSubscription(name, r.dir, r.src, nil)
	if err != nil {
		return err
	}
	sub.Set("source.status_interval", "500ms")
	r.dst.describe(sub, r.src.schemaName())
	r.file = filepath.Join(r.dir, name+".yaml")
	if err := sub.Write(r.file); err != nil {
		return err
	}
	r.cfg, err = config.Load(config.Sources{File: r.file})
	return err
}
