package resolver_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"cbrepl/dtx"
	"cbrepl/internal/soak"
	"cbrepl/merge"
	"cbrepl/source/stream/resolver"
)

// A cluster with a log per node. Transactions prepare on the segments that they
// write to, get a commit record once all have, and are committed on each at any
// time after it; others are rolled back. Nothing in the log says who took part.
type cluster struct {
	rnd  *rand.Rand
	logs []nodeLog // by content+1
	// open are the transactions on their way.
	open     []*simTxn
	all      []*simTxn
	byID     map[dtx.GXID]*simTxn
	ts, next uint64
	records  []*simTxn // in record order
}

type nodeLog struct {
	recs []logRec
	// prepared holds the index of each open PREPARE.
	prepared map[dtx.GXID]int
}

type logKind uint8

const (
	logFiller logKind = iota
	logPrepare
	logCommitPrepared
	logRollback
	logOnePhase
	logRecord
)

type logRec struct {
	kind logKind
	t    *simTxn
	end  dtx.LSN
	prep int // of a COMMIT PREPARED: index of its PREPARE
}

type simTxn struct {
	id        dtx.GXID
	writers   []dtx.Content
	onePhase  bool
	abort     bool
	coord     bool // the coordinator has a part
	left      []dtx.Content
	prepared  []dtx.Content
	recorded  bool
	recordEnd dtx.LSN
	commitEnd map[dtx.Content]dtx.LSN
}

func newCluster(rnd *rand.Rand) *cluster {
	c := &cluster{rnd: rnd, ts: 1000, byID: map[dtx.GXID]*simTxn{}}
	for range 2 + rnd.IntN(4) {
		c.logs = append(c.logs, nodeLog{prepared: map[dtx.GXID]int{}})
	}
	return c
}

func (c *cluster) segments() int { return len(c.logs) - 1 }

func (n *nodeLog) end() dtx.LSN {
	if len(n.recs) == 0 {
		return 100
	}
	return n.recs[len(n.recs)-1].end
}

func (c *cluster) write(at dtx.Content, r logRec) dtx.LSN {
	n := &c.logs[at+1]
	r.end = n.end() + dtx.LSN(1+c.rnd.IntN(50))
	switch r.kind {
	case logPrepare:
		n.prepared[r.t.id] = len(n.recs)
	case logCommitPrepared, logRollback:
		r.prep = n.prepared[r.t.id]
		delete(n.prepared, r.t.id)
	}
	if r.kind == logCommitPrepared || r.kind == logOnePhase {
		r.t.commitEnd[at] = r.end
	}
	n.recs = append(n.recs, r)
	return r.end
}

func (c *cluster) begin() {
	c.next++
	t := &simTxn{id: dtx.GXID(c.ts<<32 | c.next), commitEnd: map[dtx.Content]dtx.LSN{}, abort: c.rnd.IntN(8) == 0, coord: c.rnd.IntN(10) == 0}
	for s := range c.segments() {
		if c.rnd.IntN(2) == 0 {
			t.writers = append(t.writers, dtx.Content(s))
		}
	}
	if len(t.writers) == 0 {
		t.writers = []dtx.Content{dtx.Content(c.rnd.IntN(c.segments()))}
	}
	t.onePhase = len(t.writers) == 1 && c.rnd.IntN(2) == 0
	t.left = slices.Clone(t.writers)
	c.rnd.Shuffle(len(t.left), func(i, j int) { t.left[i], t.left[j] = t.left[j], t.left[i] })
	c.open, c.all = append(c.open, t), append(c.all, t)
	c.byID[t.id] = t
}

// step does one thing of one transaction.
func (c *cluster) step() {
	if c.rnd.IntN(12) == 0 {
		c.write(dtx.Content(c.rnd.IntN(len(c.logs))-1), logRec{kind: logFiller})
	}
	if len(c.open) == 0 {
		return
	}
	i := c.rnd.IntN(len(c.open))
	t := c.open[i]
	done := false
	switch {
	case t.onePhase:
		c.write(t.writers[0], logRec{kind: logOnePhase, t: t})
		done = true
	case t.recorded:
		c.write(t.prepared[0], logRec{kind: logCommitPrepared, t: t})
		t.prepared = t.prepared[1:]
		done = len(t.prepared) == 0
	case t.abort && (len(t.left) == 0 || c.rnd.IntN(4) == 0):
		t.left = nil
		if len(t.prepared) > 0 {
			c.write(t.prepared[0], logRec{kind: logRollback, t: t})
			t.prepared = t.prepared[1:]
		}
		done = len(t.prepared) == 0
	case len(t.left) > 0:
		c.write(t.left[0], logRec{kind: logPrepare, t: t})
		t.prepared = append(t.prepared, t.left[0])
		t.left = t.left[1:]
	default:
		t.recordEnd = c.write(dtx.Coordinator, logRec{kind: logRecord, t: t})
		t.recorded = true
		c.records = append(c.records, t)
		c.rnd.Shuffle(len(t.prepared), func(i, j int) { t.prepared[i], t.prepared[j] = t.prepared[j], t.prepared[i] })
	}
	if done {
		c.open = slices.Delete(c.open, i, i+1)
	}
}

