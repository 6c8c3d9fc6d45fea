package repl

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Servers before PostgreSQL 10 (Greenplum 6 is one) take no SQL on a replication
// connection and know fewer options of its commands.

// oldProtocol reports whether a server of that version is such a one.
func oldProtocol(version string) bool {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	return err == nil && n < 10
}

// connectSQL opens an ordinary session beside the replication connection.
func (c *Conn) connectSQL(ctx context.Context) (*pgconn.PgConn, error) {
	pc, err := c.cfg.pgConfig()
	if err != nil {
		return nil, err
	}
	delete(pc.RuntimeParams, "replication")
	return pgconn.ConnectConfig(ctx, pc)
}

// oldSlotSQL is slotSQL where the server does not show who reads a slot, nor how
// far it is confirmed: plugin cbrepl_source shows that of its own.
const oldSlotSQL = `SELECT slot_name, coalesce(plugin, ''), slot_type, coalesce(database, ''), active,
 0, coalesce(restart_lsn::text, '0/0'),
 CASE WHEN plugin = 'cbrepl_source' THEN coalesce(cbrepl_source.confirmed_lsn(slot_name::text), '0/0') ELSE '0/0' END,
 '', 'false' FROM pg_catalog.pg_replication_slots`

// dropOldSlot drops the slot, waiting until nobody uses it.
func (c *Conn) dropOldSlot(ctx context.Context) error {
	for {
		_, err := c.command(ctx, fmt.Sprintf("DROP_REPLICATION_SLOT %s", c.cfg.Slot))
		var pe *pgconn.PgError
		if !errors.As(err, &pe) || pe.Code != "55006" { // not in use
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}
