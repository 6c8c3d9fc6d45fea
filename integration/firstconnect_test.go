package integration

import (
	"fmt"
	"strings"
	"testing"

	"cbrepl/faultinject"
	"cbrepl/lab"
	"cbrepl/subscription/status"
)

// Servers that are down when the daemon starts are waited for, on either side;
// meanwhile what the last daemon left prepared on the target is resolved.
func TestServersDownAtStart(t *testing.T) {
	p := newPair(t, 2, 2, lab.Options{})
	p.tables(lab.Table{Name: "t", Columns: "id int8 primary key, v text", Key: []string{"id"}})
	p.configure("down")
	insert := func(from int) {
		rows := make([]lab.Row, 50) // both shards get some
		for i := range rows {
			rows[i] = lab.Row{from + i, "x"}
		}
		p.must(p.src.Do(p.ctx(), func(tx *lab.Tx) error { return tx.Insert(p.ctx(), "t", rows...) }))
	}
	prepared := func() (n int) {
		for _, s := range p.dst.Nodes() {
			var k int
			_, err := fmt.Sscan(p.ask(s, "select count(*)::text from pg_prepared_xacts"), &k)
			p.must(err)
			n += k
		}
		return n
	}
	insert(1)
	r := p.spawn(faultinject.EnvVar + "=shards.after_prepare=kill")
	<-r.done
	if prepared() == 0 {
		t.Fatal("the daemon left nothing in doubt")
	}

	segment := p.src.Node(1)
	p.must(segment.Crash(p.ctx()))
	r = p.spawn()
	p.eventually("resolved while the source is away", func() bool { return prepared() == 0 })
	p.eventually("status names the server", func() bool {
		rep := r.report()
		return rep != nil && rep.State == status.Starting && strings.Contains(strings.Join(rep.Unhealthy, "\n"), "content 1")
	})
	p.must(segment.Start(p.ctx()))
	r.drain()
	p.same("t")
	if code := r.terminate(); code != 0 {
		t.Errorf("exit code %d", code)
	}

	shard := p.dst.Node(0)
	p.must(shard.Crash(p.ctx()))
	insert(1001)
	r = p.spawn()
	p.eventually("status names the shard", func() bool {
		rep := r.report()
		return rep != nil && rep.State == status.Starting && strings.Contains(strings.Join(rep.Unhealthy, "\n"), "shard 0")
	})
	p.must(shard.Start(p.ctx()))
	r.drain()
	p.same("t")
	if code := r.terminate(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
