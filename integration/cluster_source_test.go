package integration

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/source/stream/repl/repltest"
	"cbrepl/subscription/status"
)

// gpCatalogue makes a stock coordinator look like a cluster's, with the policies
// that the lab keeps.
const gpCatalogue = `SET allow_system_table_mods = on;
CREATE TABLE pg_catalog.gp_segment_configuration (dbid smallint, content smallint, role "char", preferred_role "char",
  mode "char", status "char", port integer, hostname text, address text, datadir text);
INSERT INTO pg_catalog.gp_segment_configuration VALUES (1, -1, 'p', 'p', 'n', 'u', 1, 'mdw', 'mdw', '/c');
CREATE TABLE pg_catalog.gp_distribution_policy (localoid oid, policytype "char", numsegments int4, distkey int2vector, distclass oidvector);
INSERT INTO pg_catalog.gp_distribution_policy
SELECT c.oid, CASE p.kind WHEN 'replicated' THEN 'r' ELSE 'p' END, p.numsegments, coalesce(k.atts, '')::int2vector, coalesce(k.classes, '')::oidvector
  FROM cbrepl.distribution_policy p JOIN pg_namespace n ON n.nspname = p.schema_name
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.table_name
  CROSS JOIN LATERAL (SELECT string_agg(a.attnum::text, ' ' ORDER BY u.ord) AS atts, string_agg(o.oid::text, ' ' ORDER BY u.ord) AS classes
    FROM unnest(p.columns) WITH ORDINALITY u(name, ord) JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = u.name
    JOIN pg_opclass o ON o.opcintype = a.atttypid AND o.opcdefault AND o.opcmethod = (SELECT oid FROM pg_am WHERE amname = 'hash')) k`

// primary makes an address the primary's of a content.
func (p *pair) primary(content dtx.Content, dsn string) {
	p.t.Helper()
	u, err := url.Parse(dsn)
	p.must(err)
	port, err := strconv.Atoi(u.Port())
	p.must(err)
	p.must(p.src.Node(dtx.Coordinator).Exec(p.ctx(), fmt.Sprintf(`SET allow_system_table_mods = on;
		DELETE FROM pg_catalog.gp_segment_configuration WHERE content = %d;
		INSERT INTO pg_catalog.gp_segment_configuration VALUES (%[1]d + 2, %[1]d, 'p', 'p', 's', 'u', %d, 'sdw', '%s', '/p')`, content, port, u.Hostname())))
}

// The subscription file names the coordinator alone: segments and policies come
// from the cluster's catalogue. A segment that moves under load is followed; one
// whose new primary has no slot stops the subscription, and every later start,
// until a person acts.
func TestSegmentsFoundAndFollowed(t *testing.T) {
	p := newPair(t, 2, 2, lab.Options{})
	p.must(p.src.CreateWorkloadTables(p.ctx()))
	p.must(p.dst.CreateWorkloadTables(p.ctx()))
	p.must(p.src.Node(dtx.Coordinator).Exec(p.ctx(), gpCatalogue))
	var proxies []*repltest.Proxy
	through := func() string {
		x, err := repltest.New(p.src.Node(0).DSN())
		p.must(err)
		t.Cleanup(x.Close)
		proxies = append(proxies, x)
		return x.DSN()
	}
	p.primary(0, through())
	p.primary(1, p.src.Node(1).DSN())

	p.configureWith("found", func(s *lab.Subscription) { s.Source = s.Source[:1] })

	d := p.start(nil)
	_, stop := p.load(5)
	p.eventually("applying", func() bool { d.alive(); return d.sub.Report().Applied.Dtxs >= 100 })
	p.primary(0, through())
	proxies[0].Close()
	p.eventually("segment 0 is read at its new address", func() bool { d.alive(); return proxies[1].Passed() > 64<<10 })
	stop()
	d.drain()
	p.same()

	mirror := lab.ServerForTest(t, lab.Options{})
	p.primary(0, mirror.DSN())
	proxies[1].Cut()
	select {
	case <-d.done:
	case <-p.ctx().Done():
		t.Fatal("the daemon goes on")
	}
	want := `content 0 needs resync: its primary has moved from`
	if d.err == nil || !strings.Contains(d.err.Error(), want) || !strings.Contains(d.err.Error(), "cbrepl slots drop") {
		t.Errorf("%v\nwant %s", d.err, want)
	}
	if rep := d.sub.Report(); rep.State != status.Stopped || rep.LastError == nil || !strings.Contains(rep.LastError.Message, want) {
		t.Errorf("status: %s, %+v", rep.State, rep.LastError)
	}
	t.Logf("the daemon: %v", d.err)
	code, _, stderr := command(t, nil, "run", "-c", p.file)
	if code != 3 || !strings.Contains(stderr, "content 0 needs resync") || strings.Contains(stderr, "content 1:") {
		t.Errorf("a later start: exit code %d\n%s", code, stderr)
	}
	t.Logf("the next one: %s", stderr)
	// Back at its place, the segment still has its slot: nothing was lost.
	p.primary(0, p.src.Node(0).DSN())
	d = p.start(nil)
	for i := range 50 {
		p.must(p.src.Do(p.ctx(), func(tx *lab.Tx) error {
			return tx.Insert(p.ctx(), lab.Accounts, lab.Row{1000 + 2*i, 1, "late"}, lab.Row{1001 + 2*i, 1, "late"})
		}))
	}
	d.drain()
	p.same()

	// An expanded cluster: one content more than slots.
	p.primary(2, mirror.DSN())
	select {
	case <-d.done:
	case <-p.ctx().Done():
		t.Fatal("the daemon goes on")
	}
	if d.err == nil || !strings.Contains(d.err.Error(), "the cluster was expanded: it has 3 primary segments now, the subscription reads 2") {
		t.Errorf("expanded: %v", d.err)
	}
}
