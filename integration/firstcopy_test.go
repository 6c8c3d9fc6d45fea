package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"cbrepl/faultinject"
	"cbrepl/internal/soak"
	"cbrepl/lab"
	"cbrepl/router"
	"cbrepl/subscription"
)

// shaped are tables that a copy has to lay out with care, as the source has them, and
// one of them as the target has it.
var (
	shaped = []lab.Table{
		{
			Name: "public.shaped", Columns: "gone text, id int8 primary key, twice int8 generated always as (id * 2) stored, v text, n serial", Key: []string{"id"},
			After: []string{"alter table public.shaped drop column gone"},
		},
		{Name: "public.scattered", Columns: "v text, w int4", Kind: router.Random, After: []string{"alter table public.scattered replica identity full"}},
		{Name: "public.nothing", Columns: "id int8 primary key, v text", Key: []string{"id"}},
	}
	shapedTarget = lab.Table{Name: "public.shaped", Columns: "n serial, v text, id int8 primary key, twice int8 generated always as (id * 2) stored", Key: []string{"id"}}
)

// copyTables makes the workload's tables and those of shaped, and fills the latter.
func (p *pair) copyTables() (names []string) {
	p.t.Helper()
	for i, tb := range append(shaped, lab.WorkloadTables()...) {
		names = append(names, tb.Name)
		p.must(p.src.CreateTable(p.ctx(), tb))
		if i == 0 {
			tb = shapedTarget
		}
		p.must(p.dst.CreateTable(p.ctx(), tb))
	}
	p.must(p.src.Do(p.ctx(), func(tx *lab.Tx) error {
		var rows, anywhere []lab.Row
		for i := range 2000 {
			rows = append(rows, lab.Row{i, fmt.Sprintf("tab\t backslash \\ line\n bell\a vt\v ff\f bs\b %d", i)})
			anywhere = append(anywhere, lab.Row{[]any{nil, `\N`, "a\tb", "x"}[i%4], i % 3})
		}
		if err := tx.InsertColumns(p.ctx(), "public.shaped", []string{"id", "v"}, rows...); err != nil {
			return err
		}
		return tx.Insert(p.ctx(), "public.scattered", anywhere...)
	}))
	return names
}

// initially runs a first copy in this process.
func (p *pair) initially(o subscription.InitOptions) (subscription.InitResult, error) {
	p.t.Helper()
	log := &syncBuffer{}
	s, err := subscription.New(subscription.Options{Config: p.cfg, Version: "test", Log: slog.New(slog.NewTextHandler(log, nil))})
	p.must(err)
	p.t.Cleanup(func() {
		if p.t.Failed() {
			p.t.Logf("the first copy's log:\n%s", tail(log.String(), 40))
		}
	})
	return s.Init(p.ctx(), o)
}

// TestFirstCopy: a loaded source is copied while its writers go on, and the stream
// continues where the copy ends.
func TestFirstCopy(t *testing.T) {
	p := newPair(t, 3, 2, lab.Options{})
	tables := p.copyTables()
	p.describe("first", nil)
	p.must(subscription.PrepareTarget(p.ctx(), p.cfg))
	p.must(p.dst.Exec(p.ctx(), 1, "insert into nothing values (77)"))
	for _, c := range []struct {
		args []string
		code int
		want []string
	}{
		{nil, 3, []string{"public.nothing", "the target table holds rows", "--truncate"}},
		{[]string{"--tables", "public.nowhere"}, 3, []string{"public.nowhere", "does not publish a table of this name"}},
		{[]string{"--tables", "nowhere"}, 3, []string{"is no name of a table"}},
		{[]string{"--workers", "0"}, 2, []string{"--workers is 0"}},
	} {
		p.refused(nil, append([]string{"init", "-c", p.file}, c.args...), c.code, c.want...)
	}
	code, out, errs := command(t, nil, "init", "-c", p.file, "--truncate", "--dry-run")
	if code != 0 || !strings.Contains(out, "would make the slots; 8 tables to copy") || !strings.Contains(out, "would be emptied and copied") {
		t.Fatalf("exit code %d\n%s\n%s", code, out, errs)
	}
	for _, c := range p.src.Contents() {
		if n := p.ask(p.src.Node(c), "select count(*)::text from pg_replication_slots"); n != "0" {
			t.Errorf("content %d has %s slots after what changes nothing", c, n)
		}
	}

	w, stop := p.load(7, func(w *lab.Workload) { w.Accounts = 3000 })
	res, err := p.initially(subscription.InitOptions{PieceBlocks: 4, Workers: 3, Truncate: true})
	p.must(err)
	if !res.SlotsMade || len(res.Tables) != 8 {
		t.Errorf("result %+v", res)
	}
	d := p.start(nil)
	before, _, _ := w.Counts()
	p.eventually("the load goes on", func() bool { n, _, _ := w.Counts(); return n > before+200 })
	stop()
	d.drain()
	p.same(tables...)
	total, err := p.dst.Total(p.ctx(), lab.Accounts, "balance")
	p.must(err)
	if total != w.Total() {
		t.Errorf("total %d, want %d", total, w.Total())
	}
	p.must(d.end())
	for _, c := range p.src.Contents() {
		if n := p.ask(p.src.Node(c), "select count(*)::text from pg_replication_slots"); n != "1" {
			t.Errorf("content %d has %s slots", c, n)
		}
	}
	for _, c := range []int{0, 1} { // the sequence stands where the source's stand
		if n := p.ask(p.dst.Node(p.dst.Contents()[c+1]), "select (last_value > 1)::text from shaped_n_seq"); n != "true" {
			t.Errorf("shard %d: the sequence was not set", c)
		}
	}

	// Once more changes nothing.
	code, out, errs = command(t, nil, "init", "-c", p.file, "--json")
	var again subscription.InitResult
	if code != 0 || json.Unmarshal([]byte(out), &again) != nil || len(again.Tables) != 8 || !again.Tables[0].Kept || again.SlotsMade {
		t.Errorf("exit code %d\n%s\n%s", code, out, errs)
	}
	p.same(tables...)
}

