package assemble

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cbrepl/dtx"
	"cbrepl/internal/soak"
	"cbrepl/pgoutput"
	"cbrepl/pgoutput/pgotest"
	"cbrepl/source/stream/feed/feedtest"
)

// The model is a server: a random write-ahead log, and a sender that turns it
// into messages as PostgreSQL's reorder buffer and pgoutput do. It knows what
// each transaction must arrive as.

// walRec is a record of the model's log. What it means is in what.
type walRec struct {
	lsn, end dtx.LSN
	what     byte // i insert, t truncate, m name, a rollback of sub, + schema change, P prepare, C commit, R rollback
	t        *mtxn
	sub      dtx.XID
	table    uint32
	cols     int    // of the schema the row is written under
	val      string // of a row
}

type mtxn struct {
	xid      dtx.XID
	gxid     dtx.GXID
	named    bool // has a part message
	twoPhase bool // prepared
	streams  bool // large enough to be streamed
	end      dtx.LSN
	prepLSN  dtx.LSN
	prepEnd  dtx.LSN
	wrote    bool     // something that is decoded
	altered  []uint32 // tables with schema changes
	touched  map[uint32]bool
	want     []string // what arrives
	pending  []mitem
	subs     []dtx.XID // open subtransactions
}

type mitem struct {
	text string
	sub  dtx.XID
}

// mlog is a finished log and what must arrive, in commit order.
type mlog struct {
	recs     []walRec
	commits  []*mtxn
	endOfLog dtx.LSN
}

func schema(table uint32, cols int) *pgoutput.Relation {
	return rel(table, "t"+strconv.Itoa(int(table)), "abcdefghijklmnopqrstuvwxyz"[:cols])
}

func makeLog(rng *rand.Rand, n int) *mlog {
	l := &mlog{}
	lsn := dtx.LSN(0x100)
	cols := map[uint32]int{1: 1, 2: 2, 3: 1}
	altering := map[uint32]*mtxn{} // exclusive locks
	var open, prepared []*mtxn
	xid := dtx.XID(100)
	val := 0
	add := func(r walRec) *walRec {
		if strings.IndexByte("itm+", r.what) >= 0 {
			r.t.wrote = true
		}
		r.lsn = lsn
		lsn += dtx.LSN(8 + rng.IntN(20))
		r.end = lsn
		l.recs = append(l.recs, r)
		return &l.recs[len(l.recs)-1]
	}
	finish := func(t *mtxn, commit bool) {
		what := byte('R')
		if commit {
			what = 'C'
		}
		r := add(walRec{what: what, t: t})
		t.end = r.end
		for tb, a := range altering {
			if a != t {
				continue
			}
			if !commit {
				cols[tb]--
			}
			delete(altering, tb)
		}
		if commit {
			for _, it := range t.pending {
				t.want = append(t.want, it.text)
			}
			l.commits = append(l.commits, t)
		}
	}
	for len(l.recs) < n || len(open)+len(prepared) > 0 {
		if len(open) == 0 || len(open) < 5 && rng.IntN(6) == 0 && len(l.recs) < n {
			xid++
			t := &mtxn{xid: xid, gxid: dtx.GXID(xid) * 10, twoPhase: rng.IntN(3) == 0, streams: rng.IntN(2) == 0, touched: map[uint32]bool{}}
			t.named = !t.twoPhase || rng.IntN(2) == 0
			if t.named {
				add(walRec{what: 'm', t: t})
			}
			open = append(open, t)
			continue
		}
		if len(prepared) > 0 && rng.IntN(8) == 0 {
			i := rng.IntN(len(prepared))
			t := prepared[i]
			prepared = slices.Delete(prepared, i, i+1)
			finish(t, rng.IntN(4) > 0)
			continue
		}
		if len(open) == 0 {
			continue
		}
		i := rng.IntN(len(open))
		t := open[i]
		sub := t.xid
		if k := len(t.subs); k > 0 {
			sub = t.subs[k-1]
		}
		tb := uint32(1 + rng.IntN(3))
		free := altering[tb] == nil || altering[tb] == t
		switch rng.IntN(12) {
		case 0: // savepoint
			if len(t.subs) < 3 {
				xid++
				t.subs = append(t.subs, xid)
			}
		case 1: // rollback to a savepoint, with all inside it
			if len(t.subs) == 0 {
				continue
			}
			from := rng.IntN(len(t.subs))
			for _, s := range slices.Backward(t.subs[from:]) {
				add(walRec{what: 'a', t: t, sub: s})
				t.pending = slices.DeleteFunc(t.pending, func(it mitem) bool { return it.sub == s })
			}
			t.subs = t.subs[:from]
		case 2: // ALTER TABLE: waits for everybody else's locks
			busy := slices.ContainsFunc(append(slices.Clone(open), prepared...), func(o *mtxn) bool { return o != t && o.touched[tb] })
			if altering[tb] != nil || busy || len(t.subs) > 0 || cols[tb] > 8 {
				continue
			}
			altering[tb], t.touched[tb] = t, true
			cols[tb]++
			add(walRec{what: '+', t: t, table: tb})
		case 3:
			if rng.IntN(3) > 0 || !free {
				continue
			}
			t.touched[tb] = true
			add(walRec{what: 't', t: t, sub: sub, table: tb, cols: cols[tb]})
			s := schema(tb, cols[tb])
			t.pending = append(t.pending, mitem{s.Name + "(" + "abcdefghij"[:cols[tb]] + ")T", sub})
		case 4, 5: // outcome
			open = slices.Delete(open, i, i+1)
			switch {
			case t.twoPhase && rng.IntN(8) > 0:
				r := add(walRec{what: 'P', t: t})
				t.prepLSN, t.prepEnd = r.lsn, r.end
				prepared = append(prepared, t)
			case t.twoPhase: // rolled back before it was prepared
				finish(t, false)
			default:
				finish(t, rng.IntN(4) > 0)
			}
		default:
			if !free {
				continue
			}
			t.touched[tb] = true
			val++
			v := strconv.Itoa(val)
			add(walRec{what: 'i', t: t, sub: sub, table: tb, cols: cols[tb], val: v})
			s := schema(tb, cols[tb])
			t.pending = append(t.pending, mitem{s.Name + "(" + "abcdefghij"[:cols[tb]] + ")I" + strings.Repeat(":"+v, cols[tb]), sub})
		}
	}
	l.endOfLog = lsn
	return l
}

