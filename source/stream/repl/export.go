package repl

import (
	"context"
	"fmt"
	"maps"

	"cbrepl/dtx"
)

// TextSettings are the settings of a session that prints values as the stream does.
func TextSettings() map[string]string { return maps.Clone(sessionSettings) }

// ExportSnapshot makes the configured slot as a temporary one, which goes with the
// connection, and exports the snapshot that it begins with. The snapshot has what
// was committed up to the consistent point, and nothing else. It can be taken over
// by other sessions until the connection is used again or closed.
func (c *Conn) ExportSnapshot(ctx context.Context) (Created, error) {
	op := "export snapshot"
	// The session is idle, inside the transaction of the snapshot, while others read.
	if _, err := c.Query(ctx, `SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings
		WHERE name IN ('idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout')`); err != nil {
		return Created{}, c.cfg.fault(op, err)
	}
	rows, err := c.command(ctx, fmt.Sprintf("CREATE_REPLICATION_SLOT %s TEMPORARY LOGICAL %s EXPORT_SNAPSHOT", c.cfg.Slot, c.cfg.Plugin))
	if err != nil {
		return Created{}, c.cfg.fault(op, err)
	}
	if len(rows) != 1 || len(rows[0]) < 4 || rows[0][2] == "" {
		return Created{}, c.cfg.fault(op, fmt.Errorf("unexpected answer of %d rows", len(rows)))
	}
	lsn, err := dtx.ParseLSN(rows[0][1])
	if err != nil {
		return Created{}, c.cfg.fault(op, err)
	}
	return Created{lsn, rows[0][2]}, nil
}
