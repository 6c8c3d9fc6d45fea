package pgside

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// valueSettings are all settings by which text becomes another value or a value
// another text, or by which a statement means another thing, with what they have to
// be. Whatever the server, the role, the database or the environment defaults to,
// every value is written and compared as the source printed it. Servers lack some of
// them. A test tries every setting that a server has (TestValueSettings).
var valueSettings = [][2]string{
	{"client_encoding", "UTF8"},
	{"datestyle", "ISO, YMD"},
	{"intervalstyle", "postgres"},
	{"timezone", "UTC"},
	{"timezone_abbreviations", "Default"},
	{"bytea_output", "hex"},
	{"extra_float_digits", "3"},
	{"array_nulls", "on"}, // else a NULL element becomes the text NULL
	{"lc_monetary", "C"},
	{"xmloption", "content"},
	{"search_path", "pg_catalog"},
	{"standard_conforming_strings", "on"},
	{"transform_null_equals", "off"},
	{"quote_all_identifiers", "off"}, // names of types are compared as printed
	{"sql_inheritance", "on"},        // a partition root without ONLY is its partitions
	{"exit_on_error", "off"},         // savepoints are of no use otherwise
}

// PinValues makes the settings of a session that decide what text means, by
// statements: a worker process on a segment gets those, not all of those that are
// sent when the connection starts. It fails when one cannot be made.
func PinValues(ctx context.Context, conn *pgconn.PgConn) error {
	names := make([]string, len(valueSettings))
	for i, s := range valueSettings {
		names[i] = s[0]
	}
	rows, err := Query(ctx, conn, `SELECT pg_catalog.lower(name) FROM pg_catalog.pg_settings WHERE pg_catalog.lower(name) = ANY ($1::text[])`, TextArray(names))
	if err != nil {
		return err
	}
	known := make([]string, len(rows))
	for i, r := range rows {
		known[i] = string(r[0])
	}
	var list, args []string
	for _, s := range valueSettings {
		if slices.Contains(known, s[0]) {
			list = append(list, fmt.Sprintf("pg_catalog.set_config($%d, $%d, false)", len(args)+1, len(args)+2))
			args = append(args, s[0], s[1])
		}
	}
	_, err = Query(ctx, conn, "SELECT "+strings.Join(list, ", "), args...)
	return err
}