// restart is a restart of the whole cluster: what has no record is rolled back,
// and gxids begin again under a new timestamp.
func (c *cluster) restart() {
	for _, t := range c.open {
		t.abort = t.abort || !t.recorded && !t.onePhase
	}
	for len(c.open) > 0 {
		c.step()
	}
	c.ts++
	c.next = 0
}

// reader is one stream as the plugin sends it.
type reader struct {
	content   dtx.Content
	pos       int     // index of the next record
	start     dtx.LSN // what is at or below it is not sent, PREPAREs excepted
	confirmed dtx.LSN // of the slot
	reported  dtx.LSN
	lazy      int // reads about every lazy-th time
}

// connect starts at from: the log is read from before it.
func (c *cluster) connect(r *reader, from dtx.LSN) {
	n := &c.logs[r.content+1]
	r.start = max(from, r.confirmed)
	first := len(n.recs)
	for i, rec := range n.recs {
		if rec.end > r.confirmed {
			first = min(first, i)
			if rec.kind == logCommitPrepared || rec.kind == logRollback {
				first = min(first, rec.prep)
			}
		}
	}
	for _, p := range n.prepared {
		first = min(first, p)
	}
	r.pos = max(0, first-c.rnd.IntN(5))
}

// read returns the events of the next record, and of the progress after it.
func (c *cluster) read(r *reader) (out []dtx.Event) {
	n := &c.logs[r.content+1]
	add := func(ev dtx.Event) {
		ev.Content = r.content
		out = append(out, ev)
	}
	end := dtx.LSN(100)
	if r.pos < len(n.recs) {
		rec := n.recs[r.pos]
		r.pos++
		end = rec.end
		part := func(k dtx.Kind) dtx.Event {
			return dtx.Event{Kind: dtx.EventPart, LSN: end, Part: dtx.Part{GXID: rec.t.id, Kind: k, Content: r.content, EndLSN: end}}
		}
		fresh := end > r.start
		switch {
		case rec.kind == logPrepare:
			add(dtx.Event{Kind: dtx.EventPrepared, LSN: end, GXID: rec.t.id})
		case rec.kind == logRollback:
			add(dtx.Event{Kind: dtx.EventRolledBack, LSN: end, GXID: rec.t.id})
		case rec.kind == logCommitPrepared && !fresh:
			add(dtx.Event{Kind: dtx.EventSettled, LSN: end, GXID: rec.t.id})
		case rec.kind == logCommitPrepared:
			add(part(dtx.TwoPhase))
		case rec.kind == logOnePhase && fresh:
			add(part(dtx.OnePhase))
		case rec.kind == logRecord && fresh:
			cr := dtx.CommitRecord{GXID: rec.t.id, Kind: dtx.TwoPhase, EndLSN: end}
			if rec.t.coord {
				cr.Participants = []dtx.Content{dtx.Coordinator}
				p := part(dtx.TwoPhase)
				p.More = true
				add(p)
			}
			add(dtx.Event{Kind: dtx.EventRecord, LSN: end, Record: cr})
		}
		if fresh {
			r.reported = end
		}
	} else if r.pos > 0 {
		end = n.recs[r.pos-1].end
	}
	if r.pos == len(n.recs) || c.rnd.IntN(4) == 0 {
		add(dtx.Event{Kind: dtx.EventPosition, LSN: end})
	}
	return out
}

// daemon is one life of the subscription, and the target's record, which stays.
type daemon struct {
	t       *testing.T
	c       *cluster
	seed    uint64
	readers []*reader
	res     *resolver.Resolver
	eng     *merge.Engine
	asked   []askedSample
	now     time.Time

	// On the target.
	positions map[dtx.Content]dtx.LSN
	dedup     map[dtx.GXID]dtx.DedupEntry
	applied   map[dtx.GXID]int
	order     []dtx.GXID // two-phase, as applied
	began     []dtx.LSN  // first start of each content, by content+1
}

