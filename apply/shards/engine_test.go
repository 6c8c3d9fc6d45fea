package shards

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cbrepl/apply"
	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/dtx/dtxtest"
	"cbrepl/internal/soak"
	"cbrepl/pgoutput"
	"cbrepl/pgoutput/pgotest"
	"cbrepl/router"
)

// memRows holds parts in memory, by spool id.
type memRows map[dtx.SpoolID][]*pgoutput.Change

func (m memRows) Open(p dtx.Part) (apply.RowIter, error) { return &memIter{m[p.Spool]}, nil }

type memIter struct{ left []*pgoutput.Change }

func (it *memIter) Next() (*pgoutput.Change, error) {
	if len(it.left) == 0 {
		return nil, io.EOF
	}
	c := it.left[0]
	it.left = it.left[1:]
	return c, nil
}

func (it *memIter) Close() error { return nil }

// items drives a keyed table through inserts, updates, deletes and moves between
// shards, with the real engine, and keeps what must be there.
type items struct {
	r    *rand.Rand
	rel  *pgoutput.Relation
	rows map[int]string
	next int
}

func (s *items) change(typ byte, msg []byte) *pgoutput.Change {
	row, err := pgoutput.ParseRow(typ, msg[1:])
	if err != nil {
		panic(err)
	}
	return &pgoutput.Change{Row: row, Relation: s.rel}
}

// batch makes batch seq of up to n changes.
func (s *items) batch(seq uint64, n int) (*dtx.Batch, memRows) {
	var changes []*pgoutput.Change
	key := func(id int) pgoutput.Value { return pgotest.Text(strconv.Itoa(id)) }
	for range 1 + s.r.IntN(n) {
		v := fmt.Sprintf("v%d of %d", s.r.IntN(1000), seq)
		ids := slices.Sorted(maps.Keys(s.rows))
		switch op := s.r.IntN(4); {
		case len(ids) == 0 || op == 0:
			s.next++
			s.rows[s.next] = v
			changes = append(changes, s.change(pgoutput.TypeInsert, pgotest.Insert(0, 1, key(s.next), pgotest.Text(v))))
		case op == 1:
			id := ids[s.r.IntN(len(ids))]
			s.rows[id] = v
			changes = append(changes, s.change(pgoutput.TypeUpdate, pgotest.Update(0, 1, 0, nil, []pgoutput.Value{key(id), pgotest.Text(v)})))
		case op == 2: // a new key: another shard, most often
			id := ids[s.r.IntN(len(ids))]
			delete(s.rows, id)
			s.next++
			s.rows[s.next] = v
			changes = append(changes, s.change(pgoutput.TypeUpdate,
				pgotest.Update(0, 1, 'K', []pgoutput.Value{key(id), pgotest.Null()}, []pgoutput.Value{key(s.next), pgotest.Text(v)})))
		default:
			id := ids[s.r.IntN(len(ids))]
			delete(s.rows, id)
			changes = append(changes, s.change(pgoutput.TypeDelete, pgotest.Delete(0, 1, 'K', key(id), pgotest.Null())))
		}
	}
	part := dtx.Part{GXID: dtx.GXID(seq), Content: 0, Spool: dtx.SpoolID(seq), Rows: int64(len(changes))}
	return &dtx.Batch{
		Seq: seq, GXIDs: []dtx.GXID{part.GXID}, Steps: []dtx.Step{{Parts: []dtx.Part{part}}},
		Positions: []dtx.Position{{Content: 0, LSN: dtx.LSN(seq)}},
	}, memRows{part.Spool: changes}
}

// check compares the shards with the oracle and every row's place with cdbhash.
func (s *items) check(t *testing.T, dbs []string, policy router.Policy) {
	t.Helper()
	r, err := router.New(policy)
	if err != nil {
		t.Fatal(err)
	}
	got := map[int]string{}
	for i, dsn := range dbs {
		for _, row := range queryRows(t, dsn, "SELECT id, v FROM app.item") {
			id := int(pgside.Atoi([]byte(row[0])))
			if _, twice := got[id]; twice {
				t.Errorf("row %d is on two shards", id)
			}
			got[id] = row[1]
			if seg, err := r.Segment([][]byte{[]byte(row[0])}); err != nil || int(seg) != i {
				t.Errorf("row %d is on shard %d, its place is %d (%v)", id, i, seg, err)
			}
		}
	}
	if d := cmp.Diff(s.rows, got); d != "" {
		t.Fatalf("the rows differ (-want +got):\n%s", d)
	}
}

