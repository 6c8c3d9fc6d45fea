package source

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"cbrepl/catalog"
	"cbrepl/check"
	serverprobe "cbrepl/check/probe"
	"cbrepl/dtx"
	"cbrepl/logkey"
	"cbrepl/source/stream/repl"
)

// NodeFacts is what one node says of itself.
type NodeFacts struct {
	Content dtx.Content
	Server  repl.Server
	// Slot is the configured slot; nil when it does not exist.
	Slot *repl.Slot
	// Encoding is the database's.
	Encoding string

	// read is set once the catalogue was read: what follows is known.
	read     bool
	hasSlot  bool   // the configured slot exists
	instance string // the running server: start time, port, system identifier
	cluster  bool   // the server is one of a Cloudberry or Greenplum cluster
	tables   []nodeTable
	listed   *listed // the publication of a Greenplum 6 source, on its coordinator
	// publication reports that it exists, leftOut which kinds of changes it leaves
	// out, allTables that it is FOR ALL TABLES.
	publication, allTables bool
	leftOut                []string
}

// Facts is what preflight has found out. Nodes stand in order of content.
type Facts struct {
	Nodes []NodeFacts
	// Tables are the published tables with their policies.
	Tables []catalog.PublishedTable
	// StreamOptions are what START_REPLICATION takes beside the publication.
	StreamOptions []repl.Option
	// CopyOnly lists the tables of Config.CopyOnly that are published: their changes
	// are not in the stream.
	CopyOnly []string
}

// Segments is the number of segments.
func (f *Facts) Segments() int { return len(f.Nodes) - 1 }

// Missing lists the contents whose slot does not exist.
func (f *Facts) Missing() []dtx.Content {
	var out []dtx.Content
	for _, n := range f.Nodes {
		if n.Slot == nil {
			out = append(out, n.Content)
		}
	}
	return out
}

// parallel bounds the nodes that are looked at together.
const parallel = 8

// Preflight is Check that fails with all errors among the findings together, and logs
// the warnings.
func Preflight(ctx context.Context, cfg Config, create bool) (*Facts, error) {
	f, r, err := Check(ctx, cfg, create)
	if err == nil {
		err = r.Err("check source")
	}
	if err != nil {
		return nil, err
	}
	for _, w := range r.Findings {
		if w.Level == check.Warning && cfg.Logger != nil {
			cfg.Logger.Warn(w.String())
		}
	}
	return f, nil
}

// Check looks at every node of the source and reads what is published. It changes
// nothing. Slots must exist on all nodes or, with create, on none. The report holds
// everything that was found, the facts what is known; the error is that of a
// configuration that cannot be read, or the context's.
func Check(ctx context.Context, cfg Config, create bool) (*Facts, check.Report, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, check.Report{}, err
	}
	nodes := slices.Clone(cfg.Nodes)
	slices.SortFunc(nodes, func(a, b Node) int { return int(a.Content) - int(b.Content) })
	f := &Facts{Nodes: make([]NodeFacts, len(nodes))}
	probes := make([]*probe, len(nodes))
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, n := range nodes {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, cfg.Timeout+max(cfg.SlotWait, 0))
			defer cancel()
			p := &probe{cfg: &cfg, node: n, create: create, facts: NodeFacts{Content: n.Content}}
			if cfg.Kind == Greenplum6 {
				p.runGreenplum6(ctx)
			} else {
				p.run(ctx)
			}
			f.Nodes[i], probes[i] = p.facts, p
			return nil
		})
	}
	_ = g.Wait() // findings are in probes
	if err := ctx.Err(); err != nil {
		return nil, check.Report{}, err
	}
	var r check.Report
	for _, p := range probes {
		r.Findings = append(r.Findings, p.findings...)
		if p.server != nil {
			r.Servers = append(r.Servers, *p.server)
		}
	}
	r.Findings = append(r.Findings, slotFindings(&cfg, f, create)...)
	r.Findings = append(r.Findings, identityFindings(f)...)
	if cfg.Kind == Greenplum6 {
		f.StreamOptions, f.CopyOnly = f.Nodes[0].listed.streamOptions(), f.Nodes[0].listed.copyOnly()
	} else {
		r.Findings = append(r.Findings, missingPublications(&cfg, f)...)
		r.Findings = append(r.Findings, compareTables(&cfg, f)...)
	}
	if f.Nodes[0].read {
		tables, fs := withPolicies(&cfg, f, probes[0].policies)
		f.Tables = tables
		r.Findings = append(r.Findings, fs...)
		r.Findings = append(r.Findings, describeTables(f)...)
	}
	for i := range r.Findings {
		r.Findings[i].Side = check.Source
	}
	return f, r, nil
}

