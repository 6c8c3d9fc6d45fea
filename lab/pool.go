package lab

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/semaphore"

	"cbrepl/dtx"
)

// pool keeps idle sessions on one node. It has no goroutine of its own.
type pool struct {
	server *Server
	cfg    *pgx.ConnConfig
	sem    *semaphore.Weighted // sessions in use

	mu     sync.Mutex
	lives  int // the server's starts when the idle sessions were opened
	idle   []*pgx.Conn
	closed bool
}

// session is a connection in use.
type session struct {
	*pgx.Conn
	pool  *pool
	lives int
}

func newPool(s *Server, size int64) (*pool, error) {
	cfg, err := pgx.ParseConfig(s.DSN())
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["lock_timeout"] = LockTimeout
	cfg.RuntimeParams["application_name"] = "cbrepl lab"
	// No prepared statements: a session must survive DDL by others.
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	return &pool{server: s, cfg: cfg, sem: semaphore.NewWeighted(size)}, nil
}

// acquire takes an idle session or opens one; it waits while all are in use.
func (p *pool) acquire(ctx context.Context) (*session, error) {
	if err := p.sem.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	lives := p.server.lives()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		p.sem.Release(1)
		return nil, errors.New("the cluster is stopped")
	}
	var stale []*pgx.Conn
	if p.lives != lives { // sessions do not survive their server
		stale, p.idle, p.lives = p.idle, nil, lives
	}
	var c *pgx.Conn
	if n := len(p.idle); n > 0 {
		c, p.idle = p.idle[n-1], p.idle[:n-1]
	}
	p.mu.Unlock()
	closeAll(stale)
	if c == nil {
		var err error
		if c, err = pgx.ConnectConfig(ctx, p.cfg); err != nil {
			p.sem.Release(1)
			return nil, err
		}
	}
	return &session{c, p, lives}, nil
}

// release gives the session back. One that is broken or inside a transaction is
// closed instead: the server rolls back what it had open.
func (s *session) release() {
	p := s.pool
	keep := !s.IsClosed() && s.PgConn().TxStatus() == 'I'
	p.mu.Lock()
	if keep = keep && !p.closed && s.lives == p.lives; keep {
		p.idle = append(p.idle, s.Conn)
	}
	p.mu.Unlock()
	if !keep {
		closeAll([]*pgx.Conn{s.Conn})
	}
	p.sem.Release(1)
}

// close ends the session whatever its state.
func (s *session) close() {
	closeAll([]*pgx.Conn{s.Conn})
	s.pool.sem.Release(1)
}

// shut closes idle sessions; those in use are closed when they are released.
func (p *pool) shut() {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	closeAll(idle)
}

// closeAll closes connections without waiting for a server that may not answer.
func closeAll(cs []*pgx.Conn) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range cs {
		_ = c.Close(ctx)
	}
}

// exec runs a statement on one node.
func (c *nodes) exec(ctx context.Context, content dtx.Content, sql string, args ...any) error {
	s, err := c.session(ctx, content)
	if err != nil {
		return err
	}
	defer s.release()
	_, err = s.Exec(ctx, sql, args...)
	return nodeErr("run SQL", content, err)
}

// session takes a session on a node.
func (c *nodes) session(ctx context.Context, content dtx.Content) (*session, error) {
	if content < dtx.Coordinator || int(content) >= len(c.segments) {
		return nil, nodeErr("connect", content, errors.New("there is no such content"))
	}
	c.mu.Lock()
	p := c.pools[content]
	if p == nil {
		size := int64(sessions)
		if content == dtx.Coordinator {
			size *= 2
		}
		var err error
		if p, err = newPool(c.Node(content), size); err != nil {
			c.mu.Unlock()
			return nil, nodeErr("connect", content, err)
		}
		c.pools[content] = p
	}
	c.mu.Unlock()
	s, err := p.acquire(ctx)
	return s, nodeErr("connect", content, err)
}

// closePools closes all idle sessions for good.
func (c *nodes) closePools() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pools {
		p.shut()
	}
}

// query runs a query on one node and collects its rows.
func query[T any](ctx context.Context, c *nodes, content dtx.Content, to pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	s, err := c.session(ctx, content)
	if err != nil {
		return nil, err
	}
	defer s.release()
	rows, err := s.Query(ctx, sql, args...)
	if err != nil {
		return nil, nodeErr("query", content, err)
	}
	out, err := pgx.CollectRows(rows, to)
	return out, nodeErr("query", content, err)
}

// nodeErr places an error on a node.
func nodeErr(op string, content dtx.Content, err error) error {
	if err == nil {
		return nil
	}
	return &dtx.Error{Op: op, Content: dtx.AtContent(content), Err: err, Class: dtx.ClassStop}
}