// initFaults are the places where a first copy is killed.
var initFaults = []string{
	"subscription.init_after_slots", "shards.init_before_commit", "snapshot.after_waiting", "snapshot.after_cut", "snapshot.after_copying",
	"snapshot.after_empty", "shards.load_before_commit", "snapshot.after_piece", "shards.copies_before_commit", "snapshot.before_copied", "snapshot.after_copied",
}

// TestFirstCopyInterrupted kills first copies, at fault points and at random moments,
// and servers under them, while writers go on. What remains is never trusted by a run,
// and the next copy finishes it.
func TestFirstCopyInterrupted(t *testing.T) {
	p := newPair(t, 3, 2, lab.Options{})
	tables := p.copyTables()
	p.describe("killed", nil)
	p.must(subscription.PrepareTarget(p.ctx(), p.cfg))
	rounds := soak.Times(1, 20)
	for round := range rounds {
		rnd := rand.New(rand.NewPCG(soak.Seed(t, 17), uint64(round)))
		w, stop := p.load(uint64(11+round), func(w *lab.Workload) {
			w.Accounts, w.Workers, w.FirstID = 2000, 2, int64(1_000_000*round+1)
		})
		for _, i := range rnd.Perm(len(initFaults))[:5] {
			p.interrupted(fmt.Sprintf("%s=kill@%d", initFaults[i], 1+rnd.IntN(2)), nil)
		}
		p.interrupted("", func() { time.Sleep(time.Duration(rnd.IntN(3000)) * time.Millisecond) })
		shard := p.dst.Node(p.dst.Contents()[1+rnd.IntN(2)])
		p.interrupted("snapshot.after_piece=sleep:20ms@*", func() {
			time.Sleep(time.Duration(500+rnd.IntN(2000)) * time.Millisecond)
			p.must(shard.Crash(p.ctx()))
			p.must(shard.Start(p.ctx()))
		})
		p.command("init", "-c", p.file, "--truncate")
		d := p.start(nil)
		before, _, _ := w.Counts()
		p.eventually("the load goes on", func() bool { n, _, _ := w.Counts(); return n > before+50 })
		stop()
		d.drain()
		p.must(d.end())
		if p.same(tables...); t.Failed() || round+1 == rounds {
			return
		}
		p.command("slots", "drop", "-c", p.file)
		p.command("subscription", "reset", "-c", p.file)
	}
}

// command runs the binary, which must succeed.
func (p *pair) command(args ...string) {
	p.t.Helper()
	if code, out, errs := command(p.t, nil, args...); code != 0 {
		p.t.Fatalf("%v: exit code %d\n%s\n%s", args, code, out, errs)
	}
}

// interrupted runs a first copy with a fault, does something meanwhile, and ends it.
// Unless it was whole, the daemon must refuse to run.
func (p *pair) interrupted(fault string, meanwhile func()) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var out syncBuffer
	cmd := exec.CommandContext(ctx, binary, "init", "-c", p.file, "--truncate")
	cmd.Env = append(os.Environ(), faultinject.EnvVar+"="+fault)
	cmd.Stdout, cmd.Stderr = &out, &out
	p.must(cmd.Start())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // its exit code is read below
	}()
	if meanwhile != nil {
		meanwhile()
		_ = cmd.Process.Kill() // it may have ended
	}
	<-done
	code := cmd.ProcessState.ExitCode()
	p.t.Logf("%q: exit code %d", fault, code)
	if code != -1 && code != 0 && code != 75 {
		p.t.Fatalf("%q: exit code %d\n%s", fault, code, tail(out.String(), 20))
	}
	if code == 0 {
		return
	}
	code, _, errs := command(p.t, nil, "run", "-c", p.file)
	if code != 3 || !strings.Contains(errs, "cbrepl init") && !strings.Contains(errs, "does not exist") { // without slots it does not look further
		p.t.Fatalf("after %q the daemon ended with exit code %d\n%s", fault, code, errs)
	}
}