// askedSample is a query under way.
type askedSample struct {
	c        dtx.Content
	token    resolver.Token
	answered bool
	lsn      dtx.LSN
}

func (d *daemon) fatal(format string, args ...any) {
	d.t.Helper()
	d.t.Fatalf("seed %d: %s", d.seed, fmt.Sprintf(format, args...))
}

func (d *daemon) start() {
	var cs []dtx.Content
	var ps []dtx.Position
	for i := range d.c.segments() {
		cs = append(cs, dtx.Content(i))
	}
	for c, l := range d.positions {
		ps = append(ps, dtx.Position{Content: c, LSN: l})
	}
	dtx.SortPositions(ps)
	gxids := slices.Sorted(maps.Keys(d.dedup))
	var entries []dtx.DedupEntry
	for _, g := range gxids {
		entries = append(entries, d.dedup[g])
	}
	var err error
	if d.res, err = resolver.New(resolver.Options{Contents: cs, Positions: ps, Applied: gxids}); err != nil {
		d.fatal("%v", err)
	}
	if d.eng, err = merge.New(merge.Options{Contents: cs, Positions: ps, Dedup: entries}); err != nil {
		d.fatal("%v", err)
	}
	d.asked = nil
	for _, r := range d.readers {
		r.reported = d.positions[r.content]
		d.c.connect(r, r.reported)
	}
}

// pass gives events to the engine.
func (d *daemon) pass(out []dtx.Event) {
	for _, ev := range out {
		if ev.Kind == dtx.EventRecord {
			d.checkRecord(&ev.Record)
		}
		if err := d.eng.Add(ev); err != nil {
			d.fatal("merge refuses %s of content %d: %v", ev.Kind, ev.Content, err)
		}
	}
	d.eng.Drops()
}

// expected lists the parts of t behind the slots' beginning.
func (d *daemon) expected(t *simTxn) []dtx.Content {
	var out []dtx.Content
	if t.coord {
		out = append(out, dtx.Coordinator)
	}
	for _, w := range t.writers {
		if e, ok := t.commitEnd[w]; !ok || e > d.began[w+1] {
			out = append(out, w)
		}
	}
	return out
}

func (d *daemon) checkRecord(r *dtx.CommitRecord) {
	t := d.c.byID[r.GXID]
	if d.applied[r.GXID] > 0 {
		return // delivered again; merge drops it
	}
	if want := d.expected(t); !slices.Equal(r.Participants, want) {
		d.fatal("gxid %d: participants %v, want %v", r.GXID, r.Participants, want)
	}
}

func (d *daemon) read(r *reader) {
	for _, ev := range d.c.read(r) {
		d.add(ev)
	}
}

func (d *daemon) add(ev dtx.Event) {
	out, err := d.res.Add(ev, d.now, nil)
	if err != nil {
		d.fatal("%v", err)
	}
	d.pass(out)
}

// sample moves one query on: asks, lets the server answer, or delivers.
func (d *daemon) sample() {
	rnd := d.c.rnd
	switch n := len(d.asked); {
	case n == 0 || rnd.IntN(4) == 0:
		token, cs := d.res.Wanted()
		for _, c := range cs {
			if !slices.ContainsFunc(d.asked, func(a askedSample) bool { return a.c == c }) {
				d.asked = append(d.asked, askedSample{c: c, token: token})
			}
		}
	default:
		i := rnd.IntN(n)
		if a := &d.asked[i]; !a.answered {
			a.answered, a.lsn = true, d.c.logs[a.c+1].end()
			return
		}
		a := d.asked[i]
		d.asked = slices.Delete(d.asked, i, i+1)
		d.pass(d.res.Sampled(a.c, a.token, a.lsn, d.now, nil))
	}
}

func (d *daemon) apply() {
	b, ok := d.eng.Next(merge.Limits{MaxDtxs: 1 + d.c.rnd.IntN(20), PositionsOnly: true})
	if !ok {
		return
	}
	parts := map[dtx.GXID][]dtx.Content{}
	for _, s := range b.Steps {
		for _, p := range s.Parts {
			parts[p.GXID] = append(parts[p.GXID], p.Content)
		}
	}
	for _, g := range b.GXIDs {
		t := d.c.byID[g]
		d.applied[g]++
		if got := slices.Sorted(slices.Values(parts[g])); !slices.Equal(got, d.expected(t)) && (!t.onePhase || len(got) != 1) {
			d.fatal("gxid %d applied with parts %v, want %v", g, got, d.expected(t))
		}
		if !t.onePhase {
			d.order = append(d.order, g)
		}
	}
	for _, p := range b.Positions {
		d.positions[p.Content] = p.LSN
	}
	for _, g := range b.DedupDrop {
		delete(d.dedup, g)
	}
	for _, e := range b.DedupAdd {
		d.dedup[e.GXID] = e
	}
	d.eng.Applied()
}

