// Package clustertest gives tests a database on a real Cloudberry or Greenplum
// cluster, whose coordinator the environment names. Everything a test makes lives
// in databases of its own, dropped when the tests end. It never starts a cluster.
package clustertest

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// EnvVar names the environment variable with the connection URL of a cluster's
// coordinator; several, of clusters of different sizes, are separated by blanks.
// The role must be a superuser.
const EnvVar = "CBREPL_TEST_CLUSTER_DSN"

// SourceEnvVar names the environment variable with the connection URL of the
// coordinator of a Greenplum 6 that has cbrepl_source preloaded on every node. The
// role must be a superuser.
const SourceEnvVar = "CBREPL_TEST_SOURCE_DSN"

// TB is what the helpers need of *testing.T and *testing.B.
type TB interface {
	Helper()
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	Cleanup(func())
}

// DSNs lists the clusters of the environment, and skips the test when there are
// none.
func DSNs(t TB) []string {
	t.Helper()
	list := strings.Fields(os.Getenv(EnvVar))
	if len(list) == 0 {
		t.Skipf("NOT RUN: set %s to the connection URL of a Cloudberry or Greenplum coordinator (postgres://superuser@host:port/postgres)", EnvVar)
	}
	return list
}

// SourceDSN is the source of the environment. It skips the test when there is
// none.
func SourceDSN(t TB) string {
	t.Helper()
	dsn := os.Getenv(SourceEnvVar)
	if dsn == "" {
		t.Skipf("NOT RUN: set %s to the connection URL of a Greenplum 6 coordinator with cbrepl_source preloaded on every node (postgres://superuser@host:port/postgres)", SourceEnvVar)
	}
	return dsn
}

// Databases keeps one database per cluster for the tests of a package.
type Databases struct {
	mu   sync.Mutex
	made map[string]string // by the cluster's DSN
}

// Main runs the tests of m (a *testing.M), then drops the databases. It returns
// the exit code for os.Exit.
func (d *Databases) Main(m interface{ Run() int }) int {
	code := m.Run()
	d.mu.Lock()
	defer d.mu.Unlock()
	for dsn, db := range d.made {
		if err := drop(dsn, db); err != nil {
			fmt.Fprintln(os.Stderr, "drop the tests' database:", err)
			code = max(code, 1)
		}
	}
	return code
}

// Open returns the connection string of the tests' database on a cluster.
func (d *Databases) Open(t TB, dsn string) string {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.made == nil {
		d.made = map[string]string{}
	}
	if d.made[dsn] == "" {
		sweep(t, dsn)
		db := fmt.Sprintf("%s%d_%d", prefix(), os.Getpid(), len(d.made)+1)
		if err := exec(dsn, "CREATE DATABASE "+db+" TEMPLATE template0 ENCODING 'UTF8'"); err != nil {
			t.Fatalf("create the tests' database: %v", err)
		}
		d.made[dsn] = db
	}
	return WithDatabase(t, dsn, d.made[dsn])
}

// prefix begins the names of this host's databases.
func prefix() string {
	host, _ := os.Hostname()
	h := fnv.New32a()
	_, _ = h.Write([]byte(host))
	return fmt.Sprintf("cbrepl_test_%08x_", h.Sum32())
}

// sweep drops what tests of this host left that were killed.
func sweep(t TB, dsn string) {
	rows, err := TryQuery(dsn, "SELECT datname FROM pg_database WHERE datname LIKE '"+strings.ReplaceAll(prefix(), "_", `\_`)+"%'")
	if err != nil {
		return // the test meets the fault itself
	}
	for _, r := range rows {
		var pid, n int
		if _, err := fmt.Sscanf(strings.TrimPrefix(*r[0], prefix()), "%d_%d", &pid, &n); err != nil || pid == os.Getpid() {
			continue
		}
		if syscall.Kill(pid, 0) == nil {
			continue
		}
		if err := drop(dsn, *r[0]); err != nil {
			t.Logf("a database that killed tests left stays: %v", err)
		}
	}
}

// WithDatabase names another database in a connection URL.
func WithDatabase(t TB, dsn, db string) string {
	t.Helper()
	cfg, err := pgconn.ParseConfig(dsn)
	if err != nil {
		t.Fatalf("%s cannot be parsed", EnvVar)
	}
	out := fmt.Sprintf("host=%s port=%d user=%s dbname=%s", quote(cfg.Host), cfg.Port, quote(cfg.User), quote(db))
	if cfg.Password != "" {
		out += " password=" + quote(cfg.Password)
	}
	if cfg.TLSConfig == nil {
		out += " sslmode=disable"
	}
	return out
}

func quote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}

// exec runs a statement, trying again while another session makes a database of
// the same template.
func exec(dsn, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgconn.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for {
		err := conn.Exec(ctx, sql).Close()
		var pg *pgconn.PgError
		if ok := asPg(err, &pg); !ok || pg.Code != "55006" {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func asPg(err error, pg **pgconn.PgError) bool {
	e, ok := err.(*pgconn.PgError) //nolint:errorlint // straight from the connection
	*pg = e
	return ok
}

func drop(dsn, db string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.PgConn().Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '"+db+"'").ReadAll(); err != nil {
		return err
	}
	return exec(dsn, "DROP DATABASE "+db)
}

// Exec runs statements without parameters in a session of its own.
func Exec(t TB, dsn, sql string) {
	t.Helper()
	Query(t, dsn, sql)
}

// Query runs statements in a session of its own and returns the last one's rows;
// nil is NULL.
func Query(t TB, dsn, sql string) [][]*string {
	t.Helper()
	rows, err := TryQuery(dsn, sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return rows
}

// TryQuery is Query that may fail.
func TryQuery(dsn, sql string) ([][]*string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cfg, err := pgconn.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["client_min_messages"] = "error"
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil || len(results) == 0 {
		return nil, err
	}
	var out [][]*string
	for _, r := range results[len(results)-1].Rows {
		row := make([]*string, len(r))
		for i, v := range r {
			if v != nil {
				s := string(v)
				row[i] = &s
			}
		}
		out = append(out, row)
	}
	return out, nil
}
