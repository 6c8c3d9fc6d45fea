package resolver

import (
	"slices"
	"time"

	"cbrepl/dtx"
)

// Wanted returns the contents whose flush position would help, and the token to
// hand back with it. The position must be asked for after this call: it then
// speaks for every record read before it. Nothing is wanted while nothing waits.
func (r *Resolver) Wanted() (Token, []dtx.Content) {
	first := r.first()
	if first == nil {
		return 0, nil
	}
	newest := first.txn
	for i := len(r.queue) - 1; i > r.head; i-- {
		if t := r.queue[i].txn; t != nil {
			newest = t
			break
		}
	}
	var out []dtx.Content
	for i := range r.contents {
		c := &r.contents[i]
		if len(c.samples) < maxSamples && (r.wants(first.txn, i) || r.wants(newest, i)) {
			out = append(out, c.id)
		}
	}
	return r.read, out
}

// wants reports whether t needs a sample of content i that was not taken.
func (r *Resolver) wants(t *txn, i int) bool {
	c := &r.contents[i]
	return c.sampled < t.number && c.clear < t.number && t.sight(i) == nil
}

// Sampled takes the flush position of a content that was asked for after Wanted
// had returned the token.
func (r *Resolver) Sampled(c dtx.Content, token Token, lsn dtx.LSN, now time.Time, out []dtx.Event) []dtx.Event {
	i, ok := r.find(c)
	if !ok || token <= r.contents[i].sampled {
		return out
	}
	s := &r.contents[i]
	s.sampled = token
	// An older sample that lies further on says less than this one.
	s.samples = slices.DeleteFunc(s.samples, func(o sample) bool { return o.lsn >= lsn })
	s.samples = append(s.samples, sample{token, lsn})
	s.reach(s.reached)
	return r.advance(now, out)
}

// Needed returns the contents whose streams must be read on before the record at
// the head of the queue can be passed on; none when no record waits.
func (r *Resolver) Needed() []dtx.Content {
	q := r.first()
	if q == nil {
		return nil
	}
	var out []dtx.Content
	for i := r.next; i < len(r.contents); i++ {
		if !r.known(q.txn, i) {
			out = append(out, r.contents[i].id)
		}
	}
	return out
}

// Stats say how a resolver is doing.
type Stats struct {
	// Waiting counts records whose participants are not known, Queued all events of
	// the coordinator behind the first of them; Remembered counts dtxs.
	Waiting, Queued, Remembered int
	// GXID is the first record that waits, for Age; 0: none does. Needed are the
	// contents that have not said whether they take part in it.
	GXID   dtx.GXID
	Age    time.Duration
	Needed []dtx.Content
	// Median and Max are delays of the records passed on last.
	Median, Max time.Duration
}

// Pending counts the coordinator's events held back.
func (r *Resolver) Pending() int { return len(r.queue) - r.head }

// Stats uses the caller's clock, that of Add.
func (r *Resolver) Stats(now time.Time) Stats {
	s := Stats{Waiting: r.waiting, Queued: r.Pending(), Remembered: len(r.txns), Needed: r.Needed()}
	if q := r.first(); q != nil {
		s.GXID, s.Age = q.txn.gxid, now.Sub(q.at)
	}
	s.Median, s.Max = r.delays.summary()
	return s
}

// delays keeps the latest delays in a ring.
type delays struct {
	ring [256]time.Duration
	n    int
}

func (d *delays) add(v time.Duration) {
	d.ring[d.n%len(d.ring)] = v
	d.n++
}

func (d *delays) summary() (median, most time.Duration) {
	n := min(d.n, len(d.ring))
	if n == 0 {
		return 0, 0
	}
	s := slices.Sorted(slices.Values(d.ring[:n]))
	return s[n/2], s[n-1]
}
