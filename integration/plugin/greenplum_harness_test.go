package plugin

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"cbrepl/dtx"
	"cbrepl/lab/clustertest"
	"cbrepl/source/stream/repl"

	"github.com/jackc/pgx/v5"
)

const slotName = "cbrepl_plugin_test"

// cluster is a database of its own on a real Greenplum.
type cluster struct {
	t     *testing.T
	ctx   context.Context
	c     *pgx.Conn // dispatching, on the coordinator
	nodes []*node   // the coordinator first
}

// node is one server of the cluster with its stream, and what the stream has said.
type node struct {
	content int
	dsn     string // utility mode
	options []repl.Option
	stream  *repl.Stream
	at      uint64 // last progress
	from    uint64 // where to start; 0: the slot's confirmed position

	blocks    []*block
	facts     []fact
	relations map[uint32]relation
	rows      map[string]map[string][]string // table, key, row
	counts    map[string]int                 // row messages by table and action
}

type block struct {
	kind       byte
	dtx        uint64
	end        uint64
	rows       []string // "I public.t" and so on, in order
	statements []string
	unsent     []string // "kind of statement: schema.table"
}

// fact is a message outside transactions.
type fact struct {
	prefix string
	dtx    uint64
	own    bool // of commit_record: the coordinator has a part
	lsn    uint64
}

type relation struct {
	name     string
	identity byte
	columns  []string
	keys     []bool
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	base := clustertest.SourceDSN(t)
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	t.Cleanup(cancel)
	name := "plugin_" + strings.ToLower(strings.NewReplacer("/", "_", "=", "_").Replace(t.Name()))
	admin := connect(ctx, t, base)
	must(ctx, t, admin, "DROP DATABASE IF EXISTS "+name)
	must(ctx, t, admin, "CREATE DATABASE "+name)
	t.Cleanup(func() {
		end, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		c, err := pgx.Connect(end, base)
		if err == nil {
			defer c.Close(end)
			_, err = c.Exec(end, "DROP DATABASE "+name)
		}
		if err != nil {
			t.Logf("drop database %s: %v", name, err)
		}
	})
	cl := &cluster{t: t, ctx: ctx, c: connect(ctx, t, withDatabase(t, base, name, ""))}
	t.Cleanup(func() { _ = cl.c.Close(context.Background()) })
	cl.exec("CREATE EXTENSION cbrepl_source")
	rows, err := cl.c.Query(ctx, "SELECT content::int, hostname, port FROM gp_segment_configuration WHERE role = 'p' ORDER BY content", pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	type place struct {
		Content int
		Host    string
		Port    int
	}
	places, err := pgx.CollectRows(rows, pgx.RowToStructByPos[place])
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range places {
		dsn := withDatabase(t, base, name, fmt.Sprintf("%s:%d", p.Host, p.Port))
		cl.nodes = append(cl.nodes, &node{
			content: p.Content, dsn: dsn, relations: map[uint32]relation{},
			rows: map[string]map[string][]string{}, counts: map[string]int{},
		})
	}
	return cl
}

// withDatabase is the DSN with another database; with a host it is for utility mode.
func withDatabase(t *testing.T, dsn, database, host string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatalf("%s is no URL: %v", clustertest.SourceEnvVar, err)
	}
	u.Path = "/" + database
	q := u.Query()
	if host != "" {
		u.Host = host
		q.Set("options", "-c gp_session_role=utility")
	}
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	return u.String()
}

func (cl *cluster) exec(sql string) { cl.t.Helper(); must(cl.ctx, cl.t, cl.c, sql) }

// session is another dispatching session.
func (cl *cluster) session() *pgx.Conn { return connect(cl.ctx, cl.t, cl.c.Config().ConnString()) }

