package engine

import (
	"fmt"
	"os"

	"cbrepl/dtx"
)

// spill keeps rows on disk that were fetched from the target and wait to be
// inserted: their size is not known before they come. The file has no name, so
// nothing of it stays behind.
type spill struct {
	dir  string
	file *os.File
	size int64
	buf  []byte
}

// put appends a and b and returns where they begin.
func (s *spill) put(a, b []byte) (int64, error) {
	if s.file == nil {
		f, err := os.CreateTemp(s.dir, "cbrepl-rows-*")
		if err != nil {
			return 0, s.failed(err)
		}
		s.file = f
		if err := os.Remove(f.Name()); err != nil {
			return 0, s.failed(err)
		}
	}
	at := s.size
	for _, p := range [][]byte{a, b} {
		if _, err := s.file.WriteAt(p, s.size); err != nil {
			return 0, s.failed(err)
		}
		s.size += int64(len(p))
	}
	return at, nil
}

// get reads n bytes; they are valid until the next call.
func (s *spill) get(at int64, n int) ([]byte, error) {
	if cap(s.buf) < n {
		s.buf = make([]byte, n)
	}
	s.buf = s.buf[:n]
	if _, err := s.file.ReadAt(s.buf, at); err != nil {
		return nil, s.failed(err)
	}
	return s.buf, nil
}

func (s *spill) failed(err error) error {
	return &dtx.Error{
		Op: "keep fetched rows on disk", Class: dtx.ClassStop, Err: err,
		Hint: fmt.Sprintf("Make room in %s, or name another directory for temporary files", s.where()),
	}
}

func (s *spill) where() string {
	if s.dir == "" {
		return os.TempDir()
	}
	return s.dir
}

// reset frees the disk space.
func (s *spill) reset() {
	if s.size > 0 {
		_ = s.file.Truncate(0)
		s.size = 0
	}
}

func (s *spill) close() {
	if s.file != nil {
		_ = s.file.Close()
		s.file = nil
	}
}
