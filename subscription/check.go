package subscription

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"cbrepl/apply"
	"cbrepl/catalog"
	"cbrepl/check"
	"cbrepl/dtx"
	"cbrepl/source"
	"cbrepl/store"
	"cbrepl/subscription/config"
	"cbrepl/subscription/status"
)

// Check looks at everything that a start of the subscription looks at, and changes
// nothing. What a start would refuse is an error in the report, found by the same
// code. It may be called while the daemon runs.
func Check(ctx context.Context, c *config.Config, log *slog.Logger) check.Report {
	var r check.Report
	running := checkAddress(ctx, c, &r)
	facts := checkSource(ctx, c, running, log, &r)
	st, err := checkTarget(ctx, c, facts.tables, log, &r)
	if err != nil {
		r.Findings = append(r.Findings, check.Of(check.Target, err)...)
	}
	if facts.complete() && !running {
		r.Findings = append(r.Findings, checkRecorded(c, facts, st)...)
	}
	r.Findings = append(r.Findings, check.Of(check.Target, checkCopies(st.Copies))...)
	r.Findings = append(r.Findings, store.Check(spoolOptions(c, log))...)
	r.Findings = append(r.Findings, check.CompareServers(r.Servers)...)
	r.Findings.Sort()
	return r
}

// checkRecorded compares what the target records with a source that has its slots.
func checkRecorded(c *config.Config, f *sourceFacts, st apply.State) check.Findings {
	if st.Token == "" {
		return nil // it is not prepared, or cannot be read, which is said
	}
	if err := checkBegun(st); err != nil {
		return check.Of(check.Target, err)
	}
	// In ack mode spooled the spool may be ahead of the target, which only the daemon
	// knows: such a position is the slot's own.
	held := map[dtx.Content]dtx.LSN{}
	if c.Spool.Ack == config.Spooled {
		for _, s := range f.facts.Streams() {
			held[s.Content] = s.LSN
		}
	}
	fs := check.Of(check.Source, checkResume(f, st, held))
	return append(fs, check.Of(check.Source, source.ComparePublished(st.Tables, f.published))...)
}

// checkAddress finds out who listens on the status address. It reports whether it is
// the subscription's own daemon.
func checkAddress(ctx context.Context, c *config.Config, r *check.Report) bool {
	at := c.HTTP.Listen
	if at == config.Off {
		return false
	}
	add := func(l check.Level, remedy, format string, args ...any) {
		r.Findings = append(r.Findings, check.Finding{Level: l, Side: check.Here, Found: fmt.Sprintf(format, args...), Remedy: remedy})
	}
	const choose = "Choose another http.listen, or end what listens there"
	fetch, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if rep, _, err := status.Fetch(fetch, at); err == nil {
		if rep.Subscription != c.Subscription {
			add(check.Error, choose, "a daemon of subscription %s (pid %d) listens on %s already", rep.Subscription, rep.PID, at)
			return false
		}
		add(check.OK, "", "the daemon runs (pid %d), %s", rep.PID, rep.State)
		return true
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		add(check.Error, choose, "status cannot be served on %s: %v", at, err)
		return false
	}
	_ = l.Close()
	return false
}

// checkSource looks at the source, as far as it can be found.
func checkSource(ctx context.Context, c *config.Config, running bool, log *slog.Logger, r *check.Report) *sourceFacts {
	fail := func(err error) *sourceFacts {
		r.Findings = append(r.Findings, check.Of(check.Source, err)...)
		return &sourceFacts{}
	}
	o, cl, err := discover(ctx, c, log)
	if err != nil {
		return fail(err)
	}
	o.Running, o.SlotWait = running, -1
	f, found, err := source.Check(ctx, o, false)
	if err != nil {
		return fail(err)
	}
	r.Add(found)
	return factsOf(f, cl)
}

// complete reports whether every node's slot is known.
func (f *sourceFacts) complete() bool {
	return f.facts != nil && len(f.facts.Streams()) == len(f.facts.Nodes)
}

// checkTarget looks at the target and reads what it records.
func checkTarget(ctx context.Context, c *config.Config, tables []catalog.PublishedTable, log *slog.Logger, r *check.Report) (apply.State, error) {
	tgt, err := newTarget(c, tables, log)
	if err != nil {
		return apply.State{}, err
	}
	st, found := tgt.(checker).Check(ctx)
	r.Add(found)
	return st, tgt.Close()
}

// refuseTarget returns the errors among what a target finds when it is looked at.
func refuseTarget(ctx context.Context, tgt apply.Target) error {
	c, ok := tgt.(checker)
	if !ok {
		return nil
	}
	_, r := c.Check(ctx)
	return r.Err("check target")
}
