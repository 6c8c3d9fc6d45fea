package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"cbrepl/dtx"
	"cbrepl/lab"
	"cbrepl/subscription/status"
)

// admin is a person who looks after a subscription.
type admin struct {
	*world
	t   *testing.T
	ctx context.Context
	id  int
}

const table = "public.k_hh"

func newAdmin(t *testing.T, spooled bool) *admin {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	set := draw(rand.New(rand.NewPCG(1, 7)))
	set.Segments, set.Shards, set.MaxRows, set.MaxDtxs, set.SpoolMiB = 2, 2, 100000, 5000, 64
	set.GID, set.LogConflicts, set.Spooled = false, false, spooled
	w, err := newWorld(ctx, 1, set, logDir(t), t.Logf)
	t.Cleanup(func() {
		w.close()
		for _, p := range w.problems {
			t.Error(p)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.fill(ctx); err != nil {
		t.Fatal(err)
	}
	return &admin{world: w, t: t, ctx: ctx}
}

func (a *admin) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

// insert commits n rows in one transaction.
func (a *admin) insert(n int) {
	a.t.Helper()
	rows := make([]lab.Row, n)
	for i := range rows {
		a.id++
		rows[i] = lab.Row{a.id, 1, canary}
	}
	a.must(a.src.Do(a.ctx, func(tx *lab.Tx) error { return tx.Insert(a.ctx, table, rows...) }))
}

func (a *admin) update(set, key lab.Values) {
	a.t.Helper()
	a.must(a.src.Do(a.ctx, func(tx *lab.Tx) error {
		_, err := tx.Update(a.ctx, table, set, key)
		return err
	}))
}

func (a *admin) source(sql string) { a.t.Helper(); a.must(a.src.ExecAll(a.ctx, sql)) }
func (a *admin) target(sql string) { a.t.Helper(); a.must(a.dst.ExecAll(a.ctx, sql)) }

// start starts the daemon and waits until it streams.
func (a *admin) start() {
	a.t.Helper()
	a.cur = a.spawn("")
	for end := time.Now().Add(time.Minute); time.Now().Before(end); sleep(a.ctx, 50*time.Millisecond) {
		if rep := a.report(a.ctx); rep != nil && rep.State == status.Streaming {
			return
		}
		if a.cur.ended() {
			a.t.Fatalf("the daemon ended: %s", a.cur.tail())
		}
	}
	a.t.Fatalf("the daemon does not stream: %s", a.cur.tail())
}

// refuses starts the daemon, which ends with a message.
func (a *admin) refuses(parts ...string) {
	a.t.Helper()
	a.cur = a.spawn("")
	a.stops(parts...)
}

// stopped is the exit code of a daemon that needs a person, and temporary that of
// one whose fault passes (docs/operating.md).
const (
	stopped   = 3
	temporary = 75
)

// stops waits until the daemon has ended by itself with a message.
func (a *admin) stops(parts ...string) {
	a.t.Helper()
	if !a.cur.within(time.Minute) {
		a.t.Fatalf("the daemon goes on\n%s", a.statusText(a.ctx))
	}
	said := a.cur.tail()
	if s := a.cur.status(); s.ExitStatus() != stopped {
		a.t.Errorf("exit code %d", s.ExitStatus())
	}
	for _, p := range parts {
		if !strings.Contains(said, p) {
			a.t.Errorf("it does not say %q:\n%s", p, said)
		}
	}
}

// drained requires that the daemon comes to the source's state.
func (a *admin) drained() {
	a.t.Helper()
	n := a.procs
	_, err := a.drain(a.ctx)
	a.must(err)
	a.must(a.same(a.ctx))
	if a.procs != n {
		a.t.Error("the daemon ended meanwhile")
	}
}

// Each thing that goes wrong under a running daemon stops it with a message that
// names it; what the message tells to do, done literally, makes it go on, and
// nothing is lost.
func TestRemedies(t *testing.T) {
	a := newAdmin(t, false)
	a.start()
	a.insert(10)
	a.drained()
	for _, tc := range []struct {
		name string
		run  func()
	}{
		{"column added on the source", func() {
			a.source("alter table public.k_hh add column more text default 'x'")
			a.must(a.src.Do(a.ctx, func(tx *lab.Tx) error {
				_, err := tx.ExecOn(a.ctx, table, nil, "update public.k_hh set more = '"+canary+"' where id < 5")
				return err
			}))
			a.stops(table, "gxid", `column "more" is missing on the target`)
			a.refuses(table, `column "more" is missing on the target`)
			a.target("alter table public.k_hh add column more text default 'x'")
		}},
		{"column dropped on the source", func() {
			a.source("alter table public.k_hh drop column more")
			a.insert(3)
			a.stops(table, "gxid", `column "more" is sent no more`)
			a.target("alter table public.k_hh drop column more")
		}},
		{"table published while running", func() {
			late := lab.Table{Name: "public.late", Columns: "id int8 primary key, v text", Key: []string{"id"}}
			a.must(a.src.CreateTable(a.ctx, late))
			a.must(a.src.Do(a.ctx, func(tx *lab.Tx) error { return tx.Insert(a.ctx, late.Name, lab.Row{1, canary}) }))
			a.stops("public.late", "gxid", "not among those that are replicated", "cbrepl table take")
			out, err := exec.CommandContext(a.ctx, binary, "table", "take", "-c", a.file, "public.late").CombinedOutput()
			if err != nil { // nothing was in it when it was published
				t.Fatalf("%v: %s", err, out)
			}
			a.refuses("there is no table public.late on the target")
			a.must(a.dst.CreateTable(a.ctx, late))
		}},
		{"row missing on the target", func() {
			a.target("delete from public.k_hh where id = 4")
			a.insert(3)
			a.update(lab.Values{"v": 77, "note": canary}, lab.Values{"id": 4})
			a.stops(table, "gxid", "LSN", "the row to update is not there", "(id)")
			at, err := a.dst.SegmentOf(a.ctx, table, 4)
			a.must(err)
			a.must(a.dst.Exec(a.ctx, at, "insert into public.k_hh (id, v) values (4, 0)"))
		}},
		{"row there already", func() {
			id := a.id + 2
			at, err := a.dst.SegmentOf(a.ctx, table, id)
			a.must(err)
			a.must(a.dst.Exec(a.ctx, at, fmt.Sprintf("insert into public.k_hh (id, v) values (%d, 0)", id)))
			a.insert(4)
			a.stops(table, "gxid", "the row to insert is there already")
			a.must(a.dst.Exec(a.ctx, at, fmt.Sprintf("delete from public.k_hh where id = %d", id)))
		}},
		{"check constraint", func() {
			a.target("alter table public.k_hh add constraint small check (v < 1000) not valid")
			a.insert(4)
			a.update(lab.Values{"v": 1234, "note": canary}, lab.Values{"id": 5})
			a.stops(table, "gxid", `a check constraint is violated, constraint "small"`)
			a.target("alter table public.k_hh drop constraint small")
		}},
		{"target table gone", func() {
			a.target("alter table public.k_hh rename to gone")
			a.insert(2)
			a.stops("there is no table public.k_hh on the target")
			a.target("alter table public.gone rename to k_hh")
		}},
		{"others hold every prepared transaction", func() {
			v, err := ask(a.ctx, a.dst.Node(0), "select setting from pg_settings where name = 'max_prepared_transactions'")
			a.must(err)
			var n int
			_, err = fmt.Sscan(v, &n)
			a.must(err)
			conn, err := pgx.Connect(a.ctx, a.dst.Node(0).DSN())
			a.must(err)
			defer conn.Close(a.ctx)
			script := func(each string) {
				for i := range n {
					_, err := conn.PgConn().Exec(a.ctx, fmt.Sprintf(each, i)).ReadAll()
					a.must(err)
				}
			}
			script("begin; prepare transaction 'other-%d'")
			a.insert(20)
			for end := time.Now().Add(time.Minute); ; sleep(a.ctx, 50*time.Millisecond) {
				if rep := a.report(a.ctx); rep != nil && strings.Contains(rep.Target.Error, "other-0") {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("status does not name them\n%s", a.statusText(a.ctx))
				}
			}
			script("rollback prepared 'other-%d'")
		}},
		{"sessions ended by hand", func() {
			for range 5 {
				a.insert(6)
				for _, s := range append(a.src.Nodes(), a.dst.Nodes()...) {
					a.must(endSessions(a.ctx, s))
				}
			}
		}},
		{"settings of the databases", func() {
			a.disturbed = time.Time{}
			a.terminate()
			for _, set := range []string{
				"timezone = 'America/New_York'", "datestyle = 'German, DMY'", "intervalstyle = 'sql_standard'", "extra_float_digits = 0",
				"bytea_output = 'escape'", "default_transaction_isolation = 'serializable'", "search_path = 'pg_catalog'",
				"standard_conforming_strings = off", "quote_all_identifiers = on", "array_nulls = off", "transform_null_equals = on",
				"client_min_messages = 'debug1'", "client_encoding = 'LATIN1'",
			} {
				a.target("alter database postgres set " + set)
			}
			a.start()
			a.must(a.src.Do(a.ctx, func(tx *lab.Tx) error {
				if err := tx.Insert(a.ctx, "public.num", lab.Row{"1.50", "2024-07-01 12:00:00.123456+02", 1}, lab.Row{"1e3", "infinity", 5}); err != nil {
					return err
				}
				return tx.Insert(a.ctx, "public.full_rh", lab.Row{nil, "a\\b 日本", `{"x":  1}`}, lab.Row{1, "NULL", nil})
			}))
			a.drained()
			a.target("alter database postgres reset all")
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a.t = t
			tc.run()
			if a.cur.ended() {
				a.start()
			}
			a.insert(2)
			a.drained()
		})
		if t.Failed() {
			return
		}
	}
	a.t = t
	// Last, what no remedy but a new copy mends.
	a.terminate()
	_, err := ask(a.ctx, a.src.Node(0), "select pg_drop_replication_slot('cbrepl_chaos')::text")
	a.must(err)
	a.refuses("content 0", `slot "cbrepl_chaos" does not exist`)
	_, err = ask(a.ctx, a.src.Node(0), "select pg_create_logical_replication_slot('cbrepl_chaos', 'pgoutput')::text")
	a.must(err)
	a.refuses("content 0", "beyond the recorded position", "a new initial copy is needed")
	a.must(a.leaks())
}

// With ack spooled, the spool is the only copy of what is confirmed: it is
// neither forgotten nor opened in the other mode; drained and stopped, it can be
// given up.
func TestChangeOfAckMode(t *testing.T) {
	a := newAdmin(t, true)
	a.change("source.status_interval", "2s")
	a.start()
	a.insert(10)
	a.drained()
	shard := a.dst.Node(dtx.Content(0))
	a.must(shard.Crash(a.ctx))
	for range 20 {
		a.insert(5)
	}
	// The spool alone holds rows, once their positions are confirmed.
	end, err := ask(a.ctx, a.src.Node(0), "select pg_current_wal_lsn()::text")
	a.must(err)
	for limit := time.Now().Add(time.Minute); ; sleep(a.ctx, 50*time.Millisecond) {
		done, err := ask(a.ctx, a.src.Node(0), "select (confirmed_flush_lsn >= '"+end+"')::text from pg_replication_slots where slot_name = 'cbrepl_chaos'")
		a.must(err)
		if done == "true" {
			break
		}
		if time.Now().After(limit) {
			t.Fatal("the source is not told that its rows are spooled")
		}
	}
	a.disturbed = time.Now() // the target is away
	a.terminate()
	a.must(shard.Start(a.ctx))
	a.change("spool.ack", "applied")
	a.refuses("the only copy of confirmed transactions")
	a.change("spool.ack", "spooled")
	kept := a.setting("spool.dir")
	a.change("spool.dir", kept+"-other")
	a.refuses("beyond the recorded position")
	a.change("spool.dir", kept)
	a.start()
	a.drained()
	// The log moves on while nothing published happens.
	for range 30 {
		_, err := a.src.EmitMessage(a.ctx, 1, true, "other", []byte("x"))
		a.must(err)
		sleep(a.ctx, 100*time.Millisecond)
	}
	a.disturbed = time.Time{}
	a.terminate()
	a.must(os.RemoveAll(kept))
	a.change("spool.ack", "applied")
	a.start()
	a.insert(5)
	a.drained()
	a.must(a.leaks())
}