// first makes the slots: the coordinator's, then each segment's, which begins
// once what was running there has ended.
func (d *daemon) first() {
	c := d.c
	run := func(n int) {
		for range n {
			if len(c.open) < 8 && c.rnd.IntN(3) == 0 {
				c.begin()
			}
			c.step()
		}
	}
	run(c.rnd.IntN(60))
	d.began = make([]dtx.LSN, len(c.logs))
	for i := range c.logs {
		n := &c.logs[i]
		running := maps.Clone(n.prepared)
		if i > 0 {
			run(c.rnd.IntN(20))
			for again := true; again; {
				again = false
				for g := range running {
					if _, still := n.prepared[g]; still {
						again = true
					}
				}
				if again {
					run(1)
				}
			}
		}
		d.began[i] = n.end()
		ct := dtx.Content(i - 1)
		d.positions[ct] = n.end()
		d.readers = append(d.readers, &reader{content: ct, confirmed: n.end(), lazy: []int{1, 1, 3, 12}[c.rnd.IntN(4)]})
		run(c.rnd.IntN(10))
	}
}

func simulate(t *testing.T, seed uint64, steps int) {
	rnd := rand.New(rand.NewPCG(seed, 9))
	d := &daemon{
		t: t, c: newCluster(rnd), seed: seed, now: time.Unix(0, 0), positions: map[dtx.Content]dtx.LSN{},
		dedup: map[dtx.GXID]dtx.DedupEntry{}, applied: map[dtx.GXID]int{},
	}
	c := d.c
	d.first()
	d.start()
	for range steps {
		d.now = d.now.Add(time.Millisecond)
		switch n := rnd.IntN(200); {
		case n < 50:
			if len(c.open) < 10 {
				c.begin()
			}
		case n < 110:
			c.step()
		case n < 170:
			if r := d.readers[rnd.IntN(len(d.readers))]; rnd.IntN(r.lazy) == 0 {
				for range 1 + rnd.IntN(4) {
					d.read(r)
				}
			}
		case n < 185:
			d.sample()
		case n < 193:
			d.apply()
		case n < 196: // one stream connects again
			r := d.readers[rnd.IntN(len(d.readers))]
			c.connect(r, r.reported)
			d.add(dtx.Event{Kind: dtx.EventReconnect, Content: r.content})
		case n < 198: // the server takes a confirmed position
			r := d.readers[rnd.IntN(len(d.readers))]
			r.confirmed = d.positions[r.content]
		case n < 199:
			d.start()
		case rnd.IntN(8) == 0:
			c.restart()
		}
	}
	for len(c.open) > 0 {
		c.step()
	}
	for i := 0; !d.finished(); i++ {
		if i > 50000 {
			d.fatal("stuck: %+v, merge waits %+v", d.res.Stats(d.now), d.eng.Waits(3))
		}
		for _, r := range d.readers {
			d.read(r)
		}
		d.sample()
		d.apply()
	}
	d.check()
}

// finished reports whether all that was written has been read and applied.
func (d *daemon) finished() bool {
	for _, r := range d.readers {
		if n := &d.c.logs[r.content+1]; r.pos < len(n.recs) || r.reported < n.end() && len(n.recs) > 0 && n.end() > d.began[r.content+1] {
			return false
		}
	}
	return d.res.Pending() == 0 && d.eng.Pending() == merge.Counts{}
}

func (d *daemon) check() {
	i := 0
	for _, t := range d.c.records {
		if t.recordEnd <= d.began[0] {
			continue
		}
		if d.order[i] != t.id {
			d.fatal("two-phase %d in record order is gxid %d, applied was %d", i, t.id, d.order[i])
		}
		i++
	}
	for _, t := range d.c.all {
		want := 0
		if t.recorded && t.recordEnd > d.began[0] || t.onePhase && t.commitEnd[t.writers[0]] > d.began[t.writers[0]+1] {
			want = 1
		}
		if d.applied[t.id] != want {
			d.fatal("gxid %d applied %d times, want %d", t.id, d.applied[t.id], want)
		}
	}
	if s := d.res.Stats(d.now); s.Remembered != 0 || s.Queued != 0 {
		d.fatal("all is applied, but the resolver remembers %+v", s)
	}
}

func TestRandomHistories(t *testing.T) {
	for seed := range soak.Seeds(t, 100, 10_000) {
		simulate(t, seed, 1500)
	}
}
