package merge

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"cbrepl/dtx"
	"cbrepl/internal/soak"
	"cbrepl/merge/mergetest"
)

// sim delivers a history to an engine in random order, with random limits, and
// checks after every step what the engine gives, keeps and says.
type sim struct {
	rnd *rand.Rand
	h   *mergetest.History
	// crashes lets batches be abandoned and daemons die; backups lets the target go
	// back to one of its earlier states, as long as the source has it all.
	crashes, backups bool

	tgt     *mergetest.Replica
	backup  []*mergetest.Replica
	e       *Engine
	streams []simStream
	spooled map[dtx.SpoolID]dtx.Part // delivered in this life and not released
	restart int
}

// simStream is one content's connection.
type simStream struct {
	content dtx.Content
	log     []mergetest.Logged
	next    int
}

func (s *sim) start() error {
	o := Options{Positions: s.tgt.PositionList(), Dedup: s.tgt.DedupList()}
	for _, c := range s.h.Contents() {
		if c != dtx.Coordinator {
			o.Contents = append(o.Contents, c)
		}
	}
	s.streams, s.spooled = nil, map[dtx.SpoolID]dtx.Part{}
	for _, c := range s.h.Contents() {
		log, err := s.h.From(c, s.tgt.Positions[c])
		if err != nil {
			return err
		}
		s.streams = append(s.streams, simStream{c, log, 0})
	}
	var err error
	s.e, err = New(o)
	s.restart++
	return err
}

// deliver hands over a random stream's next event, if there is one.
func (s *sim) deliver() error {
	var ready []*simStream
	for i := range s.streams {
		if st := &s.streams[i]; st.next < len(st.log) {
			ready = append(ready, st)
		}
	}
	if len(ready) == 0 {
		return nil
	}
	st := ready[s.rnd.IntN(len(ready))]
	ev := st.log[st.next].Event
	if st.next > 0 && s.rnd.IntN(40) == 0 {
		if err := s.revert(st); err != nil {
			return err
		}
	}
	if ev.Kind == dtx.EventPart {
		s.spooled[ev.Part.Spool] = ev.Part
	}
	if err := s.e.Add(ev); err != nil {
		return err
	}
	st.next++
	if s.rnd.IntN(4) == 0 { // at any time
		if err := s.release(s.e.Drops()); err != nil {
			return err
		}
	}
	return s.checkState()
}

// revert lets a server say something again that it has said: a connection goes on
// behind what was reported, so the server must have gone back. It is refused, and
// the engine is as it was.
func (s *sim) revert(st *simStream) error {
	newest := dtx.LSN(0)
	for _, l := range st.log[:st.next] {
		if l.Kind != dtx.EventHold {
			newest = max(newest, l.LSN)
		}
	}
	old := st.log[s.rnd.IntN(st.next)].Event
	if old.Kind == dtx.EventHold || old.LSN >= newest {
		return nil
	}
	if s.e.Add(old) == nil {
		return fmt.Errorf("content %d: %s at %s is accepted behind %s", st.content, old.Kind, old.LSN, newest)
	}
	return nil
}

func (s *sim) release(parts []dtx.Part) error {
	for _, p := range parts {
		if _, ok := s.spooled[p.Spool]; !ok {
			return fmt.Errorf("the part of gxid %d on content %d is released twice", p.GXID, p.Content)
		}
		if !s.tgt.Applied[p.GXID] {
			return fmt.Errorf("the part of gxid %d on content %d is released and not applied", p.GXID, p.Content)
		}
		delete(s.spooled, p.Spool)
	}
	return nil
}

// checkState compares what the engine says with what was delivered to it.
func (s *sim) checkState() error {
	var want Counts
	var oldest dtx.PGTime
	dtxs := map[dtx.GXID]bool{}
	known := func(g dtx.GXID, at dtx.PGTime) {
		dtxs[g] = true
		if oldest == 0 || at < oldest {
			oldest = at
		}
	}
	for _, st := range s.streams {
		for _, l := range st.log[:st.next] {
			switch {
			case l.Kind == dtx.EventPart && !s.tgt.Applied[l.Part.GXID]:
				want.Parts++
				want.Rows += l.Part.Rows
				want.Bytes += l.Part.Bytes
				known(l.Part.GXID, l.Part.CommitTime)
			case l.Kind == dtx.EventRecord && l.Record.Kind == dtx.TwoPhase && !s.tgt.Applied[l.Record.GXID]:
				want.Records++
				known(l.Record.GXID, l.Record.CommitTime)
			}
		}
	}
	want.Dtxs = len(dtxs)
	if n := s.e.Pending(); n != want {
		return fmt.Errorf("pending is %+v, want %+v", n, want)
	}
	if at, ok := s.e.OldestCommit(); at != oldest || ok != (oldest != 0) {
		return fmt.Errorf("the oldest commit is of %d, want %d", at, oldest)
	}
	return nil
}

