// Package repltest is a misbehaving network for tests: a TCP proxy in front of
// a real server that cuts, stalls or slices what passes.
package repltest

import (
	"errors"
	"net"
	"net/url"
	"sync"
)

// Proxy forwards connections to one server.
type Proxy struct {
	ln  net.Listener
	url *url.URL
	wg  sync.WaitGroup

	mu      sync.Mutex
	cond    *sync.Cond
	conns   map[net.Conn]struct{}
	stalled bool
	refuse  bool
	closed  bool
	chunk   int
	budget  int64 // bytes from the server until the next cut; negative: no limit
	passed  int64
}

// New starts a proxy on a free port, to the server of a connection URL.
func New(dsn string) (*Proxy, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, errors.New("the connection string is not a URL")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{ln: ln, url: u, conns: map[net.Conn]struct{}{}, budget: -1}
	p.cond = sync.NewCond(&p.mu)
	p.wg.Add(1)
	go p.accept()
	return p, nil
}

// DSN is the connection URL through the proxy.
func (p *Proxy) DSN() string {
	u := *p.url
	u.Host = p.ln.Addr().String()
	return u.String()
}

// Cut closes every connection.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutLocked()
}

func (p *Proxy) cutLocked() {
	for c := range p.conns {
		_ = c.Close()
	}
}

// CutAfter closes every connection once n more bytes have come from the server.
func (p *Proxy) CutAfter(n int64) { p.set(func() { p.budget = n }) }

// Stall holds back all bytes in both directions, as a network that is gone.
func (p *Proxy) Stall(on bool) { p.set(func() { p.stalled = on }) }

// Refuse closes new connections at once.
func (p *Proxy) Refuse(on bool) { p.set(func() { p.refuse = on }) }

// Chunk forwards at most n bytes at a time; 0 lifts it.
func (p *Proxy) Chunk(n int) { p.set(func() { p.chunk = n }) }

// Passed counts the bytes that came from the server.
func (p *Proxy) Passed() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.passed
}

func (p *Proxy) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.cond.Broadcast()
}

// Close ends the proxy and waits for its goroutines.
func (p *Proxy) Close() {
	_ = p.ln.Close()
	p.set(func() { p.closed = true; p.cutLocked() })
	p.wg.Wait()
}

func (p *Proxy) accept() {
	defer p.wg.Done()
	for {
		in, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuse := p.refuse || p.closed
		p.mu.Unlock()
		if refuse {
			_ = in.Close()
			continue
		}
		out, err := net.Dial("tcp", p.url.Host)
		if err != nil {
			_ = in.Close()
			continue
		}
		p.set(func() { p.conns[in], p.conns[out] = struct{}{}, struct{}{} })
		p.wg.Add(2)
		go p.forward(in, out, false)
		go p.forward(out, in, true)
	}
}

var errCut = errors.New("cut")

func (p *Proxy) forward(from, to net.Conn, fromServer bool) {
	defer p.wg.Done()
	defer p.set(func() { delete(p.conns, from) })
	defer func() { _, _ = from.Close(), to.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		for b := buf[:n]; len(b) > 0; {
			take, cut := p.admit(len(b), fromServer)
			if cut != nil {
				return
			}
			if _, err := to.Write(b[:take]); err != nil {
				return
			}
			b = b[take:]
		}
		if err != nil {
			return
		}
	}
}

// admit waits while stalled and says how many of n bytes may pass now.
func (p *Proxy) admit(n int, fromServer bool) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.stalled && !p.closed {
		p.cond.Wait()
	}
	if p.closed {
		return 0, errCut
	}
	if p.chunk > 0 {
		n = min(n, p.chunk)
	}
	if !fromServer {
		return n, nil
	}
	if p.budget == 0 {
		p.budget = -1
		p.cutLocked()
		return 0, errCut
	}
	if p.budget > 0 {
		n = int(min(int64(n), p.budget))
		p.budget -= int64(n)
	}
	p.passed += int64(n)
	return n, nil
}
