package lab

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Feature is something that not every version of the server has. Whether a
// server has it is asked of its catalogue.
type Feature struct {
	name  string
	probe string // a query for a boolean
}

// Features that tests need.
var (
	ColumnLists = Feature{"column lists of publications", hasColumn("pg_publication_rel", "prattrs")}
	RowFilters  = Feature{"row filters of publications", hasColumn("pg_publication_rel", "prqual")}
	// TwoPhaseStreams is pgoutput's protocol 3.
	TwoPhaseStreams = Feature{"prepared transactions in pgoutput", hasColumn("pg_subscription", "subtwophasestate")}
	ParameterGrants = Feature{"GRANT SET ON PARAMETER", "select to_regclass('pg_catalog.pg_parameter_acl') is not null"}
)

func hasColumn(table, column string) string {
	return "select exists (select from pg_attribute where attrelid = 'pg_catalog." + table + "'::regclass and attname = " + quote(column) + ")"
}

// Need skips the test unless the server of a connection string has a feature.
func Need(t interface {
	TB
	Skipf(format string, args ...any)
}, dsn string, f Feature,
) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testWait)
	defer cancel()
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer c.Close(ctx)
	var has bool
	var version string
	if err := c.QueryRow(ctx, "select ("+f.probe+"), current_setting('server_version')").Scan(&has, &version); err != nil {
		t.Fatalf("look for %s: %v", f.name, err)
	}
	if !has {
		t.Skipf("PostgreSQL %s has no %s", version, f.name)
	}
}