// apply takes a batch and commits it, or not.
func (s *sim) apply(last bool) (more bool, err error) {
	l := Limits{PositionsOnly: last || s.rnd.IntN(2) == 0}
	if s.rnd.IntN(2) == 0 {
		l.MaxDtxs = 1 + s.rnd.IntN(5)
	}
	if s.rnd.IntN(3) == 0 {
		l.MaxRows = int64(1 + s.rnd.IntN(6))
	}
	b, ok := s.e.Next(l)
	if !ok {
		return false, nil
	}
	if s.rnd.IntN(3) == 0 { // events arrive while the batch is under way
		if err := s.deliver(); err != nil {
			return false, err
		}
	}
	if s.crashes && s.rnd.IntN(12) == 0 {
		s.e.Abandon()
		return true, nil
	}
	if s.backups && s.rnd.IntN(8) == 0 {
		s.backup = append(s.backup, s.tgt.Clone())
	}
	if err := s.tgt.Apply(&b); err != nil {
		return false, err
	}
	if s.crashes && s.rnd.IntN(15) == 0 { // the daemon dies after the target's commit
		if n := len(s.backup); n > 0 && s.rnd.IntN(2) == 0 {
			i := s.rnd.IntN(n)
			s.tgt, s.backup = s.backup[i], s.backup[:i]
		}
		return true, s.start()
	}
	if err := s.release(s.e.Applied()); err != nil {
		return false, err
	}
	for _, c := range s.h.Contents() {
		if s.e.Safe(c) != s.tgt.Positions[c] {
			return false, fmt.Errorf("safe LSN of content %d is %s, recorded %s", c, s.e.Safe(c), s.tgt.Positions[c])
		}
	}
	if n := len(s.tgt.Dedup); n-s.e.DedupSize() > 1 {
		return false, fmt.Errorf("%d dedup entries are recorded, the engine knows %d", n, s.e.DedupSize())
	}
	return true, s.checkState()
}

func (s *sim) run() error {
	if err := s.start(); err != nil {
		return err
	}
	for {
		if err := s.deliver(); err != nil {
			return err
		}
		done := !slices.ContainsFunc(s.streams, func(st simStream) bool { return st.next < len(st.log) })
		if !done && s.rnd.IntN(3) > 0 {
			continue
		}
		for more := true; more; {
			var err error
			if more, err = s.apply(done); err != nil {
				return err
			}
			done = done && !slices.ContainsFunc(s.streams, func(st simStream) bool { return st.next < len(st.log) })
		}
		if done {
			return s.finish()
		}
	}
}

// finish checks that everything is applied and nothing is kept.
func (s *sim) finish() error {
	if err := s.tgt.Compare(); err != nil {
		return fmt.Errorf("%w; waits: %+v", err, s.e.Waits(5))
	}
	if err := s.release(s.e.Drops()); err != nil {
		return err
	}
	if n := len(s.spooled); n > 0 {
		return fmt.Errorf("%d parts are never released", n)
	}
	if n, w := s.e.Kept(), s.e.Waits(5); n != 0 || len(w) != 0 || len(s.tgt.Dedup) != 0 {
		return fmt.Errorf("at the end %d are kept, dedup set %v, waits %+v", n, s.tgt.Dedup, w)
	}
	for i, st := range s.streams {
		end := s.h.End(st.content, 0)
		if s.tgt.Positions[st.content] != end {
			return fmt.Errorf("content %d ends at %s, the stream at %s", st.content, s.tgt.Positions[st.content], end)
		}
		es := s.e.streams[i]
		if n := len(es.entries) + len(es.onePhase) + len(es.awaited) + len(es.prepared.byID); n > 128 || len(es.onePhase)+len(es.awaited)+len(es.prepared.byID) > 0 {
			return fmt.Errorf("content %d keeps %d entries, %d one-phase parts, %d awaited messages, %d prepared transactions",
				st.content, len(es.entries), len(es.onePhase), len(es.awaited), len(es.prepared.byID))
		}
	}
	if n := len(s.e.txns) + len(s.e.ages); n > 0 {
		return fmt.Errorf("%d dtxs are kept", n)
	}
	return nil
}

// TestRandomHistories: any history, any order of arrival, any limits, batches that
// fail, daemons that die, targets restored from backups, and servers that go back:
// every dtx is applied once, whole, in an order that keeps every row right, and in
// the end nothing is kept.
func TestRandomHistories(t *testing.T) {
	for seed := range soak.Seeds(t, 1000, 30*1000) {
		h := mergetest.NewHistory(rand.New(rand.NewPCG(seed, 1)), mergetest.Options{Txns: 60, Truncates: seed%3 == 0})
		s := &sim{
			rnd: rand.New(rand.NewPCG(seed, 2)), h: h, tgt: mergetest.NewReplica(h),
			crashes: seed%2 == 0, backups: seed%4 == 0,
		}
		if err := s.run(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}
