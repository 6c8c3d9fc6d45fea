// Package plugin tests the C output plugin of plugin/cbrepl_source: on stock
// PostgreSQL, message by message beside pgoutput, and on a real Greenplum 6.
package plugin

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cbrepl/lab"

	"github.com/jackc/pgx/v5"
)

var shared lab.Shared

// Two servers are in use: the shared one has no plugin, this one is made on demand.
func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

var library struct {
	once sync.Once
	dir  string
	err  error
}

// buildLibrary makes the plugin for the lab's PostgreSQL with PGXS, in a copy of
// its directory that the server's account can read, and returns the directory.
func buildLibrary(t testing.TB) string {
	t.Helper()
	library.once.Do(func() { library.dir, library.err = build() })
	if library.err != nil {
		t.Fatalf("build the plugin: %v\nThe target `postgres` of the Makefile installs what it needs.", library.err)
	}
	return library.dir
}

func build() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	bin, err := lab.FindBinaries(ctx)
	if err != nil {
		return "", err
	}
	source, err := filepath.Abs("../../plugin/cbrepl_source")
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "cbrepl-plugin-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // the server runs as another account
		return "", err
	}
	copyTree := exec.CommandContext(ctx, "sh", "-c", `cp "$0"/*.c "$0"/*.h "$0"/*.sql "$0"/*.control "$0"/Makefile "$1"`, source, dir)
	if out, err := copyTree.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	mk := exec.CommandContext(ctx, "make", "-C", dir, "-s", "PG_CONFIG="+filepath.Join(bin, "pg_config"), "with_llvm=no", "COPT=-Werror")
	out, err := mk.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make: %w\n%s", err, out)
	}
	return dir, nil
}

// pluginServer starts a server that finds the plugin.
func pluginServer(t testing.TB, settings map[string]string) *lab.Server {
	t.Helper()
	requireVersion15(t)
	all := map[string]string{"dynamic_library_path": "$libdir:" + buildLibrary(t)}
	for k, v := range settings {
		all[k] = v
	}
	srv := shared.NewServer(t, lab.Options{Settings: all})
	trustPlugin(t, srv)
	return srv
}

// requireVersion15 skips on other versions: the plugin builds for this one, and
// their pgoutput sends other messages.
func requireVersion15(t testing.TB) {
	t.Helper()
	bin, err := lab.FindBinaries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), ") 15.") {
		t.Skipf("NOT RUN: cbrepl_source builds for PostgreSQL 15, this is %s", strings.TrimSpace(string(out)))
	}
}

// trustPlugin names the plugin to servers that load only the output plugins that
// they are told of: recent minor versions do.
func trustPlugin(t testing.TB, srv *lab.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := connect(ctx, t, srv.DSN())
	const setting = "output_plugin_libraries"
	var known *string
	if err := c.QueryRow(ctx, "SELECT current_setting('"+setting+"', true)").Scan(&known); err != nil {
		t.Fatal(err)
	}
	if known == nil {
		return
	}
	must(ctx, t, c, "ALTER SYSTEM SET "+setting+" = 'pgoutput', 'cbrepl_source'")
	must(ctx, t, c, "SELECT pg_reload_conf()")
	for ctx.Err() == nil {
		var now string
		if err := connect(ctx, t, srv.DSN()).QueryRow(ctx, "SHOW "+setting).Scan(&now); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(now, "cbrepl_source") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s was not reloaded", setting)
}

func connect(ctx context.Context, t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func must(ctx context.Context, t testing.TB, c *pgx.Conn, sql string) {
	t.Helper()
	if _, err := c.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
