package source

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
	"cbrepl/router"
)

// TestCut: what is read under a cut is what was committed before it, piece by piece;
// a table that is rewritten since is noticed.
func TestCut(t *testing.T) {
	c := newCluster(t, shared.Source(t))
	on := func(content dtx.Content, sql string) { t.Helper(); c.on(content, sql) }
	on(1, `create table "Odd t"(id int8, pad text); insert into "Odd t" select i, repeat('x', 500) from generate_series(1, 1000) i;
		create table part(id int8) partition by range (id); create table part1 partition of part for values from (0) to (10);
		create table part2 partition of part for values from (10) to (20); insert into part values (1), (2), (11);
		create table gone(id int8)`)
	cut, err := TakeCut(c.ctx(), c.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer cut.Close()
	if len(cut.Positions) != 3 || cut.Positions[0].Content != 0 || cut.Positions[1].LSN == 0 {
		t.Fatalf("positions %v", cut.Positions)
	}
	on(1, `insert into "Odd t" values (2000, 'later'); delete from "Odd t" where id < 100; insert into part values (12); drop table gone`)
	r, err := cut.Reader(c.ctx(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	read := func(tb catalog.PublishedTable, blocks int64) (ids []string, pieces int, err error) {
		ps, err := r.Pieces(c.ctx(), &tb, blocks)
		if err != nil {
			return nil, 0, err
		}
		for i := range ps {
			var b bytes.Buffer
			if err := r.Copy(c.ctx(), &tb, &ps[i], []string{"id"}, &b); err != nil {
				return nil, 0, err
			}
			ids = append(ids, strings.Fields(b.String())...)
		}
		return ids, len(ps), nil
	}
	odd := catalog.PublishedTable{Schema: "public", Name: "Odd t", Policy: router.Policy{}}
	for _, blocks := range []int64{1, 7, 1000} {
		ids, pieces, err := read(odd, blocks)
		slices.Sort(ids)
		if err != nil || len(slices.Compact(ids)) != 1000 || slices.Contains(ids, "2000") || !slices.Contains(ids, "5") {
			t.Errorf("pieces of %d blocks: %d rows, %v", blocks, len(ids), err)
		}
		if pieces < 2 && blocks < 50 {
			t.Errorf("pieces of %d blocks: %d", blocks, pieces)
		}
	}
	filtered := odd
	filtered.Filter = "id <= 10 OR id = 2000"
	if ids, _, err := read(filtered, 20); err != nil || len(ids) != 10 {
		t.Errorf("filtered: %v, %v", ids, err)
	}
	if ids, pieces, err := read(catalog.PublishedTable{Schema: "public", Name: "part"}, 1000); err != nil || fmt.Sprint(ids) != "[1 2 11]" || pieces != 2 {
		t.Errorf("partitions: %v in %d pieces, %v", ids, pieces, err)
	}
	if _, _, err := read(catalog.PublishedTable{Schema: "public", Name: "gone"}, 1000); !errors.Is(err, ErrRewritten) {
		t.Errorf("a table that was dropped: %v", err)
	}
	// A TRUNCATE takes the rows from under the snapshot; the session goes on.
	on(1, `truncate "Odd t"; insert into "Odd t" values (1, 'new')`)
	_, _, err = read(odd, 1000)
	if !errors.Is(err, ErrRewritten) {
		t.Errorf("a truncated table: %v", err)
	}
	dtxtest.WantError(t, err, dtx.ClassRetry, "content 1", "public.Odd t")
	if ids, _, err := read(catalog.PublishedTable{Schema: "public", Name: "part"}, 1000); err != nil || len(ids) != 3 {
		t.Errorf("after that: %v, %v", ids, err)
	}

	// A transaction that stays open holds the next cut up, and is named.
	conn, err := pgx.Connect(c.ctx(), c.cfg.Nodes[2].DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(conn)
	if _, err := conn.Exec(c.ctx(), "begin; select txid_current()"); err != nil {
		t.Fatal(err)
	}
	cfg := c.cfg
	cfg.CreateTimeout = 3 * time.Second
	_, err = TakeCut(c.ctx(), cfg)
	dtxtest.WantError(t, err, dtx.ClassRetry, "content 1", "not made within 3s", fmt.Sprint(conn.PgConn().PID()), "--timeout")
	cut.Close()
	for _, n := range c.cfg.Nodes {
		var left int
		at, err := pgx.Connect(c.ctx(), n.DSN)
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(10 * time.Second); ; { // the server drops them with their sessions
			if err := at.QueryRow(c.ctx(), "select count(*) from pg_replication_slots where slot_name like '%\\_copy\\_%'").Scan(&left); err != nil {
				t.Fatal(err)
			}
			if left == 0 || time.Now().After(end) {
				break
			}
		}
		closeConn(at)
		if left != 0 {
			t.Errorf("content %d has %d slots left", n.Content, left)
		}
	}
}