// The real engine under the real protocol: failed batches are undone, applied
// ones are there once, on the right shard.
func TestEngine(t *testing.T) {
	coordinator, dbs := sharedDatabases(t, 3)
	o := testOptions(coordinator, dbs)
	if err := Prepare(testCtx(t), o); err != nil {
		t.Fatal(err)
	}
	for _, dsn := range dbs {
		execSQL(t, dsn, "CREATE SCHEMA app; CREATE TABLE app.item (id int PRIMARY KEY, v text)")
	}
	execSQL(t, coordinator, policySQL("item", "hash", "{id}", 3))
	o.Tables = []catalog.PublishedTable{sourceTable("item", "id integer", "v text")}
	tg, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer closeTarget(t, tg)
	openUntil(t, tg)
	if err := initHistory(testCtx(t), tg); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(soak.Seed(t, 1), 0))
	s := &items{r: r, rows: map[int]string{}, rel: &pgoutput.Relation{
		ID: 1, Schema: "app", Name: "item", Identity: 'd',
		Columns: []pgoutput.Column{{Key: true, Name: "id", TypeOID: 23}, {Name: "v", TypeOID: 25}},
	}}
	integer, _ := router.BuiltinType(23)
	policy := router.Policy{Kind: router.Hash, NumSegments: 3, Columns: []router.Column{{Name: "id", Type: integer}}}
	faults := 0
	for seq := uint64(1); seq <= 60; seq++ {
		b, rows := s.batch(seq, 30)
		if r.IntN(5) == 0 { // the first try fails somewhere before the decision
			points := []string{"before_begin", "before_prepare", "between_prepare", "after_prepare"}
			at := points[r.IntN(len(points))]
			passed := false
			tg.private.onPoint = func(name string) error {
				if name == at {
					passed = true
					return context.DeadlineExceeded
				}
				return nil
			}
			_, err := tg.Apply(testCtx(t), b, rows)
			tg.private.onPoint = nil
			if failed := err != nil; failed != passed {
				t.Fatalf("batch %d: passed the fault at %s is %t, error %v", seq, at, passed, err)
			}
			if !passed { // nothing to prepare: its changes cancel out
				continue
			}
			faults++
			checkNonePrepared(t, o)
			if st := openUntil(t, tg); st.Batch != seq-1 {
				t.Fatalf("batch %d is recorded after a fault at %s, want %d", st.Batch, at, seq-1)
			}
		}
		res, err := tg.Apply(testCtx(t), b, rows)
		if err != nil {
			t.Fatalf("batch %d: %v", seq, err)
		}
		if res.Rows != b.Steps[0].Parts[0].Rows {
			t.Errorf("batch %d applied %d rows of %d", seq, res.Rows, b.Steps[0].Parts[0].Rows)
		}
	}
	s.check(t, dbs, policy)
	if faults == 0 {
		t.Error("no batch met a fault")
	}

	// A row that is not there stops the subscription and undoes the batch.
	execSQL(t, dbs[0], "DELETE FROM app.item")
	b := &dtx.Batch{Seq: 61, Steps: []dtx.Step{{Parts: []dtx.Part{{GXID: 61, Spool: 61}}}}}
	rows := memRows{61: {
		s.change(pgoutput.TypeInsert, pgotest.Insert(0, 1, pgotest.Text("1000001"), pgotest.Text("new"))),
		s.change(pgoutput.TypeDelete, pgotest.Delete(0, 1, 'K', pgotest.Text("1000002"), pgotest.Null())),
	}}
	_, err = tg.Apply(testCtx(t), b, rows)
	dtxtest.WantError(t, err, dtx.ClassStop, "table app.item", "gxid 61", "not there")
	openUntil(t, tg)
	for _, dsn := range dbs {
		execSQL(t, dsn, "ALTER TABLE app.item ADD CHECK (v <> 'canary')")
	}
	rows = memRows{61: {s.change(pgoutput.TypeInsert, pgotest.Insert(0, 1, pgotest.Text("1000001"), pgotest.Text("canary")))}}
	_, err = tg.Apply(testCtx(t), b, rows)
	dtxtest.WantError(t, err, dtx.ClassStop, "table app.item", "gxid 61", "item_v_check", "the shard", "127.0.0.1")
	if strings.Contains(err.Error(), "canary") {
		t.Errorf("the error holds a row's value: %v", err)
	}
	openUntil(t, tg)
	for _, dsn := range dbs {
		if got := queryRows(t, dsn, "SELECT id FROM app.item WHERE id > 1000000"); len(got) > 0 {
			t.Errorf("rows of a failed batch are there: %v", got)
		}
	}
}