// start makes the slots and begins to stream these tables.
func (cl *cluster) start(tables string, viaRoot bool) {
	cl.t.Helper()
	cl.t.Cleanup(func() {
		for _, n := range cl.nodes {
			n.close()
			cl.dropSlot(n)
		}
	})
	for _, n := range cl.nodes {
		n.options = []repl.Option{{Name: "tables", Value: tables}, {Name: "publish_via_partition_root", Value: strconv.FormatBool(viaRoot)}}
		c := connect(cl.ctx, cl.t, n.dsn)
		must(cl.ctx, cl.t, c, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s_%d', 'cbrepl_source')", slotName, n.content+1))
		_ = c.Close(cl.ctx)
		cl.open(n)
	}
}

func (cl *cluster) dropSlot(n *node) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		c, err := pgx.Connect(ctx, n.dsn)
		if err != nil {
			cl.t.Logf("drop the slot of content %d: %v", n.content, err)
			return
		}
		_, err = c.Exec(ctx, fmt.Sprintf("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '%s_%d'", slotName, n.content+1), pgx.QueryExecModeSimpleProtocol)
		_ = c.Close(ctx)
		if err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond) // its walsender is still ending
	}
}

func (cl *cluster) open(n *node) {
	cl.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		err := n.open(cl.ctx)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			cl.t.Fatalf("stream of content %d: %v", n.content, err)
		}
		time.Sleep(50 * time.Millisecond) // the slot is still in use, or the server recovers
	}
}

func (n *node) open(ctx context.Context) error {
	conn, err := repl.Connect(ctx, repl.Config{
		Content: dtx.Content(n.content), DSN: n.dsn, Slot: fmt.Sprintf("%s_%d", slotName, n.content+1),
		Publication: "none", Plugin: repl.CbreplSource, Options: n.options,
	})
	if err != nil {
		return err
	}
	n.stream, err = conn.Start(ctx, lsn(n.from))
	if err != nil {
		conn.Close()
		return err
	}
	n.at = 0
	return nil
}

func (n *node) close() {
	if n.stream != nil {
		n.stream.Close()
		n.stream = nil
	}
}

// flushed is the node's flushed position, asked over a session of its own.
func (cl *cluster) flushed(n *node) uint64 {
	cl.t.Helper()
	var text string
	c := connect(cl.ctx, cl.t, n.dsn)
	defer c.Close(cl.ctx)
	if err := c.QueryRow(cl.ctx, "SELECT cbrepl_source.flush_lsn()", pgx.QueryExecModeSimpleProtocol).Scan(&text); err != nil {
		cl.t.Fatal(err)
	}
	hi, lo, _ := strings.Cut(text, "/")
	h, err1 := strconv.ParseUint(hi, 16, 32)
	l, err2 := strconv.ParseUint(lo, 16, 32)
	if err1 != nil || err2 != nil {
		cl.t.Fatalf("flush_lsn says %q", text)
	}
	return h<<32 | l
}

// catchUp reads every stream up to what its server has flushed now.
func (cl *cluster) catchUp() {
	cl.t.Helper()
	for _, n := range cl.nodes {
		if err := n.readTo(cl.flushed(n)); err != nil {
			cl.t.Fatalf("stream of content %d: %v", n.content, err)
		}
	}
}

func (n *node) readTo(lsn uint64) error {
	deadline := time.Now().Add(3 * time.Minute)
	var open *block
	for n.at < lsn {
		m, err := n.stream.Next(deadline)
		if err != nil {
			return err
		}
		switch m.Kind {
		case repl.Idle:
			return fmt.Errorf("progress stays at %x, want %x", n.at, lsn)
		case repl.Data:
			if open, err = n.take(open, m.Payload); err != nil {
				return err
			}
		}
	}
	return nil
}

