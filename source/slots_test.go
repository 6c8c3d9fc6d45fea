package source

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"cbrepl/check"
	"cbrepl/dtx"
)

// slotContents lists the nodes that have the slot.
func (c *cluster) slotContents() []dtx.Content {
	c.t.Helper()
	var out []dtx.Content
	for _, n := range c.cfg.Nodes {
		conn, err := pgx.Connect(c.ctx(), n.DSN)
		if err != nil {
			c.t.Fatal(err)
		}
		var there bool
		if err := conn.QueryRow(c.ctx(), "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)", c.slot).Scan(&there); err != nil {
			c.t.Fatal(err)
		}
		closeConn(conn)
		if there {
			out = append(out, n.Content)
		}
	}
	return out
}

// TestSlotsAllOrNone: whatever fails, either every node has the slot or no node
// has one that was not there before.
func TestSlotsAllOrNone(t *testing.T) {
	c := newCluster(t, shared.Source(t))
	c.cfg.TwoPhase = true
	rs, err := CreateSlots(c.ctx(), c.cfg)
	if err != nil || len(rs) != 4 || rs[0].Content != dtx.Coordinator || rs[3].LSN == 0 || rs[3].SystemID == "" {
		t.Fatalf("%+v, %v", rs, err)
	}
	if got := c.slotContents(); len(got) != 4 {
		t.Errorf("slots on %v", got)
	}
	f, err := Preflight(c.ctx(), c.cfg, false)
	var ps check.Findings
	if !errors.As(err, &ps) { // no publication yet
		t.Fatalf("preflight: %v, %v", f, err)
	}
	// Again: refused everywhere, and nothing of the old is dropped.
	if _, err := CreateSlots(c.ctx(), c.cfg); err == nil || strings.Count(err.Error(), "exists already") != 4 {
		t.Errorf("second time: %v", err)
	}
	if got := c.slotContents(); len(got) != 4 {
		t.Errorf("slots on %v after the second time", got)
	}
	if err := DropSlots(c.ctx(), c.cfg); err != nil {
		t.Fatal(err)
	}
	if err := DropSlots(c.ctx(), c.cfg); err != nil {
		t.Errorf("drop of what is not there: %v", err)
	}
	// One node has one of that name: the others keep none, the node keeps its own.
	c.on(1, "SELECT pg_create_logical_replication_slot('"+c.slot+"', 'test_decoding')")
	if _, err := CreateSlots(c.ctx(), c.cfg); err == nil || !strings.Contains(err.Error(), "content 1: create slot: slot") {
		t.Errorf("taken name: %v", err)
	}
	if got := c.slotContents(); len(got) != 1 || got[0] != 1 {
		t.Errorf("slots on %v, want the foreign one on 1 only", got)
	}
	c.on(1, "SELECT pg_drop_replication_slot('"+c.slot+"')")
	// One node cannot be reached.
	good := c.cfg.Nodes[2].DSN
	c.cfg.Nodes[2].DSN = "postgres://u:canary@127.0.0.1:1/x?sslmode=disable"
	if _, err := CreateSlots(c.ctx(), c.cfg); err == nil || !strings.Contains(err.Error(), "content 1") || strings.Contains(err.Error(), "canary") {
		t.Errorf("no server: %v", err)
	}
	c.cfg.Nodes[2].DSN = good
	if got := c.slotContents(); len(got) != 0 {
		t.Errorf("slots on %v after a failure", got)
	}
	// One node does not get its slot made, because a transaction that writes stays
	// open there: after the timeout it is named, and the others' slots are dropped.
	tx, err := pgx.Connect(c.ctx(), good)
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(tx)
	if _, err := tx.Exec(c.ctx(), "BEGIN; CREATE TABLE open_xid ()", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	cfg := c.cfg
	cfg.CreateTimeout = 8 * time.Second
	_, err = CreateSlots(c.ctx(), cfg)
	if err == nil {
		t.Fatal("slots were made beside an open transaction")
	}
	for _, want := range []string{fmt.Sprintf("the session with pid %d (open for ", tx.PgConn().PID()), "within 8s", "--timeout"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %q", err, want)
		}
	}
	if _, err := tx.Exec(c.ctx(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if got := c.slotContents(); len(got) != 0 {
		t.Errorf("slots on %v after giving up", got)
	}
}

// TestCheckResume (field case 9): positions are not used against another slot,
// server, timeline or set of segments.
func TestCheckResume(t *testing.T) {
	c := newCluster(t, shared.Source(t)).good()
	facts := func() *Facts {
		f, err := Preflight(c.ctx(), c.cfg, false)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	f := facts()
	for name, tc := range map[string]struct {
		change func(rs []Recorded) []Recorded
		want   []string
	}{
		"same":     {func(rs []Recorded) []Recorded { return rs }, nil},
		"system":   {func(rs []Recorded) []Recorded { rs[1].SystemID = "7"; return rs }, []string{"content 0: the server has system identifier"}},
		"timeline": {func(rs []Recorded) []Recorded { rs[2].Timeline = 9; return rs }, []string{"content 1: the server is on timeline 1", "timeline 9"}},
		"slot":     {func(rs []Recorded) []Recorded { rs[3].Slot = "other"; return rs }, []string{"content 2: the configured slot"}},
		"moved":    {func(rs []Recorded) []Recorded { rs[0].LSN--; return rs }, []string{"content -1 (coordinator): slot", "beyond the recorded position"}},
		"future":   {func(rs []Recorded) []Recorded { rs[0].LSN += 1 << 40; return rs }, []string{"log ends at"}},
		"expanded": {func(rs []Recorded) []Recorded { return rs[:3] }, []string{"content 2: the target has no position", "began with 2 segments, now 3"}},
		"shrunk": {
			func(rs []Recorded) []Recorded { return append(rs, Recorded{Content: 3, LSN: 1}) },
			[]string{"content 3: the target has position 0/1 for it, but it is not listed"},
		},
	} {
		err := CheckResume(f, tc.change(f.Streams()))
		if (err == nil) != (tc.want == nil) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, w := range tc.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v\nwant %q", name, err, w)
			}
		}
	}
	// The real thing: a slot dropped and made anew under its name, after a change.
	old := f.Streams()
	c.on(1, "SELECT pg_drop_replication_slot('"+c.slot+"')")
	c.on(1, "INSERT INTO acct VALUES (1, 'lost')")
	c.on(1, "SELECT pg_create_logical_replication_slot('"+c.slot+"', 'pgoutput')")
	if err := CheckResume(facts(), old); err == nil || !strings.Contains(err.Error(), "content 1: slot") || !strings.Contains(err.Error(), "made anew") {
		t.Errorf("recreated slot: %v", err)
	}
}

// TestGPPolicies reads policies from a table of gp_distribution_policy's shape
// (Greenplum 6 and later, Cloudberry); a stock server has only the shape.
func TestGPPolicies(t *testing.T) {
	dsn := shared.Source(t).Node(0).DSNFor(newCluster(t, shared.Source(t)).db)
	exec(t, dsn, `CREATE TABLE h (a int, b text, c date); CREATE TABLE r (a int); CREATE TABLE p (a int); CREATE TABLE master_only (a int);
		CREATE TABLE gp (localoid oid, policytype "char", numsegments int4, distkey int2vector, distclass oidvector);
		INSERT INTO gp SELECT 'h'::regclass, 'p', 3, '3 1', (SELECT string_agg(oid::text, ' ' ORDER BY opcname DESC)::oidvector
			FROM pg_opclass WHERE opcname IN ('int4_ops', 'date_ops') AND opcmethod = (SELECT oid FROM pg_am WHERE amname = 'hash'));
		UPDATE gp SET distclass = (SELECT d.oid || ' ' || i.oid FROM pg_opclass d, pg_opclass i WHERE d.opcname = 'date_ops' AND i.opcname = 'int4_ops'
			AND d.opcmethod = i.opcmethod AND d.opcmethod = (SELECT oid FROM pg_am WHERE amname = 'hash'))::oidvector;
		INSERT INTO gp VALUES ('r'::regclass, 'r', 2, '', ''), ('p'::regclass, 'p', 3, '', ''), ('master_only'::regclass, 'e', 0, '', '')`)
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(conn)
	rows, err := scanPolicies(ctx, conn, gpPolicySQL("public.gp"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rows {
		s := r.schema + "." + r.table + " " + r.kind
		for _, k := range r.columns {
			s += " " + k.name + ":" + k.typ.Name + ":" + k.opclass
		}
		got = append(got, s)
	}
	want := "public.h hash c:date:date_ops a:integer:int4_ops; public.p random; public.r replicated"
	if g := strings.Join(got, "; "); g != want {
		t.Errorf("got  %s\nwant %s", g, want)
	}
	if rows[2].numSegments != 2 {
		t.Errorf("numsegments %d", rows[2].numSegments)
	}
}
