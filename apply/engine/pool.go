package engine

import (
	"sync"

	"cbrepl/apply"
)

// pool keeps buffers between operations, up to limit bytes. The goroutines of
// several segments give back to it.
type pool struct {
	limit int64

	mu   sync.Mutex
	held int64
	vecs []*apply.Vec
	bufs [][]byte
}

// maxPooled is the size of a buffer that is not worth keeping.
const maxPooled = 8 << 20

func (p *pool) vec() *apply.Vec {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.vecs)
	if n == 0 {
		return new(apply.Vec)
	}
	v := p.vecs[n-1]
	p.vecs = p.vecs[:n-1]
	p.held -= int64(v.Cap())
	return v
}

func (p *pool) putVecs(vs []*apply.Vec) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range vs {
		if p.take(v.Cap()) {
			v.Reset()
			p.vecs = append(p.vecs, v)
		}
	}
}

func (p *pool) buf() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.bufs)
	if n == 0 {
		return nil
	}
	b := p.bufs[n-1]
	p.bufs = p.bufs[:n-1]
	p.held -= int64(cap(b))
	return b
}

func (p *pool) putBuf(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.take(cap(b)) {
		p.bufs = append(p.bufs, b[:0])
	}
}

// take reports whether a buffer of n bytes is kept.
func (p *pool) take(n int) bool {
	if n == 0 || n > maxPooled || p.held+int64(n) > p.limit {
		return false
	}
	p.held += int64(n)
	return true
}
