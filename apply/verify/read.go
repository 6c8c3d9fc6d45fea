package verify

import (
	"context"
	"fmt"
	"strconv"

	"golang.org/x/sync/errgroup"

	"cbrepl/apply/internal/pgside"
	"cbrepl/catalog"
	"cbrepl/dtx"
)

// Node is a server to be read.
type Node struct {
	Content dtx.Content
	// DSN is never printed.
	DSN string
}

// node is a server and the session on it.
type node struct {
	*pgside.Session
	content dtx.Content
	// logSQL asks for the end of its log; empty on a target.
	logSQL string
}

// cluster reads one side.
type cluster struct {
	nodes []*node
	side
}

var faults = pgside.Faults{Unreachable: "Start the server, or correct its connection string"}

// open connects to servers. Sessions read only, in one snapshot per statement's
// transaction, and print values in one way everywhere.
func open(ctx context.Context, name string, nodes []Node) ([]*node, error) {
	out := make([]*node, len(nodes))
	for i, n := range nodes {
		s, err := pgside.NewSession(fmt.Sprintf("%s, content %d", name, n.Content), n.DSN, map[string]string{"client_encoding": "UTF8"}, &faults)
		if err != nil {
			return nil, err
		}
		out[i] = &node{Session: s, content: n.Content}
	}
	var g errgroup.Group
	for _, n := range out {
		g.Go(func() error {
			if err := n.Connect(ctx, "cbrepl verify"); err != nil {
				return err
			}
			return n.Fail("connect", pgside.PinValues(ctx, n.Conn))
		})
	}
	if err := g.Wait(); err != nil {
		closeAll(out)
		return nil, err
	}
	return out, nil
}

func closeAll(nodes []*node) {
	for _, n := range nodes {
		n.Close()
	}
}

// read runs a statement on nodes at once, each under a snapshot that is taken before
// the node's log position is read.
func read(ctx context.Context, op string, nodes []*node, sql string, each func(n *node, r [][]byte)) (map[dtx.Content]dtx.LSN, error) {
	ends := make([]dtx.LSN, len(nodes))
	found := make([][][][]byte, len(nodes))
	g, ctx := errgroup.WithContext(ctx)
	for i, n := range nodes {
		g.Go(func() error {
			if err := n.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"); err != nil {
				return n.Fail(op, err)
			}
			defer func() { _ = n.Exec(context.WithoutCancel(ctx), "ROLLBACK") }() // a session that is lost has rolled back
			if n.logSQL != "" {
				rows, err := n.Query(ctx, n.logSQL)
				if err != nil {
					return n.Fail(op, err)
				}
				if ends[i], err = dtx.ParseLSN(string(rows[0][0])); err != nil {
					return n.Fail(op, err)
				}
			}
			var err error
			found[i], err = n.Query(ctx, sql)
			return n.FailRows(op, err)
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	at := map[dtx.Content]dtx.LSN{}
	for i, n := range nodes {
		at[n.content] = ends[i]
		for _, r := range found[i] {
			each(n, r)
		}
	}
	return at, nil
}

// sum is a checksum of rows that does not depend on their order.
type sum struct{ rows, a, b int64 }

func (s sum) plus(o sum) sum { return sum{s.rows + o.rows, s.a + o.a, s.b + o.b} }

func number(b []byte) int64 {
	v, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		return 0 // sum of no rows
	}
	return v
}

func sumOf(r [][]byte) sum { return sum{number(r[0]), number(r[1]), number(r[2])} }

// place is where rows are: a segment of the target, for a replicated table; else
// anywhere.
type place = dtx.Content

const anywhere place = -2

// sums are checksums by bucket, of each copy.
type sums map[place]map[int]sum

func (t *Table) placeOf(n *node, r []byte) place {
	if !t.replicated() {
		return anywhere
	}
	if n.content >= 0 {
		return n.content
	}
	return dtx.Content(number(r))
}

func (c *cluster) sums(ctx context.Context, t *Table, nodes []*node, rel []catalog.Name, source bool, buckets int) (sums, map[dtx.Content]dtx.LSN, error) {
	out := sums{}
	at, err := read(ctx, "compute checksums", nodes, c.sumsSQL(t, rel, buckets), func(n *node, r [][]byte) {
		p := anywhere
		if !source {
			p = t.placeOf(n, r[0])
		}
		if out[p] == nil {
			out[p] = map[int]sum{}
		}
		b := int(number(r[1]))
		out[p][b] = out[p][b].plus(sumOf(r[2:]))
	})
	return out, at, err
}

// entry is what a side has of a key.
type entry struct {
	sum
	version int64
}

// keys are the entries by key, of each copy.
type keys map[place]map[string]entry

func (c *cluster) keys(ctx context.Context, t *Table, nodes []*node, rel []catalog.Name, source bool, buckets int, which []int, only []string) (keys, map[dtx.Content]dtx.LSN, error) {
	out := keys{}
	at, err := read(ctx, "list keys", nodes, c.keysSQL(t, rel, buckets, which, only), func(n *node, r [][]byte) {
		p := anywhere
		if !source {
			p = t.placeOf(n, r[0])
		}
		if out[p] == nil {
			out[p] = map[string]entry{}
		}
		e := out[p][string(r[1])]
		out[p][string(r[1])] = entry{e.plus(sumOf(r[2:])), e.version + number(r[5])}
	})
	return out, at, err
}
