package subscription

import (
	"context"
	"fmt"
	"io"

	"cbrepl/apply"
	"cbrepl/apply/reset"
	"cbrepl/source"
	"cbrepl/store"
	"cbrepl/subscription/config"
)

// Reset makes the subscription new: what the target records of it is removed on
// every server and made anew as PrepareTarget does, the spool is removed, and the
// slots' positions are recorded as those where the subscription begins. Rows of tables
// are not touched. It refuses while a daemon runs, may be repeated, and with dryRun
// changes nothing. What it does is written to out.
func Reset(ctx context.Context, c *config.Config, dryRun bool, out io.Writer) error {
	// A daemon on this machine is found by its spool, one elsewhere by the lock on
	// the target.
	so := store.Options{Dir: c.Spool.Dir, Subscription: c.Subscription}
	if _, err := store.Remove(so, true); err != nil {
		return err
	}
	servers := []reset.Server{{Name: "coordinator of the target", DSN: c.Target.Coordinator.DSN.Reveal()}}
	for _, n := range c.Target.Shards {
		servers = append(servers, reset.Server{Name: fmt.Sprintf("shard %d", n.Content), DSN: n.DSN.Reveal()})
	}
	found, err := reset.Run(ctx, c.Subscription, servers, true)
	if err != nil {
		return err
	}
	var facts *source.Facts
	if !dryRun { // everything that can fail comes before the first change
		o, _, err := discover(ctx, c, nil)
		if err != nil {
			return err
		}
		if facts, err = source.Preflight(ctx, o, false); err != nil {
			return err
		}
		if found, err = reset.Run(ctx, c.Subscription, servers, false); err != nil {
			return err
		}
	}
	verb := "removed from the"
	if dryRun {
		verb = "would be removed from the"
	}
	for i := range found {
		if _, err := fmt.Fprintf(out, "%s %s\n", verb, &found[i]); err != nil {
			return err
		}
	}
	// The spool goes after the record: one without a spool would resume and find
	// that changes are gone.
	spool, err := store.Remove(so, dryRun)
	if err != nil {
		return err
	}
	what := "nothing"
	if spool {
		what = "what the daemon has spooled"
	}
	if _, err := fmt.Fprintf(out, "%s spool %s: %s\n", verb, c.Spool.Dir, what); err != nil || dryRun {
		return err
	}
	if err := PrepareTarget(ctx, c); err != nil {
		return err
	}
	return withTarget(ctx, c, func(tgt apply.Target, _ apply.State) error {
		return tgt.Init(ctx, beginning(facts.Streams(), facts))
	})
}
