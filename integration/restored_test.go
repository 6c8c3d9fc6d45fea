package integration

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sync/errgroup"

	"cbrepl/dtx"
	"cbrepl/lab"
)

// A target that is taken back in time, or has lost its record, is refused with what
// to do, in either mode of the spool: nothing says where the rows between have gone.
// One that is the newest goes on, also when the spool is lost.
func TestRestoredTarget(t *testing.T) {
	for _, ack := range []string{"applied", "spooled"} {
		t.Run(ack, func(t *testing.T) {
			p := newPair(t, 2, 2, lab.Options{})
			p.tables(lab.Table{Name: "plain", Columns: "id int8 primary key, v text", Key: []string{"id"}})
			p.configureWith("restored", func(s *lab.Subscription) { s.Set("spool.ack", ack) })
			// insert returns once the slots are confirmed beyond what the target has recorded
			// before.
			insert := func(from int) {
				t.Helper()
				recorded := map[dtx.Content]dtx.LSN{}
				for _, c := range p.src.Contents() {
					lsn, err := dtx.ParseLSN(p.ask(p.dst.Nodes()[0], "select lsn::text from cbrepl.positions where content = "+c.String()))
					p.must(err)
					recorded[c] = lsn
				}
				r := p.spawn()
				for i := range 20 {
					p.must(p.src.Do(p.ctx(), func(tx *lab.Tx) error {
						return tx.Insert(p.ctx(), "plain", lab.Row{from + 2*i, "x"}, lab.Row{from + 2*i + 1, "y"})
					}))
				}
				r.drain()
				p.same("plain")
				p.eventually("the slots are confirmed", func() bool {
					for c, lsn := range p.confirmed() {
						if lsn <= recorded[c] {
							return false
						}
					}
					return true
				})
				if code := r.terminate(); code != 0 {
					t.Fatalf("exit code %d", code)
				}
			}
			refused := func(when string, want ...string) {
				t.Helper()
				p.refused(nil, []string{"run", "-c", p.file}, 3, append(want, "cbrepl subscription reset")...)
				if t.Failed() {
					t.Fatal(when)
				}
			}

			p.copyTarget("", ".first")
			insert(1)
			p.copyTarget("", ".second")
			insert(1000)
			p.copyTarget("", ".newest")

			older, first, lost := "beyond the recorded position", "beyond the recorded position", "does not record where this subscription begins"
			if ack == "spooled" {
				older, first, lost = "restored to an older state", "restored to an older state", "was restored to a state before the first start, or its record was deleted"
			}
			p.copyTarget(".second", "")
			refused("an older backup", older)
			p.copyTarget(".first", "")
			refused("a backup from before the first start", first)
			p.copyTarget(".newest", "")
			p.must(p.dst.Nodes()[0].Exec(p.ctx(), "delete from cbrepl.subscription; delete from cbrepl.stream"))
			p.refused(nil, []string{"run", "-c", p.file}, 3, "knows no subscription restored", "cbrepl target prepare")
			for _, s := range p.dst.Nodes()[1:] {
				p.must(s.Exec(p.ctx(), "delete from cbrepl.shard"))
			}
			if code, _, stderr := command(t, nil, "target", "prepare", "-c", p.file); code != 0 {
				t.Fatal(stderr)
			}
			refused("a record that is made anew", lost)

			p.copyTarget(".newest", "")
			p.must(os.RemoveAll(filepath.Join(p.dir, "spool-restored")))
			insert(5000)
		})
	}
}

// copyTarget copies the data directories of the target's servers, which restart.
func (p *pair) copyTarget(from, to string) {
	p.t.Helper()
	ctx := p.ctx()
	var g errgroup.Group
	for _, s := range p.dst.Nodes() {
		g.Go(func() error {
			if err := errors.Join(s.Shutdown(ctx), os.RemoveAll(s.DataDir()+to)); err != nil {
				return err
			}
			if out, err := exec.CommandContext(ctx, "cp", "-a", s.DataDir()+from, s.DataDir()+to).CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return s.Start(ctx)
		})
	}
	p.must(g.Wait())
}
