package repl

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"cbrepl/dtx"
)

// Server is what a node says of itself.
type Server struct {
	SystemID string
	Timeline int32
	Database string
	// Version is server_version_num; VersionText is server_version.
	Version     int
	VersionText string
	// WALEnd is the end of flushed WAL when asked.
	WALEnd dtx.LSN
	// SenderTimeout is wal_sender_timeout, 0 when off.
	SenderTimeout time.Duration
}

// Conn is a replication connection that does not stream yet. It is used by one
// goroutine.
type Conn struct {
	cfg    Config
	pg     *pgconn.PgConn
	in     *frames
	server Server
	// sql is an ordinary session for Query, where replication connections take no
	// SQL (before PostgreSQL 10); else nil.
	sql *pgconn.PgConn
}

// Connect opens a replication connection and identifies the server.
func Connect(ctx context.Context, cfg Config) (*Conn, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, &dtx.Error{Op: "connect to source", Content: dtx.AtContent(cfg.Content), Class: dtx.ClassStop, Err: err}
	}
	pc, err := cfg.pgConfig()
	if err != nil {
		return nil, err
	}
	c := &Conn{cfg: cfg}
	pc.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		c.in = newFrames(r, cfg.ReadBuffer, cfg.MaxMessage)
		return pgproto3.NewFrontend(c.in, w)
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.ConnectTimeout)
	defer cancel()
	c.pg, err = pgconn.ConnectConfig(ctx, pc)
	if err != nil {
		return nil, cfg.fault("connect to source", err)
	}
	if c.server, err = c.identify(ctx); err != nil {
		c.Close()
		return nil, cfg.fault("identify source", err)
	}
	return c, nil
}

// Close ends the connection.
func (c *Conn) Close() {
	closePG(&c.sql)
	closePG(&c.pg)
}

func closePG(pg **pgconn.PgConn) {
	if *pg == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = (*pg).Close(ctx) // nothing is pending: a failure loses nothing
	// A query that was cancelled has left a goroutine of pgx behind.
	select {
	case <-(*pg).CleanupDone():
	case <-ctx.Done():
	}
	*pg = nil
}

// PID is the process that serves the connection.
func (c *Conn) PID() uint32 { return c.pg.PID() }

// Server returns what the node said of itself at connect.
func (c *Conn) Server() Server { return c.server }

func (c *Conn) identify(ctx context.Context) (Server, error) {
	id, err := pglogrepl.IdentifySystem(ctx, c.pg)
	if err != nil {
		return Server{}, err
	}
	s := Server{
		SystemID: id.SystemID, Timeline: id.Timeline, WALEnd: dtx.LSN(id.XLogPos), Database: id.DBName,
		VersionText: c.pg.ParameterStatus("server_version"),
	}
	if oldProtocol(s.VersionText) {
		if c.sql, err = c.connectSQL(ctx); err != nil {
			return s, err
		}
	}
	rows, err := c.Query(ctx, "SELECT name, setting FROM pg_settings WHERE name IN ('server_version_num', 'wal_sender_timeout')")
	if err != nil {
		return s, err
	}
	for _, r := range rows {
		n, err := strconv.Atoi(r[1])
		if err != nil {
			return s, fmt.Errorf("setting %s is not a number", r[0])
		}
		if r[0] == "server_version_num" {
			s.Version = n
		} else {
			s.SenderTimeout = time.Duration(n) * time.Millisecond
		}
	}
	return s, nil
}

// Query runs one statement by the simple protocol and returns its rows as text;
// NULL reads as "".
func (c *Conn) Query(ctx context.Context, sql string) ([][]string, error) {
	if c.sql != nil {
		return query(ctx, c.sql, sql)
	}
	return query(ctx, c.pg, sql)
}

// command runs a replication command.
func (c *Conn) command(ctx context.Context, text string) ([][]string, error) {
	return query(ctx, c.pg, text)
}

func query(ctx context.Context, pg *pgconn.PgConn, sql string) ([][]string, error) {
	results, err := pg.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	var out [][]string
	for _, res := range results {
		for _, row := range res.Rows {
			r := make([]string, len(row))
			for i, v := range row {
				r[i] = string(v)
			}
			out = append(out, r)
		}
	}
	return out, nil
}

// Slot is a replication slot as the server shows it.
type Slot struct {
	Name, Plugin, Type, Database string
	Active                       bool
	ActivePID                    int
	RestartLSN, Confirmed        dtx.LSN
	// WALStatus is reserved, extended, unreserved, lost, or "" (older servers).
	WALStatus string
	TwoPhase  bool
}

