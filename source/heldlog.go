package source

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"cbrepl/check"
)

// heldSQL lists what slots keep of the server's log, in bytes. Greenplum 6 calls
// the log by another name and has no wal_status.
func heldSQL(kind Kind) string {
	diff := "pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)"
	if kind == Greenplum6 {
		diff = "pg_xlog_location_diff(pg_current_xlog_location(), s.restart_lsn)"
	}
	return `SELECT s.slot_name::text, s.active, ` + diff + `::int8, coalesce(row_to_json(s)->>'wal_status', '')
 FROM pg_replication_slots s WHERE s.restart_lsn IS NOT NULL ORDER BY 1`
}

// muchLog is what a slot may keep where the server does not say that it is much.
const muchLog = 1 << 30

// heldLog reports slots that hold much of the server's log: its disk fills.
func (p *probe) heldLog(ctx context.Context, conn *pgx.Conn) {
	rows, err := conn.Query(ctx, heldSQL(p.cfg.Kind))
	if err != nil {
		p.fail("read slots", err)
		return
	}
	var name, status string
	var active bool
	var held int64
	_, err = pgx.ForEachRow(rows, []any{&name, &active, &held, &status}, func() error {
		own := name == p.cfg.Slot
		much := status == "extended" || status == "unreserved" || status == "" && held >= muchLog
		f := check.Finding{Level: check.OK, Found: fmt.Sprintf("slot %q keeps %.1f MiB of the server's log", name, float64(held)/(1<<20))}
		switch {
		case status == "lost":
			return nil // CheckSlot refuses the subscription's own
		case !much && !own:
			return nil
		case !much:
		case own:
			f.Level = check.Warning
			f.Remedy = "The daemon gives it back as the target applies: start it, or see in `cbrepl status` what it waits for"
			if status == "unreserved" {
				f.Remedy += "; the server is about to remove it, which needs a new initial copy: let it keep more"
				f.SQL = []string{"ALTER SYSTEM SET max_slot_wal_keep_size = -1", "SELECT pg_reload_conf()"}
			}
		default:
			f.Level = check.Warning
			f.Remedy = "Its reader has to go on"
			if !active {
				f.Remedy = "Nobody reads it; if nobody will, drop it"
				f.SQL = []string{"SELECT pg_drop_replication_slot(" + quote(name) + ")"}
			}
		}
		p.add(f)
		return nil
	})
	if err != nil {
		p.fail("read slots", err)
	}
}
