package source

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/check"
	"cbrepl/dtx"
)

// PluginVersion is the version of plugin cbrepl_source that speaks this wire.
const PluginVersion = "1.0"

const settings6SQL = `SELECT pg_postmaster_start_time()::text || '/' || current_setting('port') || '/' || coalesce(inet_server_addr()::text, ''),
 current_setting('wal_level'), current_setting('server_encoding'), pg_is_in_recovery(),
 current_setting('max_replication_slots')::int, (SELECT count(*)::int FROM pg_replication_slots),
 current_setting('max_wal_senders')::int, (SELECT count(*)::int FROM pg_stat_replication),
 (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user), quote_ident(current_user),
 EXISTS (SELECT 1 FROM pg_replication_slots WHERE slot_name = $1), current_setting('shared_preload_libraries'), version(),
 current_setting('wal_keep_segments')::int`

// runGreenplum6 looks at one node of a Greenplum 6.
func (p *probe) runGreenplum6(ctx context.Context) {
	conn, err := connect(ctx, p.node)
	if err != nil {
		p.fail("connect to source", err)
		return
	}
	defer closeConn(conn)
	if !p.describe(ctx, conn) {
		return
	}
	var st serverSettings
	var preloaded, version string
	var kept int
	err = conn.QueryRow(ctx, settings6SQL, p.cfg.Slot).Scan(append(st.fields(&p.facts), &preloaded, &version, &kept)...)
	if err != nil {
		p.fail("check source", err)
		return
	}
	if !strings.Contains(version, "Greenplum Database 6") {
		p.add(check.Finding{Found: fmt.Sprintf("the server is %s, want Greenplum 6", version), Remedy: "Correct its connection string, or source.kind"})
		return
	}
	streams := p.checkSettings(&st)
	if !p.library(ctx, conn, preloaded) {
		return
	}
	if p.node.Content == dtx.Coordinator {
		p.keptLog(kept)
		if p.facts.listed, err = readListed(ctx, p.cfg.Coordinator, conn, p.cfg.Publication); err != nil {
			p.fail("read publication", err)
			return
		}
		p.facts.tables = p.facts.listed.tables(p)
		if p.policies, err = readPolicies(ctx, conn); err != nil {
			p.fail("read distribution policies", err)
			return
		}
	}
	p.facts.read = true
	if !st.recovery {
		p.heldLog(ctx, conn)
	}
	if streams {
		p.replication(ctx)
	}
}

// keepSegments is how many segments of 64 MiB the coordinator is to keep. Its log
// holds catalogues and commit records, some hundred bytes a transaction.
const keepSegments = 64

// keptLog looks at what the coordinator keeps of its log. Unlike segments, and
// unlike any PostgreSQL, it does not keep what slots need: a checkpoint removes
// everything but wal_keep_segments, and the daemon, when it comes back later than
// that, cannot go on.
func (p *probe) keptLog(segments int) {
	if segments >= keepSegments {
		return
	}
	p.add(check.Finding{
		Level: check.Warning,
		Found: fmt.Sprintf("wal_keep_segments is %d on the coordinator, want at least %d: a Greenplum 6 coordinator removes log that a slot still needs, and a daemon that was away for longer needs a new initial copy",
			segments, keepSegments),
		Remedy: "Run there",
		SQL:    []string{fmt.Sprintf("ALTER SYSTEM SET wal_keep_segments = %d", keepSegments), "SELECT pg_reload_conf()"},
	})
}

// library checks plugin cbrepl_source on this node. It reports whether looking on
// makes sense.
func (p *probe) library(ctx context.Context, conn *pgx.Conn, preloaded string) bool {
	var version string
	err := conn.QueryRow(ctx, "SELECT cbrepl_source.version()").Scan(&version)
	var pe *pgconn.PgError
	switch {
	case errors.As(err, &pe) && (pe.Code == "3F000" || pe.Code == "42883"): // no schema, no function
		p.add(check.Finding{
			Found:  "extension cbrepl_source is not in this database",
			Remedy: "Install the library on every host (make install in plugin/cbrepl_source), then run on the coordinator",
			SQL:    []string{"CREATE EXTENSION cbrepl_source"},
		})
		return false
	case errors.As(err, &pe) && pe.Code == "58P01": // no such file
		p.add(check.Finding{
			Found:  "the library of extension cbrepl_source is missing on this node: " + pe.Message,
			Remedy: "Install it on this node's host: make install in plugin/cbrepl_source, with this cluster's pg_config",
		})
		return false
	case err != nil:
		p.fail("check plugin cbrepl_source", err)
		return false
	case version != PluginVersion:
		p.add(check.Finding{
			Found:  fmt.Sprintf("the library cbrepl_source has version %s, want %s", version, PluginVersion),
			Remedy: "Install the version that came with this cbrepl on every host, and restart the cluster",
		})
		return false
	}
	for l := range strings.SplitSeq(preloaded, ",") {
		if strings.TrimSuffix(path.Base(strings.Trim(l, ` "`)), ".so") == string(Greenplum6.Plugin()) {
			return true
		}
	}
	p.add(check.Finding{
		Found:  fmt.Sprintf("shared_preload_libraries is %q, without cbrepl_source: TRUNCATE would be missing in the stream", preloaded),
		Remedy: "Add it on every node (gpconfig -c shared_preload_libraries -v ..., the libraries that are there included) and restart the cluster",
	})
	return true
}