// take applies one message. It decodes by itself: the project's decoder has tests
// of its own.
func (n *node) take(open *block, msg []byte) (*block, error) {
	d := &decoder{b: msg[1:]}
	switch msg[0] {
	case 'B':
		if open != nil {
			return nil, fmt.Errorf("begin inside a transaction")
		}
		return &block{}, nil
	case 'C':
		d.skip(9)
		open.end = d.u64()
		n.blocks = append(n.blocks, open)
		return nil, nil
	case 'M':
		return n.message(open, d)
	case 'Y':
	case 'R':
		id := d.u32()
		r := relation{name: d.str() + "." + d.str(), identity: d.u8()}
		for range d.u16() {
			r.keys = append(r.keys, d.u8() == 1)
			r.columns = append(r.columns, d.str())
			d.skip(8)
		}
		n.relations[id] = r
	case 'I', 'U', 'D':
		r, ok := n.relations[d.u32()]
		if !ok || open == nil {
			return nil, fmt.Errorf("row %c without its relation or transaction", msg[0])
		}
		open.rows = append(open.rows, string(msg[0])+" "+r.name)
		n.counts[string(msg[0])+" "+r.name]++
		n.row(r, msg[0], d)
	case 'T':
		count, flags := d.u32(), d.u8()
		names := make([]string, count)
		for i := range names {
			r := n.relations[d.u32()]
			names[i] = r.name
			n.rows[r.name] = nil
		}
		sort.Strings(names)
		open.rows = append(open.rows, fmt.Sprintf("T%d %s", flags, strings.Join(names, ",")))
	default:
		return nil, fmt.Errorf("message of type %q", msg[0])
	}
	return open, d.err()
}

func (n *node) message(open *block, d *decoder) (*block, error) {
	transactional, lsn := d.u8() == 1, d.u64()
	prefix := d.str()
	body := &decoder{b: d.b[4:]}
	if prefix == "user" {
		open.statements = append(open.statements, "user "+string(body.b))
		return open, nil
	}
	if v := body.u8(); v != 1 || transactional != (open != nil) {
		return nil, fmt.Errorf("%s: version %d, transactional %v", prefix, v, transactional)
	}
	switch prefix {
	case "cbrepl.part":
		open.kind, open.dtx = body.u8(), body.u64()
	case "cbrepl.statement":
		open.statements = append(open.statements, string(body.b))
	case "cbrepl.unsent":
		open.unsent = append(open.unsent, body.str()+": "+body.str()+"."+body.str())
	case "cbrepl.progress":
		if at := body.u64(); at <= n.at || at != lsn {
			return nil, fmt.Errorf("progress %x after %x, in a message at %x", at, n.at, lsn)
		}
		n.at = lsn
	case "cbrepl.commit_record":
		own := body.u8() == 1
		n.facts = append(n.facts, fact{prefix, body.u64(), own, lsn})
	case "cbrepl.prepare", "cbrepl.rollback", "cbrepl.settled":
		n.facts = append(n.facts, fact{prefix: prefix, dtx: body.u64(), lsn: lsn})
	default:
		return nil, fmt.Errorf("message %s", prefix)
	}
	return open, body.err()
}

// row keeps the model of the node's tables. Tables without a key must have
// REPLICA IDENTITY FULL; their rows are counted by their text.
func (n *node) row(r relation, action byte, d *decoder) {
	if n.rows[r.name] == nil {
		n.rows[r.name] = map[string][]string{}
	}
	rows := n.rows[r.name]
	var old, row []string
	for len(d.b) > 0 {
		tag := d.u8()
		tuple := d.tuple()
		if tag == 'N' {
			row = tuple
		} else {
			old = tuple
		}
	}
	if old == nil && action == 'U' {
		old = row
	}
	var before []string
	if old != nil {
		before = rows[r.key(old)]
		delete(rows, r.key(old))
	}
	if row == nil {
		return
	}
	for i := range row {
		if row[i] == unchanged && before != nil {
			row[i] = before[i]
		}
	}
	key := r.key(row)
	for n := 0; rows[key] != nil; n++ {
		key = r.key(row) + fmt.Sprint("duplicate", n)
	}
	rows[key] = row
}

const unchanged = "\x00unchanged"

func (r relation) key(row []string) string {
	var key []string
	for i := range row {
		if r.keys[i] {
			key = append(key, row[i])
		}
	}
	return strings.Join(key, "\x01")
}

