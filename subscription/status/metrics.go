package status

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"cbrepl/apply"
)

// registerMetrics exports the report through OpenTelemetry. Every instrument
// is read from one report per scrape, so a scrape is consistent in itself.
func registerMetrics(reg *prometheus.Registry, report func() Report) error {
	exp, err := otelprom.New(otelprom.WithRegisterer(reg), otelprom.WithoutScopeInfo(), otelprom.WithoutTargetInfo())
	if err != nil {
		return err
	}
	m := sdk.NewMeterProvider(sdk.WithReader(exp)).Meter("cbrepl")

	var firstErr error
	keep := func(err error) {
		if firstErr == nil {
			firstErr = err
		}
	}
	var all []metric.Observable
	gauge := func(name, unit, help string) metric.Float64ObservableGauge {
		g, err := m.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(help))
		keep(err)
		all = append(all, g)
		return g
	}
	counter := func(name, unit, help string) metric.Int64ObservableCounter {
		c, err := m.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(help))
		keep(err)
		all = append(all, c)
		return c
	}

	healthy := gauge("cbrepl.healthy", "", "1 when streaming and nothing is stuck")
	lag := gauge("cbrepl.lag", "s", "time since the stream was last up to date")
	commitLag := gauge("cbrepl.commit_lag", "s", "age of the oldest source commit that is not applied")
	lagBytes := gauge("cbrepl.lag.size", "By", "log bytes between the server's position and the applied one")
	connected := gauge("cbrepl.stream.connected", "", "1 when the stream is connected")
	spooled := gauge("cbrepl.stream.spool", "By", "spooled bytes of the stream")
	received := gauge("cbrepl.stream.received_lsn", "", "received position as a number")
	safe := gauge("cbrepl.stream.safe_lsn", "", "safe position as a number")
	server := gauge("cbrepl.stream.server_lsn", "", "server position as a number")
	spool := gauge("cbrepl.spool", "By", "bytes in the spool")
	spoolMax := gauge("cbrepl.spool.max", "By", "bound of the spool")
	pendingDtxs := gauge("cbrepl.pending.dtxs", "", "transactions received and not applied")
	pendingBytes := gauge("cbrepl.pending", "By", "row bytes received and not applied")
	oldest := gauge("cbrepl.wait.oldest", "s", "how long the transaction that blocks the next batch has waited")
	dtxs := counter("cbrepl.applied.dtxs", "", "transactions applied")
	rows := counter("cbrepl.applied.rows", "", "rows applied")
	batches := counter("cbrepl.applied.batches", "", "batches applied")
	reconnects := counter("cbrepl.stream.reconnects", "", "reconnects of the stream")
	conflicts := counter("cbrepl.conflicts", "", "rows skipped under on_conflict: log")
	copyRows := gauge("cbrepl.copy.rows", "", "rows copied of tables that are copied for the first time")
	copyBytes := gauge("cbrepl.copy", "By", "bytes copied of tables that are copied for the first time")
	copyLeft := gauge("cbrepl.copy.tables_left", "", "tables whose first copy is not finished")
	if firstErr != nil {
		return firstErr
	}
	_, err = m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		r := report()
		sub := attribute.String("subscription", r.Subscription)
		one := metric.WithAttributes(sub)
		o.ObserveFloat64(commitLag, r.LagSeconds)
		o.ObserveFloat64(healthy, flag(r.Healthy), one)
		for _, s := range r.Streams {
			at := metric.WithAttributes(sub, attribute.Int("content", int(s.Content)))
			o.ObserveFloat64(lag, s.LagSeconds, at)
			o.ObserveFloat64(lagBytes, float64(s.LagBytes), at)
			o.ObserveFloat64(connected, flag(s.Connected), at)
			o.ObserveFloat64(spooled, float64(s.SpoolBytes), at)
			o.ObserveFloat64(received, float64(s.ReceivedLSN), at)
			o.ObserveFloat64(safe, float64(s.SafeLSN), at)
			o.ObserveFloat64(server, float64(s.ServerLSN), at)
			o.ObserveInt64(reconnects, s.Reconnects, at)
		}
		o.ObserveFloat64(spool, float64(r.Spool.Bytes), one)
		o.ObserveFloat64(spoolMax, float64(r.Spool.MaxBytes), one)
		o.ObserveFloat64(pendingDtxs, float64(r.Pending.Dtxs), one)
		o.ObserveFloat64(pendingBytes, float64(r.Pending.Bytes), one)
		wait := 0.0
		for _, w := range r.Waits {
			if w.Blocking {
				wait = w.Seconds
			}
		}
		o.ObserveFloat64(oldest, wait, one)
		o.ObserveInt64(dtxs, r.Applied.Dtxs, one)
		o.ObserveInt64(rows, r.Applied.Rows, one)
		o.ObserveInt64(batches, r.Applied.Batches, one)
		if len(r.Copies) > 0 {
			var rows, bytes, left float64
			for i := range r.Copies {
				c := &r.Copies[i]
				rows, bytes = rows+float64(c.Rows), bytes+float64(c.Bytes)
				left += flag(c.State != apply.Copied)
			}
			o.ObserveFloat64(copyRows, rows, one)
			o.ObserveFloat64(copyBytes, bytes, one)
			o.ObserveFloat64(copyLeft, left, one)
		}
		for t, n := range r.Conflicts {
			o.ObserveInt64(conflicts, n, metric.WithAttributes(sub, attribute.String("table", t)))
		}
		return nil
	}, all...)
	return err
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