// probe looks at one node.
type probe struct {
	cfg      *Config
	node     Node
	create   bool
	facts    NodeFacts
	server   *check.Server // nil as long as it has not answered
	findings check.Findings
	policies []policyRow
}

func (p *probe) add(f check.Finding) {
	f.Content = dtx.AtContent(p.node.Content)
	p.findings = append(p.findings, f)
}

func (p *probe) fail(op string, err error) {
	p.findings = append(p.findings, findingOf(p.node.Content, repl.Fault(op, p.node.Content, p.cfg.Slot, p.cfg.Publication, err)))
}

// minVersion: pgoutput sends logical messages from PostgreSQL 14 on.
const minVersion = 140000

func (p *probe) run(ctx context.Context) {
	conn, err := connect(ctx, p.node)
	if err != nil {
		p.fail("connect to source", err)
		return
	}
	defer closeConn(conn)
	var version int
	var text string
	err = conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::int, current_setting('server_version')").Scan(&version, &text)
	if err != nil {
		p.fail("check source", err)
		return
	}
	if !p.describe(ctx, conn) {
		return
	}
	if version < minVersion {
		p.add(check.Finding{Found: fmt.Sprintf("server version is %s; its pgoutput sends no logical messages, which came with PostgreSQL 14", text)})
		return
	}
	p.twoPhaseMissing(version, text)
	var st serverSettings
	if err := conn.QueryRow(ctx, settingsSQL, p.cfg.Slot).Scan(st.fields(&p.facts)...); err != nil {
		p.fail("check source", err)
		return
	}
	streams := p.checkSettings(&st)
	if err := p.publication(ctx, conn); err != nil {
		p.fail("read publication", err)
		return
	}
	if p.node.Content == dtx.Coordinator {
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

// describe reads what the server says of itself. It reports whether it is the
// server that it should be, so that looking on makes sense.
func (p *probe) describe(ctx context.Context, conn *pgx.Conn) bool {
	if !p.rightContent(ctx, conn) {
		return false
	}
	s, err := serverprobe.Server(ctx, conn.PgConn(), check.Source, p.node.Content)
	if err != nil {
		p.fail("check source", err)
		return false
	}
	p.server = &s
	return true
}

// rightContent refuses a cluster's server of another content.
func (p *probe) rightContent(ctx context.Context, conn *pgx.Conn) bool {
	is, ok, err := contentOf(ctx, conn)
	if err != nil {
		p.fail("check source", err)
		return false
	}
	p.facts.cluster = ok
	if !ok || is == p.node.Content {
		return true
	}
	p.add(check.Finding{
		Found:  fmt.Sprintf("the server holds content %d of its cluster, not content %d", is, p.node.Content),
		Remedy: "Correct its connection string, or the rule of source.addresses that leads there",
	})
	return false
}

func (p *probe) twoPhaseMissing(version int, text string) {
	if !p.cfg.twoPhase(p.node) || version >= 150000 {
		return
	}
	p.add(check.Finding{
		Found:  fmt.Sprintf("server version is %s; its pgoutput does not decode transactions at PREPARE, which came with PostgreSQL 15", text),
		Remedy: "Set two_phase to false; segments must then emit part messages",
	})
}

const settingsSQL = `SELECT pg_postmaster_start_time()::text || '/' || current_setting('port') || '/' ||
   (SELECT system_identifier FROM pg_control_system()),
 current_setting('wal_level'), current_setting('server_encoding'), pg_is_in_recovery(),
 current_setting('max_replication_slots')::int, (SELECT count(*)::int FROM pg_replication_slots),
 current_setting('max_wal_senders')::int, (SELECT count(*)::int FROM pg_stat_replication),
 (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user), quote_ident(current_user),
 EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)`

// serverSettings are those of a source server of any kind.
type serverSettings struct {
	walLevel, role                    string
	recovery, mayReplicate            bool
	maxSlots, slots, maxSenders, busy int
}

// fields are where a query's first columns go, in order.
func (s *serverSettings) fields(f *NodeFacts) []any {
	return []any{
		&f.instance, &s.walLevel, &f.Encoding, &s.recovery, &s.maxSlots, &s.slots, &s.maxSenders, &s.busy,
		&s.mayReplicate, &s.role, &f.hasSlot,
	}
}

// checkSettings reports whether a replication connection can be opened.
func (p *probe) checkSettings(s *serverSettings) bool {
	streams := true
	fatal := func(f check.Finding) { p.add(f); streams = false }
	if s.recovery {
		fatal(check.Finding{Found: "the server is a standby", Remedy: "Give the address of the primary of this content"})
	}
	if s.walLevel != "logical" {
		fatal(check.Finding{
			Found: fmt.Sprintf("wal_level is %s, want logical", s.walLevel), Remedy: "Run there",
			SQL: []string{"ALTER SYSTEM SET wal_level = 'logical'"}, Restart: true,
		})
	}
	if p.facts.Encoding != "UTF8" {
		p.add(check.Finding{
			Found:  fmt.Sprintf("the database has encoding %s, want UTF8: text of another encoding would not hash to the same segment", p.facts.Encoding),
			Remedy: "There is no remedy but a database of encoding UTF8",
		})
	}
	if !s.mayReplicate {
		fatal(check.Finding{
			Found: fmt.Sprintf("role %s may not replicate", s.role), Remedy: "Run there as a superuser",
			SQL: []string{fmt.Sprintf("ALTER ROLE %s REPLICATION", s.role)},
		})
	}
	need := p.cfg.SpareSlots
	if !p.facts.hasSlot {
		need++
	}
	if free := max(s.maxSlots-s.slots, 0); free < need {
		found := fmt.Sprintf("all %d replication slots (max_replication_slots) are taken", s.maxSlots)
		if free > 0 {
			found = fmt.Sprintf("%d of %d replication slots (max_replication_slots) are free, %d are needed", free, s.maxSlots, need)
		}
		p.add(check.Finding{
			Found:  found,
			Remedy: "Drop a slot that nobody needs, or run there",
			SQL:    []string{fmt.Sprintf("ALTER SYSTEM SET max_replication_slots = %d", s.slots+4)}, Restart: true,
		})
	}
	if s.busy >= s.maxSenders && p.cfg.Running {
		streams = false // its own connections are among them
	} else if s.busy >= s.maxSenders {
		fatal(check.Finding{
			Found:  fmt.Sprintf("all %d WAL senders (max_wal_senders) are taken", s.maxSenders),
			Remedy: "End a replication connection that nobody needs, or run there",
			SQL:    []string{fmt.Sprintf("ALTER SYSTEM SET max_wal_senders = %d", s.busy+4)}, Restart: true,
		})
	}
	return streams
}

// replication opens a replication connection: identity and slot.
func (p *probe) replication(ctx context.Context) {
	c, err := repl.Connect(ctx, p.cfg.repl(p.node))
	if err != nil {
		p.fail("open replication connection", err)
		return
	}
	defer c.Close()
	p.facts.Server = c.Server()
	s, ok, err := p.freeSlot(ctx, c)
	if err != nil {
		p.fail("read slot", err)
		return
	}
	if !ok {
		return
	}
	p.facts.Slot = &s
	if p.create {
		return // slotFindings says that it should not be there
	}
	if _, err := c.CheckSlot(ctx, 0); err != nil {
		p.fail("check slot", err)
		return
	}
	if p.cfg.twoPhase(p.node) && !s.TwoPhase {
		p.add(check.Finding{
			Found:  fmt.Sprintf("slot %q does not decode transactions at PREPARE, but two_phase is set", s.Name),
			Remedy: "Set two_phase to false, or drop the slots of all nodes and create them anew, which needs a new initial copy",
		})
	}
	if s.Active && !p.cfg.Running {
		f := check.Finding{
			Found:  fmt.Sprintf("slot %q is in use by %s: another daemon, or one that has just ended", s.Name, s.Reader()),
			Remedy: "Stop the other daemon; a session that is left over can be ended there",
		}
		if s.ActivePID != 0 {
			f.SQL = []string{fmt.Sprintf("SELECT pg_terminate_backend(%d)", s.ActivePID)}
		}
		p.add(f)
	}
}

// freeSlot reads the slot, waiting for a while until nobody uses it.
func (p *probe) freeSlot(ctx context.Context, c *repl.Conn) (repl.Slot, bool, error) {
	deadline := time.Now().Add(p.cfg.SlotWait)
	for told := false; ; told = true {
		s, ok, err := c.Slot(ctx, p.cfg.Slot)
		if err != nil || !ok || !s.Active || p.create || time.Now().After(deadline) {
			return s, ok, err
		}
		if !told {
			p.cfg.Logger.Info("waiting for a slot in use", logkey.Content, int(p.node.Content), logkey.Slot, s.Name, logkey.PID, s.ActivePID)
		}
		select {
		case <-ctx.Done():
			return s, ok, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// slotFindings: slots exist on all nodes, or on none when they are to be made.
func slotFindings(cfg *Config, f *Facts, create bool) check.Findings {
	var fs check.Findings
	found := slices.ContainsFunc(f.Nodes, func(n NodeFacts) bool { return n.hasSlot })
	for _, n := range f.Nodes {
		if !n.read || n.hasSlot != create {
			continue
		}
		p := check.Finding{Content: dtx.AtContent(n.Content), Found: fmt.Sprintf("slot %q does not exist", cfg.Slot)}
		switch {
		case create:
			p.Found = fmt.Sprintf("slot %q exists already", cfg.Slot)
			p.Remedy = "Choose another name, or drop it there if no subscription needs it"
			p.SQL = []string{fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", cfg.Slot)}
		case found:
			p.Remedy = fmt.Sprintf("Other nodes have it: content %d needs resync, because what it has changed meanwhile cannot be had any more "+
				"(a promoted mirror does not have the slot; nor has a segment that was added). %s", n.Content, resyncHint)
		default:
			p.Remedy = "Create the slots of all nodes, once the target is prepared (cbrepl init does, with a first copy)"
			p.Commands = []string{"cbrepl slots create -c FILE"}
		}
		fs = append(fs, p)
	}
	return fs
}

// identityFindings: no server is listed under two contents. System identifiers
// alone do not tell: data directories may have been copied.
func identityFindings(f *Facts) check.Findings {
	var ps check.Findings
	seen := map[string]dtx.Content{}
	for _, n := range f.Nodes {
		if c, ok := seen[n.instance]; ok {
			ps = append(ps, check.Finding{
				Content: dtx.AtContent(n.Content),
				Found:   fmt.Sprintf("it is the same server as content %d", c),
				Remedy:  "Correct one of the two connection strings",
			})
		}
		if n.instance != "" {
			seen[n.instance] = n.Content
		}
	}
	return ps
}