// sender is one walsender session, from start on.
type sender struct {
	l     *mlog
	rng   *rand.Rand
	start dtx.LSN
	send  func([]byte) error
	keep  func(dtx.LSN) error

	bufs map[*mtxn]*rbuf
	rels map[uint32]*relEntry
}

// rbuf is a transaction in the reorder buffer.
type rbuf struct {
	items    []walRec
	streamed bool
}

// relEntry is pgoutput's RelationSyncEntry.
type relEntry struct {
	valid, sent bool
	streams     map[dtx.XID]bool
}

// run decodes the whole log.
func (s *sender) run() error {
	s.bufs, s.rels = map[*mtxn]*rbuf{}, map[uint32]*relEntry{}
	for i := range s.l.recs {
		if err := s.decode(&s.l.recs[i]); err != nil {
			return err
		}
		// Position of the decoded log, as keepalives carry it.
		if s.l.recs[i].end > s.start && s.rng.IntN(10) == 0 {
			if err := s.keep(s.l.recs[i].end); err != nil {
				return err
			}
		}
	}
	return s.keep(s.l.endOfLog)
}

func (s *sender) decode(r *walRec) error {
	t := r.t
	b := s.bufs[t]
	if b == nil {
		b = &rbuf{}
		s.bufs[t] = b
	}
	skip := r.lsn < s.start
	switch r.what {
	case 'i', 't', 'm', '+':
		b.items = append(b.items, *r)
		if t.streams && !skip && s.rng.IntN(5) == 0 {
			return s.stream(t, b)
		}
		return nil
	case 'a':
		b.items = slices.DeleteFunc(b.items, func(it walRec) bool { return it.sub == r.sub && (it.what == 'i' || it.what == 't') })
		if b.streamed {
			return s.send(pgotest.StreamAbort(t.xid, r.sub))
		}
		return nil
	case 'P':
		if skip || !t.wrote { // nothing to decode: its outcome comes alone
			return nil
		}
		if b.streamed || t.streams && len(b.items) > 0 && s.rng.IntN(2) == 0 {
			return s.all(func() error { return s.stream(t, b) },
				func() error { return s.send(prep('p', r.lsn, r.end, t.xid, s.gid(t))) })
		}
		return s.all(func() error { return s.send(prep('b', r.lsn, r.end, t.xid, s.gid(t))) },
			func() error { return s.replay(t, b, 0) },
			func() error { return s.send(prep('P', r.lsn, r.end, t.xid, s.gid(t))) })
	}
	delete(s.bufs, t)
	defer s.forget(t, r.what == 'C')
	prepared := t.prepEnd != 0
	switch {
	case skip:
		return nil
	case prepared && r.what == 'C':
		return s.send(pgotest.CommitPrepared(r.lsn, r.end, 9, t.xid, s.gid(t)))
	case prepared:
		return s.send(pgotest.RollbackPrepared(t.prepEnd, r.end, 8, 9, t.xid, s.gid(t)))
	case r.what == 'R':
		if b.streamed || s.rng.IntN(10) == 0 { // servers also send aborts of what they never streamed
			return s.send(pgotest.StreamAbort(t.xid, t.xid))
		}
		return nil
	case b.streamed:
		return s.all(func() error { return s.stream(t, b) },
			func() error { return s.send(pgotest.StreamCommit(t.xid, r.lsn, r.end, 9)) })
	}
	return s.all(func() error { return s.send(pgotest.Begin(r.lsn, 9, t.xid)) },
		func() error { return s.replay(t, b, 0) },
		func() error { return s.send(pgotest.Commit(r.lsn, r.end, 9)) })
}

