package store

import "sync"

// tier lends the buffers of blocks. Blocks under construction always get one;
// full blocks stay in memory while the bound allows, and go to Pebble
// otherwise: the newest blocks, which are read last, are the ones that go, so
// a reader that keeps up never touches the disk and nothing is ever evicted.
type tier struct {
	max int64

	mu   sync.Mutex
	used int64
	free [][]byte
}

// maxFree bounds the buffers kept for reuse beyond those in use.
const maxFree = 64

// buffer returns an empty buffer with room for a block.
func (t *tier) buffer() []byte {
	t.mu.Lock()
	if n := len(t.free); n > 0 {
		b := t.free[n-1]
		t.free = t.free[:n-1]
		t.mu.Unlock()
		return b
	}
	t.mu.Unlock()
	return make([]byte, 0, blockSize)
}

// recycle takes a buffer back that nobody refers to any more.
func (t *tier) recycle(b []byte) {
	if cap(b) != blockSize {
		return
	}
	t.mu.Lock()
	if len(t.free) < maxFree {
		t.free = append(t.free, b[:0])
	}
	t.mu.Unlock()
}

// reserve asks for n bytes to stay in memory.
func (t *tier) reserve(n int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.used+int64(n) > t.max {
		return false
	}
	t.used += int64(n)
	return true
}

// release gives reserved bytes back.
func (t *tier) release(n int) {
	t.mu.Lock()
	t.used -= int64(n)
	t.mu.Unlock()
}
