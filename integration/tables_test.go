package integration

import (
	"strconv"
	"strings"
	"testing"

	"cbrepl/lab"
)

// What happened to tables while the daemon was down is noticed at the start, by table
// and node, and each case has its way out: a table that is gone is let go of, with
// the rows of it that are still in the stream; one that was made anew is taken.
func TestTablesChangedWhileDown(t *testing.T) {
	p := newPair(t, 2, 2, lab.Options{})
	columns := func(name string) lab.Table {
		return lab.Table{Name: name, Columns: "id int8 primary key, v text", Key: []string{"id"}}
	}
	p.tables(columns("kept"), columns("gone"), columns("again"))
	p.configure("tables")
	next := 0
	insert := func(tables ...string) {
		t.Helper()
		for range 5 {
			next++
			p.must(p.src.Do(p.ctx(), func(tx *lab.Tx) error {
				for _, tb := range tables {
					if err := tx.Insert(p.ctx(), tb, lab.Row{next, "x"}, lab.Row{-next, "y"}); err != nil {
						return err
					}
				}
				return nil
			}))
		}
	}
	table := func(args ...string) string {
		t.Helper()
		code, out, stderr := command(t, nil, append([]string{"table", args[0], "-c", p.file}, args[1:]...)...)
		if code != 0 {
			t.Fatalf("%v: exit code %d\n%s", args, code, stderr)
		}
		return out
	}
	run := []string{"run", "-c", p.file}
	r := p.spawn()
	insert("kept", "gone", "again")
	r.drain()
	p.refused(nil, []string{"table", "forget", "-c", p.file, "public.gone"}, 1, "another daemon runs subscription tables", "Stop the other daemon")
	if code := r.terminate(); code != 0 {
		t.Fatalf("exit code %d", code)
	}

	// Dropped with rows that are not applied, as a person wanted it.
	insert("kept", "gone", "again")
	p.must(p.src.DropTable(p.ctx(), "gone"))
	p.refused(nil, run, 3, "content 0: table public.gone: it was replicated and is not published here any more", "content 1: table public.gone", "cbrepl table forget")
	p.refused(nil, []string{"table", "forget", "-c", p.file, "public.gone", "public.nosuch"}, 1, "table public.nosuch", "does not record it as replicated")
	p.refused(nil, []string{"table", "take", "-c", p.file, "public.gone"}, 1, "table public.gone", "does not hold it")
	if n := p.ask(p.dst.Nodes()[0], "select count(*)::text from cbrepl.replicated where forgotten"); n != "0" {
		t.Errorf("refused commands have let go of %s tables", n)
	}
	if out := table("forget", "public.gone"); !strings.Contains(out, "let go of: public.gone") {
		t.Errorf("it printed %q", out)
	}
	r = p.spawn()
	r.drain()
	p.same("kept", "again")
	if n := p.rowsOnShards("gone"); n != 10 {
		t.Errorf("the table that was let go of has %d rows, want the 10 of before", n)
	}

	// Of a table that is published anew no row is taken before a person says so.
	p.must(p.src.CreateTable(p.ctx(), columns("gone")))
	insert("kept", "gone")
	<-r.done
	if out := r.stderr.String(); r.cmd.ProcessState.ExitCode() != 3 || !strings.Contains(out, "table public.gone") || !strings.Contains(out, "cbrepl table take") {
		t.Fatalf("exit code %d", r.cmd.ProcessState.ExitCode())
	}
	p.must(p.dst.ExecAll(p.ctx(), "truncate gone"))
	table("take", "public.gone")

	// Made anew while rows of the old one wait.
	insert("again", "kept")
	p.must(p.src.DropTable(p.ctx(), "again"))
	p.must(p.src.CreateTable(p.ctx(), columns("again")))
	insert("again", "kept", "gone")
	p.refused(nil, run, 3, "content 1: table public.again: another table has its name now", "cbrepl table take")
	p.must(p.dst.ExecAll(p.ctx(), "truncate again"))
	table("take", "public.again")
	r = p.spawn()
	r.drain()
	p.same("kept", "gone", "again")

	// Taken out of the publication, and a column that is new: one is refused, the other
	// recorded.
	if code := r.terminate(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	for _, s := range p.src.Nodes() {
		p.must(s.Exec(p.ctx(), "alter publication "+p.src.Publication()+" drop table again"))
	}
	p.must(p.dst.ExecAll(p.ctx(), "alter table kept add w int"))
	for _, s := range p.src.Nodes() {
		p.must(s.Exec(p.ctx(), "alter table kept add w int"))
	}
	p.refused(nil, run, 3, "content -1 (coordinator): table public.again: it was replicated", "taken out of the publication")
	table("forget", "public.again")
	r = p.spawn()
	insert("kept")
	r.drain()
	p.same("kept", "gone")
	r.terminate()
	if got := p.ask(p.dst.Nodes()[0], "select published from cbrepl.replicated where table_name = 'kept' and content = 0"); !strings.Contains(got, `"w"`) {
		t.Errorf("the new column is not recorded: %s", got)
	}
}

// rowsOnShards counts a table's rows on all shards.
func (p *pair) rowsOnShards(table string) (n int) {
	p.t.Helper()
	for _, s := range p.dst.Nodes()[1:] {
		rows, err := strconv.Atoi(p.ask(s, "select count(*)::text from "+table))
		p.must(err)
		n += rows
	}
	return n
}