func (s *sender) all(fs ...func() error) error {
	for _, f := range fs {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func (s *sender) gid(t *mtxn) string {
	if t.named {
		return fmt.Sprintf("somebody's %d", t.xid)
	}
	if t.gxid%20 == 0 {
		return fmt.Sprint(uint64(t.gxid))
	}
	return fmt.Sprintf("0-%d", t.gxid)
}

// stream sends what is buffered as a block of an in-progress transaction.
func (s *sender) stream(t *mtxn, b *rbuf) error {
	if len(b.items) == 0 {
		return nil
	}
	first := !b.streamed
	b.streamed = true
	err := s.all(func() error { return s.send(pgotest.StreamStart(t.xid, first)) },
		func() error { return s.replay(t, b, t.xid) },
		func() error { return s.send(pgotest.StreamStop()) })
	b.items = nil
	return err
}

// replay sends the buffered changes; xid is set inside a streamed block.
func (s *sender) replay(t *mtxn, b *rbuf, xid dtx.XID) error {
	for _, it := range b.items {
		sub := xid
		if xid != 0 {
			sub = max(xid, it.sub)
		}
		var err error
		switch it.what {
		case 'm':
			err = s.send(feedtest.Part(xid, t.gxid, 'T'))
		case '+':
			t.altered = append(t.altered, it.table)
			s.invalidate(it.table)
		case 't':
			if err = s.relation(t, xid, sub, it); err == nil {
				err = s.send(pgotest.Truncate(sub, 0, it.table))
			}
		case 'i':
			if err = s.relation(t, xid, sub, it); err == nil {
				err = s.send(ins(sub, it.table, slices.Repeat([]string{it.val}, it.cols)...))
			}
		}
		if err != nil {
			return err
		}
	}
	for _, tb := range t.altered { // a transaction's catalogue view is torn down behind each replay
		s.invalidate(tb)
	}
	return nil
}

func (s *sender) invalidate(table uint32) {
	if e := s.rels[table]; e != nil {
		e.valid = false
	}
}

// relation is maybe_send_schema.
func (s *sender) relation(t *mtxn, xid, sub dtx.XID, it walRec) error {
	e := s.rels[it.table]
	if e == nil {
		e = &relEntry{streams: map[dtx.XID]bool{}}
		s.rels[it.table] = e
	}
	if !e.valid {
		e.valid, e.sent = true, false
		clear(e.streams)
	}
	if xid == 0 && e.sent || xid != 0 && e.streams[xid] {
		return nil
	}
	if xid == 0 {
		e.sent = true
	} else {
		e.streams[xid] = true
	}
	return s.send(pgotest.Relation(sub, schema(it.table, it.cols)))
}

// forget is cleanup_rel_sync_cache, and the commit's own invalidations.
func (s *sender) forget(t *mtxn, commit bool) {
	for _, e := range s.rels {
		if e.streams[t.xid] {
			delete(e.streams, t.xid)
			e.sent = e.sent || commit
		}
	}
	for _, tb := range t.altered {
		s.invalidate(tb)
	}
}

var errCutOff = errors.New("the connection is cut")

// TestRandomHistories: for random logs, cut off at random messages and resumed
// where the reader says, and restarted at a safe position at random moments,
// every committed transaction arrives once per life, whole, with each row
// under the schema it was written under, in commit order.
func TestRandomHistories(t *testing.T) {
	r := newRig(t, Stop, 0)
	for seed := range soak.Seeds(t, 200, 20_000) {
		rng := rand.New(rand.NewPCG(seed, 7))
		l := makeLog(rng, 20+rng.IntN(150))
		if err := playLog(r, rng, l); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// playLog runs one daemon's life after another until the log has been read to
// its end without a restart in between.
func playLog(r *rig, rng *rand.Rand, l *mlog) error {
	start := dtx.LSN(0x10)
	for life := 0; ; life++ {
		r.restart(Stop, start)
		r.Events = nil
		lives := life < 3 && rng.IntN(2) == 0 // ends before the end of the log
		done, err := playLife(r, rng, l, start, lives)
		if err != nil {
			return fmt.Errorf("life %d from %s: %w", life, start, err)
		}
		safe, err := checkLife(r, rng, l, start, done)
		if err != nil {
			return fmt.Errorf("life %d from %s: %w", life, start, err)
		}
		// Whatever was not reported is dropped with the daemon.
		for _, ev := range r.Events {
			if ev.Kind == dtx.EventPart {
				if err := r.spool.Release([]dtx.Part{ev.Part}); err != nil {
					return err
				}
			}
		}
		if err := r.a.Close(); err != nil {
			return err
		}
		if u := r.spool.Usage(); u.OpenTxns != 0 || u.Parts != 0 {
			return fmt.Errorf("the spool keeps %d open transactions and %d parts", u.OpenTxns, u.Parts)
		}
		if done {
			return nil
		}
		start = safe
	}
}

// playLife feeds one reader, over several connections.
func playLife(r *rig, rng *rand.Rand, l *mlog, start dtx.LSN, ends bool) (done bool, err error) {
	for conn := 0; ; conn++ {
		budget := -1
		if ends || conn < 3 && rng.IntN(2) == 0 {
			budget = rng.IntN(2 * len(l.recs))
		}
		s := &sender{l: l, rng: rng, start: r.Out.Reported()}
		s.send = func(m []byte) error {
			if budget == 0 {
				return errCutOff
			}
			budget--
			return r.Feed(m)
		}
		s.keep = func(lsn dtx.LSN) error {
			if r.a.Quiet() {
				return r.Out.Position(r.T.Context(), lsn)
			}
			return nil
		}
		switch err := s.run(); {
		case err == nil:
			return true, nil
		case !errors.Is(err, errCutOff):
			return false, fmt.Errorf("connection %d from %s: %w", conn, s.start, err)
		case ends:
			return false, nil
		}
		r.Reset()
	}
}

// checkLife compares one life's events with the log and picks a position that a
// target could have recorded. What is prepared before the start and commits
// behind it is applied, or the start would lie before: it comes without rows,
// for the dedup set, if its gid names it.
func checkLife(r *rig, rng *rand.Rand, l *mlog, start dtx.LSN, done bool) (safe dtx.LSN, err error) {
	holds := map[dtx.SpoolID]dtx.LSN{}
	var last dtx.LSN
	commits := slices.DeleteFunc(slices.Clone(l.commits), func(t *mtxn) bool {
		return t.end <= start || t.prepEnd != 0 && t.prepLSN < start && t.named
	})
	i := 0
	safe = start
	for n, ev := range r.Events {
		if ev.Kind == dtx.EventHold {
			holds[ev.Hold] = ev.LSN
			continue
		}
		if ev.LSN <= last {
			return 0, fmt.Errorf("event %d (%s) at %s, behind %s", n, ev.Kind, ev.LSN, last)
		}
		last = ev.LSN
		if ev.Hold != 0 {
			if _, ok := holds[ev.Hold]; !ok {
				return 0, fmt.Errorf("event %d (%s at %s) ends a hold that was not", n, ev.Kind, ev.LSN)
			}
			delete(holds, ev.Hold)
		}
		if ev.Kind == dtx.EventPart {
			if i == len(commits) {
				return 0, fmt.Errorf("part of gxid %d, after the last commit", ev.Part.GXID)
			}
			t := commits[i]
			i++
			sent := t.wrote && t.prepLSN >= start
			if ev.Part.GXID != t.gxid || ev.LSN != t.end || (ev.Hold != 0) != (t.twoPhase && sent) {
				return 0, fmt.Errorf("part of gxid %d at %s (held %v), want gxid %d at %s", ev.Part.GXID, ev.LSN, ev.Hold != 0, t.gxid, t.end)
			}
			want := t.want
			if t.twoPhase && !sent {
				want = nil
			}
			if got := feedtest.RowsOf(r.T, r.spool, ev.Part); !slices.Equal(got, want) {
				return 0, fmt.Errorf("rows of gxid %d:\n got %v\nwant %v", t.gxid, got, want)
			}
		}
		for i < len(commits) && commits[i].end <= ev.LSN {
			return 0, fmt.Errorf("%s at %s, but gxid %d ended at %s and was not reported", ev.Kind, ev.LSN, commits[i].gxid, commits[i].end)
		}
		if rng.IntN(3) > 0 { // applied up to here, as far as holds let it
			p := ev.LSN
			for _, h := range slices.Collect(maps.Values(holds)) {
				p = min(p, h)
			}
			safe = max(safe, p)
		}
	}
	if done && (i != len(commits) || len(holds) > 0) {
		return 0, fmt.Errorf("%d of %d commits reported, %d holds open", i, len(commits), len(holds))
	}
	return safe, nil
}