// checkRows compares the model of a table with what each segment holds.
func (cl *cluster) checkRows(tables ...string) {
	cl.t.Helper()
	for _, table := range tables {
		total := 0
		for _, n := range cl.nodes[1:] {
			var want, got []string
			c := connect(cl.ctx, cl.t, n.dsn)
			must(cl.ctx, cl.t, c, "SET datestyle = ISO; SET extra_float_digits = 3; SET timezone = 'UTC'; SET search_path = pg_catalog")
			results, err := c.PgConn().Exec(cl.ctx, "SELECT * FROM "+table).ReadAll()
			if err != nil {
				cl.t.Fatal(err)
			}
			_ = c.Close(cl.ctx)
			for _, values := range results[0].Rows {
				texts := make([]string, len(values))
				for i, v := range values {
					texts[i] = string(v)
					if v == nil {
						texts[i] = "\x00null"
					}
				}
				want = append(want, strings.Join(texts, "\x01"))
			}
			for _, row := range n.rows[table] {
				got = append(got, strings.Join(row, "\x01"))
			}
			sort.Strings(want)
			sort.Strings(got)
			total += len(want)
			if len(want) != len(got) {
				cl.t.Errorf("%s on content %d: the stream gives %d rows, the table has %d", table, n.content, len(got), len(want))
				continue
			}
			for i := range want {
				if want[i] != got[i] {
					cl.t.Errorf("%s on content %d: row %d\nstream %.400q\ntable  %.400q", table, n.content, i, got[i], want[i])
					break
				}
			}
		}
		if total == 0 {
			cl.t.Errorf("%s is empty: nothing was compared", table)
		}
	}
}

// checkOrder compares records and parts: each two-phase part has one record and a
// PREPARE before it, each record at least one part, no one-phase part a record.
func (cl *cluster) checkOrder() {
	cl.t.Helper()
	records, parts := map[uint64]int{}, map[uint64]int{}
	for _, f := range cl.nodes[0].facts {
		records[f.dtx]++
	}
	for _, n := range cl.nodes {
		prepared := map[uint64]bool{}
		for _, f := range n.facts {
			prepared[f.dtx] = true
		}
		for _, b := range n.blocks {
			switch {
			case b.kind == 'T' && (records[b.dtx] != 1 || !prepared[b.dtx]):
				cl.t.Errorf("content %d: two-phase part %x: %d records, prepared %v", n.content, b.dtx, records[b.dtx], prepared[b.dtx])
			case b.kind == 'O' && records[b.dtx] != 0:
				cl.t.Errorf("content %d: one-phase part %x has a record", n.content, b.dtx)
			}
			parts[b.dtx]++
		}
	}
	for g := range records {
		if parts[g] == 0 {
			cl.t.Errorf("record %x has no part", g)
		}
	}
}

type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) next(n int) []byte {
	if n > len(d.b) {
		d.bad = true
		d.b = nil
		return make([]byte, n)
	}
	b := d.b[:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) skip(n int)  { d.next(n) }
func (d *decoder) u8() byte    { return d.next(1)[0] }
func (d *decoder) u16() int    { return int(binary.BigEndian.Uint16(d.next(2))) }
func (d *decoder) u32() uint32 { return binary.BigEndian.Uint32(d.next(4)) }
func (d *decoder) u64() uint64 { return binary.BigEndian.Uint64(d.next(8)) }

func (d *decoder) str() string {
	s, rest, ok := strings.Cut(string(d.b), "\x00")
	d.bad = d.bad || !ok
	d.b = []byte(rest)
	return s
}

func (d *decoder) tuple() []string {
	row := make([]string, d.u16())
	for i := range row {
		switch k := d.u8(); k {
		case 'n':
			row[i] = "\x00null"
		case 'u':
			row[i] = unchanged
		case 't':
			row[i] = string(d.next(int(d.u32())))
		default:
			d.bad = true
		}
	}
	return row
}

func (d *decoder) err() error {
	if d.bad {
		return fmt.Errorf("message ends early")
	}
	return nil
}

func lsn(n uint64) dtx.LSN { return dtx.LSN(n) }
