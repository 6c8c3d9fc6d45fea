package source

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cbrepl/dtx"
	"cbrepl/source/stream/feed"
	"cbrepl/source/stream/repl"
	"cbrepl/source/stream/repl/repltest"
)

// inserts is a sink that tells of every transaction with an insert, once its
// end is a position: a new connection does not deliver it again.
type inserts chan struct{}

// insertSink keeps what inserts needs of the transaction being received.
type insertSink struct {
	rows inserts
	seen bool
}

func (s *insertSink) Reset(repl.Server, repl.Slot) error { s.seen = false; return nil }
func (s *insertSink) Quiet() bool                        { return false }
func (s *insertSink) Close() error                       { return nil }

func (s *insertSink) Message(ctx context.Context, out *feed.Out, _ dtx.LSN, payload []byte) error {
	switch payload[0] {
	case 'I':
		s.seen = true
	case 'C': // flags, commit LSN, end LSN
		var end uint64
		for _, b := range payload[10:18] {
			end = end<<8 | uint64(b)
		}
		if err := out.Position(ctx, dtx.LSN(end)); err != nil || !s.seen {
			return err
		}
		s.seen = false
		select {
		case s.rows <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// moving is a cluster of which one segment is read through the network that its
// address leads to.
type moving struct {
	*cluster
	cl    *Cluster
	rows  inserts
	feed  *feed.Feed
	done  chan error
	proxy *repltest.Proxy
}

// content is the segment that moves.
const content dtx.Content = 1

func newMoving(t *testing.T) *moving {
	t.Helper()
	m := &moving{cluster: newCluster(t, shared.Source(t)).good().asCluster(), rows: make(inserts), done: make(chan error, 1)}
	m.place(m.dsn(content))
	var err error
	if m.cl, err = Discover(m.ctx(), m.clusterConfig()); err != nil {
		t.Fatal(err)
	}
	return m
}

// place makes the cluster name a new address, through which a server is reached,
// as the segment's.
func (m *moving) place(dsn string) (old *repltest.Proxy) {
	m.t.Helper()
	p, err := repltest.New(dsn)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(p.Close)
	u, err := url.Parse(p.DSN())
	if err != nil {
		m.t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		m.t.Fatal(err)
	}
	m.primary(content, u.Hostname(), port)
	old, m.proxy = m.proxy, p
	return old
}

// stale makes what the coordinator last said too old to be relied on.
func (m *moving) stale() {
	m.t.Helper()
	if err := m.cl.sem.Acquire(m.ctx(), 1); err != nil {
		m.t.Fatal(err)
	}
	m.cl.readAt = time.Time{}
	m.cl.sem.Release(1)
}

// read starts the segment's reader.
func (m *moving) read() {
	m.t.Helper()
	f, err := feed.New(feed.Options{
		Content: content, DSN: m.cl.Nodes()[content+1].DSN, Resolve: m.cl.Resolver(content), Slot: m.slot, Publication: "p",
		BackoffMin: 10 * time.Millisecond, BackoffMax: 100 * time.Millisecond, PositionEvery: -1,
	}, &insertSink{rows: m.rows})
	if err != nil {
		m.t.Fatal(err)
	}
	m.feed = f
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.done <- f.Run(ctx, 0, func(context.Context, dtx.Event) error { return nil })
	}()
	m.t.Cleanup(func() { cancel(); <-ended })
}

// arrives inserts a row and waits for it to be read, once.
func (m *moving) arrives(id int) {
	m.t.Helper()
	m.on(content, fmt.Sprintf("INSERT INTO acct VALUES (%d, 'x')", id))
	select {
	case <-m.rows:
	case err := <-m.done:
		m.t.Fatalf("row %d: the reader ended: %v", id, err)
	case <-time.After(wait):
		m.t.Fatalf("row %d did not arrive", id)
	}
}

// until waits for a state of the reader.
func (m *moving) until(what string, is func(feed.Stats) bool) {
	m.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(wait); !is(m.feed.Stats()); <-tick.C {
		if time.Now().After(end) {
			m.t.Fatalf("%s: not within %s", what, wait)
		}
	}
}

// stops waits for an error that asks for a person.
func stops(t *testing.T, done <-chan error, rows inserts, want ...string) {
	t.Helper()
	select {
	case err := <-done:
		var de *dtx.Error
		if !errors.As(err, &de) || de.Class != dtx.ClassStop {
			t.Fatalf("class: %v", err)
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v\nwant %s", err, w)
			}
		}
	case <-rows:
		t.Fatal("a row was read from where the stream cannot go on")
	case <-time.After(wait):
		t.Fatal("the reader goes on")
	}
}

// TestSegmentMoves: the reader follows a segment to another port, where its slot
// is; a server without the slot takes nothing over.
func TestSegmentMoves(t *testing.T) {
	shared.Source(t)
	mirror := shared.Server(t)
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	m := newMoving(t)
	m.read()
	m.arrives(1)
	m.place(m.dsn(content)).Close() // the same server elsewhere; nothing answers at the old place
	m.arrives(2)
	m.proxy.Cut() // no move: the connection is made again where it was
	m.arrives(3)

	// A server that has no slot: a mirror, as far as the reader can tell.
	exec(t, mirror.DSN(), "CREATE DATABASE "+m.db)
	t.Cleanup(func() { exec(t, mirror.DSN(), "DROP DATABASE "+m.db+" WITH (FORCE)") })
	old := m.place(mirror.DSNFor(m.db))
	m.stale()
	old.Cut() // the old server still answers: it must not be read any more
	stops(t, m.done, m.rows, "content 1 needs resync: its primary has moved from 127.0.0.1:", `slot "`+m.slot+`" does not exist there`, "cbrepl slots drop")
}

// TestCoordinatorAway: while the coordinator cannot say where the segment is,
// nothing is connected to, and the reader waits.
func TestCoordinatorAway(t *testing.T) {
	m := newMoving(t)
	gate, err := repltest.New(m.dsn(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gate.Close)
	cc := m.clusterConfig()
	cc.Coordinator = gate.DSN()
	if m.cl, err = Discover(m.ctx(), cc); err != nil {
		t.Fatal(err)
	}
	m.read()
	m.arrives(1)
	gate.Refuse(true)
	m.stale()
	m.proxy.Cut()
	m.until("the reader asks in vain", func(st feed.Stats) bool { return strings.Contains(st.LastError, "cannot be asked") })
	passed, tries := m.proxy.Passed(), m.feed.Stats().Reconnects
	m.until("it tries again", func(st feed.Stats) bool { return st.Reconnects >= tries+3 })
	if p := m.proxy.Passed(); p != passed {
		t.Errorf("%d bytes from the segment meanwhile", p-passed)
	}
	gate.Refuse(false)
	m.arrives(2)
}

// TestClusterSize: a cluster with another number of segments stops the reader at
// its next connection, and the watch without one; so does a move that only the
// watch can see, because the old server still answers.
func TestClusterSize(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(m *moving)
		watch  bool
		want   string
	}{
		"expanded": {func(m *moving) { m.primary(3, "127.0.0.1", 1) }, false, "the cluster was expanded: it has 4 primary segments now, the subscription reads 3"},
		"shrunk": {
			func(m *moving) {
				m.on(-1, "SET allow_system_table_mods = on; DELETE FROM pg_catalog.gp_segment_configuration WHERE content = 2")
			},
			false, "the cluster was shrunk: it has 2",
		},
		"promoted, watched": {
			func(m *moving) {
				m.primary(content, "127.0.0.1", m.src.Node(0).Port())
				m.on(0, "SELECT pg_drop_replication_slot('"+m.slot+"')")
			},
			true, "content 1 needs resync",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoving(t)
			if !tc.watch {
				m.read()
				m.arrives(1)
				tc.change(m)
				m.stale()
				m.proxy.Cut()
				stops(t, m.done, m.rows, tc.want)
				return
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- m.cl.Watch(ctx, 10*time.Millisecond) }()
			tc.change(m)
			stops(t, done, nil, tc.want)
		})
	}
}
