package verify

import (
	"context"
	"fmt"
	"slices"
	"time"

	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/dtx"
	"cbrepl/router"
)

// Options say what to compare and where.
type Options struct {
	// Subscription's record on the target's coordinator says how far the target is.
	Subscription string
	// Source are the source's segments, Old that they run PostgreSQL 9.
	Source []Node
	Old    bool
	// Target are the shards; or none, and the coordinator is a cluster's.
	Target      []Node
	Coordinator Node
	Tables      []Table
	// Wait bounds the time that the target gets to catch up in a round. 0 is a minute.
	Wait time.Duration
	// Rounds is how often a key that differs is read before it counts as not settled.
	// 0 is 8.
	Rounds int
	// Pause is the time between rounds. 0 is a second.
	Pause time.Duration
	// MaxKeys bounds the differences that are listed per table. 0 is 100.
	MaxKeys int
	// Progress is told what is being done; nil is not.
	Progress func(format string, args ...any)
}

// EnsureDefaults fills unset fields.
func (o *Options) EnsureDefaults() {
	if o.Wait == 0 {
		o.Wait = time.Minute
	}
	if o.Rounds == 0 {
		o.Rounds = 8
	}
	if o.Pause == 0 {
		o.Pause = time.Second
	}
	if o.MaxKeys == 0 {
		o.MaxKeys = 100
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
}

// Difference is a key, or a placed row, on which the sides differ for certain.
type Difference struct {
	// Kind is missing or extra on the target, changed, doubled, or misplaced.
	Kind string `json:"kind"`
	// Content is the target's segment, of a copy of a replicated table or a misplaced row.
	Content *dtx.Content `json:"content,omitempty"`
	// Key is the hash of the row's key, SQL what finds it.
	Key string `json:"key,omitempty"`
	SQL string `json:"sql,omitempty"`
}

// Result is what became of one table.
type Result struct {
	Table string `json:"table"`
	// Rows counts the target's, each copy once.
	Rows int64 `json:"rows"`
	// Count counts the differences, of which some are listed.
	Count       int          `json:"differences"`
	Differences []Difference `json:"listed,omitempty"`
	// Unsettled counts keys that were written in every round.
	Unsettled int `json:"unsettled"`
}

// Same reports whether all tables were proved to hold the same rows.
func Same(results []Result) bool {
	return !slices.ContainsFunc(results, func(r Result) bool { return r.Count > 0 || r.Unsettled > 0 })
}

// run compares the tables of one Options.
type run struct {
	*Options
	co     *node
	source cluster
	target cluster
}

// Run compares all tables.
func Run(ctx context.Context, o Options) ([]Result, error) {
	o.EnsureDefaults()
	r := &run{Options: &o}
	var err error
	if r.source.nodes, err = open(ctx, "source", o.Source); err != nil {
		return nil, err
	}
	defer func() { closeAll(r.source.nodes) }()
	r.source.side = side{place: "0", version: "tableoid::text || ctid::text || xmin::text"}
	for _, n := range r.source.nodes {
		n.logSQL = "SELECT pg_current_wal_flush_lsn()"
		if o.Old {
			n.logSQL = "SELECT pg_current_xlog_location()"
		}
	}
	co, err := open(ctx, "target", []Node{o.Coordinator})
	if err != nil {
		return nil, err
	}
	defer closeAll(co)
	r.co = co[0]
	if len(o.Target) == 0 {
		// An append-optimized table has no xmin.
		r.target.nodes, r.target.side = co, side{place: "gp_segment_id", version: "tableoid::text || ctid::text", dist: true}
	} else {
		if r.target.nodes, err = open(ctx, "target", o.Target); err != nil {
			return nil, err
		}
		defer closeAll(r.target.nodes)
		r.target.side = side{place: "0", version: "tableoid::text || ctid::text || xmin::text"}
	}
	var out []Result
	for i := range o.Tables {
		res, err := r.table(ctx, &o.Tables[i])
		if err != nil {
			return out, fmt.Errorf("verify table %s: %w", o.Tables[i].Target, err)
		}
		out = append(out, res)
	}
	return out, nil
}

// sourceNodes are those that hold the table's rows, each once.
func (r *run) sourceNodes(t *Table) []*node {
	if t.replicatedSource() {
		return r.source.nodes[:1]
	}
	return r.source.nodes[:min(len(r.source.nodes), t.Sources[0].Policy.NumSegments)]
}

// targetNodes are those that hold the table's rows.
func (r *run) targetNodes(t *Table) []*node {
	if len(r.Target) == 0 {
		return r.target.nodes
	}
	return r.target.nodes[:t.Policy.NumSegments]
}

// passed waits until the target has recorded positions, and what was recorded with them
// is to be seen on every shard: shards commit after the record.
func (r *run) passed(ctx context.Context, ends map[dtx.Content]dtx.LSN) error {
	const op = "wait for the target"
	for deadline := time.Now().Add(r.Wait); ; {
		behind, err := r.behind(ctx, op, ends)
		if err != nil || behind == "" {
			return err
		}
		if time.Now().After(deadline) {
			return &dtx.Error{
				Op: op, Class: dtx.ClassRetry, Msg: fmt.Sprintf("after %s %s", r.Wait, behind),
				Hint: "Start the daemon, or see in `cbrepl status` what it waits for; give more time with --wait",
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// behind says what the target does not have yet, or nothing.
func (r *run) behind(ctx context.Context, op string, ends map[dtx.Content]dtx.LSN) (string, error) {
	rows, err := r.co.Query(ctx, `SELECT array_to_string(contents, ','), array_to_string(lsns, ','), array_to_string(shard_batches, ',')
		FROM cbrepl.subscription WHERE name = $1::text`, r.Subscription)
	if err != nil {
		return "", r.co.Fail(op, err)
	}
	if len(rows) == 0 {
		return "", pgside.Stop(op, "Run `cbrepl target prepare -c FILE`, which creates it", "the %s knows no subscription %s", r.co, r.Subscription)
	}
	positions, ok := pgside.ParsePositions(rows[0][0], rows[0][1])
	if !ok {
		return "", pgside.Stop(op, "Restore schema cbrepl from a backup", "the positions of subscription %s on the %s do not fit together", r.Subscription, r.co)
	}
	at := map[dtx.Content]dtx.LSN{}
	for _, p := range positions {
		at[p.Content] = p.LSN
	}
	for c, lsn := range ends {
		if at[c] < lsn {
			return fmt.Sprintf("it has recorded %s for content %d, and %s is needed", at[c], c, lsn), nil
		}
	}
	for i, batch := range pgside.SplitList(rows[0][2]) {
		if i >= len(r.target.nodes) || len(r.Target) == 0 {
			break
		}
		n := r.target.nodes[i]
		found, err := n.Query(ctx, "SELECT batch FROM cbrepl.shard WHERE subscription = $1::text", r.Subscription)
		if err != nil {
			return "", n.Fail(op, err)
		}
		if len(found) == 0 || pgside.Atou(found[0][0]) < pgside.Atou([]byte(batch)) {
			return fmt.Sprintf("batch %s is not committed on the %s", batch, n), nil
		}
	}
	return "", nil
}

func relations(t *Table) []catalog.Name {
	out := make([]catalog.Name, len(t.Sources))
	for i := range t.Sources {
		out[i] = t.Sources[i].QualifiedName()
	}
	return out
}

// rowsPerBucket is what a bucket should hold, so that one that differs is listed
// quickly; maxBuckets bounds what travels.
const (
	rowsPerBucket = 256
	maxBuckets    = 1 << 16
	// atOnce is about how many rows are listed together.
	atOnce = 200_000
)

// buckets chooses their number by what the target's statistics, or else the file's
// size, say.
func (r *run) buckets(ctx context.Context, t *Table) (int, error) {
	n := r.targetNodes(t)[0]
	rows, err := n.Query(ctx, `SELECT greatest(c.reltuples::bigint, pg_relation_size(c.oid) / 64)
		FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace WHERE s.nspname = $1::text AND c.relname = $2::text`, t.Target.Schema, t.Target.Table)
	if err != nil {
		return 0, n.Fail("estimate rows", err)
	}
	if len(rows) == 0 {
		return 0, pgside.Stop("verify", "cbrepl check says what is missing", "there is no table %s on the target", t.Target)
	}
	return int(min(max(number(rows[0][0])/rowsPerBucket, 16), maxBuckets)), nil
}

func (r *run) table(ctx context.Context, t *Table) (Result, error) {
	res := Result{Table: t.Target.String()}
	buckets, err := r.buckets(ctx, t)
	if err != nil {
		return res, err
	}
	began := time.Now()
	src, ends, err := r.source.sums(ctx, t, r.sourceNodes(t), relations(t), true, buckets)
	if err != nil {
		return res, err
	}
	if err := r.passed(ctx, ends); err != nil {
		return res, err
	}
	dst, _, err := r.target.sums(ctx, t, r.targetNodes(t), []catalog.Name{t.Target}, false, buckets)
	if err != nil {
		return res, err
	}
	differ := map[int]bool{}
	for _, p := range r.copies(t) {
		for b := range buckets {
			if src[anywhere][b] != dst[p][b] {
				differ[b] = true
			}
		}
		if p == r.copies(t)[0] {
			for _, s := range dst[p] {
				res.Rows += s.rows
			}
		}
	}
	list := make([]int, 0, len(differ))
	for b := range differ {
		list = append(list, b)
	}
	slices.Sort(list)
	r.Progress("%s: %d rows, %d of %d buckets to be looked at again, %.1f s", t.Target, res.Rows, len(list), buckets, time.Since(began).Seconds())
	for chunk := range slices.Chunk(list, max(1, int(atOnce*int64(buckets)/max(res.Rows, 1)))) {
		if err := r.settle(ctx, t, buckets, chunk, &res); err != nil {
			return res, err
		}
	}
	return res, r.placement(ctx, t, &res)
}

// copies are the target's copies of a table's rows.
func (r *run) copies(t *Table) []place {
	if !t.replicated() {
		return []place{anywhere}
	}
	out := make([]place, t.Policy.NumSegments)
	for i := range out {
		out[i] = place(i)
	}
	return out
}

// look is one round: what the source had, and what the target had once it had
// everything from before.
type look struct{ src, dst keys }

func (r *run) look(ctx context.Context, t *Table, buckets int, which []int, only []string) (l look, err error) {
	var ends map[dtx.Content]dtx.LSN
	if l.src, ends, err = r.source.keys(ctx, t, r.sourceNodes(t), relations(t), true, buckets, which, only); err != nil {
		return l, err
	}
	if err = r.passed(ctx, ends); err != nil {
		return l, err
	}
	l.dst, _, err = r.target.keys(ctx, t, r.targetNodes(t), []catalog.Name{t.Target}, false, buckets, which, only)
	return l, err
}

// settle finds out which keys of buckets differ for certain.
func (r *run) settle(ctx context.Context, t *Table, buckets int, which []int, res *Result) error {
	before, err := r.look(ctx, t, buckets, which, nil)
	if err != nil {
		return err
	}
	open := r.differing(t, before)
	counted := map[copyKey]bool{}
	for round := 1; len(open) > 0 && round < r.Rounds; round++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(r.Pause):
		}
		now, err := r.look(ctx, t, buckets, which, open)
		if err != nil {
			return err
		}
		open = r.judge(t, before, now, counted, res)
		before = now
		r.Progress("%s: round %d, %d differences, %d keys still open", t.Target, round, res.Count, len(open))
	}
	res.Unsettled += len(open)
	return nil
}

// differing lists the keys that differ in any copy.
func (r *run) differing(t *Table, l look) []string {
	set := map[string]bool{}
	for _, p := range r.copies(t) {
		for k, e := range l.src[anywhere] {
			if l.dst[p][k].sum != e.sum {
				set[k] = true
			}
		}
		for k, e := range l.dst[p] {
			if l.src[anywhere][k].sum != e.sum {
				set[k] = true
			}
		}
	}
	out := make([]string, 0, len(set))
	for k := range set {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// copyKey is a key in one copy of a table.
type copyKey struct {
	copy place
	key  string
}

// judge counts the keys that differ for certain by two rounds, each once, and returns
// those that are still open. See the package comment.
func (r *run) judge(t *Table, before, now look, counted map[copyKey]bool, res *Result) []string {
	var open []string
	for _, k := range r.differing(t, now) {
		settled := true
		for _, p := range r.copies(t) {
			s1, s2 := before.src[anywhere][k], now.src[anywhere][k]
			t1, t2 := before.dst[p][k], now.dst[p][k]
			switch {
			case counted[copyKey{p, k}] || s2.sum == t2.sum:
				continue
			case s2.rows > 0 && s1 == s2 && t1.sum != s1.sum:
			case s2.rows == 0 && t2.rows > 0 && t1 == t2:
			default:
				settled = false
				continue
			}
			counted[copyKey{p, k}] = true
			d := Difference{Kind: "changed", Key: k, SQL: t.RowSQL(k)}
			switch {
			case s2.rows == 0:
				d.Kind = "extra"
			case t2.rows < s2.rows:
				d.Kind = "missing"
			case t2.rows > s2.rows:
				d.Kind = "doubled"
			}
			if p != anywhere {
				d.Content = &p
			}
			res.add(d, r.MaxKeys)
		}
		if !settled {
			open = append(open, k)
		}
	}
	return open
}

func (res *Result) add(d Difference, most int) {
	res.Count++
	if len(res.Differences) < most {
		res.Differences = append(res.Differences, d)
	}
}

// placement computes where each row of a table distributed by hash has to be.
func (r *run) placement(ctx context.Context, t *Table, res *Result) error {
	if t.Policy.Kind != router.Hash {
		return nil
	}
	rt, err := router.New(t.Policy)
	if err != nil {
		r.Progress("%s: placement is not checked: %v", t.Target, err) // a key that only the server can hash
		return nil
	}
	for _, n := range r.targetNodes(t) {
		rows := n.Conn.ExecParams(ctx, r.target.placesSQL(t), nil, nil, nil, nil)
		for rows.NextRow() {
			v := rows.Values()
			at := n.content
			if at < 0 {
				at = dtx.Content(number(v[0]))
			}
			home, herr := rt.Segment(v[1:])
			if herr != nil {
				err = herr
				break
			}
			if home != at {
				res.add(Difference{Kind: "misplaced", Content: &at}, r.MaxKeys)
			}
		}
		if _, cerr := rows.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return n.FailRows("check placement", err)
		}
	}
	return nil
}