// BenchmarkSmallBatches measures the protocol: one row per batch on each of two
// shards, so that each batch takes all steps, with and without the look whether the
// table was altered. Both take turns: only their ratio means something.
func BenchmarkSmallBatches(b *testing.B) {
	coordinator := shared.Database(b)
	dbs := []string{shared.Database(b), shared.Database(b)}
	ctx := context.Background()
	h := history{seed: 1, shards: 2, all: true}
	o := testOptions(coordinator, dbs)
	if err := Prepare(ctx, o); err != nil {
		b.Fatal(err)
	}
	for _, dsn := range dbs {
		if err := tryExec(ctx, dsn, "CREATE SCHEMA app; CREATE TABLE app.row (batch bigint)"); err != nil {
			b.Fatal(err)
		}
	}
	tg, err := newHistoryTarget(h, o, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer closeTarget(b, tg)
	if _, err := tg.Open(ctx); err != nil {
		b.Fatal(err)
	}
	if err := initHistory(ctx, tg); err != nil {
		b.Fatal(err)
	}
	versions := make([]*pgside.Versions, len(tg.shards))
	row := &catalog.Table{Schema: "app", Name: "row"}
	for i, n := range tg.shards {
		cat, err := readTables(ctx, n, []catalog.Name{row.QualifiedName()})
		if err != nil {
			b.Fatal(err)
		}
		versions[i] = cat.versions
	}
	tg.engine = oneRow{tg, row}
	seq := uint64(0)
	var took [2]time.Duration // without, with
	apply := func(with int) {
		for i, n := range tg.shards {
			if n.versions = nil; with == 1 {
				n.versions = versions[i]
			}
		}
		began := time.Now()
		seq++
		batch := &dtx.Batch{
			Seq: seq, Steps: []dtx.Step{{Parts: []dtx.Part{{GXID: 1, Spool: 1}}}},
			Positions: []dtx.Position{{Content: 0, LSN: dtx.LSN(seq + 1)}, {Content: 1, LSN: dtx.LSN(seq + 1)}},
			DedupAdd:  []dtx.DedupEntry{{GXID: dtx.GXID(seq), Pending: []dtx.Position{{Content: -1, LSN: dtx.MaxLSN}}}},
			DedupDrop: []dtx.GXID{dtx.GXID(seq - 1)},
		}
		if _, err := tg.Apply(ctx, batch, nil); err != nil {
			b.Fatal(err)
		}
		took[with] += time.Since(began)
	}
	for b.Loop() {
		apply(0)
		apply(1)
	}
	b.ReportMetric(float64(b.N)/took[1].Seconds(), "batches/s")
	b.ReportMetric(took[1].Seconds()/took[0].Seconds(), "ratio")
}

type oneRow struct {
	t     *Target
	table *catalog.Table
}

func (e oneRow) Apply(ctx context.Context, b *dtx.Batch, _ apply.Rows, _ apply.Backend) (apply.Result, error) {
	return apply.Result{}, e.t.eachShard(ctx, opApply, func(ctx context.Context, n *node) error {
		if _, err := e.t.shardConn(ctx, dtx.Content(n.index), e.table); err != nil {
			return err
		}
		return n.Exec(ctx, fmt.Sprintf("INSERT INTO app.row VALUES (%d)", b.Seq))
	})
}
