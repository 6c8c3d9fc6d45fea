package source

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"cbrepl/dtx"
	"cbrepl/source/stream/repl"
)

// primary is a primary segment as the cluster's catalogue has it.
type primary struct {
	content dtx.Content
	// address is what other nodes use; hostname the machine's name.
	address, hostname string
	port              int
}

// catalogue is what the coordinator says of its cluster.
type catalogue struct {
	// cluster tells a Cloudberry or Greenplum coordinator from a PostgreSQL server.
	cluster bool
	// primaries by content, rising.
	primaries []primary
	// option opens a session in utility mode.
	option string
	// kind is what the coordinator's version says.
	kind Kind
}

const primariesSQL = `SELECT content::int, coalesce(nullif(address, ''), hostname, ''), coalesce(hostname, ''), port::int
 FROM pg_catalog.gp_segment_configuration WHERE role = 'p' AND content >= 0 ORDER BY content`

// readCatalogue asks the coordinator for its primary segments.
func readCatalogue(ctx context.Context, conn *pgx.Conn) (*catalogue, error) {
	c := &catalogue{kind: Contract}
	var version int
	err := conn.QueryRow(ctx, "SELECT to_regclass('pg_catalog.gp_segment_configuration') IS NOT NULL, current_setting('server_version_num')::int").Scan(&c.cluster, &version)
	if err != nil || !c.cluster {
		return c, err
	}
	if version < firstContractVersion {
		c.kind = Greenplum6
	}
	rows, err := conn.Query(ctx, primariesSQL)
	if err != nil {
		return nil, err
	}
	c.primaries, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (p primary, err error) {
		return p, r.Scan(&p.content, &p.address, &p.hostname, &p.port)
	})
	if err != nil {
		return nil, err
	}
	if len(c.primaries) == 0 {
		return nil, &dtx.Error{
			Op: "find segments", Content: dtx.AtContent(dtx.Coordinator), Class: dtx.ClassStop,
			Msg:  "gp_segment_configuration names no primary segment on this server: it is a segment, not the coordinator",
			Hint: "Give the coordinator's address in source.coordinator.dsn",
		}
	}
	for _, p := range c.primaries {
		if p.address == "" || p.port < 1 || p.port > 65535 {
			return nil, &dtx.Error{
				Op: "find segments", Content: dtx.AtContent(p.content), Class: dtx.ClassStop,
				Msg: "gp_segment_configuration has no address or port for its primary", Hint: "List the segments under source.segments",
			}
		}
	}
	c.option, err = utilityOption(ctx, conn)
	return c, err
}

// utilityOption finds the option that opens a session in utility mode: segments
// take no other. Where gp_role is fixed when a session starts (Greenplum 7, Cloudberry)
// it is that; where it can be set later (Greenplum 6) it does not count at the
// start, and gp_session_role does, which pg_settings does not list.
func utilityOption(ctx context.Context, conn *pgx.Conn) (string, error) {
	var atStart bool
	err := conn.QueryRow(ctx, "SELECT coalesce(bool_or(context IN ('backend', 'superuser-backend')), false) FROM pg_settings WHERE name = 'gp_role'").Scan(&atStart)
	if err != nil {
		return "", err
	}
	if atStart {
		return "-c gp_role=utility", nil
	}
	var role string
	err = conn.QueryRow(ctx, "SHOW gp_session_role").Scan(&role)
	var pe *pgconn.PgError
	switch {
	case err == nil:
		return "-c gp_session_role=utility", nil
	case errors.As(err, &pe) && pe.Code == "42704": // no such setting
		return "", nil
	}
	return "", err
}

// readFrom opens a session on the coordinator for readCatalogue, and says
// whether it could.
func readFrom(ctx context.Context, dsn string) (c *catalogue, connected bool, err error) {
	conn, err := connect(ctx, Node{Content: dtx.Coordinator, DSN: dsn})
	if err != nil {
		return nil, false, err
	}
	defer closeConn(conn)
	c, err = readCatalogue(ctx, conn)
	return c, true, repl.Fault("find segments", dtx.Coordinator, "", "", err)
}

// contentOf asks a server of a cluster which content it serves; false where it
// cannot say.
func contentOf(ctx context.Context, conn *pgx.Conn) (dtx.Content, bool, error) {
	var text string
	// pg_settings does not list it on every generation, and an unknown one is an error.
	err := conn.QueryRow(ctx, "SHOW gp_contentid").Scan(&text)
	var pe *pgconn.PgError
	if errors.As(err, &pe) && pe.Code == "42704" {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	n, err := strconv.ParseInt(text, 10, 16)
	if err != nil {
		return 0, false, fmt.Errorf("gp_contentid is %q, want a content id", text)
	}
	return dtx.Content(n), true, nil
}

// checkListed compares a list made by hand with the catalogue's contents.
func checkListed(listed []Node, primaries []primary) error {
	have := map[dtx.Content]bool{}
	for _, n := range listed {
		have[n.Content] = true
	}
	var missing, extra []string
	for _, p := range primaries {
		if !have[p.content] {
			missing = append(missing, p.content.String())
		}
		delete(have, p.content)
	}
	for _, n := range listed {
		if have[n.Content] {
			extra = append(extra, n.Content.String())
		}
	}
	slices.Sort(extra)
	if len(missing)+len(extra) == 0 {
		return nil
	}
	msg := fmt.Sprintf("%d segments are listed under source.segments, but the cluster has %d", len(listed), len(primaries))
	if len(missing) > 0 {
		msg += "; not listed: content " + strings.Join(missing, ", ")
	}
	if len(extra) > 0 {
		msg += "; not in the cluster: content " + strings.Join(extra, ", ")
	}
	return &dtx.Error{
		Op: "find segments", Class: dtx.ClassStop, Msg: msg,
		Hint: "List every primary segment, or leave source.segments out, so that they are found through the coordinator; " +
			"if the cluster was expanded since the subscription began, a new initial copy is needed",
	}
}
