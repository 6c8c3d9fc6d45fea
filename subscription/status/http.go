package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler serves /status (the report as JSON), /healthz (200 when healthy, else
// 503 with the reasons, one a line) and /metrics (Prometheus).
func Handler(report func() Report) (http.Handler, error) {
	reg := prometheus.NewRegistry()
	if err := registerMetrics(reg, report); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(report()) // a reader that went away is not our fault
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		r := report()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if r.Healthy {
			_, _ = io.WriteString(w, "ok\n")
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, strings.Join(r.Unhealthy, "\n")+"\n")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	return mux, nil
}

// Serve answers requests on l until ctx ends. It closes l.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := srv.Shutdown(end); err != nil {
		_ = srv.Close()
	}
	return ended(<-done)
}

// ended: after Shutdown, Serve always returns ErrServerClosed.
func ended(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Fetch reads the report of a running daemon at host:port.
func Fetch(ctx context.Context, addr string) (*Report, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/status", nil)
	if err != nil {
		return nil, nil, fmt.Errorf("%q is not a host:port: %w", addr, err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	resp, err := client.Do(req)
	if err != nil {
		return nil, nil, fmt.Errorf("no daemon answers at %s: %w; is it running, and is http.listen this address?", addr, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return nil, nil, fmt.Errorf("read status from %s: %w", addr, err)
	}
	r := &Report{}
	if resp.StatusCode != http.StatusOK || json.Unmarshal(body, r) != nil || r.Subscription == "" {
		return nil, nil, fmt.Errorf("what answers at %s is not a cbrepl daemon", addr)
	}
	return r, body, nil
}
