package feed

import (
	"sync"
	"sync/atomic"
	"time"

	"cbrepl/dtx"
	"cbrepl/source/stream/repl"
)

// Stats describe a feed at the time of the call.
type Stats struct {
	Connected bool
	// Since is when Connected last changed; zero before the first connection.
	Since time.Time
	// LastHeard is when the server last sent anything.
	LastHeard time.Time
	// ReceivedLSN is the highest position received, ReportedLSN that of the last
	// event passed on, ConfirmedLSN the position the server may forget up to.
	ReceivedLSN, ReportedLSN, ConfirmedLSN dtx.LSN
	// ServerLSN is how far the server had decoded, as heard at ServerHeard.
	ServerLSN   dtx.LSN
	ServerHeard time.Time
	// LastError is the last fault of the connection; it stays after a reconnect.
	LastError   string
	LastErrorAt time.Time
	Reconnects  int64
	// Bytes counts the bytes read from the server on all connections.
	Bytes int64
}

// stats is what Stats is made of; written by Run, read from any goroutine.
type stats struct {
	stream     atomic.Pointer[repl.Stream]
	confirmed  atomic.Uint64
	reported   atomic.Uint64
	reconnects atomic.Int64

	mu          sync.Mutex
	since       time.Time
	received    dtx.LSN // of ended connections, as the next four
	server      dtx.LSN
	serverHeard time.Time
	heard       time.Time
	bytes       int64
	lastError   string
	lastErrorAt time.Time
}

func (s *stats) connected(st *repl.Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = time.Now()
	s.stream.Store(st)
}

func (s *stats) disconnected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stream.Swap(nil)
	s.since = time.Now()
	s.received = max(s.received, st.Received())
	if lsn, at := st.ServerEnd(); lsn != 0 {
		s.server, s.serverHeard = lsn, at
	}
	s.heard = st.Heard()
	s.bytes += st.Bytes()
}

func (s *stats) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastError, s.lastErrorAt = err.Error(), time.Now()
}

// Stats reads the feed's state. It may be called at any time.
func (f *Feed) Stats() Stats {
	s := &f.st
	s.mu.Lock()
	defer s.mu.Unlock()
	v := Stats{
		Since: s.since, LastHeard: s.heard, ReceivedLSN: s.received, ReportedLSN: dtx.LSN(s.reported.Load()),
		ConfirmedLSN: dtx.LSN(s.confirmed.Load()), ServerLSN: s.server, ServerHeard: s.serverHeard,
		LastError: s.lastError, LastErrorAt: s.lastErrorAt, Reconnects: s.reconnects.Load(), Bytes: s.bytes,
	}
	st := s.stream.Load()
	if st == nil {
		return v
	}
	v.Connected = st.Err() == nil
	v.LastHeard = st.Heard()
	v.ReceivedLSN = max(v.ReceivedLSN, st.Received())
	if lsn, at := st.ServerEnd(); lsn != 0 {
		v.ServerLSN, v.ServerHeard = lsn, at
	}
	v.Bytes += st.Bytes()
	return v
}
