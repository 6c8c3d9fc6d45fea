package pgside

import (
	"strings"

	"cbrepl/catalog"
)

// CopySQL is the COPY of some columns into a table.
func CopySQL(t *catalog.Table, cols []int) string {
	names := make([]string, len(cols))
	for i, c := range cols {
		names[i] = Column(t, c)
	}
	return "COPY " + TableName(t) + " (" + strings.Join(names, ", ") + ") FROM STDIN"
}

// TruncateSQL empties tables. Plain tables are named with ONLY: the source lists
// each table of an inheritance tree that it emptied.
func TruncateSQL(tables []*catalog.Table, restartIdentity bool) string {
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = Only(t)
	}
	sql := "TRUNCATE " + strings.Join(names, ", ")
	if restartIdentity {
		sql += " RESTART IDENTITY"
	}
	return sql
}
