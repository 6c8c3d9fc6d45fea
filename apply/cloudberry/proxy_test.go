package cloudberry

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// proxy stands between a Target and its coordinator and cuts the connection at a
// chosen moment of a COMMIT.
type proxy struct {
	ln     net.Listener
	server string
	wg     sync.WaitGroup

	mu    sync.Mutex
	mode  cut
	conns map[net.Conn]bool
}

type cut uint8

const (
	pass         cut = iota
	beforeCommit     // the message with COMMIT does not reach the server
	afterCommit      // its answer does not reach the client
)

func startProxy(t *testing.T, server string) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{ln: ln, server: server, conns: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		p.mu.Lock()
		for c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) set(m cut) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
}

func (p *proxy) accept() {
	for {
		client, err := p.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		server, err := net.DialTimeout("tcp", p.server, 5*time.Second)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		link := &link{p: p, client: client, server: server}
		p.wg.Go(link.toServer)
		p.wg.Go(link.toClient)
	}
}

// link is one connection through the proxy.
type link struct {
	p              *proxy
	client, server net.Conn
	mu             sync.Mutex
	drop           bool // the server's next answer is for nobody
}

func (l *link) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}

func (l *link) toServer() {
	defer l.close()
	buf := make([]byte, 64<<10)
	for {
		n, err := l.client.Read(buf)
		if n > 0 {
			l.p.mu.Lock()
			mode := l.p.mode
			if bytes.Contains(buf[:n], []byte("COMMIT\x00")) && mode != pass {
				l.p.mode = pass
			} else {
				mode = pass
			}
			l.p.mu.Unlock()
			switch mode {
			case beforeCommit:
				return
			case afterCommit:
				l.mu.Lock()
				l.drop = true
				l.mu.Unlock()
			}
			if _, err := l.server.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (l *link) toClient() {
	defer l.close()
	buf := make([]byte, 64<<10)
	for {
		n, err := l.server.Read(buf)
		l.mu.Lock()
		drop := l.drop
		l.mu.Unlock()
		if drop {
			// The whole answer: what comes first may not be the last statement's.
			_ = l.server.SetReadDeadline(time.Now().Add(5 * time.Second))
			seen := bytes.Clone(buf[:n])
			for !bytes.Contains(seen, []byte("COMMIT\x00")) && err == nil {
				n, err = l.server.Read(buf)
				seen = append(seen, buf[:n]...)
			}
			return
		}
		if n > 0 {
			if _, err := l.client.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				return
			}
			return
		}
	}
}