// Reader names the session that reads the slot, as far as the server shows it.
func (s *Slot) Reader() string {
	if s.ActivePID == 0 {
		return "another session"
	}
	return fmt.Sprintf("the session with pid %d", s.ActivePID)
}

// slotSQL reads columns that not every version has through JSON.
const slotSQL = `SELECT slot_name, coalesce(plugin, ''), slot_type, coalesce(database, ''), active,
 coalesce(active_pid, 0), coalesce(restart_lsn, '0/0'), coalesce(confirmed_flush_lsn, '0/0'),
 coalesce(to_jsonb(s)->>'wal_status', ''), coalesce(to_jsonb(s)->>'two_phase', 'false')
 FROM pg_catalog.pg_replication_slots s`

// Slot reads the slot named name; false when there is none.
func (c *Conn) Slot(ctx context.Context, name string) (Slot, bool, error) {
	if err := CheckSlotName(name); err != nil {
		return Slot{}, false, err
	}
	sql := slotSQL
	if c.sql != nil {
		sql = oldSlotSQL
	}
	rows, err := c.Query(ctx, sql+" WHERE slot_name = '"+name+"'")
	if err != nil {
		return Slot{}, false, c.cfg.fault("read slot", err)
	}
	if len(rows) == 0 {
		return Slot{}, false, nil
	}
	r := rows[0]
	s := Slot{
		Name: r[0], Plugin: r[1], Type: r[2], Database: r[3], Active: r[4] == "t",
		WALStatus: r[8], TwoPhase: r[9] == "true",
	}
	s.ActivePID, _ = strconv.Atoi(r[5]) // 0 is unknown; it serves messages only
	for i, p := range []*dtx.LSN{&s.RestartLSN, &s.Confirmed} {
		if *p, err = dtx.ParseLSN(r[6+i]); err != nil {
			return Slot{}, false, c.cfg.fault("read slot", err)
		}
	}
	return s, true, nil
}

// Created is a new slot.
type Created struct {
	// ConsistentPoint is where decoding starts: transactions that commit behind it
	// are sent.
	ConsistentPoint dtx.LSN
	// Snapshot is the exported snapshot's name; it lives until the connection runs
	// its next command or closes.
	Snapshot string
}

// CreateSlot makes the configured slot.
func (c *Conn) CreateSlot(ctx context.Context, twoPhase, exportSnapshot bool) (Created, error) {
	snap := "nothing"
	if exportSnapshot {
		snap = "export"
	}
	opts := "SNAPSHOT '" + snap + "'"
	if twoPhase {
		opts += ", TWO_PHASE"
	}
	sql := fmt.Sprintf("CREATE_REPLICATION_SLOT %s LOGICAL %s (%s)", c.cfg.Slot, c.cfg.Plugin, opts)
	if c.server.Version < 150000 { // the option list in parentheses came with 15
		if twoPhase {
			return Created{}, c.cfg.stop("create slot",
				fmt.Sprintf("server version %s does not decode two-phase transactions at PREPARE", c.server.VersionText),
				"Set two_phase to false: parts then need part messages")
		}
		sql = fmt.Sprintf("CREATE_REPLICATION_SLOT %s LOGICAL %s", c.cfg.Slot, c.cfg.Plugin)
		if c.sql == nil { // an old server always exports one
			sql += map[bool]string{false: " NOEXPORT_SNAPSHOT", true: " EXPORT_SNAPSHOT"}[exportSnapshot]
		}
	}
	rows, err := c.command(ctx, sql)
	if err != nil {
		return Created{}, c.cfg.fault("create slot "+c.cfg.Slot, err)
	}
	if len(rows) != 1 || len(rows[0]) < 4 {
		return Created{}, c.cfg.fault("create slot "+c.cfg.Slot, fmt.Errorf("unexpected answer of %d rows", len(rows)))
	}
	lsn, err := dtx.ParseLSN(rows[0][1])
	if err != nil {
		return Created{}, c.cfg.fault("create slot "+c.cfg.Slot, err)
	}
	return Created{lsn, rows[0][2]}, nil
}

// DropSlot removes the configured slot, waiting until nobody uses it.
func (c *Conn) DropSlot(ctx context.Context) error {
	var err error
	if c.sql != nil {
		err = c.dropOldSlot(ctx)
	} else {
		_, err = c.command(ctx, fmt.Sprintf("DROP_REPLICATION_SLOT %s WAIT", c.cfg.Slot))
	}
	if err != nil {
		return c.cfg.fault("drop slot "+c.cfg.Slot, err)
	}
	return nil
}

// CheckSlot refuses a slot that cannot be read as this stream, or that is
// beyond from, the position to start at (0: anywhere).
func (c *Conn) CheckSlot(ctx context.Context, from dtx.LSN) (Slot, error) {
	const op = "check slot"
	s, ok, err := c.Slot(ctx, c.cfg.Slot)
	switch {
	case err != nil:
		return s, err
	case !ok:
		return s, c.cfg.stop(op, fmt.Sprintf("slot %q does not exist on this server", c.cfg.Slot),
			"Its changes since the slot was lost cannot be had any more: this content needs a new initial copy (drop the slots of the other contents, create all anew, copy)")
	case s.Type != "logical" || s.Plugin != string(c.cfg.Plugin):
		return s, c.cfg.stop(op, fmt.Sprintf("slot %q is %s with plugin %q, want a logical one with plugin %q", s.Name, s.Type, s.Plugin, c.cfg.Plugin),
			"Choose another slot name, or drop that slot if nobody needs it")
	case s.Database != c.server.Database:
		return s, c.cfg.stop(op, fmt.Sprintf("slot %q belongs to database %q, but the connection is to %q", s.Name, s.Database, c.server.Database),
			"Give the slot's database in the connection string, or choose another slot name")
	case s.WALStatus == "lost":
		return s, c.cfg.stop(op, fmt.Sprintf("the server has removed WAL that slot %q still needs (wal_status is lost)", s.Name),
			"This content needs a new initial copy; raise max_slot_wal_keep_size or set it to -1 to keep this from coming back")
	case from != 0 && s.Confirmed > from:
		return s, c.cfg.stop(op, fmt.Sprintf("slot %q is confirmed up to %s, beyond the recorded position %s: somebody else has moved it", s.Name, s.Confirmed, from),
			"The changes between the two positions are gone: this content needs a new initial copy")
	}
	return s, nil
}

// Start begins streaming at from, which is at or beyond the slot's confirmed
// position; 0 means that position itself. On success the connection belongs to
// the Stream. The stream ends with ctx or by Close.
func (c *Conn) Start(ctx context.Context, from dtx.LSN) (*Stream, error) {
	slot, err := c.CheckSlot(ctx, from)
	if err != nil {
		return nil, err
	}
	if from == 0 {
		from = slot.Confirmed
	}
	args, err := c.pluginArgs(slot)
	if err != nil {
		return nil, err
	}
	hctx, cancel := context.WithTimeout(ctx, c.cfg.ConnectTimeout)
	defer cancel()
	err = pglogrepl.StartReplication(hctx, c.pg, c.cfg.Slot, pglogrepl.LSN(from),
		pglogrepl.StartReplicationOptions{Mode: pglogrepl.LogicalReplication, PluginArgs: args})
	if err != nil {
		return nil, c.cfg.fault("start streaming", err)
	}
	raw, err := c.pg.Hijack()
	if err != nil {
		return nil, c.cfg.fault("start streaming", err)
	}
	c.pg = nil
	closePG(&c.sql)
	return newStream(ctx, c.cfg, c.server, slot, raw.Conn, c.in, from), nil
}

// pluginArgs negotiates what the server has: messages and streaming from 14,
// decoding at PREPARE (a property of the slot) from 15.
func (c *Conn) pluginArgs(slot Slot) ([]string, error) {
	pub := `"` + strings.ReplaceAll(c.cfg.Publication, `"`, `""`) + `"`
	option := func(name, value string) string {
		return name + " '" + strings.ReplaceAll(value, "'", "''") + "'"
	}
	if c.cfg.Plugin == CbreplSource {
		args := []string{option("proto_version", "1"), option("publication_names", pub)}
		for _, o := range c.cfg.Options {
			args = append(args, option(o.Name, o.Value))
		}
		return args, nil
	}
	v := c.server.Version
	if v < 140000 {
		return nil, c.cfg.stop("start streaming",
			fmt.Sprintf("server version %s sends no logical messages through pgoutput", c.server.VersionText),
			"cbrepl needs a server based on PostgreSQL 14 or newer")
	}
	proto := 1
	if c.cfg.Streaming {
		proto = 2
	}
	twoPhase := v >= 150000 && slot.TwoPhase
	if twoPhase {
		proto = 3
	}
	args := []string{option("proto_version", fmt.Sprint(proto)), option("publication_names", pub), option("messages", "true")}
	if c.cfg.Streaming {
		args = append(args, option("streaming", "on"))
	}
	if twoPhase {
		args = append(args, option("two_phase", "on"))
	}
	return args, nil
}
